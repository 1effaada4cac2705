// SPDX-License-Identifier: Apache-2.0
#include "compat/nixl/cpu_moves.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/cpu_share.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"

namespace pl::nixl {
namespace {

constexpr std::uint64_t kAtOnceBytes = std::uint64_t{256} << 10;
constexpr std::size_t kAtOnceMoves = 256;
constexpr std::size_t kBatchMoves = 512;  // of one system call, which takes 1024
constexpr std::uint64_t kBatchBytes = std::uint64_t{1} << 20;
constexpr unsigned kMaxThreads = 4;

failure foreign_failure(int code, pid_t peer) {
  if (code == ESRCH) return {ECONNRESET, format("process %d, which owns the memory, has ended", static_cast<int>(peer))};
  if (code == EPERM)
    return {EPERM,
            format("the kernel does not let this process reach the host memory of process %d: run both as one user, with "
                   "one launcher or kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE, or use GPU memory on one side",
                   static_cast<int>(peer))};
  return {code, format("host memory of process %d cannot be reached: %s", static_cast<int>(peer), errno_text(code).c_str())};
}

// One system call moves all of the batch, or a part: the rest is tried again.
status move_batch(const cpu_move* moves, std::size_t count, pid_t peer, bool is_peer_written) {
  std::vector<iovec> own(count), foreign(count);
  std::uint64_t left = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t own_address = is_peer_written ? moves[i].source : moves[i].destination;
    const std::uint64_t peer_address = is_peer_written ? moves[i].destination : moves[i].source;
    own[i] = {reinterpret_cast<void*>(own_address), moves[i].size_bytes};
    foreign[i] = {reinterpret_cast<void*>(peer_address), moves[i].size_bytes};
    left += moves[i].size_bytes;
  }
  std::size_t first = 0;
  while (left != 0) {
    const auto moved = is_peer_written
                           ? process_vm_writev(peer, &own[first], count - first, &foreign[first], count - first, 0)
                           : process_vm_readv(peer, &own[first], count - first, &foreign[first], count - first, 0);
    if (moved < 0) return foreign_failure(errno, peer);
    if (moved == 0) return failure{EFAULT, "the kernel moved nothing of another process's memory"};
    left -= static_cast<std::uint64_t>(moved);
    for (auto done = static_cast<std::size_t>(moved); done != 0 && first < count;) {
      const std::size_t part = std::min(done, own[first].iov_len);
      own[first] = {static_cast<char*>(own[first].iov_base) + part, own[first].iov_len - part};
      foreign[first] = {static_cast<char*>(foreign[first].iov_base) + part, foreign[first].iov_len - part};
      done -= part;
      if (own[first].iov_len == 0) ++first;
    }
  }
  return {};
}

status run_batch(const cpu_list& list, std::size_t batch) {
  const std::size_t first = list.batches[batch];
  const std::size_t end = batch + 1 < list.batches.size() ? list.batches[batch + 1] : list.moves.size();
  if (list.peer != 0) return move_batch(&list.moves[first], end - first, list.peer, list.is_peer_written);
  for (std::size_t i = first; i < end; ++i)
    std::memmove(reinterpret_cast<void*>(list.moves[i].destination), reinterpret_cast<void*>(list.moves[i].source),
                 list.moves[i].size_bytes);
  return {};
}

// One worker's part; the last one ends the run.
void work_on(cpu_mover::run& shared) {
  status outcome;
  while (outcome && !shared.is_cancelled.load(std::memory_order_relaxed)) {
    const std::size_t batch = shared.next_batch.fetch_add(1, std::memory_order_relaxed);
    if (batch >= shared.list->batches.size()) break;
    outcome = run_batch(*shared.list, batch);
  }
  const std::lock_guard hold(shared.mutex);
  if (!outcome) {
    shared.outcome = std::move(outcome);
    shared.is_cancelled.store(true, std::memory_order_relaxed);
  }
  if (--shared.workers == 0) shared.is_done.store(true, std::memory_order_release);
}

}  // namespace

void cpu_list::add(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) {
  size_bytes += bytes;
  while (bytes != 0) {
    const std::uint64_t part = std::min(bytes, kBatchBytes);
    const bool is_full =
        batches.empty() || moves.size() - batches.back() >= kBatchMoves || batch_bytes_ + part > kBatchBytes;
    if (is_full) {
      batches.push_back(moves.size());
      batch_bytes_ = 0;
    }
    moves.push_back({destination, source, part});
    batch_bytes_ += part;
    destination += part;
    source += part;
    bytes -= part;
  }
}

cpu_mover::~cpu_mover() {
  {
    const std::lock_guard hold(mutex_);
    is_ending_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void cpu_mover::begin(const std::shared_ptr<run>& started) {
  if (started->list->size_bytes <= kAtOnceBytes && started->list->moves.size() <= kAtOnceMoves) return work_on(*started);
  const unsigned wanted = half_of_cpus(2, kMaxThreads);
  bool is_alone = false;
  {
    const std::lock_guard hold(mutex_);
    try {
      while (threads_.size() < wanted) threads_.push_back(start_thread([this] { work(); }));
    } catch (const std::system_error&) {}  // fewer threads, or this one
    is_alone = threads_.empty();
    if (!is_alone) started->workers = static_cast<unsigned>(threads_.size());
    for (std::size_t i = 0; i < threads_.size(); ++i) queue_.push_back(started);
  }
  if (is_alone) return work_on(*started);
  wake_.notify_all();
}

void cpu_mover::work() {
  std::unique_lock hold(mutex_);
  for (;;) {
    wake_.wait(hold, [this] { return is_ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto next = std::move(queue_.front());
    queue_.pop_front();
    hold.unlock();
    work_on(*next);
    hold.lock();
  }
}

}  // namespace pl::nixl
