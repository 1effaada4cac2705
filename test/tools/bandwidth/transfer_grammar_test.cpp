// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/transfer_grammar.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kDefault = 1 << 20;

std::vector<transfer_spec> parsed(const char* text) {
  const auto all = parse_transfers(text, kDefault, 4);
  EXPECT_TRUE(all) << (all ? "" : all.error().message);
  return all ? *all : std::vector<transfer_spec>{};
}

TEST(TransferGrammar, ThePlacesAndTheExecutor) {
  const auto all = parsed("H0 -> [ce] -> G0, G1 -> [sm:16] -> G0");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].source, host_place(host_kind::pinned, 0));
  EXPECT_EQ(all[0].destination, gpu_place(0));
  EXPECT_EQ(all[0].executor, (executor{executor_kind::ce, 0, 0}));
  EXPECT_EQ(all[0].bytes, kDefault);
  EXPECT_EQ(all[1].executor, (executor{executor_kind::sm, 1, 16}));
}

TEST(TransferGrammar, HostMemoryKinds) {
  EXPECT_EQ(parsed("H -> G0")[0].source, host_place());
  EXPECT_EQ(parsed("HU -> G0")[0].source, host_place(host_kind::pageable));
  EXPECT_EQ(parsed("HU1 -> G0")[0].source, host_place(host_kind::pageable, 1));
  EXPECT_EQ(parsed("HH2->G0")[0].source, host_place(host_kind::huge, 2));
}

TEST(TransferGrammar, TheSourceGpuWorksUnlessAnotherIsNamed) {
  EXPECT_EQ(parsed("G2 -> [ce] -> G1")[0].executor.gpu, 2);
  EXPECT_EQ(parsed("H -> [ce] -> G1")[0].executor.gpu, 1);
  EXPECT_EQ(parsed("G2 -> [ sm : 8 @ G1 ] -> G1")[0].executor, (executor{executor_kind::sm, 1, 8}));
  EXPECT_EQ(parsed("H0 -> [ce@G3] -> H1")[0].executor.gpu, 3);
}

TEST(TransferGrammar, SizesAreForOneTransfer) {
  const auto all = parsed("H -> [bar:4] -> G0 x 64K, G0 -> [engine:2] -> H x 4");
  EXPECT_EQ(all[0].bytes, 65536u);
  EXPECT_EQ(all[0].executor, (executor{executor_kind::bar, 0, 4}));
  EXPECT_EQ(all[1].bytes, 4u);
  EXPECT_EQ(all[1].executor, (executor{executor_kind::engine, 0, 2}));
}

TEST(TransferGrammar, NamesReadBackAsTheSameTransfers) {
  const auto all = parsed("HH1->G0,G1->[sm:16]->G0,G0->[engine]->H");
  const std::string name = to_string(all);
  EXPECT_EQ(name, "HH1 -> [ce@G0] -> G0, G1 -> [sm:16@G1] -> G0, G0 -> [engine@G0] -> H");
  EXPECT_EQ(to_string(parsed(name.c_str())), name);
}

struct mistake {
  const char* text;
  std::size_t column;
  const char* says;
};

TEST(TransferGrammar, ErrorsPointAtTheColumn) {
  for (const mistake& one : std::initializer_list<mistake>{
           {"", 1, "a place"},
           {"X0 -> G0", 1, "a place"},
           {"G -> H", 2, "GPU's number"},
           {"G0 G1", 4, "->"},
           {"G0 -> [warp] -> G1", 8, "ce, sm, bar, engine, dma or tma"},
           {"G0 -> [ce:2] -> G1", 10, "no width"},
           {"G0 -> [sm:0] -> G1", 11, "from 1 to"},
           {"G0 -> [sm:x] -> G1", 11, "how many"},
           {"G0 -> [sm@1] -> G1", 11, "G0"},
           {"G0 -> [sm G1", 11, "]"},
           {"G0 -> [ce] G1", 12, "->"},
           {"G0 -> G9", 7, "G0 to G3 are visible"},
           {"G0 -> G1 x 3", 12, "4 bytes"},
           {"G0 -> G1 x", 11, "a size"},
           {"G0 -> G1 G2", 10, "the end"},
           {"G0 -> G1,", 10, "a place"},
           {"H -> [ce] -> H", 1, "[ce@G0]"},
           {"G0 -> [bar] -> G1", 1, "host and GPU"},
       }) {
    const auto failed = parse_transfers(one.text, kDefault, 4);
    ASSERT_FALSE(failed) << one.text;
    EXPECT_EQ(failed.error().code, EINVAL);
    const std::string& message = failed.error().message;
    EXPECT_NE(message.find(one.says), std::string::npos) << message;
    EXPECT_NE(message.find("column " + std::to_string(one.column) + ":"), std::string::npos) << message;
    EXPECT_EQ(message.size() - message.rfind('\n') - 1, one.column + 2) << message;  // two blanks before, then the caret
  }
}

}  // namespace
}  // namespace pl::bandwidth
