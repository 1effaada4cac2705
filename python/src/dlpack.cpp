// SPDX-License-Identifier: Apache-2.0
#include "dlpack.hpp"

#include <cerrno>

#include "error.hpp"

namespace pl::py {
namespace {

enum dlpack_device : int { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum dlpack_code : int { kInt = 0, kUnsigned = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

bool is_known_device(int kind) { return kind == kCpu || kind == kCuda || kind == kCudaHost || kind == kCudaManaged; }

element_type dlpack_type(const nb::dlpack::dtype& given) {
  const std::uint32_t bytes = given.bits / 8u * given.lanes;
  if (given.bits % 8 != 0) throw nb::type_error("elements of less than a byte are not supported");
  switch (given.code) {
    case kInt:
      return {element_kind::signed_integer, bytes};
    case kUnsigned:
      return {element_kind::unsigned_integer, bytes};
    case kFloat:
      return {element_kind::real, bytes};
    case kBfloat:
      return {element_kind::brain, bytes};
    case kComplex:
      return {element_kind::complex, bytes};
    case kBool:
      return {element_kind::boolean, bytes};
    default:
      return {element_kind::opaque, bytes};
  }
}

// Null strides: C order.
void take(const nb::dlpack::dltensor& held, int kind, tensor& out) {
  const auto count = static_cast<std::size_t>(held.ndim > 0 ? held.ndim : 0);
  out.type = dlpack_type(held.dtype);
  out.address = reinterpret_cast<std::uintptr_t>(held.data) + held.byte_offset;
  out.shape.assign(held.shape, count);
  if (held.strides != nullptr) {
    out.strides.assign(held.strides, count);
    for (auto& step : out.strides) step *= static_cast<std::int64_t>(out.type.bytes);
  } else {
    out.strides = packed_strides(out.shape, out.type.bytes);
  }
  out.location = kind == kCuda || kind == kCudaManaged ? place::device : place::host;
  out.device = held.device.device_id;
}

}  // namespace

const exchange_functions* exchange_functions_of(PyTypeObject* kind) {
  static PyObject* const name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  const nb::object capsule = nb::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(kind), name));
  if (!capsule.is_valid() || PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return PyErr_Clear(), nullptr;
  const auto* found = static_cast<const exchange_functions*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (found != nullptr && found->version.major > 1) found = found->previous;
  return found != nullptr && found->version.major == 1 && found->describe != nullptr ? found : nullptr;
}

bool from_exchange(nb::handle object, const exchange_functions& library, tensor& out) {
  nb::dlpack::dltensor held;
  if (library.describe(object.ptr(), &held) != 0) return PyErr_Clear(), false;
  const int kind = held.device.device_type;
  if (held.dtype.code > kBool || held.dtype.bits % 8 != 0 || !is_known_device(kind)) return false;
  take(held, kind, out);
  if (kind == kCuda && library.current_stream != nullptr) out.library = &library;
  out.owner = nb::borrow(object);
  return true;
}

tensor from_dlpack(nb::handle object) {
  tensor out;
  const nb::object device = object.attr("__dlpack_device__")();
  const auto kind = static_cast<int>(signed_integer(nb::object(device[0]), "__dlpack_device__"));
  if (!is_known_device(kind))
    throw nb::type_error(
        ("memory of DLPack device type " + std::to_string(kind) + " is neither a CUDA GPU's nor the host's").c_str());
  // stream=-1: no synchronisation, because stream_order.hpp does it where needed. JAX accepts only real streams.
  const bool takes_none = kind != kCuda || nb::hasattr(object, "block_until_ready");
  const nb::object capsule = takes_none ? object.attr("__dlpack__")() : object.attr("__dlpack__")(nb::arg("stream") = -1);
  // Not renamed to "used_dltensor": the capsule keeps ownership and releases the memory when it is deleted.
  const auto* held = static_cast<const nb::dlpack::dltensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (held == nullptr) throw nb::python_error();
  take(*held, kind, out);
  if (nb::hasattr(object, "block_until_ready")) out.block_until_ready = object.attr("block_until_ready");
  out.owner = capsule;
  return out;
}

}  // namespace pl::py
