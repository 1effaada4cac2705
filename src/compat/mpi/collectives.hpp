// SPDX-License-Identifier: Apache-2.0
// The collective operations, once for both widths of counts, blocking, not blocking and persistent. `request...` is nothing,
// the request, or info and request.
#pragma once

#include <numeric>

#include "compat/mpi/collective.hpp"

namespace pl::mpi {

template <auto Pmpi, class Count, class... Request>
int broadcast(void* buffer, Count count, MPI_Datatype type, int root, MPI_Comm comm, Request... request) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(buffer, count, type, root, comm, request...);
  const group all(comm);
  const auto prepare = [&](record& made) {
    made.send = staged(buffer);
    made.receive = staged(buffer);
    if (all.is_root(root)) return take_source(made.send, buffer, {{0, count, type}});
    return all.gives_or_gets(root) ? take_target(made.receive, buffer, {{0, count, type}}, false) : MPI_SUCCESS;
  };
  const auto call = [&](void* sendbuf, void* recvbuf) {
    return Pmpi(all.is_root(root) ? sendbuf : recvbuf, count, type, root, comm, request...);
  };
  return collective(comm, prepare, call, request...);
}

// No blocks where an argument has no meaning on this rank.
inline parts significant(bool is_here, parts blocks) { return is_here ? std::move(blocks) : parts{}; }
template <class AllBlocks>
parts at_root(MPI_Comm comm, int root, AllBlocks all_blocks) {
  const group all(comm);
  return all.is_root(root) ? all_blocks(all.size()) : parts{};
}

// ---- One buffer gathered or scattered ---------------------------------------------------------------------------------
// `all_blocks` describes the buffer that holds a block for every rank.

template <class AllBlocks, class Call, class... Request>
int to_root(const void* sendbuf, const part& own, void* recvbuf, AllBlocks all_blocks, int root, MPI_Comm comm, Call call,
            Request... request) {
  const auto prepare = [&](record& made) {
    const group all(comm);
    made.send = staged(sendbuf);
    made.receive = staged(recvbuf);
    if (all.gives_or_gets(root))
      if (const int code = take_source(made.send, sendbuf, {own}); code != MPI_SUCCESS) return code;
    return all.is_root(root) ? take_target(made.receive, recvbuf, all_blocks(all.size()), sendbuf == MPI_IN_PLACE)
                             : MPI_SUCCESS;
  };
  return collective(comm, prepare, call, request...);
}

template <class AllBlocks, class Call, class... Request>
int from_root(const void* sendbuf, AllBlocks all_blocks, void* recvbuf, const part& own, int root, MPI_Comm comm, Call call,
              Request... request) {
  const auto prepare = [&](record& made) {
    const group all(comm);
    made.send = staged(sendbuf);
    made.receive = staged(recvbuf);
    if (all.is_root(root))
      if (const int code = take_source(made.send, sendbuf, all_blocks(all.size())); code != MPI_SUCCESS) return code;
    return all.gives_or_gets(root) ? take_target(made.receive, recvbuf, {own}, false) : MPI_SUCCESS;
  };
  return collective(comm, prepare, call, request...);
}

template <auto Pmpi, class Count, class... Request>
int gather(const void* sendbuf, Count send_count, MPI_Datatype send_type, void* recvbuf, Count recv_count,
           MPI_Datatype recv_type, int root, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, send_count, send_type, target, recv_count, recv_type, root, comm, request...);
  };
  const auto all_blocks = [&](int n) { return parts{{0, MPI_Count{n} * recv_count, recv_type}}; };
  const auto sent = [&] { return significant(group(comm).gives_or_gets(root), {{0, send_count, send_type}}); };
  const auto received = [&] { return at_root(comm, root, all_blocks); };
  if (!concerns(sendbuf, sent) && !concerns(recvbuf, received)) [[likely]]
    return call(sendbuf, recvbuf);
  return to_root(sendbuf, {0, send_count, send_type}, recvbuf, all_blocks, root, comm, call, request...);
}

template <auto Pmpi, class Count, class Offset, class... Request>
int gather_v(const void* sendbuf, Count send_count, MPI_Datatype send_type, void* recvbuf, const Count* recv_counts,
             const Offset* offsets, MPI_Datatype recv_type, int root, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, send_count, send_type, target, recv_counts, offsets, recv_type, root, comm, request...);
  };
  const auto all_blocks = [&](int n) { return blocks(n, recv_counts, offsets, recv_type); };
  const auto sent = [&] { return significant(group(comm).gives_or_gets(root), {{0, send_count, send_type}}); };
  const auto received = [&] { return at_root(comm, root, all_blocks); };
  if (!concerns(sendbuf, sent) && !concerns(recvbuf, received)) [[likely]]
    return call(sendbuf, recvbuf);
  return to_root(sendbuf, {0, send_count, send_type}, recvbuf, all_blocks, root, comm, call, request...);
}

template <auto Pmpi, class Count, class... Request>
int scatter(const void* sendbuf, Count send_count, MPI_Datatype send_type, void* recvbuf, Count recv_count,
            MPI_Datatype recv_type, int root, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, send_count, send_type, target, recv_count, recv_type, root, comm, request...);
  };
  const auto all_blocks = [&](int n) { return parts{{0, MPI_Count{n} * send_count, send_type}}; };
  const auto sent = [&] { return at_root(comm, root, all_blocks); };
  const auto received = [&] { return significant(group(comm).gives_or_gets(root), {{0, recv_count, recv_type}}); };
  if (!concerns(sendbuf, sent) && !concerns(recvbuf, received)) [[likely]]
    return call(sendbuf, recvbuf);
  return from_root(sendbuf, all_blocks, recvbuf, {0, recv_count, recv_type}, root, comm, call, request...);
}

template <auto Pmpi, class Count, class Offset, class... Request>
int scatter_v(const void* sendbuf, const Count* send_counts, const Offset* offsets, MPI_Datatype send_type, void* recvbuf,
              Count recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, send_counts, offsets, send_type, target, recv_count, recv_type, root, comm, request...);
  };
  const auto all_blocks = [&](int n) { return blocks(n, send_counts, offsets, send_type); };
  const auto sent = [&] { return at_root(comm, root, all_blocks); };
  const auto received = [&] { return significant(group(comm).gives_or_gets(root), {{0, recv_count, recv_type}}); };
  if (!concerns(sendbuf, sent) && !concerns(recvbuf, received)) [[likely]]
    return call(sendbuf, recvbuf);
  return from_root(sendbuf, all_blocks, recvbuf, {0, recv_count, recv_type}, root, comm, call, request...);
}

// ---- Every rank to every rank -------------------------------------------------------------------------------------------
// Or to its neighbours: `Among` says how many they are. `sources` and `targets` describe the two buffers; the first is not
// asked with MPI_IN_PLACE.

template <class Among, class Sources, class Targets, class Call, class... Request>
int among_all(const void* sendbuf, Sources sources, void* recvbuf, Targets targets, MPI_Comm comm, Call call,
              Request... request) {
  const auto prepare = [&](record& made) {
    const bool in_place = sendbuf == MPI_IN_PLACE;
    if (const int code = take_source(made.send, sendbuf, in_place ? parts{} : sources()); code != MPI_SUCCESS) return code;
    return take_target(made.receive, recvbuf, targets(), Among::some_get_nothing || in_place);
  };
  return collective(comm, prepare, call, request...);
}

template <auto Pmpi, class Among = all_ranks, class Count, class... Request>
int all_gather(const void* sendbuf, Count send_count, MPI_Datatype send_type, void* recvbuf, Count recv_count,
               MPI_Datatype recv_type, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, send_count, send_type, target, recv_count, recv_type, comm, request...);
  };
  const auto sources = [&] { return parts{{0, send_count, send_type}}; };
  const auto targets = [&] { return parts{{0, MPI_Count{Among::incoming(comm)} * recv_count, recv_type}}; };
  if (!concerns(sendbuf, sources) && !concerns(recvbuf, targets)) [[likely]]
    return call(sendbuf, recvbuf);
  return among_all<Among>(sendbuf, sources, recvbuf, targets, comm, call, request...);
}

template <auto Pmpi, class Among = all_ranks, class Count, class Offset, class... Request>
int all_gather_v(const void* sendbuf, Count send_count, MPI_Datatype send_type, void* recvbuf, const Count* recv_counts,
                 const Offset* offsets, MPI_Datatype recv_type, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, send_count, send_type, target, recv_counts, offsets, recv_type, comm, request...);
  };
  const auto sources = [&] { return parts{{0, send_count, send_type}}; };
  const auto targets = [&] { return blocks(Among::incoming(comm), recv_counts, offsets, recv_type); };
  if (!concerns(sendbuf, sources) && !concerns(recvbuf, targets)) [[likely]]
    return call(sendbuf, recvbuf);
  return among_all<Among>(sendbuf, sources, recvbuf, targets, comm, call, request...);
}

template <auto Pmpi, class Among = all_ranks, class Count, class... Request>
int all_to_all(const void* sendbuf, Count send_count, MPI_Datatype send_type, void* recvbuf, Count recv_count,
               MPI_Datatype recv_type, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, send_count, send_type, target, recv_count, recv_type, comm, request...);
  };
  const auto sources = [&] { return parts{{0, MPI_Count{Among::outgoing(comm)} * send_count, send_type}}; };
  const auto targets = [&] { return parts{{0, MPI_Count{Among::incoming(comm)} * recv_count, recv_type}}; };
  if (!concerns(sendbuf, sources) && !concerns(recvbuf, targets)) [[likely]]
    return call(sendbuf, recvbuf);
  return among_all<Among>(sendbuf, sources, recvbuf, targets, comm, call, request...);
}

// Also with a type for each rank: then `Type` is an array and the offsets are bytes.
template <auto Pmpi, class Among = all_ranks, class Count, class Offset, class Type, class... Request>
int all_to_all_v(const void* sendbuf, const Count* send_counts, const Offset* send_offsets, Type send_type, void* recvbuf,
                 const Count* recv_counts, const Offset* recv_offsets, Type recv_type, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, send_counts, send_offsets, send_type, target, recv_counts, recv_offsets, recv_type, comm,
                request...);
  };
  const auto sources = [&] { return blocks(Among::outgoing(comm), send_counts, send_offsets, send_type); };
  const auto targets = [&] { return blocks(Among::incoming(comm), recv_counts, recv_offsets, recv_type); };
  if (!concerns(sendbuf, sources) && !concerns(recvbuf, targets)) [[likely]]
    return call(sendbuf, recvbuf);
  return among_all<Among>(sendbuf, sources, recvbuf, targets, comm, call, request...);
}

// ---- Reductions: MPI's CPU code computes on the stand-ins ---------------------------------------------------------------

template <auto Pmpi, class Count, class... Request>
int reduce(const void* sendbuf, void* recvbuf, Count count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
           Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, target, count, type, op, root, comm, request...);
  };
  const auto result = [&](int) { return parts{{0, count, type}}; };
  const auto sent = [&] { return significant(group(comm).gives_or_gets(root), {{0, count, type}}); };
  const auto received = [&] { return at_root(comm, root, result); };
  if (!concerns(sendbuf, sent) && !concerns(recvbuf, received)) [[likely]]
    return call(sendbuf, recvbuf);
  return to_root(sendbuf, {0, count, type}, recvbuf, result, root, comm, call, request...);
}

// Allreduce, Scan, Exscan. The first rank's result of an Exscan is not written: its stand-in holds what was there.
template <auto Pmpi, bool SomeGetNothing, class Count, class... Request>
int reduce_for_all(const void* sendbuf, void* recvbuf, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, target, count, type, op, comm, request...);
  };
  const auto sent = [&] { return parts{{0, count, type}}; };
  const auto received = [&] { return parts{{0, count, type}}; };
  if (!concerns(sendbuf, sent) && !concerns(recvbuf, received)) [[likely]]
    return call(sendbuf, recvbuf);
  const auto prepare = [&](record& made) {
    if (const int code = take_source(made.send, sendbuf, {{0, count, type}}); code != MPI_SUCCESS) return code;
    return take_target(made.receive, recvbuf, {{0, count, type}}, SomeGetNothing || sendbuf == MPI_IN_PLACE);
  };
  return collective(comm, prepare, call, request...);
}

// With MPI_IN_PLACE the receive buffer holds the input of all ranks, and the result of this one at its beginning.
template <class Call, class... Request>
int reduce_and_scatter(const void* sendbuf, void* recvbuf, MPI_Count all_elements, MPI_Count own, MPI_Datatype type,
                       MPI_Comm comm, Call call, Request... request) {
  const auto prepare = [&](record& made) {
    const bool in_place = sendbuf == MPI_IN_PLACE;
    if (const int code = take_source(made.send, sendbuf, {{0, all_elements, type}}); code != MPI_SUCCESS) return code;
    const int code = take_target(made.receive, recvbuf, {{0, in_place ? all_elements : own, type}}, in_place);
    MPI_Count bytes = 0;
    if (type != type_null()) PMPI_Type_size_x(type, &bytes);
    made.receive.limit_store(static_cast<std::size_t>(bytes * own));
    return code;
  };
  return collective(comm, prepare, call, request...);
}

template <auto Pmpi, class Count, class... Request>
int reduce_scatter(const void* sendbuf, void* recvbuf, const Count* counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, target, counts, type, op, comm, request...);
  };
  const auto sum_of = [&] {  // on an intercommunicator the counts are of the own group
    int n = 0;
    PMPI_Comm_size(comm, &n);
    return std::accumulate(counts, counts + n, MPI_Count{0});
  };
  const auto sent = [&] { return parts{{0, sum_of(), type}}; };
  const auto received = [&] { return parts{{0, sendbuf == MPI_IN_PLACE ? sum_of() : counts[group(comm).rank()], type}}; };
  if (!concerns(sendbuf, sent) && !concerns(recvbuf, received)) [[likely]]
    return call(sendbuf, recvbuf);
  const MPI_Count sum = sum_of();
  const int rank = group(comm).rank();
  return reduce_and_scatter(sendbuf, recvbuf, sum, counts[rank], type, comm, call, request...);
}

template <auto Pmpi, class Count, class... Request>
int reduce_scatter_block(const void* sendbuf, void* recvbuf, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                         Request... request) {
  const auto call = [&](const void* origin, void* target) {
    return Pmpi(origin, target, count, type, op, comm, request...);
  };
  const auto all_ranks = [&] {
    int n = 0;
    PMPI_Comm_size(comm, &n);
    return n;
  };
  const auto sent = [&] { return parts{{0, MPI_Count{all_ranks()} * count, type}}; };
  const auto received = [&] { return parts{{0, MPI_Count{sendbuf == MPI_IN_PLACE ? all_ranks() : 1} * count, type}}; };
  if (!concerns(sendbuf, sent) && !concerns(recvbuf, received)) [[likely]]
    return call(sendbuf, recvbuf);
  const int n = all_ranks();
  return reduce_and_scatter(sendbuf, recvbuf, MPI_Count{n} * count, count, type, comm, call, request...);
}

}  // namespace pl::mpi
