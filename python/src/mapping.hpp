// SPDX-License-Identifier: Apache-2.0
// A tensor's memory in the CPU's address space. `region` is the mapping itself and lives as long as any NumPy view onto it;
// `mapping` is what the user holds, closes, reads and writes. One scalar costs no lock, no allocation beyond its Python
// number, and of CUDA the one question whether the memory still is there. The GIL guards all fields.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <peerlane/peerlane.hpp>

#include "mapped_memory.hpp"
#include "process.hpp"
#include "tensor.hpp"

namespace pl::py {

struct region {
  nb::object owner;  // the tensor: unmapped first, then let go
  peerlane::mapping mapped;
};

class mapping {
 public:
  // `dtype` (name or dtype, none: the tensor's) and `shape` (none: as it is) reinterpret a contiguous tensor.
  mapping(nb::handle object, nb::handle dtype, nb::handle shape, bool force_pcie, bool verify);

  // One element, or a null object where `index` names none (a slice, a list, a wrong type): the caller takes the long way.
  // IndexError outside the shape.
  nb::object read_element(nb::handle index) const;
  bool write_element(nb::handle index, nb::handle value) const;

  void flush() const;
  // Ends it for its user; memory is unmapped once no view is left. Any number of times.
  void close();
  bool is_closed() const { return closed_; }

  // The device memory as a tensor, kept by `self`.
  tensor device_tensor(nb::object self) const;
  const tensor& view() const { return view_; }
  // For NumPy: __array_interface__ onto the mapping, and the object that keeps it.
  nb::typed<nb::dict, nb::str, nb::any> array_interface() const;
  nb::object region_object() const { return region_; }
  nb::typed<nb::dict, nb::str, nb::any> facts() const;

 private:
  void remember_memory(nb::handle object, nb::object& owner);
  // ValueError: closed; EACCES: a forked child.
  void must_be_open() const;
  // StaleMapping, too: for what reaches all of the memory.
  void must_be_there() const;
  // Offset in bytes of the element in the mapped range; false: not an index of one element.
  bool locate(nb::handle index, std::uint64_t& offset) const;
  bool add_index(std::size_t dimension, nb::handle index, std::int64_t& offset) const;
  std::uint64_t first_offset() const { return view_.address - range_.begin; }

  tensor view_;
  extent range_;
  nb::object region_;  // a region; none: an empty tensor
  mapped_memory memory_;
  peerlane_mapping_t handle_ = nullptr;
  std::uint32_t process_ = process_number();
  bool closed_ = false;
};

void bind_mapping(nb::module_& module);

}  // namespace pl::py
