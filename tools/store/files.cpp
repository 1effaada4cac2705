// SPDX-License-Identifier: Apache-2.0
#include "tools/store/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "tools/common/tool.hpp"

namespace pl::store_tools {

using tools::tool_failure;
namespace fs = std::filesystem;

file_memory file_memory::read(const std::string& path) {
  file_memory out;
  const int fd = path == "-" ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw tool_failure(format("%s: %s", path.c_str(), errno_text(errno).c_str()));
  struct stat about {};
  if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0) {
    out.bytes_ = static_cast<std::size_t>(about.st_size);
    void* address = mmap(nullptr, out.bytes_, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (address != MAP_FAILED) out.mapped_ = address;
  }
  const int code = out.mapped_ == nullptr ? out.read_text(fd) : 0;
  close(fd);
  // A directory, for one: what was read of it must not take the place of the value.
  if (code != 0) throw tool_failure(format("%s: %s", path.c_str(), errno_text(code).c_str()));
  return out;
}

file_memory::~file_memory() {
  if (mapped_ != nullptr) munmap(mapped_, bytes_);
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
    std::error_code ignored;
    if (one->symlink_status(ignored).type() == fs::file_type::regular)
      out.push_back(one->path().lexically_relative(folder).string());
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

std::string printable(const std::string& key) {
  std::string out;
  for (std::size_t i = 0; i < key.size(); ++i) {
    const auto byte = static_cast<unsigned char>(key[i]);
    const bool begins_control = byte == 0xc2 && i + 1 < key.size() && static_cast<unsigned char>(key[i + 1]) < 0xa0;
    if (byte == '\\') out += "\\\\";
    else if (byte == '\n') out += "\\n";
    else if (byte < 0x20 || byte == 0x7f || begins_control) out += format("\\x%02x", byte);
    else out += key[i];
  }
  return out;
}

std::string on_terminal(const std::string& key) { return isatty(STDOUT_FILENO) != 0 ? printable(key) : key; }

}  // namespace pl::store_tools
