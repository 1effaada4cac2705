// SPDX-License-Identifier: Apache-2.0
#include "tensor.hpp"

#include <nanobind/ndarray.h>

#include <cerrno>
#include <memory>

#include "error.hpp"
#include "mapping.hpp"

namespace pl::py {
namespace {

// Attribute names, made once: looking one up must not allocate.
struct names {
  nb::object torch_tensor = nb::none();  // the class, once torch is loaded
  nb::object numpy_array = nb::module_::import_("numpy").attr("ndarray");
  PyObject* torch = PyUnicode_InternFromString("torch");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* cuda_interface = PyUnicode_InternFromString("__cuda_array_interface__");
  PyObject* array_interface = PyUnicode_InternFromString("__array_interface__");
};
names& known() {
  static auto* all = new names;  // never destroyed: Python may be gone by then
  return *all;
}

// The attribute, or null where there is none (whatever the reason, it is left set).
nb::object attribute(nb::handle object, PyObject* name) { return nb::steal(PyObject_GetAttr(object.ptr(), name)); }

std::vector<std::int64_t> integers(nb::handle sequence) {
  std::vector<std::int64_t> out;
  for (nb::handle one : sequence) out.push_back(nb::cast<std::int64_t>(one));
  return out;
}

// ---- PyTorch -------------------------------------------------------------------------------------------------------

bool is_torch(nb::handle object) {
  auto& torch = known().torch_tensor;
  if (torch.is_none()) {
    PyObject* const module = PyDict_GetItem(PyImport_GetModuleDict(), known().torch);  // borrowed
    if (module == nullptr) return false;
    nb::object tensor_class = nb::steal(PyObject_GetAttrString(module, "Tensor"));
    if (!tensor_class.is_valid()) return PyErr_Clear(), false;  // being imported
    torch = std::move(tensor_class);
  }
  return PyObject_IsInstance(object.ptr(), torch.ptr()) == 1;
}

element_type torch_type(nb::handle dtype) {
  struct known_type {
    nb::object dtype;
    element_type type;
  };
  static auto* seen = new std::vector<known_type>;
  for (const auto& one : *seen)
    if (one.dtype.is(dtype)) return one.type;
  element_type type;
  const std::string name = text_of(dtype);
  if (!type_of_name(name, type))
    throw nb::type_error(("tensors of " + name + " are not supported: view them as another dtype").c_str());
  seen->push_back({nb::borrow(dtype), type});
  return type;
}

tensor from_torch(nb::handle object) {
  tensor out;
  out.type = torch_type(object.attr("dtype"));
  if (nb::cast<bool>(object.attr("is_neg")()) ||
      (out.type.kind == element_kind::complex && nb::cast<bool>(object.attr("is_conj")())))
    throw nb::type_error("the tensor's sign or conjugation is not in its memory yet: call resolve_neg() or resolve_conj()");
  out.address = nb::cast<std::uint64_t>(object.attr("data_ptr")());
  out.shape = integers(object.attr("shape"));
  for (const auto step : integers(object.attr("stride")())) out.strides.push_back(step * out.type.bytes);
  const bool is_cuda = nb::cast<bool>(object.attr("is_cuda"));
  out.where = is_cuda ? place::device : place::host;
  out.is_torch = is_cuda;
  if (is_cuda) out.device = nb::cast<int>(object.attr("get_device")());
  out.owner = nb::borrow(object);
  return out;
}

// ---- Array interfaces ------------------------------------------------------------------------------------------------

tensor from_interface(nb::handle object, const nb::object& interface, place where) {
  tensor out;
  const nb::dict fields = nb::cast<nb::dict>(interface);
  const auto field = [&](const char* name) -> nb::object {
    PyObject* found = PyDict_GetItemString(fields.ptr(), name);
    return found != nullptr ? nb::borrow(found) : nb::none();
  };
  const std::string typestr = nb::cast<std::string>(field("typestr"));
  if (!type_of_typestr(typestr, out.type))
    throw nb::type_error(("elements of type " + typestr + " are not supported").c_str());
  // NumPy's typestr has no letter for bfloat16 and float8; asking a dtype for its name takes microseconds.
  if (out.type.kind == element_kind::opaque && nb::hasattr(object, "dtype"))
    (void)type_of_name(text_of(nb::object(object.attr("dtype"))), out.type);
  if (!field("mask").is_none()) throw nb::type_error("masked arrays are not supported");
  out.shape = integers(field("shape"));
  const nb::object strides = field("strides");
  out.strides = strides.is_none() ? packed_strides(out.shape, out.type.bytes) : integers(strides);
  const nb::object data = field("data");
  if (data.is_none()) throw nb::type_error("the array interface names no address");
  if (!data[0].is_none()) out.address = nb::cast<std::uint64_t>(data[0]);
  out.is_writable = !nb::cast<bool>(data[1]);
  out.where = where;
  if (const nb::object stream = field("stream"); where == place::device && !stream.is_none())
    out.stream = nb::cast<std::uint64_t>(stream);
  if (where == place::device && nb::hasattr(object, "block_until_ready"))
    out.block_until_ready = object.attr("block_until_ready");
  out.owner = nb::borrow(object);
  return out;
}

// ---- Buffer protocol -------------------------------------------------------------------------------------------------

bool type_of_format(const char* format, Py_ssize_t item_bytes, element_type& out) {
  std::string_view text = format != nullptr ? format : "B";
  if (!text.empty() && (text[0] == '>' || text[0] == '!')) return false;
  if (!text.empty() && (text[0] == '<' || text[0] == '=' || text[0] == '@')) text.remove_prefix(1);
  const auto bytes = static_cast<std::uint32_t>(item_bytes);
  const auto is_one_of = [&](std::string_view letters) { return text.size() == 1 && letters.find(text[0]) != letters.npos; };
  if (text == "?") return type_of_letter('b', bytes, out);
  if (text == "Zf" || text == "Zd") return type_of_letter('c', bytes, out);
  if (is_one_of("bhilqn")) return type_of_letter('i', bytes, out);
  if (is_one_of("cBHILQN")) return type_of_letter('u', bytes, out);
  if (is_one_of("efd")) return type_of_letter('f', bytes, out);
  out = {element_kind::opaque, bytes};
  return true;
}

// False: the object has no such buffer (a Python error may be set).
bool from_buffer(nb::handle object, tensor& out) {
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_RECORDS_RO) != 0) return false;
  out.address = reinterpret_cast<std::uintptr_t>(view.buf);
  out.is_writable = view.readonly == 0;
  const bool known_type = type_of_format(view.format, view.itemsize, out.type);
  if (view.ndim > 0) {
    out.shape.assign(view.shape, view.shape + view.ndim);
    out.strides.assign(view.strides, view.strides + view.ndim);
  }
  const std::string format = view.format != nullptr ? view.format : "";
  PyBuffer_Release(&view);
  if (!known_type)
    throw nb::type_error(("elements of format " + format + " are not supported (the other byte order?)").c_str());
  out.owner = nb::borrow(object);
  return true;
}

// ---- DLPack ----------------------------------------------------------------------------------------------------------

enum dlpack_device : int { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum dlpack_code : int { kInt = 0, kUnsigned = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

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

tensor from_dlpack(nb::handle object) {
  tensor out;
  const nb::object device = object.attr("__dlpack_device__")();
  const int kind = nb::cast<int>(device[0]);
  if (kind != kCpu && kind != kCuda && kind != kCudaHost && kind != kCudaManaged)
    throw nb::type_error(
        ("memory of DLPack device type " + std::to_string(kind) + " is neither a CUDA GPU's nor the host's").c_str());
  // stream=-1: no synchronisation; whoever needs order asks for it (stream_order.hpp). JAX takes real streams only.
  const bool takes_none = kind != kCuda || nb::hasattr(object, "block_until_ready");
  const nb::object capsule = takes_none ? object.attr("__dlpack__")() : object.attr("__dlpack__")(nb::arg("stream") = -1);
  // Not renamed, so it keeps the memory and gives it back when it goes.
  const auto* held = static_cast<const nb::dlpack::dltensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (held == nullptr) throw nb::python_error();
  out.type = dlpack_type(held->dtype);
  out.address = reinterpret_cast<std::uintptr_t>(held->data) + held->byte_offset;
  if (held->ndim > 0) out.shape.assign(held->shape, held->shape + held->ndim);
  if (held->strides != nullptr) {
    for (int i = 0; i < held->ndim; ++i) out.strides.push_back(held->strides[i] * static_cast<std::int64_t>(out.type.bytes));
  } else {
    out.strides = packed_strides(out.shape, out.type.bytes);
  }
  out.where = kind == kCuda || kind == kCudaManaged ? place::device : place::host;
  out.device = held->device.device_id;
  if (nb::hasattr(object, "block_until_ready")) out.block_until_ready = object.attr("block_until_ready");
  out.owner = capsule;
  return out;
}

// ---- (pointer, size) -------------------------------------------------------------------------------------------------

tensor from_pointer(nb::handle pair) {
  tensor out;
  out.address = nb::cast<std::uint64_t>(pair[0]);
  out.where = place::device;
  out.type = {element_kind::unsigned_integer, 1};
  out.shape = {nb::cast<std::int64_t>(pair[1])};
  if (out.shape[0] < 0) throw nb::value_error("the size is negative");
  out.strides = {1};
  out.owner = nb::none();
  return out;
}

bool is_pointer_and_size(nb::handle object) {
  return PyTuple_Check(object.ptr()) && nb::len(object) == 2 && PyLong_Check(nb::object(object[0]).ptr()) &&
         PyLong_Check(nb::object(object[1]).ptr());
}

tensor described(nb::handle object) {
  tensor out;
  if (nb::isinstance<mapping>(object)) return nb::inst_ptr<mapping>(object)->device_tensor(nb::borrow(object));
  // First what is common, and would be asked in vain for what others have (0.5 us each).
  if (object.type().is(known().numpy_array) && from_buffer(object, out)) return out;
  PyErr_Clear();
  if (is_torch(object)) return from_torch(object);
  if (is_pointer_and_size(object)) return from_pointer(object);
  if (const nb::object interface = attribute(object, known().cuda_interface); interface.is_valid())
    return from_interface(object, interface, place::device);
  // An interface that is there and refuses (torch.requires_grad and the like) has the better reason, unless DLPack works.
  nb::python_error* refused = nullptr;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) refused = new nb::python_error;
  PyErr_Clear();
  const std::unique_ptr<nb::python_error> reason(refused);
  if (from_buffer(object, out)) return out;
  PyErr_Clear();
  if (nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__dlpack_device__")) {
    try {
      return from_dlpack(object);
    } catch (nb::python_error&) {
      if (const nb::object interface = attribute(object, known().array_interface); interface.is_valid())
        return from_interface(object, interface, place::host);  // NumPy arrays of ml_dtypes' types
      PyErr_Clear();
      throw;
    }
  }
  if (reason != nullptr) throw nb::python_error(*reason);
  throw nb::type_error((class_name(object) +
                        " tells nothing of its memory: give a PyTorch, CuPy, Numba or JAX array, a NumPy "
                        "array, or (device pointer, size in bytes)")
                           .c_str());
}

}  // namespace

std::int64_t tensor::elements() const {
  std::int64_t count = 1;
  for (const auto extent : shape)
    if (__builtin_mul_overflow(count, extent, &count)) throw nb::value_error("the shape has too many elements");
  return count;
}

bool tensor::is_contiguous() const {
  return elements() <= 1 || [&] {
    std::int64_t step = type.bytes;
    for (std::size_t i = shape.size(); i-- > 0;) {
      if (shape[i] == 1) continue;
      if (strides[i] != step) return false;
      step *= shape[i];
    }
    return true;
  }();
}

extent extent_of(const tensor& what) {
  if (what.elements() == 0) return {what.address, 0};
  std::int64_t low = 0, high = what.type.bytes;
  for (std::size_t i = 0; i < what.shape.size(); ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(what.shape[i] - 1, what.strides[i], &reach) ||
        __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high))
      throw nb::value_error("the strides reach beyond any memory");
  }
  return {what.address + static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high - low)};
}

std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& shape, std::int64_t element_bytes) {
  std::vector<std::int64_t> out(shape.size());
  for (std::size_t i = shape.size(); i-- > 0; element_bytes *= shape[i]) out[i] = element_bytes;
  return out;
}

tensor describe(nb::handle object) {
  tensor out = described(object);
  if (out.shape.size() != out.strides.size())
    throw nb::value_error("shape and strides differ in their number of dimensions");
  (void)out.elements();
  return out;
}

std::string text_of(nb::handle object) { return nb::cast<std::string>(nb::str(object)); }

std::string class_name(nb::handle object) {
  const nb::handle type = object.type();
  const std::string module = nb::cast<std::string>(type.attr("__module__"));
  return (module == "builtins" ? "" : module + ".") + nb::cast<std::string>(type.attr("__qualname__"));
}

}  // namespace pl::py
