// SPDX-License-Identifier: Apache-2.0
// Isolation between processes, with real ones, through the shared library: fork at each step of a life, descriptors sent
// over a socket, exec, descriptors closed by the application. What another process tries must fail with EACCES (or
// find nothing), and the owner must not notice.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>

#include "test/e2e/process.hpp"

namespace pl::test {
namespace {

constexpr std::size_t kBytes = 4 << 20;

class isolation : public testing::Test {
 protected:
  void SetUp() override {
    simulated_cuda();
    context_ = std::make_unique<current_device>(0);
    memory_ = std::make_unique<device_buffer>(kBytes);
    device_ = memory_->pointer();
    set_device_bytes(device_, std::vector<unsigned char>(kBytes, 0x21));
  }
  std::unique_ptr<current_device> context_;
  std::unique_ptr<device_buffer> memory_;
  std::uint64_t device_ = 0;
};

struct objects {
  gdr_t g;
  gdr_mh_t handle;
  void* va;
};

// Every call a child can make on its parent's objects; the line of the first that was not refused, 0 if all were.
// `handle_is_live`: a handle that the parent never had or has released is EINVAL in a child too, where it is looked at
// alone.
int child_is_refused(const objects& parents, std::uint64_t device, bool handle_is_live) {
  const int of_handle = handle_is_live ? EACCES : EINVAL;
  gdr_mh_t handle{7};
  gdr_info_t info;
  void* va = nullptr;
  char byte = 0;
  int value = 0, minor = 0;
  if (gdr_pin_buffer(parents.g, device, 65536, 0, 0, &handle) != EACCES || handle.h != 0) return 1;
  if (gdr_pin_buffer_v2(parents.g, device, 65536, 1, &handle) != EACCES || handle.h != 0) return 2;
  if (gdr_map(parents.g, parents.handle, &va, 65536) != EACCES) return 3;
  if (gdr_map_v2(parents.g, parents.handle, &va, 65536, 1) != EACCES) return 4;
  if (gdr_unmap(parents.g, parents.handle, parents.va, 65536) != EACCES) return 5;
  if (gdr_get_info(parents.g, parents.handle, &info) != EACCES) return 6;
  if (gdr_get_callback_flag(parents.g, parents.handle, &value) != EACCES) return 7;
  if (gdr_get_attribute(parents.g, GDR_ATTR_USE_PERSISTENT_MAPPING, &value) != EACCES) return 8;
  if (gdr_driver_get_version(parents.g, &value, &minor) != EACCES) return 9;
  if (gdr_copy_to_mapping(parents.handle, parents.va, "x", 1) != of_handle) return 10;
  if (gdr_copy_from_mapping(parents.handle, &byte, parents.va, 1) != of_handle) return 11;
  if (gdr_copy_to_mapping_unfenced(parents.handle, parents.va, "x", 1) != of_handle) return 12;
  if (gdr_flush_mapping(parents.handle) != of_handle) return 13;
  if (gdr_unpin_buffer(parents.g, parents.handle) != EACCES) return 14;
  if (gdr_close(parents.g) != EACCES) return 15;
  if (handle_is_live && std::strstr(gdr_last_error(), "another process") == nullptr) return 16;
  // A session of the child's own does not make the parent's objects any better.
  gdr_t own = gdr_open();
  if (own == nullptr) return 17;
  if (gdr_close(parents.g) != EACCES || gdr_map(own, parents.handle, &va, 65536) == 0) return 18;
  if (gdr_copy_to_mapping(parents.handle, parents.va, "x", 1) != of_handle) return 19;
  if (gdr_unpin_buffer(own, parents.handle) == 0) return 20;
  return gdr_close(own) == 0 ? 0 : 21;
}

TEST_F(isolation, AForkedChildIsRefusedAtEachStep) {
  objects o{gdr_open(), {}, nullptr};
  ASSERT_NE(o.g, nullptr);
  EXPECT_EQ(in_child([&] { return child_is_refused(o, device_, false); }), 0) << "after open";
  ASSERT_EQ(gdr_pin_buffer(o.g, device_, 65536, 0, 0, &o.handle), 0);
  EXPECT_EQ(in_child([&] { return child_is_refused(o, device_, true); }), 0) << "after pin";
  ASSERT_EQ(gdr_map(o.g, o.handle, &o.va, 65536), 0);
  EXPECT_EQ(in_child([&] { return child_is_refused(o, device_, true); }), 0) << "after map";
  EXPECT_EQ(in_child([&] { return *static_cast<volatile char*>(o.va) == 0x21 ? 1 : 2; }), kKilled + SIGSEGV)
      << "the mapping was inherited";
  EXPECT_EQ(in_child([&] {
              *static_cast<volatile char*>(o.va) = 1;
              return 0;
            }),
            kKilled + SIGSEGV);
  EXPECT_EQ(gdr_copy_to_mapping(o.handle, o.va, "parent", 6), 0);
  EXPECT_EQ(std::memcmp(device_bytes(device_, 6).data(), "parent", 6), 0) << "the parent's mapping must go on";
  ASSERT_EQ(gdr_unmap(o.g, o.handle, o.va, 65536), 0);
  EXPECT_EQ(in_child([&] { return child_is_refused(o, device_, true); }), 0) << "after unmap";
  ASSERT_EQ(gdr_unpin_buffer(o.g, o.handle), 0);
  EXPECT_EQ(in_child([&] { return child_is_refused(o, device_, false); }), 0) << "after unpin";
  EXPECT_EQ(whole_life(o.g, device_, 65536, 1), 0) << "what the children tried must not have changed anything";
  EXPECT_EQ(gdr_close(o.g), 0);
}

TEST_F(isolation, AGrandchildToo) {
  objects o{gdr_open(), {}, nullptr};
  ASSERT_EQ(gdr_pin_buffer(o.g, device_, 65536, 0, 0, &o.handle), 0);
  ASSERT_EQ(gdr_map(o.g, o.handle, &o.va, 65536), 0);
  EXPECT_EQ(in_child([&] {
              gdr_t childs = gdr_open();
              if (childs == nullptr) return 100;
              const int answer = in_child([&] {
                if (gdr_close(childs) != EACCES) return 101;
                return child_is_refused(o, device_, true);
              });
              return answer != 0 ? answer : gdr_close(childs);
            }),
            0);
  EXPECT_EQ(gdr_close(o.g), 0);
}

// The usual way of a launcher: fork before anything, each process opens for itself. The sim's CUDA is initialised in this
// process, and like the real one it is no use to a child; so the child is a fresh program.
TEST_F(isolation, AProcessOfItsOwnWorksBesideThisOne) {
  gdr_t g = gdr_open();
  ASSERT_NE(g, nullptr);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execl(PL_LIFE_PROGRAM, PL_LIFE_PROGRAM, "0", "20", static_cast<char*>(nullptr));
    _exit(127);
  }
  for (std::uint64_t i = 0; i < 20; ++i) ASSERT_EQ(whole_life(g, device_, 65536, i), 0);
  EXPECT_EQ(exit_of(child), 0);
  EXPECT_EQ(gdr_close(g), 0);
}

TEST_F(isolation, AChildThatPinsWithoutCudaGetsASentence) {
  EXPECT_EQ(in_child([&] {
              gdr_t own = gdr_open();
              gdr_mh_t handle{};
              if (own == nullptr) return 1;
              if (gdr_pin_buffer(own, device_, 65536, 0, 0, &handle) == 0) return 2;  // CUDA does not survive fork
              if (std::strlen(gdr_last_error()) < 20) return 3;
              return gdr_close(own);
            }),
            0);
}

int receive_descriptor(int socket) {
  char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
  iovec io{&byte, 1};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, 0) != 1) return -1;
  int fd = -1;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

bool send_descriptor(int socket, int fd) {
  char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {};
  iovec io{&byte, 1};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(socket, &message, 0) == 1;
}

// The child exists before the instance does, so all it ever has of it is the descriptor.
TEST_F(isolation, ADescriptorSentToAnotherProcessGivesNoAccess) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int fd = receive_descriptor(pair[1]);
    struct stat about {};
    if (fd < 0 || fstat(fd, &about) != 0) _exit(1);
    if (about.st_size != 0) _exit(2);  // there is no memory of anybody behind it
    char byte = 0;
    if (pread(fd, &byte, 1, 0) > 0) _exit(3);
    // What the original's test does with it: an own instance whose descriptor is replaced by the received one.
    alignas(64) char poked[256] = {};
    gdr_t own = gdr_open();
    if (own == nullptr) _exit(4);
    std::memcpy(poked, own, 48);
    std::memcpy(poked, &fd, sizeof fd);
    gdr_mh_t handle{};
    void* va = nullptr;
    if (gdr_pin_buffer(reinterpret_cast<gdr_t>(poked), 1 << 20, 65536, 0, 0, &handle) == 0) _exit(5);
    if (gdr_map(reinterpret_cast<gdr_t>(poked), handle, &va, 65536) == 0) _exit(6);
    if (gdr_close(own) != 0) _exit(7);
    _exit(0);
  }
  gdr_t g = gdr_open();
  ASSERT_NE(g, nullptr);
  gdr_mh_t handle{};
  void* va = nullptr;
  ASSERT_EQ(gdr_pin_buffer(g, device_, 65536, 0, 0, &handle), 0);
  ASSERT_EQ(gdr_map(g, handle, &va, 65536), 0);
  EXPECT_TRUE(send_descriptor(pair[0], *reinterpret_cast<const int*>(g)));
  EXPECT_EQ(exit_of(child), 0);
  EXPECT_EQ(gdr_copy_to_mapping(handle, va, "mine", 4), 0);
  EXPECT_EQ(gdr_close(g), 0);
  close(pair[0]);
  close(pair[1]);
}

TEST_F(isolation, NoDescriptorSurvivesExec) {
  gdr_t g = gdr_open();
  gdr_mh_t handle{};
  void* va = nullptr;
  ASSERT_EQ(gdr_pin_buffer(g, device_, 65536, 0, 0, &handle), 0);
  ASSERT_EQ(gdr_map(g, handle, &va, 65536), 0);
  std::FILE* pipe = popen("for f in /proc/$$/fd/*; do readlink $f; done; grep -c memfd: /proc/$$/maps", "r");
  ASSERT_NE(pipe, nullptr);
  char text[4096] = {};
  const std::size_t got = std::fread(text, 1, sizeof text - 1, pipe);
  pclose(pipe);
  EXPECT_GT(got, 0u);
  // The session's descriptor and the simulator's memory are memfds.
  EXPECT_EQ(std::strstr(text, "memfd:"), nullptr) << text;
  EXPECT_TRUE(got >= 2 && std::strcmp(text + got - 2, "0\n") == 0) << "mappings survived: " << text;
  EXPECT_EQ(gdr_close(g), 0);
}

TEST_F(isolation, ADescriptorThatTheApplicationClosedIsNotClosedAgain) {
  gdr_t g = gdr_open();
  ASSERT_NE(g, nullptr);
  const int number = *reinterpret_cast<const int*>(g);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  ASSERT_EQ(close(number), 0);
  ASSERT_EQ(dup2(pipe_ends[1], number), number) << "the number now names the application's own file";
  EXPECT_EQ(whole_life(g, device_, 65536, 3), 0);
  EXPECT_EQ(gdr_close(g), 0);
  EXPECT_EQ(write(number, "x", 1), 1) << "gdr_close closed a stranger's descriptor";
  close(number);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  // The same with the number reused by our own next instance.
  gdr_t first = gdr_open();
  ASSERT_EQ(close(*reinterpret_cast<const int*>(first)), 0);
  gdr_t second = gdr_open();
  ASSERT_EQ(*reinterpret_cast<const int*>(first), *reinterpret_cast<const int*>(second));
  EXPECT_EQ(gdr_close(first), 0);
  EXPECT_EQ(fcntl(*reinterpret_cast<const int*>(second), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(gdr_close(second), 0);
}

}  // namespace
}  // namespace pl::test
