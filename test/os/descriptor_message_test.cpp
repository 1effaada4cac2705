// SPDX-License-Identifier: Apache-2.0
#include "os/descriptor_message.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "test/support/descriptor_count.hpp"

namespace pl {
namespace {

class DescriptorMessage : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0); }
  void TearDown() override {
    for (const int one : ends_) ::close(one);
  }
  // As a hostile sender may: several in one message.
  void send_many(std::size_t count) {
    std::array<int, 64> all{};
    all.fill(ends_[0]);
    char byte = 'x';
    iovec piece{&byte, 1};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof all)] = {};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(rights), all.data(), count * sizeof(int));
    ASSERT_EQ(sendmsg(ends_[1], &message, 0), 1);
  }

  int ends_[2] = {-1, -1};
  std::array<std::byte, 16> bytes_{};
};

TEST_F(DescriptorMessage, ArrivesWithItsBytesAndIsCloseOnExec) {
  const std::array<std::byte, 3> sent{std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_EQ(send_with_descriptor(ends_[1], sent, ends_[1]), 3);
  const auto got = receive_with_descriptor(ends_[0], bytes_);
  ASSERT_EQ(got.bytes, 3);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), bytes_.begin()));
  ASSERT_EQ(got.descriptors, 1u);
  EXPECT_FALSE(got.has_lost_some);
  EXPECT_EQ(fcntl(got.fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(DescriptorMessage, OfManyThatComeNoneStays) {
  const int before = test::open_descriptor_count();
  for (const std::size_t count : {2u, 8u, 9u, 40u}) {
    send_many(count);
    const auto got = receive_with_descriptor(ends_[0], bytes_);
    EXPECT_EQ(got.bytes, 1);
    EXPECT_GE(got.descriptors, 2u) << count;
    EXPECT_EQ(got.has_lost_some, got.descriptors < count);
    EXPECT_EQ(test::open_descriptor_count(), before + 1) << count;  // the last one
  }
  EXPECT_EQ(test::open_descriptor_count(), before);
}

TEST_F(DescriptorMessage, AnEmptySocketAndAClosedOneSaySo) {
  EXPECT_EQ(receive_with_descriptor(ends_[0], bytes_, MSG_DONTWAIT).bytes, -1);
  EXPECT_EQ(errno, EAGAIN);
  ::close(std::exchange(ends_[1], -1));
  EXPECT_EQ(receive_with_descriptor(ends_[0], bytes_).bytes, 0);
  const std::byte one{1};
  EXPECT_EQ(send_with_descriptor(ends_[0], {&one, 1}, ends_[0]), -1);
  EXPECT_EQ(errno, EPIPE);  // and no SIGPIPE
}

}  // namespace
}  // namespace pl
