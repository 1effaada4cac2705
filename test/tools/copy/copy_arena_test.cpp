// SPDX-License-Identifier: Apache-2.0
// What `peerlane copy` calls verified is only as good as this: copies that do too little, too much or the wrong thing must
// be found, in every direction.
#include "tools/copy/copy_arena.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tools/copy/cost_view.hpp"

namespace pl::tools {
namespace {

// The tools look for the simulated GPU beside their program, where this one is not: a library that is loaded already is
// found by its name.
bool load_simulated_gpu() { return dlopen(PL_SIM_LIBRARY, RTLD_NOW | RTLD_GLOBAL) != nullptr; }

struct fixture {
  bool loaded = load_simulated_gpu();
  gpu_session gpu{0, false};
  std::vector<copy_case> cases = all_copy_cases();
  copy_arena arena{gpu, cases, 1u << 20, 42};

  // By CUDA, then what a test does to it.
  void copy(const copy::transfer& transfer) const {
    gpu.check(gpu.cuda().cuMemcpyAsync(transfer.dst, transfer.src, transfer.row_bytes, nullptr), "cuMemcpyAsync");
    gpu.synchronize();
  }
  std::string complaint_of(const copy_case& test_case, std::uint64_t bytes,
                           const std::function<bool(const copy::transfer&)>& run) {
    try {
      arena.verify(test_case, bytes, "test", run);
      return "";
    } catch (const tool_failure& reason) { return reason.what(); }
  }
};

TEST(copy_arena, right_copies_pass) {
  fixture f;
  for (const auto& test_case : f.cases) {
    f.arena.begin(test_case);
    for (const std::uint64_t bytes : {1u, 3u, 64u, 4097u, 1u << 20})
      EXPECT_EQ(f.complaint_of(test_case, bytes, [&](const copy::transfer& transfer) { return f.copy(transfer), true; }), "")
          << direction_label(test_case) << " " << bytes;
  }
}

TEST(copy_arena, a_copy_that_is_not_made_is_found) {
  fixture f;
  for (const auto& test_case : f.cases) {
    f.arena.begin(test_case);
    EXPECT_NE(f.complaint_of(test_case, 64, [](const copy::transfer&) { return true; }).find("data byte"),
              std::string::npos);
  }
}

TEST(copy_arena, a_byte_too_few_and_one_too_many_are_found) {
  fixture f;
  for (const auto& test_case : f.cases) {
    f.arena.begin(test_case);
    const auto complaint_after = [&](auto&& change) {
      return f.complaint_of(test_case, 1000, [&](copy::transfer transfer) {
        f.copy(transfer);
        change(transfer);
        f.copy(transfer);
        return true;
      });
    };
    // The neighbour of the source is random: by chance it equals the canary once in 256 times, so several are moved.
    EXPECT_NE(complaint_after([](copy::transfer& transfer) { transfer.row_bytes += 8; }).find("after the destination"),
              std::string::npos);
    EXPECT_NE(complaint_after([](copy::transfer& transfer) {
                transfer.dst -= 8, transfer.src -= 8;
              }).find("before the destination"),
              std::string::npos);
    EXPECT_NE(f.complaint_of(test_case, 1000,
                             [&](copy::transfer transfer) {
                               transfer.row_bytes -= 8;
                               return f.copy(transfer), true;
                             })
                  .find("data byte"),
              std::string::npos);
  }
}

TEST(copy_arena, old_data_does_not_pass) {
  fixture f;
  for (const auto& test_case : f.cases) {
    f.arena.begin(test_case);
    copy::transfer first;
    ASSERT_EQ(f.complaint_of(test_case, 4096,
                             [&](const copy::transfer& transfer) { return first = transfer, f.copy(transfer), true; }),
              "");
    EXPECT_NE(f.complaint_of(test_case, 4096,
                             [&](copy::transfer transfer) {
                               transfer.src = first.src;
                               return f.copy(transfer), true;
                             }),
              "");
  }
}

TEST(copy_arena, a_refusal_is_no_complaint) {
  fixture f;
  EXPECT_FALSE(f.arena.verify(f.cases[0], 64, "test", [](const copy::transfer&) { return false; }));
}

}  // namespace
}  // namespace pl::tools
