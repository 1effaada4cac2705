// SPDX-License-Identifier: Apache-2.0
// Lets waiting streams go where the CPU cannot write the GPU's words: a stream of highest priority, made before any other
// can be stuck, and a thread for its CUDA calls, because the service thread makes none.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "copy/gpu_context.hpp"

namespace pl::stream {

class rescue {
 public:
  // The driver's reason if there can be no such stream.
  static result<std::unique_ptr<rescue>> make(const copy::gpu_context& context);
  // Ends after what was asked for has been written, or the context is gone.
  ~rescue();
  rescue(const rescue&) = delete;
  rescue& operator=(const rescue&) = delete;

  // `value` into every word of the gpu_words at `words` on which a stream may wait, soon. Any thread; makes no CUDA call.
  void poison(cu::device_ptr words, std::uint64_t value);

 private:
  rescue(const copy::gpu_context& context, cu::stream_t stream);
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

}  // namespace pl::stream
