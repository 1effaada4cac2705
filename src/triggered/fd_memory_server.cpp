// SPDX-License-Identifier: Apache-2.0
#include "triggered/fd_memory_server.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/text.hpp"
#include "messaging/bootstrap/endpoint.hpp"
#include "os/blocked_signals.hpp"

namespace pl::triggered {
namespace {

constexpr int kBacklog = 64;
// Visitors at a time, and how long each has for its question: who asks nothing holds nobody up.
constexpr std::size_t kMaxConnections = 64;
constexpr std::uint64_t kTimeoutNs = 1'000'000'000;

struct question {
  std::uint64_t secret = 0;
  std::uint32_t number = 0, reserved = 0;
};

struct reply {
  std::int32_t code = 0;  // 0: a region follows
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0, bytes = 0;
  char reason[232] = {};
};

messaging::endpoint endpoint_of(const fd_memory_server::name& owner) {
  return messaging::local_endpoint(format("triggered-memory-%016llx", static_cast<unsigned long long>(owner.place)));
}

template <class T>
bool send_whole(int socket, const T& message) {
  ssize_t sent = 0;
  do sent = ::send(socket, &message, sizeof message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof message);  // far less than a socket's buffer
}

template <class T>
bool receive_whole(int socket, T& message, int limit_ms) {
  auto* const bytes = reinterpret_cast<char*>(&message);
  const std::uint64_t deadline_ns = deadline_after_ms(limit_ms);  // of all its bytes
  for (std::size_t done = 0; done < sizeof message;) {
    pollfd asked{socket, POLLIN, 0};
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) return false;
    const int ready = ::poll(&asked, 1, static_cast<int>((deadline_ns - now_ns) / 1'000'000) + 1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t got = ::recv(socket, bytes + done, sizeof message - done, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

// Who has connected, and what has come of its question.
struct fd_memory_server::joining_process {
  unique_fd socket;
  std::uint64_t since_ns = 0;
  question asked;
  std::size_t have_bytes = 0;
  bool is_over = false;
};

result<std::unique_ptr<fd_memory_server>> fd_memory_server::open(lookup find) {
  name own;
  if (getrandom(&own, sizeof own, 0) != static_cast<ssize_t>(sizeof own))
    return failure{EIO, "no random numbers for a secret: getrandom has failed"};
  std::unique_ptr<fd_memory_server> made(new fd_memory_server(std::move(find), own));
  auto listener = messaging::listen_at(endpoint_of(own), kBacklog);
  if (!listener) return listener.error();
  made->listener_ = std::move(*listener);
  made->stop_ = unique_fd(real_device_io(), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made->stop_) return failure{errno, "no descriptor to stop a thread by: " + errno_text(errno)};
  auto started = try_start_thread("gives memory to peers", [self = made.get()] { self->run(); });
  if (!started) return started.error();
  made->thread_ = *std::move(started);
  return made;
}

fd_memory_server::~fd_memory_server() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {}
  thread_.join();
}

void fd_memory_server::run() {
  constexpr int kPollIntervalMs = 100;
  pthread_setname_np(pthread_self(), "pl-handover");
  std::vector<joining_process> connections;
  std::vector<pollfd> asked;
  for (;;) {
    const bool is_full = connections.size() == kMaxConnections;
    asked.assign({{stop_.get(), POLLIN, 0}, {is_full ? -1 : listener_.get(), POLLIN, 0}});
    for (const joining_process& one : connections) asked.push_back({one.socket.get(), POLLIN, 0});
    if (::poll(asked.data(), asked.size(), connections.empty() ? -1 : kPollIntervalMs) < 0 && errno != EINTR) return;
    if (asked[0].revents != 0) return;
    for (std::size_t i = 0; i < connections.size(); ++i)
      if (asked[2 + i].revents != 0) listen(connections[i]);
    const std::uint64_t now_ns = monotonic_ns();
    std::erase_if(connections,
                  [now_ns](const joining_process& one) { return one.is_over || now_ns - one.since_ns > kTimeoutNs; });
    if (asked[1].revents == 0) continue;
    joining_process made{
        unique_fd(real_device_io(), ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)), now_ns, {}, 0, false};
    if (!made.socket && (errno == EMFILE || errno == ENFILE)) usleep(10'000);  // it stays readable
    if (made.socket && messaging::is_same_user(made.socket.get())) connections.push_back(std::move(made));
  }
}

// Without waiting.
void fd_memory_server::listen(joining_process& guest) const {
  const ssize_t got = ::recv(guest.socket.get(), reinterpret_cast<char*>(&guest.asked) + guest.have_bytes,
                             sizeof guest.asked - guest.have_bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  guest.have_bytes += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  guest.is_over = got <= 0 || guest.have_bytes == sizeof guest.asked;
  if (guest.have_bytes == sizeof guest.asked && guest.asked.secret == name_.secret)
    answer(guest.socket.get(), guest.asked.number);
}

void fd_memory_server::answer(int socket, std::uint32_t number) const {
  auto found = find_(number);
  reply out;
  if (found) {
    out.offset = found->offset;
    out.bytes = found->bytes;
  } else {
    out.code = found.code();
    std::strncpy(out.reason, found.error().message.c_str(), sizeof out.reason - 1);
  }
  if (send_whole(socket, out) && found) static_cast<void>(dma::send_region(socket, found->region));
}

result<fd_memory> fd_memory_server::fetch(const name& owner, std::uint32_t number, std::chrono::milliseconds limit) {
  const int limit_ms = static_cast<int>(std::min<std::chrono::milliseconds::rep>(limit.count(), 1 << 30));
  auto socket = messaging::connect_to(endpoint_of(owner), static_cast<unsigned>(limit_ms));
  if (!socket) return socket.error();
  reply got;
  if (!send_whole(socket->get(), question{owner.secret, number, 0}) || !receive_whole(socket->get(), got, limit_ms))
    return failure{ETIMEDOUT, "the peer did not share its memory: it has ended, or does not answer"};
  if (got.code != 0) {
    got.reason[sizeof got.reason - 1] = '\0';
    return failure{got.code, got.reason};
  }
  auto region = dma::receive_region(socket->get(), limit_ms);
  if (!region) return region.error();
  if (got.offset > region->size_bytes || got.bytes > region->size_bytes - got.offset)
    return failure{EPROTO, "what the peer handed over is less than it said"};
  return fd_memory{std::move(*region), got.offset, got.bytes};
}

}  // namespace pl::triggered
