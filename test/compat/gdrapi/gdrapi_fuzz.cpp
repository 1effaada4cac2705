// SPDX-License-Identifier: Apache-2.0
// The model of gdrapi_model.hpp fed with bytes: from a seeded generator in the normal test suite (each failure names its
// seed, which replays it), or from libFuzzer when PEERLANE_FUZZ is on (preset fuzz):
//   gdrapi_fuzz -max_total_time=600
// After each program nothing may be left: descriptors and mapped GPU memory are counted.
#include <cstdio>
#include <cstdlib>

#include "base/text.hpp"
#include "test/compat/gdrapi/gdrapi_model.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

// The error of a run of this program; empty if none.
std::string replay(const std::vector<std::uint8_t>& program, bool may_fork, std::map<std::string, int>& calls) {
  const current_device context(0);
  const int descriptors = open_descriptor_count(), mapped = mapping_count("peerlane-sim");
  gdrapi_model model(may_fork);
  std::string problem = model.run(byte_source(program.data(), program.size()));
  if (auto late = model.finish(); problem.empty()) problem = std::move(late);
  for (const auto& [name, count] : model.calls()) calls[name] += count;
  if (!problem.empty()) return problem;
  if (const int now = open_descriptor_count(); now != descriptors)
    return format("%d descriptors before, %d after", descriptors, now);
  if (const int now = mapping_count("peerlane-sim"); now != mapped)
    return format("%d lines of GPU memory in /proc/self/maps before, %d after", mapped, now);
  return {};
}

}  // namespace
}  // namespace pl::test

#ifdef PL_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::map<std::string, int> calls;
  pl::test::simulated_cuda();
  const std::string problem = pl::test::replay({data, data + size}, false, calls);
  if (problem.empty()) return 0;
  std::fprintf(stderr, "%s\n", problem.c_str());
  std::abort();
}

#else

namespace pl::test {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr int kRuns = 25;
constexpr bool kMayFork = false;  // ThreadSanitizer does not follow a child of a process with threads (the simulator's)
#elif defined(__SANITIZE_ADDRESS__)
constexpr int kRuns = 50;
constexpr bool kMayFork = true;
#else
constexpr int kRuns = 400;
constexpr bool kMayFork = true;
#endif

TEST(gdrapi_fuzz, SeededProgramsAnswerAsTheModel) {
  simulated_cuda();
  std::map<std::string, int> calls;
  replay(random_bytes(2000, 0), false, calls);  // what is made once per process is made now
  calls.clear();
  for (int seed = 1; seed <= kRuns; ++seed) {
    const std::string problem = replay(random_bytes(1500, static_cast<std::uint64_t>(seed)), kMayFork, calls);
    ASSERT_EQ(problem, "") << "seed " << seed;
  }
  // The programs must reach the calls, and get through them, or the model has nothing to say.
  for (const char* name : {"pin succeeded", "map succeeded", "unmap succeeded", "unpin succeeded", "info succeeded",
                           "copy_to succeeded", "copy_from succeeded", "close succeeded", "attribute succeeded"})
    EXPECT_GT(calls[name], kRuns / 20) << name;
  for (const char* name : {"pin", "map", "unmap", "unpin", "copy_to unmapped", "callback_flag", "driver_version"})
    EXPECT_GT(calls[name], kRuns) << name;
  if (kMayFork) { EXPECT_GT(calls["fork"], kRuns / 10); }
}

}  // namespace
}  // namespace pl::test

#endif
