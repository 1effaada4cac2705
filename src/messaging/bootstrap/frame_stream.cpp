// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/frame_stream.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <utility>

#include "base/attended_time.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

// Returns the number of bytes read; 0: would block; -1: the connection is gone, errno is set.
ssize_t read_some(int fd, void* destination, std::size_t bytes) {
  const ssize_t got = recv(fd, destination, bytes, MSG_DONTWAIT);
  if (got > 0) return got;
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (got == 0) errno = ECONNRESET;
  return -1;
}

status check_head(const star_frame_head& head, std::size_t max_body) {
  if (head.magic != kFrameMagic) return failure{EPROTO, "received data that is not from a Peerlane process"};
  if (head.length > max_body) return failure{EPROTO, "a frame of impossible length"};
  return {};
}

}  // namespace

status frame_stream::send(star_frame_head head, std::span<const std::byte> body, unsigned timeout_ms) {
  head.length = body.size();
  const std::chrono::milliseconds limit(timeout_ms);
  attended_time unmoved;
  std::size_t done = 0;
  while (done < sizeof head + body.size()) {
    const bool in_head = done < sizeof head;
    iovec pieces[2] = {{reinterpret_cast<std::byte*>(&head) + (in_head ? done : 0), in_head ? sizeof head - done : 0},
                       {const_cast<std::byte*>(body.data()) + (in_head ? 0 : done - sizeof head),
                        body.size() - (in_head ? 0 : done - sizeof head)}};
    msghdr message{};
    message.msg_iov = in_head ? pieces : pieces + 1;
    message.msg_iovlen = in_head ? 2 : 1;
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      done += static_cast<std::size_t>(sent);
      continue;
    }
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return failure{ECONNRESET, errno_text(errno)};
    if (unmoved.has_reached(limit)) return failure{ETIMEDOUT, "nothing is taken"};
    pollfd ready{socket_.get(), POLLOUT, 0};
    poll(&ready, 1, static_cast<int>(unmoved.next_poll(limit).count()));
  }
  return {};
}

result<bool> frame_stream::receive(star_frame& out) {
  for (;;) {
    if (have_ == sizeof partial_.head + partial_.head.length && have_ >= sizeof partial_.head) break;
    std::byte* destination = have_ < sizeof partial_.head ? reinterpret_cast<std::byte*>(&partial_.head) + have_
                                                          : partial_.body.data() + (have_ - sizeof partial_.head);
    const std::size_t end =
        have_ < sizeof partial_.head ? sizeof partial_.head : sizeof partial_.head + partial_.body.size();
    const ssize_t got = read_some(socket_.get(), destination, end - have_);
    if (got < 0) return failure{ECONNRESET, errno == ECONNRESET ? "its connection was closed" : errno_text(errno)};
    if (got == 0) return false;
    have_ += static_cast<std::size_t>(got);
    if (have_ != sizeof partial_.head) continue;
    if (auto fine = check_head(partial_.head, max_body_); !fine) return fine.error();
    partial_.body.resize(partial_.head.length);
  }
  out = std::exchange(partial_, {});
  have_ = 0;
  return true;
}

}  // namespace pl::messaging
