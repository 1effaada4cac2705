// SPDX-License-Identifier: Apache-2.0
// MPI functions: sends and receives with counts of MPI_Count, where the MPI below has them (MPI 4).
#include "point_to_point.hpp"

#if MPI_VERSION >= 4
using namespace pl::mpi;

int MPI_Send_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  return send<PMPI_Send_c>(buffer, count, type, to, tag, comm);
}

int MPI_Ssend_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  return send<PMPI_Ssend_c>(buffer, count, type, to, tag, comm);
}

int MPI_Bsend_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  return send<PMPI_Bsend_c>(buffer, count, type, to, tag, comm);
}

int MPI_Rsend_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  return send<PMPI_Rsend_c>(buffer, count, type, to, tag, comm);
}

int MPI_Isend_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                MPI_Request* request) {
  return begin_send<PMPI_Isend_c, false>(buffer, count, type, to, tag, comm, request);
}

int MPI_Issend_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                 MPI_Request* request) {
  return begin_send<PMPI_Issend_c, false>(buffer, count, type, to, tag, comm, request);
}

int MPI_Ibsend_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                 MPI_Request* request) {
  return begin_send<PMPI_Ibsend_c, false>(buffer, count, type, to, tag, comm, request);
}

int MPI_Irsend_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                 MPI_Request* request) {
  return begin_send<PMPI_Irsend_c, false>(buffer, count, type, to, tag, comm, request);
}

int MPI_Send_init_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                    MPI_Request* request) {
  return begin_send<PMPI_Send_init_c, true>(buffer, count, type, to, tag, comm, request);
}

int MPI_Ssend_init_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                     MPI_Request* request) {
  return begin_send<PMPI_Ssend_init_c, true>(buffer, count, type, to, tag, comm, request);
}

int MPI_Bsend_init_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                     MPI_Request* request) {
  return begin_send<PMPI_Bsend_init_c, true>(buffer, count, type, to, tag, comm, request);
}

int MPI_Rsend_init_c(const void* buffer, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                     MPI_Request* request) {
  return begin_send<PMPI_Rsend_init_c, true>(buffer, count, type, to, tag, comm, request);
}

int MPI_Recv_c(void* buffer, MPI_Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  return receive<PMPI_Recv_c>(buffer, count, type, from, tag, comm, status);
}

int MPI_Irecv_c(void* buffer, MPI_Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  return begin_receive<PMPI_Irecv_c, false>(buffer, count, type, from, tag, comm, request);
}

int MPI_Recv_init_c(void* buffer, MPI_Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                    MPI_Request* request) {
  return begin_receive<PMPI_Recv_init_c, true>(buffer, count, type, from, tag, comm, request);
}

int MPI_Mrecv_c(void* buffer, MPI_Count count, MPI_Datatype type, MPI_Message* message, MPI_Status* status) {
  return receive_matched<PMPI_Mrecv_c>(buffer, count, type, message, status);
}

int MPI_Imrecv_c(void* buffer, MPI_Count count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  return begin_receive_matched<PMPI_Imrecv_c>(buffer, count, type, message, request);
}

int MPI_Sendrecv_c(const void* out, MPI_Count out_count, MPI_Datatype out_type, int to, int out_tag, void* in,
                   MPI_Count in_count, MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Status* status) {
  return exchange<PMPI_Sendrecv_c>(out, out_count, out_type, to, out_tag, in, in_count, in_type, from, in_tag, comm, status);
}

int MPI_Sendrecv_replace_c(void* buffer, MPI_Count count, MPI_Datatype type, int to, int out_tag, int from, int in_tag,
                           MPI_Comm comm, MPI_Status* status) {
  return exchange_in_place<PMPI_Sendrecv_replace_c>(buffer, count, type, to, out_tag, from, in_tag, comm, status);
}

#endif
