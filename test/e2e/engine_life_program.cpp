// SPDX-License-Identifier: Apache-2.0
// engine_life_program <how> <after-us>: keeps the GPU engine hot on both GPUs and copies in three threads; after that time
// it ends as told while they go on: "main" (return), "exit" (from a thread), "_exit", "forever" (somebody kills it), or
// "fork": a child that ends by exit(), and then as "exit". Prints "ready" when the engines are hot. Exit status 0, or 3 for
// a copy that failed or was wrong.
//
// The planner is never destroyed, as in a library: its threads run into whatever the end of the process does.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "copy/completion.hpp"
#include "copy/pinned_buffer.hpp"
#include "test/e2e/process.hpp"

namespace {

using namespace pl;
using namespace pl::copy;

std::atomic<bool> g_is_wrong{false};

// What the threads use is never destroyed, and not lost either.
std::atomic<unsigned> g_kept_count{0};
std::array<std::atomic<void*>, 64> g_kept;
template <class T>
T& keep(T* made) {
  g_kept[g_kept_count++] = made;
  return *made;
}

// The process may end in the middle: what a copy says then is of no interest, unless it says that it was done.
void copy_for_ever(planner& shared_planner, int ordinal) {
  const test::current_device context(ordinal);
  auto& device = keep(new test::device_buffer(200'000));
  auto found = find_context(test::simulated_cuda(), ordinal, nullptr);
  auto pinned = pinned_buffer::make(*found, 200'000);
  auto& original = keep(new std::vector<unsigned char>(200'000));
  auto& back = keep(new std::vector<unsigned char>(200'000));
  auto* const line = reinterpret_cast<unsigned char*>(pinned->data());
  keep(new pinned_buffer(*std::move(pinned)));
  for (unsigned i = 0;; ++i) {
    constexpr std::size_t kSizes[] = {8, 3000, 20'000, 200'000};
    const std::size_t bytes = kSizes[i % 4];
    std::memset(original.data(), static_cast<int>(i), bytes);
    unsigned char* const destination = i % 2 == 0 ? back.data() : line;
    if (!shared_planner.copy({direction::to_device, device.pointer(), address_of(original.data()), bytes})) continue;
    if (i % 3 == 0) {
      const copy::transfer transfer{direction::to_host, address_of(destination), device.pointer(), bytes};
      auto begun = shared_planner.begin(std::span(&transfer, 1), {});
      if (!begun || !begun->wait()) continue;
    } else if (!shared_planner.copy({direction::to_host, address_of(destination), device.pointer(), bytes})) {
      continue;
    }
    if (std::memcmp(destination, original.data(), bytes) != 0) g_is_wrong = true;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string ending = argc > 1 ? argv[1] : "main";
  const int after_us = argc > 2 ? std::atoi(argv[2]) : 0;
  const test::current_device context;
  planner::options wanted;
  wanted.threads = 2;
  wanted.costs = cost_table::built_in().text();
  auto& shared_planner = *keep(new auto(planner::open(test::simulated_cuda(), wanted)));
  for (const int ordinal : {0, 1}) {
    auto hot = shared_planner->keep_hot(ordinal);
    if (!hot) return 2;
    keep(new auto(*std::move(hot)));
  }
  for (int t = 0; t < 3; ++t) std::thread([&shared_planner, t] { copy_for_ever(*shared_planner, t % 2); }).detach();
  usleep(5000);
  std::puts("ready");
  std::fflush(stdout);
  if (ending == "forever") pause();
  usleep(static_cast<useconds_t>(after_us));
  const auto outcome = [] { return g_is_wrong ? 3 : 0; };
  if (ending == "fork") {
    const pid_t child = fork();
    if (child == 0) {
      std::uint64_t word = 0;
      const bool is_refused = shared_planner->copy({direction::to_host, address_of(&word), 4096, 8}).code() == EACCES;
#if defined(__SANITIZE_ADDRESS__)
      _exit(is_refused ? 0 : 4);  // it would call the thread-local memory of the parent's threads leaked
#else
      std::exit(is_refused ? 0 : 4);
#endif
    }
    if (const int code = test::exit_of(child); code != 0) return code;
    const test::device_buffer device(5000);
    std::vector<unsigned char> some(5000, 7), back(5000);
    if (!shared_planner->copy({direction::to_device, device.pointer(), address_of(some.data()), 5000})) return 5;
    if (!shared_planner->copy({direction::to_host, address_of(back.data()), device.pointer(), 5000}) || back != some)
      return 6;
  }
  if (ending == "_exit") _exit(outcome());
  if (ending == "exit" || ending == "fork") {
    std::thread([&] { std::exit(outcome()); }).detach();
    pause();
  }
  return outcome();
}
