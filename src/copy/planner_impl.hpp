// SPDX-License-Identifier: Apache-2.0
// What planner*.cpp and completion.cpp share. Not for other files.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "backend.hpp"
#include "gpu_state.hpp"
#include "planner.hpp"

namespace pl::copy {

struct planner::sides {
  direction way = direction::to_device;
  other_side other = other_side::pageable;
  bool other_is_known = false;  // `other` was looked up: for host memory that costs a driver call, often not needed
  cu::pointer_info device;      // of the destination, for to_host of the source
  cu::pointer_info source;      // on_device only
  host_memory host;             // if other_is_known
  gpu_state* state = nullptr;   // of `device`, once it was wanted
};

// A device range as the CPU reaches it: through a registration or through the cache.
struct planner::cpu_place {
  mapping_cache::hold kept;
  char* data = nullptr;
  arch::mapping_type type = arch::mapping_type::none;
};

struct registered_range {
  std::atomic<std::uint64_t> begin{0};  // device address; 0: the slot is free
  std::uint64_t end = 0;
  char* data = nullptr;
  arch::mapping_type type = arch::mapping_type::none;
  cu::pointer_info info;  // of its first byte
  std::unique_ptr<pinned_memory> pin;
  cpu_view view;
};

struct planner::shared {
  static constexpr unsigned kRanges = 64;

  explicit shared(worker_pool::options pool_options) : pool(std::move(pool_options)) {}

  worker_pool pool;

  std::mutex mutex;  // guards what follows, up to the ranges
  std::unique_ptr<backend> maps;
  std::map<cu::context_t, std::unique_ptr<gpu_state>> states;
  std::vector<std::unique_ptr<gpu_state>> dead;  // of destroyed contexts; somebody may still look at them

  std::atomic<unsigned> ranges_used{0};  // slots from here on were never used
  std::array<registered_range, kRanges> ranges;

  // One a thread, which alone writes it: a locked instruction behind a store to the mapping waits for that to drain.
  struct alignas(64) counter_block {
    struct counter {
      std::atomic<std::uint64_t> copies{0}, bytes{0};
    };
    std::array<counter, kMethods> taken;
  };
  std::mutex counters_mutex;
  std::vector<std::unique_ptr<counter_block>> counters;
  std::atomic<std::uint64_t> not_mapped{0}, engine_not_taken{0};

  // Asynchronous copies that need a CPU, in order.
  std::mutex queue_mutex;
  std::condition_variable queue_changed;
  std::deque<std::function<void()>> queue;
  std::thread runner;
  bool stop = false;

  result<backend*> open_maps(const cu::driver_table& cuda, const std::string& name) {
    if (maps == nullptr) {
      auto opened = open_backend({&default_device_io(), &cuda}, name);
      if (!opened) return opened.error();
      maps = *std::move(opened);
    }
    return maps.get();
  }
};

}  // namespace pl::copy
