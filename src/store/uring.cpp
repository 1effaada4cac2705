// SPDX-License-Identifier: Apache-2.0
#include "uring.hpp"

#include <algorithm>
#include <cerrno>

#include "text.hpp"

namespace pl::store {
namespace {

// Larger parts gain nothing, smaller ones cost calls; several under way keep the device's queue filled.
constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 20;

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
  for (unsigned i = 0; i < kDepth; ++i) made->free_[i] = i;
  return made;
}

uring::~uring() {
  if (ring_.ring_fd >= 0) io_uring_queue_exit(&ring_);
}

void uring::submit(part& which, bool write) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);  // never null: as many entries as parts
  const block_io& block = *which.block;
  const auto size = static_cast<unsigned>(which.until - which.done);
  if (write) io_uring_prep_write(sqe, block.file, block.data + which.done, size, block.offset_bytes + which.done);
  else io_uring_prep_read(sqe, block.file, block.data + which.done, size, block.offset_bytes + which.done);
  io_uring_sqe_set_data(sqe, &which);
}

status uring::reap(bool write, unsigned& under_way) {
  io_uring_cqe* cqe = nullptr;
  int error = 0;
  do error = io_uring_wait_cqe(&ring_, &cqe);
  while (error == -EINTR);
  if (error != 0) return failure{-error, "io_uring: waiting failed: " + errno_text(-error)};
  part& done = *static_cast<part*>(io_uring_cqe_get_data(cqe));
  const int moved = cqe->res;
  io_uring_cqe_seen(&ring_, cqe);
  if (moved > 0) done.done += static_cast<std::uint64_t>(moved);
  if (moved == -EINTR || moved == -EAGAIN || (moved > 0 && done.done < done.until)) {
    submit(done, write);
    return {};
  }
  --under_way;
  free_[free_count_++] = static_cast<unsigned>(&done - parts_);
  if (moved < 0) return failed(*done.block, write, -moved);
  if (moved == 0) return failed(*done.block, write, EIO);  // the file ends inside the block
  return {};
}

status uring::run(std::span<const block_io> blocks, bool write) {
  status outcome;
  unsigned under_way = 0;
  std::size_t next = 0;
  std::uint64_t begun = 0;  // of blocks[next]
  while (under_way > 0 || (outcome && next < blocks.size())) {
    while (outcome && next < blocks.size() && free_count_ > 0) {
      part& fresh = parts_[free_[--free_count_]];
      fresh = part{&blocks[next], begun, std::min(blocks[next].size_bytes, begun + kPartBytes)};
      submit(fresh, write);
      ++under_way;
      begun = fresh.until;
      if (begun == blocks[next].size_bytes) {
        ++next;
        begun = 0;
      }
    }
    const int submitted = io_uring_submit(&ring_);
    if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY && outcome)
      return failure{-submitted, "io_uring: submission failed: " + errno_text(-submitted)};
    if (status one = reap(write, under_way); !one && outcome) outcome = std::move(one);
  }
  return outcome;
}

}  // namespace pl::store
