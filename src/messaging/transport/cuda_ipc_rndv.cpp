// SPDX-License-Identifier: Apache-2.0
// CUDA IPC: the receiver copies straight from the sender's GPU memory.
//
// From 64 KiB to some MiB the bottleneck is not the link but the receiver's CPU (the driver takes 2 us to queue a copy,
// and 1 us more for the word that signals its end) and the pause between two copies of a stream (4 us). So copies that
// can start at the same time are queued as one list by one call with one such word, at half the cost for each, and lists
// take turns on several streams. A single small message uses the copy planner's copy kernel, which starts faster than a
// copy engine but is slower with many messages.
#include <algorithm>

#include "messaging/live_messages.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::messaging {
namespace {

// The link idles for 5 us between two lists, on any streams (two H200, windows of 64 messages of 8 MiB: lists of 8 MiB 327
// GB/s, of 32 MiB 367, of 128 MiB 376, all in one 383).
constexpr std::size_t kListBytes = 128 << 20;
constexpr std::size_t kListPieces = 16;  // 15 us in the driver, while the link idles
// Up to here the copy kernel's 100 GB/s over NVLink cost less than the start of a copy engine.
constexpr std::size_t kMaxAlone = 512 << 10;
// One worker of the copy kernel reads 12 GB/s over NVLink: from here on all workers together are faster.
constexpr std::size_t kManyWorkersFrom = 32 << 10;
constexpr unsigned kManyWorkers = 8;

}  // namespace

bool messenger_core::start_cuda_ipc(operation& receive, const rts_body& rts) {
  auto& state = *receive.transfer;
  const auto opened = ipc_.open(receive.peer, rts.buffer_id, rts.ipc, receive.range.is_device ? state.device_ordinal : 0);
  if (!opened) return false;
  state.source = (*opened)->base + rts.ipc_offset;
  // The planner copies to host memory of any kind.
  if (!receive.range.is_device && !begin_by_planner(receive)) return false;
  ++context_.counts.ipc;
  g_live_ipc.add(state.wanted);
  state.ipc_source = *opened;
  ++state.ipc_source->holders;
  moving_.push_back(&receive);
  if (!receive.range.is_device) return true;
  ready_.push_back(&receive);
  ready_bytes_ += receive.moved;
  // More may follow in the packets that are being read. But nothing waits while the link is idle.
  const bool is_enough = ready_bytes_ >= kListBytes || ready_.size() == kListPieces;
  if (is_enough || (!channel_.is_reading() && copies_under_way_ == 0)) submit_copies();
  return true;
}

bool messenger_core::begin_by_planner(operation& receive) {
  auto& state = *receive.transfer;
  const auto way = receive.range.is_device ? copy::direction::on_device : copy::direction::to_host;
  const copy::transfer transfer{way, receive.range.address, state.source, receive.moved};
  copy::planner::async_options wanted;
  if (receive.range.is_device && receive.moved >= kManyWorkersFrom) wanted.least_workers = kManyWorkers;
  auto begun = context_.buffers.planner()->begin(std::span(&transfer, 1), wanted);
  if (!begun) return false;
  state.ipc_copy = *std::move(begun);
  return true;
}

// Submits all ready copies in lists.
void messenger_core::submit_copies() {
  const auto ready = std::exchange(ready_, {});
  ready_bytes_ = 0;
  const bool is_alone =
      ready.size() == 1 && copies_under_way_ == 0 && ready[0]->moved <= kMaxAlone && !context_.is_gpu_shared;
  copies_under_way_ += ready.size();
  if (is_alone && begin_by_planner(*ready[0])) return;
  for (std::size_t first = 0; first < ready.size();) {
    std::size_t end = first, bytes = 0;
    const auto* const streams = ready[first]->transfer->ipc_source->streams;
    while (end < ready.size() && end - first < kListPieces && bytes < kListBytes &&
           ready[end]->transfer->ipc_source->streams == streams)
      bytes += ready[end++]->moved;
    submit_list(std::span(ready).subspan(first, end - first));
    first = end;
  }
}

void messenger_core::submit_list(std::span<operation* const> list) {
  std::array<copy::transfer, kListPieces> copies;
  for (std::size_t i = 0; i < list.size(); ++i)
    copies[i] = {copy::direction::on_device, list[i]->range.address, list[i]->transfer->source, list[i]->moved};
  auto queued = list[0]->transfer->ipc_source->streams->submit(std::span(copies).first(list.size()));
  if (queued) {
    for (operation* const each : list) each->transfer->ipc_mark = *queued;
  } else if (list.size() > 1) {
    for (std::size_t i = 0; i < list.size(); ++i) submit_list(list.subspan(i, 1));  // which of them it was
  } else {
    list[0]->transfer->code = queued.code();
    list[0]->transfer->message = queued.error().message;
  }
}

void messenger_core::advance_cuda_ipc(operation& op) {
  auto& state = *op.transfer;
  if (state.ipc_mark.engine != nullptr) {
    if (!state.ipc_mark.is_reached()) return;
  } else if (state.code == 0) {
    const auto done = state.ipc_copy.test();
    if (done && !*done) return;
    if (!done) state.code = done.code(), state.message = done.error().message;
  }
  if (op.range.is_device) --copies_under_way_;
  --state.ipc_source->holders;
  moving_.remove(&op);
  if (state.is_revoked && state.code == 0) return finish_receive(op, ECANCELED, kTakenBack);
  finish_read(op, state.code, std::move(state.message));
}

}  // namespace pl::messaging
