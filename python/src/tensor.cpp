// SPDX-License-Identifier: Apache-2.0
#include "tensor.hpp"

#include <array>
#include <memory>

#include "array_interface.hpp"
#include "dlpack.hpp"
#include "mapping.hpp"
#include "numpy_array.hpp"
#include "torch.hpp"

namespace pl::py {
namespace {

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

// Whether a buffer format contains Python objects ('O'), also in fields of a structure. Field names are between colons.
bool holds_objects(std::string_view format) {
  bool is_name = false;
  for (const char letter : format) {
    if (letter == ':') is_name = !is_name;
    if (letter == 'O' && !is_name) return true;
  }
  return false;
}

// False: the object has no such buffer (a Python error may be set). The tensor keeps the
// memoryview, which locks the buffer: bytearray, array.array and mmap then refuse to be resized or closed.
bool from_buffer(nb::handle object, tensor& out) {
  nb::object kept = nb::steal(PyMemoryView_FromObject(object.ptr()));
  Py_buffer view;
  if (!kept.is_valid() || PyObject_GetBuffer(kept.ptr(), &view, PyBUF_RECORDS_RO) != 0) return false;
  out.address = reinterpret_cast<std::uintptr_t>(view.buf);
  out.is_writable = view.readonly == 0;
  const bool known_type = type_of_format(view.format, view.itemsize, out.type);
  if (view.ndim > 0) {
    out.shape.assign(view.shape, static_cast<std::size_t>(view.ndim));
    // Arrays of ctypes give no strides: they are packed.
    if (view.strides == nullptr) out.strides = packed_strides(out.shape, view.itemsize);
    else out.strides.assign(view.strides, static_cast<std::size_t>(view.ndim));
  }
  const std::string format = view.format != nullptr ? view.format : "";
  PyBuffer_Release(&view);
  if (holds_objects(format))  // the bytes are object pointers, and a copy would break reference counts
    throw nb::type_error(("elements of format " + format + " are Python objects, whose bytes cannot be copied").c_str());
  if (!known_type)
    throw nb::type_error(("elements of format " + format + " are not supported (the other byte order?)").c_str());
  out.owner = std::move(kept);
  return true;
}

// ---- Classes ---------------------------------------------------------------------------------------------------------

// Attributes of a class, looked up once: each failed look-up costs 50 ns.
struct class_facts {
  bool is_mapping = false;
  bool is_torch = false;
  bool may_be_jax = false;
  const exchange_functions* library = nullptr;
};

class_facts facts_of(PyTypeObject* kind) {
  struct known_class {
    nb::object kind;  // keeps the class alive, so that no other class gets its address
    class_facts facts;
  };
  static auto* const seen = new std::array<known_class, 64>;
  auto& slot = (*seen)[reinterpret_cast<std::uintptr_t>(kind) / 64 % seen->size()];
  if (slot.kind.ptr() == reinterpret_cast<PyObject*>(kind)) return slot.facts;
  nb::object kept = nb::borrow(reinterpret_cast<PyObject*>(kind));
  class_facts fresh;
  fresh.is_mapping = PyType_IsSubtype(kind, reinterpret_cast<PyTypeObject*>(nb::type<mapping>().ptr())) != 0;
  fresh.is_torch = is_torch_class(kind);
  fresh.may_be_jax = nb::hasattr(kept, "block_until_ready");
  fresh.library = fresh.may_be_jax ? nullptr : exchange_functions_of(kind);
  slot = {std::move(kept), fresh};
  return fresh;
}

// ---- (pointer, size) -------------------------------------------------------------------------------------------------

bool is_pointer_and_size(nb::handle object) {
  return PyTuple_Check(object.ptr()) && PyTuple_Size(object.ptr()) == 2 && is_integer(PyTuple_GetItem(object.ptr(), 0)) &&
         is_integer(PyTuple_GetItem(object.ptr(), 1));
}

tensor from_pointer(nb::handle pair) {
  tensor out;
  out.address = unsigned_integer(PyTuple_GetItem(pair.ptr(), 0), "the device pointer");
  out.location = place::device;
  out.type = {element_kind::unsigned_integer, 1};
  out.shape = {signed_integer(PyTuple_GetItem(pair.ptr(), 1), "the size in bytes")};
  if (out.shape[0] < 0) throw nb::value_error("the size in bytes is negative");
  out.strides = {1};
  out.owner = nb::none();
  return out;
}

// ---- Any object -----------------------------------------------------------------------------------------------------

// Hints for the most frequent wrong arguments.
const char* advice_on(nb::handle object) {
  if (object.is_none()) return "it is None";
  if (PyUnicode_Check(object.ptr())) return "text has no memory; encode it to bytes";
  if (is_integer(object)) return "a device pointer comes with its size: (device pointer, size in bytes)";
  if (PyTuple_Check(object.ptr())) return "a tuple must be (device pointer, size in bytes), two integers";
  if (PyList_Check(object.ptr()) || PyFloat_Check(object.ptr())) return "make it an array first: numpy.asarray(...)";
  return nullptr;
}

[[noreturn]] void throw_unknown(nb::handle object, const char* role) {
  const char* const advice = advice_on(object);
  throw nb::type_error(
      (std::string(role) + ": " + class_name(object) + " does not describe its memory" +
       (advice != nullptr ? std::string(" (") + advice + ")" : "") +
       ". Give a PyTorch, CuPy, Numba or JAX array, a NumPy array, a mapping, or (device pointer, size in bytes)")
          .c_str());
}

tensor described(nb::handle object, const char* role) {
  tensor out;
  const bool is_numpy = is_numpy_array(object);
  if (is_numpy && from_numpy_array(object, out)) return out;
  if (is_numpy && from_buffer(object, out)) return remember_dtype(object, out.type), out;
  if (is_numpy) PyErr_Clear();
  const class_facts kind = facts_of(Py_TYPE(object.ptr()));
  if (kind.is_mapping) return nb::inst_ptr<mapping>(object)->device_tensor(nb::borrow(object));
  if (kind.is_torch) return from_torch(object, kind.library);
  if (kind.library != nullptr && from_exchange(object, *kind.library, out)) return out;
  if (is_pointer_and_size(object)) return from_pointer(object);
  if (const nb::object interface = cuda_array_interface(object); interface.is_valid())
    return from_interface(object, interface, place::device, kind.may_be_jax);
  // If the object has the interface but refuses to give it (requires_grad in PyTorch), report its reason unless DLPack
  // works.
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
      if (const nb::object interface = array_interface(object); interface.is_valid())
        return from_interface(object, interface, place::host, false);  // NumPy arrays of ml_dtypes' types
      PyErr_Clear();
      throw;
    }
  }
  if (reason != nullptr) throw nb::python_error(*reason);
  throw_unknown(object, role);
}

}  // namespace

std::int64_t tensor::elements() const {
  std::int64_t count = 1;
  for (const auto extent : shape) {
    if (extent < 0) throw nb::value_error(("the shape has a dimension of " + std::to_string(extent) + " elements").c_str());
    if (__builtin_mul_overflow(count, extent, &count)) throw nb::value_error("the shape has too many elements");
  }
  return count;
}

std::uint64_t tensor::bytes() const {
  std::int64_t size = 0;  // signed, as strides are
  if (__builtin_mul_overflow(elements(), type.bytes, &size)) throw nb::value_error("the shape has too many elements");
  return static_cast<std::uint64_t>(size);
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

extent extent_of(const tensor& view) {
  if (view.elements() == 0) return {view.address, 0};
  std::int64_t low = 0, high = view.type.bytes;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &reach) ||
        __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high))
      throw nb::value_error("the strides reach beyond any memory");
  }
  return {view.address + static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high - low)};
}

dimensions packed_strides(const dimensions& shape, std::int64_t element_bytes) {
  dimensions out;
  out.resize(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    out[i] = element_bytes;
    (void)__builtin_mul_overflow(element_bytes, shape[i], &element_bytes);  // wraps where tensor::bytes() refuses the shape
  }
  return out;
}

tensor describe(nb::handle object, const char* role) {
  tensor out = described(object, role);
  if (out.shape.size() != out.strides.size())
    throw nb::value_error("shape and strides differ in their number of dimensions");
  (void)out.bytes();  // refuses shapes that none can have
  return out;
}

dimensions integers(nb::handle sequence, const char* role) {
  dimensions out;
  if (PyTuple_Check(sequence.ptr())) {  // faster than an iterator
    out.resize(static_cast<std::size_t>(PyTuple_Size(sequence.ptr())));
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = signed_integer(PyTuple_GetItem(sequence.ptr(), static_cast<Py_ssize_t>(i)), role);
    return out;
  }
  const nb::object iterator = nb::steal(PyObject_GetIter(sequence.ptr()));
  if (!iterator.is_valid()) {
    PyErr_Clear();
    throw nb::type_error((std::string(role) + ": expected a sequence of integers, got " + class_name(sequence)).c_str());
  }
  while (PyObject* const each = PyIter_Next(iterator.ptr())) out.push_back(signed_integer(nb::steal(each), role));
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return out;
}

}  // namespace pl::py
