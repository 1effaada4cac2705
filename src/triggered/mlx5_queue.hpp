// SPDX-License-Identifier: Apache-2.0
// Work requests of an mlx5 adapter, written by the CPU and started by a stream: the front end writes the doorbell record and
// then the doorbell register, as libgdsync does it. Needs rdma-core's mlx5dv.h to compile.
//
// Not tested on real hardware: test/triggered/mlx5_model.hpp is an adapter in software, which executes the requests that it
// reads from the queue's memory. A real adapter also needs its registers mapped for the GPU: PeerMappingOverride=1,
// CU_MEMHOSTREGISTER_IOMEMORY.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"
#include "triggered/mlx5_completions.hpp"

struct ibv_qp;

namespace pl::triggered {

// The layout of a queue pair's send queue. From mlx5dv_init_obj, or from a test.
struct mlx5_place {
  std::byte* ring = nullptr;
  std::uint32_t blocks = 0;         // of 64 bytes; a power of two
  std::uint32_t* record = nullptr;  // of the send queue
  std::uint64_t* doorbell = nullptr;
  std::uint32_t number = 0;  // of the queue pair

  // ENOTSUP: not an mlx5 queue pair, or an unknown layout.
  static result<mlx5_place> inspect(ibv_qp* qp, mlx5_inspector ask);
};

// Memory in the terms of an adapter.
struct mlx5_memory {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
};

// Not thread-safe. Requests are sent in the order in which they were written. A doorbell starts all requests that were
// written before it, even those whose doorbell another stream was meant to ring.
class mlx5_queue {
 public:
  static constexpr std::uint64_t kMaxBytes = 1u << 30;  // of one write

  explicit mlx5_queue(const mlx5_place& layout) : layout_(layout) {}

  // The values that start all requests written so far, in the adapter's byte order.
  struct rings {
    std::uint32_t record = 0;
    std::uint64_t doorbell = 0;
  };

  // EAGAIN: no free blocks. EINVAL: no bytes or too many.
  status write(const mlx5_memory& local, std::uint64_t bytes, const mlx5_memory& remote);
  // Writes eight bytes from the request itself, after all earlier writes. Requests a completion.
  status write_word(std::uint64_t value, const mlx5_memory& remote);
  rings last() const noexcept { return last_; }
  // Discards requests that were written after mark() and whose doorbell was not rung.
  struct place {
    std::uint64_t written = 0;
    rings last;
  };
  place mark() const noexcept { return {written_, last_}; }
  void rewind(const place& mark) noexcept {
    written_ = mark.written;
    last_ = mark.last;
  }
  // Blocks up to this request (of those written, counted from 1) are free: the adapter has completed it.
  void retire(std::uint64_t requests) noexcept { retired_ = requests; }
  std::uint64_t written() const noexcept { return written_; }
  bool has_room(std::uint64_t requests) const noexcept { return written_ + requests - retired_ <= layout_.blocks; }

 private:
  status begin(unsigned code, bool is_signaled, const mlx5_memory& remote, std::byte*& rest);
  void end(const std::byte* request) noexcept;
  const mlx5_place layout_;
  std::uint64_t written_ = 0, retired_ = 0;  // each request is one block
  rings last_;
};

}  // namespace pl::triggered
