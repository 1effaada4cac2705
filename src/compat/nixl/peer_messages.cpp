// SPDX-License-Identifier: Apache-2.0
#include "compat/nixl/peer_messages.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>
#include <random>
#include <utility>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "os/abstract_address.hpp"

namespace pl::nixl {
namespace {

constexpr std::uint32_t kMagic = 0x314e4c50;  // "PLN1"
constexpr const char* kFormat = "peerlane-nixl-1";

failure lost(const char* action, int code) {
  if (code == EAGAIN || code == EWOULDBLOCK)
    return {ETIMEDOUT, format("the other agent %s nothing for %d s", action, kTimeoutMs / 1000)};
  return {code, format("the connection to the other agent has ended: %s", errno_text(code).c_str())};
}

status send_all(int socket, const char* bytes, std::size_t count, int flags) {
  while (count != 0) {
    const ssize_t sent = send(socket, bytes, count, MSG_NOSIGNAL | flags);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return lost("takes", errno);
    bytes += sent;
    count -= static_cast<std::size_t>(sent);
  }
  return {};
}

// The limit applies to a whole message: sending a byte now and then does not hold the reader.
std::uint64_t deadline_ns() { return monotonic_ns() + std::uint64_t{kTimeoutMs} * 1'000'000; }

status receive_all(int socket, char* bytes, std::size_t count, std::uint64_t end_ns) {
  while (count != 0) {
    if (monotonic_ns() > end_ns) return lost("sends", EAGAIN);
    const ssize_t got = recv(socket, bytes, count, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return lost("sends", errno);
    if (got == 0) return failure{EPIPE, "the other agent has closed the connection"};
    bytes += got;
    count -= static_cast<std::size_t>(got);
  }
  return {};
}

result<unique_fd> make_socket() {
  unique_fd made(real_device_io(), socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!made) return failure{errno, format("no unix socket: %s", errno_text(errno).c_str())};
  return made;
}

std::string read_word(const char* file) {
  unique_fd opened(real_device_io(), open(file, O_RDONLY | O_CLOEXEC));
  char text[64] = {};
  const ssize_t got = opened ? read(opened.get(), text, sizeof text) : 0;
  std::string out(text, got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace

void limit_waits(int socket) {
  const timeval limit{kTimeoutMs / 1000, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

status send_message(int socket, message type, std::uint64_t id, std::int32_t code, std::span<const char> payload) {
  const frame head{kMagic, type, id, code, 0, payload.size()};
  const auto* const bytes = reinterpret_cast<const char*>(&head);
  if (auto sent = send_all(socket, bytes, sizeof head, payload.empty() ? 0 : MSG_MORE); !sent) return sent;
  return send_all(socket, payload.data(), payload.size(), 0);
}

result<received> receive_message(int socket, std::uint64_t max_payload_bytes) {
  constexpr std::size_t kPartBytes = 4 << 20;  // only received bytes take memory, not an announced length
  received out;
  std::uint64_t end_ns = deadline_ns();
  if (auto got = receive_all(socket, reinterpret_cast<char*>(&out.head), sizeof out.head, end_ns); !got) return got.error();
  if (out.head.magic != kMagic || out.head.payload_bytes > max_payload_bytes)
    return failure{EPROTO, "received data that is not a message of a NIXL agent with this backend"};
  end_ns = deadline_ns();
  try {
    while (out.payload.size() < out.head.payload_bytes) {
      const std::size_t have = out.payload.size();
      out.payload.resize(have + std::min<std::uint64_t>(kPartBytes, out.head.payload_bytes - have));
      if (auto got = receive_all(socket, out.payload.data() + have, out.payload.size() - have, end_ns); !got)
        return got.error();
    }
  } catch (const std::bad_alloc&) {
    return failure{ENOMEM, "memory is exhausted: a message of another agent was not taken"};
  }
  return out;
}

std::string encode_message(message type, std::uint64_t id, std::int32_t code, std::span<const char> payload) {
  const frame head{kMagic, type, id, code, 0, payload.size()};
  std::string out(reinterpret_cast<const char*>(&head), sizeof head);
  return out.append(payload.data(), payload.size());
}

status send_part(int socket, std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t sent = send(socket, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent < 0) return lost("takes", errno);
    done += static_cast<std::size_t>(sent);
  }
  bytes.erase(0, done);
  return {};
}

result<std::optional<received>> receive_part(int socket, std::string& begun, std::uint64_t max_payload_bytes) {
  constexpr std::uint64_t kPartBytes = 64 << 10;
  constexpr int kMaxParts = 16;  // then the others have their turn
  try {
    for (int parts = 0;; ++parts) {
      std::uint64_t whole = sizeof(frame);
      frame head;
      if (begun.size() >= sizeof head) {
        std::memcpy(&head, begun.data(), sizeof head);
        if (head.magic != kMagic || head.payload_bytes > max_payload_bytes)
          return failure{EPROTO, "received data that is not a message of a NIXL agent with this backend"};
        whole += head.payload_bytes;
        if (begun.size() == whole) {
          std::string all = std::exchange(begun, {});
          all.erase(0, sizeof head);
          return std::optional(received{head, std::move(all)});
        }
      }
      if (parts == kMaxParts) break;
      const std::size_t have = begun.size();
      begun.resize(have + std::min(kPartBytes, whole - have));
      const ssize_t got = recv(socket, begun.data() + have, begun.size() - have, MSG_DONTWAIT);
      const int code = errno;
      begun.resize(have + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      if (got < 0 && code == EINTR) continue;
      if (got < 0 && (code == EAGAIN || code == EWOULDBLOCK)) break;
      if (got < 0) return lost("sends", code);
      if (got == 0) return failure{EPIPE, "the other agent has closed the connection"};
    }
    return std::optional<received>();
  } catch (const std::bad_alloc&) {
    return failure{ENOMEM, "memory is exhausted: a message of another agent was not taken"};
  }
}

// Also used for a secret: without random bytes it throws.
std::string random_text() {
  std::random_device random;
  std::string out;
  for (int word = 0; word < 4; ++word) out += format("%08x", random());
  return out;
}

std::string this_process() {
  static const std::string made = random_text();
  return made;
}

std::string this_host() {
  struct stat network {};
  stat("/proc/self/ns/net", &network);
  return format("%s/%llu", read_word("/proc/sys/kernel/random/boot_id").c_str(),
                static_cast<unsigned long long>(network.st_ino));
}

std::string address::text() const {
  return format("%s %s %s %s %s", kFormat, host.c_str(), socket.c_str(), secret.c_str(), process.c_str());
}

result<address> address::parse(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char one : text) {
    if (one == ' ') words.emplace_back();
    else words.back() += one;
  }
  if (words.size() != 5 || words[0] != kFormat)
    return failure{EPROTO, "the agent's metadata is from another version of this backend: update Peerlane on both sides"};
  return address{words[1], words[2], words[3], words[4]};
}

result<unique_fd> listen_at(const std::string& name) {
  auto made = make_socket();
  if (!made) return made;
  const abstract_address place(name);
  if (bind(made->get(), place.get(), place.size) != 0 || listen(made->get(), 128) != 0)
    return failure{errno, format("no socket for other agents: %s", errno_text(errno).c_str())};
  return made;
}

std::optional<int> peer_process(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return {};
  if (credentials.uid != geteuid() && credentials.uid != 0 && geteuid() != 0) return {};
  return credentials.pid;
}

result<unique_fd> connect_to(const std::string& name) {
  auto made = make_socket();
  if (!made) return made;
  limit_waits(made->get());
  const abstract_address place(name);
  if (connect(made->get(), place.get(), place.size) != 0)
    return failure{
        errno, format("the agent's socket is gone (%s): it has ended, or its metadata is old", errno_text(errno).c_str())};
  if (!peer_process(made->get()))
    return failure{EACCES, "the agent is another user's: memory is handed to one's own processes"};
  return made;
}

}  // namespace pl::nixl
