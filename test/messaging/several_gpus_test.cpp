// SPDX-License-Identifier: Apache-2.0
// Processes that use several GPUs each: messages and windows of one communicator between any two of their memories,
// whichever context is current at the call.
#include "test/messaging/several_gpus.hpp"

#include <array>
#include <deque>

namespace pl::messaging {
namespace {

struct way {
  const char* name;
  bool use_ipc = true, use_channels = true, use_cma = true;
  messenger_options::path_t path = messenger_options::path_t::automatic;
};
constexpr way kWays[] = {{"channels"},
                         {"ipc", true, false},
                         {"ring", false, false, false},
                         {"network", true, true, true, messenger_options::path_t::network}};

class several_gpus : public testing::TestWithParam<way> {
 protected:
  int run(int size, const std::function<int(const rank_context&)>& body) {
    auto options = test_options();
    options.use_ipc = GetParam().use_ipc;
    options.use_channels = GetParam().use_channels;
    options.use_cma = GetParam().use_cma;
    options.path = GetParam().path;
    return run_job(size, gpus::shared, options, body);
  }
};
INSTANTIATE_TEST_SUITE_P(every_way, several_gpus, testing::ValuesIn(kWays),
                         [](const auto& values) { return std::string(values.param.name); });

TEST_P(several_gpus, messages_between_any_two_memories) {
  EXPECT_EQ(run(2,
                [](const rank_context& ctx) {
                  turning_device device;
                  unsigned salt = 0;
                  for (const std::size_t bytes : {std::size_t{1}, std::size_t{700}, std::size_t{40000}, std::size_t{900001}})
                    for (int source = 0; source < kPlaces; ++source)
                      for (int destination = 0; destination < kPlaces; ++destination) {
                        const auto wanted = test::random_bytes(bytes, ++salt);
                        placed sent(source, bytes), received_by(destination, bytes), back(source, bytes);
                        sent.set(wanted);
                        device.turn();
                        // There and back, so that both processes send from and receive into both GPUs.
                        if (ctx.rank == 0) {
                          auto received = ctx.messenger->irecv(1, back.all(), 2);
                          CHECK_OK(ctx.messenger->send(1, sent.all(), 1, kTimeout));
                          CHECK_OK(received.wait(kTimeout));
                          CHECK(back.get(bytes) == wanted);
                        } else {
                          CHECK_OK(ctx.messenger->recv(0, received_by.all(), 1, kWholeTag, kTimeout));
                          CHECK_OK(ctx.messenger->send(0, received_by.all(), 2, kTimeout));
                        }
                      }
                  CHECK_OK(ctx.messenger->barrier(kTimeout));
                  return 0;
                }),
            0);
}

// A context there would cost its process some hundred MiB of a GPU that it does not use.
TEST(one_gpu_each, host_memory_is_received_without_another_gpus_context) {
  auto options = test_options();
  options.use_channels = false;
  EXPECT_EQ(run_job(2, gpus::one_each, options,
                    [](const rank_context& ctx) {
                      constexpr std::size_t kBytes = 4u << 20;
                      piece data(ctx.rank == 0, kBytes);
                      unsigned flags = 0;
                      int is_active = 0;
                      const auto& cuda = test::simulated_cuda();
                      if (ctx.rank == 0) {
                        data.set(test::random_bytes(kBytes, 1));
                        CHECK_OK(ctx.messenger->send(1, data.all(), 1, kTimeout));
                      } else {
                        CHECK_OK(ctx.messenger->recv(0, data.all(), 1, kWholeTag, kTimeout));
                        CHECK(data.get(kBytes) == test::random_bytes(kBytes, 1));
                        CHECK(ctx.messenger->counts().ipc == 1);
                        CHECK(cuda.cuDevicePrimaryCtxGetState(0, &flags, &is_active) == cu::error_code::success);
                        CHECK(is_active == 0);
                      }
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      return 0;
                    }),
            0);
}

// All at once, so that transfers of different GPUs are under way together.
TEST_P(several_gpus, many_messages_at_once) {
  EXPECT_EQ(run(2,
                [](const rank_context& ctx) {
                  constexpr std::size_t kBytes = 300000;
                  turning_device device;
                  std::deque<placed> out, in;
                  std::vector<request> all;
                  for (unsigned i = 0; i < kPlaces * kPlaces; ++i) {
                    out.emplace_back(static_cast<int>(i) / kPlaces, kBytes);
                    in.emplace_back(static_cast<int>(i) % kPlaces, kBytes);
                    out.back().set(test::random_bytes(kBytes, i * 2 + static_cast<unsigned>(ctx.rank)));
                  }
                  for (unsigned i = 0; i < kPlaces * kPlaces; ++i) {
                    device.turn();
                    all.push_back(ctx.messenger->irecv(1 - ctx.rank, in[i].all(), i));
                    all.push_back(ctx.messenger->isend(1 - ctx.rank, out[i].all(), i));
                  }
                  for (auto& each : all) CHECK_OK(each.wait(kTimeout));
                  for (unsigned i = 0; i < kPlaces * kPlaces; ++i)
                    CHECK(in[i].get(kBytes) == test::random_bytes(kBytes, i * 2 + static_cast<unsigned>(1 - ctx.rank)));
                  return 0;
                }),
            0);
}

TEST_P(several_gpus, messages_to_oneself) {
  EXPECT_EQ(run(1,
                [](const rank_context& ctx) {
                  turning_device device;
                  for (const std::size_t bytes : {std::size_t{8}, std::size_t{500000}})
                    for (int source = 0; source < kPlaces; ++source)
                      for (int destination = 0; destination < kPlaces; ++destination) {
                        placed sent(source, bytes), received(destination, bytes);
                        sent.set(test::random_bytes(bytes, static_cast<unsigned>(bytes)));
                        device.turn();
                        auto begun = ctx.messenger->isend(0, sent.all(), 1);
                        CHECK_OK(ctx.messenger->recv(0, received.all(), 1, kWholeTag, kTimeout));
                        CHECK_OK(begun.wait(kTimeout));
                        CHECK(received.get(bytes) == test::random_bytes(bytes, static_cast<unsigned>(bytes)));
                      }
                  return 0;
                }),
            0);
}

TEST_P(several_gpus, windows_on_each_and_what_is_put_from_each) {
  EXPECT_EQ(
      run(2,
          [](const rank_context& ctx) {
            constexpr std::size_t kLarge = 600000;
            turning_device device;
            std::deque<placed> memory;
            std::vector<window> windows;
            std::array<window::key_t, kPlaces> keys{};
            for (int place = 0; place < kPlaces; ++place) {
              memory.emplace_back(place, kLarge + 64);
              memory.back().set(std::vector<unsigned char>(kLarge + 64));
              auto shown = ctx.messenger->expose(memory.back().all());
              CHECK_OK(shown);
              keys[static_cast<std::size_t>(place)] = shown->key();
              windows.push_back(*std::move(shown));
            }
            const auto all = ctx.group->all_gather(std::as_bytes(std::span(keys)));
            CHECK_OK(all);
            std::array<window::key_t, kPlaces> theirs{};
            std::memcpy(theirs.data(), (*all)[static_cast<std::size_t>(1 - ctx.rank)].data(), sizeof theirs);
            if (ctx.rank == 0) {
              for (const std::size_t bytes : {std::size_t{100}, std::size_t{30000}, kLarge})
                for (std::size_t target = 0; target < kPlaces; ++target)
                  for (int local = 0; local < kPlaces; ++local) {
                    const auto wanted = test::random_bytes(bytes, bytes * 10 + target * 3 + static_cast<unsigned>(local));
                    placed given(local, bytes), got(kPlaces - 1 - local, bytes);
                    given.set(wanted);
                    device.turn();
                    CHECK_OK(ctx.messenger->put(theirs[target], 64, given.all()).wait(kTimeout));
                    device.turn();
                    CHECK_OK(ctx.messenger->get(theirs[target], 64, got.all()).wait(kTimeout));
                    CHECK(got.get(bytes) == wanted);
                  }
              for (std::size_t target = 0; target < kPlaces; ++target) {
                device.turn();
                std::uint64_t before = 99;
                CHECK_OK(ctx.messenger->atomic(theirs[target], 0, atomic_op::add, 5 + target).wait(kTimeout));
                CHECK_OK(ctx.messenger->atomic(theirs[target], 0, atomic_op::add, 1, 0, &before).wait(kTimeout));
                CHECK(before == 5 + target);
                placed given(2 - static_cast<int>(target), 4096);
                // The bytes go to one GPU and the word lies on another one.
                CHECK_OK(ctx.messenger->put_signal(theirs[target], 64, given.all(), {theirs[(target + 1) % kPlaces], 8, 7})
                             .wait(kTimeout));
              }
            }
            if (ctx.rank == 1)
              for (std::size_t place = 0; place < kPlaces; ++place) {
                device.turn();
                CHECK_OK(ctx.messenger->wait_signal(keys[place], 8, 7, kTimeout));
              }
            CHECK_OK(ctx.messenger->barrier(kTimeout));
            return 0;
          }),
      0);
}

TEST_P(several_gpus, registered_memory_of_each) {
  EXPECT_EQ(run(2,
                [](const rank_context& ctx) {
                  turning_device device;
                  std::deque<placed> memory;
                  std::vector<messenger::registration> kept;
                  for (int place = 0; place < kPlaces; ++place) {
                    memory.emplace_back(place, 50000);
                    auto made = ctx.messenger->register_memory(memory.back().all());
                    CHECK_OK(made);
                    kept.push_back(*std::move(made));
                  }
                  for (unsigned i = 0; i < 2 * kPlaces; ++i) {
                    device.turn();
                    auto& used = memory[(i + static_cast<unsigned>(ctx.rank)) % kPlaces];
                    if (ctx.rank == 0) {
                      used.set(test::random_bytes(50000, i));
                      CHECK_OK(ctx.messenger->send(1, used.all(), i, kTimeout));
                    } else {
                      CHECK_OK(ctx.messenger->recv(0, used.all(), i, kWholeTag, kTimeout));
                      CHECK(used.get(50000) == test::random_bytes(50000, i));
                    }
                  }
                  CHECK_OK(ctx.messenger->barrier(kTimeout));
                  return 0;
                }),
            0);
}

// Rank 1 uses GPU 1 alone, although GPU 0 was current when it opened; rank 0 uses both.
TEST_P(several_gpus, each_is_shared_or_not_by_itself) {
  EXPECT_EQ(run(2,
                [](const rank_context& ctx) {
                  turning_device device;
                  placed first(1, 3000), second(2, 3000);
                  std::vector<unsigned char> host(3000);
                  const auto bytes = host_buffer(host.data(), host.size());
                  const auto pass = [&](int source, const buffer& sent, const buffer& received) -> status {
                    if (ctx.rank == source) return ctx.messenger->send(1 - source, sent, 1, kTimeout);
                    const auto done = ctx.messenger->recv(source, received, 1, kWholeTag, kTimeout);
                    return done ? status() : status(done.error());
                  };
                  CHECK_OK(pass(0, first.all(), bytes));
                  CHECK_OK(pass(1, second.all(), bytes));
                  CHECK_OK(pass(0, second.all(), bytes));
                  // The names travel with the messages behind these.
                  for (const int source : {0, 1, 0, 1}) CHECK_OK(pass(source, bytes, bytes));
                  const bool is_near = ctx.messenger->is_same_node(1 - ctx.rank);
                  CHECK(ctx.messenger->is_gpu_shared(1) == is_near);
                  CHECK(ctx.messenger->is_gpu_shared() == is_near);
                  CHECK(!ctx.messenger->is_gpu_shared(0) || ctx.rank == 1);
                  return 0;
                }),
            0);
}

}  // namespace
}  // namespace pl::messaging
