// SPDX-License-Identifier: Apache-2.0
// Shared parts of all collective operations: who sends and receives what, and the MPI call between the copies.
#pragma once

#include "compat/mpi/guarded.hpp"

namespace pl::mpi {

using parts = std::vector<part>;

// The communicator as a rooted operation sees it.
class group {
 public:
  explicit group(MPI_Comm comm);
  // Ranks that have a block in a gathered buffer.
  int size() const noexcept { return size_; }
  int rank() const noexcept { return rank_; }
  bool is_inter() const noexcept { return is_inter_; }
  bool is_root(int root) const noexcept { return is_inter_ ? root == MPI_ROOT : root == rank_; }
  // On an intercommunicator the root's own group does not take part.
  bool gives_or_gets(int root) const noexcept { return !is_inter_ || root >= 0; }

 private:
  int rank_ = 0, size_ = 0, is_inter_ = 0;
};

template <class Count, class Offset>
parts blocks(int n, const Count* counts, const Offset* offsets, MPI_Datatype type) {
  MPI_Aint lower = 0, extent = 0;
  if (type != type_null()) PMPI_Type_get_extent(type, &lower, &extent);
  parts out;
  for (int i = 0; i < n; ++i) out.push_back({static_cast<MPI_Aint>(offsets[i]) * extent, counts[i], type});
  return out;
}

template <class Count, class Offset>
parts blocks(int n, const Count* counts, const Offset* offsets, const MPI_Datatype* types) {
  parts out;
  for (int i = 0; i < n; ++i) out.push_back({static_cast<MPI_Aint>(offsets[i]), counts[i], types[i]});
  return out;
}

// Whether a buffer argument is device memory. With MPI_BOTTOM (and the null pointers of ranks on which an argument has
// no meaning) `significant` returns the parts that count on this rank.
template <class Significant>
bool concerns(const void* buffer, Significant significant) {
  if (!driver_is_there() || buffer == MPI_IN_PLACE) return false;
  if (buffer != MPI_BOTTOM) [[likely]]
    return detail::query_driver(buffer);
  return any_on_device(significant());
}

// Attaches the buffer that MPI reads, and the one it writes. With MPI_IN_PLACE it reads the receive buffer.
int take_source(staged& data, const void* buffer, const parts& blocks);
int take_target(staged& data, void* buffer, const parts& blocks, bool is_source_too);

// How many blocks each rank sends and receives in an operation among all ranks, and among neighbours of a topology.
struct all_ranks {
  static constexpr bool some_get_nothing = false;
  static int outgoing(MPI_Comm comm) { return group(comm).size(); }
  static int incoming(MPI_Comm comm) { return group(comm).size(); }
};
struct neighbours {
  static constexpr bool some_get_nothing = true;  // a place beside the edge of a grid
  static int outgoing(MPI_Comm comm);
  static int incoming(MPI_Comm comm);
};

// The request among the last arguments of an operation: a persistent one has an info before it.
inline MPI_Request* request_among(MPI_Request* request) { return request; }
inline MPI_Request* request_among(MPI_Info, MPI_Request* request) { return request; }

// `prepare` fills in the record, `call` gets the pointers for MPI. With a request, the copy back waits for its
// completion, and a persistent one is copied at each start too.
template <class Prepare, class Call, class... Request>
int collective(MPI_Comm comm, Prepare prepare, Call call, Request... request) {
  return guarded(comm, [&] {
    auto made = std::make_unique<record>();
    made->operation = record::kind::collective;
    constexpr bool kPersistent = sizeof...(Request) == 2;
    made->is_persistent = kPersistent;
    made->is_active = !kPersistent;
    if (const int code = prepare(*made); code != MPI_SUCCESS) return raise(comm, code);
    const int code = call(made->send.pointer(), made->receive.pointer());
    if (code != MPI_SUCCESS) return code;
    if constexpr (sizeof...(Request) == 0) {
      return unless(made->receive.store(), comm);
    } else {
      if (kPersistent) made->send.forget_device(), made->receive.forget_device();
      requests().put(*request_among(request...), std::move(made));
      return code;
    }
  });
}

}  // namespace pl::mpi
