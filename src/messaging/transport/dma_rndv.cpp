// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/dma_rndv.hpp"

#include <algorithm>
#include <cerrno>

#include "messaging/live_messages.hpp"
#include "messaging/rndv.hpp"

namespace pl::messaging {
namespace {

// Limit of one list. Further lists follow while it is being copied.
constexpr std::size_t kListMessages = 64;
// CUDA's copies within a GPU use its multiprocessors, which are faster than the copy engines. But they first need a context
// switch of the GPU (two processes on one H100: 4 MiB 15 us with channels, 151 us with CUDA; windows of 256 MiB 502 GB/s,
// 731 GB/s).
constexpr std::uint64_t kMaxOnOneGpu = 128u << 20;
constexpr unsigned kPollsBetweenChecks = 256;

}  // namespace

dma_rndv::dma_rndv(rendezvous& owner) : transport(owner, true), memories_(context_.cuda, context_.gpus) {}

void dma_rndv::offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) {
  if (!context_.options.use_channels || !gpu) return;
  auto made = memories_.hand_over(*gpu, {send.range.address, send.bytes});
  if (!made) return;
  rts.fd_memory_id = made->id;
  rts.handed = made->place;
  rts.pointer = send.range.address;
  send.transfer->handed = std::move(made->memory);
}

bool dma_rndv::start_receive(operation& receive, const rts_body& rts) {
  if (rts.fd_memory_id == 0 || !context_.options.use_channels || !receive.range.is_device) return false;
  const auto info = receive.range.device.device_ordinal >= 0 ? std::optional(receive.range.device)
                                                             : cu::find_device_memory(*context_.cuda, receive.range.address);
  if (!info) return false;
  const copy::memory_exchange::owner exporter{receive.peer, context_.peer(receive.peer).pid, rts.fd_memory_id, rts.handed};
  auto pull = memories_.prepare(exporter, rts.pointer, *info, receive.range.address, receive.moved);
  if (!pull) return false;
  if (!pull->source->is_on_peer && receive.moved > kMaxOnOneGpu && rts.has_ipc && context_.options.use_ipc) return false;
  receive.transfer->slice = dma_transfer{*std::move(pull), {}};
  ++context_.counts.dma;
  g_live_dma.add(receive.transfer->wanted);
  enter(receive);
  ready_.push_back(&receive);
  // More copies may follow in the packets that are being read, but do not wait for them while the engine is idle.
  if (ready_.size() == kListMessages || !channel_.is_reading()) submit_ready();
  return true;
}

void dma_rndv::submit_ready() {
  const auto ready = std::exchange(ready_, {});
  const auto is_alike = [](const operation* one, const operation* other) {
    const auto &a = slice_of<dma_transfer>(*one).pull, &b = slice_of<dma_transfer>(*other).pull;
    return a.queues == b.queues && a.path() == b.path();
  };
  for (std::size_t first = 0, end = 0; first < ready.size(); first = end) {
    while (end < ready.size() && is_alike(ready[first], ready[end])) ++end;
    const auto list = std::span(ready).subspan(first, end - first);
    if (status given = submit_list(list); !given)
      for (operation* const each : list) each->transfer->fail(given.code(), given.error().message);
  }
}

status dma_rndv::submit_list(std::span<operation* const> list) {
  auto& first = slice_of<dma_transfer>(*list[0]).pull;
  const auto way = first.path();
  std::vector<dma::block> blocks = std::move(first.blocks);
  for (operation* const each : list.subspan(1)) {
    const auto& more = slice_of<dma_transfer>(*each).pull.blocks;
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
  if (++polls_ % kPollsBetweenChecks == 0) check_failures();
  for (operation* current = moving_.first(); current != nullptr;) {
    operation* const next = moving_.next(current);
    advance(*current);
    current = next;
  }
}

// Stops a channel that the GPU has ended, or that does not answer. Afterwards it no longer accesses memory.
void dma_rndv::check_failures() {
  for (operation* op = moving_.first(); op != nullptr; op = moving_.next(op)) {
    auto& slice = slice_of<dma_transfer>(*op);
    auto* const channel = slice.queued.channel.get();
    if (channel == nullptr || op->transfer->code != 0 || channel->is_done(slice.queued.number)) continue;
    channel->ring();  // in case the engine has missed a doorbell; otherwise polling could wait for ever
    auto reason = channel->fault();
    if (!reason && watches_[channel].is_stalled(channel->completed(), copy::time_limit_ns(op->transfer->wanted)))
      reason = failure{ETIMEDOUT, "the GPU's copy engine does not answer"};
    if (!reason) continue;
    slice.pull.queues->drop(slice.queued.channel);
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

// Copies of the engine end, even after the death of the peer, because its memory stays imported.
bool dma_rndv::abort(operation& op, const abort_reason& reason) {
  if (reason.cause == abort_cause::peer_lost) return false;
  op.transfer->is_revoked = true;
  if (reason.cause == abort_cause::revoked && !ready_.empty()) submit_ready();
  return false;
}

}  // namespace pl::messaging
