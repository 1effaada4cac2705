// SPDX-License-Identifier: Apache-2.0
#include "mapping.hpp"

#include "call.hpp"
#include "error.hpp"
#include "gil.hpp"
#include "torch.hpp"

namespace pl::py {
namespace {

using extents = nb::typed<nb::tuple, int, nb::ellipsis>;

extents tuple_of(const dimensions& values) {
  nb::list out;
  for (const auto each : values) out.append(each);
  return extents(nb::tuple(out));
}

element_type type_of(nb::handle dtype) {
  element_type out;
  const bool is_class = PyType_Check(dtype.ptr()) != 0;  // np.float32 itself
  const std::string name = text_of(is_class ? nb::object(dtype.attr("__name__")) : nb::borrow(dtype));
  if (!type_of_name(name, out) && !type_of_typestr(name, out))
    throw nb::type_error(("unknown dtype " + name + ": use a name such as \"float32\"").c_str());
  return out;
}

void reinterpret(tensor& view, nb::handle dtype, nb::handle shape) {
  if (!view.is_contiguous())
    throw nb::value_error("dtype and shape reinterpret contiguous memory only: this tensor has gaps");
  const std::uint64_t bytes = view.bytes();
  if (!dtype.is_none()) {
    view.type = type_of(dtype);
    if (bytes % view.type.bytes != 0)
      throw nb::value_error((std::to_string(bytes) + " bytes are not a whole number of " + name_of(view.type)).c_str());
    view.shape = {static_cast<std::int64_t>(bytes / view.type.bytes)};
  }
  if (is_integer(shape)) view.shape = {signed_integer(shape, "map: shape")};
  else if (!shape.is_none()) view.shape = integers(shape, "map: shape");
  view.strides = packed_strides(view.shape, view.type.bytes);
  if (view.bytes() != bytes)
    throw nb::value_error(
        ("shape and dtype take " + std::to_string(view.bytes()) + " bytes, the memory has " + std::to_string(bytes))
            .c_str());
}

peerlane::mapping map_range(extent range, std::uint32_t flags) {
  const gil_release waiting;
  return value_of(peerlane::map(range.begin, range.bytes, flags));
}

}  // namespace

mapping::mapping(nb::handle object, nb::handle dtype, nb::handle shape, bool force_pcie, bool verify)
    : view_(describe(object, "map")) {
  if (view_.location == place::host)
    throw error(EINVAL, "map: " + class_name(object) + " lies in host memory, which needs no mapping: give memory of a GPU");
  if (!dtype.is_none() || !shape.is_none()) reinterpret(view_, dtype, shape);
  range_ = extent_of(view_);
  nb::object owner = std::move(view_.owner);
  view_.owner = nb::none();
  region_ = nb::none();
  if (range_.bytes == 0) return;
  std::uint32_t flags = PEERLANE_MAP_DEFAULT;
  if (force_pcie) flags |= PEERLANE_MAP_FORCE_PCIE;
  if (verify) flags |= PEERLANE_MAP_VERIFY;
  peerlane::mapping mapped = map_range(range_, flags);
  remember_memory(object, owner);  // after map_range(), whose error messages say more
  handle_ = mapped.get();
  region_ = nb::cast(new region{std::move(owner), std::move(mapped)}, nb::rv_policy::take_ownership);
}

// Keeps the memory alive and checks that it still exists.
void mapping::remember_memory(nb::handle object, nb::object& owner) {
  nb::object data_ptr;
  if (nb::isinstance<mapping>(object)) {
    const auto& other = *nb::inst_ptr<mapping>(object);
    owner = other.region_;  // close() of the other mapping does not end the region
    memory_ = other.memory_;
    return;
  }
  if (const nb::object storage = torch_storage(object); storage.is_valid()) {
    owner = nb::make_tuple(owner, storage);
    data_ptr = storage.attr("data_ptr");
  }
  memory_ = mapped_memory(range_, std::move(data_ptr));
}

void mapping::must_be_open() const {
  if (closed_) [[unlikely]]
    throw nb::value_error("the mapping is closed");
  if (process_ != process_number()) [[unlikely]]
    throw error(EACCES,
                "the mapping belongs to the parent process: neither CUDA nor its mappings work in a forked child; start it "
                "with multiprocessing's method spawn");
}

void mapping::must_be_there() const {
  must_be_open();
  memory_.must_be_there();
}

bool mapping::add_index(std::size_t dimension, nb::handle index, std::int64_t& offset) const {
  if (!PyLong_Check(index.ptr()) || PyBool_Check(index.ptr())) return false;
  std::int64_t position = PyLong_AsLongLong(index.ptr());
  const std::int64_t extent = view_.shape[dimension];
  if (position < 0) {
    if (position == -1 && PyErr_Occurred() != nullptr)
      PyErr_Clear(), position = extent;  // an index that does not fit 64 bits is outside of every shape
    position += extent;
  }
  if (position < 0 || position >= extent) [[unlikely]]
    throw nb::index_error(("index " + nb::cast<std::string>(nb::repr(index)) + " is outside dimension " +
                           std::to_string(dimension) + " of size " + std::to_string(extent))
                              .c_str());
  offset += position * view_.strides[dimension];
  return true;
}

bool mapping::locate(nb::handle index, std::uint64_t& offset) const {
  std::int64_t from_first = 0;
  const std::size_t dimensions = view_.shape.size();
  if (PyTuple_Check(index.ptr())) {
    if (static_cast<std::size_t>(PyTuple_Size(index.ptr())) != dimensions) return false;
    for (std::size_t i = 0; i < dimensions; ++i)
      if (!add_index(i, PyTuple_GetItem(index.ptr(), static_cast<Py_ssize_t>(i)), from_first)) return false;
  } else if (dimensions != 1 || !add_index(0, index, from_first)) {
    return false;
  }
  if (handle_ == nullptr) return false;
  offset = first_offset() + static_cast<std::uint64_t>(from_first);
  return true;
}

nb::object mapping::read_element(nb::handle index) const {
  must_be_open();
  std::uint64_t offset = 0;
  if (!locate(index, offset) || view_.type.bytes > kLargestScalar) return {};
  memory_.must_be_there(range_.begin + offset);
  alignas(16) unsigned char bytes[kLargestScalar];
  if (const int code = peerlane_mapping_read(handle_, offset, bytes, view_.type.bytes)) [[unlikely]]
    throw error(code, peerlane_last_error());
  nb::object out = nb::steal(decode(view_.type, bytes));
  if (!out.is_valid()) throw nb::python_error();
  return out;
}

bool mapping::write_element(nb::handle index, nb::handle value) const {
  must_be_open();
  if (!view_.is_writable) throw nb::value_error("the tensor is read-only");
  std::uint64_t offset = 0;
  if (!locate(index, offset) || view_.type.bytes > kLargestScalar) return false;
  alignas(16) unsigned char bytes[kLargestScalar];
  if (!encode(view_.type, value.ptr(), bytes)) throw nb::python_error();
  memory_.must_be_there(range_.begin + offset);
  if (const int code = peerlane_mapping_write(handle_, offset, bytes, view_.type.bytes)) [[unlikely]]
    throw error(code, peerlane_last_error());
  return true;
}

void mapping::flush() const {
  must_be_open();
  if (handle_ != nullptr)
    if (const int code = peerlane_mapping_flush(handle_)) throw error(code, peerlane_last_error());
}

void mapping::close() {
  closed_ = true;
  handle_ = nullptr;
  region_ = nb::none();
}

tensor mapping::device_tensor(nb::object self) const {
  must_be_there();
  tensor out = view_;
  out.owner = std::move(self);
  return out;
}

nb::typed<nb::dict, nb::str, nb::any> mapping::array_interface() const {
  must_be_there();
  std::uintptr_t first = 0;
  if (handle_ != nullptr) first = reinterpret_cast<std::uintptr_t>(peerlane_mapping_data(handle_)) + first_offset();
  nb::dict out;
  out["version"] = 3;
  out["typestr"] = typestr_of(view_.type);
  out["shape"] = tuple_of(view_.shape);
  out["strides"] = tuple_of(view_.strides);
  out["data"] = nb::make_tuple(first, !view_.is_writable);
  return out;
}

nb::typed<nb::dict, nb::str, nb::any> mapping::facts() const {
  must_be_open();
  nb::dict out;
  out["device_ptr"] = view_.address;
  out["mapped_bytes"] = range_.bytes;
  if (handle_ == nullptr) return out;
  peerlane_mapping_info info{};
  if (const int code = peerlane_mapping_get_info(handle_, &info)) throw error(code, peerlane_last_error());
  constexpr const char* kTypes[] = {"none", "wc", "cached", "device"};
  out["backend"] = info.backend;
  out["mapping_type"] = info.mapping_type < 4 ? kTypes[info.mapping_type] : "unknown";
  out["device_ordinal"] = info.device_ordinal;
  out["pinned_ptr"] = info.pinned_ptr;
  out["pinned_bytes"] = info.pinned_size_bytes;
  return out;
}

namespace {

// The general path, for slices and the like, is in python/peerlane/_mapping.py.
nb::object read_any(nb::handle self, nb::handle index) {
  if (nb::object element = nb::inst_ptr<mapping>(self)->read_element(index); element.is_valid()) return element;
  return self.attr("_read_any")(index);
}

void write_any(nb::handle self, nb::handle index, nb::handle value) {
  if (!nb::inst_ptr<mapping>(self)->write_element(index, value)) self.attr("_write_any")(index, value);
}

// Slots of the type, so that m[i] and m[i] = v need no look-up of a method.
PyObject* subscript(PyObject* self, PyObject* index) {
  return call_guarded([&] { return read_any(self, index).release().ptr(); }, static_cast<PyObject*>(nullptr));
}

int assign_subscript(PyObject* self, PyObject* index, PyObject* value) {
  if (value == nullptr) return PyErr_SetString(PyExc_TypeError, "elements of a mapping cannot be deleted"), -1;
  return call_guarded([&] { return write_any(self, index, value), 0; }, -1);
}

PyType_Slot subscript_slots[] = {{Py_mp_subscript, reinterpret_cast<void*>(subscript)},
                                 {Py_mp_ass_subscript, reinterpret_cast<void*>(assign_subscript)},
                                 {0, nullptr}};

}  // namespace

void bind_mapping(nb::module_& module) {
  nb::class_<region>(module, "Region", "The mapped memory. It lives as long as any view of it.");
  nb::class_<mapping>(module, "MappingBase", nb::type_slots(subscript_slots), nb::is_weak_referenceable(),
                      "What peerlane.Mapping is built on.")
      .def(nb::init<nb::handle, nb::handle, nb::handle, bool, bool>(), nb::arg("x").none(),
           nb::arg("dtype").none() = nb::none(), nb::arg("shape").none() = nb::none(), nb::arg("force_pcie") = false,
           nb::arg("verify") = false)
      .def(
          "read", [](nb::handle_t<mapping> self, nb::handle index) { return read_any(self, index); },
          nb::arg("index").none() = nb::ellipsis(), nb::sig("def read(self, index: typing.Any = ...) -> typing.Any"),
          "Returns one element as a Python number (1.2 us on an H100: one bus round trip), or a slice as a new NumPy array, "
          "fetched by\nthe copy planner. It does not wait for streams.")
      .def(
          "write", [](nb::handle_t<mapping> self, nb::handle index, nb::handle value) { write_any(self, index, value); },
          nb::arg("index").none(), nb::arg("value").none(),
          nb::sig("def write(self, index: typing.Any, value: typing.Any) -> None"),
          "Stores a number to one element, or an array (or a number) to a slice. Fenced: later stores of this thread come "
          "after it.")
      .def("flush", &mapping::flush, "Orders stores made through `array` before later ones, and sends them to the GPU.")
      .def("close", &mapping::close,
           "Ends the mapping. While there are NumPy views of it, the memory stays mapped (and allocated) for them.")
      .def_prop_ro("closed", &mapping::is_closed, "Whether close() was called.")
      .def_prop_ro(
          "shape", [](const mapping& self) { return tuple_of(self.view().shape); }, "Shape of the tensor.")
      .def_prop_ro(
          "strides", [](const mapping& self) { return tuple_of(self.view().strides); }, "Strides in bytes.")
      .def_prop_ro(
          "dtype_name", [](const mapping& self) { return name_of(self.view().type); },
          "Name of the data type, such as \"float32\" or \"bfloat16\".")
      .def_prop_ro(
          "itemsize", [](const mapping& self) { return self.view().type.bytes; }, "Size of an element in bytes.")
      .def_prop_ro(
          "nbytes", [](const mapping& self) { return self.view().bytes(); }, "Size of all elements in bytes, without gaps.")
      .def_prop_ro(
          "device_ptr", [](const mapping& self) { return self.view().address; }, "Device address of the first element.")
      .def("info", &mapping::facts, nb::sig("def info(self) -> peerlane._types.MappingInfo"),
           "Backend, kind of mapping and pinned range, as a dictionary.")
      .def("_array_interface", &mapping::array_interface)
      .def("_region", &mapping::region_object);
}

}  // namespace pl::py
