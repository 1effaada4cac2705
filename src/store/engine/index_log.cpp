// SPDX-License-Identifier: Apache-2.0
#include "store/engine/index_log.hpp"

#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "arch/crc32c.hpp"
#include "base/folder_list.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "store/engine/bytes.hpp"
#include "store/engine/path_failure.hpp"

namespace pl::store {
namespace {

// RocksDB's log format (db/log_format.h): blocks that contain fragments of records; no fragment crosses a block's
// border.
constexpr std::size_t kLogBlock = 32768;
constexpr std::size_t kFragmentHead = 7;  // checksum, length, type
constexpr std::size_t kBatchHead = 12;    // sequence number, count of changes
enum fragment_type : std::uint8_t { kZero = 0, kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };
constexpr std::string_view kStamp = "pl.synced";

template <class T>
T number_at(std::string_view bytes, std::size_t offset) {
  T out{};
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

constexpr std::size_t kSectorBytes = 512;  // what a disk writes atomically

// Verifies the log's form of the checksum. RocksDB masks it, so that the checksum of data that contain checksums stays
// useful.
bool is_whole(std::string_view fragment) {
  const std::uint32_t crc = arch::crc32c(fragment.data() + 6, fragment.size() - 6);
  const std::uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  return number_at<std::uint32_t>(fragment, 0) == masked;
}

class log_reader {
 public:
  log_reader(std::string name, std::string_view bytes, std::optional<std::uint64_t> before, log_findings& findings,
             const std::function<void(const log_batch&)>& each)
      : name_(std::move(name)),
        bytes_(bytes),
        before_(before),
        findings_(findings),
        each_(each),
        has_gap_before_(findings.missing_from != 0) {}

  void read() {
    while (offset_ < bytes_.size()) {
      const std::size_t left = std::min(kLogBlock - offset_ % kLogBlock, bytes_.size() - offset_);
      if (left < kFragmentHead) {
        if (left != kLogBlock - offset_ % kLogBlock) damaged("ends within the head of a record");
        offset_ += left;
        continue;
      }
      take_fragment(left);
    }
    if (in_record_) damaged("ends within a record");
  }

 private:
  void take_fragment(std::size_t left) {
    const auto length = number_at<std::uint16_t>(bytes_, offset_ + 4);
    const auto type = number_at<std::uint8_t>(bytes_, offset_ + 6);
    if (type == kZero && length == 0) {  // allocated, not written
      const auto rest = bytes_.substr(offset_, left);
      if (rest.find_first_not_of('\0') != std::string_view::npos) return skip_damage(left, "is not a record");
      if (in_record_) damaged("ends within a record");
      offset_ += left;
      return;
    }
    if (type > kLast || type == kZero || kFragmentHead + length > left) return skip_damage(left, "is not a record");
    const std::string_view fragment = bytes_.substr(offset_, kFragmentHead + length);
    if (!is_whole(fragment)) return skip_damage(left, "checksum of a record is wrong");
    add(fragment.substr(kFragmentHead), type);
    offset_ += fragment.size();
  }

  void add(std::string_view payload, std::uint8_t type) {
    if (type == kFull || type == kFirst) {
      if (in_record_) damaged("a record has no end");
      record_.clear();
      begun_at_ = offset_;
    } else if (!in_record_) {
      return damaged("a record has no beginning");
    }
    record_.append(payload);
    in_record_ = type == kFirst || type == kMiddle;
    if (!in_record_) tell(record_, false);
  }

  void tell(std::string_view record, bool is_damaged) {
    if (record.size() < kBatchHead) {
      if (!is_damaged) damaged("a record is too short");
      return;
    }
    log_batch batch;
    batch.place = name_ + format(" at %zu", begun_at_);
    batch.first_sequence = number_at<std::uint64_t>(record, 0);
    batch.changes = number_at<std::uint32_t>(record, 8);
    batch.bytes = record;
    batch.is_damaged = is_damaged;
    if (!is_damaged && batch.changes != 0) follow(batch);
    batch.is_behind_gap = findings_.missing_from != 0 && batch.first_sequence > findings_.missing_from;
    if (each_) each_(batch);
  }

  // Mirrors replay: after damage it continues with a batch that follows the last one. In a later log, such a batch was
  // written after the loss of power that tore the earlier log.
  void follow(const log_batch& batch) {
    const std::uint64_t last =
        findings_.last_sequence != 0 ? findings_.last_sequence : before_.value_or(~std::uint64_t{0} - 1);
    if (batch.first_sequence <= last + 1) {
      if (has_gap_before_) findings_.missing_from = findings_.missing_until = 0, has_gap_before_ = false;
      if (findings_.missing_from == 0) findings_.last_sequence = batch.end_sequence();
    } else if (findings_.missing_from == 0) {
      findings_.missing_from = last + 1;
      findings_.missing_until = batch.first_sequence - 1;
      if (findings_.damage.empty())
        findings_.damage = batch.place + format(": changes %llu to %llu before it are missing",
                                                static_cast<unsigned long long>(findings_.missing_from),
                                                static_cast<unsigned long long>(findings_.missing_until));
    }
  }

  // Continues at the next whole fragment and reports the bytes in between if they resemble a record.
  void skip_damage(std::size_t left, const char* cause) {
    std::string torn = in_record_ ? record_ : std::string();
    const std::size_t torn_at = in_record_ ? begun_at_ : offset_;
    damaged(cause);
    std::size_t next = 1;
    for (; next + kFragmentHead <= left; ++next) {
      const auto length = number_at<std::uint16_t>(bytes_, offset_ + next + 4);
      const auto type = number_at<std::uint8_t>(bytes_, offset_ + next + 6);
      if (type == kZero || type > kLast || next + kFragmentHead + length > left) continue;
      if (is_whole(bytes_.substr(offset_ + next, kFragmentHead + length))) break;
    }
    if (next + kFragmentHead > left) next = left;
    if (next > kFragmentHead) torn.append(bytes_.substr(offset_ + kFragmentHead, next - kFragmentHead));
    begun_at_ = torn_at;
    tell(torn, true);
    offset_ += next;
  }

  void damaged(const char* cause) {
    in_record_ = false;
    if (findings_.damage.empty()) findings_.damage = name_ + format(" at %zu: ", offset_) + cause;
  }

  const std::string name_;
  const std::string_view bytes_;
  const std::optional<std::uint64_t> before_;
  log_findings& findings_;
  const std::function<void(const log_batch&)>& each_;
  std::size_t offset_ = 0, begun_at_ = 0;
  bool in_record_ = false;
  bool has_gap_before_;  // in an earlier log
  std::string record_;
};

bool is_zero(std::string_view bytes) { return bytes.find_first_not_of('\0') == std::string_view::npos; }

// Whether whole sectors are missing from the broken fragment at `offset`.
bool is_fragment_torn(std::string_view bytes, std::size_t offset) {
  const std::size_t left = kLogBlock - offset % kLogBlock;
  if (bytes.size() - offset < kFragmentHead) return true;
  const auto type = number_at<std::uint8_t>(bytes, offset + 6);
  std::size_t size = kFragmentHead + number_at<std::uint16_t>(bytes, offset + 4);
  if (type == kZero || type > kLast || size > left) size = kFragmentHead;  // its header is torn or wrong
  if (offset + size > bytes.size()) return true;
  for (std::size_t first = offset; first < offset + size;) {
    const std::size_t next = std::min(offset + size, (first / kSectorBytes + 1) * kSectorBytes);
    if (is_zero(bytes.substr(first, next - first))) return true;
    first = next;
  }
  return false;
}

// Reads records until a fragment is broken or out of place.
class record_reader {
 public:
  record_reader(std::string_view bytes, const std::function<void(std::string_view)>& each) : bytes_(bytes), each_(each) {}

  log_prefix read() {
    std::size_t offset = 0;
    while (offset < bytes_.size()) {
      const std::size_t left = std::min(kLogBlock - offset % kLogBlock, bytes_.size() - offset);
      const bool is_filler = left < kFragmentHead && left == kLogBlock - offset % kLogBlock;
      if (!is_filler && is_zero(bytes_.substr(offset)) && !in_record_) return found_;
      if (!is_filler && !take(offset, left)) return broken(offset, is_fragment_torn(bytes_, offset));
      offset += is_filler ? left : kFragmentHead + number_at<std::uint16_t>(bytes_, offset + 4);
      if (!in_record_) found_.whole_bytes = offset;
    }
    return in_record_ ? broken(offset, true) : found_;
  }

 private:
  bool take(std::size_t offset, std::size_t left) {
    if (left < kFragmentHead) return false;
    const std::size_t size = kFragmentHead + number_at<std::uint16_t>(bytes_, offset + 4);
    const auto type = number_at<std::uint8_t>(bytes_, offset + 6);
    if (type == kZero || type > kLast || size > left || !is_whole(bytes_.substr(offset, size))) return false;
    const bool is_begin = type == kFull || type == kFirst;
    if (is_begin == in_record_) return false;
    if (is_begin) record_.clear();
    record_.append(bytes_.substr(offset + kFragmentHead, size - kFragmentHead));
    in_record_ = type == kFirst || type == kMiddle;
    if (!in_record_) each_(record_);
    return true;
  }
  log_prefix broken(std::size_t offset, bool is_torn) {
    found_.broken_at = offset;
    found_.is_torn = is_torn;
    return found_;
  }

  const std::string_view bytes_;
  const std::function<void(std::string_view)>& each_;
  log_prefix found_;
  bool in_record_ = false;
  std::string record_;
};

struct stamp_reader final : batch_visitor {
  std::uint64_t synced = 0;
  void put(std::uint32_t, std::string_view, std::string_view) override {}
  void erase(std::uint32_t, std::string_view) override {}
  void erase_range(std::uint32_t, std::string_view, std::string_view) override {}
  void stamp(std::uint64_t said) override { synced = std::max(synced, said); }
};

std::string_view text_of(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

class visiting final : public rocksdb::WriteBatch::Handler {
 public:
  explicit visiting(batch_visitor& visitor) : visitor_(visitor) {}
  rocksdb::Status PutCF(std::uint32_t family, const rocksdb::Slice& key, const rocksdb::Slice& value) override {
    visitor_.put(family, text_of(key), text_of(value));
    return {};
  }
  rocksdb::Status DeleteCF(std::uint32_t family, const rocksdb::Slice& key) override {
    visitor_.erase(family, text_of(key));
    return {};
  }
  rocksdb::Status DeleteRangeCF(std::uint32_t family, const rocksdb::Slice& first, const rocksdb::Slice& end) override {
    visitor_.erase_range(family, text_of(first), text_of(end));
    return {};
  }
  void LogData(const rocksdb::Slice& blob) override {
    const std::string_view said = text_of(blob);
    if (!said.starts_with(kStamp) || said.size() != kStamp.size() + 8) return;
    visitor_.stamp(number_at<std::uint64_t>(said, kStamp.size()));
  }

 private:
  batch_visitor& visitor_;
};

}  // namespace

std::string stamp_of(std::uint64_t synced) {
  std::string out(kStamp);
  append_number(out, synced);
  return out;
}

bool visit_batch(std::string_view bytes, batch_visitor& visitor) {
  if (bytes.size() < kBatchHead) return false;
  rocksdb::WriteBatch batch{std::string(bytes)};
  visiting handler(visitor);
  return batch.Iterate(&handler).ok();
}

log_prefix read_records(std::string_view bytes, const std::function<void(std::string_view)>& each) {
  return record_reader(bytes, each).read();
}

result<log_findings> scan_logs(const log_scan& scan) {
  const std::string& folder = scan.folder;
  std::vector<std::pair<std::uint64_t, std::string>> logs;
  const auto files = list_folder(folder);
  if (!files) return path_failure(folder, files.error());
  for (const auto& file : *files) {
    const std::string stem = file.stem().string();
    if (file.extension() != ".log" || stem.empty() || stem.size() > 18 ||
        stem.find_first_not_of("0123456789") != std::string::npos)
      continue;
    const std::uint64_t number = std::stoull(stem);
    if (number >= scan.first_log) logs.emplace_back(number, file.filename().string());
  }
  std::sort(logs.begin(), logs.end());
  log_findings found;
  stamp_reader stamped;
  const std::function<void(const log_batch&)> visit = [&](const log_batch& batch) {
    if (scan.stamps && !batch.is_damaged) visit_batch(batch.bytes, stamped);
    if (scan.each) scan.each(batch);
  };
  for (const auto& [number, name] : logs) {
    const std::string path = folder + "/" + name;
    const auto bytes = read_whole_file(path);
    if (!bytes) return path_failure(path, bytes.error());
    log_reader(name, *bytes, scan.before, found, visit).read();
  }
  found.last_sequence = std::max(found.last_sequence, scan.before.value_or(0));
  found.synced = stamped.synced;
  return found;
}

}  // namespace pl::store
