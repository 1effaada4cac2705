/* SPDX-License-Identifier: Apache-2.0
 * What the original's gdrcopy_sanity does to our objects, which to it are its own structs: reads the descriptor at offset 0
 * of *g, sends and closes it, copies 48 bytes of *g (and 40, its 2.5 release) to the stack with another descriptor in it
 * and pins and maps with the copy, copies 104 bytes behind a handle and passes the copy as a handle. Nothing may crash,
 * nothing may succeed, and the true objects must go on working. */
#include <errno.h>
#include <fcntl.h>
#include <gdrapi.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test/abi/c_program.h"

static void send_descriptor(int socket, int fd) {
  char byte = 'x', control[CMSG_SPACE(sizeof(int))];
  memset(control, 0, sizeof control);
  struct iovec io = {&byte, 1};
  struct msghdr message = {0};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  struct cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  CHECK(sendmsg(socket, &message, 0) == 1);
}

static void expect_useless_session(gdr_t copy, gdr_t real, gdr_mh_t real_handle, unsigned long device) {
  gdr_mh_t handle = {99};
  void* va = (void*)0x1234;
  CHECK(gdr_pin_buffer(copy, device, 65536, 0, 0, &handle) == EINVAL && handle.h == 0);
  CHECK(gdr_pin_buffer_v2(copy, device, 65536, 0, &handle) == EINVAL && handle.h == 0);
  CHECK(gdr_map(copy, real_handle, &va, 65536) == EINVAL && va == (void*)0x1234);
  CHECK(gdr_unmap(copy, real_handle, va, 65536) == EINVAL);
  CHECK(gdr_unpin_buffer(copy, real_handle) == EINVAL);
  CHECK(gdr_close(copy) == EINVAL);
  CHECK(copy != real);
}

int main(void) {
  const unsigned long long device = device_memory(65536);
  int pair[2];
  gdr_mh_t handle = {0};
  void* va = NULL;
  gdr_t g = gdr_open();
  CHECK(g != NULL && gdr_pin_buffer(g, device, 65536, 0, 0, &handle) == 0);

  const int fd = *(const int*)g;
  CHECK(fd > 2 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  send_descriptor(pair[0], fd);

  _Alignas(64) char session_copy[256];
  for (size_t bytes = 40; bytes <= 48; bytes += 8) {
    memset(session_copy, 0, sizeof session_copy);
    memcpy(session_copy, g, bytes);
    const int other = open("/dev/null", O_RDWR);
    memcpy(session_copy, &other, sizeof other);
    expect_useless_session((gdr_t)session_copy, g, handle, device);
    close(other);
  }

  CHECK(gdr_map(g, handle, &va, 65536) == 0);
  _Alignas(128) char handle_copy[256];
  for (size_t offset = 0; offset <= 128; offset += 8) {
    memset(handle_copy, 0, sizeof handle_copy);
    memcpy(handle_copy + offset, (const void*)handle.h, 104);
    gdr_mh_t bogus = {(unsigned long)(handle_copy + offset)};
    gdr_info_t info;
    char byte = 1;
    CHECK(gdr_map(g, bogus, &va, 65536) == EINVAL);
    CHECK(gdr_get_info(g, bogus, &info) == EINVAL);
    CHECK(gdr_copy_to_mapping(bogus, va, &byte, 1) == EINVAL);
    CHECK(gdr_copy_from_mapping(bogus, &byte, va, 1) == EINVAL && byte == 1);
    CHECK(gdr_unpin_buffer(g, bogus) == EINVAL);
  }

  /* The test closes our descriptor: everything goes on, and the number may be anybody's when we close. */
  CHECK(close(fd) == 0);
  CHECK(gdr_copy_to_mapping(handle, va, "alive", 5) == 0);
  char seen[5];
  CHECK(cuMemcpyDtoH_v2(seen, device, 5) == 0 && memcmp(seen, "alive", 5) == 0);
  CHECK(gdr_unmap(g, handle, va, 65536) == 0 && gdr_unpin_buffer(g, handle) == 0 && gdr_close(g) == 0);
  puts("poked structs: ok");
  return 0;
}
