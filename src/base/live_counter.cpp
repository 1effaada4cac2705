// SPDX-License-Identifier: Apache-2.0
#include "base/live_counter.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <new>
#include <string>

#include "base/env.hpp"
#include "base/file_limit.hpp"
#include "base/log.hpp"
#include "base/real_path.hpp"
#include "base/status.hpp"
#include "base/text.hpp"

namespace pl {
namespace {

constexpr std::uint64_t kMagic = std::bit_cast<std::uint64_t>(std::array{'P', 'E', 'E', 'R', 'L', 'A', 'N', 'E'});
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMaxEntries = 128;
constexpr unsigned kBlocks = 64;  // for threads; one bit each in g_taken
constexpr unsigned kMaxLibraries = 16;

struct header {
  std::uint64_t magic;
  std::uint32_t version, header_bytes, entry_bytes, entries;
  std::uint32_t process_id, zero;
  std::uint64_t process_start, pid_namespace, made_unix_ns;
  char program[64];
  std::uint32_t blocks, blocks_at, block_bytes;
  char rest[124];
};
static_assert(sizeof(header) == 256 && offsetof(header, program) == 56);

struct entry {
  std::uint64_t value;
  std::uint32_t kind, zero;
  char name[48];
};
static_assert(sizeof(entry) == 64);

using block = std::uint64_t[kMaxEntries];

struct file_layout {
  header head;
  entry entries[kMaxEntries];
  block blocks[kBlocks];
};
constexpr std::size_t kFileBytes = sizeof(file_layout);

constinit std::atomic<live_counter*> g_counters{nullptr};  // every counter of this library; grows while it is loaded
constinit std::mutex g_mutex;
constinit std::atomic<pid_t> g_environment_reader{0};  // the process that has read the environment
constinit std::atomic<file_layout*> g_file{nullptr};
constinit std::atomic<std::uint64_t> g_taken{0};  // blocks of living threads

// A thread's block, from its first count until its end.
struct block_of_thread {
  std::uint64_t* numbers = nullptr;
  int block = -1;
  bool may_take = true;

  void take(file_layout& file) noexcept {
    may_take = false;
    std::uint64_t taken = g_taken.load(std::memory_order_relaxed);
    do {
      block = std::countr_one(taken);
      if (block >= static_cast<int>(kBlocks)) return;
    } while (!g_taken.compare_exchange_weak(taken, taken | std::uint64_t{1} << block, std::memory_order_acquire));
    numbers = file.blocks[block];
  }
  // Release, paired with the acquire in take: the next thread continues from this one's last numbers.
  ~block_of_thread() {
    if (numbers != nullptr) g_taken.fetch_and(~(std::uint64_t{1} << block), std::memory_order_release);
    numbers = nullptr;
    may_take = false;
  }
};
thread_local block_of_thread t_block;

std::string text_of(const char* path) {
  char text[4096];
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  const ssize_t got = ::read(fd, text, sizeof text);
  ::close(fd);
  return got > 0 ? std::string(text, static_cast<std::size_t>(got)) : "";
}

// Field 22 of /proc/self/stat; the name in field 2 may contain blanks and brackets.
std::uint64_t start_of_this_process() {
  const std::string text = text_of("/proc/self/stat");
  std::size_t position = text.rfind(')');
  for (int field = 2; field < 22 && position != std::string::npos; ++field) position = text.find(' ', position + 1);
  return position == std::string::npos
             ? 0
             : static_cast<std::uint64_t>(
                   parse_integer(text.substr(position + 1, text.find(' ', position + 1) - position - 1)).value_or(0));
}

}  // namespace

live_counter::live_counter(const char* name, live_kind kind) noexcept
    : name_(name), kind_(kind), next_(g_counters.load(std::memory_order_relaxed)) {
  // Constructors of one library run one after the other.
  g_counters.store(this, std::memory_order_release);
}

void live_counter::count(std::uint64_t more) noexcept {
  file_layout* const file = g_file.load(std::memory_order_acquire);
  const auto number = static_cast<std::size_t>(number_.load(std::memory_order_relaxed));
  if (file == nullptr || number >= kMaxEntries) return;
  block_of_thread& mine = t_block;
  if (mine.numbers == nullptr && mine.may_take) mine.take(*file);
  if (mine.numbers == nullptr) {
    std::atomic_ref(file->entries[number].value).fetch_add(more, std::memory_order_relaxed);
    return;
  }
  const std::atomic_ref value(mine.numbers[number]);
  value.store(value.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

struct live_file {
  std::string path;
  pid_t owner = 0;

  ~live_file() {
    if (!path.empty() && owner == ::getpid()) ::unlink(path.c_str());
  }

  static live_file& instance() {
    static live_file only;
    return only;
  }

  // A child does not write to its parent's file. It has one thread: another thread that held the lock does not exist
  // there.
  static void forget_after_fork() {
    for (live_counter* one = g_counters.load(std::memory_order_acquire); one != nullptr; one = one->next_)
      one->number_.store(-1, std::memory_order_relaxed);
    instance().path.clear();
    g_file.store(nullptr, std::memory_order_relaxed);
    g_taken.store(0, std::memory_order_relaxed);
    t_block.numbers = nullptr;
    t_block.may_take = true;
    new (&g_mutex) std::mutex;
  }

  status make(const std::string& folder) {
    // Resolved now, because the file is removed at the end, and the program may change its folder until then.
    std::string home = real_path(folder.c_str());
    if (home.empty()) home = folder;
    int fd = -1;
    for (unsigned number = 0; fd < 0 && number < kMaxLibraries; ++number) {
      path = format("%s/peerlane-statistics-%u-%d-%u", home.c_str(), ::getuid(), ::getpid(), number);
      fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0) return failed("cannot be made");
    void* memory = MAP_FAILED;
    // The space is allocated now: on a full file system a later count would otherwise raise SIGBUS.
    const file_limit_as_error during_growth;
    const int no_room = ::posix_fallocate(fd, 0, kFileBytes);
    if (no_room == 0) memory = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    else errno = no_room;
    if (memory == MAP_FAILED) {
      const status reason = failed("cannot be mapped");
      ::unlink(path.c_str());
      ::close(fd);
      path.clear();
      return reason;
    }
    ::close(fd);
    fill(memory);
    owner = ::getpid();
    return {};
  }

  status failed(const char* operation) const {
    return failure{errno, format("statistics: %s %s (%s)", path.c_str(), operation, std::strerror(errno))};
  }

  static void fill(void* memory) {
    auto* const file = static_cast<file_layout*>(memory);
    header* const head = &file->head;
    g_file.store(file, std::memory_order_release);
    int count = 0;
    for (live_counter* one = g_counters.load(std::memory_order_acquire); one != nullptr; one = one->next_) {
      if (count == static_cast<int>(kMaxEntries)) break;
      entry& slot = file->entries[count];
      slot.kind = static_cast<std::uint32_t>(one->kind_);
      std::snprintf(slot.name, sizeof slot.name, "%s", one->name_);
      one->number_.store(count++, std::memory_order_release);
    }
    struct stat space {};
    struct timespec now {};
    ::clock_gettime(CLOCK_REALTIME, &now);
    head->version = kVersion;
    head->header_bytes = sizeof(header);
    head->entry_bytes = sizeof(entry);
    head->process_id = static_cast<std::uint32_t>(::getpid());
    head->process_start = start_of_this_process();
    head->pid_namespace = ::stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
    head->made_unix_ns = static_cast<std::uint64_t>(now.tv_sec) * 1000000000u + static_cast<std::uint64_t>(now.tv_nsec);
    std::string program = text_of("/proc/self/comm");
    if (!program.empty() && program.back() == '\n') program.pop_back();
    std::snprintf(head->program, sizeof head->program, "%s", program.c_str());
    head->blocks = kBlocks;
    head->blocks_at = offsetof(file_layout, blocks);
    head->block_bytes = sizeof(block);
    head->entries = static_cast<std::uint32_t>(count);
    // Written last: a reader that sees the word sees the rest.
    std::atomic_ref(head->magic).store(kMagic, std::memory_order_release);
  }
};

bool publish_live_counters() {
  const pid_t this_process = ::getpid();
  live_file& file = live_file::instance();
  if (g_environment_reader.load(std::memory_order_acquire) == this_process) return file.owner == this_process;
  const std::lock_guard lock(g_mutex);
  const pid_t before = g_environment_reader.load(std::memory_order_relaxed);
  if (before == this_process) return file.owner == this_process;
  if (env_read("PEERLANE_STATISTICS").integer != 0) {
    if (before == 0) ::pthread_atfork(nullptr, nullptr, &live_file::forget_after_fork);
    const status made = file.make(env_read("PEERLANE_STATISTICS_FOLDER").text);
    if (!made) log_line(log_level::warn, "%s", made.error().message.c_str());
  }
  g_environment_reader.store(this_process, std::memory_order_release);
  return file.owner == this_process;
}

}  // namespace pl
