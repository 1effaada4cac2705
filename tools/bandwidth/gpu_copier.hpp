// SPDX-License-Identifier: Apache-2.0
// One transfer as a GPU executes it: a stream of the executing GPU, and the events that time it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tools/bandwidth/gpu_set.hpp"
#include "tools/bandwidth/runner.hpp"

namespace pl::bandwidth {

// Blocks and threads of a copying kernel on `width` multiprocessors (0: all), no more than `bytes` give work to.
struct launch_shape {
  unsigned blocks, threads;
};
launch_shape shape_for(const gpu_set& gpus, int gpu, unsigned width, std::uint64_t bytes);
// The launch shape of bandwidth_copy_bulk.
launch_shape bulk_shape_for(const gpu_set& gpus, int gpu, unsigned width, std::uint64_t bytes);

// A non-blocking stream; destroyed with the object, work in it goes on.
class owned_stream {
 public:
  owned_stream(gpu_set& gpus, int gpu) : gpus_(gpus), gpu_(gpu) {}
  ~owned_stream();
  owned_stream(const owned_stream&) = delete;
  owned_stream& operator=(const owned_stream&) = delete;
  status open();  // leaves the GPU's context current
  cu::stream_t get() const { return stream_; }

 private:
  gpu_set& gpus_;
  const int gpu_;
  cu::stream_t stream_ = nullptr;
};

// The GPU's context must be current (select) for everything that enqueues. One thread.
class gpu_copier {
 public:
  enum class mark : std::uint8_t { warm, start, end, all_ended };

  // Loads the kernel that it needs.
  // `has_company`: other GPU streams run beside it, so it must be known how far it was when one of them ended.
  static result<std::unique_ptr<gpu_copier>> make(gpu_set& gpus, const bound_transfer& transfer, bool has_company);
  ~gpu_copier();
  gpu_copier(const gpu_copier&) = delete;
  gpu_copier& operator=(const gpu_copier&) = delete;

  int gpu() const { return transfer_.executor.gpu; }
  cu::stream_t stream() const { return stream_.get(); }
  status select() { return gpus_.make_current(gpu()); }
  status enqueue_copies(std::uint64_t copies);
  // The same between the marks start and end. Copies by copy engine leave traces of their progress if there is company.
  status enqueue_timed(std::uint64_t copies);
  // For two copiers of the same GPU: how much later this one passed its start mark. A copy engine that several streams
  // share passes the second's mark when it has done the first's copies.
  result<double> started_after_ns(const gpu_copier& other);
  // Copies that had ended `ns` after the start; nothing where there are no traces (kernels copy all in one launch).
  result<std::optional<double>> copies_until(double ns);
  status record(mark marker);
  status wait_for(const gpu_copier& other, mark marker);  // also of another GPU
  // EAGAIN while work is in progress; the driver's reason if it failed.
  status finished();
  result<double> elapsed_ns(mark begin, mark end);

 private:
  result<double> between(cu::event_t begin, cu::event_t end);

  static constexpr std::size_t kMarks = 4;
  static constexpr std::size_t kTraces = 64;
  gpu_copier(gpu_set& gpus, const bound_transfer& transfer)
      : gpus_(gpus), transfer_(transfer), stream_(gpus, transfer.executor.gpu) {}
  status check(cu::result_t code, const char* step) const;
  gpu_set& gpus_;
  const bound_transfer transfer_;
  owned_stream stream_;
  std::array<cu::event_t, kMarks> events_{};
  std::vector<cu::event_t> traces_;  // empty: none are left
  std::size_t traced_ = 0;           // of the last enqueue_timed; one after every step_ copies
  std::uint64_t step_ = 1;
  std::uint64_t copies_ = 0;
  cu::function_t kernel_ = nullptr;
};

}  // namespace pl::bandwidth
