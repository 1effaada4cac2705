// SPDX-License-Identifier: Apache-2.0
// Operations of a stream's front end on words in memory, without a kernel. All executors use this form, and it needs as few
// driver calls as possible.
//
// Order (CUDA driver interface, stream memory operations, version 2): operations of one list run in order. A system-wide
// barrier precedes a write, so earlier writes of the stream are visible before the word. Work after a wait sees what was
// written before the word if both came on one ordered path; `flush` is for writes that did not (a network card's).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"

namespace pl::triggered {

// at_least is cyclic: (signed)(word - value) >= 0, so a counter may wrap.
enum class wait_until : std::uint8_t { at_least = 0, equal = 1, any_bit = 2, nor = 3 };

// A list for one stream, gathered and then submitted. Longer ones are split: the parts run in order, but other work of the
// stream's context may get between them. Not submitted: nothing happens. One thread at a time. No allocation.
// Addresses are device addresses of naturally aligned words (of pinned host memory: its device address), not managed memory.
class mem_ops {
 public:
  static constexpr std::size_t kMaxOps = 255;  // of one driver call; it refuses more than 256

  mem_ops(const cu::driver_table& cuda, cu::stream_t stream) noexcept : cuda_(&cuda), stream_(stream) {}

  mem_ops& wait64(cu::device_ptr word, std::uint64_t value, wait_until condition = wait_until::at_least) noexcept;
  mem_ops& wait32(cu::device_ptr word, std::uint32_t value, wait_until condition = wait_until::at_least) noexcept;
  mem_ops& write64(cu::device_ptr word, std::uint64_t value) noexcept;
  mem_ops& write32(cu::device_ptr word, std::uint32_t value) noexcept;
  // Makes remote writes that arrived earlier visible to the operations that follow.
  mem_ops& flush() noexcept;

  std::size_t size() const noexcept { return count_; }
  // Submits the list and empties it. Returns the driver's reason if it refuses: nothing of that part has been queued,
  // earlier parts of a split list have.
  status submit() noexcept;

 private:
  cu::mem_op_params* next() noexcept;
  mem_ops& value_op(int operation, cu::device_ptr word, std::uint64_t value, unsigned flags, bool is_64) noexcept;
  cu::result_t flush_to_driver() noexcept;

  const cu::driver_table* cuda_;
  cu::stream_t stream_;
  std::size_t count_ = 0;
  cu::result_t refused_ = cu::error_code::success;  // by the driver, of a part that was full
  std::array<cu::mem_op_params, kMaxOps> ops_;      // only the first count_ are ever written
};

}  // namespace pl::triggered
