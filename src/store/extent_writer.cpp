// SPDX-License-Identifier: Apache-2.0
#include "extent_writer.hpp"

#include <cerrno>

namespace pl::store {
namespace {

constexpr std::uint64_t kWriteBytes = std::uint64_t{64} << 20;

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

void extent_writer::enqueue(value_ref what, std::function<void(status)> done) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      queue_.push_back(job{std::move(what), std::move(done), {}});
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
  std::vector<block_io> blocks;
  std::vector<segment> pieces;
  for (job& one : jobs) {
    one.outcome = find_space(*one.what);
    if (!one.outcome) continue;
    const auto memory = one.what->spans();
    const auto more = with_.space.blocks(one.what->on_disk, memory);
    blocks.insert(blocks.end(), more.begin(), more.end());
    pieces.insert(pieces.end(), one.what->on_disk.begin(), one.what->on_disk.end());
  }
  if (blocks.empty()) return;
  reach("extent.before-write");
  status outcome = with_.space.files().write(blocks);
  reach("extent.written");
  if (outcome) {
    outcome = with_.space.sync(pieces);
    count(with_.state.syncs);
  }
  reach("extent.synced");
  if (outcome) return;
  with_.state.note(outcome.error());
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
