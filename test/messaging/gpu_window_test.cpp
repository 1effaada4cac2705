// SPDX-License-Identifier: Apache-2.0
// Windows of GPU memory that a peer writes and reads by DMA channels of its own: the target is stopped, ends its window, is
// killed; the peer has the same GPU, another one, or no CUDA.
#include <thread>

#include "messaging/gpu_windows.hpp"
#include "test/messaging/refused_call.hpp"
#include "test/messaging/stopped_target.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kPieceBytes = 2u << 20;
constexpr std::size_t kGpuWindow = 2 * kPieceBytes;

// Device memory of one object of the driver, or of two.
class window_memory {
 public:
  explicit window_memory(bool is_in_pieces) {
    if (is_in_pieces) pieces_.emplace(std::vector<std::size_t>{kPieceBytes, kPieceBytes});
    else whole_.emplace(kGpuWindow);
    test::set_device_bytes(address(), std::vector<unsigned char>(kGpuWindow));
  }
  std::uint64_t address() const { return whole_ ? whole_->pointer() : pieces_->pointer(); }

 private:
  std::optional<test::device_buffer> whole_;
  std::optional<test::vmm_buffer> pieces_;
};

// Rank 0 has GPU 0.
int run_two(gpus of_rank_1, const std::function<int(const rank_context&)>& body, int killed = -1,
            const messenger_options& options = test_options()) {
  return fork_ranks(
      2,
      [&](int rank, fork_bootstrap& sockets) {
        if (of_rank_1 == gpus::none) static_cast<void>(test::simulated_cuda());  // so that its device files are there
        return run_rank(rank, sockets, rank == 0 ? gpus::shared : of_rank_1, options, body);
      },
      killed);
}

struct side {
  const char* name;
  gpus of_rank_1;
  bool is_device;  // the memory of rank 1
  bool is_in_pieces;
};
constexpr side kSides[] = {
    {"host_without_cuda", gpus::none, false, false},        {"host", gpus::shared, false, false},
    {"host_of_another_gpu", gpus::one_each, false, false},  {"device", gpus::shared, true, false},
    {"device_of_another_gpu", gpus::one_each, true, false}, {"host_to_pieces", gpus::none, false, true},
    {"device_to_pieces", gpus::shared, true, true},
};

class gpu_window : public testing::TestWithParam<side> {};
INSTANTIATE_TEST_SUITE_P(every_side, gpu_window, testing::ValuesIn(kSides),
                         [](const auto& values) { return std::string(values.param.name); });

TEST_P(gpu_window, a_stopped_target_is_read_and_written) {
  EXPECT_EQ(run_two(GetParam().of_rank_1,
                    [](const rank_context& ctx) {
                      std::optional<window_memory> memory;
                      window exposed;
                      if (ctx.rank == 0) {
                        memory.emplace(GetParam().is_in_pieces);
                        auto made = ctx.messenger->expose(device_buffer(memory->address(), kGpuWindow));
                        CHECK_OK(made);
                        exposed = *std::move(made);
                      }
                      const invitation mine{{}, exposed.key(), getpid()};
                      const int line = with_stopped_rank_0(ctx, mine, [&](const invitation& given) {
                        return put_and_get(ctx, given.exposed, kGpuWindow, GetParam().is_device);
                      });
                      if (line != 0) return line;
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      if (ctx.rank == 0) {
                        const auto bytes = test::device_bytes(memory->address(), kGpuWindow);
                        const auto first = test::random_bytes(64, 64 + 7), second = test::random_bytes(4096, 4096 + 7);
                        CHECK(bytes[0] == 0 && bytes[2] == 0);
                        CHECK(std::equal(first.begin(), first.end(), bytes.begin() + 4));
                        CHECK(std::equal(second.begin(), second.end(), bytes.begin() + 68));
                        CHECK_OK(exposed.close());
                      }
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      return 0;
                    }),
            0);
}

// The owner would only notice when another rank accesses it: by a fault in the owner.
TEST(gpu_window, memory_of_another_kind_than_declared_is_refused) {
  EXPECT_EQ(run_two(gpus::none,
                    [](const rank_context& ctx) {
                      if (ctx.rank != 0) return 0;
                      const window_memory memory(false);
                      std::uint64_t word = 0;
                      const auto* const device = reinterpret_cast<const void*>(memory.address());
                      for (const auto& wrong : {host_buffer(device, 8), device_buffer(copy::address_of(&word), 8)}) {
                        CHECK(ctx.messenger->expose(wrong).code() == EINVAL);
                        CHECK(ctx.messenger->register_memory(wrong).code() == EINVAL);
                      }
                      CHECK_OK(ctx.messenger->expose(host_buffer(&word, 8)));
                      return 0;
                    }),
            0);
}

TEST(gpu_window, ended_at_a_stopped_target_refuses_puts_and_gets) {
  EXPECT_EQ(run_two(gpus::none,
                    [](const rank_context& ctx) {
                      std::optional<window_memory> memory;
                      window used, unused;
                      if (ctx.rank == 0) {
                        memory.emplace(false);
                        used = *ctx.messenger->expose(device_buffer(memory->address(), kGpuWindow));
                        unused = *ctx.messenger->expose(device_buffer(memory->address(), kGpuWindow));
                      }
                      const invitation mine{used.key(), unused.key(), getpid()};
                      auto given = of_rank_0(ctx, mine);
                      CHECK_OK(given);
                      const std::uint64_t value = 9;
                      if (ctx.rank == 1) CHECK_OK(ctx.messenger->put(given->allocated, 0, host_buffer(&value, 8)).outcome());
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      CHECK_OK(used.close());
                      CHECK_OK(unused.close());
                      if (ctx.rank == 0) test::set_device_bytes(memory->address(), std::vector<unsigned char>(64, 1));
                      const int line = with_stopped_rank_0(ctx, mine, [&](const invitation& stopped) {
                        for (const auto& key : {stopped.allocated, stopped.exposed}) {
                          CHECK(ctx.messenger->put(key, 0, host_buffer(&value, 8)).outcome().code() == EINVAL);
                          CHECK(ctx.messenger->get(key, 0, host_buffer(&value, 8)).outcome().code() == EINVAL);
                        }
                        return 0;
                      });
                      if (line != 0) return line;
                      if (ctx.rank == 0) CHECK(test::device_bytes(memory->address(), 8) == std::vector<unsigned char>(8, 1));
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      return 0;
                    }),
            0);
}

// The owner may use the memory again as soon as the window has ended, even if a peer was writing to it.
TEST_P(gpu_window, is_not_written_behind_its_end) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "it looks at memory on purpose while the simulated GPU writes it, which is a race to see";
#endif
  EXPECT_EQ(run_two(GetParam().of_rank_1,
                    [](const rank_context& ctx) {
                      constexpr int kRounds = 20;
                      std::optional<window_memory> memory;
                      if (ctx.rank == 0) memory.emplace(GetParam().is_in_pieces);
                      const std::vector<unsigned char> zeros(kGpuWindow), ones(kGpuWindow, 1);
                      for (int round = 0; round < kRounds; ++round) {
                        window exposed;
                        if (ctx.rank == 0) {
                          test::set_device_bytes(memory->address(), zeros);
                          exposed = *ctx.messenger->expose(device_buffer(memory->address(), kGpuWindow));
                        }
                        auto given = of_rank_0(ctx, {{}, exposed.key(), getpid()});
                        CHECK_OK(given);
                        if (ctx.rank == 0) {
                          while (test::device_bytes(memory->address(), 1)[0] == 0) ctx.messenger->progress();
                          CHECK_OK(exposed.close());
                          test::set_device_bytes(memory->address(), zeros);
                          usleep(200);
                          CHECK(test::device_bytes(memory->address(), kGpuWindow) == zeros);
                        } else {
                          piece source(GetParam().is_device, kGpuWindow);
                          source.set(ones);
                          int code = 0;
                          while (code == 0) code = ctx.messenger->put(given->exposed, 0, source.all()).outcome().code();
                          CHECK(code == EINVAL || code == ECANCELED);
                        }
                        CHECK_OK(ctx.messenger->barrier(kTimeout));
                      }
                      return 0;
                    }),
            0);
}

// A peer holds what it has imported, so the GPU gets it back only when the peer has let go.
TEST(gpu_window, gives_its_memory_back_once_it_has_ended) {
  EXPECT_EQ(run_two(gpus::none,
                    [](const rank_context& ctx) {
                      constexpr std::size_t kLarge = 16u << 20;
                      const auto free_bytes = [] {
                        std::size_t free = 0, total = 0;
                        test::simulated_cuda().cuMemGetInfo_v2(&free, &total);
                        return free;
                      };
                      std::optional<test::device_buffer> memory;
                      window exposed;
                      std::size_t before = 0;
                      if (ctx.rank == 0) {
                        before = free_bytes();
                        memory.emplace(kLarge);
                        exposed = *ctx.messenger->expose(device_buffer(memory->pointer(), kLarge));
                      }
                      auto given = of_rank_0(ctx, {{}, exposed.key(), getpid()});
                      CHECK_OK(given);
                      const std::uint64_t value = 9;
                      if (ctx.rank == 1) CHECK_OK(ctx.messenger->put(given->exposed, 0, host_buffer(&value, 8)).outcome());
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      CHECK_OK(exposed.close());
                      memory.reset();
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      // What channels of the peer hold stays: less than the window.
                      for (int i = 0; ctx.rank == 0 && i < 2000 && free_bytes() + kLarge / 2 < before; ++i) usleep(1000);
                      std::atomic<bool> is_over{false};
                      std::thread other([&] { static_cast<void>(ctx.group->barrier()), is_over = true; });
                      while (!is_over) ctx.messenger->progress(), usleep(100);
                      other.join();
                      CHECK(ctx.rank == 1 || free_bytes() + kLarge / 2 >= before);
                      return 0;
                    }),
            0);
}

TEST(gpu_window, of_a_killed_target_ends_puts_and_gives_its_memory_back) {
  EXPECT_EQ(run_two(
                gpus::none,
                [](const rank_context& ctx) {
                  std::optional<window_memory> memory;
                  window exposed;
                  if (ctx.rank == 0) {
                    memory.emplace(false);
                    exposed = *ctx.messenger->expose(device_buffer(memory->address(), kGpuWindow));
                  }
                  auto given = of_rank_0(ctx, {{}, exposed.key(), getpid()});
                  CHECK_OK(given);
                  if (ctx.rank == 0) {
                    while (test::device_bytes(memory->address(), 1)[0] == 0) usleep(10);
                    return raise(SIGKILL), __LINE__;
                  }
                  const std::vector<unsigned char> ones(8, 1);
                  int code = 0;
                  while (code == 0) {
                    code = ctx.messenger->put(given->exposed, 0, host_buffer(ones.data(), ones.size())).outcome().code();
                    ctx.messenger->progress();
                  }
                  CHECK(code == ECONNRESET);
                  CHECK(ctx.messenger->get(given->exposed, 0, host_buffer(ones.data(), 8)).outcome().code() == ECONNRESET);
                  return 0;
                },
                0),
            0);
}

TEST(gpu_window, outlives_a_peer_that_is_killed_while_it_puts) {
  EXPECT_EQ(run_two(
                gpus::none,
                [](const rank_context& ctx) {
                  std::optional<window_memory> memory;
                  window exposed;
                  if (ctx.rank == 0) {
                    memory.emplace(false);
                    exposed = *ctx.messenger->expose(device_buffer(memory->address(), kGpuWindow));
                  }
                  auto given = of_rank_0(ctx, {{}, exposed.key(), getpid()});
                  CHECK_OK(given);
                  if (ctx.rank == 1) {
                    const std::vector<unsigned char> ones(kGpuWindow, 1);
                    std::thread([] { usleep(20'000), raise(SIGKILL); }).detach();
                    for (;;) static_cast<void>(ctx.messenger->put(given->exposed, 0, host_buffer(ones.data(), ones.size())));
                  }
                  while (ctx.messenger->peer_state(1)) ctx.messenger->progress();
                  CHECK_OK(exposed.close());
                  const std::vector<unsigned char> twos(kGpuWindow, 2);
                  test::set_device_bytes(memory->address(), twos);
                  CHECK(test::device_bytes(memory->address(), kGpuWindow) == twos);
                  return 0;
                },
                1),
            0);
}

// A child of the owner has the descriptors too; what it does or not must not matter.
TEST(gpu_window, of_a_process_that_forks_is_still_its_own) {
  EXPECT_EQ(run_two(gpus::none,
                    [](const rank_context& ctx) {
                      std::optional<window_memory> memory;
                      window exposed;
                      pid_t child = -1;
                      if (ctx.rank == 0) {
                        memory.emplace(false);
                        exposed = *ctx.messenger->expose(device_buffer(memory->address(), kGpuWindow));
                        child = fork();
                        if (child == 0)
                          _exit(ctx.messenger->expose(device_buffer(memory->address(), 64)).code() == EACCES ? 0 : 1);
                      }
                      auto given = of_rank_0(ctx, {{}, exposed.key(), getpid()});
                      CHECK_OK(given);
                      const std::uint64_t value = 9;
                      if (ctx.rank == 1) CHECK_OK(ctx.messenger->put(given->exposed, 16, host_buffer(&value, 8)).outcome());
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      if (ctx.rank == 0) {
                        int status = -1;
                        CHECK(waitpid(child, &status, 0) == child && status == 0);
                        CHECK(test::device_bytes(memory->address() + 16, 1)[0] == 9);
                        CHECK_OK(exposed.close());
                      }
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      return 0;
                    }),
            0);
}

// The process number stays.
TEST(gpu_window, of_a_target_that_became_another_program_is_not_opened) {
  EXPECT_EQ(run_two(gpus::none,
                    [](const rank_context& ctx) {
                      std::optional<window_memory> memory;
                      window exposed;
                      if (ctx.rank == 0) {
                        memory.emplace(false);
                        exposed = *ctx.messenger->expose(device_buffer(memory->address(), kGpuWindow));
                      }
                      auto given = of_rank_0(ctx, {{}, exposed.key(), getpid()});
                      CHECK_OK(given);
                      if (ctx.rank == 0) return execl("/bin/sleep", "sleep", "3", nullptr), __LINE__;
                      const auto program = [&] {
                        std::string text;
                        std::ifstream("/proc/" + std::to_string(given->pid) + "/comm") >> text;
                        return text;
                      };
                      for (int i = 0; i < 10'000 && program() != "sleep"; ++i) usleep(1000);
                      CHECK(program() == "sleep");
                      const std::uint64_t value = 9;
                      CHECK(ctx.messenger->put(given->exposed, 0, host_buffer(&value, 8)).outcome().code() == ECONNRESET);
                      CHECK(ctx.messenger->get(given->exposed, 0, host_buffer(&value, 8)).outcome().code() == ECONNRESET);
                      return 0;
                    }),
            0);
}

int put_by_messages(const rank_context& ctx, const char* reason_at_the_peer, const char* reason_at_the_owner) {
  std::optional<window_memory> memory;
  window exposed;
  if (ctx.rank == 0) {
    memory.emplace(false);
    exposed = *ctx.messenger->expose(device_buffer(memory->address(), kGpuWindow));
  }
  auto given = of_rank_0(ctx, {{}, exposed.key(), getpid()});
  CHECK_OK(given);
  if (ctx.rank == 1) {
    const auto bytes = test::random_bytes(100'000, 5);
    std::vector<unsigned char> back(bytes.size());
    CHECK_OK(ctx.messenger->put(given->exposed, 0, host_buffer(bytes.data(), bytes.size())).wait(kTimeout));
    CHECK_OK(ctx.messenger->get(given->exposed, 0, host_buffer(back.data(), back.size())).wait(kTimeout));
    CHECK(back == bytes);
    CHECK(ctx.messenger->counts().one_sided == 0);
  }
  const char* const reason = ctx.rank == 1 ? reason_at_the_peer : reason_at_the_owner;
  const auto plan = ctx.messenger->plan(1 - ctx.rank);
  if (plan.find(reason) == std::string::npos) std::fprintf(stderr, "no \"%s\" in\n%s", reason, plan.c_str());
  CHECK(plan.find(reason) != std::string::npos);
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  return 0;
}

TEST(gpu_window, is_reached_by_messages_where_descriptors_may_not_be_taken_and_the_plan_says_so) {
  EXPECT_EQ(run_two(gpus::none,
                    [](const rank_context& ctx) {
                      if (ctx.rank == 1) CHECK(refuse_call(SYS_pidfd_getfd, EPERM));
                      return put_by_messages(ctx, "ptrace_scope", "DMA channels of the process");
                    }),
            0);
}

TEST(gpu_window, is_reached_by_messages_where_that_is_asked_for) {
  auto options = test_options();
  options.use_channels = false;
  EXPECT_EQ(run_two(
                gpus::none,
                [](const rank_context& ctx) {
                  return put_by_messages(ctx, "PEERLANE_LINK_CHANNELS=0", "PEERLANE_LINK_CHANNELS=0");
                },
                -1, options),
            0);
}

// What an owner tells is checked: a process of the job may be at fault.
TEST(gpu_window, is_refused_where_its_list_does_not_tell_the_truth) {
  EXPECT_EQ(fork_ranks(1,
                       [](int, fork_bootstrap&) {
                         const test::current_device device(0);
                         messenger_context context(&test::simulated_cuda(), test_options(), 0, 2);
                         CHECK_OK(context.open_memory());
                         gpu_windows windows(context);
                         const window_memory memory(false);
                         auto range = context.buffers.inspect(device_buffer(memory.address(), kGpuWindow));
                         CHECK_OK(range);
                         const auto place = windows.share(1, *range);
                         CHECK_OK(place);
                         window_table::name self;
                         self.pid = getpid();
                         CHECK_OK(windows.open(self, *place));
                         const auto code_of = [&](auto&& spoil) {
                           auto wrong = *place;
                           spoil(wrong);
                           return windows.open(self, wrong).code();
                         };
                         CHECK(code_of([](window_place& wrong_place) { wrong_place.inode += 1; }) == ESTALE);
                         CHECK(code_of([](window_place& wrong_place) { wrong_place.bytes += 1; }) == EPROTO);
                         CHECK(code_of([](window_place& wrong_place) { wrong_place.address -= 1; }) == EPROTO);
                         const auto spoilt = [&](std::uint64_t position, std::uint64_t value) {
                           std::uint64_t before = 0;
                           const auto offset = static_cast<off_t>(position);
                           if (pread(place->fd, &before, 8, offset) != 8 || pwrite(place->fd, &value, 8, offset) != 8)
                             return -1;
                           const int code = windows.open(self, *place).code();
                           return pwrite(place->fd, &before, 8, offset) == 8 ? code : -1;
                         };
                         CHECK(spoilt(0, 0) == EPROTO);
                         CHECK(spoilt(0, 2) == EPROTO);  // more than the file has
                         CHECK(spoilt(0, ~0ull) == EPROTO);
                         CHECK(spoilt(8, 0xffff'ffffull) == EBADF);                          // no descriptor
                         CHECK(spoilt(8, static_cast<std::uint64_t>(place->fd)) == EINVAL);  // not of GPU memory
                         CHECK(spoilt(8 + 24, 1ull << 60) == EINVAL);                        // longer than the object
                         CHECK(spoilt(8 + 32, 1ull << 60) == EINVAL);                        // behind its end
                         CHECK_OK(windows.open(self, *place));
                         return 0;
                       }),
            0);
}

}  // namespace
}  // namespace pl::messaging
