// SPDX-License-Identifier: Apache-2.0
#include "tools/common/temporary_folder.hpp"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>

#include "base/text.hpp"
#include "tools/common/tool.hpp"

namespace pl::tools {

namespace fs = std::filesystem;

temporary_folder::temporary_folder(const std::string& name, const std::string& parent)
    : path_(((parent.empty() ? fs::temp_directory_path() : fs::path(parent)) / ("peerlane-" + name + "-XXXXXX")).string()) {
  if (mkdtemp(path_.data()) == nullptr) throw tool_failure(format("%s: %s", path_.c_str(), errno_text(errno).c_str()));
}

temporary_folder::~temporary_folder() {
  std::error_code ignored;
  if (!is_kept_) fs::remove_all(path_, ignored);
}

}  // namespace pl::tools
