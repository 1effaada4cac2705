// SPDX-License-Identifier: Apache-2.0
// Threads that close sessions while others call them, at random: every answer is one that the headers name, and no thread
// reads what another one has freed. Made-up handles are among the arguments.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "test/capi/capi_fixture.hpp"

namespace pl::test {
namespace {

constexpr std::size_t kBytes = 1 << 20;
constexpr auto kTime = std::chrono::milliseconds(1500);
constexpr std::array<std::uintptr_t, 5> kMadeUp = {0, 1, 0xdeadbeef, ~std::uintptr_t{0}, 0x7fffffffffff};

class shared_sessions {
 public:
  explicit shared_sessions(std::uint64_t memory) : memory_(memory) {}

  // Opens sessions in place of others, which it closes.
  void replace(unsigned seed) {
    std::mt19937 random(seed);
    while (is_running()) {
      peerlane_session_t fresh = nullptr;
      expect("open", peerlane_session_open(nullptr, &fresh), {0});
      if (fresh == nullptr) return;
      const auto old = places_[random() % places_.size()].exchange(fresh);
      if (old != nullptr) expect("close", peerlane_session_close(old), {0, EINVAL});
    }
  }

  void call(unsigned seed) {
    const current_device context(0);
    std::mt19937 random(seed);
    while (is_running()) {
      auto& place = places_[random() % places_.size()];
      const bool is_made_up = random() % 50 == 0;
      const auto session =
          is_made_up ? reinterpret_cast<peerlane_session_t>(kMadeUp[random() % kMadeUp.size()]) : place.load();
      switch (random() % 5) {
        case 0:
          if (random() % 10 == 0) expect("close", peerlane_session_close(session), {0, EINVAL});
          break;
        case 1:
          ask(session);
          break;
        case 2:
          pin_in(reinterpret_cast<gdr_t>(session), random() % 2 != 0 ? GDR_PIN_FLAG_FORCE_PCIE : GDR_PIN_FLAG_DEFAULT);
          break;
        default:
          map_in(session, random() % kBytes);
      }
    }
  }

  void close_all() {
    for (auto& place : places_) (void)peerlane_session_close(place.exchange(nullptr));
  }
  std::string problems() const { return problems_; }

 private:
  bool is_running() const { return std::chrono::steady_clock::now() < end_ && problem_count_ == 0; }

  void ask(peerlane_session_t session) {
    const std::string name = peerlane_session_backend_name(session);
    if (name != "dmabuf" && !name.empty()) problem("backend " + name);
    int simulated = -1, attribute = -1;
    expect("is_simulated", peerlane_session_is_simulated(session, &simulated), {0, EINVAL});
    const auto driver = reinterpret_cast<gdr_t>(session);
    expect("attribute", gdr_get_attribute(driver, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE, &attribute), {0, EINVAL});
  }

  void pin_in(gdr_t driver, std::uint32_t flags) {
    gdr_mh_t handle{};
    const int code = gdr_pin_buffer_v2(driver, memory_, GPU_PAGE_SIZE, flags, &handle);
    expect("pin", code, {0, EINVAL});
    if (code == 0) expect("unpin", gdr_unpin_buffer(driver, handle), {0, EINVAL});
  }

  // Another thread may close the session at any moment, and so end the mapping.
  void map_in(peerlane_session_t session, std::size_t offset) {
    peerlane_mapping_t mapping = nullptr;
    const int code = peerlane_map(session, memory_ + offset, kBytes - offset, PEERLANE_MAP_DEFAULT, &mapping);
    expect("map", code, {0, EINVAL});
    if (code == 0) expect("unmap", peerlane_unmap(mapping), {0, EINVAL});
  }

  void expect(const char* call, int code, const std::set<int>& allowed) {
    if (allowed.count(code) == 0) problem(format("%s: %d, %s", call, code, peerlane_last_error()));
  }
  void problem(const std::string& text) {
    if (problem_count_++ == 0) problems_ = text;
  }

  std::uint64_t memory_;
  std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + kTime;
  std::array<std::atomic<peerlane_session_t>, 3> places_{};
  std::atomic<int> problem_count_{0};
  std::string problems_;
};

using capi_threads = capi_test;

TEST_F(capi_threads, SessionsCloseWhileOthersCallThem) {
  shared_sessions shared(device_);
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 3; ++seed) threads.emplace_back([&shared, seed] { shared.replace(seed); });
  for (unsigned seed = 4; seed <= 8; ++seed) threads.emplace_back([&shared, seed] { shared.call(seed); });
  for (auto& thread : threads) thread.join();
  shared.close_all();
  EXPECT_EQ(shared.problems(), "");
}

}  // namespace
}  // namespace pl::test
