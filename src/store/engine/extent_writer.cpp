// SPDX-License-Identifier: Apache-2.0
#include "store/engine/extent_writer.hpp"

#include <algorithm>
#include <cerrno>

namespace pl::store {
namespace {

constexpr std::uint64_t kWriteBytes = std::uint64_t{64} << 20;

// Blocks of several values one behind the other, and what each must wait for.
class blocks_to_come final : public block_gate {
 public:
  // Whole: they are there. Else they are cut at the steps of `coming`.
  void add(std::span<const block_io> more, std::uint64_t length_bytes, filling* coming) {
    if (coming != nullptr) any_ = true;
    std::uint64_t at = 0;  // of the value
    for (const block_io& one : more) {
      for (std::uint64_t done = 0; done < one.size_bytes;) {
        const std::uint64_t to_step = kFillStepBytes - at % kFillStepBytes;
        const std::uint64_t size = coming != nullptr ? std::min(one.size_bytes - done, to_step) : one.size_bytes;
        blocks_.push_back(block_io{one.file, one.offset_bytes + done, one.data + done, size});
        done += size, at += size;
        needs_.push_back({coming, std::min(at, length_bytes)});
      }
    }
  }
  bool empty() const noexcept { return blocks_.empty(); }
  status write(disk& to) { return any_ ? to.write_when_ready(blocks_, *this) : to.write(blocks_); }

  std::size_t ready(std::size_t passed, bool wait) override {
    if (wait && needs_[passed].of != nullptr && !needs_[passed].of->wait_for(needs_[passed].bytes)) return passed;
    while (ready_ < needs_.size() && is_there(needs_[ready_])) ++ready_;
    return ready_;
  }

 private:
  struct need {
    filling* of;
    std::uint64_t bytes;
  };
  static bool is_there(const need& what) { return what.of == nullptr || what.of->reached() >= what.bytes; }

  std::vector<block_io> blocks_;
  std::vector<need> needs_;  // of each block
  std::size_t ready_ = 0;
  bool any_ = false;
};

}  // namespace

extent_writer::extent_writer(parts with) : with_(std::move(with)) {
  for (std::size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { run(); });
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

void extent_writer::enqueue(value_ref what, std::function<void(status)> done, std::shared_ptr<filling> coming) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      queue_.push_back(job{std::move(what), std::move(done), {}, std::move(coming)});
      wake_.notify_one();
      return;
    }
  }
  done(failure{ESHUTDOWN, "store: closed"});
}

std::vector<extent_writer::job> extent_writer::take() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
  std::vector<job> taken;
  std::uint64_t bytes = 0;
  while (!queue_.empty() && bytes < kWriteBytes) {
    const bool alone = queue_.front().coming && queue_.front().coming->has_patience();
    if (alone && !taken.empty()) break;
    if (alone) bytes = kWriteBytes;
    bytes += queue_.front().what->length_bytes;
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
      one.what.reset();  // who is answered finds the space of a failed put free
      one.done(std::move(one.outcome));
    }
  }
}

status extent_writer::find_space(value& what) {
  if (status able = with_.state.writable(); !able) return able;
  auto found = with_.space.allocate(what.length_bytes);
  if (!found && found.error().code == ENOSPC) {
    // Values that were replaced without a sync still hold theirs.
    if (status synced = with_.sync_log(); !synced) return synced;
    found = with_.space.allocate(what.length_bytes);
  }
  if (!found) {
    with_.state.note(found.error());
    return std::move(found).error();
  }
  what.on_disk = std::move(*found);
  what.owns_extents = true;
  return {};
}

void extent_writer::write(std::vector<job>& jobs) {
  blocks_to_come blocks;
  std::vector<segment> pieces;
  for (job& one : jobs) {
    one.outcome = find_space(*one.what);
    if (!one.outcome) continue;
    const auto memory = one.what->spans();
    blocks.add(with_.space.blocks(one.what->on_disk, memory), one.what->length_bytes, one.coming.get());
    pieces.insert(pieces.end(), one.what->on_disk.begin(), one.what->on_disk.end());
  }
  if (blocks.empty()) return;
  reach("extent.before-write");
  status outcome = blocks.write(with_.space.files());
  reach("extent.written");
  if (outcome) {
    outcome = with_.space.sync(pieces);
    count(with_.state.syncs);
  }
  reach("extent.synced");
  if (outcome) return;
  if (outcome.code() != ECANCELED) with_.state.note(outcome.error());
  for (job& one : jobs) {
    if (one.outcome) one.outcome = outcome.error();
  }
}

status extent_writer::write_unsynced(const value_ref& what) {
  if (status found = find_space(*what); !found) return found;
  const auto memory = what->spans();
  status written = with_.space.files().write(with_.space.blocks(what->on_disk, memory));
  if (!written) with_.state.note(written.error());
  return written;
}

}  // namespace pl::store
