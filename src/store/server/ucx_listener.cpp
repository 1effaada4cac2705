// SPDX-License-Identifier: Apache-2.0
#include "store/server/ucx_listener.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/text.hpp"
#include "os/blocked_signals.hpp"

namespace pl::store_server {
namespace {

using store_client::stream_session_ptr;
using store_client::stream_transfer;
using store_client::stream_transfer_ptr;
using store_client::ucx_value_stream;

constexpr int kMaxSleepMs = 1000;  // UCX's own timers (keepalive) need a poll now and then

std::uint64_t random_number() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

}  // namespace

result<std::unique_ptr<ucx_listener>> ucx_listener::open(const options& wanted, metrics& counters, event_log& log) {
  std::unique_ptr<ucx_listener> made(new ucx_listener(wanted, counters));
  auto stream = made->open_end();
  if (!stream) return stream.error();
  // A failure only costs time in every transfer.
  const auto kept = (*stream)->keep_registered(wanted.arena, wanted.arena_bytes);
  made->ucx_stream_ = *std::move(stream);
  made->offer_ = made->ucx_stream_->offer();
  made->each_its_own_ = ("," + made->offer_.transports).find(",tcp/") != std::string::npos;
  log.write(event_log::level::info, "ucx",
            {{"version", format("%u.%u", made->offer_.major, made->offer_.minor)},
             {"transports", made->offer_.transports},
             {"arena", kept ? "registered" : kept.error().message}});
  made->wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  auto started = try_start_thread("serves UCX", [stream_end = made.get()] { stream_end->serve(); });
  if (!started) return started.error();
  made->thread_ = *std::move(started);
  return made;
}

result<std::unique_ptr<ucx_value_stream>> ucx_listener::open_end() {
  ucx_value_stream::options settings;
  settings.mode = wanted_.mode;
  settings.is_store = true;
  settings.unknown = [this] { take_receives(); };
  return ucx_value_stream::open(std::move(settings));
}

ucx_listener::~ucx_listener() {
  {
    const std::lock_guard hold(lock_);
    ending_ = true;
  }
  if (wake_fd_ >= 0) (void)eventfd_write(wake_fd_, 1);
  if (thread_.joinable()) thread_.join();
  posted_.clear();
  own_.clear();
  ucx_stream_.reset();
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void ucx_listener::post(std::function<void()> task) {
  {
    const std::lock_guard hold(lock_);
    posted_.push_back(std::move(task));
  }
  (void)eventfd_write(wake_fd_, 1);
}

void ucx_listener::serve() {
  for (;;) {
    std::vector<std::function<void()>> now;
    {
      const std::lock_guard hold(lock_);
      if (ending_) return;
      now.swap(posted_);
    }
    take_receives();
    for (const auto& one : now) one();
    now.clear();  // destroys what the tasks hold
    if (progress()) continue;
    counters_.ucx_refused.store(refused(), std::memory_order_relaxed);
    if (arm()) sleep();
  }
}

void ucx_listener::take_receives() {
  decltype(receives_) now;
  {
    const std::lock_guard hold(lock_);
    now.swap(receives_);
  }
  for (const auto& [session, transfer] : now) {
    stream_of(session).add(session, transfer);
    if (transfer->bytes == 0 && transfer->bad.code == 0) transfer->changed();
  }
}

bool ucx_listener::progress() {
  bool moved = ucx_stream_->progress();
  for (const auto& [session, stream] : own_) moved = stream->progress() || moved;
  return moved;
}

bool ucx_listener::arm() {
  return ucx_stream_->arm() && std::all_of(own_.begin(), own_.end(), [](const auto& one) { return one.second->arm(); });
}

void ucx_listener::sleep() {
  std::vector<pollfd> all = {{wake_fd_, POLLIN, 0}, {ucx_stream_->fd(), POLLIN, 0}};
  for (const auto& [session, stream] : own_) all.push_back({stream->fd(), POLLIN, 0});
  poll(all.data(), all.size(), kMaxSleepMs);
  eventfd_t ignored = 0;
  if (all[0].revents != 0) (void)eventfd_read(wake_fd_, &ignored);
}

std::uint64_t ucx_listener::refused() const {
  std::uint64_t out = refused_by_closed_ + ucx_stream_->refused();
  for (const auto& [session, stream] : own_) out += stream->refused();
  return out;
}

ucx_value_stream& ucx_listener::stream_of(const stream_session_ptr& one) {
  const auto found = own_.find(one);
  return found == own_.end() ? *ucx_stream_ : *found->second;
}

// ---- Called by sessions -----------------------------------------------------------------------------------------------

result<ucx_listener::joined_stream> ucx_listener::joined_with(const store_protocol::ucx_offer& client) {
  std::unique_ptr<ucx_value_stream> own;
  if (each_its_own_) {
    auto opened = open_end();
    if (!opened) return opened.error();
    own = *std::move(opened);
    (void)own->keep_registered(wanted_.arena, wanted_.arena_bytes);  // as in open()
  }
  auto& stream = own ? *own : *ucx_stream_;
  const std::uint64_t secret[2] = {random_number(), random_number()};
  auto session = stream.connect(client, secret);
  if (!session) return session.error();
  joined_stream out{*session, stream.offer()};
  std::copy(std::begin(secret), std::end(secret), out.offer.secret);
  if (own) own_.emplace(*session, std::move(own));
  return out;
}

void ucx_listener::join(const store_protocol::ucx_offer& client, std::function<void(result<joined_stream>)> joined,
                        std::function<void()> lost) {
  post([this, client, joined = std::move(joined), lost = std::move(lost)] {
    auto made = joined_with(client);
    if (made) made->session->on_lost = lost;
    joined(std::move(made));
  });
}

void ucx_listener::begin(const stream_session_ptr& session, stream_transfer_ptr transfer, done callback) {
  // Weak, because the list of transfers holds it while it is in progress.
  transfer->changed = [this, session, weak = std::weak_ptr(transfer), is_reported = false,
                       callback = std::move(callback)]() mutable {
    const auto one = weak.lock();
    if (!one || is_reported || one->in_flight > 0) return;
    const bool complete = one->bad.code == 0 && one->moved_bytes == one->bytes;
    if (!complete && one->bad.code == 0 && !one->stopped) return;
    is_reported = true;
    const auto mine = session->transfers.find(one->token);
    if (mine != session->transfers.end() && mine->second == one) stream_of(session).stop(session, one);
    status outcome;
    if (one->bad.code != 0) outcome = one->bad;
    else if (!complete) outcome = failure{ECANCELED, "the transfer was abandoned"};
    const auto tell = std::exchange(callback, nullptr);
    tell(outcome, one->crc);
  };
  if (!transfer->is_out) {
    const std::lock_guard hold(lock_);
    receives_.emplace_back(session, transfer);
    (void)eventfd_write(wake_fd_, 1);
    return;
  }
  post([this, session, transfer] {
    stream_of(session).add(session, transfer);
    if (transfer->bytes == 0 && transfer->bad.code == 0) transfer->changed();
  });
}

void ucx_listener::receive(const stream_session_ptr& session, std::uint64_t token, std::vector<iovec> destination,
                           std::uint64_t bytes, done callback) {
  auto transfer = std::make_shared<stream_transfer>();
  transfer->token = token;
  transfer->pieces = std::move(destination);
  transfer->bytes = bytes;
  begin(session, std::move(transfer), std::move(callback));
}

void ucx_listener::send(const stream_session_ptr& session, std::uint64_t token, std::vector<iovec> pieces,
                        std::uint64_t bytes, done callback) {
  auto transfer = std::make_shared<stream_transfer>();
  transfer->is_out = true;
  transfer->token = token;
  transfer->pieces = std::move(pieces);
  transfer->bytes = bytes;
  begin(session, std::move(transfer), std::move(callback));
}

void ucx_listener::stop(const stream_session_ptr& session, std::uint64_t token) {
  post([this, session, token] {
    const auto found = session->transfers.find(token);
    if (found == session->transfers.end()) return;
    const auto transfer = found->second;
    stream_of(session).stop(session, transfer);
    if (transfer->changed) transfer->changed();
  });
}

void ucx_listener::close(const stream_session_ptr& one) {
  post([this, one] {
    const auto found = own_.find(one);
    if (found == own_.end()) return ucx_stream_->close(one);
    found->second->shut();
    refused_by_closed_ += found->second->refused();
    own_.erase(found);
  });
}

}  // namespace pl::store_server
