// SPDX-License-Identifier: Apache-2.0
// The collective operations, once for both widths of counts, blocking and not. `request...` is the request of the
// non-blocking form, or nothing.
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
  const auto call = [&](void* in, void* out) {
    return Pmpi(all.is_root(root) ? in : out, count, type, root, comm, request...);
  };
  return collective(comm, prepare, call, request...);
}

// Nothing where an argument means nothing on this rank.
inline parts significant(bool is_here, parts what) { return is_here ? std::move(what) : parts{}; }
template <class AllBlocks>
parts at_root(MPI_Comm comm, int root, AllBlocks all_blocks) {
  const group all(comm);
  return all.is_root(root) ? all_blocks(all.size()) : parts{};
}

// ---- One buffer gathered or scattered ---------------------------------------------------------------------------------
// `all_blocks` describes the buffer that holds a block for every rank.

template <class AllBlocks, class Call, class... Request>
int to_root(const void* in, const part& own, void* out, AllBlocks all_blocks, int root, MPI_Comm comm, Call call,
            Request... request) {
  const auto prepare = [&](record& made) {
    const group all(comm);
    made.send = staged(in);
    made.receive = staged(out);
    if (all.gives_or_gets(root))
      if (const int code = take_source(made.send, in, {own}); code != MPI_SUCCESS) return code;
    return all.is_root(root) ? take_target(made.receive, out, all_blocks(all.size()), in == MPI_IN_PLACE) : MPI_SUCCESS;
  };
  return collective(comm, prepare, call, request...);
}

template <class AllBlocks, class Call, class... Request>
int from_root(const void* in, AllBlocks all_blocks, void* out, const part& own, int root, MPI_Comm comm, Call call,
              Request... request) {
  const auto prepare = [&](record& made) {
    const group all(comm);
    made.send = staged(in);
    made.receive = staged(out);
    if (all.is_root(root))
      if (const int code = take_source(made.send, in, all_blocks(all.size())); code != MPI_SUCCESS) return code;
    return all.gives_or_gets(root) ? take_target(made.receive, out, {own}, false) : MPI_SUCCESS;
  };
  return collective(comm, prepare, call, request...);
}

template <auto Pmpi, class Count, class... Request>
int gather(const void* in, Count in_count, MPI_Datatype in_type, void* out, Count out_count, MPI_Datatype out_type, int root,
           MPI_Comm comm, Request... request) {
  const auto call = [&](const void* from, void* to) {
    return Pmpi(from, in_count, in_type, to, out_count, out_type, root, comm, request...);
  };
  const auto all_blocks = [&](int n) { return parts{{0, MPI_Count{n} * out_count, out_type}}; };
  const auto sent = [&] { return significant(group(comm).gives_or_gets(root), {{0, in_count, in_type}}); };
  const auto received = [&] { return at_root(comm, root, all_blocks); };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  return to_root(in, {0, in_count, in_type}, out, all_blocks, root, comm, call, request...);
}

template <auto Pmpi, class Count, class Offset, class... Request>
int gather_v(const void* in, Count in_count, MPI_Datatype in_type, void* out, const Count* out_counts, const Offset* offsets,
             MPI_Datatype out_type, int root, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* from, void* to) {
    return Pmpi(from, in_count, in_type, to, out_counts, offsets, out_type, root, comm, request...);
  };
  const auto all_blocks = [&](int n) { return blocks(n, out_counts, offsets, out_type); };
  const auto sent = [&] { return significant(group(comm).gives_or_gets(root), {{0, in_count, in_type}}); };
  const auto received = [&] { return at_root(comm, root, all_blocks); };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  return to_root(in, {0, in_count, in_type}, out, all_blocks, root, comm, call, request...);
}

template <auto Pmpi, class Count, class... Request>
int scatter(const void* in, Count in_count, MPI_Datatype in_type, void* out, Count out_count, MPI_Datatype out_type,
            int root, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* from, void* to) {
    return Pmpi(from, in_count, in_type, to, out_count, out_type, root, comm, request...);
  };
  const auto all_blocks = [&](int n) { return parts{{0, MPI_Count{n} * in_count, in_type}}; };
  const auto sent = [&] { return at_root(comm, root, all_blocks); };
  const auto received = [&] { return significant(group(comm).gives_or_gets(root), {{0, out_count, out_type}}); };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  return from_root(in, all_blocks, out, {0, out_count, out_type}, root, comm, call, request...);
}

template <auto Pmpi, class Count, class Offset, class... Request>
int scatter_v(const void* in, const Count* in_counts, const Offset* offsets, MPI_Datatype in_type, void* out,
              Count out_count, MPI_Datatype out_type, int root, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* from, void* to) {
    return Pmpi(from, in_counts, offsets, in_type, to, out_count, out_type, root, comm, request...);
  };
  const auto all_blocks = [&](int n) { return blocks(n, in_counts, offsets, in_type); };
  const auto sent = [&] { return at_root(comm, root, all_blocks); };
  const auto received = [&] { return significant(group(comm).gives_or_gets(root), {{0, out_count, out_type}}); };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  return from_root(in, all_blocks, out, {0, out_count, out_type}, root, comm, call, request...);
}

// ---- Every rank to every rank -------------------------------------------------------------------------------------------
// `sources` and `targets` describe the two buffers, given the number of ranks; the first is not asked with MPI_IN_PLACE.

template <class Sources, class Targets, class Call, class... Request>
int among_all(const void* in, Sources sources, void* out, Targets targets, MPI_Comm comm, Call call, Request... request) {
  const auto prepare = [&](record& made) {
    const group all(comm);
    const bool in_place = in == MPI_IN_PLACE;
    if (const int code = take_source(made.send, in, in_place ? parts{} : sources(all)); code != MPI_SUCCESS) return code;
    return take_target(made.receive, out, targets(all), in_place);
  };
  return collective(comm, prepare, call, request...);
}

template <auto Pmpi, class Count, class... Request>
int all_gather(const void* in, Count in_count, MPI_Datatype in_type, void* out, Count out_count, MPI_Datatype out_type,
               MPI_Comm comm, Request... request) {
  const auto call = [&](const void* from, void* to) {
    return Pmpi(from, in_count, in_type, to, out_count, out_type, comm, request...);
  };
  const auto sources = [&](const group&) { return parts{{0, in_count, in_type}}; };
  const auto targets = [&](const group& all) { return parts{{0, MPI_Count{all.size()} * out_count, out_type}}; };
  const auto sent = [&] { return sources(group(comm)); };
  const auto received = [&] { return targets(group(comm)); };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  return among_all(in, sources, out, targets, comm, call, request...);
}

template <auto Pmpi, class Count, class Offset, class... Request>
int all_gather_v(const void* in, Count in_count, MPI_Datatype in_type, void* out, const Count* out_counts,
                 const Offset* offsets, MPI_Datatype out_type, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* from, void* to) {
    return Pmpi(from, in_count, in_type, to, out_counts, offsets, out_type, comm, request...);
  };
  const auto sources = [&](const group&) { return parts{{0, in_count, in_type}}; };
  const auto targets = [&](const group& all) { return blocks(all.size(), out_counts, offsets, out_type); };
  const auto sent = [&] { return sources(group(comm)); };
  const auto received = [&] { return targets(group(comm)); };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  return among_all(in, sources, out, targets, comm, call, request...);
}

template <auto Pmpi, class Count, class... Request>
int all_to_all(const void* in, Count in_count, MPI_Datatype in_type, void* out, Count out_count, MPI_Datatype out_type,
               MPI_Comm comm, Request... request) {
  const auto call = [&](const void* from, void* to) {
    return Pmpi(from, in_count, in_type, to, out_count, out_type, comm, request...);
  };
  const auto sources = [&](const group& all) { return parts{{0, MPI_Count{all.size()} * in_count, in_type}}; };
  const auto targets = [&](const group& all) { return parts{{0, MPI_Count{all.size()} * out_count, out_type}}; };
  const auto sent = [&] { return sources(group(comm)); };
  const auto received = [&] { return targets(group(comm)); };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  return among_all(in, sources, out, targets, comm, call, request...);
}

// Also with a type for each rank: then `Type` is an array and the offsets are bytes.
template <auto Pmpi, class Count, class Offset, class Type, class... Request>
int all_to_all_v(const void* in, const Count* in_counts, const Offset* in_offsets, Type in_type, void* out,
                 const Count* out_counts, const Offset* out_offsets, Type out_type, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* from, void* to) {
    return Pmpi(from, in_counts, in_offsets, in_type, to, out_counts, out_offsets, out_type, comm, request...);
  };
  const auto sources = [&](const group& all) { return blocks(all.size(), in_counts, in_offsets, in_type); };
  const auto targets = [&](const group& all) { return blocks(all.size(), out_counts, out_offsets, out_type); };
  const auto sent = [&] { return sources(group(comm)); };
  const auto received = [&] { return targets(group(comm)); };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  return among_all(in, sources, out, targets, comm, call, request...);
}

// ---- Reductions: MPI's CPU code computes on the stand-ins ---------------------------------------------------------------

template <auto Pmpi, class Count, class... Request>
int reduce(const void* in, void* out, Count count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
           Request... request) {
  const auto call = [&](const void* from, void* to) { return Pmpi(from, to, count, type, op, root, comm, request...); };
  const auto result = [&](int) { return parts{{0, count, type}}; };
  const auto sent = [&] { return significant(group(comm).gives_or_gets(root), {{0, count, type}}); };
  const auto received = [&] { return at_root(comm, root, result); };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  return to_root(in, {0, count, type}, out, result, root, comm, call, request...);
}

// Allreduce, Scan, Exscan. The first rank's result of an Exscan is not written: its stand-in holds what was there.
template <auto Pmpi, bool SomeGetNothing, class Count, class... Request>
int reduce_for_all(const void* in, void* out, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, Request... request) {
  const auto call = [&](const void* from, void* to) { return Pmpi(from, to, count, type, op, comm, request...); };
  const auto sent = [&] { return parts{{0, count, type}}; };
  const auto received = [&] { return parts{{0, count, type}}; };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  const auto prepare = [&](record& made) {
    if (const int code = take_source(made.send, in, {{0, count, type}}); code != MPI_SUCCESS) return code;
    return take_target(made.receive, out, {{0, count, type}}, SomeGetNothing || in == MPI_IN_PLACE);
  };
  return collective(comm, prepare, call, request...);
}

// With MPI_IN_PLACE the receive buffer holds the input of all ranks, and the result of this one at its beginning.
template <class Call, class... Request>
int reduce_and_scatter(const void* in, void* out, MPI_Count all_elements, MPI_Count own, MPI_Datatype type, MPI_Comm comm,
                       Call call, Request... request) {
  const auto prepare = [&](record& made) {
    const bool in_place = in == MPI_IN_PLACE;
    if (const int code = take_source(made.send, in, {{0, all_elements, type}}); code != MPI_SUCCESS) return code;
    const int code = take_target(made.receive, out, {{0, in_place ? all_elements : own, type}}, in_place);
    MPI_Count bytes = 0;
    PMPI_Type_size_x(type, &bytes);
    made.receive.limit_store(static_cast<std::size_t>(bytes * own));
    return code;
  };
  return collective(comm, prepare, call, request...);
}

template <auto Pmpi, class Count, class... Request>
int reduce_scatter(const void* in, void* out, const Count* counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   Request... request) {
  const auto call = [&](const void* from, void* to) { return Pmpi(from, to, counts, type, op, comm, request...); };
  const auto sum_of = [&] {  // on an intercommunicator the counts are of the own group
    int n = 0;
    PMPI_Comm_size(comm, &n);
    return std::accumulate(counts, counts + n, MPI_Count{0});
  };
  const auto sent = [&] { return parts{{0, sum_of(), type}}; };
  const auto received = [&] { return parts{{0, in == MPI_IN_PLACE ? sum_of() : counts[group(comm).rank()], type}}; };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  const MPI_Count sum = sum_of();
  const int rank = group(comm).rank();
  return reduce_and_scatter(in, out, sum, counts[rank], type, comm, call, request...);
}

template <auto Pmpi, class Count, class... Request>
int reduce_scatter_block(const void* in, void* out, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                         Request... request) {
  const auto call = [&](const void* from, void* to) { return Pmpi(from, to, count, type, op, comm, request...); };
  const auto all_ranks = [&] {
    int n = 0;
    PMPI_Comm_size(comm, &n);
    return n;
  };
  const auto sent = [&] { return parts{{0, MPI_Count{all_ranks()} * count, type}}; };
  const auto received = [&] { return parts{{0, MPI_Count{in == MPI_IN_PLACE ? all_ranks() : 1} * count, type}}; };
  if (!concerns(in, sent) && !concerns(out, received)) [[likely]]
    return call(in, out);
  const int n = all_ranks();
  return reduce_and_scatter(in, out, MPI_Count{n} * count, count, type, comm, call, request...);
}

}  // namespace pl::mpi
