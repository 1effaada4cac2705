// SPDX-License-Identifier: Apache-2.0
// Sends and receives, once for every flavour and for both widths of counts.
#pragma once

#include "compat/mpi/guarded.hpp"

namespace pl::mpi {

// What was sent is read before the call returns, so the buffer may change as soon as MPI says so, or sooner.
template <auto Pmpi, class Count>
int send(const void* buffer, Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, to, tag, comm);
  return guarded(comm, [&] {
    staged data;
    if (int code = data.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = data.load(); code != MPI_SUCCESS) return raise(comm, code);
    return Pmpi(data.pointer(), count, type, to, tag, comm);
  });
}

// Isend and its like, and the persistent ones, which read the buffer when they are started.
template <auto Pmpi, bool Persistent, class Count>
int begin_send(const void* buffer, Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, to, tag, comm, request);
  return guarded(comm, [&] {
    auto made = std::make_unique<record>();
    made->is_persistent = Persistent;
    made->is_active = !Persistent;
    if (int code = made->send.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (Persistent) made->send.forget_device();
    if (!Persistent)
      if (int code = made->send.load(); code != MPI_SUCCESS) return raise(comm, code);
    const int code = Pmpi(made->send.pointer(), count, type, to, tag, comm, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

template <auto Pmpi, bool Persistent, class Count>
int begin_receive(void* buffer, Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, from, tag, comm, request);
  return guarded(comm, [&] {
    auto made = std::make_unique<record>();
    made->what = record::kind::receive;
    made->is_persistent = Persistent;
    made->is_active = !Persistent;
    if (int code = made->receive.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (Persistent) made->receive.forget_device();
    const int code = Pmpi(made->receive.pointer(), count, type, from, tag, comm, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

// A status to look at, the caller's if he wants one.
class status_of_call {
 public:
  explicit status_of_call(MPI_Status* wanted) : at_(wanted != MPI_STATUS_IGNORE ? wanted : &own_) {}
  MPI_Status* get() noexcept { return at_; }

 private:
  MPI_Status own_;
  MPI_Status* at_;
};

template <auto Pmpi, class Count>
int receive(void* buffer, Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* wanted) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, from, tag, comm, wanted);
  return guarded(comm, [&] {
    staged data;
    status_of_call status(wanted);
    if (int code = data.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = Pmpi(data.pointer(), count, type, from, tag, comm, status.get()); code != MPI_SUCCESS) return code;
    return unless(data.store_first(received_bytes(*status.get())), comm);
  });
}

// The message knows its communicator, we do not: errors of ours go to the world's handler.
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
    made->what = record::kind::receive;
    if (int code = made->receive.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm_world(), code);
    const int code = Pmpi(made->receive.pointer(), count, type, message, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

template <auto Pmpi, class Count>
int exchange(const void* out, Count out_count, MPI_Datatype out_type, int to, int out_tag, void* in, Count in_count,
             MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Status* wanted) {
  const bool sends = on_device(out, out_count, out_type), receives = on_device(in, in_count, in_type);
  if (!sends && !receives) [[likely]]
    return Pmpi(out, out_count, out_type, to, out_tag, in, in_count, in_type, from, in_tag, comm, wanted);
  return guarded(comm, [&] {
    staged source(out), target(in);
    status_of_call status(wanted);
    if (sends)
      if (int code = source.attach(out, out_count, out_type); code != MPI_SUCCESS) return raise(comm, code);
    if (receives)
      if (int code = target.attach(in, in_count, in_type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = source.load(); code != MPI_SUCCESS) return raise(comm, code);
    const int code = Pmpi(source.pointer(), out_count, out_type, to, out_tag, target.pointer(), in_count, in_type, from,
                          in_tag, comm, status.get());
    if (code != MPI_SUCCESS || !target.is_stand_in()) return code;
    return unless(target.store_first(received_bytes(*status.get())), comm);
  });
}

template <auto Pmpi, class Count>
int exchange_in_place(void* buffer, Count count, MPI_Datatype type, int to, int out_tag, int from, int in_tag, MPI_Comm comm,
                      MPI_Status* wanted) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, to, out_tag, from, in_tag, comm, wanted);
  return guarded(comm, [&] {
    staged data;
    status_of_call status(wanted);
    if (int code = data.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = data.load(); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = Pmpi(data.pointer(), count, type, to, out_tag, from, in_tag, comm, status.get()); code != MPI_SUCCESS)
      return code;
    return unless(data.store_first(received_bytes(*status.get())), comm);
  });
}

}  // namespace pl::mpi
