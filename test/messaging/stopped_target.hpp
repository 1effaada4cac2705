// SPDX-License-Identifier: Apache-2.0
// What rank 0 tells the others of its windows, and a rank 0 that is stopped while they use them.
#pragma once

#include <algorithm>
#include <csignal>
#include <fstream>
#include <string>

#include "test/messaging/job.hpp"

namespace pl::messaging {

struct invitation {
  window::key_t allocated, exposed;
  pid_t pid = 0;
};

inline result<invitation> of_rank_0(const rank_context& ctx, const invitation& mine) {
  auto all = ctx.group->all_gather(std::as_bytes(std::span(&mine, 1)));
  if (!all) return std::move(all).error();
  invitation out;
  std::memcpy(&out, (*all)[0].data(), sizeof out);
  return out;
}

inline bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto state = text.rfind(')');
  return state != std::string::npos && text.substr(state + 2, 1) == "T";
}

// Rank 0 stops itself; rank 1 wakes it when it has finished `act`.
template <class Act>
int with_stopped_rank_0(const rank_context& ctx, const invitation& mine, Act&& act) {
  auto given = of_rank_0(ctx, mine);
  CHECK_OK(given);
  if (ctx.rank == 0) {
    raise(SIGSTOP);
    return 0;
  }
  for (int i = 0; i < 10'000 && !is_stopped(given->pid); ++i) usleep(1000);
  CHECK(is_stopped(given->pid));
  const int line = act(*given);
  const bool has_stayed = is_stopped(given->pid);
  kill(given->pid, SIGCONT);
  CHECK(has_stayed);
  return line;
}

// A window is written and read back by calls that have ended when they return, in sizes on both sides of every limit: of
// stores, of parts, of the driver's objects (2 MiB). What lies outside is refused.
inline constexpr std::size_t kPutAndGetSizes[] = {0, 1, 64, 4096, 70'001, 1'000'000, 2'500'000};
inline int put_and_get(const rank_context& ctx, const window::key_t& key, std::size_t window_bytes, bool is_device) {
  const auto counted = ctx.messenger->counts().one_sided;
  std::uint64_t offset = 3;
  for (const std::size_t bytes : kPutAndGetSizes) {
    piece source(is_device, bytes), back(is_device, bytes);
    source.set(test::random_bytes(bytes, bytes + 7));
    auto put = ctx.messenger->put(key, offset, source.all());
    CHECK(put.has_ended());
    CHECK_OK(put.outcome());
    auto got = ctx.messenger->get(key, offset, back.all());
    CHECK(got.has_ended());
    CHECK_OK(got.outcome());
    CHECK(back.get(bytes) == source.get(bytes));
    offset += bytes;
  }
  CHECK(ctx.messenger->put(key, window_bytes - 4, host_buffer(&offset, 8)).outcome().code() == EINVAL);
  CHECK(ctx.messenger->counts().one_sided - counted == 2 * std::size(kPutAndGetSizes));
  return 0;
}

}  // namespace pl::messaging
