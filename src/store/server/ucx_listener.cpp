// SPDX-License-Identifier: Apache-2.0
#include "store/server/ucx_listener.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/text.hpp"

namespace pl::store_server {
namespace {

using store_client::lane_session_ptr;
using store_client::lane_transfer;
using store_client::lane_transfer_ptr;
using store_client::value_lane;

constexpr int kMostSleepMs = 1000;  // UCX's own timers (keepalive) want a look now and then

std::uint64_t random_number() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

}  // namespace

result<std::unique_ptr<lane_server>> lane_server::open(const options& wanted, metrics& counters, event_log& log) {
  std::unique_ptr<lane_server> made(new lane_server(wanted, counters));
  auto lane = made->open_end();
  if (!lane) return lane.error();
  // A failure costs time in every transfer, no more.
  const auto kept = (*lane)->keep_registered(wanted.arena, wanted.arena_bytes);
  made->lane_ = *std::move(lane);
  made->offer_ = made->lane_->offer();
  made->each_its_own_ = ("," + made->offer_.transports).find(",tcp/") != std::string::npos;
  log.write(event_log::level::info, "ucx",
            {{"version", format("%u.%u", made->offer_.major, made->offer_.minor)},
             {"transports", made->offer_.transports},
             {"arena", kept ? "registered" : kept.error().message}});
  made->wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  made->thread_ = std::thread([lane_end = made.get()] { lane_end->serve(); });
  return made;
}

result<std::unique_ptr<value_lane>> lane_server::open_end() {
  value_lane::options how;
  how.mode = wanted_.mode;
  how.is_store = true;
  how.unknown = [this] { take_receives(); };
  return value_lane::open(std::move(how));
}

lane_server::~lane_server() {
  {
    const std::lock_guard hold(lock_);
    ending_ = true;
  }
  if (wake_fd_ >= 0) (void)eventfd_write(wake_fd_, 1);
  if (thread_.joinable()) thread_.join();
  posted_.clear();
  own_.clear();
  lane_.reset();
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void lane_server::post(std::function<void()> what) {
  {
    const std::lock_guard hold(lock_);
    posted_.push_back(std::move(what));
  }
  (void)eventfd_write(wake_fd_, 1);
}

void lane_server::serve() {
  for (;;) {
    std::vector<std::function<void()>> now;
    {
      const std::lock_guard hold(lock_);
      if (ending_) return;
      now.swap(posted_);
    }
    take_receives();
    for (const auto& one : now) one();
    now.clear();  // what they hold goes here
    if (progress()) continue;
    counters_.lane_refused.store(refused(), std::memory_order_relaxed);
    if (arm()) sleep();
  }
}

void lane_server::take_receives() {
  decltype(receives_) now;
  {
    const std::lock_guard hold(lock_);
    now.swap(receives_);
  }
  for (const auto& [with, what] : now) {
    lane_of(with).add(with, what);
    if (what->bytes == 0 && what->bad.code == 0) what->changed();
  }
}

bool lane_server::progress() {
  bool moved = lane_->progress();
  for (const auto& [session, lane] : own_) moved = lane->progress() || moved;
  return moved;
}

bool lane_server::arm() {
  return lane_->arm() && std::all_of(own_.begin(), own_.end(), [](const auto& one) { return one.second->arm(); });
}

void lane_server::sleep() {
  std::vector<pollfd> all = {{wake_fd_, POLLIN, 0}, {lane_->fd(), POLLIN, 0}};
  for (const auto& [session, lane] : own_) all.push_back({lane->fd(), POLLIN, 0});
  poll(all.data(), all.size(), kMostSleepMs);
  eventfd_t ignored = 0;
  if (all[0].revents != 0) (void)eventfd_read(wake_fd_, &ignored);
}

std::uint64_t lane_server::refused() const {
  std::uint64_t out = refused_by_closed_ + lane_->refused();
  for (const auto& [session, lane] : own_) out += lane->refused();
  return out;
}

value_lane& lane_server::lane_of(const lane_session_ptr& one) {
  const auto found = own_.find(one);
  return found == own_.end() ? *lane_ : *found->second;
}

// ---- What sessions ask ---------------------------------------------------------------------------------------------------

result<lane_server::joined_lane> lane_server::joined_with(const store_wire::lane_offer& client) {
  std::unique_ptr<value_lane> own;
  if (each_its_own_) {
    auto opened = open_end();
    if (!opened) return opened.error();
    own = *std::move(opened);
    (void)own->keep_registered(wanted_.arena, wanted_.arena_bytes);  // as in open()
  }
  auto& lane = own ? *own : *lane_;
  const std::uint64_t secret[2] = {random_number(), random_number()};
  auto session = lane.connect(client, secret);
  if (!session) return session.error();
  joined_lane out{*session, lane.offer()};
  std::copy(std::begin(secret), std::end(secret), out.offer.secret);
  if (own) own_.emplace(*session, std::move(own));
  return out;
}

void lane_server::join(const store_wire::lane_offer& client, std::function<void(result<joined_lane>)> joined,
                       std::function<void()> lost) {
  post([this, client, joined = std::move(joined), lost = std::move(lost)] {
    auto made = joined_with(client);
    if (made) made->session->on_lost = lost;
    joined(std::move(made));
  });
}

void lane_server::begin(const lane_session_ptr& with, lane_transfer_ptr what, done then) {
  // Weak: the lane's list of transfers holds it while it moves.
  what->changed = [this, with, weak = std::weak_ptr(what), told = false, then = std::move(then)]() mutable {
    const auto one = weak.lock();
    if (!one || told || one->under_way > 0) return;
    const bool complete = one->bad.code == 0 && one->moved_bytes == one->bytes;
    if (!complete && one->bad.code == 0 && !one->stopped) return;
    told = true;
    const auto mine = with->transfers.find(one->token);
    if (mine != with->transfers.end() && mine->second == one) lane_of(with).stop(with, one);
    status outcome;
    if (one->bad.code != 0) outcome = one->bad;
    else if (!complete) outcome = failure{ECANCELED, "the transfer was given up"};
    const auto tell = std::exchange(then, nullptr);
    tell(outcome, one->crc);
  };
  if (!what->is_out) {
    const std::lock_guard hold(lock_);
    receives_.emplace_back(with, what);
    (void)eventfd_write(wake_fd_, 1);
    return;
  }
  post([this, with, what] {
    lane_of(with).add(with, what);
    if (what->bytes == 0 && what->bad.code == 0) what->changed();
  });
}

void lane_server::receive(const lane_session_ptr& from, std::uint64_t token, std::vector<iovec> into, std::uint64_t bytes,
                          done then) {
  auto what = std::make_shared<lane_transfer>();
  what->token = token;
  what->pieces = std::move(into);
  what->bytes = bytes;
  begin(from, std::move(what), std::move(then));
}

void lane_server::send(const lane_session_ptr& to, std::uint64_t token, std::vector<iovec> from, std::uint64_t bytes,
                       done then) {
  auto what = std::make_shared<lane_transfer>();
  what->is_out = true;
  what->token = token;
  what->pieces = std::move(from);
  what->bytes = bytes;
  begin(to, std::move(what), std::move(then));
}

void lane_server::stop(const lane_session_ptr& with, std::uint64_t token) {
  post([this, with, token] {
    const auto found = with->transfers.find(token);
    if (found == with->transfers.end()) return;
    const auto what = found->second;
    lane_of(with).stop(with, what);
    if (what->changed) what->changed();
  });
}

void lane_server::close(const lane_session_ptr& one) {
  post([this, one] {
    const auto found = own_.find(one);
    if (found == own_.end()) return lane_->close(one);
    found->second->shut();
    refused_by_closed_ += found->second->refused();
    own_.erase(found);
  });
}

}  // namespace pl::store_server
