// SPDX-License-Identifier: Apache-2.0
// MPI functions that refuse device memory, as far as they came with MPI 4: partitioned communication, and from 4.1
// on buffers of one communicator or session.
#include "compat/mpi/refused.hpp"

#if MPI_VERSION >= 4
using namespace pl::mpi;

#if MPI_VERSION > 4 || MPI_SUBVERSION >= 1
namespace {

template <auto Pmpi, class Count>
int session_of_host(const char* name, MPI_Session session, void* buffer, Count bytes) {
  if (!argument(buffer).is_device()) return Pmpi(session, buffer, bytes);
  tell_refused(name);
  PMPI_Session_call_errhandler(session, MPI_ERR_BUFFER);
  return MPI_ERR_BUFFER;
}

}  // namespace
#endif

int MPI_Psend_init(const void* buffer, int partitions, MPI_Count count, MPI_Datatype type, int destination, int tag,
                   MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Psend_init>("MPI_Psend_init", comm, {buffer}, buffer, partitions, count, type, destination, tag,
                                    comm, info, request);
}

int MPI_Precv_init(void* buffer, int partitions, MPI_Count count, MPI_Datatype type, int destination, int tag, MPI_Comm comm,
                   MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Precv_init>("MPI_Precv_init", comm, {buffer}, buffer, partitions, count, type, destination, tag,
                                    comm, info, request);
}

#if MPI_VERSION > 4 || MPI_SUBVERSION >= 1
int MPI_Comm_attach_buffer(MPI_Comm comm, void* buffer, int bytes) {
  return host_only<PMPI_Comm_attach_buffer>("MPI_Comm_attach_buffer", comm, {buffer}, comm, buffer, bytes);
}

int MPI_Comm_attach_buffer_c(MPI_Comm comm, void* buffer, MPI_Count bytes) {
  return host_only<PMPI_Comm_attach_buffer_c>("MPI_Comm_attach_buffer_c", comm, {buffer}, comm, buffer, bytes);
}

int MPI_Session_attach_buffer(MPI_Session session, void* buffer, int bytes) {
  return session_of_host<PMPI_Session_attach_buffer>("MPI_Session_attach_buffer", session, buffer, bytes);
}

int MPI_Session_attach_buffer_c(MPI_Session session, void* buffer, MPI_Count bytes) {
  return session_of_host<PMPI_Session_attach_buffer_c>("MPI_Session_attach_buffer_c", session, buffer, bytes);
}
#endif

#endif
