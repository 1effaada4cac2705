// SPDX-License-Identifier: Apache-2.0
#include "copy/host_pool.hpp"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>

#include "base/checked_math.hpp"
#include "base/clock.hpp"
#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/memory_limit.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"
#include "os/fork_guard.hpp"

namespace pl::copy {
namespace {

constexpr std::uint64_t kPageBytes = std::uint64_t{2} << 20;  // huge pages
// Pages are allocated in steps, so that closing a pool does not wait for a piece of 256 MiB to be zeroed.
constexpr std::uint64_t kStepBytes = std::uint64_t{16} << 20;
// Left free for the machine: pinning stops before the kernel has to kill processes.
constexpr std::uint64_t kReserveBytes = std::uint64_t{256} << 20;

using unsigned_ll = unsigned long long;

// Without writing, because the application may be using these pages.
status make_pages(std::byte* begin, std::uint64_t size_bytes) {
#ifndef MADV_POPULATE_WRITE
  constexpr int MADV_POPULATE_WRITE = 23;
#endif
  if (madvise(begin, size_bytes, MADV_POPULATE_WRITE) == 0) return {};
  if (errno != EINVAL)
    return failure{
        ENOMEM, format("the kernel has no memory for %llu bytes more: %s", unsigned_ll{size_bytes}, std::strerror(errno))};
  // Kernels before 5.14.
  for (std::uint64_t offset = 0; offset < size_bytes; offset += kHostPageBytes)
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(begin + offset), 0, __ATOMIC_RELAXED);
  return {};
}

std::chrono::steady_clock::time_point end_of(std::int64_t timeout_ms) {
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(static_cast<std::int64_t>(deadline_after_ms(timeout_ms))));
}

// Only a preference: a full node must not end the process.
bool prefer_node(void* memory, std::uint64_t size_bytes, int node) {
  constexpr int kMaxNodes = 1024;
  if (node < 0 || node >= kMaxNodes) return false;
  unsigned long mask[kMaxNodes / (8 * sizeof(unsigned long))] = {};
  mask[static_cast<unsigned>(node) / (8 * sizeof mask[0])] = 1ul << (static_cast<unsigned>(node) % (8 * sizeof mask[0]));
  return syscall(SYS_mbind, memory, size_bytes, MPOL_PREFERRED, mask, kMaxNodes + 1, 0u) == 0;
}

}  // namespace

int numa_node_of_gpu(const cu::driver_table& cuda, int device_ordinal, const std::string& sysfs_root) {
  char text[32] = {};
  cu::device_t device = 0;
  if (cuda.cuDeviceGet(&device, device_ordinal) != cu::error_code::success ||
      cuda.cuDeviceGetPCIBusId(text, sizeof text, device) != cu::error_code::success)
    return -1;
  std::string bus_id = text;
  for (char& letter : bus_id) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  std::ifstream file(sysfs_root + "/bus/pci/devices/" + bus_id + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

host_pool::host_pool(const gpu_context& context, const options& wanted)
    : context_(context),
      size_bytes_(wanted.size_bytes),
      piece_bytes_(wanted.piece_bytes),
      available_bytes_(wanted.available_bytes ? wanted.available_bytes : [] { return available_memory(); }),
      pinned_(wanted.pinned),
      epoch_(claim_process_epoch()) {}

result<std::unique_ptr<host_pool>> host_pool::make(const cu::driver_table& cuda, const options& wanted) {
  constexpr std::uint64_t kMinPieceBytes = 64u << 10;
  if (wanted.size_bytes == 0) return failure{EINVAL, "a host pool of no bytes"};
  if (!is_power_of_two(wanted.piece_bytes) || wanted.piece_bytes < kMinPieceBytes)
    return failure{EINVAL, format("pieces of %llu bytes: a power of two from 64 KiB on", unsigned_ll{wanted.piece_bytes})};
  if (auto ready = cu::initialize(cuda); !ready) return ready.error();
  auto context = find_context(cuda, wanted.device_ordinal, nullptr);
  if (!context) return context.error();
  std::unique_ptr<host_pool> made(new host_pool(*context, wanted));
  const std::uint64_t available = made->available_bytes_();
  if (wanted.size_bytes > available)
    return failure{ENOMEM,
                   format("a host pool of %llu bytes: this process may use %llu bytes more; ask for less, or free some",
                          unsigned_ll{wanted.size_bytes}, unsigned_ll{available})};
  made->numa_node_ = numa_node_of_gpu(cuda, wanted.device_ordinal);
  if (auto mapped = made->map(); !mapped) return mapped.error();
  auto started = try_start_thread("pins a host pool", [pool = made.get()] { pool->pin_all(); });
  if (!started) return started.error();
  made->thread_ = *std::move(started);
  return made;
}

status host_pool::map() {
  const auto rounded = checked_align_up(size_bytes_, kPageBytes);
  const auto reserved = rounded ? checked_add(*rounded, kPageBytes) : std::nullopt;
  if (!reserved)
    return failure{ENOMEM, format("a host pool of %llu bytes: larger than the address space", unsigned_ll{size_bytes_})};
  void* const memory = mmap(nullptr, *reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return failure{ENOMEM,
                   format("a host pool of %llu bytes: the kernel refuses so much memory (%s); ask for less, or raise "
                          "the limit of address space (ulimit -v) or vm.overcommit_memory",
                          unsigned_ll{size_bytes_}, std::strerror(errno))};
  mapped_ = static_cast<std::byte*>(memory);
  mapped_bytes_ = *reserved;
  const auto begin = reinterpret_cast<std::uint64_t>(memory);
  data_ = mapped_ + (*checked_align_up(begin, kPageBytes) - begin);
  madvise(mapped_, mapped_bytes_, MADV_DONTFORK);
  madvise(data_, *rounded, MADV_HUGEPAGE);  // a hint
  if (!prefer_node(data_, *rounded, numa_node_)) numa_node_ = -1;
  return {};
}

host_pool::~host_pool() {
  if (epoch_ != process_epoch()) {  // a child has neither the memory nor the thread
    if (thread_.joinable()) thread_.detach();
    return;
  }
  stops_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
  if (const std::uint64_t pinned = pinned_bytes(); pinned != 0) {
    // Fails if the context is gone, and the registrations with it.
    if (auto scope = context_use::enter(context_)) {
      const auto base = reinterpret_cast<std::uint64_t>(data_);
      for (std::uint64_t begin = 0; begin < pinned; begin = align_down(base + begin, piece_bytes_) + piece_bytes_ - base)
        context_.cuda->cuMemHostUnregister(data_ + begin);
    }
  }
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

status host_pool::pinning() const {
  const std::lock_guard lock(mutex_);
  return outcome_;
}

status host_pool::wait(std::int64_t timeout_ms) const {
  if (epoch_ != process_epoch())
    return failure{EACCES, "the host pool belongs to the parent process: a child of fork makes its own"};
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return has_ended_; };
  if (timeout_ms < 0) changed_.wait(lock, is_over);
  else if (!changed_.wait_until(lock, end_of(timeout_ms), is_over))
    return failure{ETIMEDOUT, format("%llu of %llu bytes of the host pool are pinned; the rest is on its way",
                                     unsigned_ll{pinned_bytes()}, unsigned_ll{size_bytes_})};
  return outcome_;
}

// Boundaries are at multiples of the piece size in addresses, like the windows in which DMA channels bind host memory.
void host_pool::pin_all() {
  const auto base = reinterpret_cast<std::uint64_t>(data_);
  status outcome;
  for (std::uint64_t begin = 0; begin < size_bytes_ && outcome && !must_stop();) {
    const std::uint64_t end = std::min(size_bytes_, align_down(base + begin, piece_bytes_) + piece_bytes_ - base);
    outcome = pin_piece(begin, end);
    if (pinned_bytes() == end && pinned_ && !must_stop()) pinned_(data_ + begin, end - begin);
    begin = end;
  }
  if (!outcome) {
    outcome = failure{outcome.code(),
                      format("%llu of %llu bytes of the host pool are pinned, the rest stays ordinary memory: %s",
                             unsigned_ll{pinned_bytes()}, unsigned_ll{size_bytes_}, outcome.error().message.c_str())};
    PL_LOG(warn, "%s", outcome.error().message.c_str());
  }
  const std::lock_guard lock(mutex_);
  outcome_ = std::move(outcome);
  has_ended_ = true;
  changed_.notify_all();
}

// Not registered if the pool is closed meanwhile: pinned_bytes_ counts what is.
status host_pool::pin_piece(std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t step = begin; step < end; step += kStepBytes) {
    if (must_stop()) return {};
    const std::uint64_t some = std::min(kStepBytes, end - step);
    if (const std::uint64_t available = available_bytes_(); available < some + kReserveBytes)
      return failure{ENOMEM,
                     format("this process may use only %llu bytes more; close the pool, or free some memory and make it "
                            "anew",
                            unsigned_ll{available})};
    if (auto made = make_pages(data_ + step, some); !made) return made;
  }
  auto scope = context_use::enter(context_);
  if (!scope) return scope.error();
  constexpr unsigned kFlags = cu::host_register_flag::portable | cu::host_register_flag::device_map;
  const auto rc = context_.cuda->cuMemHostRegister_v2(data_ + begin, end - begin, kFlags);
  if (rc == cu::error_code::success) {
    pinned_bytes_.store(end, std::memory_order_release);
    return {};
  }
  return cu::make_error(*context_.cuda, rc, format("registering %llu bytes", unsigned_ll{end - begin}));
}

}  // namespace pl::copy
