// SPDX-License-Identifier: Apache-2.0
#include "numpy_array.hpp"

#include <array>
#include <memory>

namespace pl::py {
namespace {

struct array_fields {
  PyObject_HEAD char* data;
  int dimension_count;
  std::intptr_t* shape;
  std::intptr_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};
constexpr int kWritable = 0x400;  // NPY_ARRAY_WRITEABLE
constexpr std::size_t kMaxDtypes = 24;

struct known_numpy {
  nb::object array_class = nb::module_::import_("numpy").attr("ndarray");
  bool has_known_layout = false;
  std::size_t dtype_count = 0;
  struct {
    nb::object dtype;
    element_type type;
  } dtypes[kMaxDtypes];
};

const array_fields& fields_of(nb::handle object) { return *reinterpret_cast<const array_fields*>(object.ptr()); }

// Compares the fields of an array, whose values are all different, with its attributes.
bool is_layout_known() {
  const nb::module_ numpy = nb::module_::import_("numpy");
  const nb::object whole = numpy.attr("zeros")(nb::make_tuple(6, 5), "int16");
  const nb::object part = whole.attr("__getitem__")(nb::slice(1, 6, 2)).attr("T");
  part.attr("setflags")(nb::arg("write") = false);
  const auto& fields = fields_of(part);
  const nb::object data = part.attr("__array_interface__")["data"];
  return nb::cast<int>(part.attr("ndim")) == fields.dimension_count && fields.dimension_count == 2 &&
         nb::cast<std::uintptr_t>(data[0]) == reinterpret_cast<std::uintptr_t>(fields.data) && fields.shape[0] == 5 &&
         fields.shape[1] == 3 && fields.strides[0] == 2 && fields.strides[1] == 20 &&
         nb::object(part.attr("dtype")).ptr() == fields.dtype && (fields.flags & kWritable) == 0 &&
         (fields_of(whole).flags & kWritable) != 0;
}

// Making it runs Python code, beside which other threads get the GIL. They would hold it while they wait for the guard of a
// static object that is being made, so this is a pointer, and the first of those made at a time stays.
known_numpy& known() {
  static known_numpy* all = nullptr;  // never destroyed, because Python may have ended before
  if (all == nullptr) {
    auto made = std::make_unique<known_numpy>();
    made->has_known_layout = is_layout_known();
    if (all == nullptr) all = made.release();
  }
  return *all;
}

}  // namespace

bool is_numpy_array(nb::handle object) { return object.type().is(known().array_class); }

bool from_numpy_array(nb::handle object, tensor& out) {
  const auto& numpy = known();
  if (!numpy.has_known_layout) return false;
  const auto& fields = fields_of(object);
  for (std::size_t i = 0; i < numpy.dtype_count; ++i) {
    if (numpy.dtypes[i].dtype.ptr() != fields.dtype) continue;
    const auto count = static_cast<std::size_t>(fields.dimension_count);
    out.type = numpy.dtypes[i].type;
    out.address = reinterpret_cast<std::uintptr_t>(fields.data);
    out.shape.assign(fields.shape, count);
    out.strides.assign(fields.strides, count);
    out.is_writable = (fields.flags & kWritable) != 0;
    out.owner = nb::borrow(object);
    return true;
  }
  return false;
}

void remember_dtype(nb::handle array, const element_type& type) {
  auto& numpy = known();
  // Each structured array may have its own dtype object, which would fill the table.
  if (!numpy.has_known_layout || numpy.dtype_count == kMaxDtypes || type.kind == element_kind::opaque) return;
  numpy.dtypes[numpy.dtype_count++] = {nb::borrow(fields_of(array).dtype), type};
}

}  // namespace pl::py
