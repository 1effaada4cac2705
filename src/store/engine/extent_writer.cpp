// SPDX-License-Identifier: Apache-2.0
#include "store/engine/extent_writer.hpp"

#include <algorithm>
#include <cerrno>

#include "os/blocked_signals.hpp"

namespace pl::store {
namespace {

constexpr std::uint64_t kWriteBytes = std::uint64_t{64} << 20;
// Of several values, so that the disk starts before all of them are there.
constexpr std::uint64_t kLongestBlock = std::uint64_t{1} << 20;

// The blocks of several values in a row, and the progress that each block waits for.
class blocks_to_come final : public block_gate {
 public:
  // Without `coming`, the blocks are ready and neighbours are merged. With it, they are cut at its steps.
  void add(std::span<const block_io> more, std::uint64_t length_bytes, fill_progress* coming) {
    if (coming != nullptr) any_ = true;
    std::uint64_t offset = 0;  // in the value
    for (const block_io& one : more) {
      if (coming == nullptr && extends_last(one)) {
        blocks_.back().size_bytes += one.size_bytes;
        continue;
      }
      for (std::uint64_t done = 0; done < one.size_bytes;) {
        const std::uint64_t to_step = kFillStepBytes - offset % kFillStepBytes;
        const std::uint64_t size = coming != nullptr ? std::min(one.size_bytes - done, to_step) : one.size_bytes;
        blocks_.push_back(block_io{one.file, one.offset_bytes + done, one.data + done, size});
        done += size, offset += size;
        needs_.push_back({coming, std::min(offset, length_bytes)});
      }
    }
  }
  bool empty() const noexcept { return blocks_.empty(); }
  status write(disk& target) { return any_ ? target.write_when_ready(blocks_, *this) : target.write(blocks_); }

  std::size_t ready(std::size_t passed, bool wait) override {
    if (wait && needs_[passed].progress != nullptr && !needs_[passed].progress->wait_for(needs_[passed].bytes))
      return passed;
    while (ready_ < needs_.size() && is_there(needs_[ready_])) ++ready_;
    return ready_;
  }

 private:
  struct need {
    fill_progress* progress;
    std::uint64_t bytes;
  };
  bool extends_last(const block_io& next) const {
    if (blocks_.empty() || needs_.back().progress != nullptr) return false;
    const block_io& last = blocks_.back();
    return last.file == next.file && last.offset_bytes + last.size_bytes == next.offset_bytes &&
           last.data + last.size_bytes == next.data && last.size_bytes < kLongestBlock;
  }
  static bool is_there(const need& needed) {
    return needed.progress == nullptr || needed.progress->reached() >= needed.bytes;
  }

  std::vector<block_io> blocks_;
  std::vector<need> needs_;  // one for each block
  std::size_t ready_ = 0;
  bool any_ = false;
};

}  // namespace

extent_writer::extent_writer(parts components) : components_(std::move(components)) {
  try {
    for (std::size_t i = 0; i < kThreads; ++i) threads_.push_back(start_thread([this] { run(); }));
  } catch (...) {  // a thread cannot be made (ulimit -v)
    stop();
    throw;
  }
}

extent_writer::~extent_writer() { stop(); }

void extent_writer::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

extent_writer::gathering::gathering(extent_writer& writer) : writer_(writer) {
  const std::lock_guard lock(writer_.mutex_);
  ++writer_.gatherings_;
}

extent_writer::gathering::~gathering() {
  {
    const std::lock_guard lock(writer_.mutex_);
    --writer_.gatherings_;
    if (!writer_.is_due()) return;
  }
  writer_.wake_.notify_one();
}

void extent_writer::enqueue(value_ref stored, std::function<void(status)> done, std::shared_ptr<fill_progress> coming,
                            bool may_lack_room) {
  stored->expect_extents();
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      queue_.push_back(job{std::move(stored), std::move(done), {}, std::move(coming), may_lack_room});
      if (is_due()) wake_.notify_one();
      return;
    }
  }
  done(failure{ESHUTDOWN, "store: closed"});
}

std::vector<extent_writer::job> extent_writer::take() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return stopping_ || is_due(); });
  std::vector<job> taken;
  std::uint64_t bytes = 0;
  while (!queue_.empty() && bytes < kWriteBytes) {
    const bool alone = queue_.front().coming && queue_.front().coming->has_timeout();
    if (alone && !taken.empty()) break;
    if (alone) bytes = kWriteBytes;
    bytes += queue_.front().stored->length_bytes;
    taken.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return taken;
}

void extent_writer::run() {
  for (;;) {
    std::vector<job> jobs = take();
    if (jobs.empty()) return;
    write(jobs);
    for (job& one : jobs) {
      one.stored.reset();  // frees the space of a failed put before the answer
      one.done(std::move(one.outcome));
    }
  }
}

status extent_writer::find_space(value& stored, bool may_lack_room) {
  if (status able = components_.state.writable(); !able) return able;
  auto found = components_.space.allocate(stored.length_bytes);
  if (!found && found.error().code == ENOSPC) {
    // The sync frees the space of values that were replaced without one.
    if (status synced = components_.sync_log(); !synced) return synced;
    found = components_.space.allocate(stored.length_bytes);
  }
  while (found.code() == ENOSPC && !may_lack_room && components_.give_way && components_.give_way(stored.length_bytes))
    found = components_.space.allocate(stored.length_bytes);
  if (!found) {
    if (found.code() != ENOSPC || !may_lack_room) components_.state.note(found.error());
    return std::move(found).error();
  }
  stored.set_on_disk(std::move(*found));
  stored.owns_extents = true;
  return {};
}

void extent_writer::write(std::vector<job>& jobs) {
  blocks_to_come blocks;
  std::vector<segment> pieces;
  for (job& one : jobs) {
    one.outcome = find_space(*one.stored, one.may_lack_room);
    if (!one.outcome) continue;
    const auto memory = one.stored->spans();
    blocks.add(components_.space.blocks(one.stored->on_disk(), memory), one.stored->length_bytes, one.coming.get());
    pieces.insert(pieces.end(), one.stored->on_disk().begin(), one.stored->on_disk().end());
  }
  if (blocks.empty()) return;
  reach("extent.before-write");
  status outcome = blocks.write(components_.space.files());
  reach("extent.written");
  if (outcome) {
    outcome = components_.space.sync(pieces);
    count(components_.state.syncs);
  }
  reach("extent.synced");
  if (outcome) return;
  if (outcome.code() != ECANCELED) components_.state.note(outcome.error());
  for (job& one : jobs) {
    if (one.outcome) one.outcome = outcome.error();
  }
}

status extent_writer::write_unsynced(const value_ref& stored) {
  if (status found = find_space(*stored, false); !found) return found;
  const auto memory = stored->spans();
  status written = components_.space.files().write(components_.space.blocks(stored->on_disk(), memory));
  if (!written) components_.state.note(written.error());
  return written;
}

}  // namespace pl::store
