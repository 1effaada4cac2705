// SPDX-License-Identifier: Apache-2.0
// The store of MPICH's mpiexec, with an end of the socket that answers as it is told to. The real one is launchers_e2e.py's.
#include "messaging/bootstrap/pmi_store.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <thread>

#include "base/deadline.hpp"
#include "base/text.hpp"
#include "os/device_io.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {
namespace {

// Answers each command with its line, or message of PMI 2; where there is none, nothing. "close": ends the connection.
class fake_launcher {
 public:
  explicit fake_launcher(std::map<std::string, std::string> answers, bool is_left = false)
      : answers_(std::move(answers)), is_left_(is_left) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    own_ = pair[0];
    theirs_ = pair[1];
    setenv("PMI_FD", std::to_string(theirs_).c_str(), 1);
    setenv("PMI_RANK", "1", 1);
    thread_ = std::thread([this] { serve(); });
  }
  ~fake_launcher() {
    shutdown(own_, SHUT_RDWR);
    thread_.join();
    close(own_);
    close(theirs_);
    unsetenv("PMI_FD");
    unsetenv("PMI_RANK");
  }
  fake_launcher(const fake_launcher&) = delete;
  fake_launcher& operator=(const fake_launcher&) = delete;
  // Behind what they are about.
  const std::string& last_put() const { return last_put_; }
  int begun() const { return begun_; }

 private:
  void serve() {
    pmi_connection theirs(own_);
    while (const auto said = theirs.receive(deadline_after_ms(600'000))) {
      const std::string command = theirs.value(*said, "cmd");
      if (command == "put" || command == "kvs-put") last_put_ = theirs.value(*said, "value");
      const bool is_init = command == "init";
      begun_ += is_init ? 1 : 0;
      const auto exact = is_init ? answers_.find("init " + theirs.value(*said, "pmi_version")) : answers_.end();
      const auto found = exact == answers_.end() ? answers_.find(command) : exact;
      if (found == answers_.end()) continue;
      if (found->second == "close") return static_cast<void>(shutdown(own_, SHUT_RDWR));
      answer(theirs, found->second);
      if (is_init && theirs.value(found->second, "pmi_version") == "2" && theirs.value(found->second, "rc") == "0")
        theirs.use_version(2);
    }
  }
  // In two pieces: it comes as it comes. "raw:...": as it is.
  void answer(const pmi_connection& theirs, const std::string& text) const {
    const std::string whole = text.rfind("raw:", 0) == 0 ? text.substr(4)
                              : theirs.version() == 1    ? text + "\n"
                                                         : format(is_left_ ? "%-6zu" : "%6zu", text.size()) + text;
    const auto half = whole.size() / 2;
    send(own_, whole.data(), half, MSG_NOSIGNAL);
    usleep(1000);
    send(own_, whole.data() + half, whole.size() - half, MSG_NOSIGNAL);
  }
  const std::map<std::string, std::string> answers_;
  const bool is_left_;  // lengths begin with their digits
  int own_ = -1, theirs_ = -1;
  std::string last_put_;
  std::atomic<int> begun_{0};
  std::thread thread_;
};

std::map<std::string, std::string> good_answers() {
  return {{"init", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"},
          {"get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=64"},
          {"get_my_kvsname", "cmd=my_kvsname kvsname=kvs_7"},
          {"put", "cmd=put_result rc=0 msg=success"},
          {"barrier_in", "cmd=barrier_out"},
          {"get", "cmd=get_result rc=0 msg=success value=a_text_of_rank_0"}};
}
// As `srun --mpi=pmi2` does.
std::map<std::string, std::string> good_answers_2() {
  return {{"init 1", "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=-1"},
          {"init 2", "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0"},
          {"fullinit", "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=1;size=2;appnum=-1;"},
          {"kvs-put", "cmd=kvs-put-response;rc=0;"},
          {"kvs-fence", "cmd=kvs-fence-response;rc=0;errmsg=;"},
          {"kvs-get", "cmd=kvs-get-response;rc=0;found=TRUE;value=a text;; of rank_0;"}};
}
std::map<std::string, std::string> answers_but(const std::string& command, const std::string& answer,
                                               std::map<std::string, std::string> out = good_answers()) {
  out[command] = answer;
  return out;
}

TEST(pmi_store, publishes_and_reads) {
  const fake_launcher launcher(good_answers());
  auto store = pmi_store::open();
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_EQ((*store)->rank(), 1);
  EXPECT_TRUE((*store)->publish("key", "three words here"));
  EXPECT_EQ(launcher.last_put(), "three_words_here") << "a value is one word of the line";
  store->reset();  // takes the barrier's end
  store = pmi_store::open();
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_EQ(launcher.begun(), 1) << "a launcher may refuse the second time";
  const auto text = (*store)->read(0, "key", 5);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text, "a text of rank 0");
}

TEST(pmi_store, speaks_version_2_to_who_refuses_version_1) {
  for (const bool is_left : {false, true}) {
    const fake_launcher launcher(good_answers_2(), is_left);
    auto store = pmi_store::open();
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_TRUE((*store)->publish("key", "three words;here;"));
    EXPECT_EQ(launcher.last_put(), "three words;here;");
    store->reset();
    store = pmi_store::open();
    ASSERT_TRUE(store) << store.error().message;
    const auto text = (*store)->read(0, "key", 5);
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_EQ(*text, "a text; of rank_0");
    EXPECT_EQ(launcher.begun(), 2) << "once for each version";
  }
}

TEST(pmi_store, other_answers_of_version_2_are_errors_and_no_hang) {
  const std::pair<const char*, std::string> kOpening[] = {
      {"init 2", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"},  // to 2
      {"fullinit", "close"},
      {"fullinit", "raw:999999cmd=fullinit-response;rc=0;rank=1;"},
      {"fullinit", "raw:    -8cmd=full"},
      {"fullinit", "raw:     0cmd=full"},
      {"fullinit", "raw:1 2   cmd=full"},
      {"fullinit", "raw:cmd=response_to_init rc=0\n"},
      {"fullinit", "raw:      cmd="},
      {"fullinit", "cmd=fullinit-response;rc=4;rank=1;"},
      {"fullinit", "cmd=fullinit-response;rc=0;rank=7;"},
      {"fullinit", "cmd=fullinit-response;rc=0;"},
      {"fullinit", ";;;;=;=;;cmd"}};
  for (const auto& [command, answer] : kOpening) {
    const fake_launcher launcher(answers_but(command, answer, good_answers_2()));
    EXPECT_EQ(pmi_store::open().code(), ENOSYS) << command << ": " << answer;
  }
  const std::pair<const char*, const char*> kReading[] = {{"kvs-fence", "close"},
                                                          {"kvs-fence", "cmd=kvs-fence-response;rc=9;"},
                                                          {"kvs-fence", "cmd=kvs-get-response;rc=0;"},
                                                          {"kvs-fence", "raw:  8193cmd=kvs-fence-response;"},
                                                          {"kvs-get", "cmd=kvs-get-response;rc=0;found=FALSE;"},
                                                          {"kvs-get", "cmd=kvs-get-response;rc=2;found=TRUE;value=x;"},
                                                          {"kvs-get", "close"}};
  for (const auto& [command, answer] : kReading) {
    const fake_launcher launcher(answers_but(command, answer, good_answers_2()));
    const auto store = pmi_store::open();
    ASSERT_TRUE(store) << store.error().message;
    const auto text = (*store)->read(0, "key", 5);
    EXPECT_TRUE(text.code() == EIO || text.code() == EPROTO) << command << ": " << answer << ": " << text.code();
  }
}

// It is silent behind a part of what it announced.
TEST(pmi_store, an_answer_of_version_2_that_breaks_off_times_out) {
  const fake_launcher launcher(answers_but("kvs-fence", "raw:    40cmd=kvs-fence-resp", good_answers_2()));
  const auto store = pmi_store::open();
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_EQ((*store)->read(0, "key", 1).code(), ETIMEDOUT);
}

TEST(pmi_store, what_is_no_launcher_is_none) {
  unsetenv("PMI_FD");
  EXPECT_FALSE(pmi_store::is_offered());
  setenv("PMI_RANK", "0", 1);
  for (const char* descriptor : {"", "-1", "nine", "2147483648", "1000000"}) {
    setenv("PMI_FD", descriptor, 1);
    EXPECT_EQ(pmi_store::open().code(), ENOSYS) << descriptor;
  }
  const unique_fd file(real_device_io(), open("/dev/null", O_RDONLY));
  setenv("PMI_FD", std::to_string(file.get()).c_str(), 1);
  EXPECT_EQ(pmi_store::open().code(), ENOSYS) << "no socket";
  unsetenv("PMI_FD");
  unsetenv("PMI_RANK");
}

TEST(pmi_store, other_answers_are_errors_and_no_hang) {
  const std::pair<const char*, std::string> kOpening[] = {{"init", "close"},
                                                          {"init", "cmd=response_to_init rc=-1"},
                                                          {"init", "hello"},
                                                          {"init", std::string(20000, 'x')},
                                                          {"get_maxes", "cmd=finalize_ack"},
                                                          {"get_my_kvsname", "cmd=my_kvsname"}};
  for (const auto& [command, answer] : kOpening) {
    const fake_launcher launcher(answers_but(command, answer));
    EXPECT_EQ(pmi_store::open().code(), ENOSYS) << command << ": " << answer.substr(0, 50);
  }
  {
    const fake_launcher launcher(answers_but("put", "cmd=put_result rc=-1 msg=full"));
    const auto store = pmi_store::open();
    ASSERT_TRUE(store);
    EXPECT_EQ((*store)->publish("key", "text").code(), EIO);
    EXPECT_EQ((*store)->publish("key", std::string(64, 'x')).code(), EMSGSIZE);
  }
  const std::pair<const char*, const char*> kReading[] = {{"barrier_in", "close"},
                                                          {"barrier_in", "cmd=get_result rc=0"},
                                                          {"get", "cmd=get_result rc=-1 msg=key_not_found value=unknown"},
                                                          {"get", "close"}};
  for (const auto& [command, answer] : kReading) {
    const fake_launcher launcher(answers_but(command, answer));
    const auto store = pmi_store::open();
    ASSERT_TRUE(store);
    const auto text = (*store)->read(0, "key", 5);
    EXPECT_TRUE(text.code() == EIO || text.code() == EPROTO) << command << ": " << answer << ": " << text.code();
  }
}

TEST(pmi_store, a_barrier_to_which_not_all_come_times_out) {
  auto answers = good_answers();
  answers.erase("barrier_in");
  const fake_launcher launcher(answers);
  const auto store = pmi_store::open();
  ASSERT_TRUE(store);
  const auto text = (*store)->read(0, "key", 1);
  EXPECT_EQ(text.code(), ETIMEDOUT);
}

}  // namespace
}  // namespace pl::messaging
