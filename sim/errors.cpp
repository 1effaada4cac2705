// SPDX-License-Identifier: Apache-2.0
// Names and texts of the error codes in driver_abi.hpp.
#include "device.hpp"

namespace pl::sim {
namespace {

struct error_text {
  result_t value;
  const char* name;
  const char* text;
};

constexpr error_text kErrors[] = {
    {code::success, "CUDA_SUCCESS", "no error"},
    {code::invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {code::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {code::not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {code::deinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {code::stub_library, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {code::device_unavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {code::no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {code::invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {code::invalid_image, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {code::invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {code::map_failed, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {code::already_mapped, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {code::no_binary_for_gpu, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {code::not_mapped, "CUDA_ERROR_NOT_MAPPED", "resource not mapped"},
    {code::ecc_uncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {code::peer_access_unsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {code::invalid_source, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid"},
    {code::file_not_found, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {code::symbol_not_found, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found"},
    {code::operating_system, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {code::invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {code::illegal_state, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {code::not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {code::not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    {code::illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {code::launch_out_of_resources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {code::launch_timeout, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {code::peer_access_already_enabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {code::peer_access_not_enabled, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {code::primary_context_active, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
    {code::context_is_destroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {code::host_memory_already_registered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {code::host_memory_not_registered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {code::misaligned_address, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {code::launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {code::not_permitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {code::not_supported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {code::system_not_ready, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {code::system_driver_mismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {code::stream_capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {code::stream_capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {code::stream_capture_merge, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate captures"},
    {code::stream_capture_unmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream"},
    {code::stream_capture_unjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {code::stream_capture_isolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {code::stream_capture_implicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {code::captured_event, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {code::stream_capture_wrong_thread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {code::timeout, "CUDA_ERROR_TIMEOUT", "wait operation timed out"},
    {code::unknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const error_text* find(result_t value) {
  for (const auto& e : kErrors)
    if (e.value == value) return &e;
  return nullptr;
}

}  // namespace

PL_SIM_API cuGetErrorName(result_t value, const char** name) {
  const auto* found = find(value);
  if (name == nullptr) return code::invalid_value;
  *name = found != nullptr ? found->name : nullptr;
  return found != nullptr ? code::success : code::invalid_value;
}

PL_SIM_API cuGetErrorString(result_t value, const char** text) {
  const auto* found = find(value);
  if (text == nullptr) return code::invalid_value;
  *text = found != nullptr ? found->text : nullptr;
  return found != nullptr ? code::success : code::invalid_value;
}

}  // namespace pl::sim
