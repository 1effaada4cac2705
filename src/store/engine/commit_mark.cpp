// SPDX-License-Identifier: Apache-2.0
#include "store/engine/commit_mark.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "arch/crc32c.hpp"
#include "base/clock.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "store/engine/bytes.hpp"
#include "store/engine/path_failure.hpp"
#include "store/engine/sparse_file.hpp"

namespace pl::store {
namespace {

constexpr std::uint64_t kMagic = 0x316b72616d2e6c70;  // "pl.mark1"
constexpr std::uint8_t kClean = 1;
constexpr std::uint64_t kSyncEveryNs = 1'000'000'000;

// The rest of the file from the current position. Returns nothing if it cannot be read.
std::optional<std::string> bytes_of(const std::string& path) {
  const auto opened = open_regular_file(path, O_RDONLY);
  if (!opened) return std::nullopt;
  const int file = *opened;
  std::string all;
  char part[65536];
  ssize_t got = 0;
  while ((got = ::read(file, part, sizeof part)) > 0) all.append(part, static_cast<std::size_t>(got));
  const int error = errno;
  ::close(file);
  errno = error;
  if (got < 0) return std::nullopt;
  return all;
}

}  // namespace

// Piece by piece: a backup seals extent files, which may be larger than memory.
result<file_seal> seal_of(const std::string& folder, const std::string& name) {
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
  static constexpr char kZeros[4096] = {};
  const std::string path = folder + "/" + name;
  const auto opened = open_regular_file(path, O_RDONLY);
  if (!opened) return path_failure(path, opened.error());
  const int file = *opened;
  stop_readahead(file);
  file_seal seal{name};
  std::vector<char> piece(kPieceBytes);
  ssize_t got = 0;
  do {
    const auto data = static_cast<std::uint64_t>(find_data(file, static_cast<off_t>(seal.size_bytes)));
    while (seal.size_bytes < data) {
      const auto zeros = std::min<std::uint64_t>(sizeof kZeros, data - seal.size_bytes);
      seal.crc = arch::crc32c(kZeros, zeros, seal.crc);
      seal.size_bytes += zeros;
    }
    got = ::pread(file, piece.data(), piece.size(), static_cast<off_t>(seal.size_bytes));
    if (got > 0) {
      seal.crc = arch::crc32c(piece.data(), static_cast<std::size_t>(got), seal.crc);
      seal.size_bytes += static_cast<std::uint64_t>(got);
    }
  } while (got > 0 || (got < 0 && errno == EINTR));
  const int error = errno;
  ::close(file);
  if (got < 0) return failure{error, "store: " + path + ": " + errno_text(error)};
  return seal;
}

const file_seal* mark_state::find(std::string_view name) const {
  for (const file_seal& one : files)
    if (one.name == name) return &one;
  return nullptr;
}

std::string encode(const mark_state& state) {
  std::string text;
  append_number(text, kMagic);
  append_number(text, state.generation);
  append_number(text, static_cast<std::uint8_t>(state.is_clean ? kClean : 0));
  append_text(text, state.boot);
  append_number(text, state.written);
  append_number(text, state.synced);
  append_number(text, static_cast<std::uint16_t>(state.files.size()));
  for (const file_seal& one : state.files) {
    append_text(text, one.name);
    append_number(text, one.size_bytes);
    append_number(text, one.crc);
  }
  std::string out;
  append_number(out, static_cast<std::uint32_t>(text.size()));
  append_number(out, arch::crc32c(text.data(), text.size()));
  return out + text;
}

std::optional<mark_state> decode_mark(std::string_view slot) {
  byte_reader head(slot);
  const auto size = head.number<std::uint32_t>(), crc = head.number<std::uint32_t>();
  const std::string_view text = head.bytes(size);
  if (!head.good() || arch::crc32c(text.data(), text.size()) != crc) return std::nullopt;
  byte_reader reader(text);
  mark_state state;
  if (reader.number<std::uint64_t>() != kMagic) return std::nullopt;
  state.generation = reader.number<std::uint64_t>();
  state.is_clean = reader.number<std::uint8_t>() == kClean;
  state.boot = reader.text();
  state.written = reader.number<std::uint64_t>();
  state.synced = reader.number<std::uint64_t>();
  const auto count = reader.number<std::uint16_t>();
  for (unsigned i = 0; i < count && reader.good(); ++i) {
    file_seal one;
    one.name = reader.text();
    one.size_bytes = reader.number<std::uint64_t>();
    one.crc = reader.number<std::uint32_t>();
    state.files.push_back(std::move(one));
  }
  if (!reader.good_end()) return std::nullopt;
  return state;
}

std::optional<mark_state> commit_mark::read(const std::string& path) {
  const auto bytes = bytes_of(path);
  if (!bytes) return std::nullopt;
  std::optional<mark_state> newest;
  for (std::size_t offset = 0; offset < bytes->size(); offset += kSlotBytes) {
    auto one = decode_mark(std::string_view(*bytes).substr(offset, kSlotBytes));
    if (one && (!newest || one->generation > newest->generation)) newest = std::move(one);
  }
  return newest;
}

result<std::unique_ptr<commit_mark>> commit_mark::open(const std::string& path, disk& files, mark_state first) {
  const auto file = files.open_cached(path, 2 * kSlotBytes);
  if (!file) return failure{file.code(), "store: " + file.error().message};
  std::unique_ptr<commit_mark> made(new commit_mark(files, *file, std::move(first)));
  const std::lock_guard lock(made->mutex_);
  // Both slots are written, so that later damage to one does not bring back the state of an earlier run.
  for (int slot = 0; slot < 2; ++slot) {
    if (status written = made->write_locked(); !written) return std::move(written).error();
    if (status synced = made->sync_locked(); !synced) return std::move(synced).error();
  }
  return made;
}

commit_mark::~commit_mark() { files_.close_file(file_); }

status commit_mark::write_locked() {
  ++now_.generation;
  return files_.write_cached(file_, now_.generation % 2 * kSlotBytes, encode(now_));
}

status commit_mark::sync_locked() {
  if (status done = files_.sync(file_); !done) return done;
  durable_synced_ = now_.synced;
  synced_at_ns_ = monotonic_ns();
  return {};
}

status commit_mark::note(std::uint64_t written, std::uint64_t synced) {
  const std::lock_guard lock(mutex_);
  if (written <= now_.written && synced <= now_.synced) return {};
  now_.written = std::max(now_.written, written);
  now_.synced = std::max(now_.synced, synced);
  if (status done = write_locked(); !done) return done;
  if (now_.synced == durable_synced_ || monotonic_ns() - synced_at_ns_ < kSyncEveryNs) return {};
  return sync_locked();
}

std::uint64_t commit_mark::synced() const {
  const std::lock_guard lock(mutex_);
  return now_.synced;
}

bool commit_mark::is_dirty() const {
  const std::lock_guard lock(mutex_);
  return now_.synced != durable_synced_;
}

status commit_mark::sync() {
  const std::lock_guard lock(mutex_);
  return sync_locked();
}

status commit_mark::seal(std::vector<file_seal> sealed) {
  const std::lock_guard lock(mutex_);
  mark_state next = now_;
  next.is_clean = true;
  next.files = std::move(sealed);
  if (encode(next).size() > kSlotBytes)
    return failure{ENAMETOOLONG, "store: too many files of the index for the mark of a clean stop"};
  now_ = std::move(next);
  for (int slot = 0; slot < 2; ++slot) {
    if (status written = write_locked(); !written) return written;
    if (status synced = sync_locked(); !synced) return synced;
  }
  return {};
}

}  // namespace pl::store
