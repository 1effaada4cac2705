// SPDX-License-Identifier: Apache-2.0
// The server as a process of its own, with limits that the system sets.
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/text.hpp"
#include "test/messaging/refused_call.hpp"
#include "test/store/server/raw_peer.hpp"

#ifdef PL_PROGRAM

namespace pl::store_test {
namespace {

using store_protocol::durability;

class store_process : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "peerlane-store-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    data_ = folder_ + "/data";
  }
  void TearDown() override {
    end(SIGKILL);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  void start(const std::vector<std::string>& more, const std::function<void()>& before = nullptr) {
    std::vector<std::string> words = {PL_PROGRAM, "store", "serve", "--data", data_, "--arena", "64MiB", "--chunk", "16MiB"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> raw;
    for (auto& one : words) raw.push_back(one.data());
    raw.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = open((folder_ + "/said").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(out, 1);
    dup2(out, 2);
    if (before) before();
    execv(raw[0], raw.data());
    _exit(127);
  }
  int wait() {
    int state = 0;
    waitpid(std::exchange(pid_, 0), &state, 0);
    return state;
  }
  void end(int number) {
    if (pid_ <= 0) return;
    kill(pid_, number);
    wait();
  }
  bool serves() {
    return soon([&] { return static_cast<bool>(store_client::connect(reachable().server, 1000)); }, 30);
  }
  store_client::client_options reachable() const {
    store_client::client_options out;
    out.server.socket = data_ + "/store.sock";
    return out;
  }
  std::string said() const {
    std::ifstream file(folder_ + "/said");
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }
  std::string folder_, data_;
  pid_t pid_ = 0;
};

void allow_descriptors(rlim_t soft, rlim_t hard) {
  const rlimit most{soft, hard};
  setrlimit(RLIMIT_NOFILE, &most);
}

// A unix socket with this name, or -1.
int bound_socket(const std::string& path, int type) {
  const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

// systemd's Type=notify.
TEST_F(store_process, ReadinessIsReportedToTheServiceManager) {
  const std::string path = folder_ + "/notify";
  const int manager = bound_socket(path, SOCK_DGRAM);
  ASSERT_GE(manager, 0);
  start({}, [&] { setenv("NOTIFY_SOCKET", path.c_str(), 1); });
  pollfd readable{manager, POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 30'000), 1) << said();
  char text[256] = {};
  ASSERT_GT(recv(manager, text, sizeof text - 1, 0), 0);
  close(manager);
  EXPECT_EQ(std::string(text), "READY=1\nSTATUS=Serving " + data_);
  EXPECT_TRUE(store_client::connect(reachable().server, 1000)) << "it has said so";
}

TEST_F(store_process, ServesWithoutAReachableServiceManager) {
  start({}, [&] { setenv("NOTIFY_SOCKET", (folder_ + "/nobody").c_str(), 1); });
  EXPECT_TRUE(serves()) << said();
  const auto has_told = [&] { return said().find("telling the service manager") != std::string::npos; };
  EXPECT_TRUE(soon(has_told, 30)) << said();  // it serves before it tells of that
}

TEST_F(store_process, TheSocketHasTheGroupAndModeOfTheConfig) {
  const auto config = [&](const std::string& more) {
    std::ofstream(folder_ + "/config") << more;
    start({"--config", folder_ + "/config"});
  };
  const std::string group = std::to_string(getegid());
  config(R"({"socket_mode": "0666", "socket_group": ")" + group + "\"}");
  ASSERT_TRUE(serves()) << said();
  struct stat info {};
  ASSERT_EQ(stat(reachable().server.socket.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0666u);
  EXPECT_EQ(info.st_gid, getegid());
  end(SIGTERM);
  // 2^32 would be group 0 as a number of 32 bits.
  config(R"({"socket_group": "4294967296"})");
  int refusal = wait();
  EXPECT_TRUE(WIFEXITED(refusal) && WEXITSTATUS(refusal) != 0);
  EXPECT_NE(said().find("group 4294967296 does not exist"), std::string::npos) << said();
  config(R"({"socket_group": "no-such-group-here"})");
  int state = wait();
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) != 0);
  EXPECT_NE(said().find("group no-such-group-here does not exist"), std::string::npos) << said();
  EXPECT_NE(stat(reachable().server.socket.c_str(), &info), 0) << "it leaves no socket";
  for (const char* wrong : {"0777", "660 ", "0060", "rw", ""}) {
    config(std::string(R"({"socket_mode": ")") + wrong + "\"}");
    state = wait();
    EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) != 0) << wrong;
  }
}

// As in `peerlane store serve 2>&1 | head -1`.
TEST_F(store_process, ALogWithoutAReaderDoesNotEndTheStore) {
  start({}, [] {
    int ends[2];
    if (pipe(ends) != 0) _exit(126);
    dup2(ends[1], 2);
    close(ends[0]);
    close(ends[1]);
  });
  ASSERT_TRUE(serves()) << said();
  const auto store = store_rig::open(reachable());
  ASSERT_NE(store, nullptr);
  const auto pool = make_pool(*store, "p");  // is logged
  EXPECT_EQ(put(*store, pool, "k", {1}).status, 0);
  kill(pid_, SIGTERM);
  const int state = wait();
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
}

// `serve <&- >&- 2>&-`: their numbers would be those of the store's files and sockets, and lines of its log would go there.
TEST_F(store_process, ClosedStandardDescriptorsAreNoFilesOfTheStore) {
  start({}, [] {
    for (const int each : {0, 1, 2}) close(each);
  });
  ASSERT_TRUE(serves());
  for (const int each : {0, 1, 2})
    EXPECT_EQ(std::filesystem::read_symlink(pl::format("/proc/%d/fd/%d", pid_, each)), "/") << each;
  const auto store = store_rig::open(reachable());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(put(*store, make_pool(*store, "p"), "k", {1}).status, 0);
}

// Nobody reads where it listens, which is no failure of the store.
TEST_F(store_process, EndsWellWithoutStandardOutput) {
  start({}, [] { close(1); });
  ASSERT_TRUE(serves()) << said();
  kill(pid_, SIGTERM);
  const int state = wait();
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state << said();
}

// What fails again and again, ten times a second, fills no log.
TEST_F(store_process, ConnectionsThatCannotBeAcceptedAreToldOnce) {
  start({}, [] { messaging::refuse_call(SYS_accept, EPERM) && messaging::refuse_call(SYS_accept4, EPERM); });
  const auto count = [&] {
    const std::string text = said();
    std::size_t found = 0;
    for (std::size_t place = 0; (place = text.find("accept_failed", place)) != std::string::npos; ++place) ++found;
    return found;
  };
  ASSERT_TRUE(soon([&] { return store_client::is_listened_to(reachable().server.socket); }, 30)) << said();
  EXPECT_TRUE(soon([&] { return count() > 0; }, 30)) << said();
  usleep(500'000);
  EXPECT_EQ(count(), 1u) << said();
}

TEST_F(store_process, WhatItStartsInheritsNoDescriptor) {
  start({"--ucx", "on", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"},
        [] { close_range(3, ~0u, CLOSE_RANGE_CLOEXEC); });
  ASSERT_TRUE(serves()) << said();
  const auto store = store_rig::open(reachable());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(put(*store, make_pool(*store, "p"), "k", bytes_t(1u << 20)).status, 0);
  int looked = 0;
  for (const auto& one : std::filesystem::directory_iterator(pl::format("/proc/%d/fd", pid_))) {
    const std::string name = one.path().filename();
    if (std::stoi(name) < 3) continue;
    std::ifstream info(pl::format("/proc/%d/fdinfo/%s", pid_, name.c_str()));
    std::string word, flags;
    while (info >> word && word != "flags:") {}
    info >> flags;
    if (flags.empty()) continue;  // closed meanwhile
    std::error_code ignored;
    EXPECT_NE(std::stoul(flags, nullptr, 8) & static_cast<unsigned long>(O_CLOEXEC), 0u)
        << name << " " << std::filesystem::read_symlink(one.path(), ignored);
    ++looked;
  }
  EXPECT_GT(looked, 10);
}

TEST_F(store_process, IdleConnectionsLeaveTheEngineItsDescriptors) {
  std::ofstream(folder_ + "/config") << R"({"extent_file_bytes": 4194304})";
  start({"--config", folder_ + "/config"}, [] { allow_descriptors(200, 320); });
  ASSERT_TRUE(serves()) << said();
  auto options = reachable();
  options.use_shm = false;
  const auto store = store_rig::open(options);
  const auto pool = make_pool(*store, "p");
  ASSERT_EQ(put(*store, pool, "before", random_value(1 << 20, 1)).status, 0);
  std::vector<std::unique_ptr<raw_peer>> idle;
  for (int i = 0; i < 500; ++i) idle.push_back(std::make_unique<raw_peer>(reachable()));
  // More files than it had, and more of the index's.
  for (unsigned i = 0; i < 20; ++i) {
    const auto done = put(*store, pool, "large" + std::to_string(i), random_value(3 << 20, i));
    ASSERT_EQ(done.status, 0) << i << ": " << done.text;
  }
  for (unsigned i = 0; i < 100; ++i) {
    const auto done = put(*store, pool, "small" + std::to_string(i), random_value(100, i));
    ASSERT_EQ(done.status, 0) << i << ": " << done.text;
  }
  const auto reply = store->run(store->make_plain(store_protocol::opcode::stats, 0, {})).body;
  EXPECT_NE(reply.find("peerlane_store_read_only 0"), std::string::npos) << reply;
  idle.clear();
  EXPECT_TRUE(soon([&] {
    const auto made = store_client::client::open(options);
    return made && (*made)->open_pool("p");
  }));
}

TEST_F(store_process, AFolderOfOthersIsLeftAsItIs) {
  std::filesystem::create_directory(data_);
  std::filesystem::permissions(data_, std::filesystem::perms::all);
  std::ofstream(data_ + "/somebody's") << "x";
  start({});
  const int state = wait();
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) != 0) << state;
  EXPECT_NE(said().find("is not a store"), std::string::npos) << said();
  EXPECT_EQ(std::filesystem::status(data_).permissions(), std::filesystem::perms::all);
  EXPECT_FALSE(std::filesystem::exists(data_ + "/index"));
  // An empty one, and a store's, are taken.
  std::filesystem::remove(data_ + "/somebody's");
  for (int i = 0; i < 2; ++i) {
    start({});
    EXPECT_TRUE(serves()) << said();
    end(SIGTERM);
  }
}

// A server that has begun to serve does not run out of address space under load: it died of an exception in the index.
TEST_F(store_process, LittleAddressSpaceIsRefusedOrEnough) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve terabytes of address space at start, which RLIMIT_AS refuses";
#endif
  for (const rlim_t mebibytes : {508, 620}) {
    start({}, [mebibytes] {
      const rlimit most{mebibytes << 20, mebibytes << 20}, no_core{0, 0};
      setrlimit(RLIMIT_AS, &most);
      setrlimit(RLIMIT_CORE, &no_core);
    });
    int state = 0;
    if (mebibytes < 600 && soon([&] { return waitpid(pid_, &state, WNOHANG) == pid_; }, 3)) {
      pid_ = 0;
      EXPECT_TRUE(WIFEXITED(state)) << said();
      EXPECT_NE(said().find("ulimit -v"), std::string::npos) << said();
      continue;
    }
    ASSERT_TRUE(serves()) << said();
    const std::string load = std::string(PL_PROGRAM) + " store perf --server " + data_ +
                             "/store.sock --test ycsb-a --elements 20000 --value_length 4000 --duration 4 --cores 2";
    EXPECT_EQ(std::system((load + " > /dev/null").c_str()), 0) << said();
    EXPECT_EQ(waitpid(pid_, &state, WNOHANG), 0) << said();
    end(SIGTERM);
  }
}

// A FIFO that nobody reads or writes would be waited for, at the start and, worse, by a store that serves.
TEST_F(store_process, AFifoInPlaceOfASettingsFileIsNotWaitedFor) {
  const std::string fifo = folder_ + "/fifo", config = folder_ + "/config", log = folder_ + "/log";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::vector<std::vector<std::string>> lists = {{"--log", fifo},
                                                       {"--tls-cert", fifo, "--tls-key", fifo, "--tls-client-ca", fifo}};
  for (const auto& words : lists) {
    start(words);
    const int state = wait();
    EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 1) << words.front();
    EXPECT_NE(said().find("it is a FIFO"), std::string::npos) << said();
    std::filesystem::remove(folder_ + "/said");
  }
  std::ofstream(config) << R"({"quotas": ["* bytes=1G"]})";
  start({"--config", config, "--log", log});
  ASSERT_TRUE(serves()) << said();
  for (const std::string& name : {config, log}) {
    std::filesystem::remove(name);
    ASSERT_EQ(mkfifo(name.c_str(), 0600), 0);
  }
  const int silent = open(config.c_str(), O_RDWR | O_CLOEXEC);  // a writer that never writes
  kill(pid_, SIGHUP);
  EXPECT_TRUE(serves()) << said();
  const auto store = store_rig::open(reachable());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(put(*store, make_pool(*store, "p"), "k", {1}).status, 0);
  close(silent);
  kill(pid_, SIGTERM);
  const int state = wait();
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
}

// Signals that arrive while the store recovers do not end it.
TEST_F(store_process, AReloadBeforeItServesIsMadeUpFor) {
  start({"--log", folder_ + "/log"});
  ASSERT_TRUE(soon([&] { return std::filesystem::exists(data_ + "/lock"); }, 30)) << said();
  kill(pid_, SIGHUP);
  ASSERT_TRUE(serves()) << said();
  const auto is_reloaded = [&] {
    std::ifstream file(folder_ + "/log");
    return std::string(std::istreambuf_iterator<char>(file), {}).find("log_reopened") != std::string::npos;
  };
  EXPECT_TRUE(soon(is_reloaded, 30));
}

TEST_F(store_process, AReloadSaysWhichChangedSettingsWaitForARestart) {
  const auto config = [&](const std::string& text) { std::ofstream(folder_ + "/config") << text; };
  config(R"({"quotas": ["* bytes=1G"], "threads": 1})");
  start({"--config", folder_ + "/config"});
  ASSERT_TRUE(serves()) << said();
  const auto is_said = [&](const std::string& text) {
    kill(pid_, SIGHUP);
    return soon([&] { return said().find(text) != std::string::npos; }, 30);
  };
  EXPECT_TRUE(is_said("1 quotas")) << said();
  EXPECT_EQ(said().find("settings_kept"), std::string::npos) << said();
  config(R"({"quotas": ["* bytes=2G"], "threads": 2, "arena_bytes": 134217728, "admins": ["tcp"], "tls_key": "/key"})");
  EXPECT_TRUE(is_said(R"("event":"settings_kept","fields":"tls_key, admins, threads, arena_bytes")")) << said();
  end(SIGTERM);
  // Quotas of the command line stay, whatever the file says.
  start({"--config", folder_ + "/config", "--quotas", "* keys=7", "--log", folder_ + "/log", "--insecure"});
  const int state = wait();
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 1) << said();  // a key alone
  config(R"({"threads": 1})");
  start({"--config", folder_ + "/config", "--quotas", "* keys=7"});
  ASSERT_TRUE(serves()) << said();
  config(R"({"threads": 1, "quotas": ["* keys=1"]})");
  EXPECT_TRUE(is_said(R"("fields":"quotas")")) << said();
  config("{");
  EXPECT_TRUE(is_said("settings_not_read")) << said();
}

// Root may read and write everything, so a test of root serves as another user.
class store_process_of_nobody : public store_process {
 protected:
  static constexpr uid_t kNobody = 65534;
  void SetUp() override {
    store_process::SetUp();
    std::filesystem::create_directory(data_);
    std::filesystem::permissions(folder_, std::filesystem::perms(0755));
    if (geteuid() == 0) { ASSERT_EQ(chown(data_.c_str(), kNobody, kNobody), 0); }
  }
  void TearDown() override {
    std::filesystem::permissions(folder_, std::filesystem::perms(0755));
    std::filesystem::permissions(data_ + "/index", std::filesystem::perms(0755));
    store_process::TearDown();
  }
  void start_as_nobody(const std::vector<std::string>& more, mode_t mask = 022) {
    start(more, [mask] {
      umask(mask);
      if (geteuid() == 0 && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(126);
    });
  }
  void expect_refusal(const std::string& text) {
    const int state = wait();
    EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 1) << state;
    EXPECT_NE(said().find(text), std::string::npos) << said();
  }
};

TEST_F(store_process_of_nobody, WhatItMayNotReadIsNotCalledDamage) {
  start_as_nobody({});
  ASSERT_TRUE(serves()) << said();
  end(SIGTERM);
  for (const char* const name : {"/index", "/index/CURRENT", "/extents", "/commit.mark"}) {
    const auto before = std::filesystem::status(data_ + name).permissions();
    std::filesystem::permissions(data_ + name, std::filesystem::perms::none);
    std::filesystem::remove(folder_ + "/said");
    start_as_nobody({});
    expect_refusal(data_ + name + ": EACCES (Permission denied): all of it must be the store's user's");
    std::filesystem::permissions(data_ + name, before);
  }
  start_as_nobody({});
  EXPECT_TRUE(serves()) << said();
}

TEST_F(store_process_of_nobody, AUmaskThatTakesItsOwnRightsDoesNot) {
  start_as_nobody({}, 0777);
  ASSERT_TRUE(serves()) << said();
  end(SIGTERM);
  start_as_nobody({});
  EXPECT_TRUE(serves()) << said();
}

TEST_F(store_process_of_nobody, ASocketThatCannotBePutThereIsNamed) {
  const std::string stale = folder_ + "/stale";
  const int one = bound_socket(stale, SOCK_STREAM);
  ASSERT_GE(one, 0);
  close(one);
  std::filesystem::permissions(folder_, std::filesystem::perms(0555));
  start_as_nobody({"--socket", stale});
  expect_refusal("replacing " + stale + ", the socket of a server that is gone: EACCES");
  start_as_nobody({"--socket", folder_ + "/fresh"});
  expect_refusal("EACCES (Permission denied): name a path in a folder that the server's user may write with --socket");
  start_as_nobody({"--socket", folder_ + "/none/fresh"});
  expect_refusal("ENOENT (No such file or directory): name a path in a folder");
}

// The first store writes nothing where its folder was, and leaves the socket of the next one.
TEST_F(store_process, AFolderThatIsMovedAwayIsNotSharedWithTheNextStore) {
  start({});
  ASSERT_TRUE(serves()) << said();
  const pid_t first = pid_;
  auto held = store_client::connect(reachable().server, 1000);
  ASSERT_TRUE(held);
  std::filesystem::rename(data_, folder_ + "/moved");
  start({});
  const bool is_serving = serves();
  kill(first, SIGTERM);
  int state = 0;
  ASSERT_EQ(waitpid(first, &state, 0), first);
  ASSERT_TRUE(is_serving) << said();
  EXPECT_NE(said().find("moved or replaced"), std::string::npos) << said();
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) != 0) << state;
  EXPECT_TRUE(serves()) << "its socket is gone: " << said();
  EXPECT_FALSE(std::filesystem::exists(data_ + "/manifest.copy")) << "the first one's";
}

// ulimit -f: a file that cannot be made is no failure of the disk, which would make the store read-only.
TEST_F(store_process, AFileThatIsTooLargeForTheLimitLeavesTheRestWritable) {
  std::ofstream(folder_ + "/config") << R"({"extent_file_bytes": 268435456, "disk_reserve_bytes": 1})";
  start({"--config", folder_ + "/config"}, [] {
    const rlimit most{128u << 20, 128u << 20};
    setrlimit(RLIMIT_FSIZE, &most);
  });
  ASSERT_TRUE(serves()) << said();
  const auto store = store_rig::open(reachable());
  ASSERT_NE(store, nullptr);
  const auto pool = make_pool(*store, "p");
  const auto large = put(*store, pool, "large", random_value(1 << 20, 1));
  EXPECT_EQ(large.status, ENOSPC);
  EXPECT_NE(large.text.find("ulimit -f"), std::string::npos) << large.text;
  EXPECT_EQ(put(*store, pool, "small", {1}).status, 0);
}

TEST_F(store_process, MoreMemoryThanThereIsIsWarnedOf) {
  start({});
  ASSERT_TRUE(serves()) << said();
  EXPECT_EQ(said().find(R"("event":"memory")"), std::string::npos) << said();
  end(SIGTERM);
  std::ofstream(folder_ + "/config") << R"({"key_memory_bytes": 1152921504606846976})";
  start({"--config", folder_ + "/config"});
  ASSERT_TRUE(serves()) << said();
  EXPECT_NE(said().find(R"("event":"memory","why":"the memory tier may grow to 64 MiB (--arena)"), std::string::npos)
      << said();
}

TEST_F(store_process, TooLittleStackIsAnErrorThatSaysSo) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need a longer stack than RLIMIT_STACK leaves here";
#endif
  constexpr rlim_t kLittle = 64u << 10;
  const auto limited = [](rlim_t hard) {
    return [hard] {
      const rlimit most{kLittle, hard}, no_core{0, 0};
      setrlimit(RLIMIT_STACK, &most);
      setrlimit(RLIMIT_CORE, &no_core);
    };
  };
  start({}, limited(kLittle));
  const int state = wait();
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) != 0) << state << ": " << said();
  EXPECT_NE(said().find("ulimit -s"), std::string::npos) << said();
  start({}, limited(8u << 20));  // it raises the limit
  EXPECT_TRUE(serves()) << said();
}

TEST_F(store_process, TooLittleAddressSpaceIsAnErrorThatSaysSo) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer reserves terabytes of address space at start, which RLIMIT_AS refuses";
#endif
  for (const rlim_t mebibytes : {60, 120, 300, 400, 800}) {
    std::filesystem::remove(folder_ + "/said");
    start({"--threads", "8"}, [mebibytes] {
      const rlimit most{mebibytes << 20, mebibytes << 20};
      setrlimit(RLIMIT_AS, &most);
      const rlimit no_core{0, 0};
      setrlimit(RLIMIT_CORE, &no_core);
    });
    if (mebibytes > 700 && serves()) {
      end(SIGTERM);
      continue;
    }
    int state = 0;
    ASSERT_TRUE(soon([&] { return waitpid(pid_, &state, WNOHANG) == pid_; }, 20)) << mebibytes;
    pid_ = 0;
    EXPECT_TRUE(WIFEXITED(state)) << mebibytes << " MiB: signal " << WTERMSIG(state) << ": " << said();
    EXPECT_NE(WEXITSTATUS(state), 0);
    EXPECT_NE(said().find("ulimit -v"), std::string::npos) << mebibytes << ": " << said();
    EXPECT_EQ(said().find("terminate called"), std::string::npos) << said();
  }
}

}  // namespace
}  // namespace pl::store_test

#endif
