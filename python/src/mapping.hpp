// SPDX-License-Identifier: Apache-2.0
// A tensor's memory in the CPU's address space. `region` is the mapping itself and lives as long as a NumPy view of it.
// `mapping` is the object that the user reads, writes and closes. Access to one element takes no lock, allocates only the
// Python number, and calls CUDA once, to check that the memory still exists. The GIL guards all fields.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <peerlane/peerlane.hpp>

#include "mapped_memory.hpp"
#include "process.hpp"
#include "tensor.hpp"

namespace pl::py {

struct region {
  nb::object owner;  // the tensor; declared first, so that the memory is unmapped before the tensor is released
  peerlane::mapping mapped;
};

class mapping {
 public:
  // `dtype` (name or dtype; None: the tensor's) and `shape` (None: the tensor's) reinterpret a contiguous tensor.
  mapping(nb::handle object, nb::handle dtype, nb::handle shape, bool force_pcie, bool verify);

  // Returns one element. Null: `index` does not select one element (a slice, a list), so the caller uses the general path.
  // IndexError: outside the shape.
  nb::object read_element(nb::handle index) const;
  bool write_element(nb::handle index, nb::handle value) const;

  void flush() const;
  // Ends the mapping for its user. The memory is unmapped when no view is left. May be called repeatedly.
  void close();
  bool is_closed() const { return closed_; }

  // The device memory as a tensor, kept by `self`.
  tensor device_tensor(nb::object self) const;
  const tensor& view() const { return view_; }
  // For NumPy: the __array_interface__ of the mapped memory, and the object that keeps the memory mapped.
  nb::typed<nb::dict, nb::str, nb::any> array_interface() const;
  nb::object region_object() const { return region_; }
  nb::typed<nb::dict, nb::str, nb::any> facts() const;

 private:
  void remember_memory(nb::handle object, nb::object& owner);
  // Throws ValueError if it is closed, and error with EACCES in a forked child.
  void must_be_open() const;
  // Also throws StaleMapping; for accesses to the whole memory.
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
  pid_t process_ = process_number();
  bool closed_ = false;
};

void bind_mapping(nb::module_& module);

}  // namespace pl::py
