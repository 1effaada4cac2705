// SPDX-License-Identifier: Apache-2.0
// Checks the store's structures against each other, and its values against their checksums.
#include <algorithm>
#include <map>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

class checker {
 public:
  checker(engine::impl& owner, engine::check_report& findings) : owner_(owner), report_(findings) {}

  status run(bool values) {
    values_ = values;
    const std::uint64_t begun_at = owner_.records->last_sequence();
    // Compares records in two snapshots. Records that changed in between are checked again.
    status scanned = owner_.records->scan(family::values, "", "", false, [&](std::string_view full, std::string_view raw) {
      check_record(full, raw);
      if (values) to_read_.emplace_back(full);
      return true;
    });
    if (!scanned) return scanned;
    scanned = owner_.records->scan(family::extents, "", "", false, [&](std::string_view full, std::string_view) {
      if (!large_.count(std::string(full))) recheck(std::string(full));
      return true;
    });
    if (!scanned) return scanned;
    if (status compared = compare_counts(begun_at); !compared) return compared;
    overlaps();
    for (const std::string& full : to_read_) read(full);
    return {};
  }

 private:
  void problem(std::string_view full, const std::string& text) {
    constexpr std::size_t kMaxProblems = 1000;
    if (report_.problems.size() < kMaxProblems)
      report_.problems.push_back(format("pool %u, key %s: %s", pool_of(full), shown(key_of(full)).c_str(), text.c_str()));
  }

  void check_record(std::string_view full, std::string_view raw) {
    ++report_.keys;
    const auto record = decode_value(raw);
    if (!record) return problem(full, "its record is damaged");
    for (const owner_id holder : {kAllOwners, record->owner}) {
      pool_counts& held = found_[{pool_of(full), holder}];
      ++held.keys;
      held.bytes += record->length_bytes;
    }
    if (!owner_.known.find(pool_of(full))) problem(full, "its pool does not exist");
    if (record->large() && !values_) {
      if (const auto reason = owner_.space->why_lost(record->extents)) problem(full, "its value is lost: " + *reason);
    }
    if (!record->large()) {
      if (arch::crc32c(record->small_value.data(), record->small_value.size()) != record->crc)
        problem(full, "its value in the index has another checksum");
      return;
    }
    large_.emplace(full, record->extents);
  }

  // Compares the catalogue's counts of pools and owners with the values that the scan has seen, unless there was a
  // write meanwhile: then the two describe different moments.
  status compare_counts(std::uint64_t begun_at) {
    std::map<std::pair<pool_id, owner_id>, pool_counts> said;
    status scanned = owner_.records->scan(family::catalogue, "", "", false, [&](std::string_view key, std::string_view raw) {
      const bool is_pool = key.size() == 5 && key[0] == 'c', is_owner = key.size() == 9 && key[0] == 'q';
      if (!is_pool && !is_owner) return true;
      const pool_id pool = read_ordered(key.substr(1));
      if (const auto counts = decode_counts(raw); counts && counts->keys != 0)
        said[{pool, is_pool ? kAllOwners : read_ordered(key.substr(5))}] = *counts;
      return true;
    });
    if (!scanned || owner_.records->last_sequence() != begun_at) return scanned;
    std::erase_if(found_, [](const auto& one) { return one.first.second == 0; });  // nobody's values are not counted
    for (const auto& [holder, counts] : found_) compare(holder, counts, said[holder]);
    for (const auto& [holder, counts] : said)
      if (!found_.contains(holder)) compare(holder, {}, counts);
    return {};
  }

  void compare(const std::pair<pool_id, owner_id>& holder, const pool_counts& found, const pool_counts& said) {
    if (found.keys == said.keys && found.bytes == said.bytes) return;
    const std::string owner =
        holder.second == kAllOwners ? std::string() : " of " + shown(owner_.name_of_owner(holder.second));
    report_.problems.push_back(
        format("pool %u: its values%s are %llu with %llu bytes, its counts say %llu with %llu", holder.first, owner.c_str(),
               static_cast<unsigned long long>(found.keys), static_cast<unsigned long long>(found.bytes),
               static_cast<unsigned long long>(said.keys), static_cast<unsigned long long>(said.bytes)));
  }

  // The two records of a large key are written together, so both or neither are there.
  void recheck(const std::string& full) {
    const auto value = owner_.records->get(family::values, full);
    const auto extents = owner_.records->get(family::extents, full);
    if (!value || !extents || value->has_value() == extents->has_value()) return;
    if (extents->has_value()) problem(full, "extents without a value");
  }

  void overlaps() {
    std::map<std::uint64_t, std::pair<std::uint64_t, std::string>> used;
    for (const auto& [full, pieces] : large_) {
      const auto stored = owner_.records->get(family::extents, full);
      const auto again = owner_.records->get(family::values, full);
      if (!stored || !again) continue;
      const auto now = *again ? decode_value(**again) : std::nullopt;
      if (!now || !now->large() || now->extents.front().offset_bytes != pieces.front().offset_bytes)
        continue;  // it changed meanwhile
      if (!*stored || encode_extents(pieces) != **stored)
        problem(full, "its extents are not those that start-up would read");
      for (const segment& piece : pieces) used.emplace(piece.offset_bytes, std::make_pair(piece.size_bytes, full));
    }
    std::uint64_t end = 0;
    for (const auto& [offset, extent_and_key] : used) {
      if (offset < end) problem(extent_and_key.second, "its extents overlap another key's");
      end = offset + extent_and_key.first;
    }
  }

  void read(const std::string& full) {
    const pool_ref pool = owner_.known.find(pool_of(full));
    if (!pool) return;
    const auto now = owner_.acquire(*pool, full, std::chrono::steady_clock::now() + std::chrono::seconds(10));
    if (now.code() == EFBIG) return read_windows(pool, full);
    if (!now) {
      if (now.error().code != ENOENT) problem(full, now.error().message);
      return;
    }
    ++report_.values_read;
    report_.bytes_read += (*now)->length_bytes;
    if (status same = owner_.verify(*pool, full, **now); !same) problem(full, same.error().message);
  }

  void read_windows(const pool_ref& pool, const std::string& full) {
    auto reader = owner_.make_reader(pool, full, 0, ~std::uint64_t{0}, nullptr);
    if (!reader) {
      if (reader.code() == EAGAIN) return read(full);  // it was replaced meanwhile
      if (reader.code() != ENOENT) problem(full, reader.error().message);
      return;
    }
    ++report_.values_read;
    report_.bytes_read += (*reader)->info().length_bytes;
    if (status same = (*reader)->verify(); !same) problem(full, same.error().message);
  }

  engine::impl& owner_;
  engine::check_report& report_;
  static constexpr owner_id kAllOwners = ~owner_id{0};  // the pool's own counts
  std::map<std::pair<pool_id, owner_id>, pool_counts> found_;
  std::map<std::string, std::vector<segment>> large_;
  std::vector<std::string> to_read_;
  bool values_ = false;
};

}  // namespace

result<engine::check_report> engine::check(bool values) {
  check_report report;
  if (status done = checker(*impl_, report).run(values); !done) return std::move(done).error();
  return report;
}

}  // namespace pl::store
