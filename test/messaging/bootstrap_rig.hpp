// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of the test's process, the secret that they share, and visitors by hand.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/bootstrap/frame_stream.hpp"
#include "test/support/reserved_port.hpp"

namespace pl::messaging {

inline constexpr unsigned kLong = 30;

inline std::string free_port() { return std::to_string(test::free_port()); }

inline byte_string contribution(int rank, std::size_t bytes) {
  byte_string out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(rank));
  return out;
}

// "" if three exchanges of these lengths and a barrier give what they must.
inline std::string gathers(bootstrap& group, const std::vector<std::size_t>& lengths) {
  for (int turn = 0; turn < 3; ++turn) {
    auto all = group.all_gather(contribution(group.rank(), lengths[static_cast<std::size_t>(group.rank())]));
    if (!all) return all.error().message;
    if (all->size() != lengths.size()) return "another number of contributions";
    for (std::size_t source = 0; source < lengths.size(); ++source)
      if ((*all)[source] != contribution(static_cast<int>(source), lengths[source])) return "wrong bytes";
  }
  auto done = group.barrier();
  return done ? "" : done.error().message;
}

inline bootstrap_options options_of(int rank, int size, const std::string& rendezvous) {
  bootstrap_options out;
  out.rendezvous = rendezvous;
  out.rank = rank;
  out.size = size;
  out.timeout_s = kLong;
  return out;
}

inline std::string be_rank(const bootstrap_options& options, const std::vector<std::size_t>& lengths) {
  auto group = open_bootstrap(options);
  return group ? gathers(**group, lengths) : group.error().message;
}

// What the ranks say, each in a thread of its own.
inline std::vector<std::string> run(const std::vector<bootstrap_options>& ranks, const std::vector<std::size_t>& lengths) {
  std::vector<std::future<std::string>> running;
  for (const auto& one : ranks) running.push_back(std::async(std::launch::async, be_rank, one, lengths));
  std::vector<std::string> said;
  for (auto& one : running) said.push_back(one.get());
  return said;
}

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
                             "PEERLANE_LINK_RANK", "PEERLANE_LINK_SIZE", "PEERLANE_LINK_RENDEZVOUS", "SLURM_JOB_ID",
                             "PEERLANE_LINK_SECRET_FILE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"})
      unsetenv(name);
    for (const char* name : names_) unsetenv(name);
  }
  std::vector<const char*> names_;
};
// A secret for as long as it lives, and the variable that names it.
class secret_file {
 public:
  explicit secret_file(const std::string& text, mode_t mode = 0600)
      : path_(std::filesystem::temp_directory_path() /
              ("peerlane-secret." + std::to_string(getpid()) + "." + std::to_string(std::hash<std::string>{}(text)))) {
    std::ofstream(path_) << text << '\n';
    chmod(path_.c_str(), mode);
    name();
  }
  ~secret_file() {
    unsetenv("PEERLANE_LINK_SECRET_FILE");
    std::filesystem::remove(path_);
  }
  void name() const { setenv("PEERLANE_LINK_SECRET_FILE", path_.c_str(), 1); }

 private:
  std::filesystem::path path_;
};
inline const std::string kSecret = "a secret of the tests, 32 bytes long";

inline sockaddr_in loopback(const std::string& port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  out.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
  return out;
}

// A connection to that port, where somebody may listen in a while. Receives end after 4 s.
inline int connected_to(const std::string& port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const auto address = loopback(port);
  for (int i = 0; i < 200 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0; ++i)
    usleep(20'000);
  const timeval patience{4, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return fd;
}

// An end of the rendezvous that knows the protocol and no secret.
class liar {
 public:
  explicit liar(int socket) : stream_(unique_fd(real_device_io(), socket)) {}
  void say(star_frame_kind kind, std::uint32_t rank, std::size_t body_bytes) {
    star_frame_head head;
    head.kind = kind;
    head.rank = rank;
    head.nodes = 2;
    (void)stream_.send(head, std::vector<std::byte>(body_bytes, std::byte{7}), 1000);
  }
  std::optional<star_frame_kind> hear() {
    star_frame said;
    for (int i = 0; i < 500; ++i) {
      const auto got = stream_.receive(said);
      if (!got) return std::nullopt;
      if (*got) return said.head.kind;
      usleep(10'000);
    }
    return std::nullopt;
  }

 private:
  frame_stream stream_;
};
inline constexpr std::size_t kNonce = 32, kProof = 32;

}  // namespace pl::messaging
