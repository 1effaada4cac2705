// SPDX-License-Identifier: Apache-2.0
#include "ucx/lanes.hpp"

#include <gtest/gtest.h>

namespace pl::ucx {
namespace {

// The form of UCX 1.13's ucp_ep_print_info.
std::string endpoint(std::initializer_list<const char*> lanes) {
  std::string out = "#\n# UCP endpoint \n#\n#               peer: <no debug data>\n";
  for (const char* const each : lanes) out += each;
  return out += "#\n#                tag_send: 0..<egr/short>..8185..<rndv>..(inf)\n#                  rma_bw: mds [0] \n";
}
constexpr const char* kTcp =
    "#                 lane[0]:  0:tcp/eth0.0 md[0]              -> md[0]/tcp/sysdev[255] rma_bw#0 am am_bw#0\n"
    "#                 lane[1]: 11:tcp/eth0.100.1 md[0]          -> md[0]/tcp/sysdev[255] rma_bw#1 wireup\n";
constexpr const char* kRdma =
    "#                 lane[0]:  2:rc_verbs/rxe0:1.0 md[1]       -> md[1]/ib/sysdev[255] rma_bw#0 am am_bw#0\n";
constexpr const char* kAuxiliary =
    "#                 lane[1]:  3:ud_verbs/rxe0:1.0 md[1]       -> md[1]/ib/sysdev[255] wireup rma_bw#1\n";

std::vector<std::string> names(const std::vector<lane>& lanes) {
  std::vector<std::string> out;
  for (const auto& each : lanes) out.push_back(each.name);
  return out;
}

TEST(lanes, are_read_with_their_use) {
  const auto tcp = lanes_in(endpoint({kTcp}));
  EXPECT_EQ(names(tcp), (std::vector<std::string>{"tcp/eth0", "tcp/eth0.100"}));
  EXPECT_TRUE(tcp[0].is_for_bulk && tcp[1].is_for_bulk);
  EXPECT_FALSE(has_rdma_lane(tcp));

  const auto rdma = lanes_in(endpoint({kRdma, kAuxiliary, kTcp}));
  EXPECT_EQ(names_of(rdma), "rc_verbs/rxe0:1,ud_verbs/rxe0:1,tcp/eth0,tcp/eth0.100");
  EXPECT_TRUE(has_rdma_lane(rdma));
}

TEST(lanes, are_rdma_where_bulk_data_takes_them) {
  constexpr const char* kNoBulk =
      "#                 lane[0]:  2:rc_mlx5/mlx5_0:1.0 md[1]   -> md[1]/ib/sysdev[0] am am_bw#0\n";
  EXPECT_EQ(names_of(lanes_in(kNoBulk)), "rc_mlx5/mlx5_0:1");
  EXPECT_FALSE(has_rdma_lane(lanes_in(endpoint({kNoBulk, kTcp}))));  // another lane's use is not its own
  EXPECT_FALSE(has_rdma_lane(lanes_in(kAuxiliary)));
  EXPECT_TRUE(has_rdma_lane({{"dc_mlx5/mlx5_0:1", true}}));
  EXPECT_FALSE(has_rdma_lane({}));
}

TEST(lanes, have_each_name_once) {
  EXPECT_EQ(names_of({{"tcp/eth0", true}, {"tcp/eth1", true}, {"tcp/eth0", false}, {"tcp/eth", false}}),
            "tcp/eth0,tcp/eth1,tcp/eth");
}

// Whatever is cut off: no lane is made up, and nothing beyond the text is read.
TEST(lanes, of_a_text_that_breaks_off) {
  const std::string whole = endpoint({kRdma});
  for (std::size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    const auto found = lanes_in(std::string_view(whole).substr(0, bytes));
    EXPECT_TRUE(found.empty() || names_of(found) == "rc_verbs/rxe0:1") << bytes;
  }
  EXPECT_TRUE(lanes_in("lane[").empty() && lanes_in("lane[0]:\n").empty() && lanes_in("lane[0 2:tcp/lo\n").empty());
}

TEST(transports, are_read_each_once) {
  EXPECT_EQ(transports_in("#            md 0  :  component 1  tcp \n#\n"
                          "#      resource 0  :  md 0  dev 0  flags -- tcp/lo\n"
                          "#      resource 1  :  md 0  dev 1  flags -- tcp/eth0 \n"
                          "#      resource 2  :  md 0  dev 0  flags -- tcp/lo\n#\n"),
            "tcp/lo,tcp/eth0");
  EXPECT_EQ(transports_in(""), "");
  EXPECT_EQ(transports_in("#      resource "), "");
}

TEST(printed, is_what_was_written) {
  EXPECT_EQ(printed([](std::FILE* output) { std::fputs("two\nlines\n", output); }), "two\nlines\n");
  EXPECT_EQ(printed([](std::FILE*) {}), "");
}

}  // namespace
}  // namespace pl::ucx
