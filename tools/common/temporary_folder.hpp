// SPDX-License-Identifier: Apache-2.0
// A new folder of a command's own.
#pragma once

#include <sys/types.h>

#include <string>

namespace pl::tools {

// TMPDIR, or /tmp. Throws tool_failure if it is no folder.
std::string temporary_parent();

// Throws tool_failure if the path of a socket is longer than the kernel takes.
void check_socket_path(const std::string& path);

// Deleted with its contents at the end of the object, unless it is kept, and at the end of a process that ^C or kill -9
// ends.
class temporary_folder {
 public:
  enum class when_killed { deleted, kept };
  // "peerlane-<name>-" and six characters, in `parent`, or in TMPDIR if that is empty. Throws tool_failure.
  explicit temporary_folder(const std::string& name, const std::string& parent = {},
                            when_killed fate = when_killed::deleted);
  ~temporary_folder();
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  const std::string& path() const { return path_; }
  void keep() { is_kept_ = true; }

 private:
  bool start_remover();
  std::string path_;
  bool is_kept_ = false;
  int remover_end_ = -1;
  pid_t remover_ = -1;
};

}  // namespace pl::tools
