// SPDX-License-Identifier: Apache-2.0
// What a buffer of a message is, and its bytes, whatever it is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "messenger.hpp"
#include "planner.hpp"

namespace pl::link {

struct memory {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  bool is_device = false;
};

// How device memory may be touched.
enum class touch : std::uint8_t {
  any,      // as the planner thinks best
  cpu_only  // CPU loads and stores through the mapping: another process uses the same GPU, and its engines cost both a
            // context switch (some 150 us)
};

class memory_access {
 public:
  // Both null: host memory only.
  memory_access(const cu::driver_table* cuda, copy::planner* planner) : cuda_(cuda), planner_(planner) {}

  // EINVAL: device memory without a GPU, bytes without an address.
  result<memory> look(const buffer& what) const;
  // [offset, offset + bytes) of `from` to host memory, complete on return; and the other direction.
  status read(const memory& from, std::size_t offset, void* to, std::size_t bytes, touch how) const;
  status write(const memory& to, std::size_t offset, const void* from, std::size_t bytes, touch how) const;
  // Between two memories of this process.
  status move(const memory& to, const memory& from, std::size_t bytes) const;

  bool has_gpu() const noexcept { return planner_ != nullptr; }
  const cu::driver_table* cuda() const noexcept { return cuda_; }
  copy::planner* planner() const noexcept { return planner_; }

 private:
  bool is_device_pointer(std::uint64_t address) const noexcept;
  status copy(const copy::transfer& what, touch how) const;
  const cu::driver_table* cuda_;
  copy::planner* planner_;
};

}  // namespace pl::link
