// SPDX-License-Identifier: Apache-2.0
#include "copy/gpu_context.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "base/text.hpp"
#include "cuda/pointer.hpp"

namespace pl::copy {
namespace {

struct primary_contexts {
  std::mutex mutex;
  std::map<int, cu::context_t> by_ordinal;
};

// Of this process, because a forked child cannot use its parent's.
primary_contexts& primaries() {
  static auto* const instance = new primary_contexts;
  return *instance;
}

result<cu::context_t> primary_context(const cu::driver_table& cuda, int device_ordinal) {
  auto& all = primaries();
  const std::lock_guard lock(all.mutex);
  if (const auto known = all.by_ordinal.find(device_ordinal); known != all.by_ordinal.end()) {
    // After cudaDeviceReset the context is dead until it is retained again.
    unsigned long long id = 0;
    if (cuda.cuCtxGetId == nullptr || cuda.cuCtxGetId(known->second, &id) == cu::error_code::success) return known->second;
  }
  // Creating the context would break a capture that the application has in progress.
  const cu::relaxed_capture capture(cuda);
  cu::device_t device = 0;
  cu::context_t primary = nullptr;
  auto rc = cuda.cuDeviceGet(&device, device_ordinal);
  if (rc == cu::error_code::success) rc = cuda.cuDevicePrimaryCtxRetain(&primary, device);
  if (rc != cu::error_code::success)
    return cu::make_error(cuda, rc, format("retaining the primary context of device %d", device_ordinal));
  all.by_ordinal[device_ordinal] = primary;
  return primary;
}

}  // namespace

bool gpu_context::is_alive() const noexcept {
  if (handle == nullptr) return false;
  if (cuda->cuCtxGetId == nullptr || id == 0) return true;
  unsigned long long now = 0;
  return cuda->cuCtxGetId(handle, &now) == cu::error_code::success && now == id;
}

result<gpu_context> find_context(const cu::driver_table& cuda, int device_ordinal, cu::context_t owner) {
  gpu_context found{&cuda, device_ordinal, owner, 0};
  if (owner == nullptr) {
    auto primary = primary_context(cuda, device_ordinal);
    if (!primary) return primary.error();
    found.handle = *primary;
  }
  if (cuda.cuCtxGetId != nullptr) {
    if (const auto rc = cuda.cuCtxGetId(found.handle, &found.id); rc != cu::error_code::success)
      return cu::make_error(cuda, rc, format("querying the context of device %d", device_ordinal));
  }
  return found;
}

result<context_use> context_use::enter(const gpu_context& context) {
  const auto& cuda = *context.cuda;
  cu::context_t current = nullptr;
  bool pushed = false;
  if (cuda.cuCtxGetCurrent(&current) != cu::error_code::success || current != context.handle) {
    if (const auto rc = cuda.cuCtxPushCurrent_v2(context.handle); rc != cu::error_code::success)
      return cu::make_error(cuda, rc, format("making the context of device %d current", context.device_ordinal));
    pushed = true;
  }
  int mode = cu::capture_mode::relaxed;
  if (cuda.cuThreadExchangeStreamCaptureMode == nullptr ||
      cuda.cuThreadExchangeStreamCaptureMode(&mode) != cu::error_code::success)
    mode = -1;
  return context_use(&cuda, pushed, mode);
}

context_use::context_use(context_use&& other) noexcept
    : cuda_(other.cuda_),
      pushed_(std::exchange(other.pushed_, false)),
      capture_mode_(std::exchange(other.capture_mode_, -1)) {}

context_use::~context_use() {
  if (capture_mode_ >= 0) cuda_->cuThreadExchangeStreamCaptureMode(&capture_mode_);
  cu::context_t ignored = nullptr;
  if (pushed_) cuda_->cuCtxPopCurrent_v2(&ignored);
}

}  // namespace pl::copy
