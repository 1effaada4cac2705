// SPDX-License-Identifier: Apache-2.0
#include "lane_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "text.hpp"

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
  value_lane::options how;
  how.mode = wanted.mode;
  how.is_store = true;
  auto lane = value_lane::open(std::move(how));
  if (!lane) return lane.error();
  // A failure costs time in every transfer, no more.
  const auto kept = (*lane)->keep_registered(wanted.arena, wanted.arena_bytes);
  std::unique_ptr<lane_server> made(new lane_server(counters, log));
  made->lane_ = *std::move(lane);
  made->offer_ = made->lane_->offer();
  log.write(event_log::level::info, "ucx",
            {{"version", format("%u.%u", made->offer_.major, made->offer_.minor)},
             {"transports", made->offer_.transports},
             {"arena", kept ? "registered" : kept.error().message}});
  made->wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  made->thread_ = std::thread([lane_end = made.get()] { lane_end->serve(); });
  return made;
}

lane_server::~lane_server() {
  {
    const std::lock_guard hold(lock_);
    ending_ = true;
  }
  (void)eventfd_write(wake_fd_, 1);
  if (thread_.joinable()) thread_.join();
  posted_.clear();
  lane_.reset();
  ::close(wake_fd_);
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
    for (const auto& one : now) one();
    now.clear();  // what they hold goes here
    if (lane_->progress()) continue;
    counters_.lane_refused.store(lane_->refused(), std::memory_order_relaxed);
    if (!lane_->arm()) continue;
    pollfd both[2] = {{lane_->fd(), POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    poll(both, 2, kMostSleepMs);
    eventfd_t ignored = 0;
    if (both[1].revents != 0) (void)eventfd_read(wake_fd_, &ignored);
  }
}

// ---- What sessions ask ---------------------------------------------------------------------------------------------------

void lane_server::join(const store_wire::lane_offer& client, std::function<void(result<lane_session_ptr>)> joined,
                       std::function<void()> lost) {
  post([this, client, joined = std::move(joined), lost = std::move(lost)] {
    const std::uint64_t secret[2] = {random_number(), random_number()};
    auto made = lane_->connect(client, secret);
    if (made) (*made)->on_lost = lost;
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
    if (mine != with->transfers.end() && mine->second == one) lane_->stop(with, one);
    status outcome;
    if (one->bad.code != 0) outcome = one->bad;
    else if (!complete) outcome = failure{ECANCELED, "the transfer was given up"};
    const auto tell = std::exchange(then, nullptr);
    tell(outcome, one->crc);
  };
  post([this, with, what] {
    lane_->add(with, what);
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
    lane_->stop(with, what);
    if (what->changed) what->changed();
  });
}

void lane_server::close(const lane_session_ptr& one) {
  post([this, one] { lane_->close(one); });
}

}  // namespace pl::store_server
