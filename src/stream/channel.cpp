// SPDX-License-Identifier: Apache-2.0
#include "channel.hpp"

#include <sched.h>

#include "channel_core.hpp"
#include "clock.hpp"
#include "context_parts.hpp"
#include "mem_ops.hpp"

namespace pl::stream {

channel::channel(context& of, std::shared_ptr<channel_core> core) : context_(&of), core_(std::move(core)) {}

channel::~channel() { context_->parts_->close(*this); }

executor_kind channel::executor() const noexcept { return core_->kind.load(std::memory_order_acquire); }

// ---- On a stream

status channel::enter(cu::stream_t on) {
  if (const int error = core_->error.load(std::memory_order_acquire); error != 0) return failure{error, core_->why()};
  if (executor_ == nullptr)
    if (auto done = ready(context_->parts_->options.connect_timeout); !done) return done;
  int capturing = 0;
  const auto& cuda = *context_->parts_->gpu.cuda;
  if (const auto rc = cuda.cuStreamIsCapturing(on, &capturing); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "the stream");
  if (capturing != cu::capture_status::none)
    return failure{ENOTSUP, "the stream is being captured: counts cannot be part of a graph"};
  return {};
}

// `queued`: with the operation that is asked for.
status channel::check(std::uint64_t queued, std::uint64_t retired) {
  if (queued - retired <= core_->options.most_queued) return {};
  return failure{EAGAIN, std::to_string(core_->options.most_queued) +
                             " operations of this channel are queued on streams that have not come to them: wait for some"};
}

result<std::uint64_t> channel::put_signal(cu::stream_t on, const remote_window& to, std::uint64_t offset,
                                          cu::device_ptr source, std::size_t bytes) {
  if (auto in = enter(on); !in) return in.error();
  if (to.rank != core_->peer)
    return failure{EINVAL, "the window belongs to rank " + std::to_string(to.rank) + ", the channel leads to rank " +
                               std::to_string(core_->peer)};
  if (offset > to.bytes || bytes > to.bytes - offset)
    return failure{ERANGE, std::to_string(bytes) + " bytes at " + std::to_string(offset) + " leave the window of " +
                               std::to_string(to.bytes) + " bytes"};
  if (to.address == 0 && executor_->kind() == executor_kind::peer && bytes != 0)
    return failure{ENOTSUP, "this GPU cannot reach the window; open the channel with the proxy executor"};
  const auto sequence = core_->puts.load(std::memory_order_relaxed) + 1;
  if (auto room = check(sequence, core_->sent()); !room) return room.error();
  put_request what{source, bytes, &to, offset, sequence, 0};
  if (const auto depth = core_->options.depth; depth != 0 && sequence > depth) what.released = sequence - depth;
  if (auto done = executor_->put(on, what); !done) return done.error();
  core_->puts.store(sequence, std::memory_order_release);
  return sequence;
}

result<std::uint64_t> channel::signal(cu::stream_t on) {
  const remote_window nothing{0, core_->peer, 0, 0};
  return put_signal(on, nothing, 0, 0, 0);
}

result<std::uint64_t> channel::wait_signal(cu::stream_t on) {
  const auto sequence = core_->waits.load(std::memory_order_relaxed) + 1;
  if (auto done = wait_signal(on, sequence); !done) return done.error();
  return sequence;
}

status channel::wait_signal(cu::stream_t on, std::uint64_t sequence) {
  if (auto in = enter(on); !in) return in;
  if (sequence == 0 || is_poisoned(sequence)) return failure{EINVAL, "puts are counted from 1"};
  const auto number = core_->waits.load(std::memory_order_relaxed) + 1;
  if (auto room = check(number, core_->reached()); !room) return room;
  core_->set_target(number, sequence);
  if (auto done = queue_wait(on, number, sequence); !done) return done;
  core_->waits.store(number, std::memory_order_seq_cst);
  executor_->wait_queued();
  return {};
}

status channel::queue_wait(cu::stream_t on, std::uint64_t number, std::uint64_t sequence) {
  const auto& words = *core_->words;
  auto& of = *context_->parts_;
  auto word = words.gpu(core_->index) + offsetof(gpu_words, signal);
  auto reached = words.host_on_gpu(core_->index) + offsetof(host_words, reached);
  if (core_->options.wait == wait_way::front_end || of.ways.wait_kernel == nullptr)
    return mem_ops(*of.gpu.cuda, on).write64(reached, number).wait64(word, sequence).submit();
  void* parameters[] = {&word, &sequence, &reached, &number};
  const auto rc = of.gpu.cuda->cuLaunchKernel(of.ways.wait_kernel, 1, 1, 1, 1, 1, 1, 0, on, parameters, nullptr);
  if (rc != cu::error_code::success) return cu::make_error(*of.gpu.cuda, rc, "launch of the wait kernel");
  return {};
}

status channel::release(cu::stream_t on, std::uint64_t sequence) {
  if (auto in = enter(on); !in) return in;
  return executor_->acknowledge(on, sequence);
}

// ---- On the CPU

result<bool> channel::arrived(std::uint64_t sequence) const {
  if (const int error = core_->error.load(std::memory_order_acquire); error != 0) return failure{error, core_->why()};
  if (!core_->words->is_mapped())
    return failure{ENOTSUP, "the CPU cannot read the channel's words here: " + core_->words->why_unmapped()};
  const auto word = core_->words->load(core_->index, offsetof(gpu_words, signal));
  if (is_poisoned(word)) return failure{poison_code(word), core_->why()};
  return static_cast<std::int64_t>(word - sequence) >= 0;
}

status channel::host_wait(std::uint64_t sequence, std::chrono::nanoseconds limit) const {
  const auto end = monotonic_ns() + static_cast<std::uint64_t>(limit.count());
  for (;;) {
    const auto here = arrived(sequence);
    if (!here) return here.error();
    if (*here) return {};
    if (monotonic_ns() >= end) return failure{ETIMEDOUT, "put " + std::to_string(sequence) + " is not here yet"};
    sched_yield();
  }
}

void channel::cancel(int code) { context_->parts_->watch->fail(*core_, code > 0 ? code : ECANCELED, "cancelled"); }

channel_state channel::state() const {
  channel_state out;
  out.executor = executor();
  out.error = core_->error.load(std::memory_order_acquire);
  out.why = core_->why();
  out.puts = core_->puts.load(std::memory_order_acquire);
  out.sent = core_->sent();
  out.waits = core_->waits.load(std::memory_order_acquire);
  out.reached = core_->reached();
  if (core_->words->is_mapped()) out.passed = core_->passed();
  return out;
}

std::string channel::diag() const {
  const auto now = state();
  std::string out = "channel " + std::to_string(core_->id) + " to rank " + std::to_string(core_->peer) + ", " +
                    name_of(now.executor) + " executor: " + std::to_string(now.puts) + " puts queued, " +
                    std::to_string(now.sent) + " have left; " + std::to_string(now.waits) +
                    " waits queued, a stream has come to " + std::to_string(now.reached) + "\n";
  if (now.error != 0) out += "  in error " + std::to_string(now.error) + ": " + now.why + "\n";
  else if (core_->words->is_mapped() && now.reached > now.passed) {
    out += "  a stream stands in wait " + std::to_string(now.reached) + " for put " +
           std::to_string(core_->target(now.reached)) + "; " +
           std::to_string(core_->words->load(core_->index, offsetof(gpu_words, signal))) + " puts of the peer are here\n";
  } else if (now.waits > now.reached) {
    out += "  no stream has come to wait " + std::to_string(now.reached + 1) + ": look at what is queued before it\n";
  }
  if (now.error == 0 && now.puts > now.sent && core_->options.depth != 0 && now.sent >= core_->options.depth)
    out += "  the next put may be waiting for the peer to release put " +
           std::to_string(now.sent + 1 - core_->options.depth) + "\n";
  if (executor_ != nullptr) out += executor_->report();
  return out;
}

}  // namespace pl::stream
