// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/pmi_store.hpp"

#include <link.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/deadline.hpp"
#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kMaxValue2 = 1024;  // PMI 2, including the terminating zero of its C interface

failure not_spoken(const std::string& reason) { return {ENOSYS, "the launcher's PMI_FD cannot be used: " + reason}; }

// Values of PMI 1 are words in a line, so they cannot contain blanks.
std::string joined(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}
std::string parted(std::string text) {
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

// Result of the initialisation in this process, which the launcher may not allow a second time.
struct session {
  ino_t inode = 0;
  int version = 1;
  std::string name_space;
  std::size_t longest_value = 0;
};
std::optional<session>& agreed() {
  static std::optional<session> one;
  return one;
}

ino_t inode_of(int socket) {
  struct stat about {};
  return fstat(socket, &about) == 0 && S_ISSOCK(about.st_mode) ? about.st_ino : 0;
}

// If a process has used the launcher's socket and ends without `finalize`, the launcher assumes that it has died, and ends
// the job. Nothing is sent if an MPI library has already finalised and closed the socket, because the descriptor number may
// belong to another file by then.
void leave_at_exit(int socket, int version) {
  static int left_socket = -1, left_version = 1;
  static pid_t owner = 0;
  static ino_t inode = 0;
  if (left_socket >= 0) return;
  left_socket = socket;
  left_version = version;
  owner = getpid();
  inode = inode_of(socket);
  std::atexit([] {
    if (getpid() != owner || inode_of(left_socket) != inode) return;
    pmi_connection last(left_socket);
    last.use_version(left_version);
    if (!last.send("finalize")) return;
    char answer[64];
    pollfd ready{left_socket, POLLIN, 0};
    if (poll(&ready, 1, 1000) > 0) static_cast<void>(recv(left_socket, answer, sizeof answer, MSG_DONTWAIT));
  });
}

bool is_slurm() { return env_read("SLURM_STEP_ID").is_set && env_read("PMI_JOBID").is_set; }

// libmpi.so.40, libmpich.so.12, libmpi_cray.so.12 ...
bool has_mpi() {
  return dl_iterate_phdr(
             [](dl_phdr_info* each, std::size_t, void*) {
               const char* const slash = std::strrchr(each->dlpi_name, '/');
               const std::string name = slash == nullptr ? each->dlpi_name : slash + 1;
               return name.rfind("libmpi", 0) == 0 ? 1 : 0;
             },
             nullptr) != 0;
}

}  // namespace

bool pmi_store::is_offered() { return env_read("PMI_FD").is_set && env_read("PMI_RANK").is_set; }

result<std::unique_ptr<pmi_store>> pmi_store::open() {
  const auto descriptor = parse_integer(env_read("PMI_FD").text), rank = parse_integer(env_read("PMI_RANK").text);
  const bool is_number = descriptor && *descriptor >= 0 && *descriptor < (1 << 20) && rank && *rank >= 0;
  const ino_t inode = is_number ? inode_of(static_cast<int>(*descriptor)) : 0;
  if (inode == 0)
    return not_spoken(
        format("%s is not an open socket of this process (was it closed, or was the variable set for another program?)",
               env_read("PMI_FD").text.c_str()));
  const int socket = static_cast<int>(*descriptor);
  std::unique_ptr<pmi_store> made(new pmi_store(socket, static_cast<int>(*rank)));
  if (const auto& known = agreed(); known && known->inode == inode) {
    made->connection_.use_version(known->version);
    made->name_space_ = known->name_space;
    made->longest_value_ = known->longest_value;
    return made;
  }
  if (is_slurm() && env_read("PEERLANE_LINK_SECRET_FILE").is_set)
    return not_spoken("PEERLANE_LINK_SECRET_FILE is set, with which Slurm's variables are enough");
  if (is_slurm() && has_mpi())
    return not_spoken(
        "Slurm lets one user have it, and this process has an MPI: set PEERLANE_LINK_SECRET_FILE for all ranks, "
        "or start by srun --mpi=pmix");
  // Try the native version of the launcher first; it supports the other one as an addition.
  const int first = is_slurm() ? 2 : 1;
  auto begun = made->begin(first);
  if (!begun && begun.code() == EPROTONOSUPPORT) begun = made->begin(3 - first);
  if (!begun) return not_spoken(begun.error().message);
  agreed() = session{inode, made->connection_.version(), made->name_space_, made->longest_value_};
  leave_at_exit(socket, made->connection_.version());
  return made;
}

// EPROTONOSUPPORT: the launcher does not support this version.
status pmi_store::begin(int version) {
  const std::string number = std::to_string(version), minor = version == 1 ? "1" : "0";
  auto answer = connection_.ask("init", {{"pmi_version", number}, {"pmi_subversion", minor}}, "response_to_init");
  if (!answer) return std::move(answer).error();
  const std::string spoken = connection_.value(*answer, "pmi_version");
  if (connection_.value(*answer, "rc") != "0" || (!spoken.empty() && spoken != number))
    return failure{EPROTONOSUPPORT, format("it does not speak PMI %d: %s", version, answer->c_str())};
  return version == 1 ? begin_lines() : begin_messages();
}

status pmi_store::begin_lines() {
  auto answer = connection_.ask("get_maxes", {}, "maxes");
  if (!answer) return std::move(answer).error();
  longest_value_ = static_cast<std::size_t>(
      std::max<std::int64_t>(parse_integer(connection_.value(*answer, "vallen_max")).value_or(0), 0));
  answer = connection_.ask("get_my_kvsname", {}, "my_kvsname");
  if (!answer) return std::move(answer).error();
  name_space_ = connection_.value(*answer, "kvsname");
  return name_space_.empty() ? status(failure{EPROTO, "its answer names no key-value space: " + *answer}) : status();
}

status pmi_store::begin_messages() {
  connection_.use_version(2);
  auto answer = connection_.ask(
      "fullinit", {{"pmijobid", env_read("PMI_JOBID").text}, {"pmirank", std::to_string(rank_)}, {"threaded", "FALSE"}},
      "fullinit-response");
  if (!answer) return std::move(answer).error();
  if (connection_.value(*answer, "rc") != "0") return failure{EPROTO, "it lets this process not begin: " + *answer};
  if (const auto rank = connection_.value(*answer, "rank"); rank != std::to_string(rank_))
    return failure{EPROTO, format("it says that rank %d is rank \"%s\"", rank_, rank.substr(0, 20).c_str())};
  longest_value_ = kMaxValue2;
  return {};
}

// The others reach the same barrier at the latest when they connect, so it ends by then.
pmi_store::~pmi_store() {
  constexpr unsigned kLastMs = 1000;
  if (is_in_barrier_) static_cast<void>(leave_barrier(deadline_after_ms(kLastMs)));
}

status pmi_store::enter_barrier() {
  is_in_barrier_ = true;
  return connection_.send(connection_.version() == 1 ? "barrier_in" : "kvs-fence");
}

status pmi_store::leave_barrier(std::uint64_t deadline_ns) {
  auto answer = connection_.receive(deadline_ns);
  if (!answer) return answer.error();
  const bool is_lines = connection_.version() == 1;
  const std::string code = connection_.value(*answer, "rc");
  if (connection_.value(*answer, "cmd") != (is_lines ? "barrier_out" : "kvs-fence-response") || (!is_lines && code != "0"))
    return failure{EPROTO, "the launcher says at a barrier: " + *answer};
  is_in_barrier_ = false;
  return {};
}

// Does not wait for the end of the barrier: a missing rank is detected, and named, when all ranks connect.
status pmi_store::publish(const std::string& key, const std::string& text) {
  if (text.size() >= longest_value_)
    return failure{EMSGSIZE, format("the launcher takes %zu bytes, and rank 0's addresses have %zu: set "
                                    "PEERLANE_LINK_RENDEZVOUS=HOST:PORT for all",
                                    longest_value_, text.size())};
  auto answer = connection_.version() == 1
                    ? connection_.ask("put", {{"kvsname", name_space_}, {"key", key}, {"value", joined(text)}}, "put_result")
                    : connection_.ask("kvs-put", {{"key", key}, {"value", text}}, "kvs-put-response");
  if (!answer) return answer.error();
  if (connection_.value(*answer, "rc") != "0") return failure{EIO, "the launcher keeps nothing: " + *answer};
  return enter_barrier();
}

result<std::string> pmi_store::read(int rank, const std::string& key, unsigned timeout_s) {
  if (auto sent = enter_barrier(); !sent) return sent.error();
  if (auto left = leave_barrier(deadline_after_ms(std::int64_t{timeout_s} * 1000)); !left) {
    is_in_barrier_ = false;  // do not wait for it again
    if (left.code() != ETIMEDOUT) return left.error();
    return failure{ETIMEDOUT,
                   format("rank %d, or another rank, has not reached the launcher's barrier within %u s", rank, timeout_s)};
  }
  const bool is_lines = connection_.version() == 1;
  // -1: no hint which process has published the key, as PMI 2 allows.
  auto answer = is_lines ? connection_.ask("get", {{"kvsname", name_space_}, {"key", key}}, "get_result")
                         : connection_.ask("kvs-get", {{"jobid", env_read("PMI_JOBID").text}, {"srcid", "-1"}, {"key", key}},
                                           "kvs-get-response");
  if (!answer) return answer;
  if (connection_.value(*answer, "rc") != "0" || (!is_lines && connection_.value(*answer, "found") != "TRUE"))
    return failure{EIO, format("rank %d has published nothing at the launcher: %s", rank, answer->c_str())};
  const std::string value = connection_.value(*answer, "value");
  return is_lines ? parted(value) : value;
}

}  // namespace pl::messaging
