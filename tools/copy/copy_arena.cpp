// SPDX-License-Identifier: Apache-2.0
#include "tools/copy/copy_arena.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/text.hpp"

namespace pl::tools {
namespace {

using copy::direction;
using copy::other_side;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kCanary = 64;
constexpr std::uint64_t kMaxShift = 2048;                   // random offsets are below it
constexpr std::uint64_t kRoom = kPage + kMaxShift + kPage;  // before and after the data
// Up to here every check uses fresh data. Above, it reads the random source at another offset, which is as good (a byte of
// an earlier copy is equal by chance in 1 of 256) and saves time per GiB and contender.
constexpr std::uint64_t kFreshBytes = 1u << 20;

}  // namespace

void random_bytes::fill(unsigned char* data, std::uint64_t bytes) {
  std::uint64_t done = 0;
  for (; done + 8 <= bytes; done += 8) {
    const std::uint64_t word = next();
    std::memcpy(data + done, &word, 8);
  }
  const std::uint64_t word = next();
  std::memcpy(data + done, &word, bytes - done);
}

copy_arena::copy_arena(const gpu_session& gpu, std::span<const copy_case> cases, std::uint64_t most_bytes,
                       std::uint64_t seed)
    : gpu_(gpu), bytes_((most_bytes + kRoom + kPage - 1) / kPage * kPage), seed_(seed), random_(seed) {
  const auto any = [&](auto&& wanted) { return std::any_of(cases.begin(), cases.end(), wanted); };
  first_ = std::make_unique<device_block>(gpu, gpu.ordinal(), bytes_);
  pinned_ = std::make_unique<host_memory>(gpu, bytes_);
  check_ = std::make_unique<host_memory>(gpu, bytes_);
  if (any([](const copy_case& one) { return one.side == other_side::same_gpu; }))
    second_ = std::make_unique<device_block>(gpu, gpu.ordinal(), bytes_);
  if (any([](const copy_case& one) { return one.side == other_side::peer_gpu; })) {
    peer_ordinal_ = gpu.ordinal() == 0 ? 1 : 0;
    enable_peers();
    peer_ = std::make_unique<device_block>(gpu, peer_ordinal_, bytes_);
  }
  if (any([](const copy_case& one) { return one.side == other_side::pageable; })) {
    pageable_.reset(static_cast<unsigned char*>(std::aligned_alloc(kPage, bytes_)));
    if (pageable_ == nullptr) throw tool_failure(format("no %s of host memory", format_size(bytes_).c_str()));
    std::memset(pageable_.get(), 1, bytes_);
  }
}

copy_arena::~copy_arena() = default;

// Enables peer access as a program that copies between GPUs does. GPUs that cannot reach each other copy through the host.
void copy_arena::enable_peers() const {
  const auto& cuda = gpu_.cuda();
  cu::device_t other = 0;
  cu::context_t own_context = nullptr, other_context = nullptr, popped = nullptr;
  gpu_.check(cuda.cuDeviceGet(&other, peer_ordinal_), "cuDeviceGet");
  gpu_.check(cuda.cuCtxGetCurrent(&own_context), "cuCtxGetCurrent");
  gpu_.check(cuda.cuDevicePrimaryCtxRetain(&other_context, other), "cuDevicePrimaryCtxRetain");
  int can = 0;
  if (cuda.cuDeviceCanAccessPeer(&can, gpu_.device(), other) == cu::error_code::success && can != 0) {
    cuda.cuCtxEnablePeerAccess(other_context, 0);
    if (cuda.cuCtxPushCurrent_v2(other_context) == cu::error_code::success) {
      cuda.cuCtxEnablePeerAccess(own_context, 0);
      cuda.cuCtxPopCurrent_v2(&popped);
    }
  }
  // The retain stays: releasing the last one would end the context and the access with it. The process ends soon.
}

copy_arena::place copy_arena::source_of(const copy_case& test_case) const {
  if (test_case.way != direction::to_device) return {first_.get(), nullptr};
  return {nullptr, test_case.side == other_side::pinned ? pinned_->bytes() : pageable_.get()};
}

copy_arena::place copy_arena::target_of(const copy_case& test_case) const {
  if (test_case.way == direction::to_device) return {first_.get(), nullptr};
  if (test_case.way == direction::on_device)
    return {test_case.side == other_side::peer_gpu ? peer_.get() : second_.get(), nullptr};
  return {nullptr, test_case.side == other_side::pinned ? pinned_->bytes() : pageable_.get()};
}

copy::transfer copy_arena::make_transfer(const copy_case& test_case, std::uint64_t bytes, std::uint64_t source,
                                         std::uint64_t target) const {
  const auto address = [](const place& one, std::uint64_t offset) {
    return one.device != nullptr ? one.device->get() + offset : copy::address_of(one.host + offset);
  };
  return {test_case.way, address(target_of(test_case), target), address(source_of(test_case), source), bytes};
}

copy::transfer copy_arena::aligned(const copy_case& test_case, std::uint64_t bytes) const {
  return make_transfer(test_case, bytes, kPage, kPage);
}

void copy_arena::begin(const copy_case& test_case) {
  const place source = source_of(test_case);
  unsigned char* const known = source.host != nullptr ? source.host : check_->bytes();
  random_.fill(known, bytes_);
  if (source.device != nullptr) source.device->write(0, known, bytes_);
}

bool copy_arena::verify(const copy_case& test_case, std::uint64_t bytes, const std::string& contender_name,
                        const std::function<bool(const copy::transfer&)>& run) {
  const std::uint64_t source_offset = kPage + random_.next() % kMaxShift;
  const std::uint64_t destination_offset = kPage + random_.next() % kMaxShift;
  const place source = source_of(test_case);
  const place target = target_of(test_case);
  unsigned char* const known = source.host != nullptr ? source.host : check_->bytes();
  if (bytes <= kFreshBytes) {
    random_.fill(known + source_offset, bytes);
    if (source.device != nullptr) source.device->write(source_offset, known + source_offset, bytes);
  }
  // A new value each time, so that bytes left by an earlier check cannot pass for canaries.
  const auto blank = static_cast<unsigned char>(random_.next());
  const std::uint64_t around = bytes + 2 * kCanary;
  if (target.device != nullptr) target.device->set(destination_offset - kCanary, blank, around);
  else std::memset(target.host + destination_offset - kCanary, blank, around);
  if (!run(make_transfer(test_case, bytes, source_offset, destination_offset))) return false;

  // Memory for the comparison: the check buffer is free when the source is the host's, the pinned one when both are a
  // GPU's.
  const unsigned char* seen = nullptr;
  if (target.device == nullptr) {
    seen = target.host + destination_offset - kCanary;
  } else {
    unsigned char* const scratch = source.host != nullptr ? check_->bytes() : pinned_->bytes();
    target.device->read(destination_offset - kCanary, scratch, around);
    seen = scratch;
  }
  const auto complain = [&](const char* region, std::uint64_t byte, unsigned is, unsigned should) {
    throw tool_failure(format("%s %s, %s, %" PRIu64 " bytes from offset %" PRIu64 " to %" PRIu64 ": %s byte %" PRIu64
                              " is 0x%02x instead of 0x%02x (--seed %" PRIu64 ")",
                              direction_label(test_case), memory_label(test_case), contender_name.c_str(), bytes,
                              source_offset, destination_offset, region, byte, is, should, seed_));
  };
  const unsigned char* const data = seen + kCanary;
  if (std::memcmp(data, known + source_offset, bytes) != 0) {
    const auto [is, should] = std::mismatch(data, data + bytes, known + source_offset);
    complain(*is == blank ? "unchanged data" : "data", static_cast<std::uint64_t>(is - data), *is, *should);
  }
  for (std::uint64_t i = 0; i < kCanary; ++i) {
    if (seen[i] != blank) complain("before the destination,", i, seen[i], blank);
    if (data[bytes + i] != blank) complain("after the destination,", i, data[bytes + i], blank);
  }
  return true;
}

}  // namespace pl::tools
