// SPDX-License-Identifier: Apache-2.0
// Where processes meet: ranks as threads of this process, over loopback, a local socket and a folder.
#include "bootstrap.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>

#include "local_bootstrap.hpp"

namespace pl::link {
namespace {

constexpr unsigned kLong = 30;

// A port that was free a moment ago.
std::string free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  close(fd);
  return std::to_string(ntohs(address.sin_port));
}

byte_string contribution(int rank, std::size_t bytes) {
  byte_string out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(rank));
  return out;
}

// "" if three exchanges of these lengths and a barrier give what they must.
std::string gathers(bootstrap& with, const std::vector<std::size_t>& lengths) {
  for (int turn = 0; turn < 3; ++turn) {
    auto all = with.all_gather(contribution(with.rank(), lengths[static_cast<std::size_t>(with.rank())]));
    if (!all) return all.error().message;
    if (all->size() != lengths.size()) return "another number of contributions";
    for (std::size_t from = 0; from < lengths.size(); ++from)
      if ((*all)[from] != contribution(static_cast<int>(from), lengths[from])) return "wrong bytes";
  }
  auto done = with.barrier();
  return done ? "" : done.error().message;
}

bootstrap_options options_of(int rank, int size, const std::string& where) {
  bootstrap_options out;
  out.where = where;
  out.rank = rank;
  out.size = size;
  out.timeout_s = kLong;
  return out;
}

std::string be_rank(const bootstrap_options& options, const std::vector<std::size_t>& lengths) {
  auto with = open_bootstrap(options);
  return with ? gathers(**with, lengths) : with.error().message;
}

// What the ranks say, each in a thread of its own.
std::vector<std::string> run(const std::vector<bootstrap_options>& ranks, const std::vector<std::size_t>& lengths) {
  std::vector<std::future<std::string>> running;
  for (const auto& one : ranks) running.push_back(std::async(std::launch::async, be_rank, one, lengths));
  std::vector<std::string> said;
  for (auto& one : running) said.push_back(one.get());
  return said;
}

const std::vector<std::string> kTwoWell{"", ""}, kThreeWell{"", "", ""};

class environment : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  void set(const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
    names_.push_back(name);
  }
  void clear() {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PMIX_NAMESPACE",
                             "PEERLANE_LINK_RANK", "PEERLANE_LINK_SIZE", "PEERLANE_LINK_RENDEZVOUS", "SLURM_JOB_ID"})
      unsetenv(name);
    for (const char* name : names_) unsetenv(name);
  }
  std::vector<const char*> names_;
};
using meeting_by = environment;
using launcher_of = environment;

TEST_F(meeting_by, host_and_port) {
  const auto where = "127.0.0.1:" + free_port();
  EXPECT_EQ(run({options_of(2, 3, where), options_of(0, 3, where), options_of(1, 3, where)}, {0, 2'000'000, 65'536}),
            kThreeWell);
}

TEST_F(meeting_by, all_addresses_of_rank_0) {
  const auto port = free_port();
  EXPECT_EQ(run({options_of(0, 2, "*:" + port), options_of(1, 2, "127.0.0.1:" + port)}, {1, 0}), kTwoWell);
}

TEST_F(meeting_by, one_process_needs_no_place) { EXPECT_EQ(run({options_of(0, 1, "")}, {7}), std::vector<std::string>{""}); }

class folder {
 public:
  folder() : path_(std::filesystem::temp_directory_path() / ("peerlane-meet." + std::to_string(getpid()))) {}
  ~folder() { std::filesystem::remove_all(path_); }
  std::string where() const { return "file:" + path_.string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST_F(meeting_by, a_folder_again_and_again) {
  const folder at;
  for (int turn = 0; turn < 3; ++turn)
    EXPECT_EQ(
        run({options_of(0, 3, at.where()), options_of(1, 3, at.where()), options_of(2, 3, at.where())}, {9, 0, 100'000}),
        kThreeWell);
}

TEST_F(meeting_by, a_folder_with_the_files_of_a_run_that_was_killed) {
  const folder at;
  std::filesystem::create_directories(at.path());
  const std::uint64_t stale[2] = {11, 22};
  const auto put = [&](const char* name, std::size_t numbers) {
    std::ofstream(at.path() / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(stale), static_cast<std::streamsize>(numbers * sizeof stale[0]));
  };
  put("hello.0", 1), put("hello.1", 1), put("ready.1", 1), put("run", 2), put("exchange.000000000000000b.0.1", 1);
  EXPECT_EQ(run({options_of(0, 2, at.where()), options_of(1, 2, at.where())}, {3, 4}), kTwoWell);
}

TEST_F(meeting_by, a_folder_where_a_rank_is_missing) {
  const folder at;
  auto with = file_bootstrap(at.path(), 0, 2, std::chrono::milliseconds(50));
  ASSERT_EQ(with.code(), ETIMEDOUT);
  EXPECT_NE(with.error().message.find("rank 1 of 2"), std::string::npos) << with.error().message;
}

TEST_F(meeting_by, the_key_of_a_launcher) {
  set("PMIX_NAMESPACE", "test-" + std::to_string(getpid()));
  set("OMPI_COMM_WORLD_SIZE", "2");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  set("OMPI_COMM_WORLD_RANK", "1");
  const pid_t child = fork();
  if (child == 0) _exit(be_rank({}, {5, 6}).empty() ? 0 : 1);
  set("OMPI_COMM_WORLD_RANK", "0");
  EXPECT_EQ(be_rank({}, {5, 6}), "");
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(meeting_by, what_is_not_enough) {
  EXPECT_EQ(plan_meeting({}).code(), ENODATA);
  EXPECT_EQ(plan_meeting(options_of(2, 2, "host:1")).code(), EINVAL);
  EXPECT_EQ(plan_meeting(options_of(-1, 2, "host:1")).code(), EINVAL);
  EXPECT_EQ(plan_meeting(options_of(1, 2, "")).code(), EINVAL);
  EXPECT_EQ(open_bootstrap(options_of(0, 2, "file:")).code(), EINVAL);
  EXPECT_EQ(open_bootstrap(options_of(1, 2, "12345")).code(), EINVAL);
  set("PEERLANE_LINK_SIZE", "4");
  set("PEERLANE_LINK_RANK", "3");
  set("PEERLANE_LINK_RENDEZVOUS", "node7:5000");
  const auto plan = plan_meeting({});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->rank, 3);
  EXPECT_EQ(plan->size, 4);
  EXPECT_EQ(plan->where, "node7:5000");
  EXPECT_FALSE(plan->is_launched);
}

TEST_F(meeting_by, several_hosts_need_more_than_mpirun_says) {
  set("OMPI_COMM_WORLD_SIZE", "4");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  set("OMPI_COMM_WORLD_RANK", "1");
  const auto with = open_bootstrap({});
  ASSERT_EQ(with.code(), ENOSYS);
  EXPECT_NE(with.error().message.find("PEERLANE_LINK_RENDEZVOUS=HOST:PORT"), std::string::npos);
}

TEST_F(launcher_of, its_names) {
  set("SLURM_PROCID", "1");
  set("SLURM_NTASKS", "2");
  EXPECT_EQ(read_launcher().size, 0);  // a batch script, not a step
  set("SLURM_STEP_NUM_TASKS", "2");
  set("SLURM_STEP_NUM_NODES", "2");
  set("SLURM_LOCALID", "0");
  set("SLURM_STEP_NODELIST", "gpu[07-08]");
  const auto step = read_launcher();
  EXPECT_EQ(step.rank, 1);
  EXPECT_EQ(step.local_rank, 0);
  EXPECT_EQ(step.ranks_here, 0);
  EXPECT_EQ(step.first_host, "gpu07");
  set("MV2_COMM_WORLD_RANK", "5");
  set("MV2_COMM_WORLD_SIZE", "8");
  set("MV2_COMM_WORLD_LOCAL_SIZE", "4");
  set("MV2_COMM_WORLD_LOCAL_RANK", "1");
  const auto mvapich = read_launcher();
  EXPECT_EQ(mvapich.rank, 5);
  EXPECT_EQ(mvapich.size, 8);
  EXPECT_EQ(mvapich.ranks_here, 4);
  EXPECT_EQ(mvapich.local_rank, 1);
  EXPECT_TRUE(mvapich.starts_mpi);
}

TEST_F(launcher_of, lists_of_hosts) {
  EXPECT_EQ(first_of_host_list("node7"), "node7");
  EXPECT_EQ(first_of_host_list("node7,node9"), "node7");
  EXPECT_EQ(first_of_host_list("node[007-012,20],x"), "node007");
  EXPECT_EQ(first_of_host_list("r[1,3]-gpu,x"), "r1-gpu");
  EXPECT_EQ(first_of_host_list("a,node[1-2]"), "a");
  EXPECT_EQ(first_of_host_list("r[1-2]n[3-4]"), "");
  EXPECT_EQ(first_of_host_list("r[x]"), "");
  EXPECT_EQ(first_of_host_list(""), "");
}

}  // namespace
}  // namespace pl::link
