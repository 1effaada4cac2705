// SPDX-License-Identifier: Apache-2.0
// What messages cost on a machine: from measured numbers to crossovers, and through the file that keeps them.
#include <filesystem>
#include <fstream>

#include "copy/cost_table.hpp"
#include "messaging/message_costs.hpp"
#include "messaging/thresholds.hpp"
#include "test/messaging/job.hpp"
#include "test/support/comma_locale.hpp"

namespace pl::messaging {
namespace {

constexpr const char* kKey = "cpu=test cpus=4 network=none";

handshake_costs costs_of(double eager, double handshake, double chunks) {
  handshake_costs out;
  out.near = message_costs{300, eager, handshake, chunks};
  out.origin = "a test";
  return out;
}

TEST(handshake, a_dear_handshake_lets_messages_travel_whole) {
  EXPECT_EQ(thresholds::choose({}, nullptr).eager_host, thresholds{}.eager_host);
  // 0.1 ns/B more than chunks: 1000 ns are made up for at 10000 bytes.
  const auto some = costs_of(0.2, 1000, 0.1);
  EXPECT_EQ(thresholds::choose({}, nullptr, &some).eager_host, 8u << 10);
  const auto dear = costs_of(0.2, 100'000, 0.1);
  EXPECT_EQ(thresholds::choose({}, nullptr, &dear).eager_host, thresholds::kMaxEager);
  const auto cheap = costs_of(0.2, 10, 0.1);
  EXPECT_EQ(thresholds::choose({}, nullptr, &cheap).eager_host, 1u << 10);
}

TEST(handshake, the_network_has_limits_of_its_own) {
  auto costs = costs_of(0.2, 10, 0.1);
  costs.far = message_costs{20'000, 1.0, 60'000, 0.9};
  const auto limits = thresholds::choose({}, &copy::cost_table::built_in(), &costs);
  EXPECT_EQ(limits.eager_host, 1u << 10);
  EXPECT_EQ(limits.eager_host_network, thresholds::kMaxEager);
  EXPECT_EQ(limits.eager_device_network, thresholds::kMaxEager);
  EXPECT_NE(limits.origin.find("network: packet 20.00 us, handshake 60.00 us"), std::string::npos) << limits.origin;
  messenger_options wanted;
  wanted.eager_limit = 2048;
  wanted.gdr_send_limit = 4096;
  const auto set = thresholds::choose(wanted, &copy::cost_table::built_in(), &costs);
  EXPECT_EQ(set.eager_host, 2048u);
  EXPECT_EQ(set.eager_host_network, 2048u);
  EXPECT_EQ(set.eager_device_network, 4096u);
}

TEST(handshake, device_limits_follow_the_planners_costs_and_the_handshake) {
  const auto& costs = copy::cost_table::built_in();
  const auto built_in = thresholds::choose({}, &costs).eager_device;
  const auto cheap = costs_of(0.1, 0, 0.1), dear = costs_of(0.1, 50'000, 0.1);
  EXPECT_LE(thresholds::choose({}, &costs, &cheap).eager_device, built_in);
  EXPECT_EQ(thresholds::choose({}, &costs, &dear).eager_device, thresholds::kMaxEager);
}

TEST(handshake, text_and_back) {
  auto costs = costs_of(0.125, 1234.5, 0.0625);
  costs.far = message_costs{1, 2, 3, 4};
  const auto text = costs.text(kKey);
  const auto back = handshake_costs::parse(text, kKey);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->text(kKey), text);
  EXPECT_EQ(back->near->handshake_ns, 1234.5);
  EXPECT_EQ(handshake_costs::parse(text, "another machine").code(), EINVAL);
  EXPECT_EQ(
      handshake_costs::parse(text + "near packet_ns=-5 eager_ns_per_byte=0 handshake_ns=0 chunks_ns_per_byte=0\n", kKey)
          .code(),
      EINVAL);
  EXPECT_EQ(handshake_costs::parse(text + "nearly\n", kKey).code(), EINVAL);
  EXPECT_EQ(handshake_costs::parse("", kKey).code(), EINVAL);
}

TEST(handshake, text_and_back_in_a_locale_with_a_comma) {
  const auto costs = costs_of(0.125, 1234.5, 0.0625);
  const auto text = costs.text(kKey);
  const test::comma_locale chosen;
  if (!chosen.is_set()) GTEST_SKIP() << "localedef makes no locale here (package libc-bin)";
  EXPECT_EQ(costs.text(kKey), text);
  const auto back = handshake_costs::parse(text, kKey);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->near->handshake_ns, 1234.5);
}

class calibrated : public testing::Test {
 protected:
  calibrated() : folder_(std::filesystem::temp_directory_path() / ("peerlane-handshake." + std::to_string(getpid()))) {
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  ~calibrated() override {
    unsetenv("XDG_CACHE_HOME");
    std::filesystem::remove_all(folder_);
  }
  std::filesystem::path folder_;
};

messenger_options calibrating() {
  auto out = test_options();
  out.calibrate = true;
  return out;
}

int inspect(const rank_context& ctx, const char* wanted) {
  const auto plan = ctx.messenger->plan((ctx.rank + 1) % ctx.messenger->size());
  if (plan.find(wanted) == std::string::npos)
    return std::fprintf(stderr, "no \"%s\" in %s\n", wanted, plan.c_str()), __LINE__;
  const auto counts = ctx.messenger->counts();
  CHECK(counts.eager == 0 && counts.shared_ring == 0 && counts.operations == 0);
  return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
}

TEST_F(calibrated, once_for_a_machine) {
  EXPECT_EQ(run_job(3, gpus::none, calibrating(), [](const rank_context& ctx) { return inspect(ctx, "measured now in "); }),
            0);
  EXPECT_EQ(run_job(2, gpus::none, calibrating(), [](const rank_context& ctx) { return inspect(ctx, "kept in "); }), 0);
  const auto path = handshake_path(handshake_key(nullptr, "none"));
  ASSERT_TRUE(std::filesystem::exists(path)) << path;
  std::ofstream(path) << "not such a file";
  EXPECT_EQ(run_job(2, gpus::none, calibrating(), [](const rank_context& ctx) { return inspect(ctx, "measured now in "); }),
            0);
}

TEST_F(calibrated, with_a_gpu_beside_the_planners_costs) {
  EXPECT_EQ(run_job(2, gpus::one_each, calibrating(),
                    [](const rank_context& ctx) {
                      return inspect(ctx, "from the copy planner's costs and what messages cost here (measured");
                    }),
            0);
}

TEST_F(calibrated, over_the_network_way) {
  auto options = calibrating();
  options.path = messenger_options::path_t::network;
  EXPECT_EQ(run_job(2, gpus::none, options, [](const rank_context& ctx) { return inspect(ctx, "network: packet "); }), 0);
}

TEST_F(calibrated, not_where_one_process_does_not_ask_for_it) {
  auto sockets = fork_bootstrap::make(2);
  ASSERT_TRUE(sockets);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    alarm(60);
    auto options = calibrating();
    options.calibrate = rank == 0;
    _exit(run_rank(rank, *sockets, gpus::none, options,
                   [](const rank_context& ctx) { return inspect(ctx, "crossovers built in"); }) == 0
              ? 0
              : 1);
  }
  sockets->close();
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace pl::messaging
