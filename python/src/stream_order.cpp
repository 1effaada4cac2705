// SPDX-License-Identifier: Apache-2.0
#include "stream_order.hpp"

#include <algorithm>

#include "cuda/pointer.hpp"
#include "dlpack.hpp"
#include "driver.hpp"
#include "error.hpp"
#include "process.hpp"
#include "torch.hpp"
#include "waiting.hpp"

namespace pl::py {
namespace {

constexpr std::uintptr_t kLegacyStream = 1;  // handle 0 can mean the per-thread default stream

stream_handle to_stream(std::uint64_t number) {
  return reinterpret_cast<stream_handle>(static_cast<std::uintptr_t>(number == 0 ? kLegacyStream : number));
}

const cu::driver_table& driver() {
  static const pid_t process = process_number();
  static const cu::driver_table* const table = open_driver();
  if (process != process_number()) [[unlikely]]
    throw error(EACCES,
                "CUDA was used by the parent process and does not work in a forked child: start it with "
                "multiprocessing's method spawn");
  return *table;
}

stream_handle current_stream(const exchange_functions& library, int device) {
  constexpr int kCuda = 2;
  void* out = nullptr;
  if (library.current_stream(kCuda, device, &out) != 0) throw nb::python_error();
  return to_stream(reinterpret_cast<std::uintptr_t>(out));
}

// Any other query of a stream that is being captured invalidates the capture. So does a query of the legacy stream while a
// stream that synchronises with it is being captured. cuStreamIsCapturing does not (14 ns on an H200).
int refuse_capture(const cu::driver_table& cuda, stream_handle stream) {
  int state = cu::capture_status::none;
  if (cuda.cuStreamIsCapturing == nullptr) return cu::error_code::success;
  const int rc = cuda.cuStreamIsCapturing(stream, &state);
  if (rc == cu::error_code::stream_capture_implicit || state != cu::capture_status::none)
    throw error(
        EBUSY,
        "the stream that the call would wait for is being captured into a graph, or is the default stream while another one "
        "is: a copy is made once and cannot become part of a graph. Copy before or after the capture, or pass after=None to "
        "copy now, outside of the graph");
  return rc;
}

int query(const cu::driver_table& cuda, stream_handle stream) {
  const int rc = refuse_capture(cuda, stream);
  return rc == cu::error_code::success ? cuda.cuStreamQuery(stream) : rc;
}

// Default streams belong to the current context, and threads that never used CUDA have no current context.
bool is_busy(stream_handle stream, int device) {
  const auto& cuda = driver();
  int rc = query(cuda, stream);
  if (rc == cu::error_code::invalid_context) {
    const auto scope = cu::context_scope::enter(cuda, std::max(device, 0), nullptr);
    if (!scope) throw error(scope.error());
    rc = query(cuda, stream);
  }
  if (rc == cu::error_code::success) return false;
  if (rc == cu::error_code::not_ready) return true;
  throw error(cu::make_error(cuda, rc, "asking the stream that a tensor comes from"));
}

bool is_auto(nb::handle after) {
  static PyObject* const word = PyUnicode_InternFromString("auto");
  if (after.ptr() == word) return true;
  return PyUnicode_Check(after.ptr()) && PyUnicode_Compare(after.ptr(), word) == 0;
}

}  // namespace

stream_handle stream_of(nb::handle object) {
  const auto number = [](const nb::object& given) { return to_stream(unsigned_integer(given, "the stream")); };
  if (object.is_none()) return to_stream(0);
  if (is_integer(object)) return number(nb::borrow(object));
  if (nb::hasattr(object, "cuda_stream")) return number(object.attr("cuda_stream"));
  if (nb::hasattr(object, "__cuda_stream__")) {
    const nb::object pair = object.attr("__cuda_stream__")();
    return number(pair[1]);
  }
  if (nb::hasattr(object, "ptr")) return number(object.attr("ptr"));
  throw nb::type_error(
      ("expected a stream, got " + class_name(object) + "; pass a CUstream as an integer, or a stream of PyTorch or CuPy")
          .c_str());
}

std::vector<stream_handle> busy_streams(nb::handle after, std::span<const tensor* const> tensors) {
  std::vector<stream_handle> out;
  const auto add = [&](stream_handle stream, int device) {
    if (std::find(out.begin(), out.end(), stream) == out.end() && is_busy(stream, device)) out.push_back(stream);
  };
  if (after.is_none()) return out;
  if (!is_auto(after)) {
    if (PyUnicode_Check(after.ptr())) throw nb::value_error("after: give \"auto\", None or a stream");
    add(stream_of(after), tensors.empty() ? 0 : tensors.front()->device);
    return out;
  }
  for (const tensor* one : tensors) {
    if (one->location == place::host) continue;
    if (one->library != nullptr) add(current_stream(*one->library, one->device), one->device);
    else if (one->is_torch) add(to_stream(torch_stream(one->device)), one->device);
    if (one->stream != 0) add(to_stream(one->stream), one->device);
    if (one->block_until_ready.is_valid()) one->block_until_ready();
  }
  return out;
}

void wait_for(std::span<const stream_handle> streams) {
  if (streams.empty()) return;
  const auto& cuda = driver();
  for (const stream_handle stream : streams)
    wait_until([&] {
      const int rc = cuda.cuStreamQuery(stream);
      if (rc != cu::error_code::success && rc != cu::error_code::not_ready)
        throw error(cu::make_error(cuda, rc, "waiting for the stream that a tensor comes from"));
      return rc == cu::error_code::success;
    });
}

}  // namespace pl::py
