// SPDX-License-Identifier: Apache-2.0
// Why memory could not be mapped, by the memory's identity: the last few failures, so that a copy in a loop does not
// ask the kernel in vain each time. Not thread-safe.
#pragma once

#include <cerrno>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "copy/memory_window.hpp"

namespace pl::copy {

struct refusal {
  memory_identity id;
  failure reason;
  std::uint64_t until_ns = 0;  // 0: permanent
  bool is_over() const { return until_ns != 0 && monotonic_ns() >= until_ns; }
};

// Whether a retry is pointless because the kind of memory is the reason. Other reasons (BAR1 full, no descriptors, a
// bus error) may pass.
inline bool is_permanent_refusal(int code) { return code == ENOTSUP || code == EINVAL || code == EPERM; }

inline refusal refuse(const memory_identity& id, const failure& reason, unsigned retry_ms) {
  return {id, reason, is_permanent_refusal(reason.code) ? 0 : monotonic_ns() + std::uint64_t{retry_ms} * 1'000'000};
}

class refusal_list {
 public:
  static constexpr std::size_t kMaxRefusals = 64;

  // Null if none is known or it has expired. Valid until the next add or clear.
  const refusal* find(const memory_identity& id) const {
    for (const auto& known : known_)
      if (known.id == id) return known.is_over() ? nullptr : &known;
    return nullptr;
  }

  void add(refusal fresh) {
    for (auto& known : known_)
      if (known.id == fresh.id) {
        known = std::move(fresh);
        return;
      }
    if (known_.size() < kMaxRefusals) {
      known_.push_back(std::move(fresh));
      return;
    }
    known_[oldest_] = std::move(fresh);
    oldest_ = (oldest_ + 1) % kMaxRefusals;
  }

  void clear() {
    known_.clear();
    oldest_ = 0;
  }

 private:
  std::vector<refusal> known_;
  std::size_t oldest_ = 0;
};

}  // namespace pl::copy
