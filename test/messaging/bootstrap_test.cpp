// SPDX-License-Identifier: Apache-2.0
// Where processes meet: ranks as threads of this process, over loopback, a local socket and a folder.
#include "messaging/bootstrap/bootstrap.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>

#include "messaging/bootstrap/frame_stream.hpp"
#include "messaging/bootstrap/hmac.hpp"
#include "messaging/bootstrap/local_bootstrap.hpp"
#include "test/messaging/bootstrap_rig.hpp"

namespace pl::messaging {
namespace {

const std::vector<std::string> kTwoWell{"", ""}, kThreeWell{"", "", ""};

using meeting_by = environment;
using launcher_of = environment;

TEST_F(meeting_by, host_and_port) {
  const auto rendezvous = "127.0.0.1:" + free_port();
  EXPECT_EQ(run({options_of(2, 3, rendezvous), options_of(0, 3, rendezvous), options_of(1, 3, rendezvous)},
                {0, 2'000'000, 65'536}),
            kThreeWell);
}

TEST_F(meeting_by, host_and_port_with_a_secret) {
  const secret_file secret(kSecret);
  const auto rendezvous = "127.0.0.1:" + free_port();
  EXPECT_EQ(
      run({options_of(2, 3, rendezvous), options_of(0, 3, rendezvous), options_of(1, 3, rendezvous)}, {0, 20'000, 65'536}),
      kThreeWell);
}

TEST_F(meeting_by, a_secret_that_is_none) {
  const auto code = [] { return open_bootstrap(options_of(1, 2, "127.0.0.1:" + free_port())).code(); };
  {
    const secret_file secret(kSecret, 0644);
    EXPECT_EQ(code(), EACCES);
  }
  {
    const secret_file secret("short");
    EXPECT_EQ(code(), EINVAL);
  }
  set("PEERLANE_LINK_SECRET_FILE", "/nowhere");
  EXPECT_EQ(code(), ENOENT);
  const std::string pipe = testing::TempDir() + "peerlane-secret-" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  set("PEERLANE_LINK_SECRET_FILE", pipe);
  EXPECT_EQ(code(), EINVAL) << "and nobody waits for a writer";
  unlink(pipe.c_str());
}

// Each rank in a process of its own, with the secret that it is given ("": none).
std::vector<std::string> run_with_secrets(const std::string& rendezvous, const std::vector<std::string>& secrets,
                                          unsigned limit) {
  std::vector<std::future<std::string>> running;
  std::vector<int> ends;
  for (std::size_t rank = 0; rank < secrets.size(); ++rank) {
    int pair[2];
    EXPECT_EQ(pipe(pair), 0);
    if (fork() == 0) {
      std::optional<secret_file> secret;
      if (!secrets[rank].empty()) secret.emplace(secrets[rank]);
      auto options = options_of(static_cast<int>(rank), static_cast<int>(secrets.size()), rendezvous);
      options.timeout_s = limit;
      const std::string said = be_rank(options, std::vector<std::size_t>(secrets.size(), 8));
      secret.reset();
      _exit(write(pair[1], said.data(), said.size()) < 0 ? 1 : 0);
    }
    close(pair[1]);
    ends.push_back(pair[0]);
  }
  std::vector<std::string> out;
  for (const int end : ends) {
    std::string said(4096, '\0');
    std::size_t done = 0;
    for (ssize_t n = 0; (n = read(end, said.data() + done, said.size() - done)) > 0;) done += static_cast<std::size_t>(n);
    said.resize(done);
    out.push_back(said);
    close(end);
    wait(nullptr);
  }
  return out;
}

TEST_F(meeting_by, another_secret_or_none_is_rejected_at_both_ends) {
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  auto said = run_with_secrets("127.0.0.1:" + free_port(), {kSecret, "another secret of the tests"}, 2);
  EXPECT_TRUE(has(said[0], "did not connect") && has(said[1], "another secret")) << said[0] << " | " << said[1];
  said = run_with_secrets("127.0.0.1:" + free_port(), {kSecret, ""}, 2);
  EXPECT_TRUE(has(said[0], "rejected") && has(said[1], "secret")) << said[0] << " | " << said[1];
  said = run_with_secrets("127.0.0.1:" + free_port(), {"", kSecret}, 2);
  EXPECT_TRUE(has(said[1], "has no secret")) << said[0] << " | " << said[1];
}

// It believes whatever rank 0 shows, and has nothing to show itself.
TEST_F(meeting_by, a_process_without_proof_is_rejected) {
  const secret_file secret(kSecret);
  const auto port = free_port();
  auto options = options_of(0, 2, "127.0.0.1:" + port);
  options.timeout_s = 3;
  auto first = std::async(std::launch::async, be_rank, options, std::vector<std::size_t>{3, 4});
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const auto address = loopback(port);
  for (int i = 0; i < 200 && connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0; ++i)
    usleep(20'000);
  liar visitor(socket);
  visitor.say(star_frame_kind::hello, 1, kNonce + 4);
  ASSERT_EQ(visitor.hear(), star_frame_kind::challenge);
  visitor.say(star_frame_kind::proof, 1, kProof);
  EXPECT_EQ(visitor.hear(), star_frame_kind::refusal);
  EXPECT_NE(first.get().find("rejected"), std::string::npos);
}

TEST_F(meeting_by, a_rank_0_without_proof_is_left) {
  const secret_file secret(kSecret);
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  auto address = loopback("0");
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener, 4), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  auto options = options_of(1, 2, "127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  options.timeout_s = 5;
  auto joining = std::async(std::launch::async, be_rank, options, std::vector<std::size_t>{3, 4});
  {
    liar host(accept(listener, nullptr, nullptr));
    ASSERT_EQ(host.hear(), star_frame_kind::hello);
    host.say(star_frame_kind::challenge, 0, kNonce + kProof);
    host.say(star_frame_kind::welcome, 0, 0);  // whatever it answers
    const auto said = joining.get();
    EXPECT_NE(said.find("another secret"), std::string::npos) << said;
  }
  close(listener);
}

// Another user says that it is rank 1; the job goes on with its own.
TEST_F(meeting_by, another_users_process_is_rejected) {
  constexpr uid_t kNobody = 65534;
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto rendezvous = "127.0.0.1:" + free_port();
  auto first = std::async(std::launch::async, be_rank, options_of(0, 2, rendezvous), std::vector<std::size_t>{3, 4});
  const pid_t other = fork();
  if (other == 0) {
    auto options = options_of(1, 2, rendezvous);
    options.timeout_s = 5;
    const bool is_other = setresuid(kNobody, kNobody, kNobody) == 0;
    _exit(is_other && be_rank(options, {3, 4}).find("not of rank 0's user") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(be_rank(options_of(1, 2, rendezvous), {3, 4}), "");
  EXPECT_EQ(first.get(), "");
}

std::string hex(const digest& value) {
  std::string out;
  for (const std::byte each : value) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(each));
    out += two;
  }
  return out;
}
std::span<const std::byte> raw(const std::string& text) { return std::as_bytes(std::span(text)); }

// FIPS 180-4's examples, and RFC 4231's cases 1, 2, 3, 6 and 7.
TEST(hmac, is_that_of_the_standards) {
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(raw("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256(raw("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(raw(std::string(1'000'000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), raw("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", raw("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\xaa'), raw(std::string(50, '\xdd')))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), raw("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(
      hex(hmac_sha256(std::string(131, '\xaa'),
                      raw("This is a test using a larger than block-size key and a larger than block-size data. The key "
                          "needs to be hashed before being used by the HMAC algorithm."))),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
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
  std::string rendezvous() const { return "file:" + path_.string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST_F(meeting_by, a_folder_again_and_again) {
  const folder meeting_folder;
  for (int turn = 0; turn < 3; ++turn)
    EXPECT_EQ(run({options_of(0, 3, meeting_folder.rendezvous()), options_of(1, 3, meeting_folder.rendezvous()),
                   options_of(2, 3, meeting_folder.rendezvous())},
                  {9, 0, 100'000}),
              kThreeWell);
}

TEST_F(meeting_by, a_folder_with_the_files_of_a_run_that_was_killed) {
  const folder meeting_folder;
  std::filesystem::create_directories(meeting_folder.path());
  const std::uint64_t stale[2] = {11, 22};
  const auto put = [&](const char* name, std::size_t numbers) {
    std::ofstream(meeting_folder.path() / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(stale), static_cast<std::streamsize>(numbers * sizeof stale[0]));
  };
  put("hello.0", 1), put("hello.1", 1), put("ready.1", 1), put("run", 2), put("exchange.000000000000000b.0.1", 1);
  EXPECT_EQ(run({options_of(0, 2, meeting_folder.rendezvous()), options_of(1, 2, meeting_folder.rendezvous())}, {3, 4}),
            kTwoWell);
}

TEST_F(meeting_by, a_folder_with_another_users_files) {
  constexpr uid_t kNobody = 65534;
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const folder meeting_folder;
  std::filesystem::create_directories(meeting_folder.path());
  ASSERT_EQ(chmod(meeting_folder.path().c_str(), 0777), 0);
  const pid_t other = fork();
  if (other == 0)
    _exit(setresuid(kNobody, kNobody, kNobody) == 0 &&
                  file_bootstrap(meeting_folder.path(), 1, 2, std::chrono::milliseconds(700)).code() == ETIMEDOUT
              ? 0
              : 1);
  EXPECT_EQ(file_bootstrap(meeting_folder.path(), 0, 2, std::chrono::milliseconds(500)).code(), ETIMEDOUT);
  int status = -1;
  EXPECT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

// Another user reads the number of the run in the names of its files, and answers in place of rank 1.
TEST_F(meeting_by, a_folder_where_another_user_answers_for_a_rank) {
  constexpr uid_t kNobody = 65534;
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const folder meeting_folder;
  std::filesystem::create_directories(meeting_folder.path());
  ASSERT_EQ(chmod(meeting_folder.path().c_str(), 0777), 0);
  const pid_t other = fork();
  if (other == 0) {
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(1);
    for (int turn = 0; turn < 20'000; ++turn, usleep(1000))
      for (const auto& each : std::filesystem::directory_iterator(meeting_folder.path())) {
        auto name = each.path().filename().string();
        if (name.rfind("exchange.", 0) != 0 || name.back() != '0') continue;
        name.back() = '1';
        const int file = open((meeting_folder.path() / name).c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
        _exit(file >= 0 && write(file, "mine", 4) == 4 ? 0 : 1);
      }
    _exit(1);
  }
  constexpr auto kTimeout = std::chrono::milliseconds(2000);
  auto second = std::async(std::launch::async, [&] { return file_bootstrap(meeting_folder.path(), 1, 2, kTimeout); });
  auto first = file_bootstrap(meeting_folder.path(), 0, 2, kTimeout);
  ASSERT_TRUE(first && second.get());
  const std::byte ours[4] = {};
  EXPECT_EQ((*first)->all_gather(ours).code(), ETIMEDOUT);
  int status = -1;
  EXPECT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

TEST_F(meeting_by, an_exchange_that_timed_out_stays_failed) {
  auto sockets = fork_bootstrap::make(2);
  ASSERT_TRUE(sockets);
  const pid_t other = fork();
  if (other == 0) {
    auto group = sockets->take(1);
    usleep(300'000);
    static_cast<void>(group->all_gather(contribution(1, 5)));
    usleep(500'000);
    _exit(0);
  }
  auto group = sockets->take(0, std::chrono::milliseconds(100));
  EXPECT_EQ(group->all_gather(contribution(0, 3)).code(), ETIMEDOUT);
  usleep(400'000);
  EXPECT_EQ(group->all_gather(contribution(0, 4)).code(), ETIMEDOUT) << "out of step: the other has read the first one";
  waitpid(other, nullptr, 0);
}

TEST_F(meeting_by, a_folder_where_a_rank_is_missing) {
  const folder meeting_folder;
  auto group = file_bootstrap(meeting_folder.path(), 0, 2, std::chrono::milliseconds(50));
  ASSERT_EQ(group.code(), ETIMEDOUT);
  EXPECT_NE(group.error().message.find("rank 1 of 2"), std::string::npos) << group.error().message;
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
  EXPECT_EQ(plan_bootstrap({}).code(), ENODATA);
  EXPECT_EQ(plan_bootstrap(options_of(2, 2, "host:1")).code(), EINVAL);
  EXPECT_EQ(plan_bootstrap(options_of(-1, 2, "host:1")).code(), EINVAL);
  EXPECT_EQ(plan_bootstrap(options_of(1, 2, "")).code(), EINVAL);
  EXPECT_EQ(open_bootstrap(options_of(0, 2, "file:")).code(), EINVAL);
  EXPECT_EQ(open_bootstrap(options_of(1, 2, "12345")).code(), EINVAL);
  set("PEERLANE_LINK_SIZE", "4");
  set("PEERLANE_LINK_RANK", "3");
  set("PEERLANE_LINK_RENDEZVOUS", "node7:5000");
  const auto plan = plan_bootstrap({});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->rank, 3);
  EXPECT_EQ(plan->size, 4);
  EXPECT_EQ(plan->rendezvous, "node7:5000");
  EXPECT_FALSE(plan->is_launched);
}

TEST_F(meeting_by, several_hosts_need_more_than_mpirun_says) {
  set("OMPI_COMM_WORLD_SIZE", "4");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  set("OMPI_COMM_WORLD_RANK", "1");
  const auto group = open_bootstrap({});
  ASSERT_EQ(group.code(), ENOSYS);
  EXPECT_NE(group.error().message.find("PEERLANE_LINK_RENDEZVOUS=HOST:PORT"), std::string::npos);
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

TEST_F(launcher_of, torchrun) {
  set("RANK", "5");
  set("WORLD_SIZE", "8");
  set("LOCAL_RANK", "1");
  set("LOCAL_WORLD_SIZE", "4");
  EXPECT_EQ(read_launcher().size, 0);  // two common names alone say nothing
  set("MASTER_ADDR", "node3");
  set("MASTER_PORT", "29500");
  const auto by_hand = read_launcher();
  EXPECT_EQ(by_hand.name, "torchrun");
  EXPECT_EQ(by_hand.rank, 5);
  EXPECT_EQ(by_hand.size, 8);
  EXPECT_EQ(by_hand.local_rank, 1);
  EXPECT_EQ(by_hand.ranks_here, 4);
  EXPECT_EQ(by_hand.first_host, "node3");
  EXPECT_EQ(by_hand.first_port, 29501);
  EXPECT_TRUE(by_hand.is_key_global);
  EXPECT_FALSE(by_hand.starts_mpi);
  // srun has started one torchrun a host, whose processes inherit its variables.
  set("SLURM_PROCID", "1");
  set("SLURM_STEP_NUM_TASKS", "2");
  EXPECT_EQ(read_launcher().name, "srun");
  set("TORCHELASTIC_RUN_ID", "7");
  EXPECT_EQ(read_launcher().name, "torchrun");
  EXPECT_EQ(read_launcher().rank, 5);
  const auto key = read_launcher().job_key;
  EXPECT_NE(key, by_hand.job_key);
  set("TORCHELASTIC_RESTART_COUNT", "1");
  EXPECT_NE(read_launcher().job_key, key);
  set("MASTER_PORT", "65535");  // there is no next one
  EXPECT_EQ(read_launcher().name, "srun");
}

// The ranks of one host by its key; of several by the first host's next port.
TEST_F(meeting_by, torchrun) {
  for (const bool has_two_hosts : {false, true}) {
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(std::stoi(free_port()) - 1));
    set("TORCHELASTIC_RUN_ID", "test-" + std::to_string(getpid()));
    set("WORLD_SIZE", "2");
    set("LOCAL_WORLD_SIZE", has_two_hosts ? "1" : "2");
    set("RANK", "1");
    const pid_t child = fork();
    if (child == 0) _exit(be_rank({}, {5, 6}).empty() ? 0 : 1);
    set("RANK", "0");
    EXPECT_EQ(be_rank({}, {5, 6}), "");
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
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
}  // namespace pl::messaging
