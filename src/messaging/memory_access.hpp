// SPDX-License-Identifier: Apache-2.0
// What a buffer of a message is, and its bytes, whatever it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "copy/planner.hpp"
#include "cuda/pointer.hpp"
#include "messaging/host_ranges.hpp"
#include "messaging/messenger.hpp"

namespace pl::link {

struct memory {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  bool is_device = false;
  // What the driver said of `address` when the operation began, so that its copies need not ask: the buffer of an operation
  // stays what it is until that ends. Without a device: not asked, or longer than that is kept (a window).
  cu::pointer_info device;
};

// How device memory may be touched.
enum class touch : std::uint8_t {
  any,      // as the planner thinks best
  cpu_only  // CPU loads and stores through the mapping: another process uses the same GPU, and its engines cost both a
            // context switch (some 150 us)
};

// Under the messenger's lock, as everything of it.
class memory_access {
 public:
  // Both null: host memory only.
  memory_access(const cu::driver_table* cuda, copy::planner* planner) : cuda_(cuda), planner_(planner) {}

  // EINVAL: device memory without a GPU, bytes without an address. Asks the driver at most once for all that a message
  // needs; nothing for registered memory, and for host memory that shows itself as such.
  result<memory> look(const buffer& what);
  // [offset, offset + bytes) of `from` to host memory, complete on return; and the other direction.
  status read(const memory& from, std::size_t offset, void* to, std::size_t bytes, touch how) const;
  status write(const memory& to, std::size_t offset, const void* from, std::size_t bytes, touch how) const;
  // Between two memories of this process.
  status move(const memory& to, const memory& from, std::size_t bytes) const;

  bool has_gpu() const noexcept { return planner_ != nullptr; }
  const cu::driver_table* cuda() const noexcept { return cuda_; }
  copy::planner* planner() const noexcept { return planner_; }

 private:
  std::optional<cu::pointer_info> device_memory_at(std::uint64_t address, std::size_t bytes) noexcept;
  status copy(const copy::transfer& what, const memory& device_side, touch how) const;
  const cu::driver_table* cuda_;
  copy::planner* planner_;
  surely_host host_;
  // What was looked at lately: a question for one attribute tells whether it still is there.
  std::array<cu::pointer_info, 64> recent_;
};

}  // namespace pl::link
