// SPDX-License-Identifier: Apache-2.0
// peerlane store check, repair, backup, restore: commands for the folder of a stopped store.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "store/engine/store_folder.hpp"
#include "tools/common/options.hpp"
#include "tools/common/temporary_folder.hpp"
#include "tools/common/terminal.hpp"
#include "tools/common/tool.hpp"
#include "tools/store/files.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

// Temporary files of a command are removed however it ends, also by ^C or kill -9.
class temporary_files {
 public:
  temporary_files() {
    try {
      folder_.emplace("index");
      setenv("TMPDIR", folder_->path().c_str(), 1);
    } catch (const tools::tool_failure&) {  // a command that needs one says why it has none
    }
  }

 private:
  std::optional<tools::temporary_folder> folder_;
};

void print_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::printf("%s\n", tools::without_controls(line).c_str());
}

}  // namespace

int run_check(const tools::invocation& call) {
  std::string data;
  tools::command_parser parser(
      call, "Reads the whole folder of a stopped store and lists the damage; exit code 1 if there is any");
  parser.text("--data", "DIR", data, "Directory of the store");
  if (const auto code = parser.parse()) return *code;
  const temporary_files temporary;
  const auto report = tools::must(store::check_folder(data));
  print_lines(report.problems);
  std::printf("%s: %" PRIu64 " keys, %" PRIu64 " values of %" PRIu64 " bytes read, %zu problems; %s\n",
              printable(data).c_str(), report.keys, report.values_read, report.bytes_read, report.problems.size(),
              report.is_good() ? "good"
              : report.opens   ? "damaged, `serve` can serve the rest"
                               : "damaged, `serve` refuses it: use `repair` or `restore`");
  return report.is_good() ? tools::kExitOk : tools::kExitFailed;
}

int run_repair(const tools::invocation& call) {
  std::string data, destination;
  bool no_owners = false;
  tools::command_parser parser(
      call,
      "Makes a new store from the intact values of a stopped store and lists what is lost; exit code 1 if anything is lost");
  parser.text("--data", "DIR", data, "Directory of the damaged store; it is not changed");
  parser.text("--to", "DIR", destination, "Empty or new directory for the new store");
  parser.flag("--no-principals", no_owners,
              "Do not keep who put which value, so that releases from before quotas can open the new store");
  if (const auto code = parser.parse()) return *code;
  const temporary_files temporary;
  const auto report = tools::must(store::repair_folder(data, destination, nullptr, !no_owners));
  for (const std::string& line : report.lost) std::printf("lost: %s\n", tools::without_controls(line).c_str());
  std::printf("%s: %" PRIu64 " values of %" PRIu64 " bytes saved, %zu losses listed\n", printable(destination).c_str(),
              report.saved_keys, report.saved_bytes, report.lost.size());
  return report.lost.empty() ? tools::kExitOk : tools::kExitFailed;
}

int run_backup(const tools::invocation& call) {
  std::string data, destination;
  tools::command_parser parser(
      call, "Copies the folder of a stopped store with checksums and verifies the copy; refuses a damaged store");
  parser.text("--data", "DIR", data, "Directory of the store");
  parser.text("--to", "DIR", destination, "Empty or new directory for the backup");
  if (const auto code = parser.parse()) return *code;
  const temporary_files temporary;
  const auto report = tools::must(store::backup_folder(data, destination));
  std::printf("%s: backup of %" PRIu64 " values, %" PRIu64 " bytes, verified\n", printable(destination).c_str(),
              report.values_read, report.bytes_read);
  return tools::kExitOk;
}

int run_restore(const tools::invocation& call) {
  std::string data, source;
  tools::command_parser parser(
      call, "Restores a backup to an empty folder, compares all checksums, and gives the store a new identity");
  parser.text("--from", "DIR", source, "Directory of the backup");
  parser.text("--data", "DIR", data, "Empty or new directory for the store");
  if (const auto code = parser.parse()) return *code;
  const temporary_files temporary;
  const auto report = tools::must(store::restore_folder(source, data));
  std::printf("%s: %" PRIu64 " values, %" PRIu64 " bytes restored, verified\n", printable(data).c_str(), report.values_read,
              report.bytes_read);
  return tools::kExitOk;
}

}  // namespace pl::store_tools
