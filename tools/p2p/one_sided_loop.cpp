// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/one_sided_loop.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/clock.hpp"
#include "tools/p2p/pattern.hpp"

namespace pl::p2p {
namespace {

constexpr int kOrigin = 0, kTarget = 1;
constexpr std::uint64_t kSalt = 11;

}  // namespace

one_sided_loop::one_sided_loop(buffer_source& memory, benchmark kind, memory_kind place, memory_kind window_place,
                               std::size_t size_bytes)
    : kind_(kind), bytes_(size_bytes) {
  const std::size_t room = std::max<std::size_t>(1, bytes_);
  buffer_ = memory.allocate(place, room);
  buffer_->fill(0, room);
  if (window_place == memory_kind::host) return;
  device_window_ = memory.allocate(window_place, std::max(room, sizeof(std::uint64_t)));
  device_window_->fill(0, device_window_->size_bytes());
}

void one_sided_loop::open_window(one_sided_calls& library) {
  if (device_window_ != nullptr) library.open_window_on(device_window_->data(), device_window_->size_bytes());
  else host_window_ = library.open_window(std::max<std::size_t>(sizeof(std::uint64_t), bytes_));
}

std::vector<std::uint8_t> one_sided_loop::window_bytes(std::size_t count) const {
  std::vector<std::uint8_t> out(count);
  if (device_window_ != nullptr) device_window_->load(out);
  else std::memcpy(out.data(), host_window_, count);
  return out;
}

void one_sided_loop::set_window(const std::vector<std::uint8_t>& bytes) {
  if (device_window_ != nullptr) device_window_->store(bytes);
  else std::memcpy(host_window_, bytes.data(), bytes.size());
}

void one_sided_loop::work(one_sided_calls& library, const loop_plan& plan, std::uint64_t iteration) {
  switch (kind_) {
    case benchmark::put_latency:
    case benchmark::put_bandwidth:
      for (int i = 0; i < plan.window; ++i) library.put(buffer_->data(), bytes_, buffer_->kind(), kTarget, 0);
      return library.flush(kTarget);
    case benchmark::get_latency:
    case benchmark::get_bandwidth:
      for (int i = 0; i < plan.window; ++i) library.get(buffer_->data(), bytes_, buffer_->kind(), kTarget, 0);
      return library.flush(kTarget);
    case benchmark::fetch_latency:
      last_ = library.fetch_add(kTarget, 0, 1);
      return;
    case benchmark::compare_latency:
      last_ = library.compare_swap(kTarget, 0, iteration, iteration + 1);
      return;
    default:
      return;
  }
}

std::int64_t one_sided_loop::verify_bytes(transport& world) {
  std::vector<std::uint8_t> got(bytes_);
  const bool is_put = kind_ == benchmark::put_latency || kind_ == benchmark::put_bandwidth;
  if (world.rank() == (is_put ? kOrigin : kTarget)) return 0;
  if (is_put) got = window_bytes(bytes_);
  else buffer_->load(got);
  return static_cast<std::int64_t>(count_errors(got, kSalt));
}

// After the measured calls.
std::int64_t one_sided_loop::verify(transport& world, std::uint64_t calls) {
  if (!is_atomic(kind_)) return verify_bytes(world);
  if (world.rank() == kOrigin) return last_ + 1 == calls ? 0 : 1;
  std::uint64_t word = 0;
  std::memcpy(&word, window_bytes(sizeof word).data(), sizeof word);
  return word == calls ? 0 : 1;
}

loop_outcome one_sided_loop::run(transport& world, const loop_plan& plan) {
  auto& library = world.one_sided();
  open_window(library);
  std::vector<std::uint8_t> pattern(bytes_);
  fill_pattern(pattern, kSalt);
  const bool is_get = kind_ == benchmark::get_latency || kind_ == benchmark::get_bandwidth;
  if (is_get) set_window(pattern);
  else if (world.rank() == kOrigin) buffer_->store(pattern);
  loop_outcome out;
  const int calls = plan.warm_up + plan.iterations;
  world.barrier();
  if (world.rank() == kOrigin)
    for (int i = 0; i < calls; ++i) {
      const std::uint64_t begin_ns = monotonic_ns();
      work(library, plan, static_cast<std::uint64_t>(i));
      const std::uint64_t end_ns = monotonic_ns();
      if (i >= plan.warm_up) out.samples_ns.push_back(static_cast<double>(end_ns - begin_ns));
    }
  world.barrier();
  std::int64_t errors = plan.validate ? verify(world, static_cast<std::uint64_t>(calls)) : 0;
  if (plan.validate) out.errors = static_cast<std::int64_t>(sum_over_ranks(world, static_cast<double>(errors)));
  world.barrier();
  library.close_window();
  return out;
}

}  // namespace pl::p2p
