// SPDX-License-Identifier: Apache-2.0
// The store of MPICH's mpiexec, with an end of the socket that answers as it is told to. The real one is launchers_e2e.py's.
#include "messaging/bootstrap/pmi_store.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <thread>

#include "os/device_io.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {
namespace {

// Answers each command with its line; where there is none, nothing. "close": ends the connection.
class fake_launcher {
 public:
  explicit fake_launcher(std::map<std::string, std::string> answers) : answers_(std::move(answers)) {
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
  const std::string& last_put() const { return last_put_; }  // behind publish()

 private:
  void serve() {
    std::string unread;
    char bytes[512];
    for (ssize_t n = 0; (n = recv(own_, bytes, sizeof bytes, 0)) > 0;) {
      unread.append(bytes, static_cast<std::size_t>(n));
      for (auto end = unread.find('\n'); end != std::string::npos; end = unread.find('\n')) {
        const std::string line = unread.substr(0, end), command = pmi_value(line, "cmd");
        unread.erase(0, end + 1);
        if (command == "put") last_put_ = pmi_value(line, "value");
        const auto found = answers_.find(command);
        if (found == answers_.end()) continue;
        if (found->second == "close") return static_cast<void>(shutdown(own_, SHUT_RDWR));
        const std::string answer = found->second + "\n";
        // In two pieces: a line comes as it comes.
        const auto half = answer.size() / 2;
        send(own_, answer.data(), half, MSG_NOSIGNAL);
        usleep(1000);
        send(own_, answer.data() + half, answer.size() - half, MSG_NOSIGNAL);
      }
    }
  }
  const std::map<std::string, std::string> answers_;
  int own_ = -1, theirs_ = -1;
  std::string last_put_;
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
std::map<std::string, std::string> answers_but(const std::string& command, const std::string& answer) {
  auto out = good_answers();
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
  const auto text = (*store)->read(0, "key", 5);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text, "a text of rank 0");
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
