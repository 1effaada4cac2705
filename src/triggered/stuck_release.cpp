// SPDX-License-Identifier: Apache-2.0
#include "triggered/stuck_release.hpp"

#include <pthread.h>

#include <cstddef>

#include "base/log.hpp"
#include "os/blocked_signals.hpp"
#include "triggered/flag_words.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::triggered {

result<std::unique_ptr<stuck_release>> stuck_release::make(const copy::gpu_context& context) {
  const auto& cuda = *context.cuda;
  if (cuda.cuStreamCreateWithPriority == nullptr || cuda.cuCtxGetStreamPriorityRange == nullptr)
    return failure{ENOTSUP, "this driver has no streams with priorities"};
  auto use = copy::context_use::enter(context);
  if (!use) return use.error();
  int least = 0, greatest = 0;
  if (const auto rc = cuda.cuCtxGetStreamPriorityRange(&least, &greatest); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "the range of stream priorities");
  cu::stream_t stream = nullptr;
  if (const auto rc = cuda.cuStreamCreateWithPriority(&stream, cu::stream_flag::non_blocking, greatest);
      rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "a stream of highest priority");
  std::unique_ptr<stuck_release> made(new stuck_release(context, stream));
  auto started = try_start_thread("releases stuck streams", [self = made.get()] { self->run(); });
  if (!started) return started.error();
  made->thread_ = *std::move(started);
  return made;
}

stuck_release::stuck_release(const copy::gpu_context& context, cu::stream_t stream) : context_(context), stream_(stream) {}

stuck_release::~stuck_release() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (!context_.is_alive()) return;
  if (auto use = copy::context_use::enter(context_)) static_cast<void>(context_.cuda->cuStreamDestroy_v2(stream_));
}

void stuck_release::poison(cu::device_ptr words, std::uint64_t value) {
  {
    const std::lock_guard lock(mutex_);
    wanted_[words] = value;
  }
  changed_.notify_all();
}

void stuck_release::run() {
  pthread_setname_np(pthread_self(), "pl-release");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_stopping_ || !wanted_.empty(); });
    if (wanted_.empty()) return;
    const auto [words, value] = *wanted_.begin();
    wanted_.erase(wanted_.begin());
    lock.unlock();
    write(words, value);
    lock.lock();
  }
}

// Waits for completion, so that repeated requests cannot fill the stream's queue.
void stuck_release::write(cu::device_ptr words, std::uint64_t value) {
  auto use = copy::context_use::enter(context_);
  if (!use) return;  // the context is gone, and with it every stream that waited
  mem_ops ops(*context_.cuda, stream_);
  for (const auto offset : kWaitedWords) ops.write64(words + offset, value);
  ops.write64(words + offsetof(gpu_words, staged), value);
  auto done = ops.submit();
  if (done && context_.cuda->cuStreamSynchronize(stream_) != cu::error_code::success)
    done = failure{EIO, "its stream has failed"};
  if (!done) PL_LOG(error, "stream: waiting streams cannot be released: %s", done.error().message.c_str());
}

}  // namespace pl::triggered
