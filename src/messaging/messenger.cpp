// SPDX-License-Identifier: Apache-2.0
// The public calls over messenger_core: locking, waiting, and errors in a forked child.
#include "messaging/messenger.hpp"

#include <sched.h>

#include <algorithm>
#include <mutex>

#include "arch/mmio.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/message_calibration.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::messaging {
namespace {

// Represents all sends that completed during the call. Read-only.
struct ended_send : operation {
  ended_send() {
    is_unpooled = true;
    state = operation_state::ended;
  }
} g_sent_at_once;

const failure kForeign{EACCES, "the messenger belongs to the parent process: open one in this process"};

failure not_within(std::chrono::milliseconds limit) {
  return {ETIMEDOUT, format("not done within %lld ms", static_cast<long long>(limit.count()))};
}

constexpr int kPollsAtOnce = 16;  // in one hold of the lock

// Polls for some microseconds, then yields the CPU: with more processes than CPUs the peer may be waiting for it.
class backoff {
 public:
  void pause() noexcept {
    ++rounds_;
    if (is_yielding()) sched_yield();
    else arch::relax();
  }
  bool is_yielding() const noexcept { return rounds_ >= kHot; }

 private:
  static constexpr unsigned kHot = 30;
  unsigned rounds_ = 0;
};

}  // namespace

// `done` runs under the lock and returns empty while the wait continues. One hold of the lock polls the queues of the
// node several times, since taking the lock costs as much as a poll, and the network, which costs more, once.
// With a progress thread it then sleeps until something happens, if `may_sleep`: `done` changes with events only.
// A pause of the machine does not count towards the limit, because the awaited process was paused, too.
template <class Done>
status messenger_core::wait_until(Done done, std::chrono::milliseconds limit, bool may_sleep) {
  constexpr unsigned kPollsBetweenClocks = 16, kPollsBeforeSleep = 64;
  std::optional<attended_time> waited;
  if (limit.count() >= 0) waited.emplace();
  unsigned polls = 0;
  may_sleep = may_sleep && thread_;
  for (backoff idle;;) {
    if (may_sleep && polls >= kPollsBeforeSleep) return sleep_until(done, limit, waited);
    bool has_moved = false;
    {
      const std::lock_guard lock(mutex_);
      for (int poll = 0; poll < kPollsAtOnce && !has_moved; ++poll) {
        if (std::optional<status> ended = done()) return *std::move(ended);
        has_moved = progress(poll == 0 || !channel_.has_local_peers());
      }
      if (std::optional<status> ended = done()) return *std::move(ended);
    }
    // Checked even while other messages keep moving.
    ++polls;
    if (waited && (polls % kPollsBetweenClocks == 1 || idle.is_yielding()) && waited->has_reached(limit))
      return not_within(limit);
    if (!has_moved) idle.pause();
  }
}

template <class Done>
status messenger_core::sleep_until(Done& done, std::chrono::milliseconds limit, std::optional<attended_time>& waited) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (std::optional<status> ended = done()) return *std::move(ended);
    if (waited && waited->has_reached(limit)) return not_within(limit);
    std::optional<std::chrono::steady_clock::time_point> wake_up;
    if (waited) wake_up = std::chrono::steady_clock::now() + waited->next_poll(limit);
    context_.wake.wait(lock, wake_up);
  }
}

// First waits for the peer's answer to cancel(), so that a message that a receive has just taken is not lost. Does not wait
// again for a peer that missed that limit before and has made no progress since.
void messenger_core::reclaim_memory(operation& op) {
  constexpr std::chrono::milliseconds kAnswer{200}, kRevoked{1000};
  if (reclaim_put(op)) return;
  int peer_rank = kAnySource;
  bool is_silent = false;
  {
    const std::lock_guard lock(mutex_);
    static_cast<void>(cancel(op));
    if (op.has_ended()) return;
    peer_rank = op.peer;
    is_silent = context_.peer(peer_rank).unanswered_state == context_.peer(peer_rank).liveness();
  }
  const auto ended = [&]() -> std::optional<status> {
    return op.has_ended() ? std::optional<status>(status{}) : std::nullopt;
  };
  if (!is_silent && wait_until(ended, kAnswer, false)) return;
  const auto revoked = [&]() -> std::optional<status> {
    return revocation_.revoke(op) ? std::optional<status>(status{}) : std::nullopt;
  };
  if (wait_until(revoked, is_silent ? std::chrono::milliseconds(0) : kRevoked, false)) {
    const std::lock_guard lock(mutex_);
    if (!is_silent) context_.peer(peer_rank).unanswered_state = context_.peer(peer_rank).liveness();
    return;
  }
  {
    // UCX moves it and the peer takes nothing: only closing the connection releases the memory.
    const std::lock_guard lock(mutex_);
    if (!context_.peer(peer_rank).queue_out.is_open())
      mark_lost(peer_rank, "does not respond, and a message to or from it was abandoned: the connection was closed");
  }
  if (!wait_until(revoked, kRevoked, false))
    PL_LOG(error, "rank %d: the memory of an abandoned message may still be in use", peer_rank);
}

bool messenger_core::reclaim_put(operation& signal) {
  operation* put = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (signal.leader == 0) return false;
    put = context_.operations.find(std::exchange(signal.leader, 0));
    put->follower = 0;
  }
  reclaim_memory(*put);
  const std::lock_guard lock(mutex_);
  context_.release(*put);
  context_.end(signal, ECANCELED, "cancelled");
  return true;
}

status messenger::end_window(std::uint32_t id, std::chrono::milliseconds limit, bool is_last_word) {
  auto& core = *core_;
  int user = kAnySource;
  {
    const std::lock_guard lock(core.mutex_);
    core.windows_.end_window(id);
  }
  auto done = core.wait_until(
      [&]() -> std::optional<status> {
        user = core.revocation_.window_user(id);
        if (user < 0) user = core.direct_.user(id);
        if (user < 0) return status{};
        const bool is_silent =
            is_last_word && core.context_.peer(user).unanswered_state == core.context_.peer(user).liveness();
        return is_silent ? std::optional<status>(failure{ETIMEDOUT, "it has not answered before"}) : std::nullopt;
      },
      limit, false);
  const std::lock_guard lock(core.mutex_);
  if (done) return core.windows_.free_window(id), status{};
  core.context_.peer(user).unanswered_state = core.context_.peer(user).liveness();
  return failure{ETIMEDOUT,
                 format("the window has ended, but rank %d does not answer and may still use its memory: keep the "
                        "memory, and end the window again until it answers or has ended",
                        user)};
}

// ---- request

request& request::operator=(request&& other) noexcept {
  if (this != &other) {
    drop();
    owner_ = std::exchange(other.owner_, nullptr);
    op_ = std::exchange(other.op_, nullptr);
    sent_ = other.sent_;
  }
  return *this;
}

request::request(messenger* owner, const message_info& sent) noexcept : owner_(owner), op_(&g_sent_at_once), sent_(sent) {}

request::~request() { drop(); }

void request::drop() noexcept {
  operation* const op = std::exchange(op_, nullptr);
  if (op == nullptr || op == &g_sent_at_once) return;
  auto& core = *owner_->core_;
  if (op->is_unpooled) return core.context_.release(*op);
  if (core.context_.is_foreign_process()) return;
  {
    const std::lock_guard lock(core.mutex_);
    if (op->has_ended()) return core.context_.release(*op);
  }
  core.reclaim_memory(*op);
  const std::lock_guard lock(core.mutex_);
  core.context_.release(*op);
}

bool request::test() {
  if (op_ == nullptr || op_->is_unpooled || owner_->core_->context_.is_foreign_process()) return true;
  auto& core = *owner_->core_;
  const std::lock_guard lock(core.mutex_);
  if (!op_->has_ended()) core.progress();
  return op_->has_ended();
}

bool request::has_ended() const {
  if (op_ == nullptr || op_->is_unpooled || owner_->core_->context_.is_foreign_process()) return true;
  const std::lock_guard lock(owner_->core_->mutex_);
  return op_->has_ended();
}

bool request::poll() {
  if (op_ == nullptr || op_->is_unpooled || owner_->core_->context_.is_foreign_process()) return true;
  auto& core = *owner_->core_;
  const std::lock_guard lock(core.mutex_);
  for (int poll = 0; poll < kPollsAtOnce && !op_->has_ended(); ++poll)
    core.progress(poll == 0 || !core.channel_.has_local_peers());
  return op_->has_ended();
}

status request::wait(std::chrono::milliseconds limit) {
  if (op_ == nullptr || op_->is_unpooled) return outcome();
  auto& core = *owner_->core_;
  if (core.context_.is_foreign_process()) return kForeign;
  {
    const std::lock_guard lock(core.mutex_);
    if (op_->has_ended() && op_->code == 0) return {};
  }
  auto done = core.wait_until([&]() { return op_->has_ended() ? std::optional<status>(status{}) : std::nullopt; }, limit);
  return done ? outcome() : done;
}

status request::end_within(std::chrono::milliseconds limit) {
  const auto done = wait(limit);
  if (done.code() != ETIMEDOUT || is_empty() || is_refused()) return done;
  auto& core = *owner_->core_;
  core.reclaim_memory(*op_);
  const std::lock_guard lock(core.mutex_);
  // It may have ended just before the memory was taken back.
  if (!op_->has_ended() || op_->code == ECANCELED) return done;
  if (op_->code == ECONNRESET) return failure{ETIMEDOUT, done.error().message + "; " + outcome().error().message};
  return outcome();
}

bool request::is_refused() const noexcept { return op_ != nullptr && op_->is_unpooled && op_ != &g_sent_at_once; }

status request::cancel() {
  if (op_ == nullptr || op_->is_unpooled) return {};
  auto& core = *owner_->core_;
  if (core.context_.is_foreign_process()) return kForeign;
  const std::lock_guard lock(core.mutex_);
  return core.cancel(*op_);
}

// The operation has ended, so no other thread writes it.
status request::outcome() const {
  if (op_ == nullptr || op_->code == 0) return {};
  return failure{op_->code,
                 op_->message.empty() ? format("the operation failed: %s", errno_text(op_->code).c_str()) : op_->message};
}

const message_info& request::info() const {
  static const message_info kNone;
  if (op_ == &g_sent_at_once) return sent_;
  return op_ == nullptr ? kNone : op_->info;
}

// ---- matched_message and window

matched_message& matched_message::operator=(matched_message&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(op_, other.op_);
  return *this;
}

matched_message::~matched_message() {
  if (op_ == nullptr || owner_->core_->context_.is_foreign_process()) return;
  const std::lock_guard lock(owner_->core_->mutex_);
  owner_->core_->messages_.discard(*op_);
}

const message_info& matched_message::info() const {
  static const message_info kNone;
  return op_ == nullptr ? kNone : op_->info;
}

window& window::operator=(window&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(key_, other.key_);
  std::swap(data_, other.data_);
  return *this;
}

window::~window() {
  if (owner_ == nullptr || owner_->core_->context_.is_foreign_process()) return;
  if (auto done = owner_->end_window(key_.id, kTimeout, true); !done) PL_LOG(error, "%s", done.error().message.c_str());
}

status window::close(std::chrono::milliseconds limit) {
  if (owner_ == nullptr) return {};
  if (owner_->core_->context_.is_foreign_process()) return kForeign;
  auto done = owner_->end_window(key_.id, limit, false);
  if (done) owner_ = nullptr, data_ = nullptr;
  return done;
}

// ---- registration

struct messenger::registration::kept {
  copy::planner::registration registration;
};
messenger::registration::registration() = default;
messenger::registration::registration(registration&&) noexcept = default;
messenger::registration& messenger::registration::operator=(registration&&) noexcept = default;
messenger::registration::~registration() = default;

result<messenger::registration> messenger::register_memory(const buffer& memory) {
  if (core_->context_.is_foreign_process()) return kForeign;
  const std::lock_guard lock(core_->mutex_);
  auto range = core_->context_.buffers.inspect_lasting(memory);
  if (!range) return std::move(range).error();
  registration out;
  out.kept_ = std::make_unique<registration::kept>();
  if (!range->is_device) return out;  // host memory needs no registration
  auto made = core_->context_.buffers.planner()->register_memory(range->address, range->bytes);
  if (!made) return std::move(made).error();
  out.kept_->registration = *std::move(made);
  return out;
}

result<bool> messenger::is_device_memory(const buffer& memory) {
  if (core_->context_.is_foreign_process()) return kForeign;
  const std::lock_guard lock(core_->mutex_);
  auto range = core_->context_.buffers.inspect(memory);
  if (!range) return std::move(range).error();
  return range->is_device;
}

// ---- messenger

messenger::messenger(std::unique_ptr<messenger_core> core) : core_(std::move(core)) {}

messenger::~messenger() {
  g_live_jobs.add(-1);
  // A forked child has neither UCX's connections nor the GPU's context, so it has nothing to close.
  if (core_->context_.is_foreign_process()) static_cast<void>(core_.release());
}

result<std::unique_ptr<messenger>> messenger::open(const cu::driver_table* cuda, bootstrap& group,
                                                   const messenger_options& wanted) {
  if (group.size() < 1 || group.rank() < 0 || group.rank() >= group.size())
    return failure{EINVAL, format("rank %d of %d processes: the bootstrap is wrong", group.rank(), group.size())};
  publish_live_counters();
  auto made = std::make_unique<messenger_core>(cuda, wanted, group.rank(), group.size());
  if (auto done = made->open(group); !done) return std::move(done).error();
  auto out = std::unique_ptr<messenger>(new messenger(std::move(made)));
  g_live_jobs.add();
  if (out->core_->do_all_calibrate_)
    if (auto done = out->calibrate(group); !done) return std::move(done).error();
  if (wanted.progress_thread) {
    auto& core = *out->core_;
    if (auto done = core.thread_.emplace(core).start(); !done) return std::move(done).error();
  }
  return out;
}

status messenger::calibrate(bootstrap& group) {
  auto& core = *core_;
  const std::string key =
      handshake_key(core.context_.cuda, core.channel_.fabric() != nullptr ? core.channel_.fabric()->version() : "none");
  auto measured = measure_handshakes(*this, group, core.context_.limits, key);
  if (!measured) return std::move(measured).error();
  core.context_.limits =
      thresholds::choose(core.context_.options,
                         core.context_.buffers.has_gpu() ? &core.context_.buffers.planner()->costs() : nullptr, &*measured);
  core.context_.counts = {};
  return {};
}

int messenger::rank() const noexcept { return core_->context_.rank; }
int messenger::size() const noexcept { return core_->context_.size; }

#define PL_LINK_ENTER(kind)                                                                               \
  if (core_->context_.is_foreign_process())                                                               \
    return request(this, &core_->context_.failed(operation_kind::kind, kForeign.code, kForeign.message)); \
  const std::lock_guard lock(core_->mutex_)

request messenger::isend(int destination_rank, const buffer& data, std::uint64_t tag, tag_space space) {
  PL_LINK_ENTER(send);
  if (core_->messages_.send_at_once(destination_rank, data, tag, space))
    return request(this, {core_->context_.rank, tag, data.bytes});
  return request(this, &core_->messages_.isend(destination_rank, data, tag, space));
}
request messenger::await_failure() {
  PL_LINK_ENTER(failure);
  return request(this, &core_->failures_.begin());
}
request messenger::await_return() {
  PL_LINK_ENTER(arrival);
  return request(this, &core_->returns_.begin());
}
request messenger::irecv(int source_rank, const buffer& data, std::uint64_t tag, std::uint64_t mask, tag_space space) {
  PL_LINK_ENTER(receive);
  return request(this, &core_->messages_.irecv(source_rank, data, tag, mask, space));
}
request messenger::put(const window::key_t& key, std::uint64_t offset, const buffer& data) {
  PL_LINK_ENTER(put);
  if (core_->windows_.put_at_once(key, offset, data)) return request(this, message_info{});
  return request(this, &core_->windows_.put(key, offset, data));
}
request messenger::put_signal(const window::key_t& key, std::uint64_t offset, const buffer& data, const signal_word& word) {
  PL_LINK_ENTER(put);
  return request(this, &core_->windows_.put_signal(key, offset, data, word));
}
request messenger::get(const window::key_t& key, std::uint64_t offset, const buffer& data) {
  PL_LINK_ENTER(get);
  if (core_->windows_.get_at_once(key, offset, data)) return request(this, {key.rank, 0, data.bytes});
  return request(this, &core_->windows_.get(key, offset, data));
}
request messenger::atomic(const window::key_t& key, std::uint64_t offset, atomic_op op, std::uint64_t operand,
                          std::uint64_t compare, std::uint64_t* before) {
  PL_LINK_ENTER(atomic);
  return request(this, &core_->windows_.atomic(key, offset, {op, operand, compare}, before));
}
request messenger::receive(matched_message&& message, const buffer& data) {
  operation* const taken = std::exchange(message.op_, nullptr);
  PL_LINK_ENTER(receive);
  if (taken == nullptr)
    return request(this,
                   &core_->context_.failed(operation_kind::receive, EINVAL, "no message was taken: match() found none"));
  return request(this, &core_->messages_.receive_taken(*taken, data));
}
#undef PL_LINK_ENTER

status messenger::send(int destination_rank, const buffer& data, std::uint64_t tag, std::chrono::milliseconds limit) {
  if (core_->context_.is_foreign_process()) return kForeign;
  operation* op = nullptr;
  {
    const std::lock_guard lock(core_->mutex_);
    if (core_->messages_.send_at_once(destination_rank, data, tag, tag_space::user)) return {};
    op = &core_->messages_.isend(destination_rank, data, tag, tag_space::user);
    if (op->has_ended() && op->code == 0) return core_->context_.release(*op), status{};
  }
  return request(this, op).end_within(limit);
}

result<message_info> messenger::recv(int source_rank, const buffer& data, std::uint64_t tag, std::uint64_t mask,
                                     std::chrono::milliseconds limit) {
  auto received = irecv(source_rank, data, tag, mask);
  if (!received.op_->is_unpooled) {
    message_info info;
    // A successful receive is released within the same hold of the lock that sees its end.
    const auto seen = [&]() -> std::optional<status> {
      if (!received.op_->has_ended()) return std::nullopt;
      if (received.op_->code != 0) return status{};
      info = received.op_->info;
      core_->context_.release(*std::exchange(received.op_, nullptr));
      return status{};
    };
    const auto done = core_->wait_until(seen, limit);
    if (received.is_empty()) return info;
    if (!done)
      if (auto late = received.end_within(std::chrono::milliseconds(0)); !late) {
        if (late.code() == ETIMEDOUT) return failure{ETIMEDOUT, done.error().message};
        return std::move(late).error();
      }
  }
  if (auto done = received.outcome(); !done) return std::move(done).error();
  return received.info();
}

bool messenger::probe(int source_rank, std::uint64_t tag, std::uint64_t mask, message_info& found, tag_space space) {
  if (core_->context_.is_foreign_process()) return false;
  const std::lock_guard lock(core_->mutex_);
  core_->progress();
  const operation* const message = core_->messages_.find_message(source_rank, tag, mask, space, false);
  if (message == nullptr) return false;
  found = message->info;
  return true;
}

matched_message messenger::match(int source_rank, std::uint64_t tag, std::uint64_t mask, tag_space space) {
  if (core_->context_.is_foreign_process()) return {};
  const std::lock_guard lock(core_->mutex_);
  core_->progress();
  operation* const message = core_->messages_.find_message(source_rank, tag, mask, space, true);
  return message == nullptr ? matched_message{} : matched_message(this, message);
}

result<std::size_t> messenger::wait_any(std::span<const request* const> requests, std::chrono::milliseconds limit) {
  if (core_->context_.is_foreign_process()) return kForeign;
  std::size_t found = requests.size();
  if (std::all_of(requests.begin(), requests.end(), [](const request* each) { return each == nullptr; }))
    return failure{EINVAL, "no request to wait for"};
  const auto check = [&]() -> std::optional<status> {
    for (std::size_t i = 0; i < requests.size(); ++i)
      if (requests[i] != nullptr && (requests[i]->is_empty() || requests[i]->is_refused() || requests[i]->op_->has_ended()))
        return found = i, status{};
    return std::nullopt;
  };
  if (auto done = core_->wait_until(check, limit); !done) return std::move(done).error();
  return found;
}

result<window> messenger::expose(const buffer& memory) {
  if (core_->context_.is_foreign_process()) return kForeign;
  const std::lock_guard lock(core_->mutex_);
  auto key = core_->windows_.expose(memory);
  if (!key) return std::move(key).error();
  return window(this, *key);
}

result<window> messenger::allocate(std::size_t bytes) {
  if (core_->context_.is_foreign_process()) return kForeign;
  const std::lock_guard lock(core_->mutex_);
  auto made = core_->windows_.allocate(bytes);
  if (!made) return std::move(made).error();
  return window(this, made->first, made->second);
}

status messenger::flush(int destination_rank, std::chrono::milliseconds limit) {
  if (core_->context_.is_foreign_process()) return kForeign;
  if (destination_rank < 0 || destination_rank >= size()) return *core_->context_.refuses_peer(destination_rank);
  return core_->wait_until(
      [&]() -> std::optional<status> {
        if (auto refused = core_->context_.refuses_peer(destination_rank)) return status(*std::move(refused));
        if (core_->context_.peer(destination_rank).puts == 0) return status{};
        return std::nullopt;
      },
      limit);
}

result<std::uint64_t> messenger::wait_signal(const window::key_t& own, std::uint64_t offset, std::uint64_t least,
                                             std::chrono::milliseconds limit) {
  if (core_->context_.is_foreign_process()) return kForeign;
  if (own.rank != rank())
    return failure{EINVAL, format("the window is rank %d's: a process waits for words of its own windows", own.rank)};
  std::uint64_t seen = 0;
  auto done = core_->wait_until(
      [&]() -> std::optional<status> {
        const auto word = core_->windows_.read_word(own.id, offset);
        if (!word) return status(word.error());
        seen = *word;
        return seen >= least ? std::optional<status>(status{}) : std::nullopt;
      },
      limit, false);
  if (!done) return std::move(done).error();
  return seen;
}

bool messenger::progress() {
  if (core_->context_.is_foreign_process()) return false;
  const std::lock_guard lock(core_->mutex_);
  return core_->progress();
}

result<int> messenger::event_descriptor() {
  if (core_->context_.is_foreign_process()) return kForeign;
  const std::lock_guard lock(core_->mutex_);
  return core_->thread_ ? core_->context_.wake.user_descriptor() : core_->open_descriptor();
}

status messenger::arm() {
  if (core_->context_.is_foreign_process()) return kForeign;
  const std::lock_guard lock(core_->mutex_);
  if (core_->thread_) {
    if (auto made = core_->context_.wake.user_descriptor(); !made) return std::move(made).error();
    return core_->context_.wake.arm_user();
  }
  if (auto made = core_->open_descriptor(); !made) return std::move(made).error();
  return core_->arm_owner();
}

// One thread at a time: a second thread enters the next barrier.
status messenger::barrier(std::chrono::milliseconds limit) {
  if (core_->context_.is_foreign_process()) return kForeign;
  auto& core = *core_;
  bool is_mine = false;
  auto done = core.wait_until(
      [&]() -> std::optional<status> {
        is_mine = is_mine || core.barrier_.enter();
        return is_mine ? core.barrier_.advance() : std::nullopt;
      },
      limit);
  const std::lock_guard lock(core.mutex_);
  if (is_mine) core.barrier_.leave();
  core.context_.wake.note();  // a thread may wait to enter the next one
  if (done.code() != ETIMEDOUT) return done;
  return failure{ETIMEDOUT, done.error().message + ": not every process has called the barrier; the next call continues it"};
}

status messenger::peer_state(int rank) const {
  const std::lock_guard lock(core_->mutex_);
  if (auto refused = core_->context_.refuses_peer(rank)) return *std::move(refused);
  return {};
}

// ---- Ranks that come back

void messenger::allow_returns(bool is_let) {
  const std::lock_guard lock(core_->mutex_);
  core_->returns_.allow_all(is_let);
}

bool messenger::is_elastic() const { return core_->returns_.is_open(); }

std::uint32_t messenger::incarnation(int peer) const {
  const std::lock_guard lock(core_->mutex_);
  return core_->context_.peer(peer).incarnation;
}

std::uint64_t messenger::losses() const {
  const std::lock_guard lock(core_->mutex_);
  return core_->returns_.losses();
}

std::string messenger::awaited_for_return(int rank) const {
  const std::lock_guard lock(core_->mutex_);
  return core_->returns_.awaited(rank);
}

std::uint64_t messenger::last_barrier() const {
  const std::lock_guard lock(core_->mutex_);
  return core_->barrier_.number();
}

void messenger::continue_barriers(std::uint64_t number, std::uint64_t losses) {
  const std::lock_guard lock(core_->mutex_);
  if (core_->returns_.losses() == losses) core_->barrier_.continue_at(number);
}

void messenger::drop_collective_messages(const std::function<bool(std::uint64_t)>& is_unwanted) {
  const std::lock_guard lock(core_->mutex_);
  core_->messages_.drop_messages(tag_space::collective, is_unwanted);
}

void messenger::accept_rejoins(std::string opening_text) {
  const std::lock_guard lock(core_->mutex_);
  core_->returns_.accept_rejoins(std::move(opening_text));
}

bool messenger::is_gpu_shared(int ordinal) const {
  const std::lock_guard lock(core_->mutex_);
  return core_->context_.gpu_use.is_shared(ordinal);
}

std::size_t messenger::packet_limit(int peer) {
  auto& core = *core_;
  if (core.context_.is_foreign_process() || core.context_.refuses_peer(peer) || peer == core.context_.rank) return 0;
  const std::lock_guard lock(core.mutex_);
  if (core.context_.peer(peer).is_same_node || core.channel_.fabric() == nullptr ||
      core.channel_.fabric()->has_rdma_lane(peer))
    return 0;
  return core.context_.limits.eager_host_network;
}

bool messenger::is_same_node(int peer) const {
  return peer == rank() || (peer >= 0 && peer < size() && core_->context_.peer(peer).is_same_node);
}

messenger::statistics messenger::counts() const {
  const std::lock_guard lock(core_->mutex_);
  auto out = core_->context_.counts;
  out.operations = core_->context_.operations.in_use();
  out.comparisons = core_->messages_.comparisons();
  return out;
}

}  // namespace pl::messaging
