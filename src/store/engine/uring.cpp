// SPDX-License-Identifier: Apache-2.0
#include "store/engine/uring.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "arch/crc32c.hpp"
#include "base/text.hpp"

namespace pl::store {
namespace {

// Larger parts gain nothing and smaller ones cost calls. Several in flight keep the device's queue full.
constexpr std::uint64_t kPartBytes = stage::kPartBytes;
// A few pages are allocated as fast as they are copied.
constexpr std::uint64_t kStagedFromBytes = std::uint64_t{32} << 10;
constexpr long kBrieflyNs = 100'000;  // a copy of 1 MiB takes about as long

failure failed(const block_io& block, bool write, int code) {
  return failure{code, format("%s of %llu bytes at %llu: %s", write ? "write" : "read",
                              static_cast<unsigned long long>(block.size_bytes),
                              static_cast<unsigned long long>(block.offset_bytes), errno_text(code).c_str())};
}

}  // namespace

std::unique_ptr<uring> uring::make() {
  std::unique_ptr<uring> made(new uring);
  if (io_uring_queue_init(kDepth, &made->ring_, 0) != 0) {
    made->ring_.ring_fd = -1;
    return nullptr;
  }
  // A seccomp filter may allow a ring to be created and refuse to enter it.
  io_uring_prep_nop(io_uring_get_sqe(&made->ring_));
  io_uring_cqe* done = nullptr;
  int outcome = io_uring_submit(&made->ring_);
  if (outcome >= 0) outcome = io_uring_wait_cqe(&made->ring_, &done);
  if (outcome < 0) {
    errno = -outcome;
    return nullptr;
  }
  io_uring_cqe_seen(&made->ring_, done);
  return made;
}

uring::~uring() {
  if (ring_.ring_fd >= 0) io_uring_queue_exit(&ring_);
}

// Maps one huge page more than needed and gives back what lies outside the aligned range.
std::unique_ptr<stage> stage::make() {
  constexpr std::uint64_t kHuge = std::uint64_t{2} << 20, kWhole = kParts * kPartBytes;
  void* mapped = ::mmap(nullptr, kWhole + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* base = static_cast<std::byte*>(mapped);
  const std::uint64_t before = -reinterpret_cast<std::uintptr_t>(base) % kHuge;
  if (before != 0) ::munmap(base, before);
  ::munmap(base + before + kWhole, kHuge - before);
  ::madvise(base + before, kWhole, MADV_HUGEPAGE);  // a hint
  return std::unique_ptr<stage>(new stage(base + before));
}

stage::~stage() { ::munmap(base_, kParts * kPartBytes); }

void uring::begin(part& chunk) {
  chunk.data = chunk.block->data + chunk.begun;
  const std::uint64_t size = chunk.end - chunk.begun;
  if (through_ == nullptr || size < kStagedFromBytes) return;
  std::byte* copy = through_->part(static_cast<std::size_t>(&chunk - parts_));
  arch::crc32c_copy(copy, chunk.data, size, 0, true);  // used for its non-temporal stores
  chunk.data = copy;
}

void uring::submit(part& chunk, bool write) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);  // never null: there are as many entries as parts
  const block_io& block = *chunk.block;
  std::byte* data = chunk.data + (chunk.done - chunk.begun);
  const auto size = static_cast<unsigned>(chunk.end - chunk.done);
  if (write) io_uring_prep_write(sqe, block.file, data, size, block.offset_bytes + chunk.done);
  else io_uring_prep_read(sqe, block.file, data, size, block.offset_bytes + chunk.done);
  io_uring_sqe_set_data(sqe, &chunk);
}

status uring::reap(bool write, unsigned& in_flight, bool briefly) {
  io_uring_cqe* cqe = nullptr;
  int error = 0;
  __kernel_timespec timeout{0, kBrieflyNs};
  do error = briefly ? io_uring_wait_cqe_timeout(&ring_, &cqe, &timeout) : io_uring_wait_cqe(&ring_, &cqe);
  while (error == -EINTR);
  if (briefly && error == -ETIME) return {};
  if (error != 0) {
    in_flight = 0;  // their completions will never be known, so the ring is discarded
    return failure{-error, "io_uring: waiting failed: " + errno_text(-error)};
  }
  part& done = *static_cast<part*>(io_uring_cqe_get_data(cqe));
  const int moved = cqe->res;
  io_uring_cqe_seen(&ring_, cqe);
  if (moved > 0) done.done += static_cast<std::uint64_t>(moved);
  if (moved == -EINTR || moved == -EAGAIN || (moved > 0 && done.done < done.end)) {
    submit(done, write);
    return {};
  }
  --in_flight;
  free_[free_count_++] = static_cast<unsigned>(&done - parts_);
  if (moved < 0) return failed(*done.block, write, -moved);
  if (moved == 0) return failed(*done.block, write, EIO);  // the file ends inside the block
  return {};
}

status uring::write(std::span<const block_io> blocks, stage* through, block_gate* gate) {
  through_ = through;
  max_in_flight_ = through != nullptr ? stage::kParts : kDepth;
  return run(blocks, true, gate);
}

status uring::read(std::span<const block_io> blocks) {
  through_ = nullptr;
  max_in_flight_ = kDepth;
  return run(blocks, false, nullptr);
}

status uring::run(std::span<const block_io> blocks, bool write, block_gate* gate) {
  // Low numbers on top of the stack: only the first most_ parts, which have a place in the stage, are used.
  for (free_count_ = 0; free_count_ < kDepth; ++free_count_) free_[free_count_] = kDepth - 1 - free_count_;
  status outcome;
  unsigned in_flight = 0;
  std::size_t next = 0;
  std::uint64_t begun = 0;  // of blocks[next]
  std::size_t ready = gate != nullptr ? 0 : blocks.size();
  while (in_flight > 0 || (outcome && next < blocks.size())) {
    if (outcome && next == ready && ready < blocks.size()) {
      ready = gate->ready(next, in_flight == 0);
      if (ready == next && in_flight == 0) return failure{ECANCELED, "the rest of a value did not arrive"};
    }
    while (outcome && next < ready && in_flight < max_in_flight_) {
      part& fresh = parts_[free_[--free_count_]];
      fresh = part{&blocks[next], nullptr, begun, begun, std::min(blocks[next].size_bytes, begun + kPartBytes)};
      begin(fresh);
      submit(fresh, write);
      ++in_flight;
      begun = fresh.end;
      if (begun == blocks[next].size_bytes) {
        ++next;
        begun = 0;
      }
      if (through_ != nullptr) break;  // the device starts without waiting for the next copy
    }
    const int submitted = io_uring_submit(&ring_);
    if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY && outcome)
      return failure{-submitted, "io_uring: submission failed: " + errno_text(-submitted)};
    if (through_ != nullptr && outcome && next < ready && in_flight < max_in_flight_) continue;
    const bool more_comes = outcome && next == ready && ready < blocks.size() && in_flight < max_in_flight_;
    if (status one = reap(write, in_flight, more_comes); !one && outcome) outcome = std::move(one);
  }
  return outcome;
}

}  // namespace pl::store
