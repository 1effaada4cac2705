// SPDX-License-Identifier: Apache-2.0
#include "store/engine/extents.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "base/folder_list.hpp"
#include "base/log.hpp"
#include "base/shortage.hpp"
#include "base/text.hpp"
#include "store/engine/path_failure.hpp"

namespace pl::store {

extents::extents(options settings, disk& files)
    : options_(std::move(settings)), files_(files), space_(options_.file_bytes) {}

extents::~extents() {
  for (const int file : open_) {
    if (file >= 0) files_.close_file(file);
  }
}

std::string extents::path_of(std::uint64_t number) const {
  return options_.folder + format("/%06llu.extents", static_cast<unsigned long long>(number));
}

result<std::unique_ptr<extents>> extents::open(options settings, disk& files) {
  std::unique_ptr<extents> made(new extents(std::move(settings), files));
  std::vector<std::uint64_t> numbers;
  const auto names = list_folder(made->options_.folder);
  if (!names) return path_failure(made->options_.folder, names.error());
  for (const auto& file : *names) {
    if (file.extension() != ".extents") continue;
    const auto number = parse_integer(file.stem().string());
    if (!number || *number < 0 || made->path_of(static_cast<std::uint64_t>(*number)) != file.string()) {
      PL_LOG(warn, "store: %s: not a name of an extent file, it is left alone", file.c_str());
      continue;
    }
    numbers.push_back(static_cast<std::uint64_t>(*number));
  }
  std::sort(numbers.begin(), numbers.end());
  for (const std::uint64_t number : numbers) {
    if (status added = made->open_found(number); !added) return std::move(added).error();
  }
  return made;
}

// A damaged file costs the values in it and no others.
status extents::open_found(std::uint64_t number) {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path_of(number), error);
  if (!error && size < options_.file_bytes) cut_at_[number] = size;
  status added = add_file(number);
  if (added || is_shortage_or_full(added.code())) return added;
  PL_LOG(error, "store: %s cannot be opened, the values in it are lost: %s", path_of(number).c_str(),
         added.error().message.c_str());
  cannot_open_[number] = added.error().message;
  return {};
}

status extents::add_file(std::uint64_t number) {
  // Completes a file that a crash left short; no value lies in the missing part.
  auto file = files_.open_file(path_of(number), options_.file_bytes, options_.read_only);
  if (!file) return std::move(file).error();
  std::lock_guard lock(mutex_);
  if (open_.size() <= number) open_.resize(number + 1, -1);
  open_[number] = *file;
  space_.add(segment{number * options_.file_bytes, options_.file_bytes});
  return {};
}

status extents::take(const segment& piece) {
  std::lock_guard lock(mutex_);
  if (piece.size_bytes % kBlockBytes == 0 && piece.offset_bytes % kBlockBytes == 0 && space_.take(piece)) {
    const auto cut = cut_at_.find(piece.offset_bytes / options_.file_bytes);
    if (cut != cut_at_.end() && piece.offset_bytes % options_.file_bytes + piece.size_bytes > cut->second)
      lost_[piece.offset_bytes] = {piece.size_bytes, true};
    return {};
  }
  return failure{EUCLEAN, format("extent of %llu bytes at %llu is outside of the extent files or in another value's extent",
                                 static_cast<unsigned long long>(piece.size_bytes),
                                 static_cast<unsigned long long>(piece.offset_bytes))};
}

bool extents::has_file(const segment& piece) const {
  std::lock_guard lock(mutex_);
  return file_of(piece.offset_bytes) >= 0;
}

status extents::take_lost(const segment& piece) {
  std::lock_guard lock(mutex_);
  const auto next = lost_.lower_bound(piece.offset_bytes);
  const bool overlaps =
      (next != lost_.end() && next->first < piece.offset_bytes + piece.size_bytes) ||
      (next != lost_.begin() && std::prev(next)->first + std::prev(next)->second.size_bytes > piece.offset_bytes);
  if (overlaps) return failure{EUCLEAN, "its extent overlaps another value's extent, in a file that is missing"};
  lost_[piece.offset_bytes] = {piece.size_bytes, false};
  return {};
}

std::optional<std::string> extents::why_lost(std::span<const segment> pieces) const {
  std::lock_guard lock(mutex_);
  if (lost_.empty()) return std::nullopt;
  for (const segment& piece : pieces) {
    const auto found = lost_.find(piece.offset_bytes);
    if (found == lost_.end()) continue;
    const std::uint64_t number = piece.offset_bytes / options_.file_bytes;
    if (const auto reason = cannot_open_.find(number); reason != cannot_open_.end())
      return "an extent file cannot be opened: " + reason->second;
    if (found->second.has_file)
      return format("%s was cut off at %llu bytes", path_of(number).c_str(),
                    static_cast<unsigned long long>(cut_at_.at(number)));
    return path_of(number) + " is missing";
  }
  return std::nullopt;
}

// The number of a lost file is not reused, because records still name places in it.
bool extents::may_add(std::uint64_t number) const {
  if (number < open_.size() && open_[number] >= 0) return false;
  if (cannot_open_.contains(number)) return false;
  const auto lost = lost_.lower_bound(number * options_.file_bytes);
  return lost == lost_.end() || lost->first >= (number + 1) * options_.file_bytes;
}

status extents::grow() {
  std::uint64_t number = 0;
  std::uint64_t total = 0;
  {
    std::lock_guard lock(mutex_);
    while (!may_add(number)) ++number;
    total = space_.total_bytes();
  }
  if (options_.limit_bytes != 0 && total + options_.file_bytes > options_.limit_bytes)
    return failure{ENOSPC, format("store: extent files are limited to %s", format_size(options_.limit_bytes).c_str())};
  if (options_.check_folder) {
    if (status ours = options_.check_folder(); !ours) return ours;
  }
  const auto free = files_.free_bytes(options_.folder);
  if (!free) return free.error();
  if (*free < options_.file_bytes + options_.reserve_bytes)
    return failure{ENOSPC, format("store: %s: %llu bytes free, an extent file of %s would leave less than the reserve of %s",
                                  options_.folder.c_str(), static_cast<unsigned long long>(*free),
                                  format_size(options_.file_bytes).c_str(), format_size(options_.reserve_bytes).c_str())};
  return add_file(number);
}

status extents::has_room(std::uint64_t size_bytes) const {
  std::uint64_t unused_bytes = 0, total = 0;
  {
    std::lock_guard lock(mutex_);
    unused_bytes = space_.free_bytes();
    total = space_.total_bytes();
  }
  if (whole_blocks(size_bytes) <= unused_bytes) return {};
  const auto free = files_.free_bytes(options_.folder);
  if (!free) return free.error();
  std::uint64_t more = *free > options_.reserve_bytes ? *free - options_.reserve_bytes : 0;
  if (options_.limit_bytes != 0) more = std::min(more, options_.limit_bytes > total ? options_.limit_bytes - total : 0);
  if (whole_blocks(size_bytes) - unused_bytes <= more / options_.file_bytes * options_.file_bytes) return {};
  return failure{ENOSPC,
                 format("store: %s: a value of %s does not fit: %s are free in its extent files, and %s can be added",
                        options_.folder.c_str(), format_size(size_bytes).c_str(), format_size(unused_bytes).c_str(),
                        format_size(more).c_str())};
}

result<std::vector<segment>> extents::allocate(std::uint64_t size_bytes, std::size_t max_pieces) {
  for (;;) {
    std::uint64_t seen = 0;
    {
      std::lock_guard lock(mutex_);
      if (auto pieces = space_.allocate(size_bytes, max_pieces)) return std::move(*pieces);
      seen = space_.total_bytes();
    }
    std::lock_guard one_at_a_time(growing_);
    {
      std::lock_guard lock(mutex_);
      if (space_.total_bytes() != seen) continue;  // another thread added a file
    }
    if (status grown = grow(); !grown) return std::move(grown).error();
  }
}

void extents::release(std::vector<segment> pieces) {
  if (pieces.empty()) return;
  std::lock_guard lock(mutex_);
  really_release(pieces);
}

void extents::really_release(std::vector<segment>& pieces) {
  if (readers_.empty()) return make_free(pieces);
  unread_.push_back(waiting{epoch_++, std::move(pieces)});
}

void extents::release_after_sync(std::vector<segment> pieces) {
  if (pieces.empty()) return;
  std::lock_guard lock(mutex_);
  parked_.push_back(waiting{++parkings_, std::move(pieces)});
}

std::uint64_t extents::parked() const {
  std::lock_guard lock(mutex_);
  return parkings_;
}

void extents::synced(std::uint64_t parked) {
  std::lock_guard lock(mutex_);
  std::size_t done = 0;
  while (done < parked_.size() && parked_[done].number <= parked) really_release(parked_[done++].pieces);
  parked_.erase(parked_.begin(), parked_.begin() + static_cast<std::ptrdiff_t>(done));
}

void extents::release_unread() {
  const std::uint64_t oldest = readers_.empty() ? ~std::uint64_t{0} : *readers_.begin();
  std::size_t done = 0;
  while (done < unread_.size() && unread_[done].number < oldest) make_free(unread_[done++].pieces);
  unread_.erase(unread_.begin(), unread_.begin() + static_cast<std::ptrdiff_t>(done));
}

void extents::make_free(const std::vector<segment>& pieces) {
  for (const segment& piece : pieces) {
    if (const auto lost = lost_.find(piece.offset_bytes); lost != lost_.end()) {
      const bool has_file = lost->second.has_file;
      lost_.erase(lost);
      if (!has_file) continue;
    }
    if (const auto found = holds_.find(piece.offset_bytes); found != holds_.end())
      found->second.freed_bytes = piece.size_bytes;
    else space_.release({&piece, 1});
  }
}

extents::held::held(extents& owner, std::vector<segment> pieces) : owner_(owner), pieces_(std::move(pieces)) {
  std::lock_guard lock(owner_.mutex_);
  for (const segment& piece : pieces_) ++owner_.holds_[piece.offset_bytes].readers;
}

extents::held::~held() {
  std::lock_guard lock(owner_.mutex_);
  for (const segment& piece : pieces_) {
    const auto found = owner_.holds_.find(piece.offset_bytes);
    if (--found->second.readers > 0) continue;
    const segment freed{piece.offset_bytes, found->second.freed_bytes};
    owner_.holds_.erase(found);
    if (freed.size_bytes > 0) owner_.space_.release({&freed, 1});
  }
}

extents::reading::reading(extents& owner) : owner_(owner) {
  std::lock_guard lock(owner_.mutex_);
  epoch_ = owner_.epoch_;
  owner_.readers_.insert(epoch_);
}

extents::reading::~reading() {
  std::lock_guard lock(owner_.mutex_);
  owner_.readers_.erase(owner_.readers_.find(epoch_));
  owner_.release_unread();
}

int extents::file_of(std::uint64_t offset) const {
  const std::uint64_t number = offset / options_.file_bytes;
  return number < open_.size() ? open_[number] : -1;
}

std::vector<block_io> extents::blocks(std::span<const segment> pieces, std::span<const std::span<std::byte>> memory) const {
  std::vector<block_io> made;
  std::size_t first = 0;
  std::uint64_t begun = 0;  // of memory[from]
  std::lock_guard lock(mutex_);
  for (const segment& piece : pieces) {
    for (std::uint64_t done = 0; done < piece.size_bytes && first < memory.size();) {
      const std::uint64_t size = std::min(piece.size_bytes - done, whole_blocks(memory[first].size()) - begun);
      const std::uint64_t offset = piece.offset_bytes + done;
      made.push_back(block_io{file_of(offset), offset % options_.file_bytes, memory[first].data() + begun, size});
      done += size;
      begun += size;
      if (begun < whole_blocks(memory[first].size())) continue;
      ++first;
      begun = 0;
    }
  }
  return made;
}

status extents::sync(std::span<const segment> pieces) {
  std::set<int> touched;
  {
    std::lock_guard lock(mutex_);
    for (const segment& piece : pieces) touched.insert(file_of(piece.offset_bytes));
  }
  for (const int file : touched) {
    if (status done = files_.sync(file); !done) return done;
  }
  return {};
}

std::uint64_t extents::total_bytes() const {
  std::lock_guard lock(mutex_);
  return space_.total_bytes();
}

std::uint64_t extents::used_bytes() const {
  std::lock_guard lock(mutex_);
  return space_.total_bytes() - space_.free_bytes();
}

}  // namespace pl::store
