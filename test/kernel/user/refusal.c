// SPDX-License-Identifier: Apache-2.0
// What is refused, with which errno, and that a refusal leaves nothing behind.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/kernel/user/lab.h"

static void bad_ranges(void) {
  const int fd = driver_open();
  struct memory memory = memory_new(2 * kGpuPage);
  uint64_t handle = 0;
  CHECK_EQ(pin(fd, 0, kGpuPage, &handle), EINVAL);
  CHECK_EQ(pin(fd, memory.address, 0, &handle), EINVAL);
  CHECK_EQ(pin(fd, memory.address + 5, 0, &handle), EINVAL);
  CHECK_EQ(pin(fd, memory.address, 3 * kGpuPage, &handle), EINVAL);
  CHECK_EQ(pin(fd, memory.address + memory.bytes, kGpuPage, &handle), EINVAL);
  CHECK_EQ(pin(fd, memory.address, UINT64_MAX, &handle), EINVAL);
  CHECK_EQ(pin(fd, memory.address, 0 - memory.address, &handle), EINVAL);
  CHECK_EQ(pin(fd, UINT64_MAX - 10, 100, &handle), EINVAL);
  CHECK_EQ(pin(fd, UINT64_MAX, 1, &handle), EINVAL);
  CHECK_EQ(pin(fd, 1, UINT64_MAX, &handle), EINVAL);
  CHECK_EQ(pin(fd, (uintptr_t)&handle, 8, &handle), EINVAL);  // not GPU memory
  memory_close(&memory);
}

static void flags_and_tokens(void) {
  const int fd = driver_open();
  struct memory memory = memory_new(kGpuPage);
  struct gdrdrv_pin_buffer_v2 second = {.addr = memory.address, .size = kGpuPage, .flags = 2};
  CHECK_EQ(call(fd, GDRDRV_IOC_PIN_BUFFER_V2, &second), EINVAL);
  second.flags = GDRDRV_PIN_FORCE_PCIE;
  CHECK_EQ(call(fd, GDRDRV_IOC_PIN_BUFFER_V2, &second), EOPNOTSUPP);  // no coherent platform
  struct gdrdrv_pin_buffer first = {.addr = memory.address, .size = kGpuPage, .p2p_token = 1};
  CHECK_EQ(call(fd, GDRDRV_IOC_PIN_BUFFER, &first), EINVAL);
  first.p2p_token = 0;
  first.va_space = 1;
  CHECK_EQ(call(fd, GDRDRV_IOC_PIN_BUFFER, &first), EINVAL);
  memory_close(&memory);
}

static void bad_maps(void) {
  const int fd = driver_open();
  struct memory memory = memory_new(2 * kGpuPage);
  uint64_t handle = 0;
  unsigned char* pointer = NULL;
  CHECK_EQ(pin(fd, memory.address, memory.bytes, &handle), 0);
  CHECK_EQ(map(fd, handle, memory.bytes + kHostPage, &pointer), EINVAL);
  CHECK_EQ(map(fd, handle + 1, kHostPage, &pointer), EINVAL);
  CHECK(mmap(NULL, kGpuPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, (off_t)(handle * kHostPage)) == MAP_FAILED);
  CHECK_EQ(errno, EINVAL);
  CHECK_EQ(map(fd, handle, memory.bytes, &pointer), 0);
  memory_close(&memory);
}

static int request(int fd, uint64_t handle, uint32_t type) {
  struct gdrdrv_req_mapping_type params = {handle, type, 0xffffffff};
  return call(fd, GDRDRV_IOC_REQ_MAPPING_TYPE, &params);
}

static void mapping_types(void) {
  const int fd = driver_open();
  struct memory memory = memory_new(kGpuPage);
  uint64_t handle = 0;
  uint32_t type = 0;
  unsigned char* pointer = NULL;
  CHECK_EQ(pin(fd, memory.address, memory.bytes, &handle), 0);
  CHECK_EQ(request(fd, handle, 2), EOPNOTSUPP);
  CHECK_EQ(request(fd, handle, 3), EOPNOTSUPP);
  CHECK_EQ(request(fd, handle, 4), EINVAL);
  CHECK_EQ(request(fd, handle, UINT32_MAX), EINVAL);
  CHECK_EQ(request(fd, handle, 1), 0);
  CHECK_EQ(map(fd, handle, kGpuPage, &pointer), 0);
  CHECK_EQ(mapping_type(fd, handle, &type), 0);
  CHECK_EQ(type, 1);
  CHECK_EQ(request(fd, handle, 1), EBUSY);
  CHECK_EQ(request(fd, handle, 0), EBUSY);
  CHECK_EQ(munmap(pointer, kGpuPage), 0);
  CHECK_EQ(request(fd, handle, 0), 0);
  memory_close(&memory);
}

static void bad_calls(void) {
  const int fd = driver_open();
  CHECK_EQ(call(fd, 0, NULL), EINVAL);
  CHECK_EQ(call(fd, _IO('T', 1), NULL), EINVAL);
  CHECK_EQ(call(fd, _IO(0xDA, 0), NULL), ENOTTY);
  CHECK_EQ(call(fd, _IO(0xDA, 1), NULL), ENOTTY);  // the number without its size
  CHECK_EQ(call(fd, _IOWR(0xDA, 9, uint64_t), NULL), ENOTTY);
  CHECK(read(fd, &(char){0}, 1) < 0);
  CHECK(write(fd, "x", 1) < 0);
  CHECK(lseek(fd, 0, SEEK_SET) < 0);
}

// Every call with an address that cannot be read, that cannot be written, and that ends in the middle.
static void bad_pointers(void) {
  static const unsigned long kCalls[] = {GDRDRV_IOC_PIN_BUFFER,  GDRDRV_IOC_UNPIN_BUFFER,  GDRDRV_IOC_GET_CB_FLAG,
                                         GDRDRV_IOC_GET_INFO,    GDRDRV_IOC_GET_INFO_V2,   GDRDRV_IOC_GET_ATTR,
                                         GDRDRV_IOC_GET_VERSION, GDRDRV_IOC_PIN_BUFFER_V2, GDRDRV_IOC_REQ_MAPPING_TYPE};
  const int fd = driver_open();
  unsigned char* pages = mmap(NULL, 2 * kHostPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(pages != MAP_FAILED && munmap(pages + kHostPage, kHostPage) == 0);
  for (size_t i = 0; i < sizeof kCalls / sizeof *kCalls; ++i) {
    CHECK_EQ(call(fd, kCalls[i], NULL), EFAULT);
    CHECK_EQ(call(fd, kCalls[i], (void*)0xffff800000000000), EFAULT);
    CHECK_EQ(call(fd, kCalls[i], pages + kHostPage - 4), EFAULT);
  }
  struct memory memory = memory_new(kGpuPage);
  struct gdrdrv_pin_buffer_v2* params = (struct gdrdrv_pin_buffer_v2*)pages;
  *params = (struct gdrdrv_pin_buffer_v2){.addr = memory.address, .size = kGpuPage};
  CHECK_EQ(mprotect(pages, kHostPage, PROT_READ), 0);
  CHECK_EQ(call(fd, GDRDRV_IOC_PIN_BUFFER_V2, params), EFAULT);  // the handle cannot be told: no pin
  CHECK_EQ(statistics().persistent_tables + statistics().revocable_tables, 0);
  CHECK_EQ(read_number("/proc/driver/gdrdrv/nv_get_pages_refcount"), 0);
  memory_close(&memory);
}

// ---- A GPU driver that refuses, or answers like another
// -------------------------------------------------------------------

static void provider_refuses(void) {
  static const int kErrors[] = {ENOMEM, EINVAL, EIO, EBUSY, ENODEV};
  const int fd = driver_open();
  struct memory memory = memory_new(kGpuPage);
  uint64_t handle = 0;
  for (size_t i = 0; i < sizeof kErrors / sizeof *kErrors; ++i) {
    set_mock("fail_get", kErrors[i]);
    CHECK_EQ(pin(fd, memory.address, kGpuPage, &handle), kErrors[i]);
  }
  set_mock("fail_get", 524);  // the kernel's own ENOTSUPP must not get out
  CHECK_EQ(pin(fd, memory.address, kGpuPage, &handle), EOPNOTSUPP);
  set_mock("fail_get", 0);
  CHECK_EQ(read_number("/proc/driver/gdrdrv/nv_get_pages_refcount"), 0);
  CHECK_EQ(pin(fd, memory.address, kGpuPage, &handle), 0);
  memory_close(&memory);
}

static void unknown_tables(void) {
  const int fd = driver_open();
  struct memory memory = memory_new(4 * kGpuPage);
  uint64_t handle = 0;
  static const struct {
    const char* parameter;
    long value;
  } kOdd[] = {{"table_version", 0x30000}, {"table_version", 0x10001}, {"table_version", 0}, {"page_kind", 0},
              {"page_kind", 2},           {"entries_off", 1},         {"entries_off", -1}};
  for (size_t i = 0; i < sizeof kOdd / sizeof *kOdd; ++i) {
    set_mock(kOdd[i].parameter, kOdd[i].value);
    CHECK_EQ(pin(fd, memory.address, memory.bytes, &handle), EINVAL);
    put_mock_back();
    CHECK_EQ(statistics().persistent_tables + statistics().revocable_tables, 0);
  }
  set_mock("table_version", 0x10002);  // drivers 535 to 575
  CHECK_EQ(pin(fd, memory.address, memory.bytes, &handle), 0);
  CHECK_EQ(unpin(fd, handle), 0);
  memory_close(&memory);
}

// Last in its list: the driver remembers the refusal.
static void falls_back_to_revocable(void) {
  const int fd = driver_open();
  struct memory memory = memory_new(2 * kGpuPage);
  struct gdrdrv_get_attr attribute = {GDRDRV_ATTR_PERSISTENT, 0};
  set_mock("fail_persistent", 524);
  const struct mapping m = map_all(fd, &memory);
  m.pointer[0] = 7;
  CHECK_EQ(memory.view[0], 7);
  CHECK_EQ(statistics().revocable_tables, 1);
  CHECK_EQ(call(fd, GDRDRV_IOC_GET_ATTR, &attribute), 0);
  CHECK_EQ(attribute.val, 0);
  memory_free(&memory);
  CHECK_EQ(touch(m.pointer), SIGBUS);
  CHECK_EQ(unpin(fd, m.handle), 0);
  memory_close(&memory);
}

const struct test kRefusalTests[] = {
    {"bad_ranges", bad_ranges, kAnyMode},
    {"flags_and_tokens", flags_and_tokens, kAnyMode},
    {"bad_maps", bad_maps, kAnyMode},
    {"mapping_types", mapping_types, kAnyMode},
    {"bad_calls", bad_calls, kAnyMode},
    {"bad_pointers", bad_pointers, kAnyMode},
    {"provider_refuses", provider_refuses, kAnyMode},
    {"unknown_tables", unknown_tables, kAnyMode},
    {NULL, NULL, kAnyMode},
};
const struct test kLastTests[] = {{"falls_back_to_revocable", falls_back_to_revocable, kPersistent}, {NULL, NULL, kAnyMode}};
