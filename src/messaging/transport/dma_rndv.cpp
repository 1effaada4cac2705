// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/dma_rndv.hpp"

#include <algorithm>
#include <cerrno>

#include "base/log.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/rndv.hpp"

namespace pl::messaging {
namespace {

// Of what is queued at once. Others follow while it moves.
constexpr std::size_t kListMessages = 64;
// CUDA's copies within a GPU use its multiprocessors, which move more than the engines; but a turn of the GPU's between two
// processes comes before (two processes on one H100: 4 MiB 15 us against 151, windows of 256 MiB 502 GB/s against 731).
constexpr std::uint64_t kMaxOnOneGpu = 128u << 20;
constexpr unsigned kPollsBetweenLooks = 256;

}  // namespace

void dma_rndv::refuse(const char* what, const failure& reason) {
  refusal_ = std::string(what) + ": " + reason.message;
  PL_LOG(debug, "messages by DMA channel: %s", refusal_.c_str());
}

// ---- The sender

void dma_rndv::offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) {
  if (!context_.options.use_channels || !gpu || gpu->buffer_id == 0) return;
  // A VMM reservation may hold several objects, of which the message must lie in one.
  address_range object = gpu->allocation;
  if (gpu->object.size_bytes != 0) {
    const std::uint64_t begin = std::max(object.begin, gpu->object.begin);
    object = {begin, std::min(object.end(), gpu->object.end()) - begin};
  }
  if (!object.contains({send.range.address, send.bytes})) return;
  const handed* const found = hand_over(*gpu, object);
  if (found == nullptr) return;
  rts.handed_id = found->id;
  rts.handed = found->memory->place();
  rts.pointer = send.range.address;
  send.transfer->handed = found->memory;
}

const dma_rndv::handed* dma_rndv::hand_over(const cu::pointer_info& gpu, address_range object) {
  const handed_key key{gpu.buffer_id, gpu.block_id, object.begin};
  if (const auto known = handed_.find(key); known != handed_.end()) {
    known->second.last_use = ++uses_;
    return known->second.memory != nullptr ? &known->second : nullptr;
  }
  if (handed_.size() >= kMaxHanded) make_room_for_handed();
  handed made{++ids_, object.begin, ++uses_, nullptr};
  if (auto space = context_.gpus.space()) {
    if (auto memory = handed_memory::make(**space, *context_.cuda, object))
      made.memory = std::make_shared<const handed_memory>(*std::move(memory));
    else refuse("GPU memory is not handed over", memory.error());
  } else {
    refuse("GPU memory is not handed over", space.error());
  }
  const handed& kept = handed_[key] = std::move(made);
  return kept.memory != nullptr ? &kept : nullptr;
}

// Memory that is gone, else the least recently used. Messages under way keep what they need.
void dma_rndv::make_room_for_handed() {
  std::erase_if(handed_, [&](const auto& each) {
    return !cu::is_still_buffer(*context_.cuda, each.second.probe, std::get<0>(each.first));
  });
  if (handed_.size() < kMaxHanded) return;
  handed_.erase(std::min_element(handed_.begin(), handed_.end(), [](const auto& one, const auto& other) {
    return one.second.last_use < other.second.last_use;
  }));
}

// ---- The receiver

dma_rndv::route* dma_rndv::route_to(int device_ordinal) {
  const auto [place, is_new] = routes_.try_emplace(device_ordinal);
  route& way = place->second;
  if (is_new) {
    auto queues = context_.gpus.find(*context_.cuda, device_ordinal);
    if (!queues) {
      refuse("no DMA channels", queues.error());
    } else {
      way.queues = *std::move(queues);
      const auto& source = way.queues->source();
      way.local = std::make_unique<copy::channel_memory>(*context_.cuda, source.space, source.addresses);
    }
  }
  return way.queues != nullptr ? &way : nullptr;
}

std::shared_ptr<imported_memory> dma_rndv::import(int rank, const rts_body& rts, int device_ordinal, const route& way) {
  const import_key key{rank, rts.handed_id, device_ordinal};
  if (const auto known = imported_.find(key); known != imported_.end()) {
    known->second->last_use = ++uses_;
    return known->second;
  }
  if (imported_.size() >= kMaxImported)
    imported_.erase(std::min_element(imported_.begin(), imported_.end(), [](const auto& one, const auto& other) {
      return one.second->last_use < other.second->last_use;
    }));
  auto made = std::make_shared<imported_memory>();
  made->last_use = ++uses_;
  auto pieces = fetch_handed_memory(context_.peer(rank).pid, rts.handed);
  if (!pieces) refuse("another process's GPU memory", pieces.error());
  for (std::size_t i = 0; pieces && i < pieces->size(); ++i) {
    const taken_piece& one = (*pieces)[i];
    auto bound = dma::import_region(way.queues->addresses(), one.region);
    if (!bound) {
      refuse("another process's GPU memory", bound.error());
      made->pieces.clear();
      break;
    }
    made->is_on_peer |= bound->kind() == rm::channel_objects::memory_kind::peer;
    made->pieces.push_back({one.begin, *std::move(bound)});
  }
  return imported_[key] = std::move(made);
}

// From the owner's address on: false if some of it was not imported.
bool dma_rndv::add_blocks(dma_transfer& slice, std::uint64_t source, std::uint64_t bytes) {
  constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 30;
  std::size_t local = 0;
  std::uint64_t local_done = 0;
  while (bytes != 0) {
    const auto& pieces = slice.source->pieces;
    const auto found = std::find_if(pieces.begin(), pieces.end(), [&](const imported_memory::piece& one) {
      return source >= one.begin && source - one.begin < one.bound.size_bytes();
    });
    if (found == pieces.end()) return false;
    const std::uint64_t inside = source - found->begin;
    const auto& target = slice.local[local];
    const std::uint64_t length =
        std::min({bytes, found->bound.size_bytes() - inside, target.size_bytes - local_done, kMaxBlockBytes});
    slice.blocks.push_back(
        {target.address + local_done, found->bound.address() + inside, static_cast<std::uint32_t>(length)});
    source += length;
    bytes -= length;
    local_done += length;
    if (local_done == target.size_bytes) ++local, local_done = 0;
  }
  return true;
}

bool dma_rndv::start_receive(operation& receive, const rts_body& rts) {
  if (rts.handed_id == 0 || !context_.options.use_channels || !receive.range.is_device) return false;
  auto info = receive.range.device.device_ordinal >= 0 ? std::optional(receive.range.device)
                                                       : cu::find_device_memory(*context_.cuda, receive.range.address);
  if (!info) return false;
  route* const way = route_to(info->device_ordinal);
  if (way == nullptr) return false;
  dma_transfer slice;
  slice.queues = way->queues.get();
  slice.source = import(receive.peer, rts, info->device_ordinal, *way);
  if (slice.source->pieces.empty()) return false;
  if (!slice.source->is_on_peer && receive.moved > kMaxOnOneGpu && rts.has_ipc && context_.options.use_ipc) return false;
  for (std::uint64_t done = 0; done < receive.moved;) {
    const std::uint64_t pointer = receive.range.address + done;
    if (done != 0 && !(info = cu::find_device_memory(*context_.cuda, pointer))) return false;
    auto piece = way->local->find_device(*info, pointer, receive.moved - done);
    if (!piece) {
      refuse("this process's GPU memory", piece.error());
      return false;
    }
    done += piece->size_bytes;
    slice.local.push_back(*std::move(piece));
  }
  if (!add_blocks(slice, rts.pointer, receive.moved)) return false;
  receive.transfer->slice = std::move(slice);
  ++context_.counts.dma;
  g_live_dma.add(receive.transfer->wanted);
  enter(receive);
  ready_.push_back(&receive);
  // More may follow in the packets that are being read. But nothing waits while the engine is idle.
  if (ready_.size() == kListMessages || !channel_.is_reading()) submit_ready();
  return true;
}

void dma_rndv::submit_ready() {
  const auto ready = std::exchange(ready_, {});
  const auto is_alike = [](const operation* one, const operation* other) {
    const auto &a = slice_of<dma_transfer>(*one), &b = slice_of<dma_transfer>(*other);
    return a.queues == b.queues && a.source->is_on_peer == b.source->is_on_peer;
  };
  for (std::size_t first = 0, end = 0; first < ready.size(); first = end) {
    while (end < ready.size() && is_alike(ready[first], ready[end])) ++end;
    const auto list = std::span(ready).subspan(first, end - first);
    if (status given = submit_list(list); !given)
      for (operation* const each : list) each->transfer->fail(given.code(), given.error().message);
  }
}

status dma_rndv::submit_list(std::span<operation* const> list) {
  using path = copy::gpu_queues::path;
  auto& first = slice_of<dma_transfer>(*list[0]);
  const path way = first.source->is_on_peer ? path::from_peer : path::to_device;
  std::vector<dma::block> blocks = std::move(first.blocks);
  for (operation* const each : list.subspan(1)) {
    const auto& more = slice_of<dma_transfer>(*each).blocks;
    blocks.insert(blocks.end(), more.begin(), more.end());
  }
  auto queued = blocks.size() == 1 ? first.queues->copy(way, blocks[0].destination, blocks[0].source, blocks[0].size_bytes)
                                   : first.queues->submit_settled(way, blocks);
  if (!queued) return queued.error();
  for (operation* const each : list) slice_of<dma_transfer>(*each).queued = *queued;
  return {};
}

void dma_rndv::advance() {
  if (!ready_.empty()) submit_ready();
  if (++polls_ % kPollsBetweenLooks == 0) look_for_failures();
  for (operation* current = moving_.first(); current != nullptr;) {
    operation* const next = moving_.next(current);
    advance(*current);
    current = next;
  }
}

// A channel that the GPU has ended, or that does not answer, is stopped: then it touches no memory any more.
void dma_rndv::look_for_failures() {
  for (operation* op = moving_.first(); op != nullptr; op = moving_.next(op)) {
    auto& slice = slice_of<dma_transfer>(*op);
    auto* const channel = slice.queued.channel.get();
    if (channel == nullptr || op->transfer->code != 0 || channel->is_done(slice.queued.number)) continue;
    channel->ring();  // who only looks must not wait for ever for a doorbell that the engine has missed
    auto reason = channel->fault();
    if (!reason && watches_[channel].is_stalled(channel->completed(), copy::patience_ns(op->transfer->wanted)))
      reason = failure{ETIMEDOUT, "the GPU's copy engine does not answer"};
    if (!reason) continue;
    channel->stop();
    slice.queues->forget(slice.queued.channel);
    op->transfer->fail(reason->code, "the DMA channel of a message: " + reason->message);
  }
}

void dma_rndv::advance(operation& op) {
  auto& state = *op.transfer;
  auto& slice = slice_of<dma_transfer>(op);
  if (state.code == 0 && !slice.queued.channel->is_done(slice.queued.number)) return;
  if (slice.queued.channel != nullptr) watches_.erase(slice.queued.channel.get());
  leave(op);
  if (state.is_revoked && state.code == 0) return rendezvous_.finish_receive(op, ECANCELED, kTakenBack);
  rendezvous_.finish_read(op, state.code, std::move(state.message));
}

// The engine's copies end by themselves, also after the death of the peer, whose memory stays imported.
bool dma_rndv::abort(operation& op, const abort_reason& reason) {
  if (reason.cause == abort_cause::peer_lost) return false;
  op.transfer->is_revoked = true;
  if (reason.cause == abort_cause::revoked && !ready_.empty()) submit_ready();
  return false;
}

void dma_rndv::forget(int rank) {
  std::erase_if(imported_, [&](const auto& each) { return std::get<0>(each.first) == rank; });
}

}  // namespace pl::messaging
