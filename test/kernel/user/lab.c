// SPDX-License-Identifier: Apache-2.0
#include "test/kernel/user/lab.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void fail_test(const char* file, int line, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const char* name = strrchr(file, '/');
  dprintf(1, "# %s:%d: %s (errno %d)\n", name ? name + 1 : file, line, text, errno);
  _exit(1);
}

// ---- GPU memory ----------------------------------------------------------------------------------------------------

static uint64_t take_addresses(size_t bytes) {
  static uint64_t next = 0x7e0000000000;
  return __atomic_fetch_add(&next, (bytes + 2 * kGpuPage) / kGpuPage * kGpuPage, __ATOMIC_RELAXED);
}

struct memory memory_new(size_t bytes) {
  struct memory memory = {open("/dev/mock_gpu", O_RDWR | O_CLOEXEC), take_addresses(bytes), bytes, NULL};
  if (memory.fd < 0) FAIL("open /dev/mock_gpu");
  struct board_alloc alloc = {bytes};
  if (ioctl(memory.fd, BOARD_IOC_ALLOC, &alloc) != 0) FAIL("the mock has no %zu bytes", bytes);
  struct board_bind bind = {memory.address, bytes, 0};
  if (ioctl(memory.fd, BOARD_IOC_BIND, &bind) != 0) FAIL("bind");
  memory.view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
  if (memory.view == MAP_FAILED) FAIL("view");
  return memory;
}

void memory_free(struct memory* memory) {
  struct board_unbind unbind = {memory->address, memory->bytes};
  if (memory->address != 0 && ioctl(memory->fd, BOARD_IOC_UNBIND, &unbind) != 0) FAIL("unbind");
  memory->address = 0;
}

void memory_close(struct memory* memory) {
  memory_free(memory);
  munmap(memory->view, memory->bytes);
  close(memory->fd);
}

void memory_fill(const struct memory* memory, unsigned seed) {
  uint32_t* words = (uint32_t*)memory->view;
  for (size_t i = 0; i < memory->bytes / 4; ++i) words[i] = seed * 2654435761u + (uint32_t)i;
}

struct board_statistics statistics(void) {
  struct board_statistics now;
  const int fd = open("/dev/mock_gpu", O_RDWR | O_CLOEXEC);
  if (fd < 0 || ioctl(fd, BOARD_IOC_STATISTICS, &now) != 0) FAIL("statistics");
  close(fd);
  return now;
}

uint64_t pte_of(const volatile void* address) {
  struct board_pte pte = {(uintptr_t)address, 0};
  const int fd = open("/dev/mock_gpu", O_RDWR | O_CLOEXEC);
  if (fd < 0 || ioctl(fd, BOARD_IOC_PTE, &pte) != 0) FAIL("pte");
  close(fd);
  return pte.pte;
}

// ---- The driver ----------------------------------------------------------------------------------------------------

int driver_open(void) {
  const int fd = open("/dev/gdrdrv", O_RDWR | O_CLOEXEC);
  if (fd < 0) FAIL("open /dev/gdrdrv");
  return fd;
}

int call(int fd, unsigned long request, void* argument) { return ioctl(fd, request, argument) == 0 ? 0 : errno; }

bool driver_is_persistent(void) {
  const int fd = driver_open();
  struct gdrdrv_get_attr params = {GDRDRV_ATTR_PERSISTENT, 0};
  if (call(fd, GDRDRV_IOC_GET_ATTR, &params) != 0) FAIL("attribute");
  close(fd);
  return params.val != 0;
}

int pin_v1(int fd, uint64_t address, uint64_t bytes, uint64_t* handle) {
  struct gdrdrv_pin_buffer params = {.addr = address, .size = bytes};
  const int rc = call(fd, GDRDRV_IOC_PIN_BUFFER, &params);
  if (rc == 0) *handle = params.handle;
  return rc;
}

int pin(int fd, uint64_t address, uint64_t bytes, uint64_t* handle) {
  struct gdrdrv_pin_buffer_v2 params = {.addr = address, .size = bytes};
  const int rc = call(fd, GDRDRV_IOC_PIN_BUFFER_V2, &params);
  if (rc == 0) *handle = params.handle;
  return rc;
}

int unpin(int fd, uint64_t handle) {
  struct gdrdrv_unpin_buffer params = {handle};
  return call(fd, GDRDRV_IOC_UNPIN_BUFFER, &params);
}

int map(int fd, uint64_t handle, size_t bytes, unsigned char** out) {
  void* pointer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(handle * kHostPage));
  if (pointer == MAP_FAILED) return errno;
  *out = pointer;
  return 0;
}

int mapping_type(int fd, uint64_t handle, uint32_t* type) {
  struct gdrdrv_get_info_v2 params = {.handle = handle};
  const int rc = call(fd, GDRDRV_IOC_GET_INFO_V2, &params);
  *type = params.mapping_type;
  return rc;
}

int was_revoked(int fd, uint64_t handle, uint32_t* flag) {
  struct gdrdrv_get_cb_flag params = {handle, 0, 0};
  const int rc = call(fd, GDRDRV_IOC_GET_CB_FLAG, &params);
  *flag = params.flag;
  return rc;
}

struct mapping map_all(int fd, const struct memory* memory) {
  struct mapping mapping = {fd, 0, memory->bytes, NULL};
  CHECK_EQ(pin(fd, memory->address, memory->bytes, &mapping.handle), 0);
  CHECK_EQ(map(fd, mapping.handle, memory->bytes, &mapping.pointer), 0);
  return mapping;
}

// ---- Odds and ends -------------------------------------------------------------------------------------------------

static __thread sigjmp_buf jump;
static __thread volatile sig_atomic_t is_touching;

static void on_fault(int number) {
  if (!is_touching) {
    signal(number, SIG_DFL);
    raise(number);
  }
  siglongjmp(jump, number);
}

static int guarded(volatile unsigned char* address, int value) {
  struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
  sigaction(SIGBUS, &action, NULL);
  sigaction(SIGSEGV, &action, NULL);
  const int number = sigsetjmp(jump, 0);
  if (number == 0) {
    is_touching = 1;
    if (value < 0) (void)*address;
    else *address = (unsigned char)value;
  }
  is_touching = 0;
  return number;
}

int touch(volatile unsigned char* address) { return guarded(address, -1); }
int touch_write(volatile unsigned char* address, unsigned char value) { return guarded(address, value); }

int in_child(int (*body)(void* argument), void* argument) {
  const pid_t child = fork();
  if (child == 0) _exit(body(argument));
  int status = 0;
  if (waitpid(child, &status, 0) != child) FAIL("waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

unsigned next_random(unsigned* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

void sleep_ms(unsigned milliseconds) {
  const struct timespec time = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
  nanosleep(&time, NULL);
}

uint64_t now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

static void write_number(const char* parameter, long value) {
  char path[128];
  snprintf(path, sizeof path, "/sys/module/mock_gpu/parameters/%s", parameter);
  FILE* file = fopen(path, "w");
  if (file == NULL || fprintf(file, "%ld\n", value) < 0 || fclose(file) != 0) FAIL("%s = %ld", parameter, value);
}

long read_number(const char* path) {
  long value = -1;
  FILE* file = fopen(path, "r");
  if (file == NULL) return -1;
  if (fscanf(file, "%ld", &value) != 1) value = -1;
  fclose(file);
  return value;
}

static long first_table_version = -1;

void set_mock(const char* parameter, long value) {
  if (first_table_version < 0) first_table_version = read_number("/sys/module/mock_gpu/parameters/table_version");
  write_number(parameter, value);
}

void put_mock_back(void) {
  if (first_table_version < 0) first_table_version = read_number("/sys/module/mock_gpu/parameters/table_version");
  for (const char* const* name = (const char* const[]){"fail_get", "fail_persistent", "entries_off", "get_wait_ms", NULL};
       *name != NULL; ++name)
    write_number(*name, 0);
  write_number("page_kind", 1);
  write_number("table_version", first_table_version);
}
