// SPDX-License-Identifier: Apache-2.0
// Sends descriptors of this process's GPU memory (exposed windows, and the words of channels) to peers on the same host that
// request them. A thread answers, because the application may be busy.
//
// The peer must be a process of the same user and know a secret, which it received by a message. It gets the driver's whole
// memory object, which may contain other allocations: processes of a job trust each other.
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
struct fd_memory {
  dma::shared_region region;
  std::uint64_t offset = 0, bytes = 0;
};

class fd_memory_server {
 public:
  // What a process of this host needs for a request. Plain bytes.
  struct name {
    std::uint64_t place = 0, secret = 0;
  };
  using lookup = std::function<result<fd_memory>(std::uint32_t)>;

  // `find` returns the memory for a number. It runs on this object's thread.
  static result<std::unique_ptr<fd_memory_server>> open(lookup find);
  ~fd_memory_server();
  fd_memory_server(const fd_memory_server&) = delete;
  fd_memory_server& operator=(const fd_memory_server&) = delete;

  const name& own_name() const noexcept { return name_; }

  // Requests memory of another process. Errors: the owner's, if it refuses; ECONNREFUSED and similar: the owner does not
  // exist or is on another host; ETIMEDOUT.
  static result<fd_memory> fetch(const name& owner, std::uint32_t number, std::chrono::milliseconds limit);

 private:
  fd_memory_server(lookup find, const name& own) : find_(std::move(find)), name_(own) {}
  struct joining_process;
  void run();
  void listen(joining_process& guest) const;
  void answer(int socket, std::uint32_t number) const;

  const lookup find_;
  const name name_;
  unique_fd listener_, stop_;
  std::thread thread_;
};

}  // namespace pl::triggered
