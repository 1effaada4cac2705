// SPDX-License-Identifier: Apache-2.0
// Writes large values to their extents and syncs them. A thread takes all that waits, writes it side by side and syncs each
// file once: many middling values cost one sync, and one huge value the whole device. Two threads, so that one group is
// gathered and written while the other's sync is under way.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "store/engine/extents.hpp"
#include "store/engine/fill_progress.hpp"
#include "store/engine/health.hpp"
#include "store/engine/value.hpp"

namespace pl::store {

class extent_writer {
 public:
  struct parts {  // outlive the writer
    extents& space;
    health& state;
    std::function<void(std::string_view)> on_point;
    std::function<status()> sync_log;                             // makes parked extents free
    std::function<bool(std::uint64_t bytes)> give_way = nullptr;  // frees others that may go; false: there are none
  };
  explicit extent_writer(parts components);
  ~extent_writer();
  // Finishes what is queued.
  void stop();

  // Finds extents for the value (which lies in memory) and writes it there; then `done`, from the writer's thread: the value
  // is on the medium and owns its extents. ENOSPC, EROFS, EIO (read-only from then on); ESHUTDOWN after stop(), at once.
  // `coming`: the value's bytes are still being copied to where it lies; they are written as they come. With patience:
  // alone, so that no other value waits for this value's writer; ECANCELED if they do not come.
  // `may_lack_room`: the caller has another way, so no other value makes room, and the store does not count as full.
  void enqueue(value_ref stored, std::function<void(status)> done, std::shared_ptr<fill_progress> coming = nullptr,
               bool may_lack_room = false);
  // As long as one lives, what is queued waits, so that all of it is written together, unless it is much.
  class gathering {
   public:
    explicit gathering(extent_writer& writer);
    ~gathering();
    gathering(const gathering&) = delete;
    gathering& operator=(const gathering&) = delete;

   private:
    extent_writer& writer_;
  };

  // The same without the sync, and at once: for values that need not survive.
  status write_unsynced(const value_ref& stored);

 private:
  struct job {
    value_ref stored;
    std::function<void(status)> done;
    status outcome;
    std::shared_ptr<fill_progress> coming;
    bool may_lack_room = false;
  };
  void run();
  // With the lock held.
  bool is_due() const { return !queue_.empty() && (gatherings_ == 0 || queue_.size() >= kManyJobs); }
  std::vector<job> take();
  void write(std::vector<job>& jobs);
  status find_space(value& stored, bool may_lack_room);
  void reach(std::string_view point) {
    if (components_.on_point) components_.on_point(point);
  }

  static constexpr std::size_t kThreads = 2;
  static constexpr std::size_t kManyJobs = 1024;  // several connections may gather at all times
  parts components_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<job> queue_;
  unsigned gatherings_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pl::store
