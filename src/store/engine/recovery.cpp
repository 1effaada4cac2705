// SPDX-License-Identifier: Apache-2.0
#include "store/engine/recovery.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "arch/crc32c.hpp"
#include "base/folder_list.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "store/engine/bytes.hpp"
#include "store/engine/path_failure.hpp"

namespace pl::store {
namespace {

unsigned long long shown_number(std::uint64_t value) { return value; }

failure damage(const std::string& text) { return failure{EUCLEAN, "store: " + text + kDamageAdvice}; }

// Whether the folder may be a new one whose index was not written yet.
result<bool> holds_nothing(const std::string& folder) {
  const auto files = list_folder(folder);
  if (files.code() == ENOENT) return true;
  if (!files) return path_failure(folder, files.error());
  for (const auto& file : *files) {
    const std::string extension = file.extension().string();
    if (extension == ".sst") return false;
    std::error_code error;
    if (extension == ".log" && std::filesystem::file_size(file, error) > 0) return false;
  }
  return true;
}

std::optional<std::string> current_manifest(const std::string& folder) {
  auto name = file_bytes(folder + "/CURRENT");
  if (name && name->ends_with('\n')) name->pop_back();
  return name;
}

// True if a release without marks has opened the store since: each opening writes a later manifest and removes the old
// one.
bool was_opened_since(const std::string& folder, const mark_state& mark) {
  const auto now = current_manifest(folder);
  for (const file_seal& one : mark.files) {
    if (!one.name.starts_with("MANIFEST-")) continue;
    std::error_code error;
    return now && now->starts_with("MANIFEST-") && *now > one.name && std::filesystem::exists(folder + "/" + *now, error) &&
           !std::filesystem::exists(folder + "/" + one.name, error);
  }
  return false;
}

status compare_seals(const std::string& folder, const mark_state& mark) {
  for (const file_seal& one : mark.files) {
    const auto now = seal_of(folder, one.name);
    const std::string path = folder + "/" + one.name;
    if (!now && now.code() == ENOENT) return damage(path + " is missing, which was there when the store was stopped");
    if (!now) return now.error();
    if (now->size_bytes != one.size_bytes)
      return damage(path + format(" has %llu bytes, and had %llu when the store was stopped", shown_number(now->size_bytes),
                                  shown_number(one.size_bytes)));
    if (now->crc != one.crc) return damage(path + " has other bytes than when the store was stopped");
  }
  const auto files = list_folder(folder);
  if (!files) return path_failure(folder, files.error());
  for (const auto& file : *files) {
    const std::string name = file.filename().string();
    if (file.extension() != ".log" || mark.find(name) != nullptr) continue;
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    if (error) return path_failure(file.string(), failure{error.value(), errno_text(error.value())});
    if (size != 0) return damage(file.string() + " holds something, and held nothing when the store was stopped");
  }
  return {};
}

failure lost(const recovery_input& question, const log_findings& logs, const replay_reach& reach, std::uint64_t need) {
  const std::uint64_t first_lost =
      std::min(logs.missing_from != 0 ? logs.missing_from : ~std::uint64_t{0}, reach.last_sequence + 1);
  const std::uint64_t last_lost = std::max(need, logs.missing_until);
  return damage(format("%s: the index's log is damaged (%s): changes %llu to %llu were acknowledged and are lost",
                       question.index_folder.c_str(), logs.damage.empty() ? "its end is missing" : logs.damage.c_str(),
                       shown_number(first_lost), shown_number(last_lost)));
}

}  // namespace

status need_regular_files(const std::string& index_folder) {
  const auto files = list_folder(index_folder);
  if (files.code() == ENOENT) return {};  // it is made later
  if (!files) return path_failure(index_folder, files.error());
  for (const auto& file : *files) {
    const std::string path = file.string();
    if (status regular = need_regular_file(path); !regular && regular.code() != EISDIR)
      return path_failure(path, regular.error());
  }
  return {};
}

result<recovery_plan> plan_recovery(const recovery_input& question) {
  recovery_plan plan;
  std::error_code error;
  const bool has_current = std::filesystem::exists(question.index_folder + "/CURRENT", error);
  if (error && error != std::errc::no_such_file_or_directory)
    return path_failure(question.index_folder + "/CURRENT", failure{error.value(), errno_text(error.value())});
  if (!has_current) {
    const auto is_empty = holds_nothing(question.index_folder);
    if (!is_empty) return is_empty.error();
    if (question.mark || question.has_extents || !*is_empty)
      return damage(question.index_folder + "/CURRENT is missing, and something was stored here");
    plan.is_new = true;
    return plan;
  }
  bool is_sealed = question.mark && question.mark->is_clean;
  if (is_sealed && was_opened_since(question.index_folder, *question.mark)) {
    PL_LOG(warn, "store: %s: an earlier release has opened it since; its files are not those that were sealed",
           question.index_folder.c_str());
    is_sealed = false;
  }
  if (is_sealed) {
    if (status same = compare_seals(question.index_folder, *question.mark); !same) return std::move(same).error();
    plan.is_sealed = true;
    plan.required = question.mark->required(question.boot);
    return plan;
  }
  plan.required = question.mark ? question.mark->required(question.boot) : 0;
  auto manifest = read_current_manifest(question.index_folder);
  if (!manifest) return manifest.error();
  if (manifest->end == manifest_file::ending::damaged)
    return damage(question.index_folder + "/" + manifest->name +
                  format(" is damaged at byte %zu of %zu", manifest->broken_at, manifest->bytes.size()));
  // RocksDB would create them again, without what the log says about them. Nothing is stored before there is a mark.
  if (question.mark && manifest->last_sequence && manifest->last_family < question.last_family)
    return damage(question.index_folder + "/" + manifest->name + " has lost records: families of the index are missing");
  const auto before = manifest->last_sequence;
  if (manifest->end == manifest_file::ending::torn) plan.torn = std::move(*manifest);
  const auto quick = scan_logs({question.index_folder, 0, false, before, {}});
  if (!quick) return quick.error();
  if (!plan.torn && quick->is_whole() && quick->last_sequence >= plan.required) return plan;
  // The first start was cut off: the index has no families yet.
  if (plan.torn && !question.mark && !question.has_extents) {
    const auto is_empty = holds_nothing(question.index_folder);
    if (!is_empty) return is_empty.error();
    if (*is_empty) return plan;
  }
  // Distinguishes the log's torn end, a flushed log, and damage.
  const auto reach = question.replay(plan.torn ? &*plan.torn : nullptr);
  if (!reach) return reach.error();
  const auto logs = scan_logs({question.index_folder, reach->first_log, true, before, {}});
  if (!logs) return logs.error();
  const std::uint64_t need = std::max(plan.required, logs->synced);
  const bool has_gap = logs->missing_from != 0 && logs->missing_from <= need;
  if (reach->last_sequence < need || has_gap) return lost(question, *logs, *reach, need);
  return plan;
}

result<std::vector<file_seal>> seals_of(const std::string& index_folder) {
  std::vector<file_seal> out;
  std::vector<std::string> names{"CURRENT"};
  const auto manifest = current_manifest(index_folder);
  if (manifest) names.push_back(*manifest);
  const auto files = list_folder(index_folder);
  if (!files) return path_failure(index_folder, files.error());
  for (const auto& file : *files) {
    std::error_code error;
    if (file.extension() == ".log" && std::filesystem::file_size(file, error) > 0) names.push_back(file.filename().string());
  }
  for (const std::string& name : names) {
    auto one = seal_of(index_folder, name);
    if (!one) return one.error();
    out.push_back(std::move(*one));
  }
  return out;
}

status write_manifest_copy(const std::string& index_folder, const std::string& path) {
  const auto name = current_manifest(index_folder);
  const auto bytes = name ? file_bytes(index_folder + "/" + *name) : std::nullopt;
  if (!bytes) return failure{ENOENT, "store: " + index_folder + ": no manifest"};
  std::string text;
  append_text(text, *name);
  append_text(text, *bytes);
  append_number(text, arch::crc32c(text.data(), text.size()));
  if (status regular = need_regular_file(path); !regular) return path_failure(path, regular.error());
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text << std::flush;
  return out ? status() : status(failure{EIO, "store: " + path + ": it cannot be written"});
}

std::optional<manifest_copy> read_manifest_copy(const std::string& path) {
  const auto text = file_bytes(path);
  if (!text) return std::nullopt;
  byte_reader reader(*text);
  manifest_copy copy;
  copy.name = reader.text();
  copy.bytes = reader.text();
  const auto crc = reader.number<std::uint32_t>();
  if (!reader.good_end() || arch::crc32c(text->data(), text->size() - sizeof crc) != crc) return std::nullopt;
  return copy;
}

}  // namespace pl::store
