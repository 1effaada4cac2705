// SPDX-License-Identifier: Apache-2.0
// The threads of CPU-driven transfers in one window: they warm up, wait at a line, and start when the gate opens.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <thread>

#include "tools/bandwidth/cpu_copier.hpp"

namespace pl::bandwidth {

class cpu_team {
 public:
  struct member {
    cpu_copier* copier = nullptr;
    std::uint64_t copies = 0;
    unsigned warm_up = 0;
    std::uint64_t start_ns = 0, end_ns = 0;  // CLOCK_MONOTONIC; to be read after join()
    status outcome;
    std::thread thread;
  };

  cpu_team() = default;
  ~cpu_team();  // stops and joins
  cpu_team(const cpu_team&) = delete;
  cpu_team& operator=(const cpu_team&) = delete;

  void add(cpu_copier& copier, std::uint64_t copies,
           unsigned warm_up);  // starts the thread; join() reports if that was impossible
  // All have warmed up and stand at the line, or failed.
  bool is_ready() const { return ready_.load(std::memory_order_acquire) == members_.size(); }
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  void go() { started_.store(true, std::memory_order_release); }
  bool has_ended() const { return ended_.load(std::memory_order_acquire) == members_.size(); }
  // They end after the current copy.
  void stop();
  // The first failure, unless all did their copies.
  status join();
  const std::list<member>& members() const { return members_; }  // in the order added

 private:
  void work(member& self);
  std::list<member> members_;  // threads keep references
  std::atomic<unsigned> ready_{0}, ended_{0};
  std::atomic<bool> started_{false}, stop_{false}, failed_{false};
};

}  // namespace pl::bandwidth
