// SPDX-License-Identifier: Apache-2.0
#include "triggered/channel.hpp"

#include <sched.h>

#include "base/clock.hpp"
#include "base/live_counter.hpp"
#include "os/fork_guard.hpp"
#include "triggered/channel_core.hpp"
#include "triggered/channel_setup.hpp"
#include "triggered/context_parts.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::triggered {

namespace {
// For `peerlane top`.
live_counter g_live_channels{"streams.channels", live_kind::level};
live_pair g_live_puts{"streams.puts.count", "streams.puts.bytes"};
live_counter g_live_waits{"streams.waits.count"};

constexpr const char* kPeerLeft = "the peer has closed its end";

// Larger numbers would pass for poison, or, compared cyclically, for puts that have long arrived.
status check_sequence(std::uint64_t sequence) {
  if (sequence < kPoisonBit) return {};
  return failure{EINVAL, "there is no put " + std::to_string(sequence) + ": puts are counted from 1"};
}
}  // namespace

channel::channel(context& owner, std::shared_ptr<channel_core> core) : context_(&owner), core_(std::move(core)) {
  g_live_channels.add();
}

channel::~channel() {
  g_live_channels.add(-1);
  if (!check_process()) return;  // also: threads that hold it were not inherited
  is_ending_.store(true, std::memory_order_release);
  while (holders_.load(std::memory_order_acquire) != 0) sched_yield();
  context_->parts_->close(*this);
}

executor_kind channel::executor() const noexcept { return core_->kind.load(std::memory_order_acquire); }

// ---- On a stream

status channel::check_process() const {
  if (process_epoch() == context_->parts_->epoch) return {};
  return failure{EACCES, "the channel was inherited by fork(): it belongs to the parent"};
}

result<capture> channel::enter(cu::stream_t stream) {
  if (auto ours = check_process(); !ours) return ours.error();
  if (const int error = core_->error.load(std::memory_order_acquire); error != 0)
    return failure{error, core_->failure_reason()};
  if (executor_ == nullptr)
    if (auto done = ready(context_->parts_->options.connect_timeout); !done) return done.error();
  auto capture_state = capture_of(*context_->parts_->gpu.cuda, stream);
  if (capture_state && capture_state->id != 0 && !executor_->can_be_captured())
    return failure{ENOTSUP, std::string("the stream is being captured, and the ") + name_of(executor()) +
                                " executor cannot be part of a graph"};
  return capture_state;
}

// `queued`: includes the requested operation.
status channel::check(std::uint64_t queued, std::uint64_t retired) {
  if (queued - retired <= core_->options.most_queued) return {};
  return failure{EAGAIN, std::to_string(core_->options.most_queued) +
                             " operations of this channel are queued on streams that have not reached them: wait for some"};
}

result<std::uint64_t> channel::put_signal(cu::stream_t stream, const remote_window& window, std::uint64_t offset,
                                          cu::device_ptr source, std::size_t bytes) {
  const auto capture_state = enter(stream);
  if (!capture_state) return capture_state.error();
  if (window.rank != core_->peer)
    return failure{EINVAL, "the window belongs to rank " + std::to_string(window.rank) + ", the channel leads to rank " +
                               std::to_string(core_->peer)};
  if (offset > window.bytes || bytes > window.bytes - offset)
    return failure{ERANGE, std::to_string(bytes) + " bytes at " + std::to_string(offset) + " leave the window of " +
                               std::to_string(window.bytes) + " bytes"};
  if (window.address == 0 && executor_->kind() == executor_kind::peer && bytes != 0)
    return failure{ENOTSUP, "this GPU cannot reach the window; open the channel with the proxy executor"};
  if (core_->has_peer_left()) return failure{EPIPE, kPeerLeft};
  const auto sequence = core_->puts.load(std::memory_order_relaxed) + 1;
  put_request request{source, bytes, &window, offset, sequence, 0, -1};
  if (capture_state->id != 0) return put_captured(stream, request, *capture_state);
  if (auto room = check(sequence, core_->sent()); !room) return room.error();
  if (const auto depth = core_->options.depth; depth != 0 && sequence > depth) request.released = sequence - depth;
  if (auto done = executor_->put(stream, request); !done) return done.error();
  core_->puts.store(sequence, std::memory_order_release);
  g_live_puts.add(bytes);
  return sequence;
}

result<std::uint64_t> channel::signal(cu::stream_t stream) {
  const remote_window nothing{0, core_->peer, 0, 0};
  return put_signal(stream, nothing, 0, 0, 0);
}

result<std::uint64_t> channel::wait_signal(cu::stream_t stream) {
  const auto capture_state = enter(stream);
  if (!capture_state) return capture_state.error();
  if (capture_state->id != 0) return wait_captured(stream, *capture_state);
  if (auto done = wait_signal(stream, next_); !done) return done.error();
  return next_++;
}

status channel::wait_signal(cu::stream_t stream, std::uint64_t sequence) {
  const auto capture_state = enter(stream);
  if (!capture_state) return capture_state.error();
  if (capture_state->id != 0) return failure{EINVAL, "a captured wait is for the next captured put, no other"};
  if (sequence == 0) return failure{EINVAL, "there is no put 0: puts are counted from 1"};
  if (auto valid = check_sequence(sequence); !valid) return valid;
  if (auto possible = can_come(sequence); !possible) return possible;
  const auto number = core_->waits.load(std::memory_order_relaxed) + 1;
  if (auto room = check(number, core_->reached()); !room) return room;
  core_->set_target(number, sequence);
  if (auto done = queue_wait(stream, {offsetof(gpu_words, signal), offsetof(host_words, reached),
                                      offsetof(host_words, passed), sequence, number, number});
      !done)
    return done;
  core_->waits.store(number, std::memory_order_seq_cst);
  g_live_waits.add();
  executor_->wait_queued();
  return {};
}

status channel::can_come(std::uint64_t sequence) const {
  if (core_->can_come(sequence)) return {};
  return failure{EPIPE, std::string(kPeerLeft) + " after put " + std::to_string(core_->peer_last_put.load()) + ": put " +
                            std::to_string(sequence) + " will not come"};
}

status channel::queue_wait(cu::stream_t stream, const wait_request& wait) {
  const auto& words = *core_->words;
  auto& parts = *context_->parts_;
  auto flag = words.gpu(core_->index) + wait.flag;
  auto reached = words.host_on_gpu(core_->index) + wait.reached;
  auto value = wait.value, at_value = wait.reached_value;
  mem_ops ops(*parts.gpu.cuda, stream);
  if (!core_->waits_by_kernel) {
    ops.write64(reached, at_value).wait64(flag, value);
  } else {
    void* parameters[] = {&flag, &value, &reached, &at_value};
    const auto rc =
        parts.gpu.cuda->cuLaunchKernel(parts.methods.wait_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
    if (rc != cu::error_code::success) return cu::make_error(*parts.gpu.cuda, rc, "launch of the wait kernel");
  }
  if (!words.is_mapped()) ops.write64(words.host_on_gpu(core_->index) + wait.passed, wait.passed_value);
  return ops.submit();
}

status channel::release(cu::stream_t stream, std::uint64_t sequence) {
  const auto capture_state = enter(stream);
  if (!capture_state) return capture_state.error();
  if (auto valid = check_sequence(sequence); !valid) return valid;
  if (capture_state->id != 0) return release_captured(stream, sequence, *capture_state);
  if (core_->has_peer_left()) return {};  // nobody waits for it
  // Queued already. The word must not decrease: the peer may wait for what has been released.
  if (sequence <= core_->releases.load(std::memory_order_relaxed)) return {};
  if (auto done = executor_->acknowledge(stream, sequence); !done) return done;
  core_->releases.store(sequence, std::memory_order_release);
  return {};
}

// ---- In a capture

result<std::uint64_t> channel::put_counted(cu::stream_t stream, put_request request, const capture& capture_state) {
  const auto number = core_->graph->count_one(*context_->parts_->gpu.cuda, graph_slots::direction::put, capture_state);
  if (!number) return number;
  request.is_counted = true;
  request.depth = core_->options.depth;
  if (auto done = executor_->put(stream, request); !done) {
    core_->graph->undo_count(graph_slots::direction::put);
    return done.error();
  }
  return number;
}

result<std::uint64_t> channel::wait_counted(cu::stream_t stream, const capture& capture_state) {
  const auto& parts = *context_->parts_;
  const auto number = core_->graph->count_one(*parts.gpu.cuda, graph_slots::direction::wait, capture_state);
  if (!number) return number;
  std::uint64_t counter = core_->words->gpu(core_->index) + offsetof(gpu_words, graph_waits),
                word = core_->words->gpu(core_->index) + offsetof(gpu_words, graph_signal),
                reached = core_->words->host_on_gpu(core_->index) + offsetof(host_words, graph_reached);
  void* parameters[] = {&counter, &word, &reached};
  const auto rc =
      parts.gpu.cuda->cuLaunchKernel(parts.methods.counted_wait, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  if (rc != cu::error_code::success) {
    core_->graph->undo_count(graph_slots::direction::wait);
    return cu::make_error(*parts.gpu.cuda, rc, "launch of the counting wait kernel");
  }
  if (core_->options.releases_captured_waits)
    if (auto done = release_captured(stream, *number, capture_state); !done) return done.error();
  return number;
}

result<std::uint64_t> channel::put_captured(cu::stream_t stream, put_request request, const capture& capture_state) {
  if (core_->peer_waits_by_kernel) return put_counted(stream, request, capture_state);
  const auto number = core_->graph->take(*context_->parts_->gpu.cuda, graph_slots::direction::put, capture_state);
  if (!number) return number;
  request.slot = graph_slots::slot_of(*number);
  if (auto done = executor_->put(stream, request); !done) {
    core_->graph->undo(graph_slots::direction::put);
    return done.error();
  }
  return number;
}

result<std::uint64_t> channel::wait_captured(cu::stream_t stream, const capture& capture_state) {
  if (core_->waits_by_kernel) return wait_counted(stream, capture_state);
  const auto number = core_->graph->take(*context_->parts_->gpu.cuda, graph_slots::direction::wait, capture_state);
  if (!number) return number;
  const auto slot = static_cast<std::size_t>(graph_slots::slot_of(*number)) * sizeof(std::uint64_t);
  const auto place = offsetof(host_words, graph_wait_place) + slot;
  auto done =
      queue_wait(stream, {offsetof(gpu_words, graph_flag) + slot, place, place, 1, graph_place::waiting, graph_place::past});
  if (!done) {
    core_->graph->undo(graph_slots::direction::wait);
    return done.error();
  }
  if (core_->options.releases_captured_waits) done = release_captured(stream, *number, capture_state);
  if (!done) return done.error();
  return number;
}

status channel::release_captured(cu::stream_t stream, std::uint64_t number, const capture& capture_state) {
  // No put waits for it where the peer has no depth.
  if (core_->waits_by_kernel) return core_->peer_depth == 0 ? status{} : executor_->acknowledge_counted(stream);
  if (auto done = core_->graph->release(number, capture_state); !done) return done;
  const int slot = graph_slots::slot_of(number);
  const auto place = core_->words->host_on_gpu(core_->index) + offsetof(host_words, graph_wait_place) +
                     static_cast<std::size_t>(slot) * sizeof(std::uint64_t);
  if (auto done = mem_ops(*context_->parts_->gpu.cuda, stream).write64(place, graph_place::nowhere).submit(); !done)
    return done;
  return executor_->acknowledge_slot(stream, slot);
}

// ---- On the CPU

result<bool> channel::arrived(std::uint64_t sequence) const {
  if (auto ours = check_process(); !ours) return ours.error();
  if (auto valid = check_sequence(sequence); !valid) return valid.error();
  if (const int error = core_->error.load(std::memory_order_acquire); error != 0)
    return failure{error, core_->failure_reason()};
  if (!core_->words->is_mapped())
    return failure{ENOTSUP, "the CPU cannot read the channel's words here: " + core_->words->why_unmapped()};
  const auto word = core_->words->load(core_->index, offsetof(gpu_words, signal));
  if (is_poisoned(word)) return failure{poison_code(word), core_->failure_reason()};
  if (static_cast<std::int64_t>(word - sequence) >= 0) return true;
  if (auto possible = can_come(sequence); !possible) return possible.error();
  return false;
}

status channel::host_wait(std::uint64_t sequence, std::chrono::nanoseconds limit) const {
  const auto end = monotonic_ns() + static_cast<std::uint64_t>(limit.count());
  for (;;) {
    const auto arrival = arrived(sequence);
    if (!arrival) return arrival.error();
    if (*arrival) return {};
    if (is_ending_.load(std::memory_order_acquire)) return failure{ECANCELED, "another thread closes the channel"};
    if (monotonic_ns() >= end) return failure{ETIMEDOUT, "put " + std::to_string(sequence) + " has not arrived yet"};
    sched_yield();
  }
}

void channel::cancel(int code) {
  if (!check_process()) return;
  context_->parts_->proxy->fail(*core_, code > 0 ? code : ECANCELED, "cancelled");
}

channel_state channel::state() const {
  channel_state out;
  if (auto ours = check_process(); !ours) {  // the words are not there in a child
    out.error = ours.code();
    out.reason = ours.error().message;
    return out;
  }
  out.executor = executor();
  out.error = core_->error.load(std::memory_order_acquire);
  out.reason = core_->failure_reason();
  out.puts = core_->puts.load(std::memory_order_acquire);
  out.sent = core_->sent();
  out.waits = core_->waits.load(std::memory_order_acquire);
  out.reached = core_->reached();
  out.passed = core_->passed();
  return out;
}

std::string channel::diag() const {
  if (auto ours = check_process(); !ours) return ours.error().message + "\n";
  const auto now = state();
  std::string out = "channel " + std::to_string(core_->id) + " to rank " + std::to_string(core_->peer) + ", " +
                    name_of(now.executor) + " executor: " + std::to_string(now.puts) + " puts queued, " +
                    std::to_string(now.sent) + " sent; " + std::to_string(now.waits) +
                    " waits queued, the streams have reached " + std::to_string(now.reached) + "\n";
  if (core_->has_peer_left())
    out += std::string("  ") + kPeerLeft + " after put " + std::to_string(core_->peer_last_put.load()) + "\n";
  if (now.error != 0) out += "  in error " + std::to_string(now.error) + ": " + now.reason + "\n";
  else if (now.reached > now.passed) {
    out += "  a stream is in wait " + std::to_string(now.reached) + " for put " + std::to_string(core_->target(now.reached));
    if (core_->words->is_mapped())
      out += "; " + std::to_string(core_->words->load(core_->index, offsetof(gpu_words, signal))) +
             " puts of the peer have arrived";
    out += "\n";
  } else if (now.waits > now.reached) {
    out += "  no stream has reached wait " + std::to_string(now.reached + 1) + ": check what is queued before it\n";
  }
  if (const auto put = core_->held_put(); now.error == 0 && put != 0)
    out += "  a stream waits before put " + std::to_string(put) + " until the peer releases put " +
           std::to_string(put - core_->options.depth) + "\n";
  if (core_->graph->is_any_held()) {
    out += "  in graphs: " + std::to_string(core_->graph->count(graph_slots::direction::put)) + " puts, " +
           std::to_string(core_->graph->count(graph_slots::direction::wait)) + " waits captured so far\n";
    for (const auto number : core_->graph->unreleased())
      out += "  captured wait " + std::to_string(number) +
             " has no release in its graph: only the first launch of the graph waits\n";
    for (unsigned slot = 0; slot < kGraphSlots; ++slot)
      if (core_->is_waiting_in(slot)) out += "  a stream is in the captured wait of slot " + std::to_string(slot) + "\n";
  }
  // Another thread may be in ready(), which sets the kind when all else is set.
  if (now.executor == executor_kind::automatic) return out;
  if (core_->options.wait == wait_method::kernel && !core_->waits_by_kernel)
    out += "  the front end waits, not a kernel: " + context_->parts_->why_no_wait_kernel() + "\n";
  return out + executor_->report();
}

}  // namespace pl::triggered
