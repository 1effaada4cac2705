// SPDX-License-Identifier: Apache-2.0
// What the driver is for: pin, map, bytes across, and the rules around it.
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/kernel/user/lab.h"

// Bytes written on one side are there on the other, over several scattered GPU pages.
static void expect_two_way(const struct memory* memory, unsigned char* mapped) {
  memory_fill(memory, 1);
  CHECK(memcmp(mapped, memory->view, memory->bytes) == 0);
  for (size_t i = 0; i < memory->bytes; ++i) mapped[i] = (unsigned char)(i * 7 + i / 4096);
  CHECK(memcmp(mapped, memory->view, memory->bytes) == 0);
  CHECK_EQ(memory->view[kGpuPage + 5], (unsigned char)((kGpuPage + 5) * 7 + (kGpuPage + 5) / 4096));
}

static void bytes_cross(void) {
  const int fd = driver_open();
  for (int version = 1; version <= 2; ++version) {
    struct memory memory = memory_new(1 << 20);
    uint64_t handle = 0;
    unsigned char* pointer = NULL;
    CHECK_EQ((version == 1 ? pin_v1 : pin)(fd, memory.address, memory.bytes, &handle), 0);
    CHECK_EQ(map(fd, handle, memory.bytes, &pointer), 0);
    expect_two_way(&memory, pointer);
    CHECK_EQ(munmap(pointer, memory.bytes), 0);
    CHECK_EQ(unpin(fd, handle), 0);
    memory_close(&memory);
  }
}

static void pages_are_write_combining(void) {
  struct memory memory = memory_new(4 * kGpuPage);
  const struct mapping m = map_all(driver_open(), &memory);
  for (size_t offset = 3 * kHostPage; offset < m.bytes; offset += kGpuPage) m.pointer[offset] = 1;
  for (size_t offset = 0; offset < m.bytes; offset += kHostPage) {
    const uint64_t pte = pte_of(m.pointer + offset);
    CHECK(pte != 0);             // one fault maps its GPU page whole
    CHECK_EQ(pte & 0x98, 0x08);  // PAT, PCD, PWT: write-combining
  }
  memory_close(&memory);
}

static void information(void) {
  const int fd = driver_open();
  struct memory memory = memory_new(3 * kGpuPage);
  uint64_t handle = 0;
  unsigned char* pointer = NULL;
  CHECK_EQ(pin(fd, memory.address + 100, kGpuPage, &handle), 0);
  struct gdrdrv_get_info first = {.handle = handle};
  struct gdrdrv_get_info_v2 second = {.handle = handle};
  CHECK_EQ(call(fd, GDRDRV_IOC_GET_INFO, &first), 0);
  CHECK_EQ(call(fd, GDRDRV_IOC_GET_INFO_V2, &second), 0);
  CHECK_EQ(first.va, memory.address);
  CHECK_EQ(first.mapped_size, 2 * kGpuPage);
  CHECK_EQ(first.page_size, kGpuPage);
  CHECK(first.tsc_khz > 0 && first.tm_cycles > 0);
  CHECK_EQ(first.mapped + first.wc_mapping, 0);
  CHECK_EQ(second.mapped_size, 2 * kGpuPage);
  CHECK_EQ(second.mapping_type, 0);
  CHECK(map(fd, handle, kGpuPage, &pointer) != 0);  // not on a GPU page's boundary
  CHECK_EQ(unpin(fd, handle), 0);
  const struct mapping m = map_all(fd, &memory);
  first.handle = second.handle = m.handle;
  CHECK_EQ(call(fd, GDRDRV_IOC_GET_INFO, &first), 0);  // before anything was touched
  CHECK_EQ(call(fd, GDRDRV_IOC_GET_INFO_V2, &second), 0);
  CHECK_EQ(first.mapped, 1);
  CHECK_EQ(first.wc_mapping, 1);
  CHECK_EQ(second.mapping_type, 1);
  CHECK_EQ(munmap(m.pointer, m.bytes), 0);
  CHECK_EQ(call(fd, GDRDRV_IOC_GET_INFO_V2, &second), 0);
  CHECK_EQ(second.mapping_type, 0);
  memory_close(&memory);
}

static void versions_and_attributes(void) {
  const int fd = driver_open();
  struct gdrdrv_get_version version = {0, 0};
  CHECK_EQ(call(fd, GDRDRV_IOC_GET_VERSION, &version), 0);
  CHECK_EQ(version.gdrdrv_version, 0x20006);
  CHECK_EQ(version.minimum_gdr_api_version, 0x20000);
  struct gdrdrv_get_attr attribute = {77, 77};
  CHECK(call(fd, GDRDRV_IOC_GET_ATTR, &attribute) != 0);
  CHECK_EQ(attribute.val, 0);
  struct stat node;
  CHECK_EQ(stat("/dev/gdrdrv", &node), 0);
  CHECK_EQ(node.st_mode, S_IFCHR | 0666);
}

static void proc_files(void) {
  char text[512] = {0};
  const int fd = open("/proc/driver/gdrdrv/params", O_RDONLY);
  CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
  CHECK(strstr(text, "Version: 2.6\nBuilt for NVIDIA driver flavor: ") == text);
  CHECK(strstr(text, driver_is_persistent() ? "Use persistent mapping: yes\n" : "Use persistent mapping: no\n") != NULL);
  CHECK(strstr(text, "dbg_enabled: 1\ninfo_enabled: 0\n") != NULL);
  struct stat params, count;
  CHECK_EQ(stat("/proc/driver/gdrdrv/params", &params), 0);
  CHECK_EQ(stat("/proc/driver/gdrdrv/nv_get_pages_refcount", &count), 0);
  CHECK_EQ(params.st_mode & 0777, 0444);
  CHECK_EQ(count.st_mode & 0777, 0440);
  struct memory memory = memory_new(kGpuPage);
  const struct mapping m = map_all(driver_open(), &memory);
  CHECK_EQ(read_number("/proc/driver/gdrdrv/nv_get_pages_refcount"), 1);
  CHECK_EQ(unpin(m.fd, m.handle), 0);
  CHECK_EQ(read_number("/proc/driver/gdrdrv/nv_get_pages_refcount"), 0);
}

static void partial_and_repeated_maps(void) {
  const int fd = driver_open();
  struct memory memory = memory_new(4 * kGpuPage);
  uint64_t handle = 0;
  unsigned char *pointer = NULL, *more = NULL;
  memory_fill(&memory, 3);
  CHECK_EQ(pin(fd, memory.address, memory.bytes, &handle), 0);
  CHECK_EQ(map(fd, handle, kGpuPage + kHostPage, &pointer), 0);
  CHECK(memcmp(pointer, memory.view, kGpuPage + kHostPage) == 0);
  CHECK(map(fd, handle, kHostPage, &more) != 0);  // mapped already
  CHECK_EQ(munmap(pointer, kGpuPage + kHostPage), 0);
  CHECK_EQ(map(fd, handle, memory.bytes, &pointer), 0);
  CHECK(memcmp(pointer, memory.view, memory.bytes) == 0);
  memory_close(&memory);
}

// A pin may cover several allocations, and several pins one.
static void pins_overlap(void) {
  const int fd = driver_open();
  struct memory memory = memory_new(4 * kGpuPage);
  struct mapping a = map_all(fd, &memory), b = map_all(fd, &memory);
  CHECK(a.handle != b.handle);
  a.pointer[70000] = 0x5a;
  CHECK_EQ(b.pointer[70000], 0x5a);
  CHECK_EQ(unpin(fd, a.handle), 0);
  CHECK_EQ(b.pointer[70000], 0x5a);
  CHECK_EQ(pte_of(b.pointer + 70000) & 0x98, 0x08);  // one pin's end does not take the other's memory type
  CHECK_EQ(munmap(b.pointer, b.bytes), 0);
  CHECK_EQ(map(fd, b.handle, b.bytes, &b.pointer), 0);
  CHECK_EQ(b.pointer[70000], 0x5a);
  CHECK_EQ(pte_of(b.pointer + 70000) & 0x98, 0x08);
  memory_close(&memory);
}

const struct test kBasicTests[] = {
    {"bytes_cross", bytes_cross, kAnyMode},   {"pages_are_write_combining", pages_are_write_combining, kAnyMode},
    {"information", information, kAnyMode},   {"versions_and_attributes", versions_and_attributes, kAnyMode},
    {"proc_files", proc_files, kAnyMode},     {"partial_and_repeated_maps", partial_and_repeated_maps, kAnyMode},
    {"pins_overlap", pins_overlap, kAnyMode}, {NULL, NULL, kAnyMode},
};
