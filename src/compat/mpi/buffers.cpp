// SPDX-License-Identifier: Apache-2.0
// MPI functions that work on buffers without a message: packing, and reducing on this rank.
#include "compat/mpi/guarded.hpp"

using namespace pl::mpi;

namespace {

// The packed side starts at `position`, so that only bytes written there are copied.
template <auto Pmpi, class Count>
int pack(const void* sendbuf, Count send_count, MPI_Datatype type, void* recvbuf, Count out_bytes, Count* position,
         MPI_Comm comm) {
  if (!on_device(sendbuf, send_count, type) && !on_device(recvbuf)) [[likely]]
    return Pmpi(sendbuf, send_count, type, recvbuf, out_bytes, position, comm);
  return guarded(comm, [&] {
    staged data, packed;
    const auto room = out_bytes > *position ? static_cast<std::size_t>(out_bytes - *position) : 0;
    if (int code = data.attach(sendbuf, send_count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = data.load(); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = packed.attach_bytes(static_cast<char*>(recvbuf) + *position, room); code != MPI_SUCCESS)
      return raise(comm, code);
    Count done = 0;
    const int code = Pmpi(data.pointer(), send_count, type, packed.pointer(), static_cast<Count>(room), &done, comm);
    if (code != MPI_SUCCESS) return code;
    *position += done;
    return unless(packed.store_first(static_cast<std::size_t>(done)), comm);
  });
}

template <auto Pmpi, class Count>
int unpack(const void* sendbuf, Count in_bytes, Count* position, void* recvbuf, Count recv_count, MPI_Datatype type,
           MPI_Comm comm) {
  if (!on_device(sendbuf) && !on_device(recvbuf, recv_count, type)) [[likely]]
    return Pmpi(sendbuf, in_bytes, position, recvbuf, recv_count, type, comm);
  return guarded(comm, [&] {
    staged packed, data;
    const auto rest = in_bytes > *position ? static_cast<std::size_t>(in_bytes - *position) : 0;
    if (int code = packed.attach_bytes(static_cast<const char*>(sendbuf) + *position, rest); code != MPI_SUCCESS)
      return raise(comm, code);
    if (int code = packed.load(); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = data.attach(recvbuf, recv_count, type); code != MPI_SUCCESS) return raise(comm, code);
    Count done = 0;
    const int code = Pmpi(packed.pointer(), static_cast<Count>(rest), &done, data.pointer(), recv_count, type, comm);
    if (code != MPI_SUCCESS) return code;
    *position += done;
    return unless(data.store(), comm);
  });
}

template <auto Pmpi, class Count>
int reduce_local(const void* sendbuf, void* in_out, Count count, MPI_Datatype type, MPI_Op op) {
  if (!on_device(sendbuf, count, type) && !on_device(in_out, count, type)) [[likely]]
    return Pmpi(sendbuf, in_out, count, type, op);
  const MPI_Comm comm = comm_world();
  return guarded(comm, [&] {
    staged source, target;
    if (int code = source.attach(sendbuf, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = target.attach(in_out, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = source.load(); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = target.load(); code != MPI_SUCCESS) return raise(comm, code);
    const int code = Pmpi(source.pointer(), target.pointer(), count, type, op);
    return code == MPI_SUCCESS ? unless(target.store(), comm) : code;
  });
}

}  // namespace

#define PL_FUNCTIONS "buffers.inc"
#include "compat/mpi/both_counts.inc"
