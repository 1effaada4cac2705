// SPDX-License-Identifier: Apache-2.0
// MPI functions that use buffers without a message: packing, reducing on this rank, and the buffer of buffered sends.
#include "compat/mpi/guarded.hpp"

using namespace pl::mpi;

namespace {

// The packed side starts at `position`, so that only bytes written there are copied. `call` is MPI's function with the
// two pointers, the size of the packed side and the position there.
template <class Count, class Size, class Call>
int pack(const void* sendbuf, Count send_count, MPI_Datatype type, void* recvbuf, Size out_bytes, Size* position,
         MPI_Comm comm, Call call) {
  if (!on_device(sendbuf, send_count, type) && !on_device(recvbuf)) [[likely]]
    return call(sendbuf, recvbuf, out_bytes, position);
  return guarded(comm, [&] {
    staged data, packed;
    const auto room = out_bytes > *position ? static_cast<std::size_t>(out_bytes - *position) : 0;
    if (int code = data.attach(sendbuf, send_count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = data.load(); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = packed.attach_bytes(static_cast<char*>(recvbuf) + *position, room); code != MPI_SUCCESS)
      return raise(comm, code);
    Size done = 0;
    const int code = call(data.pointer(), packed.pointer(), static_cast<Size>(room), &done);
    if (code != MPI_SUCCESS) return code;
    *position += done;
    return unless(packed.store_first(static_cast<std::size_t>(done)), comm);
  });
}

template <class Count, class Size, class Call>
int unpack(const void* sendbuf, Size in_bytes, Size* position, void* recvbuf, Count recv_count, MPI_Datatype type,
           MPI_Comm comm, Call call) {
  if (!on_device(sendbuf) && !on_device(recvbuf, recv_count, type)) [[likely]]
    return call(sendbuf, in_bytes, position, recvbuf);
  return guarded(comm, [&] {
    staged packed, data;
    const auto rest = in_bytes > *position ? static_cast<std::size_t>(in_bytes - *position) : 0;
    if (int code = packed.attach_bytes(static_cast<const char*>(sendbuf) + *position, rest); code != MPI_SUCCESS)
      return raise(comm, code);
    if (int code = packed.load(); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = data.attach(recvbuf, recv_count, type); code != MPI_SUCCESS) return raise(comm, code);
    Size done = 0;
    const int code = call(packed.pointer(), static_cast<Size>(rest), &done, data.pointer());
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

// A device buffer for buffered sends, which MPI sees as host memory of the same size.
struct attached {
  std::mutex mutex;
  void* device = nullptr;
  std::unique_ptr<std::byte[]> host;
};
attached& own_buffer() {
  static auto* const made = new attached;  // never destroyed, as the request table
  return *made;
}

template <auto Pmpi, class Count>
int attach_buffer(void* buffer, Count bytes) {
  if (bytes <= 0 || !on_device(buffer)) [[likely]]
    return Pmpi(buffer, bytes);
  return guarded(comm_world(), [&] {
    auto& own = own_buffer();
    const std::lock_guard lock(own.mutex);
    std::unique_ptr<std::byte[]> host(new std::byte[static_cast<std::size_t>(bytes)]);
    const int code = Pmpi(host.get(), bytes);
    if (code != MPI_SUCCESS) return code;
    own.device = buffer;
    own.host = std::move(host);
    return code;
  });
}

// MPI returns the buffer's address; the caller must get the one that it attached.
template <auto Pmpi, class Count>
int detach_buffer(void* address, Count* bytes) {
  const int code = Pmpi(address, bytes);
  auto& own = own_buffer();
  const std::lock_guard lock(own.mutex);
  if (code != MPI_SUCCESS || own.host == nullptr) return code;
  if (*static_cast<void**>(address) == own.host.get()) *static_cast<void**>(address) = own.device;
  own.host.reset();
  return code;
}

}  // namespace

int MPI_Pack_external(const char* form, const void* sendbuf, int send_count, MPI_Datatype type, void* recvbuf,
                      MPI_Aint out_bytes, MPI_Aint* position) {
  return pack(sendbuf, send_count, type, recvbuf, out_bytes, position, comm_world(),
              [&](const void* source, void* target, MPI_Aint room, MPI_Aint* place) {
                return PMPI_Pack_external(form, source, send_count, type, target, room, place);
              });
}

int MPI_Unpack_external(const char* form, const void* sendbuf, MPI_Aint in_bytes, MPI_Aint* position, void* recvbuf,
                        int recv_count, MPI_Datatype type) {
  return unpack(sendbuf, in_bytes, position, recvbuf, recv_count, type, comm_world(),
                [&](const void* source, MPI_Aint rest, MPI_Aint* place, void* target) {
                  return PMPI_Unpack_external(form, source, rest, place, target, recv_count, type);
                });
}

#if MPI_VERSION >= 4
int MPI_Pack_external_c(const char* form, const void* sendbuf, MPI_Count send_count, MPI_Datatype type, void* recvbuf,
                        MPI_Count out_bytes, MPI_Count* position) {
  return pack(sendbuf, send_count, type, recvbuf, out_bytes, position, comm_world(),
              [&](const void* source, void* target, MPI_Count room, MPI_Count* place) {
                return PMPI_Pack_external_c(form, source, send_count, type, target, room, place);
              });
}

int MPI_Unpack_external_c(const char* form, const void* sendbuf, MPI_Count in_bytes, MPI_Count* position, void* recvbuf,
                          MPI_Count recv_count, MPI_Datatype type) {
  return unpack(sendbuf, in_bytes, position, recvbuf, recv_count, type, comm_world(),
                [&](const void* source, MPI_Count rest, MPI_Count* place, void* target) {
                  return PMPI_Unpack_external_c(form, source, rest, place, target, recv_count, type);
                });
}
#endif

#define PL_FUNCTIONS "buffers.inc"
#include "compat/mpi/both_counts.inc"
