// SPDX-License-Identifier: Apache-2.0
#include "tools/store/files.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>

#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "os/unique_fd.hpp"
#include "tools/common/terminal.hpp"
#include "tools/common/tool.hpp"

namespace pl::store_tools {

using tools::tool_failure;
namespace fs = std::filesystem;

namespace {

// Files up to this size are read: a copy stays as it is. A copy of a larger one may not fit into memory beside the store.
constexpr std::size_t kReadBytes = 256u << 20;
// The one file whose pages are in use: what its fault says. The text is written before `last`.
struct {
  std::atomic<std::uintptr_t> first{0}, last{0};
  std::string text;
} g_mapped;

// The pages behind the new end of a file cannot be read, nor those that its disk does not give.
void on_bus_error(int, siginfo_t* about, void*) {
  const auto place = reinterpret_cast<std::uintptr_t>(about->si_addr);
  if (place < g_mapped.first || place >= g_mapped.last) {
    std::signal(SIGBUS, SIG_DFL);  // not ours: it comes again, and ends the program
    return;
  }
  // Nothing can be done about a closed terminal. The store keeps nothing of a put whose client is gone.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, g_mapped.text.data(), g_mapped.text.size());
  _exit(tools::kExitFailed);
}

void watch_faults(const std::string& path, const void* memory, std::size_t bytes) {
  g_mapped.text = format("peerlane store: %s: it became shorter, or could not be read, while it was stored\n", path.c_str());
  g_mapped.first = reinterpret_cast<std::uintptr_t>(memory);
  g_mapped.last = g_mapped.first + bytes;
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

// The number of bytes, which is less at the end of the file; negative: an errno value.
ssize_t read_whole(int fd, void* memory, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd, static_cast<char*>(memory) + done, bytes - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -errno;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return static_cast<ssize_t>(done);
}

}  // namespace

file_memory file_memory::read(const std::string& path) {
  file_memory out;
  out.path_ = path;
  unique_fd fd(real_device_io(), path == "-" ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw tool_failure(format("%s: %s", path.c_str(), errno_text(errno).c_str()));
  struct stat about {};
  // Of standard input a part may have been read.
  if (fstat(fd.get(), &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0 && lseek(fd.get(), 0, SEEK_CUR) == 0) {
    const auto bytes = static_cast<std::size_t>(about.st_size);
    out.map(fd.get(), bytes) ? static_cast<void>(fd.release()) : out.copy(fd.get(), bytes);
    return out;
  }
  // A directory, for one: what was read of it must not take the place of the value.
  if (const int code = out.read_text(fd.get()); code != 0)
    throw tool_failure(format("%s: %s", path.c_str(), errno_text(code).c_str()));
  return out;
}

bool file_memory::map(int fd, std::size_t bytes) {
  if (bytes <= kReadBytes || g_mapped.last != 0) return false;
  void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) return false;  // some file systems cannot
  memory_ = memory;
  bytes_ = bytes;
  mapped_ = fd;
  watch_faults(path_, memory, bytes);
  return true;
}

void file_memory::copy(int fd, std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw tool_failure(format("%s: %s", path_.c_str(), errno_text(errno).c_str()));
  memory_ = memory;
  bytes_ = bytes;
  const ssize_t got = read_whole(fd, memory, bytes);
  if (got < 0) throw tool_failure(format("%s: %s", path_.c_str(), errno_text(static_cast<int>(-got)).c_str()));
  if (static_cast<std::size_t>(got) < bytes)
    throw tool_failure(format("%s: it became shorter while it was read", path_.c_str()));
}

void file_memory::check_unchanged() const {
  struct stat about {};
  if (mapped_ < 0 || fstat(mapped_, &about) != 0 || static_cast<std::size_t>(about.st_size) >= bytes_) return;
  // The rest of its last page reads as zeros.
  throw tool_failure(format("%s: it became shorter while it was stored: put it again", path_.c_str()));
}

file_memory::~file_memory() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
  if (mapped_ < 0) return;
  g_mapped.last = 0;
  close(mapped_);
}

int file_memory::read_text(int fd) {
  char piece[65536];
  for (;;) {
    const ssize_t got = ::read(fd, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return bytes_ = text_.size(), got < 0 ? errno : 0;
    text_.append(piece, static_cast<std::size_t>(got));
  }
}

namespace {

// Where the file is: a pipe, a terminal, or a file in a folder that takes no other one.
status write_in_place(const std::string& path, std::string_view bytes) {
  const int fd = path == "-" ? dup(STDOUT_FILENO) : open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (fd < 0) return failure{errno, errno_text(errno)};
  int code = 0;
  while (!bytes.empty() && code == 0) {
    const auto done = ::write(fd, bytes.data(), bytes.size());
    if (done >= 0) bytes.remove_prefix(static_cast<std::size_t>(done));
    else if (errno != EINTR) code = errno;
  }
  if (close(fd) != 0 && code == 0) code = errno;
  if (code == 0) return {};
  return failure{code, errno_text(code)};
}

}  // namespace

void write_file(const std::string& path, std::string_view bytes) {
  struct stat about {};
  const bool is_there = path != "-" && lstat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);
  // Another file in its place would have another owner, and be missing at its other names.
  const bool stays = path == "-" || (is_there && (about.st_uid != geteuid() || about.st_nlink > 1));
  const mode_t mode = is_there ? about.st_mode & 0777u : 0644u;
  status written = stays ? write_in_place(path, bytes) : write_whole_file(path, bytes, mode);
  if (!stays && (written.code() == EACCES || written.code() == EPERM))
    if (status kept = write_in_place(path, bytes); kept.code() != ENOENT) written = std::move(kept);
  if (!written) throw tool_failure(format("%s: %s", path.c_str(), written.error().message.c_str()));
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code wrong;
  fs::recursive_directory_iterator one(folder, wrong);
  for (; !wrong && one != fs::recursive_directory_iterator(); one.increment(wrong)) {
    const fs::file_status known = one->symlink_status(wrong);
    if (known.type() == fs::file_type::not_found) wrong.clear();  // removed meanwhile
    if (wrong) break;
    if (known.type() == fs::file_type::regular) out.push_back(one->path().lexically_relative(folder).string());
  }
  if (wrong) throw tool_failure(format("%s: %s", folder.c_str(), wrong.message().c_str()));
  std::sort(out.begin(), out.end());
  return out;
}

std::string file_of_key(const std::string& folder, const std::string& key) {
  const bool is_plain = !key.empty() && key.front() != '/' && key.back() != '/' && key.find('\0') == std::string::npos;
  const fs::path name(key);
  const bool leads_out =
      std::any_of(name.begin(), name.end(), [](const fs::path& part) { return part == ".." || part == "."; });
  if (!is_plain || leads_out)
    throw tool_failure(format("key %s cannot be the name of a file below %s; use peerlane store get POOL KEY FILE",
                              key.c_str(), folder.c_str()));
  const fs::path out = fs::path(folder) / name;
  std::error_code wrong;
  fs::create_directories(out.parent_path(), wrong);
  if (wrong) throw tool_failure(format("%s: %s", out.parent_path().c_str(), wrong.message().c_str()));
  return out.string();
}

std::string printable(const std::string& key) { return tools::without_controls(key, tools::text_kind::name); }

std::string on_terminal(const std::string& key) { return isatty(STDOUT_FILENO) != 0 ? printable(key) : key; }

}  // namespace pl::store_tools
