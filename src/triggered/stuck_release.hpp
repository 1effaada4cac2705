// SPDX-License-Identifier: Apache-2.0
// Releases waiting streams where the CPU cannot write the GPU's words. It has a stream of the highest priority, created
// before any other stream can be stuck, and a thread for the CUDA calls, because the proxy thread makes none.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "copy/gpu_context.hpp"

namespace pl::triggered {

class stuck_release {
 public:
  // The driver's reason if there can be no such stream.
  static result<std::unique_ptr<stuck_release>> make(const copy::gpu_context& context);
  // Ends after all requested words have been written, or the context is gone.
  ~stuck_release();
  stuck_release(const stuck_release&) = delete;
  stuck_release& operator=(const stuck_release&) = delete;

  // Writes `value` soon to every word of the gpu_words at `words` on which a stream may wait. Any thread; makes no CUDA
  // call.
  void poison(cu::device_ptr words, std::uint64_t value);

 private:
  stuck_release(const copy::gpu_context& context, cu::stream_t stream);
  void run();
  void write(cu::device_ptr words, std::uint64_t value);

  const copy::gpu_context context_;
  const cu::stream_t stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<cu::device_ptr, std::uint64_t> wanted_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace pl::triggered
