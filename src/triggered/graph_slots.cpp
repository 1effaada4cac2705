// SPDX-License-Identifier: Apache-2.0
#include "triggered/graph_slots.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

namespace pl::triggered {

result<capture> capture_of(const cu::driver_table& cuda, cu::stream_t stream) {
  int state = cu::capture_status::none;
  if (const auto rc = cuda.cuStreamIsCapturing(stream, &state); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "the stream");
  if (state == cu::capture_status::none) return capture{};
  if (state == cu::capture_status::invalidated)
    return failure{EINVAL, "the stream's capture has failed: end it before anything else is queued"};
  if (cuda.cuStreamGetCaptureInfo_v3 == nullptr || cuda.cuUserObjectCreate == nullptr)
    return failure{ENOTSUP, "the stream is being captured, which needs a driver of CUDA 12.3 or newer"};
  capture out;
  const auto rc = cuda.cuStreamGetCaptureInfo_v3(stream, &state, &out.id, &out.graph, nullptr, nullptr, nullptr);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "the stream's capture");
  return out;
}

// The user object that a graph retains. The driver destroys it on a thread that may not call CUDA.
struct graph_slots::keeper {
  std::shared_ptr<graph_slots> slots;
  std::uint64_t capture_id;
  static void end(void* self) {
    const std::unique_ptr<keeper> mine(static_cast<keeper*>(self));
    mine->slots->drop(mine->capture_id);
  }
};

// Calls the driver without the lock: the driver's thread that ends a keeper takes the lock too, and may hold locks of the
// driver at that time.
status graph_slots::keep(const cu::driver_table& cuda, const capture& capture_state) {
  {
    const std::lock_guard lock(mutex_);
    if (std::find(kept_.begin(), kept_.end(), capture_state.id) != kept_.end()) return {};
    kept_.push_back(capture_state.id);
  }
  auto made = std::make_unique<keeper>(keeper{shared_from_this(), capture_state.id});
  cu::user_object_t object = nullptr;
  if (const auto rc = cuda.cuUserObjectCreate(&object, made.get(), keeper::end, 1, cu::user_object_flag::no_destructor_sync);
      rc != cu::error_code::success) {
    drop(capture_state.id);
    return cu::make_error(cuda, rc, "cuUserObjectCreate");
  }
  static_cast<void>(made.release());  // the object's now
  const auto rc = cuda.cuGraphRetainUserObject(capture_state.graph, object, 1, cu::user_object_retain_flag::move);
  if (rc == cu::error_code::success) return {};
  static_cast<void>(cuda.cuUserObjectRelease(object, 1));
  return cu::make_error(cuda, rc, "cuGraphRetainUserObject");
}

void graph_slots::drop(std::uint64_t capture_id) {
  const std::lock_guard lock(mutex_);
  std::erase(kept_, capture_id);
  if (std::erase(counting_, capture_id) != 0) held_.fetch_sub(1, std::memory_order_release);
  for (auto& dir : slots_)
    for (auto& each : dir)
      if (each.capture_id == capture_id) {
        each = {};
        held_.fetch_sub(1, std::memory_order_release);
      }
}

result<std::uint64_t> graph_slots::take(const cu::driver_table& cuda, direction dir, const capture& capture_state) {
  if (auto done = keep(cuda, capture_state); !done) return done.error();
  const std::lock_guard lock(mutex_);
  auto& count = counts_[static_cast<unsigned>(dir)];
  auto& next = slots_[static_cast<unsigned>(dir)][static_cast<unsigned>(slot_of(count + 1))];
  if (next.capture_id != 0)
    return failure{ENOSPC, "captured " + std::string(dir == direction::put ? "put " : "wait ") +
                               std::to_string(next.number) + ", " + std::to_string(kGraphSlots) +
                               " before this one, is in a graph that still exists: destroy it, or open another channel"};
  next = {capture_state.id, ++count, false};
  held_.fetch_add(1, std::memory_order_release);
  return count;
}

result<std::uint64_t> graph_slots::count_one(const cu::driver_table& cuda, direction dir, const capture& capture_state) {
  if (auto done = keep(cuda, capture_state); !done) return done.error();
  const std::lock_guard lock(mutex_);
  if (std::find(counting_.begin(), counting_.end(), capture_state.id) == counting_.end()) {
    counting_.push_back(capture_state.id);
    held_.fetch_add(1, std::memory_order_release);
  }
  return ++counts_[static_cast<unsigned>(dir)];
}

void graph_slots::undo_count(direction dir) {
  const std::lock_guard lock(mutex_);
  --counts_[static_cast<unsigned>(dir)];
}

void graph_slots::undo(direction dir) {
  const std::lock_guard lock(mutex_);
  auto& count = counts_[static_cast<unsigned>(dir)];
  auto& last = slots_[static_cast<unsigned>(dir)][static_cast<unsigned>(slot_of(count))];
  if (last.capture_id != 0) held_.fetch_sub(1, std::memory_order_release);
  last = {};
  --count;
}

status graph_slots::release(std::uint64_t number, const capture& capture_state) {
  const std::lock_guard lock(mutex_);
  auto* const found = number == 0 ? nullptr : &slots_[1][static_cast<unsigned>(slot_of(number))];
  if (found == nullptr || found->capture_id != capture_state.id || found->number != number)
    return failure{EINVAL, "wait " + std::to_string(number) +
                               " is not of this capture: a captured wait is released in the graph that it is in"};
  if (found->is_released) return failure{EINVAL, "captured wait " + std::to_string(number) + " has been released already"};
  found->is_released = true;
  return {};
}

std::uint64_t graph_slots::count(direction dir) const {
  const std::lock_guard lock(mutex_);
  return counts_[static_cast<unsigned>(dir)];
}

std::vector<std::uint64_t> graph_slots::unreleased() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> out;
  for (const auto& each : slots_[1])
    if (each.capture_id != 0 && !each.is_released) out.push_back(each.number);
  std::sort(out.begin(), out.end());
  return out;
}

std::optional<std::uint64_t> graph_slots::find_stuck(const word_pool& words, unsigned index, std::uint64_t now_ns,
                                                     std::uint64_t limit_ns) {
  if (!is_any_held()) return {};
  for (unsigned i = 0; i < kGraphSlots; ++i) {
    auto* const word = &words.host(index).graph_wait_place[i];
    std::uint64_t place = graph_place::waiting;
    // `waiting` again: a later launch of the graph, whose time-out starts now.
    if (__atomic_compare_exchange_n(word, &place, graph_place::seen, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      waiting_since_[i] = now_ns;
      continue;
    }
    if (place != graph_place::seen || now_ns - waiting_since_[i] < limit_ns) continue;
    if (words.is_mapped() && words.load(index, offsetof(gpu_words, graph_flag) + i * sizeof(std::uint64_t)) != 0) continue;
    const std::lock_guard lock(mutex_);
    return slots_[1][i].number;
  }
  return {};
}

}  // namespace pl::triggered
