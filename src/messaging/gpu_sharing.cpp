// SPDX-License-Identifier: Apache-2.0
#include "messaging/gpu_sharing.hpp"

#include <functional>
#include <string_view>

namespace pl::messaging {
namespace {

constexpr int kMaxGpus = 64;

// Returns a short name for a GPU, the same in every process; 0: it has none.
std::uint16_t gpu_name(const cu::driver_table& cuda, int ordinal) {
  cu::device_t device = 0;
  cu::uuid_t uuid{};
  if (cuda.cuDeviceGet(&device, ordinal) != cu::error_code::success ||
      cuda.cuDeviceGetUuid_v2(&uuid, device) != cu::error_code::success)
    return 0;
  const auto hash = std::hash<std::string_view>{}({reinterpret_cast<const char*>(uuid.bytes), sizeof uuid.bytes});
  return static_cast<std::uint16_t>((hash ^ hash >> 16 ^ hash >> 32) | 1);
}

}  // namespace

void gpu_sharing::open(const cu::driver_table& cuda) {
  cuda_ = &cuda;
  cu::device_t device = 0;
  cu::context_t current = nullptr;
  const bool has_one = cuda.cuCtxGetCurrent(&current) == cu::error_code::success && current != nullptr &&
                       cuda.cuCtxGetDevice(&device) == cu::error_code::success;
  if (has_one) learn(current_ = device);
}

void gpu_sharing::learn(int ordinal) {
  if (ordinal >= kMaxGpus) return;
  const auto index = static_cast<std::size_t>(ordinal);
  if (own_.size() <= index) own_.resize(index + 1);
  if (own_[index].name != 0) return;
  own_[index].name = gpu_name(*cuda_, ordinal);
  own_[index].is_shared = is_heard(own_[index].name);
  is_any_shared_ = is_any_shared_ || own_[index].is_shared;
}

void gpu_sharing::note_use(int ordinal) {
  if (ordinal < 0) ordinal = last_ordinal_ >= 0 ? last_ordinal_ : current_;
  if (ordinal == last_ordinal_ || cuda_ == nullptr) return;
  learn(ordinal);
  last_ordinal_ = ordinal;
  if (static_cast<std::size_t>(ordinal) < own_.size()) last_used_ = own_[static_cast<std::size_t>(ordinal)].name;
}

void gpu_sharing::note_peer(std::uint16_t name) {
  if (is_heard(name)) return;
  received_names_.push_back(name);
  for (auto& each : own_) {
    each.is_shared = each.is_shared || each.name == name;
    is_any_shared_ = is_any_shared_ || each.is_shared;
  }
}

}  // namespace pl::messaging
