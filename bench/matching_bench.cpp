// SPDX-License-Identifier: Apache-2.0
// How long many messages take that match in reverse: receives posted first, or messages that came before their receives.
// Two processes of one machine, host memory, 4 bytes each.
//
//     matching_bench [FILE.json]
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "messaging/bootstrap/local_bootstrap.hpp"
#include "messaging/messenger.hpp"

namespace {

using namespace pl;
using namespace pl::messaging;

constexpr int kRounds = 9;
constexpr std::uint64_t kHighHalf = 0xffffffff00000000ull;

struct match_case {
  const char* name;
  bool is_posted_first;
  unsigned messages;
  int source;  // of the receives
  std::uint64_t mask;
  unsigned shift;  // of the number in the tag
};
constexpr match_case kCases[] = {
    {"any source, whole tags", true, 20'000, kAnySource, kWholeTag, 0},
    {"one source, whole tags", true, 100'000, 0, kWholeTag, 0},
    {"any source, a mask", true, 20'000, kAnySource, kHighHalf, 32},
    {"any source, whole tags", false, 20'000, kAnySource, kWholeTag, 0},
    {"one source, whole tags", false, 100'000, 0, kWholeTag, 0},
    {"any source, a mask", false, 20'000, kAnySource, kHighHalf, 32},
};

template <class T>
T need(result<T> outcome) {
  if (outcome) return *std::move(outcome);
  std::fprintf(stderr, "%s\n", outcome.error().message.c_str());
  std::exit(1);
}
void need(const status& outcome) {
  if (outcome) return;
  std::fprintf(stderr, "%s\n", outcome.error().message.c_str());
  std::exit(1);
}

// Rank 0 sends upwards, so the receives of rank 1 go downwards; the time from the first message, or the first receive, to
// the end of all.
struct measured {
  double took_ns;
  std::uint64_t comparisons;
};
measured measure_receiver(messenger& world, const match_case& one) {
  std::vector<std::uint32_t> values(one.messages);
  std::vector<request> all(one.messages);
  std::uint64_t begin_ns = 0, compared = world.counts().comparisons;
  const auto post_all = [&] {
    for (unsigned i = one.messages; i-- > 0;)
      all[i] = world.irecv(one.source, host_buffer(&values[i], sizeof values[i]), std::uint64_t{i} << one.shift, one.mask);
  };
  if (one.is_posted_first) {
    post_all();
    need(world.barrier());
    begin_ns = monotonic_ns();
  } else {
    need(world.barrier());
    message_info found;
    const std::uint64_t last = std::uint64_t{one.messages - 1} << one.shift;
    while (!world.probe(0, last, kWholeTag, found)) {}
    compared = world.counts().comparisons;
    begin_ns = monotonic_ns();
    post_all();
  }
  for (auto& each : all) need(each.wait());
  const auto took = static_cast<double>(monotonic_ns() - begin_ns);
  compared = world.counts().comparisons - compared;
  for (unsigned i = 0; i < one.messages; ++i)
    if (values[i] != i) need(failure{EIO, format("message %u went to another receive", i)});
  return {took, compared};
}

void send_all(messenger& world, const match_case& one) {
  std::vector<std::uint32_t> values(one.messages);
  std::vector<request> all(one.messages);
  need(world.barrier());
  for (unsigned i = 0; i < one.messages; ++i) {
    values[i] = i;
    all[i] = world.isend(1, host_buffer(&values[i], sizeof values[i]), std::uint64_t{i} << one.shift);
  }
  for (auto& each : all) need(each.wait());
}

void run_receiver(messenger& world, const char* path) {
  result_file out("matching_bench", {"matching_bench"});
  out.set_machine(describe_host());
  out.set_parameter("rounds", kRounds);
  out.set_parameter("size_bytes", sizeof(std::uint32_t));
  for (const auto& one : kCases) {
    std::vector<double> took_ns;
    std::uint64_t compared = 0;
    for (int round = 0; round < kRounds; ++round) {
      const auto [time_ns, comparisons] = measure_receiver(world, one);
      took_ns.push_back(time_ns);
      compared += comparisons;
      need(world.barrier());
    }
    const double comparisons = static_cast<double>(compared) / (static_cast<double>(one.messages) * kRounds);
    auto row = latency_fields(took_ns);
    row["kind"] = one.is_posted_first ? "receives_first" : "messages_first";
    row["case"] = one.name;
    row["messages"] = one.messages;
    row["comparisons_per_message"] = comparisons;
    row["series"] = format("%s %s", row["kind"].get<std::string>().c_str(), one.name);
    out.add_samples(row["series"], took_ns);
    std::printf("%-14s  %-24s %6u messages  %8.2f ms  p99 %8.2f ms  %5.2f comparisons each\n",
                one.is_posted_first ? "receives first" : "messages first", one.name, one.messages,
                row["latency_ns_p50"].get<double>() / 1e6, row["latency_ns_p99"].get<double>() / 1e6, comparisons);
    out.add_row(row);
  }
  if (path != nullptr) need(out.write(path));
}

int run_rank(int rank, fork_bootstrap& sockets, const char* path) {
  auto group = sockets.take(rank);
  auto options = messenger_options::from_environment();
  options.unexpected_bytes = 256u << 20;  // all messages of a case
  auto world = need(messenger::open(nullptr, *group, options));
  if (rank == 1) {
    run_receiver(*world, path);
    return 0;
  }
  for (const auto& one : kCases)
    for (int round = 0; round < kRounds; ++round) {
      send_all(*world, one);
      need(world->barrier());
    }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto sockets = need(fork_bootstrap::make(2));
  const pid_t child = fork();
  if (child == 0) return run_rank(0, sockets, nullptr);
  const int code = run_rank(1, sockets, argc > 1 ? argv[1] : nullptr);
  int status = 0;
  waitpid(child, &status, 0);
  return code != 0 || status != 0 ? 1 : 0;
}
