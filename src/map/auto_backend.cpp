// SPDX-License-Identifier: Apache-2.0
// A backend that opens may still be unable to pin: a driver's version says little about a GPU (dma-bufs that cannot be
// mapped), and a module refuses some GPUs and some memory. So a pin tries the candidates in order until one succeeds. A
// request that no backend could serve (freed memory, out of bounds) and a shortage that all share (BAR1, memory,
// descriptors) end the search at once.
//
// Many threads may pin at a time. A candidate is opened once, under the lock, and stays open.
#include "map/auto_backend.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "base/log.hpp"
#include "base/shortage.hpp"
#include "base/text.hpp"

namespace pl {
namespace {

constexpr std::size_t kCandidates = std::size(kBackendCandidates);
constexpr int kMaxRefusals = 8;  // consecutive refusals, after which a candidate is not asked any more

class auto_backend final : public backend {
 public:
  explicit auto_backend(const backend_environment& environment) : environment_(environment) {}

  // Opens the first candidate that can be opened. The error joins the reasons of all.
  status open_first() {
    failure reasons{ENODEV, {}};
    for (std::size_t i = 0; i < kCandidates; ++i) {
      auto opened = opened_at(i);
      if (opened) {
        first_ = *opened;
        current_.store(*opened);
        return {};
      }
      add_reason(reasons, i, opened.error());
      reasons.code = opened.code();  // the last one's, which has the fewest requirements
    }
    return no_way(reasons);
  }

  const char* name() const noexcept override { return current()->name(); }
  bool persistent() const noexcept override { return current()->persistent(); }
  bool supports_force_pcie() const noexcept override { return current()->supports_force_pcie(); }
  std::uint32_t driver_version_word() const noexcept override { return first_->driver_version_word(); }
  int descriptor() const noexcept override { return first_->descriptor(); }

  result<std::unique_ptr<pinned_memory>> pin(const pin_request& request) override {
    failure reasons{0, {}};
    for (std::size_t i = 0; i < kCandidates; ++i) {
      candidate_state& candidate = candidates_[i];
      if (candidate.refusals.load(std::memory_order_relaxed) >= kMaxRefusals) continue;
      auto opened = opened_at(i);
      if (!opened) {
        if (reasons.code != 0) add_reason(reasons, i, opened.error());
        continue;
      }
      auto pin = (*opened)->pin(request);
      if (pin) {
        candidate.refusals.store(0, std::memory_order_relaxed);
        if (reasons.code != 0) take_over(**opened, reasons);
        return pin;
      }
      if (is_shortage(pin.code()) || !is_servable(request)) return pin.error();
      if (pin.code() == ENOTSUP) candidate.refusals.fetch_add(1, std::memory_order_relaxed);
      add_reason(reasons, i, pin.error());
    }
    if (reasons.code == 0) return failure{ENOTSUP, "every backend has refused to pin before: open a new session"};
    return reasons;
  }

 private:
  struct candidate_state {
    bool is_tried = false;
    std::unique_ptr<backend> opened;
    failure reason{0, {}};
    std::atomic<int> refusals{0};
  };

  backend* current() const noexcept { return current_.load(std::memory_order_acquire); }

  result<backend*> opened_at(std::size_t index) {
    const std::lock_guard lock(mutex_);
    candidate_state& candidate = candidates_[index];
    if (!candidate.is_tried) {
      const char* const name = kBackendCandidates[index].name;
      auto opened = kBackendCandidates[index].open(environment_);
      if (opened) {
        PL_LOG(info, "mapping backend: %s", name);
        candidate.opened = *std::move(opened);
      } else {
        PL_LOG(info, "backend %s is not usable: %s", name, opened.error().message.c_str());
        candidate.reason = opened.error();
      }
      candidate.is_tried = true;
    }
    if (candidate.opened == nullptr) return candidate.reason;
    return candidate.opened.get();
  }

  static void add_reason(failure& reasons, std::size_t index, const failure& reason) {
    const char* const separator = reasons.message.empty() ? "" : "; ";
    reasons.message += format("%s%s: %s", separator, kBackendCandidates[index].name, reason.message.c_str());
    if (reasons.code == 0) reasons.code = reason.code;
  }

  void take_over(backend& better, const failure& reasons) {
    backend* const before = current_.exchange(&better);
    if (before != &better) PL_LOG(warn, "pinning with backend %s from now on (%s)", better.name(), reasons.message.c_str());
  }

  // Whether a backend could serve the request: CUDA knows the range as device memory of this process.
  bool is_servable(const pin_request& request) const {
    auto cuda = driver_of(environment_.cuda);
    return cuda && plan_pin(**cuda, request.range, request.granule_bytes, request.rule);
  }

  backend_environment environment_;
  std::mutex mutex_;
  std::array<candidate_state, kCandidates> candidates_;
  backend* first_ = nullptr;
  std::atomic<backend*> current_{nullptr};
};

}  // namespace

failure no_way(const failure& reasons) {
  return failure{reasons.code,
                 "no way to map GPU memory works here (" + reasons.message + "); `peerlane doctor` says what to do"};
}

result<std::unique_ptr<backend>> open_auto_backend(const backend_environment& environment) {
  auto made = std::make_unique<auto_backend>(environment);
  if (auto s = made->open_first(); !s) return s.error();
  return std::unique_ptr<backend>(std::move(made));
}

}  // namespace pl
