// SPDX-License-Identifier: Apache-2.0
// From host memory to GPU memory within a node: the receiver reads its sender's memory (process_vm_readv) into a few pinned
// chunks of its own, with several threads, and its copy engines take each chunk from there while the next one is read.
//
// One copy by the CPU instead of a ring's, no answer to wait for, and chunks of one size whatever a message has. Nobody but
// the receiver ever writes its memory, so a receive that fails leaves nothing that another process could still write.
#include <algorithm>
#include <atomic>

#include "calibration.hpp"
#include "engine.hpp"

namespace pl::link {
namespace {

constexpr std::size_t kShareBytes = 64 << 10;  // of a chunk, for one thread: some 5 us
constexpr unsigned kMostReaders = 4;           // threads, the caller included

}  // namespace

// False: there are no chunks, or no streams. Else the message is under way, maybe by a ring, or over already.
bool engine::start_staged(operation& to, const bulk_offer& offer) {
  auto& state = *to.transfer;
  const auto lanes = ipc_.lanes_on(state.device_ordinal);
  if (!lanes || !has_chunk(stages_[0], state.device_ordinal)) return false;
  if (readers_ == nullptr)
    readers_ = std::make_unique<copy::worker_pool>(copy::worker_pool::options{
        .helpers = std::min(memory_.planner()->threads(), kMostReaders) - 1, .cpus = copy::cpus_near_device(*cuda_, 0)});
  state.lanes = *lanes;
  state.source = offer.address;
  state.offer = offer;
  moving_.push_back(&to);
  if (pulls_++ == 0) {
    pull_budget_ = kPullAtOnce;
    advance_staged(to);
  }
  return true;
}

bool engine::has_chunk(stage& of, int device_ordinal) {
  if (of.chunk == nullptr) of.chunk = pinned_->take(device_ordinal);
  return of.chunk != nullptr;
}

void engine::end_stages() {
  for (auto& each : stages_) {
    if (each.of == nullptr || !each.end.is_reached()) continue;
    --std::exchange(each.of, nullptr)->transfer->staged;
    --stages_busy_;
  }
}

// The lowest free one, whose chunk is the likeliest to be in the CPU's cache. Null: all are busy.
engine::stage* engine::free_stage(int device_ordinal) {
  const auto found = std::find_if(stages_.begin(), stages_.end(), [](const stage& each) { return each.of == nullptr; });
  return found != stages_.end() && has_chunk(*found, device_ordinal) ? &*found : nullptr;
}

void engine::advance_staged(operation& of) {
  auto& state = *of.transfer;
  const auto has_more = [&] { return state.code == 0 && !state.is_unreadable && state.started != state.wanted; };
  while (has_more() && pull_budget_ != 0) {
    stage* const next = free_stage(state.device_ordinal);
    if (next == nullptr) break;
    fill_stage(*next, of);
  }
  if (has_more() || state.staged != 0) return;
  --pulls_;
  moving_.remove(&of);
  if (!state.is_unreadable || state.code != 0) return finish_receive(of, state.code, std::move(state.message));
  state.started = 0;
  start_ring(of, peer(of.peer), state.offer);
}

void engine::fill_stage(stage& next, operation& of) {
  auto& state = *of.transfer;
  auto& from = peer(of.peer);
  const std::size_t bytes = std::min<std::size_t>(pinned_->chunk_bytes(), state.wanted - state.started);
  const std::size_t shares = (bytes + kShareBytes - 1) / kShareBytes;
  pull_budget_ -= std::min(pull_budget_, bytes);
  std::atomic<int> first_code{0};
  readers_->run(kMostReaders, shares, [&](std::size_t share) {
    const std::size_t begin = share * kShareBytes;
    const int code = read_process(from.pid, state.source + state.started + begin, next.chunk + begin,
                                  std::min(kShareBytes, bytes - begin));
    int none = 0;
    if (code != 0) first_code.compare_exchange_strong(none, code, std::memory_order_relaxed);
  });
  state.is_unreadable = !judge_read(of, from, first_code.load(std::memory_order_relaxed));
  if (state.is_unreadable || state.code != 0) return;
  if (state.started == 0) ++counts_.pulled;
  const copy::transfer copy{copy::direction::to_device, of.at.address + state.started, copy::address_of(next.chunk), bytes};
  auto queued = state.lanes->submit(std::span(&copy, 1));
  if (!queued) {
    state.code = queued.code();
    state.message = queued.error().message;
    return;
  }
  next.of = &of;
  next.end = *queued;
  state.started += bytes;
  ++state.staged;
  ++stages_busy_;
}

}  // namespace pl::link
