// SPDX-License-Identifier: Apache-2.0
// Reductions on a GPU for collectives that the CPU drives: kernels that combine two blocks, and memory for what arrives.
//
// Owns: a stream of its own, and GPU memory, a little of which it keeps for the next collective. Threads: one at a time.
// Errors: those of the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/element.hpp"
#include "copy/gpu_context.hpp"

namespace pl::collectives {

class device_combiner {
 public:
  using ticket = std::uint64_t;  // of a combination that was begun

  // ENOTSUP: no kernels in this build.
  static result<std::unique_ptr<device_combiner>> open(const copy::gpu_context& gpu);
  ~device_combiner();
  device_combiner(const device_combiner&) = delete;
  device_combiner& operator=(const device_combiner&) = delete;

  int device_ordinal() const noexcept { return gpu_.device_ordinal; }

  // out[i] = first[i] op second[i], of this GPU's memory at multiples of the element's size. `out` may be one of the two;
  // other overlaps are not allowed. They run in the order of their begins.
  result<ticket> begin(element type, reduction op, std::uint64_t first, std::uint64_t second, std::uint64_t out,
                       std::size_t count);
  result<bool> has_ended(ticket begun);

  // Memory whose contents are not defined. Given back only when nothing uses it.
  result<std::uint64_t> take(std::size_t bytes);
  void give_back(std::uint64_t memory) noexcept;

 private:
  explicit device_combiner(const copy::gpu_context& gpu) : gpu_(gpu) {}
  status load();
  struct block {
    std::uint64_t address = 0;
    std::size_t bytes = 0;
    bool is_taken = false;
  };
  struct mark {
    ticket number = 0;
    cu::event_t event = nullptr;
  };

  const copy::gpu_context gpu_;
  cu::module_t module_ = nullptr;
  cu::stream_t stream_ = nullptr;
  cu::function_t kernels_[kElements] = {};
  unsigned max_blocks_ = 0;
  ticket begun_ = 0, ended_ = 0;
  std::vector<mark> marks_;          // of what has not ended, the oldest first
  std::vector<cu::event_t> events_;  // free ones
  std::vector<block> blocks_;
};

}  // namespace pl::collectives
