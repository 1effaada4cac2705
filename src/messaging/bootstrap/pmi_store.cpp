// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/pmi_store.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "base/clock.hpp"
#include "base/deadline.hpp"
#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

constexpr unsigned kAnswerMs = 10'000;  // of a question that the launcher answers by itself
constexpr std::size_t kMaxLine = 8192;

failure not_spoken(const std::string& reason) { return {ENOSYS, "the launcher's PMI_FD cannot be used: " + reason}; }

// Values are words of a line, so they have no blanks.
std::string joined(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}
std::string parted(std::string text) {
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

// A process that has talked to the launcher and ends without a last word is taken for one that has died, with the whole job.
// Where an MPI has said it, and closed the socket, there is nothing to say: the number may be another file's by then.
void leave_at_exit(int socket) {
  static int left_socket = -1;
  static pid_t owner = 0;
  static ino_t inode = 0;
  struct stat about {};
  if (left_socket >= 0 || fstat(socket, &about) != 0) return;
  left_socket = socket;
  owner = getpid();
  inode = about.st_ino;
  std::atexit([] {
    struct stat now {};
    if (getpid() != owner || fstat(left_socket, &now) != 0 || now.st_ino != inode) return;
    constexpr char kLast[] = "cmd=finalize\n";
    if (send(left_socket, kLast, sizeof kLast - 1, MSG_NOSIGNAL) <= 0) return;
    char answer[64];
    pollfd ready{left_socket, POLLIN, 0};
    if (poll(&ready, 1, 1000) > 0) static_cast<void>(recv(left_socket, answer, sizeof answer, MSG_DONTWAIT));
  });
}

}  // namespace

std::string pmi_value(const std::string& line, const std::string& name) {
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (word.rfind(name + "=", 0) == 0) return word.substr(name.size() + 1);
  return {};
}

bool pmi_store::is_offered() { return env_read("PMI_FD").is_set && env_read("PMI_RANK").is_set; }

result<std::unique_ptr<pmi_store>> pmi_store::open() {
  const auto descriptor = parse_integer(env_read("PMI_FD").text), rank = parse_integer(env_read("PMI_RANK").text);
  struct stat about {};
  const bool is_socket = descriptor && *descriptor >= 0 && *descriptor < (1 << 20) && rank && *rank >= 0 &&
                         fstat(static_cast<int>(*descriptor), &about) == 0 && S_ISSOCK(about.st_mode);
  if (!is_socket)
    return not_spoken(format("%s is no socket of this process (was it closed, or is the variable of another program?)",
                             env_read("PMI_FD").text.c_str()));
  std::unique_ptr<pmi_store> made(new pmi_store(static_cast<int>(*descriptor)));
  made->rank_ = static_cast<int>(*rank);
  if (auto begun = made->begin(); !begun) return not_spoken(begun.error().message);
  leave_at_exit(made->socket_);
  return made;
}

// Repeated where an MPI of this process has begun before.
status pmi_store::begin() {
  auto answer = ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init");
  if (answer && pmi_value(*answer, "rc") != "0") return failure{EPROTO, "it does not speak PMI 1: " + *answer};
  if (answer) answer = ask("cmd=get_maxes", "maxes");
  if (!answer) return std::move(answer).error();
  longest_value_ =
      static_cast<std::size_t>(std::max<std::int64_t>(parse_integer(pmi_value(*answer, "vallen_max")).value_or(0), 0));
  answer = ask("cmd=get_my_kvsname", "my_kvsname");
  if (!answer) return std::move(answer).error();
  name_space_ = pmi_value(*answer, "kvsname");
  return name_space_.empty() ? status(failure{EPROTO, "it names no key-value space: " + *answer}) : status();
}

// Others come to the same barrier at the latest when they connect, and then its end is there.
pmi_store::~pmi_store() {
  constexpr unsigned kLastMs = 1000;
  if (is_in_barrier_) static_cast<void>(leave_barrier(deadline_after_ms(kLastMs)));
}

status pmi_store::send(const std::string& line) const {
  const std::string whole = line + "\n";
  for (std::size_t done = 0; done != whole.size();) {
    const auto n = ::send(socket_, whole.data() + done, whole.size() - done, MSG_NOSIGNAL);
    if (n > 0) done += static_cast<std::size_t>(n);
    else if (errno != EINTR) return failure{EIO, "the launcher takes nothing: " + errno_text(errno)};
  }
  return {};
}

result<std::string> pmi_store::receive(std::uint64_t deadline_ns) {
  for (;;) {
    if (const auto end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (unread_.size() > kMaxLine) return failure{EPROTO, "the launcher sends lines without an end"};
    const auto now = monotonic_ns();
    if (now >= deadline_ns) return failure{ETIMEDOUT, "the launcher does not answer"};
    pollfd ready{socket_, POLLIN, 0};
    const auto left_ms = std::min<std::uint64_t>((deadline_ns - now) / 1'000'000u + 1, 1'000'000);
    if (poll(&ready, 1, static_cast<int>(left_ms)) <= 0) continue;
    char bytes[1024];
    const auto n = recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0) return failure{EIO, "the launcher has closed the connection"};
    if (n > 0) unread_.append(bytes, static_cast<std::size_t>(n));
    else if (errno != EAGAIN && errno != EINTR) return failure{EIO, "the launcher: " + errno_text(errno)};
  }
}

result<std::string> pmi_store::ask(const std::string& line, const char* reply) {
  if (auto sent = send(line); !sent) return sent.error();
  auto answer = receive(deadline_after_ms(kAnswerMs));
  if (answer && pmi_value(*answer, "cmd") != reply)
    return failure{EPROTO, format("it answers \"%s\" with \"%s\"", line.c_str(), answer->c_str())};
  return answer;
}

status pmi_store::leave_barrier(std::uint64_t deadline_ns) {
  auto answer = receive(deadline_ns);
  if (!answer) return answer.error();
  if (pmi_value(*answer, "cmd") != "barrier_out") return failure{EPROTO, "the launcher says at a barrier: " + *answer};
  is_in_barrier_ = false;
  return {};
}

// The end of the barrier is not waited for: who does not come is missed, by its rank, where all connect.
status pmi_store::publish(const std::string& key, const std::string& text) {
  const std::string value = joined(text);
  if (value.size() >= longest_value_)
    return failure{EMSGSIZE, format("the launcher takes %zu bytes, and rank 0's addresses have %zu: set "
                                    "PEERLANE_LINK_RENDEZVOUS=HOST:PORT for all",
                                    longest_value_, value.size())};
  auto answer =
      ask(format("cmd=put kvsname=%s key=%s value=%s", name_space_.c_str(), key.c_str(), value.c_str()), "put_result");
  if (!answer) return answer.error();
  if (pmi_value(*answer, "rc") != "0") return failure{EIO, "the launcher keeps nothing: " + *answer};
  is_in_barrier_ = true;
  return send("cmd=barrier_in");
}

result<std::string> pmi_store::read(int rank, const std::string& key, unsigned timeout_s) {
  if (auto sent = send("cmd=barrier_in"); !sent) return sent.error();
  is_in_barrier_ = true;
  if (auto left = leave_barrier(deadline_after_ms(std::int64_t{timeout_s} * 1000)); !left) {
    is_in_barrier_ = false;  // nobody waits for it a second time
    if (left.code() != ETIMEDOUT) return left.error();
    return failure{ETIMEDOUT,
                   format("rank %d, or another one, has not come to the launcher's barrier for %u s", rank, timeout_s)};
  }
  auto answer = ask(format("cmd=get kvsname=%s key=%s", name_space_.c_str(), key.c_str()), "get_result");
  if (!answer) return answer;
  if (pmi_value(*answer, "rc") != "0")
    return failure{EIO, format("rank %d has told the launcher nothing: %s", rank, answer->c_str())};
  return parted(pmi_value(*answer, "value"));
}

}  // namespace pl::messaging
