// SPDX-License-Identifier: Apache-2.0
#include "tools/common/temporary_folder.hpp"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>

#include "base/text.hpp"
#include "tools/common/tool.hpp"

namespace pl::tools {

namespace fs = std::filesystem;

std::string temporary_parent() {
  std::error_code problem;
  const fs::path found = fs::temp_directory_path(problem);
  if (problem)
    throw tool_failure("there is no folder for temporary files (" + problem.message() +
                       "): let TMPDIR name one, or unset it for /tmp");
  return found.string();
}

temporary_folder::temporary_folder(const std::string& name, const std::string& parent)
    : path_((fs::path(parent.empty() ? temporary_parent() : parent) / ("peerlane-" + name + "-XXXXXX")).string()) {
  if (mkdtemp(path_.data()) == nullptr) throw tool_failure(format("%s: %s", path_.c_str(), errno_text(errno).c_str()));
}

temporary_folder::~temporary_folder() {
  std::error_code ignored;
  if (!is_kept_) fs::remove_all(path_, ignored);
}

}  // namespace pl::tools
