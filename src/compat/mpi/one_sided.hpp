// SPDX-License-Identifier: Apache-2.0
// One-sided operations, once for both widths of counts, with and without a request: `request...` is the request or nothing.
// Direct targets get theirs here; for others MPI works, with stand-ins for device memory at the origin.
#pragma once

#include "compat/mpi/direct_access.hpp"

namespace pl::mpi {

// Ends a direct operation: it is complete, and so is its request.
inline int end_directly(MPI_Win window, int code) { return raise_on(window, code); }
inline int end_directly(MPI_Win window, int code, MPI_Request* request) {
  if (code != MPI_SUCCESS) return raise_on(window, code);
  return PMPI_Isend(nullptr, 0, byte_type(), MPI_PROC_NULL, 0, comm_world(), request);
}

// MPI has begun an operation with stand-ins.
inline void keep(MPI_Win window, std::shared_ptr<staged_operation> made) {
  windows().find_or_add(window)->add(std::move(made));
}
inline void keep(MPI_Win window, std::shared_ptr<staged_operation> made, MPI_Request* request) {
  auto entry = std::make_unique<record>();
  entry->operation = record::kind::one_sided;
  entry->one_sided = made;
  keep(window, std::move(made));
  requests().put(*request, std::move(entry));
}

// A stand-in with the data, for what MPI reads.
inline int attach_source(staged& out, const void* buffer, MPI_Count count, MPI_Datatype type) {
  const int code = out.attach(buffer, count, type);
  return code == MPI_SUCCESS ? out.load() : code;
}

// An operation with one buffer at the origin: by `direct`, where this process reaches the target, else by `call`, to which
// MPI gets the buffer or its stand-in, the operation's `side`.
template <class Direct, class Call, class... Request>
int operate(const origin_buffer& buffer, staged staged_operation::*side, const target_place& place, MPI_Win window,
            Direct direct, Call call, Request... request) {
  const auto known = windows().find(window);
  const bool is_ours = known != nullptr && is_direct(*known, place);
  // With MPI_PROC_NULL nothing is read or written.
  if (!is_ours && (place.rank == MPI_PROC_NULL || !on_device(buffer.pointer, buffer.count, buffer.type))) [[likely]]
    return call(const_cast<void*>(buffer.pointer));
  return guarded_window(window, [&] {
    if (is_ours) return end_directly(window, direct(*known), request...);
    auto made = std::make_shared<staged_operation>(window, place.rank);
    staged& host_copy = (*made).*side;
    if (int code = attach_source(host_copy, buffer.pointer, buffer.count, buffer.type); code != MPI_SUCCESS)
      return raise_on(window, code);
    const int code = call(host_copy.pointer());
    if (code == MPI_SUCCESS) keep(window, std::move(made), request...);
    return code;
  });
}

template <auto Pmpi, class Count, class... Request>
int put(const void* origin, Count origin_count, MPI_Datatype origin_type, int target, MPI_Aint offset, Count target_count,
        MPI_Datatype target_type, MPI_Win window, Request... request) {
  const origin_buffer source{origin, origin_count, origin_type};
  const target_place place{target, offset, target_count, target_type};
  return operate(
      source, &staged_operation::origin, place, window, [&](auto& known) { return put_directly(known, source, place); },
      [&](const void* data) {
        return Pmpi(data, origin_count, origin_type, target, offset, target_count, target_type, window, request...);
      },
      request...);
}

template <auto Pmpi, class Count, class... Request>
int get(void* origin, Count origin_count, MPI_Datatype origin_type, int target, MPI_Aint offset, Count target_count,
        MPI_Datatype target_type, MPI_Win window, Request... request) {
  const origin_buffer destination{origin, origin_count, origin_type};
  const target_place place{target, offset, target_count, target_type};
  return operate(
      destination, &staged_operation::result, place, window,
      [&](auto& known) { return get_directly(known, destination, place); },
      [&](void* data) {
        return Pmpi(data, origin_count, origin_type, target, offset, target_count, target_type, window, request...);
      },
      request...);
}

template <auto Pmpi, class Count, class... Request>
int accumulate(const void* origin, Count origin_count, MPI_Datatype origin_type, int target, MPI_Aint offset,
               Count target_count, MPI_Datatype target_type, MPI_Op op, MPI_Win window, Request... request) {
  const origin_buffer source{origin, origin_count, origin_type};
  const target_place place{target, offset, target_count, target_type};
  return operate(
      source, &staged_operation::origin, place, window,
      [&](auto& known) { return accumulate_directly(known, source, nullptr, place, op); },
      [&](const void* data) {
        return Pmpi(data, origin_count, origin_type, target, offset, target_count, target_type, op, window, request...);
      },
      request...);
}

// Also fetch_and_op, with one element of one type.
template <class Call, class... Request>
int get_accumulate(const origin_buffer& origin, const origin_buffer& result, const target_place& place, MPI_Op op,
                   MPI_Win window, Call call, Request... request) {
  const auto known = windows().find(window);
  const bool is_ours = known != nullptr && is_direct(*known, place);
  const bool reads = op != op_no_op() && on_device(origin.pointer, origin.count, origin.type);
  const bool writes = on_device(result.pointer, result.count, result.type);
  if (!is_ours && (place.rank == MPI_PROC_NULL || (!reads && !writes))) [[likely]]
    return call(origin.pointer, const_cast<void*>(result.pointer));
  return guarded_window(window, [&] {
    if (is_ours) return end_directly(window, accumulate_directly(*known, origin, &result, place, op), request...);
    auto made = std::make_shared<staged_operation>(window, place.rank);
    made->origin = staged(origin.pointer), made->result = staged(result.pointer);
    int code = reads ? attach_source(made->origin, origin.pointer, origin.count, origin.type) : MPI_SUCCESS;
    if (code == MPI_SUCCESS && writes) code = attach_source(made->result, result.pointer, result.count, result.type);
    if (code != MPI_SUCCESS) return raise_on(window, code);
    if ((code = call(made->origin.pointer(), made->result.pointer())) == MPI_SUCCESS)
      keep(window, std::move(made), request...);
    return code;
  });
}

}  // namespace pl::mpi
