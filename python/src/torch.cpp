// SPDX-License-Identifier: Apache-2.0
#include "torch.hpp"

#include <array>
#include <vector>

#include "dlpack.hpp"

namespace pl::py {
namespace {

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

void must_be_in_memory(nb::handle object, const element_type& type) {
  if (nb::cast<bool>(object.attr("is_neg")()) ||
      (type.kind == element_kind::complex && nb::cast<bool>(object.attr("is_conj")())))
    throw nb::type_error("the tensor's sign or conjugation is not in its memory yet: call resolve_neg() or resolve_conj()");
}

// Remembers tensors without a pending negation, because the query takes 0.13 us. A tensor whose memory has changed is
// queried again, and complex tensors are queried each time.
class asked_tensors {
 public:
  bool has(nb::handle object, std::uint64_t address) const {
    const auto& found = slot_of(object);
    return found.object == object.ptr() && found.address == address &&
           PyWeakref_GetObject(found.reference.ptr()) == object.ptr();
  }
  void add(nb::handle object, std::uint64_t address) {
    nb::object reference = nb::steal(PyWeakref_NewRef(object.ptr(), nullptr));
    if (!reference.is_valid()) return PyErr_Clear();
    slot_of(object) = {object.ptr(), address, std::move(reference)};
  }

 private:
  struct slot {
    PyObject* object = nullptr;  // not a strong reference; `reference` shows whether it is still alive
    std::uint64_t address = 0;
    nb::object reference;
  };
  slot& slot_of(nb::handle object) { return slots_[reinterpret_cast<std::uintptr_t>(object.ptr()) / 16 % slots_.size()]; }
  const slot& slot_of(nb::handle object) const { return const_cast<asked_tensors*>(this)->slot_of(object); }
  std::array<slot, 256> slots_;
};

asked_tensors& asked() {
  static auto* all = new asked_tensors;  // never destroyed, because Python may have ended before
  return *all;
}

bool from_functions(nb::handle object, const exchange_functions& library, tensor& out) {
  if (!from_exchange(object, library, out)) return false;
  if (out.type.kind == element_kind::complex) must_be_in_memory(object, out.type);
  else if (!asked().has(object, out.address)) {
    must_be_in_memory(object, out.type);
    asked().add(object, out.address);
  }
  out.is_torch = out.location == place::device;
  return true;
}

}  // namespace

bool is_torch_class(PyTypeObject* kind) {
  static auto* const tensor_class = new nb::object;
  if (!tensor_class->is_valid()) {
    PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");  // borrowed
    if (module == nullptr) return false;
    *tensor_class = nb::steal(PyObject_GetAttrString(module, "Tensor"));
    if (!tensor_class->is_valid()) return PyErr_Clear(), false;  // the import is in progress
  }
  // Not isinstance(), which calls PyTorch's metaclass (0.2 us).
  return PyType_Check(tensor_class->ptr()) != 0 &&
         PyType_IsSubtype(kind, reinterpret_cast<PyTypeObject*>(tensor_class->ptr())) != 0;
}

tensor from_torch(nb::handle object, const exchange_functions* library) {
  tensor out;
  if (library != nullptr && from_functions(object, *library, out)) return out;
  out.type = torch_type(object.attr("dtype"));
  must_be_in_memory(object, out.type);
  out.address = unsigned_integer(nb::object(object.attr("data_ptr")()), "torch.Tensor.data_ptr()");
  out.shape = integers(nb::object(object.attr("shape")), "torch.Tensor.shape");
  out.strides = integers(nb::object(object.attr("stride")()), "torch.Tensor.stride()");
  for (auto& step : out.strides) step *= out.type.bytes;
  const bool is_cuda = nb::cast<bool>(object.attr("is_cuda"));
  out.location = is_cuda ? place::device : place::host;
  out.is_torch = is_cuda;
  if (is_cuda) out.device = nb::cast<int>(object.attr("get_device")());
  out.owner = nb::borrow(object);
  return out;
}

nb::object torch_storage(nb::handle object) {
  if (!is_torch_class(Py_TYPE(object.ptr())) || !nb::hasattr(object, "untyped_storage")) return {};
  return object.attr("untyped_storage")();
}

nb::object keep_alive_of(nb::handle object, tensor& view) {
  const nb::object storage = torch_storage(object);
  return storage.is_valid() ? nb::object(nb::make_tuple(view.owner, storage)) : std::move(view.owner);
}

std::uint64_t torch_stream(int device) {
  // Gets the raw handle without creating a Stream object (0.1 us instead of 2).
  static nb::object* current = nullptr;  // a pointer: the import gives the GIL to others (numpy_array.cpp)
  if (current == nullptr) {
    nb::object found = nb::module_::import_("torch").attr("_C").attr("_cuda_getCurrentRawStream");
    if (current == nullptr) current = new nb::object(std::move(found));
  }
  return unsigned_integer(nb::object((*current)(device)), "torch's current stream");
}

}  // namespace pl::py
