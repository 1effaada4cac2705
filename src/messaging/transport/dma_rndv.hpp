// SPDX-License-Identifier: Apache-2.0
// DMA channels: the receiver's copy engine reads the message in the sender's GPU memory, on the same GPU or on another one.
// No CUDA call and no turn of the GPU's between processes; also memory that CUDA IPC does not export.
//
//   sender                                      receiver
//   hands over the memory object, once     -->  imports it for its own channels, once
//   RTS: which object, where in it              copies that can start at the same time are one list of the engine
//                                         <--   ATS
//
// What is imported stays until it is the least recently used of kMaxImported, and its exporter's memory is not returned
// before that: as with memory that CUDA IPC has opened.
//
// Owns: what this process has handed over and imported, and the copies under way.
// Threads: as transport.hpp. Errors: those of the channel, which end the messages under way in it; where memory cannot be
// handed over or reached the next transport takes the message.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "copy/channel_memory.hpp"
#include "copy/gpu_queues.hpp"
#include "copy/patience.hpp"
#include "messaging/handed_memory.hpp"
#include "messaging/transport/transport.hpp"

namespace pl::messaging {

// Another process's memory object, bound for one GPU's channels.
struct imported_memory {
  struct piece {
    std::uint64_t begin = 0;  // the owner's address
    dma::region bound;
  };
  std::vector<piece> pieces;  // none: it cannot be had
  bool is_on_peer = false;    // another GPU's
  std::uint64_t last_use = 0;
};

// Its slice of a transfer's state, at the receiver.
struct dma_transfer {
  std::shared_ptr<imported_memory> source;
  copy::gpu_queues* queues = nullptr;
  std::vector<copy::channel_memory::piece> local;
  std::vector<dma::block> blocks;  // until they are queued
  copy::gpu_queues::ticket queued;
};

class dma_rndv final : public transport {
 public:
  explicit dma_rndv(rendezvous& owner) : transport(owner, true) {}
  void offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) override;
  bool start_receive(operation& receive, const rts_body& rts) override;
  void advance() override;
  bool abort(operation& op, const abort_reason& reason) override;
  void forget(int rank) override;
  // Why the last message went another way; empty: none had to.
  const std::string& refusal() const noexcept { return refusal_; }

 private:
  static constexpr std::size_t kMaxImported = 32, kMaxHanded = 256;
  // The channels of a GPU of this process, and its memory as they see it.
  struct route {
    std::shared_ptr<copy::gpu_queues> queues;  // null: there are none
    std::unique_ptr<copy::channel_memory> local;
  };
  struct handed {
    std::uint64_t id = 0, probe = 0, last_use = 0;
    std::shared_ptr<const handed_memory> memory;  // null: it cannot be handed over
  };
  using handed_key = std::tuple<unsigned long long, unsigned long long, std::uint64_t>;  // buffer, block, begin
  using import_key = std::tuple<int, std::uint64_t, int>;                                // rank, its number, our GPU

  void refuse(const char* what, const failure& reason);
  route* route_to(int device_ordinal);
  const handed* hand_over(const cu::pointer_info& gpu, address_range object);
  void make_room_for_handed();
  std::shared_ptr<imported_memory> import(int rank, const rts_body& rts, int device_ordinal, const route& way);
  static bool add_blocks(dma_transfer& slice, std::uint64_t source, std::uint64_t bytes);
  void submit_ready();
  status submit_list(std::span<operation* const> list);
  void advance(operation& op);
  void look_for_failures();

  std::map<int, route> routes_;  // by device
  std::map<handed_key, handed> handed_;
  std::map<import_key, std::shared_ptr<imported_memory>> imported_;
  std::vector<operation*> ready_;  // of those under way, the ones that have not been queued
  std::uint64_t uses_ = 0, ids_ = 0;
  unsigned polls_ = 0;
  std::map<const dma::channel*, copy::stall_watch> watches_;
  std::string refusal_;
};

}  // namespace pl::messaging
