// SPDX-License-Identifier: Apache-2.0
#include "copy/stream_order.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <numeric>
#include <utility>

#include "arch/mmio.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "copy/stream_capture.hpp"
#include "os/blocked_signals.hpp"

namespace pl::copy {
namespace {

constexpr std::chrono::milliseconds kPollPeriod{20};
constexpr unsigned kIdlePollsBeforeSleep = 50;
constexpr unsigned kPollsBetweenContexts = 3;
constexpr std::uint64_t kOverdueWaitNs = 200'000;  // long enough for channel::wait to ring the doorbell again
// Of a plain channel; longer copies become several operations.
constexpr std::uint64_t kMaxOperationBytes = std::uint64_t{2} << 30;
constexpr unsigned kPollsBetweenFaults = 64, kPollsPerYield = 16;

// False for a context that was destroyed, or in which a kernel faulted: its streams do nothing any more.
bool is_working(const gpu_context& context) {
  if (!context.is_alive()) return false;
  auto scope = context_use::enter(context);
  if (!scope) return false;
  std::size_t free_bytes = 0, all_bytes = 0;  // any call returns the context's error
  return context.cuda->cuMemGetInfo_v2(&free_bytes, &all_bytes) == cu::error_code::success;
}

failure no_answer() {
  return {ETIMEDOUT, "DMA channel: the GPU ends no copies any more; it may have been reset or have fallen off the bus"};
}

failure no_memory_operations() {
  return {ENOTSUP, "this CUDA driver has no stream memory operations (cuStreamWriteValue32, cuStreamWaitValue32)"};
}

}  // namespace

class stream_order::channel {
 public:
  struct waiting {
    dma::sequence number;
    std::uint32_t go;
    std::size_t blocks;
    std::uint64_t size_bytes;
  };

  bool is_idle() const { return copies.empty(); }
  void forget_done() {
    for (; !copies.empty() && queue->is_done(copies.front().number); copies.pop_front()) blocks -= copies.front().blocks;
  }

  std::shared_ptr<dma::channel> queue;
  stream_words::line* go = nullptr;
  stream_words::line* done = nullptr;
  std::atomic<bool> is_broken{false};

  // Guarded by the owner's lock.
  unsigned long long stream_id = 0;  // of the stream that it serves; 0: the driver does not report it
  gpu_context stream_context;
  std::deque<waiting> copies;
  std::size_t blocks = 0;
  dma::sequence late = 0;  // its stream had reached this operation at the last check
  stall_watch watch;       // since then
  failure reason;
};

struct stream_order::caller {
  gpu_context context;
  unsigned long long id = 0;  // unique in the process; 0: the driver does not report it

  static result<caller> find(const gpu_context& own, cu::stream_t stream) {
    const auto& cuda = *own.cuda;
    cu::context_t handle = nullptr;
    auto rc = cu::result_t{cu::error_code::success};
    if (!is_default_stream(stream) && cuda.cuStreamGetCtx != nullptr) rc = cuda.cuStreamGetCtx(stream, &handle);
    else if (cuda.cuCtxGetCurrent(&handle) != cu::error_code::success || handle == nullptr) handle = own.handle;
    if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "looking at the application's stream");
    auto found = find_context(cuda, own.device_ordinal, handle);
    if (!found) return found.error();
    caller out{*found};
    auto scope = context_use::enter(out.context);
    if (!scope) return scope.error();
    if (auto allowed = refuse_capture(cuda, stream); !allowed) return allowed.error();
    if (cuda.cuStreamGetId != nullptr && cuda.cuStreamGetId(stream, &out.id) != cu::error_code::success) out.id = 0;
    return out;
  }
};

stream_order::~stream_order() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }
  if (monitor_.joinable()) monitor_.join();
  const std::lock_guard lock(mutex_);
  for (auto slot : armed_)
    if (slot != nullptr) give_up(*slot, {EIO, "DMA channel: its planner was closed"});
  for (auto& one : plain_) {
    if (one.queue != nullptr) one.queue->stop();
    if (one.done != nullptr) one.done->release_all();
  }
  if (event_streams_.empty()) return;
  if (auto scope = context_use::enter(context_); scope && context_.is_alive())
    for (const auto& one : event_streams_) context_.cuda->cuStreamDestroy_v2(one.handle);
}

// ---- Words and channels. The lock is held.

status stream_order::open_words() {
  if (refusal_) return *refusal_;
  if (words_ != nullptr) return {};
  const auto& cuda = *context_.cuda;
  if (cuda.cuStreamWriteValue32_v2 == nullptr || cuda.cuStreamWaitValue32_v2 == nullptr)
    return *(refusal_ = no_memory_operations());
  auto made = stream_words::borrow(context_);
  if (!made) return made.error();
  auto bound = source_.addresses->bind_host((*made)->data(), stream_words::kPageBytes);
  if (!bound) return bound.error();
  words_ = *std::move(made);
  bound_ = *std::move(bound);
  return {};
}

result<std::shared_ptr<stream_order::channel>> stream_order::open_channel() {
  auto made = std::make_shared<channel>();
  made->go = words_->take();
  made->done = words_->take();
  if (made->done == nullptr)
    return failure{EAGAIN, "too many channels have ended with faults: no more copies can wait for streams"};
  dma::channel_options options;
  options.engine = source_.engines[std::min<std::size_t>(2, source_.engines.size() - 1)];  // not those of other copies
  auto opened = dma::channel::open(source_.addresses, options);
  if (!opened) return opened.error();
  made->queue = std::move(*opened);
  return made;
}

// A channel that serves this stream, or none at all. Returns null if all are taken.
std::shared_ptr<stream_order::channel> stream_order::find_channel(unsigned long long stream_id, std::size_t blocks) {
  std::shared_ptr<channel>* room = nullptr;
  std::shared_ptr<channel> idle;
  for (auto& slot : armed_) {
    if (slot == nullptr) {
      if (room == nullptr) room = &slot;
      continue;
    }
    slot->forget_done();
    if (slot->is_idle()) {
      idle = slot;
    } else if (stream_id != 0 && slot->stream_id == stream_id) {
      const bool has_room = slot->copies.size() < kMaxCopies && slot->blocks + blocks <= kMaxBlocks;
      return has_room ? slot : nullptr;  // not while its own earlier copies are in another one: that would take all of them
    }
  }
  if (idle != nullptr || room == nullptr) return idle;
  auto opened = open_channel();
  if (!opened) {
    PL_LOG(info, "copies that wait for streams use CUDA: %s", opened.error().message.c_str());
    if (opened.code() == EAGAIN) refusal_ = failure{ENOTSUP, opened.error().message};
    return nullptr;
  }
  return *room = *std::move(opened);
}

// Nothing of the channel touches memory any more, and nobody waits for it.
void stream_order::give_up(channel& broken, failure reason) {
  if (broken.is_broken.load(std::memory_order_relaxed)) return;
  broken.reason = std::move(reason);
  broken.queue->stop();
  broken.done->release_all();
  broken.is_broken.store(true, std::memory_order_release);
  for (auto& slot : armed_)
    if (slot.get() == &broken) slot.reset();  // whoever waits for its copies keeps it
}

// ---- Copies behind a stream

result<stream_order::place> stream_order::begin(cu::stream_t after, std::span<const dma::block> blocks) {
  if (blocks.empty() || blocks.size() > kMaxBlocks)
    return failure{
        EAGAIN, format("%zu blocks that wait for a stream: one DMA channel takes at most %zu", blocks.size(), kMaxBlocks)};
  auto stream = caller::find(context_, after);
  if (!stream) return stream.error();
  const std::lock_guard lock(mutex_);
  if (auto ready = open_words(); !ready) return ready.error();
  if (auto looked = start_search(); !looked) return looked.error();
  auto armed = find_channel(stream->id, blocks.size());
  if (armed == nullptr) return failure{EAGAIN, "all DMA channels for copies that wait for streams are in use"};

  const std::uint32_t turn = armed->go->promised + 1;
  {
    auto scope = context_use::enter(stream->context);
    if (!scope) return scope.error();
    const auto rc = context_.cuda->cuStreamWriteValue32_v2(after, armed->go->cuda_address, turn, cu::write_value::standard);
    if (rc == cu::error_code::not_supported) return *(refusal_ = no_memory_operations());
    if (rc != cu::error_code::success)
      return cu::make_error(*context_.cuda, rc, "writing the word that copies after the application's stream wait for");
  }
  armed->go->promised = turn;
  armed->stream_id = stream->id;
  armed->stream_context = stream->context;
  // The copies may overlap, since their mutual order does not matter. The word comes after a flush of all of them.
  constexpr auto kOrder = dma::ordering::none;
  auto& queue = *armed->queue;
  auto given = queue.acquire(channel_address(*armed->go), turn, true);
  if (given) given = queue.copy_blocks(blocks, kOrder);
  const std::uint32_t end = armed->done->promised + 1;
  if (given) {
    armed->done->promised = end;
    given = queue.release(channel_address(*armed->done), end);
  }
  if (!given) {
    give_up(*armed, given.error());
    return failure{EAGAIN, given.error().message};
  }
  const auto add_size = [](std::uint64_t sum, const dma::block& one) { return sum + one.size_bytes; };
  armed->copies.push_back(
      {*given, turn, blocks.size(), std::accumulate(blocks.begin(), blocks.end(), std::uint64_t{0}, add_size)});
  armed->blocks += blocks.size();
  return place{armed, armed->queue, turn, end, *given};
}

bool stream_order::is_done(const place& asked) const noexcept { return asked.queue->is_done(asked.number); }

bool stream_order::has_failed(const place& asked) const noexcept {
  return asked.armed->is_broken.load(std::memory_order_acquire) && !is_done(asked);
}

status stream_order::wait(const place& asked, std::uint64_t timeout_ns) {
  channel& armed = *asked.armed;
  const auto fail = [&](failure reason) -> status {
    const std::lock_guard lock(mutex_);
    give_up(armed, std::move(reason));
    return is_done(asked) ? status() : armed.reason;
  };
  for (unsigned polls = 1; !is_done(asked); ++polls) {
    if (has_failed(asked)) return fail({});
    // Once its stream has reached this place, everything before it in the channel may run too.
    if (armed.go->has_reached(asked.go)) {
      auto ended = armed.queue->wait(asked.number, timeout_ns);
      return ended ? ended : fail(ended.error());
    }
    arch::relax();
    if (context_.cuda->is_simulated && polls % kPollsPerYield == 0) sched_yield();  // its streams are threads
    if (polls % kPollsBetweenFaults != 0) continue;
    if (auto reason = armed.queue->fault()) return fail(*std::move(reason));
  }
  return {};
}

// ---- Streams and events behind copies

status stream_order::queue_wait(cu::stream_t stream, const stream_words::line& line, std::uint32_t turn) {
  auto target = caller::find(context_, stream);
  if (!target) return target.error();
  auto scope = context_use::enter(target->context);
  if (!scope) return scope.error();
  const auto rc = context_.cuda->cuStreamWaitValue32_v2(stream, line.cuda_address, turn, cu::wait_value::geq);
  if (rc == cu::error_code::not_supported) return no_memory_operations();
  if (rc != cu::error_code::success)
    return cu::make_error(*context_.cuda, rc, "ordering the application's stream after a copy");
  return {};
}

status stream_order::make_wait(cu::stream_t stream, const place& asked) {
  return queue_wait(stream, *asked.armed->done, asked.done);
}

// The word's value after everything that the channel has taken so far. Precondition: the lock is held.
result<std::uint32_t> stream_order::release_behind(unsigned index, const std::shared_ptr<dma::channel>& queue) {
  if (auto reason = queue->fault()) return *std::move(reason);
  if (auto ready = open_words(); !ready) return ready.error();
  if (auto looked = start_search(); !looked) return looked.error();
  plain_end& end = plain_[index];
  if (end.done == nullptr && (end.done = words_->take()) == nullptr)
    return failure{ENOTSUP, "too many channels have ended with faults: no more streams can wait for copies"};
  if (end.queue != queue) {
    if (end.queue != nullptr) end.queue->stop();  // it has ended, or there is no other one
    end.done->release_all();
    end.queue = queue;
  }
  const std::uint32_t turn = ++end.done->promised;
  auto number = queue->release(channel_address(*end.done), turn);
  if (!number) {
    queue->stop();
    end.done->release_all();
    return number.error();
  }
  end.last = *number;
  return turn;
}

status stream_order::make_wait(cu::stream_t stream, unsigned index, const std::shared_ptr<dma::channel>& queue) {
  // A stream that cannot wait is reported before anything is queued.
  if (auto target = caller::find(context_, stream); !target) return target.error();
  std::unique_lock lock(mutex_);
  auto turn = release_behind(index, queue);
  if (!turn) return turn.error();
  const stream_words::line& line = *plain_[index].done;
  lock.unlock();
  return queue_wait(stream, line, *turn);
}

// Records each event in a stream of ours that waits for nothing else: an event after a finished copy must not stand
// behind a wait for one whose stream has not arrived. Precondition: the lock is held.
status stream_order::record_behind(cu::event_t event, const stream_words::line& line, std::uint32_t turn) {
  const auto& cuda = *context_.cuda;
  if (!context_.is_alive()) return failure{EIO, "the CUDA context of the copies was destroyed"};
  auto scope = context_use::enter(context_);
  if (!scope) return scope.error();
  auto free_one = std::find_if(event_streams_.begin(), event_streams_.end(), [](const event_stream& one) {
    return one.behind == nullptr || one.behind->has_reached(one.turn);
  });
  if (free_one == event_streams_.end()) {
    event_stream fresh;
    if (const auto rc = cuda.cuStreamCreate(&fresh.handle, cu::stream_flag::non_blocking); rc != cu::error_code::success)
      return cu::make_error(cuda, rc, "creating a stream for events after copies");
    free_one = event_streams_.insert(event_streams_.end(), fresh);
  }
  auto rc = cuda.cuStreamWaitValue32_v2(free_one->handle, line.cuda_address, turn, cu::wait_value::geq);
  if (rc == cu::error_code::not_supported) return no_memory_operations();
  if (rc == cu::error_code::success) {
    free_one->behind = &line;
    free_one->turn = turn;
    rc = cuda.cuEventRecord(event, free_one->handle);
  }
  if (rc == cu::error_code::invalid_handle)
    return failure{EINVAL, format("no event of the context of device %d that this copy runs in: it cannot be recorded there",
                                  context_.device_ordinal)};
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "recording an event after a copy");
  return {};
}

status stream_order::record(cu::event_t event, const place& asked) {
  const std::lock_guard lock(mutex_);
  return record_behind(event, *asked.armed->done, asked.done);
}

status stream_order::record(cu::event_t event, unsigned index, const std::shared_ptr<dma::channel>& queue) {
  const std::lock_guard lock(mutex_);
  auto turn = release_behind(index, queue);
  if (!turn) return turn.error();
  return record_behind(event, *plain_[index].done, *turn);
}

// ---- Monitoring what is outstanding

// Precondition: the lock is held until the work to be monitored is queued.
status stream_order::start_search() {
  if (is_asleep_) changed_.notify_one();
  if (monitor_.joinable()) return {};
  auto started = try_start_thread("monitors copies behind streams", [this] { monitor(); });
  if (!started) return started.error();
  monitor_ = *std::move(started);
  return {};
}

void stream_order::monitor() {
  pthread_setname_np(pthread_self(), "pl-copy-order");
  unsigned idle = 0;
  clock_lock lock(mutex_);
  for (unsigned checks = 0; !stops_; ++checks) {
    std::vector<std::pair<std::shared_ptr<channel>, gpu_context>> held;
    idle = poll_once() ? 0 : idle + 1;
    if (checks % kPollsBetweenContexts == 0)
      for (const auto& slot : armed_)
        if (slot != nullptr && !slot->is_idle() && !slot->go->has_reached(slot->go->promised))
          held.emplace_back(slot, slot->stream_context);
    if (!held.empty()) {
      lock.unlock();  // a driver call may wait for the stream that waits for us
      std::erase_if(held, [](const auto& one) { return is_working(one.second); });
      lock.lock();
      for (const auto& [slot, context] : held) {
        slot->forget_done();
        if (slot->is_idle() || slot->stream_context.handle != context.handle || slot->stream_context.id != context.id)
          continue;
        give_up(*slot, {EIO,
                        "the CUDA context of the stream that the copy waits for is gone: it was destroyed, or a kernel "
                        "in it failed"});
      }
    }
    if (idle > kIdlePollsBeforeSleep) {
      is_asleep_ = true;
      changed_.wait(lock);
      is_asleep_ = false;
      idle = 0;
    } else {
      changed_.wait_for(lock, kPollPeriod);
    }
  }
}

// Returns false if nothing is outstanding. Precondition: the lock is held.
bool stream_order::poll_once() {
  bool is_any = false;
  for (auto slot : armed_) {
    if (slot == nullptr) continue;
    slot->forget_done();
    if (slot->is_idle()) continue;
    is_any = true;
    if (auto reason = slot->queue->fault()) {
      PL_LOG(error, "copies that waited for a stream failed, and streams that wait for them continue: %s",
             reason->message.c_str());
      give_up(*slot, *std::move(reason));
      continue;
    }
    // The stream of the next copy. Later streams may wait for what it is about to end.
    const auto first = slot->copies.front();
    if (!slot->go->has_reached(first.go)) {
      slot->watch.restart();
      continue;
    }
    // Its stream arrived a while ago: a doorbell may have been missed, and waiting rings it again.
    if (slot->late == first.number) (void)slot->queue->wait(first.number, kOverdueWaitNs);
    slot->late = first.number;
    if (slot->watch.is_stalled(slot->queue->completed(), time_limit_ns(first.size_bytes))) {
      PL_LOG(error, "%s; streams that wait for the copies go on", no_answer().message.c_str());
      give_up(*slot, no_answer());
    }
  }
  for (auto& end : plain_) {
    if (end.queue == nullptr || end.done->has_reached(end.done->promised)) {
      end.watch.restart();
      continue;
    }
    is_any = true;
    auto reason = end.queue->fault();
    if (!reason && end.watch.is_stalled(end.queue->completed(), time_limit_ns(kMaxOperationBytes))) reason = no_answer();
    if (!reason) continue;
    PL_LOG(error, "copies failed, and streams that wait for them go on: %s", reason->message.c_str());
    end.queue->stop();
    end.done->release_all();
  }
  return is_any;
}

}  // namespace pl::copy
