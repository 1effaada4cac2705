// SPDX-License-Identifier: Apache-2.0
#include "cuda/pointer.hpp"

#include <utility>

#include "base/text.hpp"

namespace pl::cu {
namespace {

failure not_device_memory(std::uint64_t pointer, const char* reason) {
  return failure{EINVAL, format("0x%llx %s", static_cast<unsigned long long>(pointer), reason)};
}

// The driver's answer; `out` is valid if the driver knows the address as device memory.
struct answer {
  result_t rc = error_code::success;
  unsigned type = 0, managed = 0;  // booleans are written as 4 bytes (measured on 580.159): none may be narrower
};

answer ask(const driver_table& cuda, std::uint64_t pointer, pointer_info& out) noexcept {
  answer got;
  std::uint64_t range_begin = 0, object_begin = 0;
  std::size_t range_bytes = 0, object_bytes = 0;
  int attributes[] = {pointer_attribute::memory_type,    pointer_attribute::is_managed,   pointer_attribute::device_ordinal,
                      pointer_attribute::context,        pointer_attribute::buffer_id,    pointer_attribute::range_start,
                      pointer_attribute::range_size,     pointer_attribute::mapping_base, pointer_attribute::mapping_size,
                      pointer_attribute::memory_block_id};
  void* values[] = {&got.type,    &got.managed, &out.device_ordinal, &out.context,  &out.buffer_id,
                    &range_begin, &range_bytes, &object_begin,       &object_bytes, &out.block_id};
  constexpr unsigned kWithoutObject = 7;  // drivers before CUDA 12 do not know the last three
  got.rc = cuda.cuPointerGetAttributes(std::size(attributes), attributes, values, pointer);
  if (got.rc == error_code::invalid_value || got.rc == error_code::not_supported) {
    object_begin = object_bytes = 0;
    out.block_id = 0;
    got.rc = cuda.cuPointerGetAttributes(kWithoutObject, attributes, values, pointer);
  }
  out.allocation = {range_begin, range_bytes};
  out.object = {object_begin, object_bytes};
  return got;
}

}  // namespace

result<pointer_info> inspect_pointer(const driver_table& cuda, std::uint64_t pointer) {
  if (cuda.cuPointerGetAttributes == nullptr) return failure{ENOTSUP, "this libcuda has no cuPointerGetAttributes"};
  pointer_info out;
  const auto [rc, type, managed] = ask(cuda, pointer, out);
  if (rc == error_code::not_initialized)
    return failure{EINVAL,
                   "the CUDA driver is not initialised in this process (a forked child cannot use its parent's CUDA): "
                   "call cuInit or any CUDA runtime function first"};
  if (rc != error_code::success)
    return not_device_memory(pointer, "is not CUDA memory of this process: freed, never allocated, or plain host memory");
  // The array form succeeds for unknown addresses too, with every value zero.
  if (type == 0 && out.buffer_id == 0)
    return not_device_memory(pointer, "is not CUDA memory of this process: freed, never allocated, or plain host memory");
  if (managed != 0)
    return not_device_memory(pointer,
                             "is managed memory, which migrates and cannot be pinned: the CPU can already use it directly, "
                             "or allocate with cudaMalloc");
  if (type == memory_type::host)
    return not_device_memory(pointer, "is host memory (cudaMallocHost or registered): the CPU can already use it directly");
  if (type != memory_type::device) return not_device_memory(pointer, "is neither device nor host memory");
  return out;
}

std::optional<pointer_info> find_device_memory(const driver_table& cuda, std::uint64_t pointer) noexcept {
  if (cuda.cuPointerGetAttributes == nullptr) return std::nullopt;
  pointer_info out;
  const auto got = ask(cuda, pointer, out);
  if (got.rc != error_code::success || got.type != memory_type::device || got.managed != 0) return std::nullopt;
  return out;
}

bool is_still_buffer(const driver_table& cuda, std::uint64_t pointer, unsigned long long buffer_id) noexcept {
  unsigned long long now = 0;
  return cuda.cuPointerGetAttribute(&now, pointer_attribute::buffer_id, pointer) == error_code::success && now == buffer_id;
}

relaxed_capture::relaxed_capture(const driver_table& cuda) noexcept : cuda_(&cuda), mode_to_restore_(capture_mode::relaxed) {
  if (cuda.cuThreadExchangeStreamCaptureMode == nullptr ||
      cuda.cuThreadExchangeStreamCaptureMode(&mode_to_restore_) != error_code::success)
    mode_to_restore_ = -1;
}

relaxed_capture::relaxed_capture(relaxed_capture&& other) noexcept
    : cuda_(other.cuda_), mode_to_restore_(std::exchange(other.mode_to_restore_, -1)) {}

relaxed_capture::~relaxed_capture() {
  if (mode_to_restore_ >= 0) cuda_->cuThreadExchangeStreamCaptureMode(&mode_to_restore_);
}

result<context_scope> context_scope::enter(const driver_table& cuda, int device_ordinal, context_t preferred) {
  relaxed_capture capture(cuda);
  context_t current = nullptr;
  device_t current_device = -1;
  if (cuda.cuCtxGetCurrent(&current) == error_code::success && current != nullptr &&
      cuda.cuCtxGetDevice(&current_device) == error_code::success && current_device == device_ordinal)
    return context_scope(cuda, std::move(capture), false, -1);
  if (preferred != nullptr && cuda.cuCtxPushCurrent_v2(preferred) == error_code::success)
    return context_scope(cuda, std::move(capture), true, -1);
  device_t device = 0;
  context_t primary = nullptr;
  result_t rc = cuda.cuDeviceGet(&device, device_ordinal);
  if (rc == error_code::success) rc = cuda.cuDevicePrimaryCtxRetain(&primary, device);
  if (rc != error_code::success)
    return make_error(cuda, rc, format("retaining the primary context of device %d", device_ordinal));
  rc = cuda.cuCtxPushCurrent_v2(primary);
  if (rc != error_code::success) {
    cuda.cuDevicePrimaryCtxRelease_v2(device);
    return make_error(cuda, rc, format("making the primary context of device %d current", device_ordinal));
  }
  return context_scope(cuda, std::move(capture), true, device);
}

context_scope::context_scope(context_scope&& other) noexcept
    : capture_(std::move(other.capture_)),
      cuda_(other.cuda_),
      pushed_(std::exchange(other.pushed_, false)),
      retained_device_(std::exchange(other.retained_device_, -1)) {}

context_scope::~context_scope() {
  context_t ignored = nullptr;
  if (pushed_) cuda_->cuCtxPopCurrent_v2(&ignored);
  if (retained_device_ >= 0) cuda_->cuDevicePrimaryCtxRelease_v2(retained_device_);
}

}  // namespace pl::cu
