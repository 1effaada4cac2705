// SPDX-License-Identifier: Apache-2.0
#include "array_interface.hpp"

namespace pl::py {
namespace {

// Interned once, so that looking up a field allocates nothing.
struct field_names {
  PyObject* cuda_interface = PyUnicode_InternFromString("__cuda_array_interface__");
  PyObject* array_interface = PyUnicode_InternFromString("__array_interface__");
  PyObject* typestr = PyUnicode_InternFromString("typestr");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* strides = PyUnicode_InternFromString("strides");
  PyObject* data = PyUnicode_InternFromString("data");
  PyObject* mask = PyUnicode_InternFromString("mask");
  PyObject* stream = PyUnicode_InternFromString("stream");
};
const field_names& names() {
  static const auto* const all = new field_names;
  return *all;
}

// Borrowed; null where the field is missing or None.
PyObject* field(nb::handle fields, PyObject* name) {
  PyObject* const found = PyDict_GetItemWithError(fields.ptr(), name);
  return found == Py_None ? nullptr : found;
}

element_type interface_type(nb::handle object, nb::handle typestr) {
  Py_ssize_t size = 0;
  const char* const text =
      typestr.ptr() == nullptr || !PyUnicode_Check(typestr.ptr()) ? nullptr : PyUnicode_AsUTF8AndSize(typestr.ptr(), &size);
  if (text == nullptr) throw nb::type_error("the array interface has no typestr");
  element_type out;
  if (!type_of_typestr({text, static_cast<std::size_t>(size)}, out))
    throw nb::type_error(("elements of type " + std::string(text) + " are not supported").c_str());
  // NumPy's typestr has no letter for bfloat16 and float8; asking a dtype for its name takes microseconds.
  if (out.kind == element_kind::opaque && nb::hasattr(object, "dtype"))
    (void)type_of_name(text_of(nb::object(object.attr("dtype"))), out);
  return out;
}

}  // namespace

nb::object cuda_array_interface(nb::handle object) {
  return nb::steal(PyObject_GetAttr(object.ptr(), names().cuda_interface));
}

nb::object array_interface(nb::handle object) { return nb::steal(PyObject_GetAttr(object.ptr(), names().array_interface)); }

tensor from_interface(nb::handle object, const nb::object& interface, place location, bool may_be_jax) {
  if (!PyDict_Check(interface.ptr()))
    throw nb::type_error(("the array interface of " + class_name(object) + " is not a dictionary").c_str());
  tensor out;
  out.type = interface_type(object, field(interface, names().typestr));
  if (field(interface, names().mask) != nullptr) throw nb::type_error("masked arrays are not supported");
  PyObject* const shape = field(interface, names().shape);
  if (shape == nullptr) throw nb::type_error("the array interface has no shape");
  out.shape = integers(shape, "the array interface's shape");
  PyObject* const strides = field(interface, names().strides);
  out.strides =
      strides == nullptr ? packed_strides(out.shape, out.type.bytes) : integers(strides, "the array interface's strides");
  PyObject* const data = field(interface, names().data);
  if (data == nullptr || !PyTuple_Check(data) || PyTuple_Size(data) != 2)
    throw nb::type_error("the array interface has no data: expected (address, read-only flag)");
  if (PyObject* const address = PyTuple_GetItem(data, 0); address != Py_None)
    out.address = unsigned_integer(address, "the array interface's address");
  out.is_writable = PyObject_IsTrue(PyTuple_GetItem(data, 1)) == 0;
  out.location = location;
  if (location == place::device) {
    if (PyObject* const stream = field(interface, names().stream); stream != nullptr)
      out.stream = unsigned_integer(stream, "the array interface's stream");
    if (may_be_jax) out.block_until_ready = object.attr("block_until_ready");
  }
  out.owner = nb::borrow(object);
  return out;
}

}  // namespace pl::py
