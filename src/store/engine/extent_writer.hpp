// SPDX-License-Identifier: Apache-2.0
// Writes large values to their extents and syncs them. A thread takes everything that waits, writes it side by side and
// syncs each file once, so that many medium values share one sync and one huge value gets the whole device. There are
// two threads: one group is gathered and written while the other is being synced.
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
  struct parts {  // outlives the writer
    extents& space;
    health& state;
    std::function<void(std::string_view)> on_point;
    std::function<status()> sync_log;  // makes parked extents free
    // frees extents that may be lost; false if there are none
    std::function<bool(std::uint64_t bytes)> give_way = nullptr;
  };
  explicit extent_writer(parts components);
  ~extent_writer();
  // Finishes everything queued.
  void stop();

  // Finds extents for the value, which lies in memory, and writes it there. Then calls `done` from the writer's thread:
  // the value is on the medium and owns its extents. ENOSPC, EROFS, EIO (read-only from then on); after stop(),
  // ESHUTDOWN at once. `coming`: the value's bytes are still arriving; they are written as they come. If it has a
  // patience, the value is written alone, so that no other value waits for its writer; ECANCELED if the bytes do not
  // come. `may_lack_room`: the caller has an alternative, so no other value has to make room and the store does not
  // count as full.
  void enqueue(value_ref stored, std::function<void(status)> done, std::shared_ptr<fill_progress> coming = nullptr,
               bool may_lack_room = false);
  // While one exists, queued values wait so that they are written together, unless there are many.
  class gathering {
   public:
    explicit gathering(extent_writer& writer);
    ~gathering();
    gathering(const gathering&) = delete;
    gathering& operator=(const gathering&) = delete;

   private:
    extent_writer& writer_;
  };

  // Writes at once and without a sync, for values that need not survive.
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
  // Precondition: the lock is held.
  bool is_due() const { return !queue_.empty() && (gatherings_ == 0 || queue_.size() >= kManyJobs); }
  std::vector<job> take();
  void write(std::vector<job>& jobs);
  status find_space(value& stored, bool may_lack_room);
  void reach(std::string_view point) {
    if (components_.on_point) components_.on_point(point);
  }

  static constexpr std::size_t kThreads = 2;
  static constexpr std::size_t kManyJobs = 1024;  // a bound, because several connections may gather all the time
  parts components_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<job> queue_;
  unsigned gatherings_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pl::store
