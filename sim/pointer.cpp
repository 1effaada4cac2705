// SPDX-License-Identifier: Apache-2.0
// Pointer attributes: what the driver says about an address. An address it does not know is invalid_value for
// cuPointerGetAttribute, and all-zero values for cuPointerGetAttributes, as with the real one.
#include <cstring>

#include "sim/address_space.hpp"
#include "sim/context.hpp"

namespace pl::sim {
namespace {

template <class T>
result_t put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return code::success;
}

bool is_ipc_capable(const allocation& a) { return a.kind == memory_kind::device || a.kind == memory_kind::ipc; }

std::uint64_t block_id(const allocation& a, device_ptr pointer) {
  const auto pieces = address_space::instance().mappings_over(pointer, 1);
  return pieces.empty() || pieces[0].memory == nullptr ? a.buffer_id : pieces[0].memory->handle();
}

// The memory object mapped around `pointer`: a 2 MiB block behind small allocations, one cuMemCreate piece in a reservation.
// Real drivers (580.159) answer the MAPPING_ attributes with it, not with the user's allocation.
reservation mapped_object(const allocation& a, device_ptr pointer) {
  const auto pieces = address_space::instance().mappings_over(pointer, 1);
  return pieces.empty() ? reservation{a.base, a.bytes} : reservation{pieces[0].base, pieces[0].bytes};
}

int access_of(const allocation& a, device_ptr pointer) {
  if (a.is_host_address()) return access_flags::read_write;
  const auto pieces = address_space::instance().mappings_over(pointer, 1);
  if (pieces.empty() || pieces[0].readable == 0) return access_flags::none;
  return pieces[0].writable != 0 ? access_flags::read_write : access_flags::read;
}

// Attributes of a reserved address range without memory in it.
result_t reserved_attribute(void* data, int attribute, device_ptr pointer) {
  reservation range;
  if (!address_space::instance().find_reservation(pointer, range)) return code::invalid_value;
  switch (attribute) {
    case pointer_attribute::mapped:
      return put<unsigned>(data, 0);  // booleans are 4 bytes wide (measured on 580.159)
    case pointer_attribute::range_start:
      return put<device_ptr>(data, range.base);
    case pointer_attribute::range_size:
      return put<std::size_t>(data, range.bytes);
    default:
      return code::invalid_value;
  }
}

result_t get(void* data, int attribute, device_ptr pointer) {
  auto& space = address_space::instance();
  const auto a = space.find(pointer);
  if (a == nullptr) return reserved_attribute(data, attribute, pointer);
  reservation range{a->base, a->bytes};
  if (a->kind == memory_kind::vmm) space.find_reservation(pointer, range);
  switch (attribute) {
    case pointer_attribute::context:
      return put<context_t>(data, a->kind == memory_kind::vmm || a->kind == memory_kind::pool ? nullptr : a->context);
    case pointer_attribute::memory_type: {
      const bool is_host = a->kind == memory_kind::host || a->kind == memory_kind::registered;
      return put<unsigned>(data, is_host ? memory_type::host : memory_type::device);
    }
    case pointer_attribute::device_pointer:
      return put<device_ptr>(data, pointer);
    case pointer_attribute::host_pointer:
      return a->is_host_address() ? put<device_ptr>(data, pointer) : code::invalid_value;
    case pointer_attribute::p2p_tokens: {
      if (a->is_host_address()) return code::invalid_value;
      a->sync_memops = true;
      const struct {
        unsigned long long p2p_token;
        unsigned va_space_token;
      } tokens{a->buffer_id, 1};
      return put(data, tokens);
    }
    case pointer_attribute::sync_memops:
      return put<unsigned>(data, a->sync_memops ? 1 : 0);
    case pointer_attribute::buffer_id:
      return put<unsigned long long>(data, a->buffer_id);
    case pointer_attribute::is_managed:
      return put<unsigned>(data, a->kind == memory_kind::managed ? 1 : 0);
    case pointer_attribute::device_ordinal:
      return put<int>(data, a->device_ordinal);
    case pointer_attribute::is_legacy_ipc_capable:
      return put<unsigned>(data, is_ipc_capable(*a) ? 1 : 0);
    case pointer_attribute::range_start:
      return put<device_ptr>(data, range.base);
    case pointer_attribute::range_size:
      return put<std::size_t>(data, range.bytes);
    case pointer_attribute::mapped:
      return put<unsigned>(data, 1);
    case pointer_attribute::allowed_handle_types:
      return put<unsigned long long>(data, static_cast<unsigned long long>(a->handle_types));
    case pointer_attribute::is_gpu_direct_rdma_capable:
      return put<unsigned>(data, !a->is_host_address() && a->rdma_capable ? 1 : 0);
    case pointer_attribute::access_flags:
      return put<int>(data, access_of(*a, pointer));
    case pointer_attribute::mempool_handle:
      return put<pool_t>(data, a->pool);
    case pointer_attribute::mapping_size:
      return put<std::size_t>(data, mapped_object(*a, pointer).bytes);
    case pointer_attribute::mapping_base:
      return put<device_ptr>(data, mapped_object(*a, pointer).base);
    case pointer_attribute::memory_block_id:
      return put<unsigned long long>(data, block_id(*a, pointer));
    default:
      return code::invalid_value;
  }
}

// Bytes an attribute's value takes, to zero it; 0 for unknown attributes.
std::size_t value_bytes(int attribute) {
  switch (attribute) {
    case pointer_attribute::mapped:
    case pointer_attribute::is_gpu_direct_rdma_capable:
    case pointer_attribute::memory_type:
    case pointer_attribute::sync_memops:
    case pointer_attribute::is_managed:
    case pointer_attribute::device_ordinal:
    case pointer_attribute::is_legacy_ipc_capable:
    case pointer_attribute::access_flags:
      return sizeof(unsigned);
    case pointer_attribute::p2p_tokens:
      return 16;
    default:
      return attribute >= pointer_attribute::context && attribute <= pointer_attribute::memory_block_id ? 8 : 0;
  }
}

}  // namespace

PL_SIM_API cuPointerGetAttribute(void* data, int attribute, device_ptr pointer) {
  // Works without a current context (the address says everything), as with the real driver.
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (const auto rc = injected_failure("cuPointerGetAttribute"); rc != code::success) return rc;
  return data == nullptr ? static_cast<result_t>(code::invalid_value) : get(data, attribute, pointer);
}

PL_SIM_API cuPointerGetAttributes(unsigned count, int* attributes, void** data, device_ptr pointer) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (const auto rc = injected_failure("cuPointerGetAttributes"); rc != code::success) return rc;
  if (attributes == nullptr || data == nullptr) return code::invalid_value;
  for (unsigned i = 0; i < count; ++i)
    if (data[i] == nullptr || value_bytes(attributes[i]) == 0) return code::invalid_value;
  for (unsigned i = 0; i < count; ++i) {
    if (get(data[i], attributes[i], pointer) == code::success) continue;
    std::memset(data[i], 0, value_bytes(attributes[i]));
    // "no device" and "ordinal 0" must differ
    if (attributes[i] == pointer_attribute::device_ordinal) put<int>(data[i], -2);
  }
  return code::success;
}

PL_SIM_API cuPointerSetAttribute(const void* value, int attribute, device_ptr pointer) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (value == nullptr || attribute != pointer_attribute::sync_memops) return code::invalid_value;
  const auto a = address_space::instance().find(pointer);
  if (a == nullptr || a->is_host_address()) return code::invalid_value;
  unsigned wanted = 0;
  std::memcpy(&wanted, value, sizeof wanted);
  if (wanted > 1) return code::invalid_value;
  // The real driver refuses memory whose operations are ordered by streams only.
  if (a->kind == memory_kind::pool || a->kind == memory_kind::vmm) return code::not_supported;
  a->sync_memops = wanted == 1;
  return code::success;
}

}  // namespace pl::sim
