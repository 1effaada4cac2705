// SPDX-License-Identifier: Apache-2.0
#include "stream_order.hpp"

#include <algorithm>

#include "driver_table.hpp"
#include "error.hpp"
#include "pointer.hpp"

namespace pl::py {
namespace {

constexpr std::uintptr_t kLegacyStream = 1;  // 0 would mean the per-thread stream to a libcuda compiled that way

stream_handle to_stream(std::uint64_t number) {
  return reinterpret_cast<stream_handle>(static_cast<std::uintptr_t>(number == 0 ? kLegacyStream : number));
}

const cu::driver_table& driver() {
  const auto cuda = cu::driver();
  if (!cuda) throw error(cuda.error());
  return **cuda;
}

// The raw handle, without making a Stream object (0.1 us instead of 2).
stream_handle torch_stream(int device) {
  static auto* const current = new nb::object(nb::module_::import_("torch").attr("_C").attr("_cuda_getCurrentRawStream"));
  return to_stream(nb::cast<std::uint64_t>((*current)(device)));
}

// A default stream belongs to the current context; threads that never used CUDA have none.
bool is_busy(stream_handle stream, int device) {
  const auto& cuda = driver();
  int rc = cuda.cuStreamQuery(stream);
  if (rc == cu::error_code::invalid_context) {
    const auto scope = cu::context_scope::enter(cuda, std::max(device, 0), nullptr);
    if (!scope) throw error(scope.error());
    rc = cuda.cuStreamQuery(stream);
  }
  if (rc == cu::error_code::success) return false;
  if (rc == cu::error_code::not_ready) return true;
  throw error(
      cu::make_error(cuda, rc, "asking the stream that a tensor comes from (is it being captured? then give after=None)"));
}

}  // namespace

stream_handle stream_of(nb::handle object) {
  if (object.is_none()) return to_stream(0);
  if (PyLong_Check(object.ptr())) return to_stream(nb::cast<std::uint64_t>(object));
  if (nb::hasattr(object, "cuda_stream")) return to_stream(nb::cast<std::uint64_t>(object.attr("cuda_stream")));
  if (nb::hasattr(object, "__cuda_stream__")) {
    const nb::object pair = object.attr("__cuda_stream__")();
    return to_stream(nb::cast<std::uint64_t>(pair[1]));
  }
  if (nb::hasattr(object, "ptr")) return to_stream(nb::cast<std::uint64_t>(object.attr("ptr")));
  throw nb::type_error(
      (class_name(object) + " is no stream: give a CUstream as an integer, or an object of PyTorch or CuPy").c_str());
}

std::vector<stream_handle> busy_streams(nb::handle after, std::span<const tensor* const> tensors) {
  std::vector<stream_handle> out;
  const auto add = [&](stream_handle stream, int device) {
    if (std::find(out.begin(), out.end(), stream) == out.end() && is_busy(stream, device)) out.push_back(stream);
  };
  if (after.is_none()) return out;
  if (!nb::isinstance<nb::str>(after)) {
    add(stream_of(after), tensors.empty() ? 0 : tensors.front()->device);
    return out;
  }
  if (text_of(after) != "auto") throw nb::value_error("after: give \"auto\", None or a stream");
  for (const tensor* one : tensors) {
    if (one->where == place::host) continue;
    if (one->is_torch) add(torch_stream(one->device), one->device);
    if (one->stream != 0) add(to_stream(one->stream), one->device);
    if (one->block_until_ready.is_valid()) one->block_until_ready();
  }
  return out;
}

void wait_for(std::span<const stream_handle> streams) {
  if (streams.empty()) return;
  const auto& cuda = driver();
  const nb::gil_scoped_release waiting;
  for (const stream_handle stream : streams)
    if (const int rc = cuda.cuStreamSynchronize(stream); rc != cu::error_code::success)
      throw error(cu::make_error(cuda, rc, "waiting for the stream that a tensor comes from"));
}

}  // namespace pl::py
