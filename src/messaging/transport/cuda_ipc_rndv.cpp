// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/cuda_ipc_rndv.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include "copy/host_memory.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/rndv.hpp"

namespace pl::messaging {
namespace {

// The link idles for 5 us between two lists, on any streams (two H200, windows of 64 messages of 8 MiB: lists of 8 MiB 327
// GB/s, of 32 MiB 367, of 128 MiB 376, all in one 383).
constexpr std::size_t kListBytes = 128 << 20;
constexpr std::size_t kListPieces = 16;  // 15 us in the driver, while the link idles
// Up to here the copy kernel's 100 GB/s over NVLink cost less than the start of a copy engine.
constexpr std::size_t kMaxSingle = 512 << 10;
// One worker of the copy kernel reads 12 GB/s over NVLink: from here on all workers together are faster.
constexpr std::size_t kManyWorkersFrom = 32 << 10;
constexpr unsigned kManyWorkers = 8;

}  // namespace

cuda_ipc_rndv::cuda_ipc_rndv(rendezvous& owner) : transport(owner, true), cache_(owner.context().cuda) {}

void cuda_ipc_rndv::offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) {
  if (!context_.options.use_ipc || !gpu || send.bytes < context_.limits.ipc_from) return;
  usual_device_ = gpu->device_ordinal;
  const auto handle = cache_.export_handle(*gpu);
  if (!handle) return;
  rts.has_ipc = true;
  rts.ipc = *handle;
  rts.buffer_id = gpu->buffer_id;
  rts.ipc_offset = send.range.address - gpu->allocation.begin;
}

bool cuda_ipc_rndv::suits(const operation& receive, const rts_body& rts) const {
  if (!rts.has_ipc || !context_.options.use_ipc || !context_.buffers.has_gpu()) return false;
  const auto& limits = context_.limits;
  const std::size_t smallest = std::max(receive.range.is_device ? limits.ipc_from : limits.ipc_to_host_from,
                                        context_.gpu_use.is_any_shared() ? limits.shared_gpu_cpu_limit + 1 : 0);
  if (!rts.has_ring) return true;
  return receive.moved >= smallest && (receive.range.is_device || !is_better_by_ring(receive));
}

// Pageable host memory: several threads empty the ring faster than the planner copies from the sender's memory. One thread
// does not (H200, windows of 4 MiB: 36 GB/s by four threads and 30 by two, 21 by IPC; 9 by one thread, 11 by IPC).
bool cuda_ipc_rndv::takes_ring_to_pageable() const {
  return context_.options.ipc_threshold == 0 && context_.copy_threads() > 1;
}

bool cuda_ipc_rndv::is_better_by_ring(const operation& receive) const {
  return takes_ring_to_pageable() &&
         !copy::inspect_host(*context_.cuda, copy::host_pointer(receive.range.address), receive.moved).is_pinned;
}

// Any GPU can copy to host memory. A GPU that this process does not use would need a new context.
int cuda_ipc_rndv::device_for_host() const {
  cu::context_t current = nullptr;
  cu::device_t device = -1;
  const bool has_one = context_.cuda->cuCtxGetCurrent(&current) == cu::error_code::success && current != nullptr &&
                       context_.cuda->cuCtxGetDevice(&device) == cu::error_code::success;
  return has_one ? device : usual_device_;
}

bool cuda_ipc_rndv::start_receive(operation& receive, const rts_body& rts) {
  if (!suits(receive, rts)) return false;
  auto& state = *receive.transfer;
  const bool is_to_device = receive.range.is_device;
  if (is_to_device) usual_device_ = state.device_ordinal;
  const int device = is_to_device ? usual_device_ : device_for_host();
  const auto opened = cache_.open(receive.peer, rts.buffer_id, rts.ipc, device);
  if (!opened) return false;
  auto& slice = state.slice.emplace<cuda_ipc_transfer>();
  slice.source = (*opened)->base + rts.ipc_offset;
  // The planner copies to host memory of any kind.
  if (!is_to_device && !begin_by_planner(receive)) return false;
  ++context_.counts.ipc;
  g_live_ipc.add(state.wanted);
  slice.opened = *opened;
  ++slice.opened->holders;
  enter(receive);
  if (!is_to_device) return true;
  ready_.push_back(&receive);
  ready_bytes_ += receive.moved;
  // More copies may follow in the packets that are being read, but do not wait for them while the link is idle.
  const bool is_enough = ready_bytes_ >= kListBytes || ready_.size() == kListPieces;
  if (is_enough || (!channel_.is_reading() && queued_copies_ == 0)) submit_copies();
  return true;
}

bool cuda_ipc_rndv::begin_by_planner(operation& receive) {
  auto& slice = slice_of<cuda_ipc_transfer>(receive);
  const auto direction = receive.range.is_device ? copy::direction::on_device : copy::direction::to_host;
  const copy::transfer transfer{direction, receive.range.address, slice.source, receive.moved};
  copy::planner::async_options wanted;
  if (receive.range.is_device && receive.moved >= kManyWorkersFrom) wanted.least_workers = kManyWorkers;
  auto begun = context_.buffers.planner()->begin(std::span(&transfer, 1), wanted);
  if (!begun) return false;
  slice.pending = *std::move(begun);
  return true;
}

// Submits all ready copies in lists.
void cuda_ipc_rndv::submit_copies() {
  const auto ready = std::exchange(ready_, {});
  ready_bytes_ = 0;
  const bool is_alone =
      ready.size() == 1 && queued_copies_ == 0 && ready[0]->moved <= kMaxSingle && !context_.gpu_use.is_any_shared();
  queued_copies_ += ready.size();
  if (is_alone && begin_by_planner(*ready[0])) return;
  const auto streams_of = [](const operation* op) { return slice_of<cuda_ipc_transfer>(*op).opened->streams; };
  for (std::size_t first = 0; first < ready.size();) {
    std::size_t end = first, bytes = 0;
    const auto* const streams = streams_of(ready[first]);
    while (end < ready.size() && end - first < kListPieces && bytes < kListBytes && streams_of(ready[end]) == streams)
      bytes += ready[end++]->moved;
    submit_list(std::span(ready).subspan(first, end - first));
    first = end;
  }
}

void cuda_ipc_rndv::submit_list(std::span<operation* const> list) {
  std::array<copy::transfer, kListPieces> copies;
  for (std::size_t i = 0; i < list.size(); ++i)
    copies[i] = {copy::direction::on_device, list[i]->range.address, slice_of<cuda_ipc_transfer>(*list[i]).source,
                 list[i]->moved};
  auto queued = slice_of<cuda_ipc_transfer>(*list[0]).opened->streams->submit(std::span(copies).first(list.size()));
  if (queued) {
    for (operation* const each : list) slice_of<cuda_ipc_transfer>(*each).mark = *queued;
  } else if (list.size() > 1) {
    for (std::size_t i = 0; i < list.size(); ++i) submit_list(list.subspan(i, 1));  // finds the copy that failed
  } else {
    list[0]->transfer->code = queued.code();
    list[0]->transfer->message = queued.error().message;
  }
}

void cuda_ipc_rndv::advance() {
  if (!ready_.empty()) submit_copies();
  for (operation* current = moving_.first(); current != nullptr;) {
    operation* const next = moving_.next(current);
    advance(*current);
    current = next;
  }
}

void cuda_ipc_rndv::advance(operation& op) {
  auto& state = *op.transfer;
  auto& slice = slice_of<cuda_ipc_transfer>(op);
  if (slice.mark.engine != nullptr) {
    if (!slice.mark.is_reached()) return;
  } else if (state.code == 0) {
    const auto done = slice.pending.test();
    if (done && !*done) return;
    if (!done) state.fail(done.code(), done.error().message);
  }
  if (op.range.is_device) --queued_copies_;
  --slice.opened->holders;
  leave(op);
  if (state.is_revoked && state.code == 0) return rendezvous_.finish_receive(op, ECANCELED, kTakenBack);
  rendezvous_.finish_read(op, state.code, std::move(state.message));
}

// Copies of the GPU cannot be stopped. They end, even after the death of the peer, because its memory stays mapped.
bool cuda_ipc_rndv::abort(operation& op, const abort_reason& reason) {
  if (reason.cause == abort_cause::peer_lost) return false;
  op.transfer->is_revoked = true;
  if (reason.cause == abort_cause::revoked && !ready_.empty()) submit_copies();
  return false;
}

}  // namespace pl::messaging
