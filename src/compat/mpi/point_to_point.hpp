// SPDX-License-Identifier: Apache-2.0
// Sends and receives, once for every flavour and for both widths of counts.
#pragma once

#include "compat/mpi/guarded.hpp"

namespace pl::mpi {

// Whether a flavour of send goes by the pipeline. Buffered sends do not, since they end in the attached buffer, and
// persistent ones, since MPI has their size already.
enum class transfer_mode : bool { whole, pipelined };

// The data is read before the call returns, so the caller may change the buffer as soon as MPI allows it.
template <auto Pmpi, transfer_mode Mode = transfer_mode::whole, class Count>
int send(const void* buffer, Count count, MPI_Datatype type, int destination, int tag, MPI_Comm comm) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, destination, tag, comm);
  return guarded(comm, [&] {
    staged data;
    if (int code = data.describe(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if constexpr (Mode == transfer_mode::pipelined)
      if (const auto parts = pipelined_send::begin(data, destination, tag, comm)) {
        const int code = Pmpi(parts->header(), Count{parts->header_bytes()}, byte_type(), destination, tag, comm);
        if (code != MPI_SUCCESS) return parts->withdraw(), code;
        return unless(parts->send_data(data), comm);
      }
    if (int code = data.make_host_copy(); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = data.load(); code != MPI_SUCCESS) return raise(comm, code);
    return Pmpi(data.pointer(), count, type, destination, tag, comm);
  });
}

// MPI has the header, or gets it here; the data follows.
template <auto Pmpi, class Count>
int begin_pipelined(std::unique_ptr<pipelined_send> parts, const staged& data, int destination, int tag, MPI_Comm comm,
                    MPI_Request* request) {
  auto& message = *parts;
  const int code = Pmpi(message.header(), Count{message.header_bytes()}, byte_type(), destination, tag, comm, request);
  if (code != MPI_SUCCESS) return message.withdraw(), code;
  const int sent = message.send_data(data);
  auto made = std::make_unique<record>();
  made->pipelined = std::move(parts);
  if (sent == MPI_SUCCESS) return requests().put(*request, std::move(made)), sent;
  requests().abandon(*request, std::move(made));
  *request = request_null();
  return raise(comm, sent);
}

// Isend and its like, and the persistent ones, which read the buffer when they are started.
template <auto Pmpi, bool Persistent, transfer_mode Mode = transfer_mode::whole, class Count>
int begin_send(const void* buffer, Count count, MPI_Datatype type, int destination, int tag, MPI_Comm comm,
               MPI_Request* request) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, destination, tag, comm, request);
  return guarded(comm, [&] {
    auto made = std::make_unique<record>();
    made->is_persistent = Persistent;
    made->is_active = !Persistent;
    if (int code = made->send.describe(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if constexpr (Mode == transfer_mode::pipelined)
      if (auto parts = pipelined_send::begin(made->send, destination, tag, comm))
        return begin_pipelined<Pmpi, Count>(std::move(parts), made->send, destination, tag, comm, request);
    if (int code = made->send.make_host_copy(); code != MPI_SUCCESS) return raise(comm, code);
    if (Persistent) made->send.forget_device();
    if (!Persistent)
      if (int code = made->send.load(); code != MPI_SUCCESS) return raise(comm, code);
    const int code = Pmpi(made->send.pointer(), count, type, destination, tag, comm, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

// A stand-in for what a receive gets.
template <class Count>
int attach_receive(staged& target, void* buffer, Count count, MPI_Datatype type) {
  const int code = target.describe(buffer, count, type);
  return code == MPI_SUCCESS ? target.make_host_copy(is_header_expected(target.bytes())) : code;
}

// A receive into host memory that may get a header: `call` gets the request that MPI makes.
template <class Call>
int begin_host_receive(MPI_Comm comm, std::unique_ptr<host_target> target, bool is_persistent, MPI_Request* request,
                       Call call) {
  return guarded(comm, [&] {
    auto made = std::make_unique<record>();
    made->operation = record::kind::receive;
    made->is_persistent = is_persistent;
    made->is_active = !is_persistent;
    made->host = std::move(target);
    const int code = call();
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

template <auto Pmpi, bool Persistent, class Count>
int begin_receive(void* buffer, Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request* request) {
  if (!on_device(buffer, count, type)) [[likely]] {
    const auto call = [&](MPI_Datatype mpi_type) { return Pmpi(buffer, count, mpi_type, source, tag, comm, request); };
    if (!may_get_header(count, type)) [[likely]]
      return call(type);
    return begin_host_receive(comm, std::make_unique<host_target>(buffer, count, type), Persistent, request,
                              [&] { return call(receive_type(type)); });
  }
  return guarded(comm, [&] {
    auto made = std::make_unique<record>();
    made->operation = record::kind::receive;
    made->is_persistent = Persistent;
    made->is_active = !Persistent;
    if (int code = attach_receive(made->receive, buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (Persistent) made->receive.forget_device();
    const int code = Pmpi(made->receive.pointer(), count, receive_type(type), source, tag, comm, request);
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
  if (!on_device(buffer, count, type)) [[likely]] {
    if (!may_get_header(count, type)) [[likely]]
      return Pmpi(buffer, count, type, source, tag, comm, wanted);
    status_of_call status(wanted);
    if (int code = Pmpi(buffer, count, receive_type(type), source, tag, comm, status.get()); code != MPI_SUCCESS)
      return code;
    return unless(finish_host_receive(buffer, count, type, *status.get()), comm);
  }
  return guarded(comm, [&] {
    staged data;
    status_of_call status(wanted);
    if (int code = attach_receive(data, buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = Pmpi(data.pointer(), count, receive_type(type), source, tag, comm, status.get()); code != MPI_SUCCESS)
      return code;
    return unless(finish_receive(data, *status.get()), comm);
  });
}

// A matched message does not reveal its communicator: errors of this library go to the handler of MPI_COMM_WORLD.
template <auto Pmpi, class Count>
int receive_matched(void* buffer, Count count, MPI_Datatype type, MPI_Message* message, MPI_Status* wanted) {
  if (!on_device(buffer, count, type)) [[likely]] {
    if (!may_get_header(count, type)) [[likely]]
      return Pmpi(buffer, count, type, message, wanted);
    status_of_call status(wanted);
    if (int code = Pmpi(buffer, count, receive_type(type), message, status.get()); code != MPI_SUCCESS) return code;
    return unless(finish_host_receive(buffer, count, type, *status.get()), comm_world());
  }
  return guarded(comm_world(), [&] {
    staged data;
    status_of_call status(wanted);
    if (int code = attach_receive(data, buffer, count, type); code != MPI_SUCCESS) return raise(comm_world(), code);
    if (int code = Pmpi(data.pointer(), count, receive_type(type), message, status.get()); code != MPI_SUCCESS) return code;
    return unless(finish_receive(data, *status.get()), comm_world());
  });
}

template <auto Pmpi, class Count>
int begin_receive_matched(void* buffer, Count count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  if (!on_device(buffer, count, type)) [[likely]] {
    const auto call = [&](MPI_Datatype mpi_type) { return Pmpi(buffer, count, mpi_type, message, request); };
    if (!may_get_header(count, type)) [[likely]]
      return call(type);
    return begin_host_receive(comm_world(), std::make_unique<host_target>(buffer, count, type), false, request,
                              [&] { return call(receive_type(type)); });
  }
  return guarded(comm_world(), [&] {
    auto made = std::make_unique<record>();
    made->operation = record::kind::receive;
    if (int code = attach_receive(made->receive, buffer, count, type); code != MPI_SUCCESS) return raise(comm_world(), code);
    const int code = Pmpi(made->receive.pointer(), count, receive_type(type), message, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

#if MPI_VERSION >= 4
inline int begin_mpi_receive(void* buffer, MPI_Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                             MPI_Request* request) {
  return PMPI_Irecv_c(buffer, count, type, source, tag, comm, request);
}
#endif
inline int begin_mpi_receive(void* buffer, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                             MPI_Request* request) {
  return PMPI_Irecv(buffer, count, type, source, tag, comm, request);
}

// Sendrecv with a pipelined message: the receive stands before anything is sent, as in MPI's own.
template <class Count>
int exchange_pipelined(pipelined_send& parts, const staged& source, int destination, int send_tag, void* target, Count count,
                       MPI_Datatype type, int source_rank, int recv_tag, MPI_Comm comm, MPI_Status* status) {
  MPI_Request request;
  int code = begin_mpi_receive(target, count, type, source_rank, recv_tag, comm, &request);
  if (code != MPI_SUCCESS) return parts.withdraw(), code;
  code = PMPI_Send(parts.header(), parts.header_bytes(), byte_type(), destination, send_tag, comm);
  if (code != MPI_SUCCESS) parts.withdraw();
  const int sent = code == MPI_SUCCESS ? parts.send_data(source) : code;
  if (sent != MPI_SUCCESS) {
    PMPI_Cancel(&request);
    PMPI_Wait(&request, status);
    return code == MPI_SUCCESS ? raise(comm, sent) : code;
  }
  return PMPI_Wait(&request, status);
}

template <auto Pmpi, class Count>
int exchange(const void* sendbuf, Count send_count, MPI_Datatype send_type, int destination, int send_tag, void* recvbuf,
             Count recv_count, MPI_Datatype recv_type, int source_rank, int recv_tag, MPI_Comm comm, MPI_Status* wanted) {
  const bool sends = on_device(sendbuf, send_count, send_type), receives = on_device(recvbuf, recv_count, recv_type);
  const bool may_be_header = !receives && may_get_header(recv_count, recv_type);
  if (!sends && !receives && !may_be_header) [[likely]]
    return Pmpi(sendbuf, send_count, send_type, destination, send_tag, recvbuf, recv_count, recv_type, source_rank, recv_tag,
                comm, wanted);
  return guarded(comm, [&] {
    staged source(sendbuf), target(recvbuf);
    status_of_call status(wanted);
    if (sends)
      if (int code = source.describe(sendbuf, send_count, send_type); code != MPI_SUCCESS) return raise(comm, code);
    if (receives)
      if (int code = target.attach(recvbuf, recv_count, recv_type); code != MPI_SUCCESS) return raise(comm, code);
    int code = MPI_SUCCESS;
    if (const auto parts = sends ? pipelined_send::begin(source, destination, send_tag, comm) : nullptr) {
      code = exchange_pipelined(*parts, source, destination, send_tag, target.pointer(), recv_count, receive_type(recv_type),
                                source_rank, recv_tag, comm, status.get());
    } else {
      if ((code = source.make_host_copy()) != MPI_SUCCESS || (code = source.load()) != MPI_SUCCESS) return raise(comm, code);
      code =
          Pmpi(source.pointer(), send_count, send_type, destination, send_tag, target.pointer(), recv_count,
               receives || may_be_header ? receive_type(recv_type) : recv_type, source_rank, recv_tag, comm, status.get());
    }
    if (code != MPI_SUCCESS) return code;
    if (may_be_header) return unless(finish_host_receive(recvbuf, recv_count, recv_type, *status.get()), comm);
    return target.is_host_copy() ? unless(finish_receive(target, *status.get()), comm) : MPI_SUCCESS;
  });
}

template <auto Pmpi, class Count>
int exchange_in_place(void* buffer, Count count, MPI_Datatype type, int destination, int out_tag, int source, int in_tag,
                      MPI_Comm comm, MPI_Status* wanted) {
  if (!on_device(buffer, count, type)) [[likely]] {
    if (!may_get_header(count, type)) [[likely]]
      return Pmpi(buffer, count, type, destination, out_tag, source, in_tag, comm, wanted);
    status_of_call status(wanted);
    const int code = Pmpi(buffer, count, receive_type(type), destination, out_tag, source, in_tag, comm, status.get());
    return code == MPI_SUCCESS ? unless(finish_host_receive(buffer, count, type, *status.get()), comm) : code;
  }
  return guarded(comm, [&] {
    staged data;
    status_of_call status(wanted);
    if (int code = data.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = data.load(); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = Pmpi(data.pointer(), count, receive_type(type), destination, out_tag, source, in_tag, comm, status.get());
        code != MPI_SUCCESS)
      return code;
    return unless(finish_receive(data, *status.get()), comm);
  });
}

// The non-blocking ones (MPI 4).
template <auto Pmpi, class Count>
int begin_exchange(const void* sendbuf, Count send_count, MPI_Datatype send_type, int destination, int send_tag,
                   void* recvbuf, Count recv_count, MPI_Datatype recv_type, int source_rank, int recv_tag, MPI_Comm comm,
                   MPI_Request* request) {
  const bool sends = on_device(sendbuf, send_count, send_type), receives = on_device(recvbuf, recv_count, recv_type);
  const bool may_be_header = !receives && may_get_header(recv_count, recv_type);
  const auto call = [&](const void* source, void* target, MPI_Datatype mpi_type) {
    return Pmpi(source, send_count, send_type, destination, send_tag, target, recv_count, mpi_type, source_rank, recv_tag,
                comm, request);
  };
  if (!sends && !receives && !may_be_header) [[likely]]
    return call(sendbuf, recvbuf, recv_type);
  return guarded(comm, [&] {
    auto made = std::make_unique<record>();
    made->operation = record::kind::exchange;
    made->send = staged(sendbuf);
    made->receive = staged(recvbuf);
    if (may_be_header) made->host = std::make_unique<host_target>(recvbuf, recv_count, recv_type);
    if (sends)
      if (int code = made->send.attach(sendbuf, send_count, send_type); code != MPI_SUCCESS) return raise(comm, code);
    if (receives)
      if (int code = made->receive.attach(recvbuf, recv_count, recv_type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = made->send.load(); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = made->receive.load(); code != MPI_SUCCESS) return raise(comm, code);
    const int code =
        call(made->send.pointer(), made->receive.pointer(), receives || may_be_header ? receive_type(recv_type) : recv_type);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

template <auto Pmpi, class Count>
int begin_exchange_in_place(void* buffer, Count count, MPI_Datatype type, int destination, int out_tag, int source,
                            int in_tag, MPI_Comm comm, MPI_Request* request) {
  const bool is_device = on_device(buffer, count, type);
  if (!is_device && !may_get_header(count, type)) [[likely]]
    return Pmpi(buffer, count, type, destination, out_tag, source, in_tag, comm, request);
  return guarded(comm, [&] {
    auto made = std::make_unique<record>();
    made->operation = record::kind::exchange;
    made->receive = staged(buffer);
    if (!is_device) made->host = std::make_unique<host_target>(buffer, count, type);
    if (is_device)
      if (int code = made->receive.attach(buffer, count, type); code != MPI_SUCCESS) return raise(comm, code);
    if (int code = made->receive.load(); code != MPI_SUCCESS) return raise(comm, code);
    const int code =
        Pmpi(made->receive.pointer(), count, receive_type(type), destination, out_tag, source, in_tag, comm, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

}  // namespace pl::mpi
