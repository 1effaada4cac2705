// SPDX-License-Identifier: Apache-2.0
// Files whose bytes are values. Their failures are tool_failures that name the file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pl::store_tools {

// A file as memory; "-" is standard input. A file that another program cuts off meanwhile ends the command with a sentence.
class file_memory {
 public:
  static file_memory read(const std::string& path);
  file_memory(file_memory&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        bytes_(other.bytes_),
        text_(std::move(other.text_)),
        mapped_(std::exchange(other.mapped_, -1)),
        path_(std::move(other.path_)) {}
  file_memory& operator=(file_memory&&) = delete;
  ~file_memory();
  const void* data() const { return memory_ != nullptr ? memory_ : text_.data(); }
  std::size_t size() const { return bytes_; }
  // Throws if the memory may not have been the same all the time; for after it was stored.
  void check_unchanged() const;

 private:
  file_memory() = default;
  // Returns true if the memory now owns the descriptor.
  bool map(int fd, std::size_t bytes);
  void copy(int fd, std::size_t bytes);
  // Reads a pipe to its end. Returns 0 or an errno value.
  int read_text(int fd);
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::string text_;
  int mapped_ = -1;  // the descriptor of a file whose pages are the memory
  std::string path_;
};

// The whole bytes, or the file is as it was; its mode stays, less the umask. "-" is standard output. A file of another user,
// or with several names, is written where it is, and may be left with a part.
void write_file(const std::string& path, std::string_view bytes);

// The regular files below a folder, by their paths within it, in order. Links are not followed.
std::vector<std::string> files_below(const std::string& folder);
// Where the value of a key goes below a folder: "a/b" into a folder "a", which is made. Throws for a key that would lead out
// of the folder, or that no file can have as its name.
std::string file_of_key(const std::string& folder, const std::string& key);

// A name may hold any byte; a line shall stay one, and say nothing to the terminal.
std::string printable(const std::string& name);
// So where standard output is a terminal; the bytes themselves for who reads a pipe.
std::string on_terminal(const std::string& name);

}  // namespace pl::store_tools
