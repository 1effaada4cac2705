// SPDX-License-Identifier: Apache-2.0
// The threads for calls that wait for a disk. They are shared fairly: principals take turns, and the connections of a
// principal take turns among themselves, so a client that asks for a million things delays only itself. One thread
// takes no searches, which may last seconds, so that pools can be created and opened beside any number of them.
//
// Any thread may post. Tasks of one connection and kind start in the order in which they were posted.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "os/blocked_signals.hpp"

namespace pl::store_server {

// A queue per owner; owners with items take turns.
template <class Owner, class Items>
class turns {
 public:
  bool empty() const noexcept { return order_.empty(); }
  Items& items_of(const Owner& owner) {
    const auto [found, is_new] = by_owner_.try_emplace(owner);
    if (is_new) order_.push_back(owner);
    return found->second;
  }
  // Calls `take` with the items of the owner whose turn it is. Precondition: not empty().
  template <class Take>
  auto next(const Take& take) {
    const Owner owner = std::move(order_.front());
    order_.pop_front();
    const auto found = by_owner_.find(owner);
    auto taken = take(found->second);
    if (found->second.empty()) by_owner_.erase(found);
    else order_.push_back(owner);
    return taken;
  }

 private:
  std::map<Owner, Items> by_owner_;
  std::list<Owner> order_;
};

class fair_workers {
 public:
  using task = std::function<void()>;
  enum class kind { brief, search };

  // At least one thread takes searches, and one does not. Throws if a thread cannot be created (ulimit -v).
  explicit fair_workers(unsigned searching) {
    try {
      for (unsigned i = 0; i <= searching; ++i) threads_.push_back(start_thread([this, i] { run(i != 0); }));
    } catch (...) {
      join();
      throw;
    }
  }
  ~fair_workers() { join(); }
  fair_workers(const fair_workers&) = delete;
  fair_workers& operator=(const fair_workers&) = delete;

  // `connection` only identifies; it is not dereferenced. Must not be called after join().
  void post(kind of_task, const std::string& principal, const void* connection, task work) {
    {
      const std::lock_guard hold(lock_);
      (of_task == kind::brief ? brief_ : searches_).items_of(principal).items_of(connection).push_back(std::move(work));
    }
    of_task == kind::brief ? wake_.notify_one() : wake_.notify_all();
  }
  // Returns when all posted tasks are done.
  void join() {
    {
      const std::lock_guard hold(lock_);
      joining_ = true;
    }
    wake_.notify_all();
    for (std::thread& one : threads_)
      if (one.joinable()) one.join();
  }

 private:
  using queue = turns<std::string, turns<const void*, std::deque<task>>>;

  static task take(queue& tasks) {
    return tasks.next([](auto& connections) {
      return connections.next([](std::deque<task>& list) {
        task first = std::move(list.front());
        list.pop_front();
        return first;
      });
    });
  }
  void run(bool searches_too) {
    std::unique_lock hold(lock_);
    for (;;) {
      wake_.wait(hold, [&] { return joining_ || !brief_.empty() || (searches_too && !searches_.empty()); });
      const bool has_brief = !brief_.empty();
      if (!has_brief && !(searches_too && !searches_.empty())) return;
      task next = take(has_brief ? brief_ : searches_);
      hold.unlock();
      next();
      next = nullptr;  // destroys what the task holds without the lock
      hold.lock();
    }
  }

  std::mutex lock_;
  std::condition_variable wake_;
  queue brief_, searches_;
  bool joining_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pl::store_server
