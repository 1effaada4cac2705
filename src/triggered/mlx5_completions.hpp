// SPDX-License-Identifier: Apache-2.0
// The completion queue of an mlx5 send queue. The CPU reads from it which requests are complete, and why the adapter
// stopped. Needs rdma-core's mlx5dv.h to compile.
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

// mlx5dv_init_obj of libmlx5 or of a model for tests.
struct mlx5_inspector {
  int (*init_obj)(mlx5dv_obj* object, std::uint64_t types);
};
// Loads it from libmlx5.so.1 (dlopen). ENOSYS: the library is not installed.
result<mlx5_inspector> find_mlx5_inspector();

struct mlx5_completion_place {
  std::byte* ring = nullptr;
  std::uint32_t entries = 0;  // a power of two
  std::uint32_t entry_bytes = 64;
  std::uint32_t* record = nullptr;  // number of entries that were read

  // ENOTSUP: not an mlx5 adapter, or an unknown layout.
  static result<mlx5_completion_place> inspect(ibv_cq* queue, mlx5_inspector ask);
};

// Not thread-safe. The completion queue belongs to one send queue, in which each request is one block.
class mlx5_completions {
 public:
  explicit mlx5_completions(const mlx5_completion_place& layout) : layout_(layout) {}

  // Reads new completions. EIO: the adapter has refused a request, with the reason, and abandoned all later ones. All
  // further calls then return EIO.
  status poll();
  // Number of completed requests. A completion also completes all earlier requests.
  std::uint64_t completed() const noexcept { return completed_; }

 private:
  const std::byte* next() const noexcept;
  status take(const std::byte* entry);

  const mlx5_completion_place layout_;
  std::uint64_t taken_ = 0, completed_ = 0;
  std::optional<failure> end_;
};

}  // namespace pl::triggered
