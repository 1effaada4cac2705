// SPDX-License-Identifier: Apache-2.0
#include "copy/copy_engine.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <mutex>
#include <new>
#include <utility>

#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "copy/pinned_buffer.hpp"
#include "copy/stream_capture.hpp"
#include "copy/stream_copy.hpp"
#include "copy/thread_index.hpp"
#include "os/fork_guard.hpp"

namespace pl::copy {
namespace {

constexpr std::size_t kWordStride =
    64;  // a line for each channel, so that a write of one channel does not take the line of another one's poller
constexpr unsigned kMaxLanes = 64;     // as many as fit into a page
constexpr std::uint32_t kEvents = 32;  // per channel, if events replace words; a power of two
// How late a dead context is noticed; checking a live one costs a call.
constexpr std::uint64_t kChannelCheckNs = 1'000'000;
constexpr unsigned kPollsPerClockReading = 32;         // about a microsecond
constexpr unsigned kChannelPollsPerYield = 16;         // on the simulated GPU
constexpr std::uint64_t kStreamRetryNs = 100'000'000;  // between attempts to make a stream that had no memory
constexpr unsigned kIdleAnswersBeforeLost = 3;  // how often the driver may call a stream idle while the word is missing

// Compares cyclically, so that a counter that has wrapped is still ahead of earlier values.
bool has_reached(std::uint32_t word, std::uint32_t value) noexcept { return static_cast<std::int32_t>(word - value) >= 0; }

failure forked() { return {EACCES, "a copy engine of the parent process: open one in this process"}; }

// How many linear pieces of one list a single call takes. Two H200 move 64 pieces of 256 KiB in 100 us by four such
// calls, and in 234 us by 64 single calls: the driver takes 1.2 us for a piece instead of 2.7, and all copy engines
// share a list.
constexpr std::size_t kMaxInCall = 64;

// not_supported: nothing is queued, and each piece needs a call of its own.
cu::result_t queue_together(const cu::driver_table& cuda, std::span<const transfer> copies, cu::stream_t stream) {
  if (cuda.cuMemcpyBatchAsync_v2 == nullptr || copies.size() > kMaxInCall) return cu::error_code::not_supported;
  std::array<cu::device_ptr, kMaxInCall> destinations, sources;
  std::array<std::size_t, kMaxInCall> bytes;
  std::size_t count = 0;
  for (const auto& copy : copies) {
    if (copy.bytes() == 0) continue;
    if (!copy.is_linear()) return cu::error_code::not_supported;
    destinations[count] = copy.dst, sources[count] = copy.src, bytes[count] = copy.bytes();
    ++count;
  }
  if (count < 2) return cu::error_code::not_supported;
  cu::memcpy_attributes attributes{};
  attributes.source_order = cu::memcpy_source_order::stream;
  std::size_t first = 0;
  return cuda.cuMemcpyBatchAsync_v2(destinations.data(), sources.data(), bytes.data(), count, &attributes, &first, 1,
                                    stream);
}

// A stream takes memory of the GPU. While none is left, a channel has no stream, and its copies go into the context's
// default stream: they wait for the application's blocking streams, as cuMemcpy does.
struct channel {
  // Read by waiting threads. Never changes after open(), except for a stream that is made later, while nothing is in
  // progress.
  std::uint32_t* word = nullptr;
  cu::device_ptr word_address = 0;
  std::atomic<cu::stream_t> stream = nullptr;
  cu::event_t event = nullptr;       // for orders between this channel and other streams; recorded under the lock
  cu::event_t events[kEvents] = {};  // fallback: a ticket uses the one at value % kEvents
  // Written by submitting threads, on a line of its own. A submission is one step under the lock.
  alignas(64) std::mutex mutex;
  std::uint32_t last = 0;      // value of the latest ticket
  std::uint64_t retry_ns = 0;  // when the next attempt to make a missing stream is due
  bool has_behind = false;     // copies behind an application's stream were queued; the latest of them has this value:
  std::uint32_t behind = 0;
};

}  // namespace

struct copy_engine::state {
  explicit state(const gpu_context& c) : context(c), cuda(*c.cuda), epoch(claim_process_epoch()) {}
  ~state();

  bool is_ours() const noexcept { return process_epoch() == epoch; }
  status make_channels(unsigned wanted, std::uint32_t first_value);
  status make_channel(channel& made, std::uint32_t first_value);
  cu::result_t make_stream(channel& made) const;
  status use_stream(channel& own) const;
  cu::result_t wait_for(const channel& own, cu::event_t event) const;
  cu::result_t record_end(const channel& own) const;
  status choose_completion();
  void drop_channel(channel& dropped) const;

  failure lost() const;
  result<context_use> enter() const;
  channel& lock_one(std::unique_lock<std::mutex>& lock, bool has_after, unsigned turn);
  bool is_held_up(channel& asked) const noexcept;
  result<context_use> enter_theirs(gpu_context& other_context) const;
  status order_behind(channel& own, cu::stream_t after) const;
  result<ticket> finish(channel& own);
  failure give_up(channel& own, failure reason) const;

  bool has_ended(const channel& asked, std::uint32_t value) const noexcept;
  bool event_has_ended(const channel& asked, std::uint32_t value) const noexcept;
  status check_life(const channel& asked, unsigned& idle_answers) const;
  status poll(const channel& asked, std::uint32_t value, unsigned timeout_ms) const;
  status find_channel(const ticket& queued, channel*& found) const;

  const gpu_context context;
  const cu::driver_table& cuda;
  const std::uint32_t epoch;
  pinned_buffer words;
  std::unique_ptr<channel[]> channels;
  unsigned count = 0;
  int priority = 0;  // of the streams
  bool has_write_value = true;
};

// ---- life -----------------------------------------------------------------------------------------------------------

cu::result_t copy_engine::state::make_stream(channel& made) const {
  cu::stream_t stream = nullptr;
  const auto rc = cuda.cuStreamCreateWithPriority(&stream, cu::stream_flag::non_blocking, priority);
  if (rc == cu::error_code::success) made.stream = stream;
  made.retry_ns = monotonic_ns() + kStreamRetryNs;
  return rc;
}

// Before work is queued in the channel. A missing stream is made now if there is memory again and nothing is in progress.
// EBUSY: the default stream cannot be used, because a stream that waits for it is being captured. Precondition: the
// channel's lock is held.
status copy_engine::state::use_stream(channel& own) const {
  if (own.stream != nullptr) return {};
  auto scope = enter();
  if (!scope) return scope.error();
  if (has_ended(own, own.last) && monotonic_ns() >= own.retry_ns && make_stream(own) == cu::error_code::success) return {};
  return refuse_capture(cuda, nullptr);
}

// Work that the channel queues later waits for the event. In our context, because a missing stream stands for its default
// stream.
cu::result_t copy_engine::state::wait_for(const channel& own, cu::event_t event) const {
  if (own.stream != nullptr) return cuda.cuStreamWaitEvent(own.stream, event, 0);
  auto ours = enter();
  return ours ? cuda.cuStreamWaitEvent(nullptr, event, 0) : cu::result_t{cu::error_code::context_is_destroyed};
}

// The channel's event stands for the end of what it has queued.
cu::result_t copy_engine::state::record_end(const channel& own) const {
  if (own.stream != nullptr) return cuda.cuEventRecord(own.event, own.stream);
  auto ours = enter();
  return ours ? cuda.cuEventRecord(own.event, nullptr) : cu::result_t{cu::error_code::context_is_destroyed};
}

status copy_engine::state::make_channel(channel& made, std::uint32_t first_value) {
  auto rc = make_stream(made);
  if (rc != cu::error_code::success && rc != cu::error_code::out_of_memory)
    return cu::make_error(cuda, rc, "creating a stream for copies");
  rc = cuda.cuEventCreate(&made.event, cu::event_flag::disable_timing);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "creating an event for copies");
  made.last = first_value;
  std::atomic_ref(*made.word).store(first_value, std::memory_order_relaxed);
  return {};
}

status copy_engine::state::make_channels(unsigned wanted, std::uint32_t first_value) {
  auto scope = enter();
  if (!scope) return scope.error();
  const unsigned channels_wanted = std::clamp(wanted, 1u, kMaxLanes);
  auto made = pinned_buffer::make(context, channels_wanted * kWordStride);
  if (!made) return made.error();
  words = *std::move(made);
  channels.reset(new (std::nothrow) channel[channels_wanted]);
  if (channels == nullptr) return failure{ENOMEM, "no memory for a copy engine"};
  int least = 0;
  int greatest = 0;
  if (const auto rc = cuda.cuCtxGetStreamPriorityRange(&least, &greatest); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "asking for stream priorities");
  priority = greatest;
  for (; count < channels_wanted;) {
    channel& next = channels[count];
    next.word = reinterpret_cast<std::uint32_t*>(words.data() + count * kWordStride);
    next.word_address = words.device_address() + count * kWordStride;
    ++count;  // before it is complete, so that a failure drops what exists of it
    if (auto done = make_channel(next, first_value); !done) return done;
  }
  if (auto usable = use_stream(channels[0]); !usable) return usable;
  return choose_completion();
}

// Uses words if the driver can write them, otherwise events: drivers before 11.7 lack the call, and some installations
// refuse it.
status copy_engine::state::choose_completion() {
  auto rc = cu::result_t{cu::error_code::not_supported};
  if (cuda.cuStreamWriteValue32_v2 != nullptr)
    rc = cuda.cuStreamWriteValue32_v2(channels[0].stream, channels[0].word_address, channels[0].last,
                                      cu::write_value::standard);
  has_write_value = rc == cu::error_code::success;
  if (has_write_value) return {};
  if (rc != cu::error_code::not_supported) return cu::make_error(cuda, rc, "writing a word from a stream");
  for (unsigned i = 0; i < count; ++i)
    for (auto& event : channels[i].events)
      if (rc = cuda.cuEventCreate(&event, cu::event_flag::disable_timing); rc != cu::error_code::success)
        return cu::make_error(cuda, rc, "creating an event for copies");
  return {};
}

void copy_engine::state::drop_channel(channel& dropped) const {
  // The word is about to be unmapped.
  if (dropped.stream != nullptr || !has_ended(dropped, dropped.last)) cuda.cuStreamSynchronize(dropped.stream);
  if (dropped.stream != nullptr) cuda.cuStreamDestroy_v2(dropped.stream);
  if (dropped.event != nullptr) cuda.cuEventDestroy_v2(dropped.event);
  for (auto* event : dropped.events)
    if (event != nullptr) cuda.cuEventDestroy_v2(event);
}

copy_engine::state::~state() {
  // Streams and events were destroyed with their context; using them now could hit somebody else's.
  if (auto scope = enter())
    for (unsigned i = 0; i < count; ++i) drop_channel(channels[i]);
}

result<std::unique_ptr<copy_engine>> copy_engine::open(const gpu_context& context, unsigned channels,
                                                       std::uint32_t first_value) {
  auto made = std::make_unique<state>(context);
  if (auto done = made->make_channels(channels, first_value); !done) return done.error();
  return std::unique_ptr<copy_engine>(new copy_engine(std::move(made)));
}

copy_engine::copy_engine(std::unique_ptr<state> s) : state_(std::move(s)) {}

copy_engine::~copy_engine() {
  // Deliberately leaked in a forked child: the driver must not be called, and the words' pages are not mapped.
  if (!is_of_this_process()) (void)state_.release();
}

const gpu_context& copy_engine::context() const noexcept { return state_->context; }
bool copy_engine::is_of_this_process() const noexcept { return state_->is_ours(); }

// ---- submission -----------------------------------------------------------------------------------------------------

// After a kernel of the application faulted, every call in the context returns that error.
failure copy_engine::state::lost() const {
  unsigned long long id = 0;
  const auto rc = cuda.cuCtxGetId != nullptr ? cuda.cuCtxGetId(context.handle, &id) : cu::result_t{cu::error_code::success};
  const auto reason = rc != cu::error_code::success ? cu::error_text(cuda, rc) : "it was destroyed";
  return failure{
      EIO, format("the CUDA context of device %d that copies run in is lost: %s", context.device_ordinal, reason.c_str())};
}

result<context_use> copy_engine::state::enter() const {
  if (context.is_alive()) {
    auto entered = context_use::enter(context);
    if (entered) return entered;  // otherwise it was destroyed since
  }
  return lost();
}

// Whether work queued in the channel may have to wait for an application's stream. Precondition: the channel's lock is
// held.
bool copy_engine::state::is_held_up(channel& asked) const noexcept {
  if (asked.has_behind && has_ended(asked, asked.behind)) asked.has_behind = false;
  return asked.has_behind;
}

// Locks the thread's own channel, so that its copies stay in order and their words in one cache; another one rather
// than wait. A copy behind an application's stream may wait long, even for what this thread does next. So other copies
// avoid its channel, it avoids channels with pending work of others, and channel 0 takes no such copies. An engine of
// several channels therefore always has a free one.
channel& copy_engine::state::lock_one(std::unique_lock<std::mutex>& lock, bool has_after, unsigned turn) {
  const unsigned first = has_after && count > 1 ? 1 : 0;
  const unsigned many = count - first;
  const unsigned own = (thread_index() + turn) % many;
  for (unsigned i = 0; i < many; ++i) {
    channel& candidate = channels[first + (own + i) % many];
    lock = std::unique_lock(candidate.mutex, std::try_to_lock);
    if (!lock.owns_lock()) continue;
    if (has_after ? has_ended(candidate, candidate.last) : !is_held_up(candidate)) return candidate;
  }
  channel& rest = channels[has_after ? first + own : 0];
  lock = {};  // of the last one tried, which may be the same
  lock = std::unique_lock(rest.mutex);
  return rest;
}

// The application's current context, which determines what null and the other default streams mean; our context if
// there is none.
result<context_use> copy_engine::state::enter_theirs(gpu_context& other_context) const {
  other_context = context;
  cu::context_t current = nullptr;
  if (cuda.cuCtxGetCurrent(&current) == cu::error_code::success && current != nullptr) other_context.handle = current;
  return context_use::enter(other_context);
}

status copy_engine::state::order_behind(channel& own, cu::stream_t after) const {
  gpu_context other_context;
  auto scope = enter_theirs(other_context);
  if (!scope) return scope.error();
  if (auto allowed = refuse_capture(cuda, after); !allowed) return allowed;
  const bool is_foreign = other_context.handle != context.handle;
  auto rc = cu::result_t{cu::error_code::invalid_handle};
  if (!is_foreign || !is_default_stream(after)) rc = cuda.cuEventRecord(own.event, after);
  // An event can record only streams of its own context, and this stream belongs to another one: the current one, or
  // one that is not current.
  cu::event_t borrowed = nullptr;
  if (rc == cu::error_code::invalid_handle) {
    if (!is_default_stream(after) && cuda.cuStreamGetCtx != nullptr) {
      rc = cuda.cuStreamGetCtx(after, &other_context.handle);
      if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "looking at the application's stream");
    }
    auto theirs = context_use::enter(other_context);
    if (!theirs) return theirs.error();
    rc = cuda.cuEventCreate(&borrowed, cu::event_flag::disable_timing);
    if (rc == cu::error_code::success) rc = cuda.cuEventRecord(borrowed, after);
  }
  if (rc == cu::error_code::success) rc = wait_for(own, borrowed != nullptr ? borrowed : own.event);
  if (borrowed != nullptr) cuda.cuEventDestroy_v2(borrowed);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "ordering a copy after the application's stream");
  return {};
}

// Precondition: the context is current and the channel's lock is held.
result<copy_engine::ticket> copy_engine::state::finish(channel& own) {
  const std::uint32_t value = own.last + 1;
  const auto rc = has_write_value
                      ? cuda.cuStreamWriteValue32_v2(own.stream, own.word_address, value, cu::write_value::standard)
                      : cuda.cuEventRecord(own.events[value % kEvents], own.stream);
  if (rc != cu::error_code::success) return give_up(own, cu::make_error(cuda, rc, "queueing the end of a copy"));
  own.last = value;
  return ticket{static_cast<std::uint32_t>(&own - channels.get()), value};
}

// Nothing may be in flight when a failed submission returns, because the caller then frees or reuses the memory.
failure copy_engine::state::give_up(channel& own, failure reason) const {
  cuda.cuStreamSynchronize(own.stream);
  return reason;
}

result<copy_engine::ticket> copy_engine::submit(std::span<const transfer> copies, cu::stream_t after, bool has_after,
                                                unsigned turn) {
  auto& s = *state_;
  if (!s.is_ours()) return forked();
  std::unique_lock<std::mutex> lock;
  channel& own = s.lock_one(lock, has_after, turn);
  if (auto usable = s.use_stream(own); !usable) return usable.error();
  if (has_after) {
    if (!s.context.is_alive()) return s.lost();
    if (auto ordered = s.order_behind(own, after); !ordered) return ordered.error();
  }
  auto scope = s.enter();
  if (!scope) return scope.error();
  // If the list is refused, its pieces are tried one by one to find the failing one.
  const bool is_queued = queue_together(s.cuda, copies, own.stream) == cu::error_code::success;
  for (std::size_t i = 0; i < copies.size() && !is_queued; ++i) {
    const auto rc = queue_copy(s.cuda, copies[i], own.stream);
    if (rc == cu::error_code::success) continue;
    const auto subject = format("copy %zu of %zu (%s)", i + 1, copies.size(), describe(copies[i]).c_str());
    return s.give_up(own, cu::make_error(s.cuda, rc, subject));
  }
  auto queued = s.finish(own);
  if (queued && has_after) {
    own.has_behind = true;
    own.behind = queued->value;
  }
  return queued;
}

result<copy_engine::ticket> copy_engine::submit_fill(std::uint64_t dst, unsigned char value, std::size_t bytes) {
  auto& s = *state_;
  if (!s.is_ours()) return forked();
  std::unique_lock<std::mutex> lock;
  channel& own = s.lock_one(lock, false, 0);
  if (auto usable = s.use_stream(own); !usable) return usable.error();
  auto scope = s.enter();
  if (!scope) return scope.error();
  if (bytes != 0) {
    const auto rc = s.cuda.cuMemsetD8Async(dst, value, bytes, own.stream);
    if (rc != cu::error_code::success)
      return cu::make_error(s.cuda, rc, format("setting %zu bytes at 0x%llx", bytes, static_cast<unsigned long long>(dst)));
  }
  return s.finish(own);
}

// ---- completion -----------------------------------------------------------------------------------------------------

// An event that was recorded again since, for a later ticket, only reports the end later.
bool copy_engine::state::event_has_ended(const channel& asked, std::uint32_t value) const noexcept {
  auto scope = enter();
  if (!scope || cuda.cuEventQuery(asked.events[value % kEvents]) != cu::error_code::success) return false;
  const std::atomic_ref word(*asked.word);  // raised, so that the next caller needs no driver call
  auto now = word.load(std::memory_order_relaxed);
  while (!has_reached(now, value) && !word.compare_exchange_weak(now, value, std::memory_order_acq_rel)) {}
  return true;
}

bool copy_engine::state::has_ended(const channel& asked, std::uint32_t value) const noexcept {
  if (has_reached(std::atomic_ref(*asked.word).load(std::memory_order_acquire), value)) return true;
  return !has_write_value && event_has_ended(asked, value);
}

// EIO if the ticket's word will never be written.
status copy_engine::state::check_life(const channel& asked, unsigned& idle_answers) const {
  auto scope = enter();
  if (!scope) return scope.error();
  const auto rc = cuda.cuStreamQuery(asked.stream);
  if (rc == cu::error_code::not_ready) return {};
  if (rc != cu::error_code::success) return failure{EIO, cu::make_error(cuda, rc, "a copy in progress").message};
  // The word was written before the stream became idle, but may arrive a moment later than the driver's own mark.
  if (++idle_answers < kIdleAnswersBeforeLost) return {};
  return failure{EIO, "the copy's stream is idle, and the copy's end was never signalled: its CUDA context was reset"};
}

status copy_engine::state::poll(const channel& asked, std::uint32_t value, unsigned timeout_ms) const {
  if (has_ended(asked, value)) return {};
  const std::uint64_t start_ns = monotonic_ns();
  std::uint64_t check_ns = start_ns + kChannelCheckNs;
  unsigned idle_answers = 0;
  for (unsigned polls = 1;; ++polls) {
    if (has_ended(asked, value)) return {};
    arch::relax();
    // The simulated GPU's streams are threads that need the CPUs on which we poll.
    if (cuda.is_simulated && polls % kChannelPollsPerYield == 0) sched_yield();
    if (polls % kPollsPerClockReading != 0) continue;
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= check_ns) {
      auto alive = check_life(asked, idle_answers);
      if (!alive) return has_ended(asked, value) ? status() : alive;
      check_ns = now_ns + kChannelCheckNs;
    }
    if (timeout_ms != 0 && now_ns - start_ns >= std::uint64_t{timeout_ms} * 1'000'000)
      return failure{ETIMEDOUT, format("a copy has not ended after %u ms and may still run", timeout_ms)};
  }
}

status copy_engine::state::find_channel(const ticket& queued, channel*& found) const {
  if (!is_ours()) return forked();
  if (queued.channel >= count)
    return failure{EINVAL, format("no ticket of this engine: channel %u of %u", queued.channel, count)};
  found = &channels[queued.channel];
  return {};
}

bool copy_engine::is_done(const ticket& queued) const noexcept {
  if (!state_->is_ours()) return false;
  assert(queued.channel < state_->count);
  return state_->has_ended(state_->channels[queued.channel], queued.value);
}

status copy_engine::wait(const ticket& queued, unsigned timeout_ms) {
  channel* asked = nullptr;
  if (auto found = state_->find_channel(queued, asked); !found) return found;
  return state_->poll(*asked, queued.value, timeout_ms);
}

// Uses an event: a wait for the word itself (cuStreamWaitValue32) would be an order that CUDA's scheduler does not
// know.
status copy_engine::make_wait(cu::stream_t stream, const ticket& queued) {
  auto& s = *state_;
  channel* asked = nullptr;
  if (auto found = s.find_channel(queued, asked); !found) return found;
  if (s.has_ended(*asked, queued.value)) return {};
  const std::lock_guard lock(asked->mutex);
  if (!s.context.is_alive()) return s.lost();
  gpu_context other_context;
  auto scope = s.enter_theirs(other_context);
  if (!scope) return scope.error();
  if (auto allowed = refuse_capture(s.cuda, stream); !allowed) return allowed;
  auto rc = s.record_end(*asked);
  if (rc == cu::error_code::success) rc = s.cuda.cuStreamWaitEvent(stream, asked->event, 0);
  if (rc != cu::error_code::success) return cu::make_error(s.cuda, rc, "ordering the application's stream after a copy");
  return {};
}

status copy_engine::record(cu::event_t event, const ticket& queued) {
  auto& s = *state_;
  channel* asked = nullptr;
  if (auto found = s.find_channel(queued, asked); !found) return found;
  const std::lock_guard lock(asked->mutex);
  auto scope = s.enter();
  if (!scope) return scope.error();
  const auto rc = s.cuda.cuEventRecord(event, asked->stream);
  if (rc == cu::error_code::invalid_handle)
    return failure{EINVAL, format("no event of the context of device %d that this copy runs in: it cannot be recorded there",
                                  s.context.device_ordinal)};
  if (rc != cu::error_code::success) return cu::make_error(s.cuda, rc, "recording an event after a copy");
  return {};
}

}  // namespace pl::copy
