// SPDX-License-Identifier: Apache-2.0
// Sends and receives, once for every flavour and for both widths of counts.
#pragma once

#include "compat/mpi/guarded.hpp"

namespace pl::mpi {

// The data is read before the call returns, so the caller may change the buffer as soon as MPI allows it.
template <auto Pmpi, class Count>
int send(const void* buffer, Count count, MPI_Datatype type, int destination, int tag, MPI_Comm comm) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, destination, tag, comm);
  return guarded(comm, [&] {
    staged data;
    if (int code = data.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = data.load(); code != MPI_SUCCESS) return raise(comm, code);
    return Pmpi(data.pointer(), count, type, destination, tag, comm);
  });
}

// Isend and its like, and the persistent ones, which read the buffer when they are started.
template <auto Pmpi, bool Persistent, class Count>
int begin_send(const void* buffer, Count count, MPI_Datatype type, int destination, int tag, MPI_Comm comm,
               MPI_Request* request) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, destination, tag, comm, request);
  return guarded(comm, [&] {
    auto made = std::make_unique<record>();
    made->is_persistent = Persistent;
    made->is_active = !Persistent;
    if (int code = made->send.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (Persistent) made->send.forget_device();
    if (!Persistent)
      if (int code = made->send.load(); code != MPI_SUCCESS) return raise(comm, code);
    const int code = Pmpi(made->send.pointer(), count, type, destination, tag, comm, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

template <auto Pmpi, bool Persistent, class Count>
int begin_receive(void* buffer, Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request* request) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, source, tag, comm, request);
  return guarded(comm, [&] {
    auto made = std::make_unique<record>();
    made->operation = record::kind::receive;
    made->is_persistent = Persistent;
    made->is_active = !Persistent;
    if (int code = made->receive.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (Persistent) made->receive.forget_device();
    const int code = Pmpi(made->receive.pointer(), count, type, source, tag, comm, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

// A readable status: the caller's, or an own one if the caller ignores it.
class status_of_call {
 public:
  explicit status_of_call(MPI_Status* wanted) : status_(wanted != MPI_STATUS_IGNORE ? wanted : &own_) {}
  MPI_Status* get() noexcept { return status_; }

 private:
  MPI_Status own_;
  MPI_Status* status_;
};

template <auto Pmpi, class Count>
int receive(void* buffer, Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status* wanted) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, source, tag, comm, wanted);
  return guarded(comm, [&] {
    staged data;
    status_of_call status(wanted);
    if (int code = data.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = Pmpi(data.pointer(), count, type, source, tag, comm, status.get()); code != MPI_SUCCESS) return code;
    return unless(data.store_first(received_bytes(*status.get())), comm);
  });
}

// A matched message does not reveal its communicator: errors of this library go to the handler of MPI_COMM_WORLD.
template <auto Pmpi, class Count>
int receive_matched(void* buffer, Count count, MPI_Datatype type, MPI_Message* message, MPI_Status* wanted) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, message, wanted);
  return guarded(comm_world(), [&] {
    staged data;
    status_of_call status(wanted);
    if (int code = data.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm_world(), code);
    if (int code = Pmpi(data.pointer(), count, type, message, status.get()); code != MPI_SUCCESS) return code;
    return unless(data.store_first(received_bytes(*status.get())), comm_world());
  });
}

template <auto Pmpi, class Count>
int begin_receive_matched(void* buffer, Count count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, message, request);
  return guarded(comm_world(), [&] {
    auto made = std::make_unique<record>();
    made->operation = record::kind::receive;
    if (int code = made->receive.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm_world(), code);
    const int code = Pmpi(made->receive.pointer(), count, type, message, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

template <auto Pmpi, class Count>
int exchange(const void* recvbuf, Count recv_count, MPI_Datatype recv_type, int destination_rank, int recv_tag,
             void* sendbuf, Count send_count, MPI_Datatype send_type, int source_rank, int send_tag, MPI_Comm comm,
             MPI_Status* wanted) {
  const bool sends = on_device(recvbuf, recv_count, recv_type), receives = on_device(sendbuf, send_count, send_type);
  if (!sends && !receives) [[likely]]
    return Pmpi(recvbuf, recv_count, recv_type, destination_rank, recv_tag, sendbuf, send_count, send_type, source_rank,
                send_tag, comm, wanted);
  return guarded(comm, [&] {
    staged source(recvbuf), target(sendbuf);
    status_of_call status(wanted);
    if (sends)
      if (int code = source.attach(recvbuf, recv_count, recv_type); code != MPI_SUCCESS) return raise(comm, code);
    if (receives)
      if (int code = target.attach(sendbuf, send_count, send_type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = source.load(); code != MPI_SUCCESS) return raise(comm, code);
    const int code = Pmpi(source.pointer(), recv_count, recv_type, destination_rank, recv_tag, target.pointer(), send_count,
                          send_type, source_rank, send_tag, comm, status.get());
    if (code != MPI_SUCCESS || !target.is_stand_in()) return code;
    return unless(target.store_first(received_bytes(*status.get())), comm);
  });
}

template <auto Pmpi, class Count>
int exchange_in_place(void* buffer, Count count, MPI_Datatype type, int destination, int out_tag, int source, int in_tag,
                      MPI_Comm comm, MPI_Status* wanted) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, destination, out_tag, source, in_tag, comm, wanted);
  return guarded(comm, [&] {
    staged data;
    status_of_call status(wanted);
    if (int code = data.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = data.load(); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = Pmpi(data.pointer(), count, type, destination, out_tag, source, in_tag, comm, status.get());
        code != MPI_SUCCESS)
      return code;
    return unless(data.store_first(received_bytes(*status.get())), comm);
  });
}

}  // namespace pl::mpi
