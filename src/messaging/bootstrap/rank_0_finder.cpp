// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/rank_0_finder.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/log.hpp"
#include "os/blocked_signals.hpp"

namespace pl::messaging {
namespace {

constexpr int kPauseMs = 100;         // between attempts
constexpr unsigned kConnectMs = 500;  // limit of one attempt; the end of the process waits for it

}  // namespace

rank_0_finder::rank_0_finder(const job_settings& settings, const std::string& secret)
    : settings_(settings),
      secret_(secret),
      epoll_(real_device_io(), epoll_create1(EPOLL_CLOEXEC)),
      event_(real_device_io(), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  watch(event_.get());
}

rank_0_finder::~rank_0_finder() = default;  // first stops the thread and joins it

void rank_0_finder::watch(int fd) const {
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

status rank_0_finder::start(survivor_claim claim) {
  {
    const std::lock_guard lock(mutex_);
    if (found_) return {};
    claim_ = std::move(claim);
    ++version_;
    if (is_running_) return {};
    is_running_ = true;
  }
  auto started = try_start_thread<std::jthread>("looks for a new process of rank 0",
                                                [this](const std::stop_token& stop) { seek(stop); });
  if (!started) {
    const std::lock_guard lock(mutex_);
    is_running_ = false;
    claim_.reset();
    return started.error();
  }
  thread_ = *std::move(started);
  return {};
}

void rank_0_finder::stop_search() {
  const std::lock_guard lock(mutex_);
  claim_.reset();
  ++version_;
}

bool rank_0_finder::is_searching() {
  const std::lock_guard lock(mutex_);
  return claim_ || found_;
}

std::optional<joined_job> rank_0_finder::take() {
  std::uint64_t ignored = 0;
  const std::lock_guard lock(mutex_);
  if (!found_) return std::nullopt;
  static_cast<void>(read(event_.get(), &ignored, sizeof ignored));
  return std::exchange(found_, std::nullopt);
}

void rank_0_finder::seek(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (claim_ && !stop.stop_requested()) {
    const survivor_claim claim = *claim_;
    const unsigned version = version_;
    lock.unlock();
    const auto is_over = [&] {
      if (stop.stop_requested()) return true;
      const std::lock_guard guard(mutex_);
      return version != version_;
    };
    auto socket = connect_to(settings_.rendezvous, kConnectMs);
    auto joined = socket ? join_by(*std::move(socket), settings_, secret_, {&claim, is_over}) : socket.error();
    if (!joined)
      PL_LOG(debug, "no new process of rank 0 at %s yet: %s", settings_.rendezvous.text.c_str(),
             joined.error().message.c_str());
    lock.lock();
    if (joined) {  // even if the claim has changed: rank 0 counts this process as connected from now on
      claim_.reset();
      found_ = *std::move(joined);
      const std::uint64_t one = 1;
      static_cast<void>(write(event_.get(), &one, sizeof one));
      break;
    }
    changed_.wait_for(lock, stop, kPause, [&] { return version != version_; });
  }
  is_running_ = false;
}

}  // namespace pl::messaging
