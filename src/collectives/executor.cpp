// SPDX-License-Identifier: Apache-2.0
// How collectives begin, advance and fail. What each of them consists of is in operation.cpp and the *_algorithms.cpp.
#include "collectives/executor.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "arch/mmio.hpp"
#include "base/attended_time.hpp"
#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/text.hpp"
#include "collectives/running.hpp"

namespace pl::collectives {
namespace {

using messaging::kAnySource;
using messaging::kWholeTag;
using messaging::tag_space;

// A tag: epoch (16 bits, counted by restore), then 0 and the number of the collective, or 1 for notices.
constexpr unsigned kEpochShift = 48;
constexpr std::uint64_t kNoticeTag = std::uint64_t{1} << 47;
constexpr std::uint64_t kEpochMask = ~std::uint64_t{0} << kEpochShift;
constexpr std::uint64_t kSequenceMask = kNoticeTag - 1;

constexpr std::size_t kIsSend = SIZE_MAX;
// A line for each collective and range of sizes takes some KiB.
constexpr std::size_t kMaxTableBytes = 1 << 20;
// Idle rounds of a wait between two looks for notices of other ranks.
constexpr unsigned kRoundsBetweenPolls = 64;

result<std::string> table_text() {
  const std::string path = env_read("PEERLANE_COLLECTIVES_TABLE").text;
  if (path.empty()) return std::string();
  std::error_code unknown;
  // Not a pipe, which might wait for ever, nor a device without an end.
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, unknown)) file.open(path);
  if (!file.is_open())
    return failure{ENOENT,
                   format("PEERLANE_COLLECTIVES_TABLE names %s, which is not a file that can be read: correct or unset it",
                          path.c_str())};
  std::string text(kMaxTableBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxTableBytes)
    return failure{EINVAL,
                   format("PEERLANE_COLLECTIVES_TABLE names %s, which is longer than a table can be (1 MiB)", path.c_str())};
  return text;
}

}  // namespace

// ---- Opening, and the end

executor::executor(messaging::messenger& messages, algorithm_table table)
    : messages_(messages), own_{messages.rank(), messages.size()}, table_(std::move(table)) {}

// Rank 0's table, and its failure to have one, are everybody's.
result<std::unique_ptr<executor>> executor::open(messaging::messenger& messages, messaging::bootstrap& group) {
  std::string text;
  status problem;
  if (messages.rank() == 0) {
    auto read = table_text();
    auto parsed = read ? algorithm_table::parse(*read) : result<algorithm_table>(read.error());
    if (parsed) text = *read;
    else problem = parsed.error(), text = "!" + parsed.error().message;
  }
  if (messages.size() > 1) {
    auto all = group.all_gather(std::as_bytes(std::span(text)));
    if (!all) return std::move(all).error();
    const auto& first = all->front();
    text.assign(reinterpret_cast<const char*>(first.data()), first.size());
  }
  if (!problem) return std::move(problem).error();
  if (text.starts_with('!')) return failure{EINVAL, "rank 0: " + text.substr(1)};
  auto table = algorithm_table::parse(text);
  if (!table) return std::move(table).error();
  messages.accept_rejoins(text);
  auto made = std::unique_ptr<executor>(new executor(messages, *std::move(table)));
  if (messages.is_elastic()) made->rejoin_agreement_.emplace(messages);
  return made;
}

executor::~executor() = default;

// ---- Beginning

result<running*> executor::prepare(collective kind) {
  const std::lock_guard lock(mutex_);
  if (rejoin_agreement_) note_losses();
  if (stopped_) return failure{stopped_->code, "collectives are stopped until all ranks restore them: " + stopped_->message};
  if (free_.empty()) {
    all_.push_back(std::make_unique<running>());
    free_.push_back(all_.back().get());
  }
  running* const out = free_.back();
  free_.pop_back();
  out->kind = kind;
  return out;
}

operation executor::begin(running& one) {
  const std::lock_guard lock(mutex_);
  one.sequence = sequence_++ & kSequenceMask;
  pending_.push_back(&one);
  if (stopped_) {  // by another thread, since prepare()
    one.has_ended = true;
    one.outcome = *stopped_;
    pending_.pop_back();
  } else {
    advance(one, false);
    // A failure has ended all of them and emptied the list.
    if (one.has_ended && !pending_.empty()) pending_.pop_back();
  }
  return operation(this, &one);
}

std::uint64_t executor::tag_of(std::uint64_t sequence) const noexcept { return epoch_ << kEpochShift | sequence; }

// ---- Advancing

// True: something moved.
bool executor::advance(running& one, bool polls) {
  bool has_moved = false;
  const auto& steps = one.steps.steps();
  while (!one.has_ended && one.next < steps.size()) {
    if (!run_step(one, steps[one.next], polls)) return has_moved;
    ++one.next;
    has_moved = true;
  }
  if (!one.has_ended && !finish(one, polls)) return has_moved;
  return true;
}

// False: it has to wait. A failure ends the collective, and so the steps.
bool executor::run_step(running& one, const step& next, bool polls) {
  switch (next.kind) {
    case step::kind_t::wait:
      return check_message(one, next.token, polls);
    case step::kind_t::copy:
      std::memcpy(next.out.pointer(), next.first.pointer(), next.amount);
      return true;
    case step::kind_t::combine:
      if (next.out.is_device()) return combine_on_device(one, next);
      combine(next.type, next.op, next.first.pointer(), next.second.pointer(), next.out.pointer(), next.amount);
      return true;
    case step::kind_t::send:
    case step::kind_t::receive:
      break;
  }
  const bool is_send = next.kind == step::kind_t::send;
  const buffer memory{next.first.address, next.amount, next.first.kind};
  const auto tag = tag_of(one.sequence);
  one.requests.push_back(is_send ? messages_.isend(next.peer, memory, tag, tag_space::collective)
                                 : messages_.irecv(next.peer, memory, tag, kWholeTag, tag_space::collective));
  one.wanted.push_back(is_send ? kIsSend : next.amount);
  return true;
}

// False: the GPU is at it. A failure ends the collective.
bool executor::combine_on_device(running& one, const step& next) {
  auto* const combiner = one.steps.combiner();
  result<bool> has_ended = false;
  if (one.combination == 0) {
    const auto begun =
        combiner->begin(next.type, next.op, next.first.address, next.second.address, next.out.address, next.amount);
    if (begun) one.combination = *begun;
    else has_ended = begun.error();
  }
  if (has_ended) has_ended = combiner->has_ended(one.combination);
  if (has_ended && !*has_ended) return false;
  one.combination = 0;
  if (!has_ended) stop(has_ended.code(), format("%s: %s", name_of(one.kind), has_ended.error().message.c_str()));
  return true;
}

// False: the message has not ended. True also where it has failed, and with it the collective.
bool executor::check_message(running& one, std::uint32_t token, bool polls) {
  auto& request = one.requests[token];
  if (polls ? !request.poll() : !request.has_ended()) return false;
  const auto& info = request.info();
  const std::size_t wanted = one.wanted[token];
  auto outcome = request.outcome();
  if (outcome.ok() && (wanted == kIsSend || info.bytes == wanted)) return true;
  if (outcome.ok() || outcome.code() == EMSGSIZE)
    outcome = failure{EMSGSIZE, format("rank %d sent %zu bytes where rank %d expects %zu: the ranks' counts or collectives "
                                       "differ",
                                       info.source, info.bytes, own_.rank, wanted)};
  // A rank that stopped took its messages back after its notice, which says why.
  poll_notices();
  stop(outcome.code(), format("%s: %s", name_of(one.kind), outcome.error().message.c_str()));
  return true;
}

bool executor::finish(running& one, bool polls) {
  for (; one.settled < one.requests.size(); ++one.settled) {
    if (!check_message(one, one.settled, polls)) return false;
    if (one.has_ended) return true;
  }
  one.has_ended = true;
  one.requests.clear();
  return true;
}

// All that is under way, in order. `polled`, if not null, looks at the queues until its message is there.
bool executor::advance_all(const running* polled) {
  bool has_moved = false;
  for (std::size_t i = 0; i < pending_.size() && !stopped_; ++i)
    has_moved = advance(*pending_[i], pending_[i] == polled) || has_moved;
  if (has_moved) std::erase_if(pending_, [](const running* each) { return each->has_ended; });
  return has_moved;
}

bool executor::progress() {
  const std::lock_guard lock(mutex_);
  messages_.progress();
  if (++rounds_ % kRoundsBetweenPolls == 0) poll_notices();
  return advance_all(nullptr);
}

bool executor::has_pending() const {
  const std::lock_guard lock(mutex_);
  return !pending_.empty();
}

// ---- Failing

void executor::stop(int code, const std::string& reason) {
  if (stopped_) return;
  stopped_ = failure{code, reason};
  notice_ = {code, own_.rank};
  for (running* const each : pending_) {
    each->has_ended = true;
    each->outcome = *stopped_;
  }
  // Every rank tells every other one: the first that tells may itself be gone before it has told all. A rank that has come
  // back and not begun yet has nothing to tell.
  const bool is_new = rejoin_agreement_ && epoch_ == 0 && messages_.incarnation(own_.rank) > 1;
  for (int distance = 1; distance < own_.size; ++distance)
    if (const int peer = own_.after(distance); !is_new && messages_.peer_state(peer).ok())
      notices_.push_back(messages_.isend(peer, messaging::host_buffer(&notice_, sizeof notice_), tag_of(kNoticeTag),
                                         tag_space::collective));
  // After the notices: taking memory back may wait for a peer. The callers still look at their own messages, so these end
  // with the collective, and not here.
  for (running* const each : pending_)
    for (auto& request : each->requests) static_cast<void>(request.end_within(std::chrono::milliseconds(0)));
  pending_.clear();
}

void executor::poll_notices() {
  if (stopped_) return;
  auto found = messages_.match(kAnySource, tag_of(kNoticeTag), kWholeTag, tag_space::collective);
  if (found.is_empty()) return;
  failure_notice notice;
  auto received = messages_.receive(std::move(found), messaging::host_buffer(&notice, sizeof notice));
  if (!received.has_ended() || !received.outcome().ok()) return;
  const char* const reason = notice.code == ECONNRESET ? "a rank is gone" : "a collective failed or was abandoned there";
  stop(notice.code,
       format("rank %d stopped the collectives: %s (%s)", notice.rank, reason, errno_text(notice.code).c_str()));
}

// What ranks had sent to collectives that have failed.
void executor::discard_epoch() {
  while (!messages_.match(kAnySource, tag_of(0), kEpochMask, tag_space::collective).is_empty()) continue;
}

// A barrier of which every rank learns that a rank is gone, not only its neighbours.
status executor::meet_all(std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kPollInterval{20};
  const auto begin = monotonic_ns();
  for (;;) {
    for (int peer = 0; peer < own_.size; ++peer)
      if (auto alive = messages_.peer_state(peer); !alive) return alive;
    const auto passed = std::chrono::milliseconds((monotonic_ns() - begin) / 1'000'000u);
    const bool is_last = limit.count() >= 0 && limit - passed <= kPollInterval;
    auto done = messages_.barrier(is_last ? std::max(limit - passed, std::chrono::milliseconds(0)) : kPollInterval);
    if (done.code() != ETIMEDOUT || is_last) return done;
  }
}

// A rank that was lost between two collectives, and may be back: it knows nothing of their numbers.
void executor::note_losses() {
  if (messages_.losses() != seen_losses_)
    stop(ECONNRESET, own_.size > 1 && messages_.incarnation(own_.rank) > 1 && seen_losses_ == 0
                         ? format("rank %d has come back", own_.rank)
                         : "a rank was lost");
}

// Notices of the last epoch do not reach a rank that has the next one already: who stays stopped stops all once more.
status executor::begin_anew(std::chrono::milliseconds limit) {
  const auto agreed = rejoin_agreement_->run(epoch_, limit);
  if (!agreed) return agreed.error();
  const std::lock_guard lock(mutex_);
  notices_.clear();
  epoch_ = agreed->epoch % (messaging::kReservedTags >> kEpochShift);
  const auto current = tag_of(0);
  messages_.drop_collective_messages(
      [&](std::uint64_t tag) { return (tag & kEpochMask) != current && (tag & kEpochMask) != messaging::kReservedTags; });
  sequence_ = 0;
  messages_.continue_barriers(agreed->barrier, agreed->losses);
  seen_losses_ = agreed->losses;
  stopped_.reset();
  if (agreed->is_whole) return {};
  stop(ECONNRESET, "a rank was lost");
  return failure{ECONNRESET, "another rank was lost during the recovery: all ranks must call this again"};
}

status executor::restore(std::chrono::milliseconds limit) {
  {
    const std::lock_guard lock(mutex_);
    stop(ECANCELED, format("rank %d restores them", own_.rank));
  }
  if (rejoin_agreement_) return begin_anew(limit);
  if (auto done = meet_all(limit); !done) return done;
  const std::lock_guard lock(mutex_);
  discard_epoch();
  notices_.clear();
  ++epoch_;
  sequence_ = 0;
  stopped_.reset();
  return {};
}

void executor::recycle(running& one) {
  one.requests.clear();
  one.wanted.clear();
  one.steps.clear();
  one.next = 0;
  one.combination = 0;
  one.settled = 0;
  one.has_ended = false;
  one.outcome = {};
  free_.push_back(&one);
}

// ---- operation

operation& operation::operator=(operation&& other) noexcept {
  if (this != &other) {
    drop();
    owner_ = std::exchange(other.owner_, nullptr);
    running_ = std::exchange(other.running_, nullptr);
  }
  return *this;
}

void operation::drop() noexcept {
  running* const one = std::exchange(running_, nullptr);
  if (one == nullptr) return;
  const std::lock_guard lock(owner_->mutex_);
  if (!one->has_ended) owner_->stop(ECANCELED, format("rank %d gave up its %s", owner_->rank(), name_of(one->kind)));
  owner_->recycle(*one);
}

bool operation::test() {
  if (running_ == nullptr) return true;
  owner_->progress();
  return has_ended();
}

bool operation::has_ended() const {
  if (running_ == nullptr) return true;
  const std::lock_guard lock(owner_->mutex_);
  return running_->has_ended;
}

status operation::wait(std::chrono::milliseconds limit) {
  constexpr unsigned kHot = 30;  // rounds before other processes may have the CPU
  constexpr unsigned kRoundsBetweenClocks = 16;
  std::optional<attended_time> waited;
  if (limit.count() >= 0) waited.emplace();
  unsigned idle = 0;
  for (unsigned rounds = 0;; ++rounds) {
    if (running_ == nullptr) return {};
    bool has_moved = false;
    {
      const std::lock_guard lock(owner_->mutex_);
      if (!running_->has_ended) has_moved = owner_->advance_all(running_);
      if (running_->has_ended) return running_->outcome;
      if (idle % kRoundsBetweenPolls == kRoundsBetweenPolls - 1) owner_->poll_notices();
    }
    if (waited && (rounds % kRoundsBetweenClocks == 0 || idle >= kHot) && waited->has_reached(limit))
      return failure{ETIMEDOUT, format("the collective has not ended within %lld ms; it continues, so wait again or drop it",
                                       static_cast<long long>(limit.count()))};
    if (has_moved) continue;
    if (++idle < kHot) arch::relax();
    else sched_yield();
  }
}

status operation::outcome() const {
  if (running_ == nullptr) return {};
  const std::lock_guard lock(owner_->mutex_);
  return running_->outcome;
}

}  // namespace pl::collectives
