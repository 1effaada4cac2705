// SPDX-License-Identifier: Apache-2.0
// Gives GPU memory of this process to its peers on this host, as descriptors, when they ask for it: windows that it exposes,
// and the words of its channels. A thread answers, since the owner may be busy and need not call us.
//
// Who asks must be a process of this user and know a secret, which peers get by messages. It gets the driver's whole memory
// object, which may hold neighbours of what it asked for: a job's processes trust each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "dma/shared_region.hpp"
#include "os/unique_fd.hpp"

namespace pl::triggered {

// Memory of another process: `bytes` at `offset` of the region.
struct handed_memory {
  dma::shared_region region;
  std::uint64_t offset = 0, bytes = 0;
};

class memory_handover {
 public:
  // Enough to ask, for a process of this host. Plain bytes.
  struct name {
    std::uint64_t place = 0, secret = 0;
  };
  using lookup = std::function<result<handed_memory>(std::uint32_t)>;

  // `find` answers on the thread, by the number that was asked for.
  static result<std::unique_ptr<memory_handover>> open(lookup find);
  ~memory_handover();
  memory_handover(const memory_handover&) = delete;
  memory_handover& operator=(const memory_handover&) = delete;

  const name& own_name() const noexcept { return name_; }

  // Asks another process. Its reason if it refuses; ECONNREFUSED and the like: it is not there, or not on this host;
  // ETIMEDOUT.
  static result<handed_memory> fetch(const name& owner, std::uint32_t number, std::chrono::milliseconds limit);

 private:
  memory_handover(lookup find, const name& own) : find_(std::move(find)), name_(own) {}
  struct visitor;
  void run();
  void listen(visitor& guest) const;
  void answer(int socket, std::uint32_t number) const;

  const lookup find_;
  const name name_;
  unique_fd listener_, stop_;
  std::thread thread_;
};

}  // namespace pl::triggered
