// SPDX-License-Identifier: Apache-2.0
// The interface over the engine: the lock, waiting, and what a forked child may not do.
#include "messaging/messenger.hpp"

#include <sched.h>

#include <algorithm>

#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/message_calibration.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::link {
namespace {

const failure kForeign{EACCES, "the messenger belongs to the parent process: open one in this process"};

// Polls hot for some microseconds, then lets others of this CPU run: with more processes than CPUs the peer may be one.
class backoff {
 public:
  void pause() noexcept {
    constexpr unsigned kHot = 30;
    if (++rounds_ < kHot) arch::relax();
    else sched_yield();
  }

 private:
  unsigned rounds_ = 0;
};

}  // namespace

// `done` answers under the lock: nothing while it goes on. Peers of the node are asked some times in one hold of the lock,
// which costs as much as asking them, and so does a pause; the network, which costs more, once.
template <class Done>
status engine::wait_until(Done done, std::chrono::milliseconds limit) {
  constexpr int kPollsAtOnce = 16;
  constexpr unsigned kLooksBetweenClocks = 16;
  const bool has_limit = limit.count() >= 0;
  const auto deadline = has_limit ? monotonic_ns() + static_cast<std::uint64_t>(limit.count()) * 1'000'000u : 0;
  unsigned looks = 0;
  for (backoff idle;;) {
    bool has_moved = false;
    {
      const std::lock_guard lock(mutex_);
      for (int poll = 0; poll < kPollsAtOnce && !has_moved; ++poll) {
        if (std::optional<status> ended = done()) return *std::move(ended);
        has_moved = progress(poll == 0 || lane_peers_.empty());
      }
      if (std::optional<status> ended = done()) return *std::move(ended);
    }
    // Also while others' messages keep moving.
    if (has_limit && looks++ % kLooksBetweenClocks == 0 && monotonic_ns() >= deadline)
      return failure{ETIMEDOUT, format("not done within %lld ms", static_cast<long long>(limit.count()))};
    if (!has_moved) idle.pause();
  }
}

// First as long as its peer may answer what cancel() asks of it: a message that was taken meanwhile is not lost then. A peer
// that has not answered, and of which nothing was heard since, is not waited for again.
void engine::take_back(operation& what) {
  constexpr std::chrono::milliseconds kAnswer{200}, kRevoked{1000};
  int peer_rank = kAnySource;
  bool is_silent = false;
  {
    const std::lock_guard lock(mutex_);
    static_cast<void>(cancel(what));
    if (what.has_ended()) return;
    peer_rank = what.peer;
    is_silent = peer(peer_rank).silent_at == heard_of(peer_rank);
  }
  const auto ended = [&]() -> std::optional<status> {
    return what.has_ended() ? std::optional<status>(status{}) : std::nullopt;
  };
  if (!is_silent && wait_until(ended, kAnswer)) return;
  const auto revoked = [&]() -> std::optional<status> {
    return revoke(what) ? std::optional<status>(status{}) : std::nullopt;
  };
  if (wait_until(revoked, is_silent ? std::chrono::milliseconds(0) : kRevoked)) {
    const std::lock_guard lock(mutex_);
    if (!is_silent) peer(peer_rank).silent_at = heard_of(peer_rank);
    return;
  }
  {
    // UCX moves it and the peer takes nothing: only without their connection is the memory free.
    const std::lock_guard lock(mutex_);
    if (!peer(peer_rank).lane_out.is_open())
      lose(peer_rank, "takes nothing, and a message to or from it was given up: the connection was closed");
  }
  if (!wait_until(revoked, kRevoked))
    PL_LOG(error, "rank %d: the memory of a message that was given up may still be in use", peer_rank);
}

status messenger::end_window(std::uint32_t id, std::chrono::milliseconds limit, bool is_last_word) {
  auto& in = *engine_;
  int user = kAnySource;
  {
    const std::lock_guard lock(in.mutex_);
    in.end_window(id);
  }
  auto done = in.wait_until(
      [&]() -> std::optional<status> {
        user = in.user_of_window(id);
        if (user < 0) return status{};
        const bool is_silent = is_last_word && in.peer(user).silent_at == in.heard_of(user);
        return is_silent ? std::optional<status>(failure{ETIMEDOUT, "it has not answered before"}) : std::nullopt;
      },
      limit);
  if (done) return {};
  const std::lock_guard lock(in.mutex_);
  in.peer(user).silent_at = in.heard_of(user);
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
    of_ = std::exchange(other.of_, nullptr);
  }
  return *this;
}

request::~request() { drop(); }

void request::drop() noexcept {
  operation* const of = std::exchange(of_, nullptr);
  if (of == nullptr) return;
  auto& in = *owner_->engine_;
  if (of->is_loose) return in.release(*of);
  if (in.is_foreign_process()) return;
  in.take_back(*of);
  const std::lock_guard lock(in.mutex_);
  in.release(*of);
}

bool request::test() {
  if (of_ == nullptr || of_->is_loose || owner_->engine_->is_foreign_process()) return true;
  auto& in = *owner_->engine_;
  const std::lock_guard lock(in.mutex_);
  if (!of_->has_ended()) in.progress();
  return of_->has_ended();
}

status request::wait(std::chrono::milliseconds limit) {
  if (of_ == nullptr || of_->is_loose) return outcome();
  auto& in = *owner_->engine_;
  if (in.is_foreign_process()) return kForeign;
  auto done = in.wait_until([&]() { return of_->has_ended() ? std::optional<status>(status{}) : std::nullopt; }, limit);
  return done ? outcome() : done;
}

status request::end_within(std::chrono::milliseconds limit) {
  const auto done = wait(limit);
  if (done.code() != ETIMEDOUT || is_empty() || is_refused()) return done;
  auto& in = *owner_->engine_;
  in.take_back(*of_);
  const std::lock_guard lock(in.mutex_);
  // It may have ended well, or as it would have anyhow, just before it was taken back.
  if (!of_->has_ended() || of_->code == ECANCELED) return done;
  if (of_->code == ECONNRESET) return failure{ETIMEDOUT, done.error().message + "; " + outcome().error().message};
  return outcome();
}

bool request::is_refused() const noexcept { return of_ != nullptr && of_->is_loose; }

status request::cancel() {
  if (of_ == nullptr || of_->is_loose) return {};
  auto& in = *owner_->engine_;
  if (in.is_foreign_process()) return kForeign;
  const std::lock_guard lock(in.mutex_);
  return in.cancel(*of_);
}

// The operation has ended, so nobody else writes it any more.
status request::outcome() const {
  if (of_ == nullptr || of_->code == 0) return {};
  return failure{of_->code,
                 of_->message.empty() ? format("the operation failed: %s", errno_text(of_->code).c_str()) : of_->message};
}

const message_info& request::info() const {
  static const message_info kNone;
  return of_ == nullptr ? kNone : of_->info;
}

// ---- matched_message and window

matched_message& matched_message::operator=(matched_message&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(of_, other.of_);
  return *this;
}

matched_message::~matched_message() {
  if (of_ == nullptr || owner_->engine_->is_foreign_process()) return;
  const std::lock_guard lock(owner_->engine_->mutex_);
  owner_->engine_->discard(*of_);
}

const message_info& matched_message::info() const {
  static const message_info kNone;
  return of_ == nullptr ? kNone : of_->info;
}

window& window::operator=(window&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(key_, other.key_);
  return *this;
}

window::~window() {
  if (owner_ == nullptr || owner_->engine_->is_foreign_process()) return;
  if (auto done = owner_->end_window(key_.id, kPatience, true); !done) PL_LOG(error, "%s", done.error().message.c_str());
}

status window::close(std::chrono::milliseconds limit) {
  if (owner_ == nullptr) return {};
  if (owner_->engine_->is_foreign_process()) return kForeign;
  auto done = owner_->end_window(key_.id, limit, false);
  if (done) owner_ = nullptr;
  return done;
}

// ---- registration

struct messenger::registration::kept {
  copy::planner::registration of;
};
messenger::registration::registration() = default;
messenger::registration::registration(registration&&) noexcept = default;
messenger::registration& messenger::registration::operator=(registration&&) noexcept = default;
messenger::registration::~registration() = default;

result<messenger::registration> messenger::register_memory(const buffer& memory) {
  if (engine_->is_foreign_process()) return kForeign;
  const std::lock_guard lock(engine_->mutex_);
  auto at = engine_->memory_.look(memory);
  if (!at) return std::move(at).error();
  registration out;
  out.kept_ = std::make_unique<registration::kept>();
  if (!at->is_device) return out;  // host memory is reached as it is
  auto made = engine_->memory_.planner()->register_memory(at->address, at->bytes);
  if (!made) return std::move(made).error();
  out.kept_->of = *std::move(made);
  return out;
}

// ---- messenger

messenger::messenger(std::unique_ptr<engine> of) : engine_(std::move(of)) {}

messenger::~messenger() {
  g_live_jobs.add(-1);
  // A child has inherited neither UCX's connections nor the GPU's context: there is nothing that it could close.
  if (engine_->is_foreign_process()) static_cast<void>(engine_.release());
}

result<std::unique_ptr<messenger>> messenger::open(const cu::driver_table* cuda, bootstrap& with,
                                                   const messenger_options& wanted) {
  if (with.size() < 1 || with.rank() < 0 || with.rank() >= with.size())
    return failure{EINVAL, format("rank %d of %d processes: the bootstrap is wrong", with.rank(), with.size())};
  publish_live_counters();
  auto made = std::make_unique<engine>(cuda, wanted, with.rank(), with.size());
  if (auto done = made->open(with); !done) return std::move(done).error();
  auto out = std::unique_ptr<messenger>(new messenger(std::move(made)));
  g_live_jobs.add();
  if (out->engine_->do_all_calibrate_)
    if (auto done = out->calibrate(with); !done) return std::move(done).error();
  return out;
}

status messenger::calibrate(bootstrap& with) {
  auto& in = *engine_;
  const std::string key = handshake_key(in.cuda_, in.fabric_ != nullptr ? in.fabric_->version() : "none");
  auto measured = measure_handshakes(*this, with, in.limits_, key);
  if (!measured) return std::move(measured).error();
  in.limits_ = crossovers::from(in.options_, in.memory_.has_gpu() ? &in.memory_.planner()->costs() : nullptr, &*measured);
  in.counts_ = {};
  return {};
}

int messenger::rank() const noexcept { return engine_->rank_; }
int messenger::size() const noexcept { return engine_->size_; }

#define PL_LINK_ENTER(kind)                                                                        \
  if (engine_->is_foreign_process())                                                               \
    return request(this, &engine_->failed(operation_kind::kind, kForeign.code, kForeign.message)); \
  const std::lock_guard lock(engine_->mutex_)

request messenger::isend(int to, const buffer& from, std::uint64_t tag) {
  PL_LINK_ENTER(send);
  return request(this, &engine_->isend(to, from, tag));
}
request messenger::irecv(int from, const buffer& to, std::uint64_t tag, std::uint64_t mask) {
  PL_LINK_ENTER(receive);
  return request(this, &engine_->irecv(from, to, tag, mask));
}
request messenger::put(const window::key_t& to, std::uint64_t offset, const buffer& from) {
  PL_LINK_ENTER(put);
  return request(this, &engine_->put(to, offset, from));
}
request messenger::get(const window::key_t& from, std::uint64_t offset, const buffer& to) {
  PL_LINK_ENTER(get);
  return request(this, &engine_->get(from, offset, to));
}
request messenger::atomic(const window::key_t& at, std::uint64_t offset, atomic_op what, std::uint64_t operand,
                          std::uint64_t compare, std::uint64_t* before) {
  PL_LINK_ENTER(atomic);
  return request(this, &engine_->atomic(at, offset, {what, operand, compare}, before));
}
request messenger::receive(matched_message&& message, const buffer& to) {
  operation* const taken = std::exchange(message.of_, nullptr);
  PL_LINK_ENTER(receive);
  if (taken == nullptr)
    return request(this, &engine_->failed(operation_kind::receive, EINVAL, "no message was taken: match() found none"));
  return request(this, &engine_->receive_taken(*taken, to));
}
#undef PL_LINK_ENTER

status messenger::send(int to, const buffer& from, std::uint64_t tag, std::chrono::milliseconds limit) {
  if (engine_->is_foreign_process()) return kForeign;
  operation* of = nullptr;
  {
    const std::lock_guard lock(engine_->mutex_);
    of = &engine_->isend(to, from, tag);
    if (of->has_ended() && of->code == 0) return engine_->release(*of), status{};
  }
  return request(this, of).end_within(limit);
}

result<message_info> messenger::recv(int from, const buffer& to, std::uint64_t tag, std::uint64_t mask,
                                     std::chrono::milliseconds limit) {
  auto received = irecv(from, to, tag, mask);
  if (!received.of_->is_loose) {
    message_info info;
    // One that ends well is released by the hold of the lock that sees its end.
    const auto seen = [&]() -> std::optional<status> {
      if (!received.of_->has_ended()) return std::nullopt;
      if (received.of_->code != 0) return status{};
      info = received.of_->info;
      engine_->release(*std::exchange(received.of_, nullptr));
      return status{};
    };
    const auto done = engine_->wait_until(seen, limit);
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

bool messenger::probe(int from, std::uint64_t tag, std::uint64_t mask, message_info& found) {
  if (engine_->is_foreign_process()) return false;
  const std::lock_guard lock(engine_->mutex_);
  engine_->progress();
  const operation* const message = engine_->find_message(from, tag, mask, false);
  if (message == nullptr) return false;
  found = message->info;
  return true;
}

matched_message messenger::match(int from, std::uint64_t tag, std::uint64_t mask) {
  if (engine_->is_foreign_process()) return {};
  const std::lock_guard lock(engine_->mutex_);
  engine_->progress();
  operation* const message = engine_->find_message(from, tag, mask, true);
  return message == nullptr ? matched_message{} : matched_message(this, message);
}

result<std::size_t> messenger::wait_any(std::span<const request* const> of, std::chrono::milliseconds limit) {
  if (engine_->is_foreign_process()) return kForeign;
  std::size_t found = of.size();
  if (std::all_of(of.begin(), of.end(), [](const request* each) { return each == nullptr; }))
    return failure{EINVAL, "no request to wait for"};
  const auto look = [&]() -> std::optional<status> {
    for (std::size_t i = 0; i < of.size(); ++i)
      if (of[i] != nullptr && (of[i]->is_empty() || of[i]->is_refused() || of[i]->of_->has_ended()))
        return found = i, status{};
    return std::nullopt;
  };
  if (auto done = engine_->wait_until(look, limit); !done) return std::move(done).error();
  return found;
}

result<window> messenger::expose(const buffer& memory) {
  if (engine_->is_foreign_process()) return kForeign;
  const std::lock_guard lock(engine_->mutex_);
  auto key = engine_->expose(memory);
  if (!key) return std::move(key).error();
  return window(this, *key);
}

status messenger::flush(int to, std::chrono::milliseconds limit) {
  if (engine_->is_foreign_process()) return kForeign;
  if (to < 0 || to >= size()) return *engine_->refuses_peer(to);
  return engine_->wait_until(
      [&]() -> std::optional<status> {
        if (auto refused = engine_->refuses_peer(to)) return status(*std::move(refused));
        if (engine_->peer(to).puts == 0) return status{};
        return std::nullopt;
      },
      limit);
}

bool messenger::progress() {
  if (engine_->is_foreign_process()) return false;
  const std::lock_guard lock(engine_->mutex_);
  return engine_->progress();
}

// One thread at a time: another one's barrier is the next.
status messenger::barrier(std::chrono::milliseconds limit) {
  if (engine_->is_foreign_process()) return kForeign;
  auto& in = *engine_;
  bool is_mine = false;
  auto done = in.wait_until(
      [&]() -> std::optional<status> {
        if (!is_mine && in.barrier_.is_attended) return std::nullopt;
        is_mine = in.barrier_.is_attended = true;
        return in.advance_barrier();
      },
      limit);
  const std::lock_guard lock(in.mutex_);
  if (is_mine) in.barrier_.is_attended = false;
  if (done.code() != ETIMEDOUT) return done;
  return failure{ETIMEDOUT, done.error().message + ": not every process came to the barrier; the next call goes on with it"};
}

status messenger::peer_state(int of) const {
  const std::lock_guard lock(engine_->mutex_);
  if (auto refused = engine_->refuses_peer(of)) return *std::move(refused);
  return {};
}

bool messenger::is_same_node(int of) const {
  return of == rank() || (of >= 0 && of < size() && engine_->peer(of).is_same_node);
}

messenger::statistics messenger::counts() const {
  const std::lock_guard lock(engine_->mutex_);
  auto out = engine_->counts_;
  out.operations = engine_->operations_.in_use();
  return out;
}

}  // namespace pl::link
