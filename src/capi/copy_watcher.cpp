// SPDX-License-Identifier: Apache-2.0
#include "capi/copy_watcher.hpp"

#include <pthread.h>
#include <time.h>

#include "os/blocked_signals.hpp"

namespace pl {
namespace {

constexpr timespec kPollPause{0, 50'000};

}  // namespace

std::optional<status> watched_copy::poll(function_wait allowed) {
  status outcome;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) {
      const auto state = copies_.test();
      if (state && !*state) return std::nullopt;
      ended_ = state ? status{} : status(state.error());
    }
    outcome = *ended_;
  }
  if (allowed == function_wait::none && is_in_function(function_)) return std::nullopt;
  function_->call(copy_info(outcome.code(), size_bytes_));
  return outcome;
}

copy_watcher::~copy_watcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void copy_watcher::watch(std::shared_ptr<watched_copy> one) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(std::move(one));
  if (!thread_.joinable()) {
    try {
      thread_ = start_thread([this] { run(); });
    } catch (...) {
      watched_.pop_back();
      throw;
    }
  }
  changed_.notify_one();
}

void copy_watcher::run() {
  pthread_setname_np(pthread_self(), "pl-copy-watch");
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (watched_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto list = watched_;
    lock.unlock();
    std::vector<std::shared_ptr<watched_copy>> ended;
    for (const auto& one : list)
      if (one->poll(watched_copy::function_wait::none)) ended.push_back(one);
    if (ended.empty()) nanosleep(&kPollPause, nullptr);
    lock.lock();
    std::erase_if(watched_, [&](const auto& one) { return std::find(ended.begin(), ended.end(), one) != ended.end(); });
  }
}

}  // namespace pl
