// SPDX-License-Identifier: Apache-2.0
// GPU memory that processes of a node move between each other by DMA channels: the owner hands a memory object over
// once, a peer imports it once, and then reads any bytes of it into its own GPU's memory, on the same GPU or from
// another one.
//
//   owner                                   peer
//   offer = hand_over(bytes)          -->   pull = prepare(offer, destination)      blocks for the GPU's channels
//                                           pull.queues->copy or submit_settled
//
// Imported memory stays until it is the least recently used of kMaxImported, and its exporter's memory is not returned
// before that, as with memory opened by CUDA IPC. Handing memory over does not by itself keep it alive any longer.
//
// One thread at a time. If memory cannot be handed over or reached, calls return nothing, and refusal() says why.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "copy/channel_memory.hpp"
#include "copy/fd_memory.hpp"
#include "copy/gpu_queues.hpp"

namespace pl::copy {

// Another process's memory object, bound for one GPU's channels.
struct imported_memory {
  struct piece {
    std::uint64_t begin = 0;  // the owner's address
    dma::region bound;
  };
  std::vector<piece> pieces;  // empty: it cannot be imported
  bool is_on_peer = false;    // memory of another GPU
  std::uint64_t last_use = 0;
};

class memory_exchange {
 public:
  memory_exchange(const cu::driver_table* cuda, gpu_table& gpus) : cuda_(cuda), gpus_(gpus) {}

  // ---- The owner
  struct offer {
    std::uint64_t id = 0;  // of the memory object in this process
    fd_memory_location place;
    std::shared_ptr<const fd_memory> memory;  // to be kept until the peer has answered
  };
  std::optional<offer> hand_over(const cu::pointer_info& gpu, address_range bytes);

  // ---- A peer
  struct owner {
    int rank = -1;
    std::int32_t pid = 0;
    std::uint64_t id = 0;
    fd_memory_location place;
  };
  // A copy to this process's memory, which stays bound as long as this lives.
  struct pull {
    std::shared_ptr<imported_memory> source;
    std::shared_ptr<gpu_queues> queues;
    std::vector<channel_memory::piece> local;
    std::vector<dma::block> blocks;
    gpu_queues::path path() const { return source->is_on_peer ? gpu_queues::path::from_peer : gpu_queues::path::to_device; }
  };
  // `source`: the owner's address. `target`: the driver's information about `destination`.
  std::optional<pull> prepare(const owner& exporter, std::uint64_t source, const cu::pointer_info& target,
                              std::uint64_t destination, std::uint64_t bytes);
  void forget(int rank);

  // Why the last call returned nothing; empty if none did.
  const std::string& refusal() const noexcept { return refusal_; }

 private:
  static constexpr std::size_t kMaxImported = 32;
  static constexpr std::size_t kMaxFdMemories = 64;  // each takes two descriptors or more
  // The channels of a GPU of this process, and its memory as they see it.
  struct route {
    std::shared_ptr<gpu_queues> queues;  // null: there are none
    std::unique_ptr<channel_memory> local;
  };
  struct handed {
    std::uint64_t id = 0, probe = 0, last_use = 0;
    std::shared_ptr<const fd_memory> memory;  // null: it cannot be handed over
  };
  using fd_memory_key = std::tuple<unsigned long long, unsigned long long, std::uint64_t>;  // buffer, block, begin
  using import_key = std::tuple<int, std::uint64_t, int>;                                   // rank, its number, our GPU

  void refuse(const char* subject, const failure& reason);
  route* route_to(int device_ordinal);
  void make_room_for_fd_memory();
  std::shared_ptr<imported_memory> import(const owner& exporter, int device_ordinal, const route& way);
  static bool add_blocks(pull& made, std::uint64_t source, std::uint64_t bytes);

  const cu::driver_table* const cuda_;
  gpu_table& gpus_;
  std::map<int, route> routes_;  // by device
  std::map<fd_memory_key, handed> fd_memories_;
  std::map<import_key, std::shared_ptr<imported_memory>> imported_;
  std::uint64_t uses_ = 0, ids_ = 0;
  std::string refusal_;
};

}  // namespace pl::copy
