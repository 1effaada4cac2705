// SPDX-License-Identifier: Apache-2.0
#include "collectives/rejoin_agreement.hpp"

#include <algorithm>
#include <thread>

#include "base/attended_time.hpp"
#include "base/text.hpp"
#include "messaging/rejoin_messages.hpp"

namespace pl::collectives {
namespace {

using messaging::host_buffer;
using messaging::kWholeTag;
using messaging::tag_space;

constexpr std::uint64_t kProposal = messaging::kReservedTags | 2, kVerdict = messaging::kReservedTags | 3;
constexpr std::chrono::milliseconds kPollInterval{5};

failure not_in_time(const std::string& ranks) {
  return {
      ETIMEDOUT,
      ranks +
          " did not call in time: all ranks must call this, and a lost rank must come back first; the next call continues"};
}

// Returns are agreed to while it lives.
class rejoin_scope {
 public:
  explicit rejoin_scope(messaging::messenger& messages) : messages_(messages) { messages_.allow_returns(true); }
  ~rejoin_scope() { messages_.allow_returns(false); }
  rejoin_scope(const rejoin_scope&) = delete;
  rejoin_scope& operator=(const rejoin_scope&) = delete;

 private:
  messaging::messenger& messages_;
};

}  // namespace

result<rejoin_agreement::verdict> rejoin_agreement::run(std::uint64_t epoch, std::chrono::milliseconds limit) {
  const rejoin_scope open(messages_);
  attended_time waited;
  for (;;) {
    auto done = messages_.rank() == 0 ? host(epoch, kPollInterval) : ask(epoch);
    if (!done) return std::move(done).error();
    if (*done) break;
    if (limit.count() >= 0 && waited.has_reached(limit)) return not_in_time(missing());
  }
  const auto losses = messages_.losses();
  return verdict{verdict_words_[0], verdict_words_[1], losses, is_agreed()};
}

// Whether every rank is the process that rank 0 meant.
bool rejoin_agreement::is_agreed() const {
  for (int rank = 0; rank < messages_.size(); ++rank)
    if (!messages_.peer_state(rank).ok() ||
        messages_.incarnation(rank) != verdict_words_[2 + static_cast<std::size_t>(rank)])
      return false;
  return true;
}

// It goes on with what the last call began. A rank 0 that is gone may come back, and is asked once it is there.
result<bool> rejoin_agreement::ask(std::uint64_t epoch) {
  if (answer_.is_empty()) {
    messages_.progress();
    if (!messages_.peer_state(0).ok()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return false;
    }
    own_ = {epoch, messages_.last_barrier()};
    verdict_words_.assign(2 + peers_.size(), 0);
    answer_ = messages_.irecv(0, host_buffer(verdict_words_.data(), verdict_words_.size() * sizeof verdict_words_[0]),
                              kVerdict, kWholeTag, tag_space::collective);
    sent_ = messages_.isend(0, host_buffer(&own_, sizeof own_), kProposal, tag_space::collective);
  }
  auto done = answer_.wait(kPollInterval);
  if (done.code() == ETIMEDOUT) return false;
  answer_ = {};
  sent_ = {};
  if (done.code() == ECONNRESET) return false;
  if (!done) return std::move(done).error();
  return true;
}

// Only rank 0 knows who has not called; any rank may be the one that keeps another from coming back.
std::string rejoin_agreement::missing() const {
  std::string names = messages_.rank() == 0 ? "" : "rank 0, or a rank that it waits for";
  for (int rank = messages_.rank() == 0 ? 1 : 0; rank < messages_.size(); ++rank) {
    const auto gone = messages_.awaited_for_return(rank);
    const bool is_missing = messages_.rank() == 0 ? !peers_[static_cast<std::size_t>(rank)].has_come : !gone.empty();
    if (!is_missing) continue;
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
    names += " (" + (gone.empty() ? "it is there, and has not called" : "it is gone, and " + gone) + ")";
  }
  return names;
}

void rejoin_agreement::look_at(int rank) {
  auto& one = peers_[static_cast<std::size_t>(rank)];
  if (!messages_.peer_state(rank).ok()) {
    one.has_come = false;
    one.received = {};
    return;
  }
  if (const auto now = messages_.incarnation(rank); one.incarnation != now) one = {}, one.incarnation = now;
  if (one.has_come) return;
  if (one.received.is_empty())
    one.received =
        messages_.irecv(rank, host_buffer(&one.proposed, sizeof one.proposed), kProposal, kWholeTag, tag_space::collective);
  if (!one.received.test()) return;
  one.has_come = one.received.outcome().ok();
  one.received = {};
}

result<bool> rejoin_agreement::host(std::uint64_t epoch, std::chrono::milliseconds limit) {
  proposal highest{epoch, messages_.last_barrier()};
  bool is_whole = true;
  messages_.progress();
  for (int rank = 1; rank < messages_.size(); ++rank) {
    look_at(rank);
    const auto& one = peers_[static_cast<std::size_t>(rank)];
    is_whole = is_whole && one.has_come;
    if (!one.has_come) continue;
    highest = {std::max(highest.epoch, one.proposed.epoch), std::max(highest.barrier, one.proposed.barrier)};
  }
  if (!is_whole) {
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(limit, std::chrono::milliseconds(1)));
    return false;
  }
  verdict_words_ = {highest.epoch + 1, highest.barrier};
  for (int rank = 0; rank < messages_.size(); ++rank) verdict_words_.push_back(messages_.incarnation(rank));
  std::vector<messaging::request> sends;
  for (int rank = 1; rank < messages_.size(); ++rank) {
    sends.push_back(messages_.isend(rank,
                                    host_buffer(verdict_words_.data(), verdict_words_.size() * sizeof verdict_words_[0]),
                                    kVerdict, tag_space::collective));
    peers_[static_cast<std::size_t>(rank)] = {};
  }
  // A rank that is lost now is missed by all in the next collective.
  for (auto& each : sends) static_cast<void>(each.wait());
  return true;
}

}  // namespace pl::collectives
