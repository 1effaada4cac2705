// SPDX-License-Identifier: Apache-2.0
#include "copy/stream_capture.hpp"

#include <cerrno>
#include <cstdint>

namespace pl::copy {
namespace {

constexpr cu::result_t kFirstCaptureError = 900;  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ... _WRONG_THREAD
constexpr cu::result_t kLastCaptureError = 908;
constexpr std::uintptr_t kLastDefaultStreamHandle = 2;  // null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD

}  // namespace

bool is_default_stream(cu::stream_t stream) { return reinterpret_cast<std::uintptr_t>(stream) <= kLastDefaultStreamHandle; }

status refuse_capture(const cu::driver_table& cuda, cu::stream_t stream) {
  if (cuda.cuStreamIsCapturing == nullptr) return {};
  int capture = cu::capture_status::none;
  const auto rc = cuda.cuStreamIsCapturing(stream, &capture);
  // The default stream cannot even be queried while another stream's capture would have to include it.
  if (capture != cu::capture_status::none || (rc >= kFirstCaptureError && rc <= kLastCaptureError))
    return failure{
        EBUSY,
        "the stream is being captured into a graph, whose launches repeat what it contains, and this copy happens "
        "once: capture the copy (peerlane_copy_capture), end the capture first, or use another stream"};
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "looking at the application's stream");
  return {};
}

status require_capture(const cu::driver_table& cuda, cu::stream_t stream) {
  int capture = cu::capture_status::none;
  if (cuda.cuStreamIsCapturing != nullptr && cuda.cuStreamIsCapturing(stream, &capture) == cu::error_code::success &&
      capture == cu::capture_status::active)
    return {};
  return failure{EINVAL,
                 "the stream is not being captured into a graph, or its capture has failed: begin one with "
                 "cuStreamBeginCapture, or copy with peerlane_copy_begin"};
}

}  // namespace pl::copy
