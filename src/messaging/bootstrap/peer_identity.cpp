// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/peer_identity.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/env.hpp"
#include "base/text.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kMinSecret = 16, kMaxSecret = 4096;

struct place {
  sockaddr_storage name{};
  socklen_t length = sizeof(sockaddr_storage);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&name); }
};

// Formats an address like /proc/net/tcp and tcp6; empty: another address family. tcp6 lists IPv4 peers of IPv6 sockets as
// mapped addresses.
std::string in_table(const place& wanted, bool is_v6_table) {
  std::array<std::uint32_t, 4> address{};
  unsigned port = 0;
  if (wanted.name.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(wanted.name);
    address = {0, 0, htonl(0xffff), v4.sin_addr.s_addr};
    port = ntohs(v4.sin_port);
  } else if (wanted.name.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(wanted.name);
    std::memcpy(address.data(), &v6.sin6_addr, sizeof address);
    port = ntohs(v6.sin6_port);
    if (!is_v6_table && (address[0] != 0 || address[1] != 0 || address[2] != htonl(0xffff))) return {};
  } else {
    return {};
  }
  if (!is_v6_table) return format("%08X:%04X", address[3], port);
  return format("%08X%08X%08X%08X:%04X", address[0], address[1], address[2], address[3], port);
}

// Finds the row of the other end. It must be established, because a closed socket has no owner and shows user 0.
bool is_ours_in(const char* table, const std::string& peer, const std::string& own) {
  constexpr const char* kEstablished = "01";
  if (peer.empty() || own.empty()) return false;
  std::ifstream rows(table);
  for (std::string row; std::getline(rows, row);) {
    std::istringstream fields(row);
    std::string slot, local, remote, state, queues, timer, retransmits, timeout;
    unsigned long user = 0, inode = 0;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
    if (fields && local == peer && remote == own && state == kEstablished && inode != 0) return user == geteuid();
  }
  return false;
}

}  // namespace

bool is_same_user(int socket) {
  place own, peer;
  if (getsockname(socket, own.get(), &own.length) != 0) return false;
  if (own.name.ss_family == AF_UNIX) {
    ucred other{};
    socklen_t length = sizeof other;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 && other.uid == geteuid();
  }
  if (getpeername(socket, peer.get(), &peer.length) != 0) return false;
  return is_ours_in("/proc/net/tcp", in_table(peer, false), in_table(own, false)) ||
         is_ours_in("/proc/net/tcp6", in_table(peer, true), in_table(own, true));
}

result<std::string> read_secret() {
  const std::string path = env_read("PEERLANE_LINK_SECRET_FILE").text;
  if (path.empty()) return std::string();
  const unique_fd file(real_device_io(), open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // do not block on a FIFO
  struct stat about {};
  if (!file || fstat(file.get(), &about) != 0)
    return failure{errno, format("PEERLANE_LINK_SECRET_FILE: cannot read %s: %s", path.c_str(), errno_text(errno).c_str())};
  if ((about.st_mode & 077) != 0)
    return failure{EACCES,
                   format("PEERLANE_LINK_SECRET_FILE: other users can read or write %s, so it is not secret: chmod 600 %s "
                          "after making a new one",
                          path.c_str(), path.c_str())};
  std::string text(kMaxSecret + 1, '\0');
  const auto got = S_ISREG(about.st_mode) ? pread(file.get(), text.data(), text.size(), 0) : -1;
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() < kMinSecret || text.size() > kMaxSecret)
    return failure{EINVAL,
                   format("PEERLANE_LINK_SECRET_FILE: %s must hold %zu to %zu bytes that nobody can guess: (umask 077; "
                          "head -c 32 /dev/urandom | base64 > %s)",
                          path.c_str(), kMinSecret, kMaxSecret, path.c_str())};
  return text;
}

result<nonce> make_nonce() {
  nonce out;
  for (std::size_t done = 0; done != out.size();) {
    const auto got = getrandom(out.data() + done, out.size() - done, 0);
    if (got < 0 && errno != EINTR) return failure{errno, "the kernel provides no random bytes: " + errno_text(errno)};
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return out;
}

digest prove(prover side, const std::string& secret, const nonce& of_rank_0, const nonce& of_joining,
             std::span<const std::byte> hello) {
  constexpr std::string_view kLabel = "peerlane rendezvous 1 ";
  std::vector<std::byte> text;
  const auto add = [&](std::span<const std::byte> part) { text.insert(text.end(), part.begin(), part.end()); };
  add(std::as_bytes(std::span(kLabel)));
  text.push_back(static_cast<std::byte>(side));
  add(of_rank_0);
  add(of_joining);
  add(hello);
  return hmac_sha256(secret, text);
}

}  // namespace pl::messaging
