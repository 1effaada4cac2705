// SPDX-License-Identifier: Apache-2.0
// NCCL as the machine has it: libnccl.so.2 as PEERLANE_NCCL_LIBRARY names it, else as the loader finds it.
#pragma once

#include <cstddef>

#include "cuda/driver_table.hpp"
#include "messaging/bootstrap/bootstrap.hpp"

namespace pl::p2p {

struct nccl_communicator;

// Passed by value, as NCCL's header has it.
struct nccl_id {
  char bytes[128];
};

// Values of NCCL's enumerations.
namespace nccl_type {
enum : int { uint8 = 1, int32 = 2, float16 = 6, float32 = 7, float64 = 8, bfloat16 = 9 };
}
inline constexpr int kNcclSum = 0;

struct nccl_table {
  int (*GetVersion)(int* version);
  int (*GetUniqueId)(nccl_id* id);
  int (*CommInitRank)(nccl_communicator** comm, int ranks, nccl_id id, int rank);
  int (*CommDestroy)(nccl_communicator* comm);
  int (*CommGetAsyncError)(nccl_communicator* comm, int* error);
  int (*GroupStart)();
  int (*GroupEnd)();
  int (*Send)(const void* data, std::size_t count, int type, int peer, nccl_communicator* comm, cu::stream_t stream);
  int (*Recv)(void* data, std::size_t count, int type, int peer, nccl_communicator* comm, cu::stream_t stream);
  int (*AllReduce)(const void* source, void* destination, std::size_t count, int type, int op, nccl_communicator* comm,
                   cu::stream_t stream);
  int (*ReduceScatter)(const void* source, void* destination, std::size_t block_count, int type, int op,
                       nccl_communicator* comm, cu::stream_t stream);
  int (*AllGather)(const void* source, void* destination, std::size_t block_count, int type, nccl_communicator* comm,
                   cu::stream_t stream);
  const char* (*GetErrorString)(int code);

  // Throws tools::tool_failure with the call's name and NCCL's words.
  void check(int code, const char* action) const;
};

// Throws tools::tool_failure, with what to install, if there is none. `has_collectives`: they are wanted too; they are
// null otherwise.
nccl_table load_nccl(bool has_collectives = false);
// Collective. Rank 0's new id.
nccl_id agree_on_nccl_id(const nccl_table& nccl, messaging::bootstrap& group);

}  // namespace pl::p2p
