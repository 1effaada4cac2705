// SPDX-License-Identifier: Apache-2.0
#include "mapped_memory.hpp"

#include <algorithm>
#include <cstdio>

#include "cuda/pointer.hpp"
#include "driver.hpp"

namespace pl::py {
namespace {

const cu::driver_table& mapping_driver() {
  static const cu::driver_table* const table = open_driver();
  return *table;
}

std::uint64_t current_address(nb::handle data_ptr) {
  const nb::object address = nb::steal(PyObject_CallNoArgs(data_ptr.ptr()));
  if (!address.is_valid()) throw nb::python_error();
  return PyLong_AsUnsignedLongLongMask(address.ptr());
}

[[noreturn]] void throw_stale(std::uint64_t address) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  throw stale_mapping(
      std::string("the memory at ") + text +
      " was freed or mapped anew after this mapping of it was made: close the mapping, and map the memory that "
      "is there now");
}

}  // namespace

mapped_memory::mapped_memory(extent range, nb::object data_ptr) : range_(range), data_ptr_(std::move(data_ptr)) {
  if (data_ptr_.is_valid()) {
    owner_address_ = current_address(data_ptr_);
    return;
  }
  const auto& cuda = mapping_driver();
  const std::uint64_t end = range.begin + range.bytes;
  for (std::uint64_t address = range.begin; address < end;) {
    const auto info = cu::inspect_pointer(cuda, address);
    if (!info) throw error(info.error());
    // Memory of cuMemAlloc (with a context) can only be freed as a whole. In reservations and pools, other memory may appear
    // under the same buffer id.
    const bool is_whole = info->context != nullptr && info->buffer_id != 0;
    std::uint64_t stretch = info->allocation.end();
    if (!is_whole && info->object.size_bytes != 0) stretch = std::min(stretch, info->object.end());
    if (stretch <= address) stretch = end;  // the driver does not know the extent: one piece
    pieces_.push_back({stretch, info->buffer_id, is_whole ? 0 : info->block_id});
    address = stretch;
  }
}

const mapped_memory::piece& mapped_memory::piece_at(std::uint64_t address) const {
  if (pieces_.size() == 1) return pieces_.front();
  return *std::upper_bound(pieces_.begin(), pieces_.end() - 1, address,
                           [](std::uint64_t position, const piece& each) { return position < each.end; });
}

void mapped_memory::check(std::uint64_t address, const piece& expected) const {
  unsigned long long buffer_id = 0, block_id = 0;
  int attributes[] = {cu::pointer_attribute::buffer_id, cu::pointer_attribute::memory_block_id};
  void* values[] = {&buffer_id, &block_id};
  const unsigned asked = expected.block_id != 0 ? 2 : 1;
  const auto rc = mapping_driver().cuPointerGetAttributes(asked, attributes, values, address);
  if (rc != cu::error_code::success || buffer_id != expected.buffer_id || block_id != expected.block_id) [[unlikely]]
    throw_stale(address);
}

void mapped_memory::must_be_there(std::uint64_t address) const {
  if (data_ptr_.is_valid()) {
    if (current_address(data_ptr_) != owner_address_) throw_stale(owner_address_);
    return;
  }
  if (!pieces_.empty()) check(address, piece_at(address));
}

void mapped_memory::must_be_there() const {
  if (data_ptr_.is_valid()) return must_be_there(range_.begin);
  std::uint64_t address = range_.begin;
  for (const piece& each : pieces_) {
    check(address, each);
    address = each.end;
  }
}

}  // namespace pl::py
