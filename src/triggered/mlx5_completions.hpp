// SPDX-License-Identifier: Apache-2.0
// The completion queue of an mlx5 send queue, read by the CPU: how far the adapter has come, and why it stopped. Needs
// rdma-core's mlx5dv.h to compile.
//
// Not tested on real hardware: test/triggered/mlx5_model.hpp is an adapter in software.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.hpp"

struct ibv_cq;
struct mlx5dv_obj;

namespace pl::triggered {

// mlx5dv_init_obj of libmlx5, or of a model.
struct mlx5_inspector {
  int (*init_obj)(mlx5dv_obj* object, std::uint64_t types);
};
// Of libmlx5.so.1 (dlopen). ENOSYS: it is not installed.
result<mlx5_inspector> find_mlx5_inspector();

struct mlx5_completion_place {
  std::byte* ring = nullptr;
  std::uint32_t entries = 0;  // a power of two
  std::uint32_t entry_bytes = 64;
  std::uint32_t* record = nullptr;  // what has been read

  // ENOTSUP: not of an mlx5 adapter, or of a shape that is not known.
  static result<mlx5_completion_place> inspect(ibv_cq* queue, mlx5_inspector ask);
};

// One thread. The completion queue belongs to one send queue whose requests are one block each.
class mlx5_completions {
 public:
  explicit mlx5_completions(const mlx5_completion_place& layout) : layout_(layout) {}

  // Takes what has come since the last call. EIO: the adapter has refused a request and given up those behind it, with the
  // reason; from then on always.
  status poll();
  // Requests that are over, counted from 1: a completion stands for all requests before it.
  std::uint64_t completed() const noexcept { return completed_; }

 private:
  const std::byte* next() const noexcept;
  status take(const std::byte* entry);

  const mlx5_completion_place layout_;
  std::uint64_t taken_ = 0, completed_ = 0;
  std::optional<failure> end_;
};

}  // namespace pl::triggered
