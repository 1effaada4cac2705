// SPDX-License-Identifier: Apache-2.0
#include "os/descriptor_message.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

namespace pl {
namespace {

// More than any of our messages has, so that additional ones are seen and closed.
constexpr std::size_t kMaxDescriptors = 8;

}  // namespace

ssize_t send_with_descriptor(int socket, std::span<const std::byte> bytes, int fd, int flags) noexcept {
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  return sendmsg(socket, &message, flags | MSG_NOSIGNAL);
}

received_bytes receive_with_descriptor(int socket, std::span<std::byte> bytes, int flags) noexcept {
  iovec piece{bytes.data(), bytes.size()};
  alignas(cmsghdr) char room[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  received_bytes out;
  out.bytes = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  if (out.bytes < 0) return out;
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t place = 0; CMSG_LEN(place + sizeof(int)) <= one->cmsg_len; place += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(one) + place, sizeof fd);
      out.fd = unique_fd(real_device_io(), fd);  // closes the previous one
      ++out.descriptors;
    }
  }
  out.has_lost_some = (message.msg_flags & MSG_CTRUNC) != 0;
  return out;
}

}  // namespace pl
