// SPDX-License-Identifier: Apache-2.0
// Collectives that streams carry out: each call queues one kernel, which exchanges data with those of the other ranks over
// the GPUs' links. No CPU takes part, so calls may be captured in graphs and replayed.
//
// Each rank queues the same calls in the same order, on one stream or on streams that events order; launches of graphs count
// as calls. The kernels of a call run at the same time on all GPUs, and wait for each other: what keeps one of them from
// running keeps all. Two ranks on one GPU take turns on it, so that a call takes milliseconds there.
//
// Failure: a kernel that waits longer than the time-out gives up, and so do the others. The object is then *stopped*:
// status() and each call return the reason, and the destinations hold nothing of use. So does cancel(), and so does a rank
// that is gone, once status() or a call has noticed. A stopped object can only be closed; open another one.
//
// Owns: GPU memory that the other ranks write into. Threads: any, one at a time. Errors: EINVAL for arguments, with nothing
// queued.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/algorithms.hpp"
#include "collectives/stream_job.hpp"
#include "copy/pinned_buffer.hpp"
#include "messaging/bootstrap/bootstrap.hpp"
#include "triggered/context.hpp"

namespace pl::collectives {

// 0: the default. The least of all ranks' values counts, so they need not be equal.
struct stream_collectives_options {
  unsigned blocks = 0;           // most of a kernel: as many multiprocessors are busy with a large collective
  unsigned threads = 0;          // of a block
  std::size_t slot_bytes = 0;    // of a chunk of a large collective
  unsigned depth = 0;            // chunks of a block under way; a power of two
  std::size_t small_bytes = 0;   // up to here a collective is a small one: one way there, no flags
  std::int64_t timeout_ns = -1;  // of a kernel's wait; 0: none; -1: the context's
};

class stream_collectives {
 public:
  // Collective. ENOTSUP: a GPU does not reach another one's memory, more ranks than kMaxStreamRanks, or no kernels in this
  // build. `given` may be an error: a rank whose options are refused tells the others. `context` must outlive the result,
  // and `group` the call of close().
  static result<std::unique_ptr<stream_collectives>> open(
      triggered::context& context, messaging::bootstrap& group,
      const result<stream_collectives_options>& given = stream_collectives_options{});
  ~stream_collectives();
  stream_collectives(const stream_collectives&) = delete;
  stream_collectives& operator=(const stream_collectives&) = delete;

  // ---- Sizes in bytes; memory is this GPU's. `block` bytes are one rank's.
  // In place: source == destination.
  status all_reduce(cu::stream_t stream, std::uint64_t source, std::uint64_t destination, std::size_t bytes,
                    summation terms);
  // `source`: a block for each rank; in place: destination is this rank's.
  status reduce_scatter(cu::stream_t stream, std::uint64_t source, std::uint64_t destination, std::size_t block,
                        summation terms);
  // `destination`: a block of each rank; in place: source is this rank's.
  status all_gather(cu::stream_t stream, std::uint64_t source, std::uint64_t destination, std::size_t block);
  // A block for, and of, each rank. Not in place.
  status all_to_all(cu::stream_t stream, std::uint64_t source, std::uint64_t destination, std::size_t block);
  // What all streams have queued before it has ended before anything behind it begins.
  status barrier(cu::stream_t stream);

  // The reason for which the object is stopped, if it is. Does not wait.
  status state();
  // Kernels that wait give up within about a millisecond, here; those of other ranks by their time-out.
  void cancel(int code);
  // Collective, once everything queued has ended.
  status close();

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // Where calls of this size become large ones.
  std::size_t small_bytes() const noexcept { return small_bytes_; }

 private:
  struct shape;
  stream_collectives(triggered::context& context, messaging::bootstrap& group);
  status load_kernels();
  status make_region(const shape& agreed);
  status reach_peers();
  status check_memory(std::uint64_t address, std::size_t bytes, std::size_t alignment) const;
  status run(cu::stream_t stream, stream_job job, cu::function_t small, cu::function_t large);
  status launch(cu::stream_t stream, cu::function_t kernel, unsigned blocks, stream_job& job);
  status copy_alone(cu::stream_t stream, std::uint64_t source, std::uint64_t destination, std::size_t bytes);
  stream_job job_of(unsigned kind, std::uint64_t source, std::uint64_t destination, std::size_t bytes) const;

  triggered::context& context_;
  messaging::bootstrap& group_;
  const copy::gpu_context gpu_;
  const int rank_, size_;
  cu::module_t module_ = nullptr;
  cu::function_t move_small_ = nullptr, move_large_ = nullptr;
  cu::function_t reduce_small_[kElements] = {}, reduce_large_[kElements] = {};
  copy::pinned_buffer stop_;
  cu::device_ptr region_ = 0;
  triggered::memory_key key_{};
  std::vector<triggered::memory_key> keys_;  // by rank
  stream_job common_{};                      // what all calls have in common
  unsigned threads_ = 0;
  std::size_t small_bytes_ = 0;
};

}  // namespace pl::collectives
