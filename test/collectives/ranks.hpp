// SPDX-License-Identifier: Apache-2.0
// A job whose ranks have collectives, and what each of their bytes should be.
#pragma once

#include "collectives/executor.hpp"
#include "test/messaging/job.hpp"

namespace pl::collectives {

using messaging::gpus;
using messaging::kTimeout;
using messaging::piece;
using namespace std::chrono_literals;

struct rank_of_job {
  int rank = 0, size = 1;
  executor* all = nullptr;
  messaging::messenger* messages = nullptr;
  bool has_gpu = false;
};

// What a test runs with, by name.
struct ranks_case {
  const char* name;
  int size;
  gpus layout;
};

// Processes that do not answer 0. `killed` may die by a signal.
inline int run_ranks(int size, gpus layout, const std::function<int(const rank_of_job&)>& body, int killed = -1) {
  return messaging::run_job(
      size, layout, messaging::test_options(),
      [&](const messaging::rank_context& context) {
        auto opened = executor::open(*context.messenger, *context.group);
        CHECK_OK(opened);
        return body({context.rank, size, opened->get(), context.messenger, layout != gpus::none});
      },
      killed);
}

inline unsigned char byte_of(int source, int destination, std::size_t index) {
  return static_cast<unsigned char>(static_cast<std::size_t>(31 * source + 7 * destination) + index * 13 + index / 251);
}
inline std::vector<unsigned char> block_of(int source, int destination, std::size_t bytes) {
  std::vector<unsigned char> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = byte_of(source, destination, i);
  return out;
}
inline std::vector<unsigned char> operator+(std::vector<unsigned char> first, const std::vector<unsigned char>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

inline status wait(result<operation> begun) { return begun ? begun->wait(kTimeout) : status(begun.error()); }

// Runs it with each algorithm that the collective has.
inline int with_each_algorithm(const rank_of_job& job, collective kind, const std::function<int()>& body) {
  const auto kept = job.all->table();
  for (const algorithm each : algorithms_of(kind)) {
    auto table = kept;
    table.prefer({kind, UINT64_MAX, UINT64_MAX, each});
    job.all->use(table);
    if (const int line = body()) return std::fprintf(stderr, "%s by %s\n", name_of(kind), name_of(each)), line;
  }
  job.all->use(kept);
  return 0;
}

}  // namespace pl::collectives
