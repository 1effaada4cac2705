// SPDX-License-Identifier: Apache-2.0
// What a messenger means to the rest of the process: forked children, programs that they start, descriptors, environment.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <span>

#include "messaging/thresholds.hpp"
#include "os/close_on_exec.hpp"
#include "test/messaging/job.hpp"
#include "ucx/ucx_table.hpp"

namespace pl::messaging {
namespace {

int talk(const rank_context& ctx, std::size_t bytes) {
  piece source(false, bytes), destination(false, bytes);
  auto received = ctx.messenger->irecv(1 - ctx.rank, destination.all(), 1);
  auto sent = ctx.messenger->isend(1 - ctx.rank, source.all(), 1);
  CHECK_OK(sent.wait(kTimeout));
  CHECK_OK(received.wait(kTimeout));
  return 0;
}

// What this program was started with is not the messenger's: ctest leaves its log open, whose folder may have any name.
const std::vector<int>& descriptors_at_start() {
  static const std::vector<int> found = [] {
    auto all = open_descriptors();
    std::erase_if(all, [](int fd) { return fcntl(fd, F_GETFD) < 0; });  // the listing's own
    return all;
  }();
  return found;
}
[[maybe_unused]] const auto& kDescriptorsAtStart = descriptors_at_start();

// Ends a forked child as another program: 2 if that one has a descriptor of our memory or of a connection.
[[noreturn]] void exec_and_list_descriptors() {
  for (const int fd : descriptors_at_start())
    if (fd > STDERR_FILENO) close(fd);
  execl("/bin/sh", "sh", "-c",
        "ls -l /proc/self/fd </dev/null 2>/dev/null | grep -E 'peerlane|socket' >&2 && exit 2; exit 0", nullptr);
  _exit(3);
}

int fork_between_messages(const rank_context& ctx) {
  if (const int line = talk(ctx, 200000)) return line;
  piece data(false, 8);
  auto pending = ctx.messenger->irecv(1 - ctx.rank, data.all(), 99);
  const pid_t child = fork();
  if (child == 0) {
    const bool is_refused = ctx.messenger->isend(1 - ctx.rank, data.all(), 1).wait().code() == EACCES &&
                            pending.wait(0ms).code() == EACCES && ctx.messenger->barrier(0ms).code() == EACCES;
    if (!is_refused) _exit(1);
    // Neither the memory nor a connection is open in another program: it would keep a dead process's connections alive. An
    // event poll of UCX's may be; it keeps nothing alive.
    exec_and_list_descriptors();
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  if (const int line = talk(ctx, 200000)) return line;
  CHECK_OK(pending.cancel());
  return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
}

TEST(process, fork_and_exec) { EXPECT_EQ(run_job(2, gpus::none, test_options(), fork_between_messages), 0); }

TEST(process, fork_and_exec_over_the_network) {
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  EXPECT_EQ(run_job(2, gpus::none, options, fork_between_messages), 0);
}

// UCX's thread accepts a peer's connection while this process calls nothing: no look of ours has seen it when it forks.
int fork_with_a_fresh_connection(const rank_context& ctx) {
  piece data(false, 8);
  if (ctx.rank == 1) {
    auto sent = ctx.messenger->isend(0, data.all(), 1);  // connects
    const auto deadline = std::chrono::steady_clock::now() + 300ms;
    while (std::chrono::steady_clock::now() < deadline) ctx.messenger->progress();
    CHECK_OK(ctx.group->barrier());
    CHECK_OK(sent.wait(kTimeout));
    return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
  }
  const auto has_open_connection = [] {
    for (const int fd : open_descriptors()) {
      sockaddr_storage other{};
      socklen_t bytes = sizeof other;
      const bool is_connected = getpeername(fd, reinterpret_cast<sockaddr*>(&other), &bytes) == 0;
      if (is_connected && other.ss_family == AF_INET && (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) return true;
    }
    return false;
  };
  const auto deadline = std::chrono::steady_clock::now() + 250ms;
  while (!has_open_connection() && std::chrono::steady_clock::now() < deadline) usleep(1000);
  CHECK(has_open_connection());  // else there is nothing to be seen here
  const pid_t child = fork();
  if (child == 0) exec_and_list_descriptors();
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK_OK(ctx.group->barrier());
  CHECK_OK(ctx.messenger->recv(1, data.all(), 1, kWholeTag, kTimeout));
  return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
}

TEST(process, fork_and_exec_with_a_fresh_connection) {
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  EXPECT_EQ(run_job(2, gpus::none, options, fork_with_a_fresh_connection), 0);
}

TEST(process, closing_leaves_no_descriptor_and_no_mapping) {
  auto sockets = fork_bootstrap::make(2);
  ASSERT_TRUE(sockets);
  const auto body = [&](int rank) {
    auto group = sockets->take(rank);
    const int descriptors = test::open_descriptor_count();
    for (int round = 0; round < 3; ++round) {
      auto opened = messenger::open(nullptr, *group);
      CHECK_OK(opened);
      if (const int line = talk({rank, opened->get(), group.get()}, 200000)) return line;
      CHECK_OK((*opened)->barrier(kTimeout));
    }
    CHECK(test::open_descriptor_count() == descriptors);
    CHECK(test::mapping_count("memfd:peerlane-") == 0);
    return 0;
  };
  const pid_t child = fork();
  if (child == 0) _exit(body(1) == 0 ? 0 : 1);
  // The other rank is a child too: this process keeps no descriptors of its own in the count.
  const pid_t other = fork();
  if (other == 0) _exit(body(0) == 0 ? 0 : 1);
  sockets->close();
  for (const pid_t each : {child, other}) {
    int status = 0;
    EXPECT_EQ(waitpid(each, &status, 0), each);
    EXPECT_EQ(status, 0);
  }
}

TEST(process, bootstrap_by_files) {
  const auto folder = std::filesystem::temp_directory_path() / ("peerlane-link." + std::to_string(getpid()));
  const auto body = [&](int rank) {
    CHECK(chdir(folder.parent_path().c_str()) == 0);
    auto group = file_bootstrap(folder.filename(), rank, 2);
    CHECK_OK(group);
    CHECK(chdir("/") == 0);  // as a program that becomes a daemon
    auto opened = messenger::open(nullptr, **group);
    CHECK_OK(opened);
    return talk({rank, opened->get(), group->get()}, 64);
  };
  const pid_t child = fork();
  if (child == 0) _exit(body(1) == 0 ? 0 : 1);
  const pid_t other = fork();
  if (other == 0) _exit(body(0) == 0 ? 0 : 1);
  for (const pid_t each : {child, other}) {
    int status = 0;
    EXPECT_EQ(waitpid(each, &status, 0), each);
    EXPECT_EQ(status, 0);
  }
  std::filesystem::remove_all(folder);
}

TEST(process, a_missing_ucx_is_named) {
  const auto missing = ucx::open_ucx("/nonexistent/libucp.so.0");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.code(), ENOSYS);
  EXPECT_NE(missing.error().message.find("libucx0"), std::string::npos);
}

TEST(process, numbers_out_of_range_leave_the_default) {
  for (const char* value : {"-1", "65", "4294967296", "4294967297"}) {
    setenv("PEERLANE_COPY_THREADS", value, 1);
    EXPECT_EQ(messenger_options::from_environment().copy_threads, 0u) << value;
  }
  setenv("PEERLANE_COPY_THREADS", "3", 1);
  EXPECT_EQ(messenger_options::from_environment().copy_threads, 3u);
  unsetenv("PEERLANE_COPY_THREADS");
  setenv("PEERLANE_LINK_PEER_TIMEOUT_MS", "-1", 1);
  EXPECT_EQ(messenger_options::from_environment().peer_timeout.count(), 0);
  unsetenv("PEERLANE_LINK_PEER_TIMEOUT_MS");
}

// Rank 0 has no descriptor for the memory that two processes share, at their first message and its first put. What needs
// one is an error or takes another transport; once there are descriptors again, it works.
int run_out_of_descriptors(const rank_context& ctx) {
  piece source(false, 200000), destination(false, 200000);
  auto mine = ctx.messenger->allocate(4096);
  CHECK_OK(mine);
  const auto key = mine->key();
  const auto keys = ctx.group->all_gather(std::as_bytes(std::span(&key, 1)));
  CHECK_OK(keys);
  auto peers = key;
  std::memcpy(&peers, (*keys)[static_cast<std::size_t>(1 - ctx.rank)].data(), sizeof peers);
  rlimit usual{};
  CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
  if (ctx.rank == 0) {
    const rlimit none{STDERR_FILENO + 1, usual.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  auto received = ctx.messenger->irecv(1 - ctx.rank, destination.all(), 1);
  auto sent = ctx.messenger->isend(1 - ctx.rank, source.all(), 1);
  CHECK(received.wait(kTimeout).code() == ENOMEM && sent.wait(kTimeout).code() == ENOMEM);
  if (ctx.rank == 0) CHECK_OK(ctx.messenger->put(peers, 0, source.part(0, 64)).wait(kTimeout));
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  CHECK(ctx.messenger->counts().one_sided == 0);

  if (ctx.rank == 0) CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  if (const int line = talk(ctx, 200000)) return line;
  CHECK_OK(ctx.messenger->put(peers, 0, source.part(0, 64)).wait(kTimeout));
  CHECK(ctx.messenger->counts().one_sided == 1);
  return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
}

TEST(process, descriptors_that_run_out_for_a_while) {
  auto options = test_options();
  options.use_cma = false;
  EXPECT_EQ(run_job(2, gpus::none, options, run_out_of_descriptors), 0);
}

TEST(process, names_of_other_stacks) {
  setenv("MV2_CUDA_BLOCK_SIZE", "64K", 1);
  setenv("MV2_GDRCOPY_LIMIT", "4096", 1);
  setenv("PEERLANE_LINK_GDR_SEND_LIMIT", "2048", 1);
  setenv("OMPI_MCA_btl_smcuda_use_cuda_ipc", "0", 1);
  setenv("MV2_RAIL_SHARING_POLICY", "FIXED_MAPPING", 1);
  setenv("MV2_RAIL_SHARING_LARGE_MSG_THRESHOLD", "32K", 1);
  const auto options = messenger_options::from_environment();
  EXPECT_EQ(options.chunk_bytes, 64u << 10);
  EXPECT_EQ(options.gdr_send_limit, 2048u);
  EXPECT_FALSE(options.use_ipc);
  EXPECT_TRUE(options.fixed_rail);
  EXPECT_EQ(options.stripe_threshold, 32u << 10);
  const auto limits = thresholds::choose(options, nullptr);
  EXPECT_EQ(limits.eager_device, 2048u);
  EXPECT_EQ(limits.ring_chunk_bytes, 64u << 10);
  for (const char* name :
       {"MV2_CUDA_BLOCK_SIZE", "MV2_GDRCOPY_LIMIT", "PEERLANE_LINK_GDR_SEND_LIMIT", "OMPI_MCA_btl_smcuda_use_cuda_ipc",
        "MV2_RAIL_SHARING_POLICY", "MV2_RAIL_SHARING_LARGE_MSG_THRESHOLD"})
    unsetenv(name);
}

}  // namespace
}  // namespace pl::messaging
