// SPDX-License-Identifier: Apache-2.0
// MPI functions: sends and receives.
#include "point_to_point.hpp"

using namespace pl::mpi;

int MPI_Send(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  return send<PMPI_Send>(buffer, count, type, to, tag, comm);
}

int MPI_Ssend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  return send<PMPI_Ssend>(buffer, count, type, to, tag, comm);
}

int MPI_Bsend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  return send<PMPI_Bsend>(buffer, count, type, to, tag, comm);
}

int MPI_Rsend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  return send<PMPI_Rsend>(buffer, count, type, to, tag, comm);
}

int MPI_Isend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_send<PMPI_Isend, false>(buffer, count, type, to, tag, comm, request);
}

int MPI_Issend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_send<PMPI_Issend, false>(buffer, count, type, to, tag, comm, request);
}

int MPI_Ibsend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_send<PMPI_Ibsend, false>(buffer, count, type, to, tag, comm, request);
}

int MPI_Irsend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_send<PMPI_Irsend, false>(buffer, count, type, to, tag, comm, request);
}

int MPI_Send_init(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_send<PMPI_Send_init, true>(buffer, count, type, to, tag, comm, request);
}

int MPI_Ssend_init(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_send<PMPI_Ssend_init, true>(buffer, count, type, to, tag, comm, request);
}

int MPI_Bsend_init(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_send<PMPI_Bsend_init, true>(buffer, count, type, to, tag, comm, request);
}

int MPI_Rsend_init(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_send<PMPI_Rsend_init, true>(buffer, count, type, to, tag, comm, request);
}

int MPI_Recv(void* buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  return receive<PMPI_Recv>(buffer, count, type, from, tag, comm, status);
}

int MPI_Irecv(void* buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_receive<PMPI_Irecv, false>(buffer, count, type, from, tag, comm, request);
}

int MPI_Recv_init(void* buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_receive<PMPI_Recv_init, true>(buffer, count, type, from, tag, comm, request);
}

int MPI_Mrecv(void* buffer, int count, MPI_Datatype type, MPI_Message* message, MPI_Status* status) {
  return receive_matched<PMPI_Mrecv>(buffer, count, type, message, status);
}

int MPI_Imrecv(void* buffer, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  return begin_receive_matched<PMPI_Imrecv>(buffer, count, type, message, request);
}

int MPI_Sendrecv(const void* out, int out_count, MPI_Datatype out_type, int to, int out_tag, void* in, int in_count,
                 MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Status* status) {
  return exchange<PMPI_Sendrecv>(out, out_count, out_type, to, out_tag, in, in_count, in_type, from, in_tag, comm, status);
}

int MPI_Sendrecv_replace(void* buffer, int count, MPI_Datatype type, int to, int out_tag, int from, int in_tag,
                         MPI_Comm comm, MPI_Status* status) {
  return exchange_in_place<PMPI_Sendrecv_replace>(buffer, count, type, to, out_tag, from, in_tag, comm, status);
}
