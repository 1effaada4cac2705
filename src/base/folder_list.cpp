// SPDX-License-Identifier: Apache-2.0
#include "base/folder_list.hpp"

#include <system_error>

#include "base/text.hpp"

namespace pl {

namespace fs = std::filesystem;

result<std::vector<fs::path>> list_folder(const std::string& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  fs::directory_iterator one(folder, error);
  for (; !error && one != fs::directory_iterator(); one.increment(error)) out.push_back(one->path());
  if (error) return failure{error.value(), errno_text(error.value())};
  return out;
}

result<bool> has_regular_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status known = fs::status(path, error);
  if (known.type() == fs::file_type::not_found) return false;
  if (error) return failure{error.value(), errno_text(error.value())};
  return known.type() == fs::file_type::regular;
}

}  // namespace pl
