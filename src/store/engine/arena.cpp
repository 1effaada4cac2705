// SPDX-License-Identifier: Apache-2.0
#include "store/engine/arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "base/text.hpp"

namespace pl::store {
namespace {

std::uint64_t slots_of(std::uint64_t slot_bytes) { return kBlockBytes / slot_bytes; }
std::uint64_t all_free(std::uint64_t slot_bytes) {
  const std::uint64_t count = slots_of(slot_bytes);
  return count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

// Limits for values whose only copy is in memory. Slots may take half of the arena, because spilling small values costs
// more than the room it frees. All such values together may take seven eighths. The rest serves values on their way to
// and from the disk.
constexpr std::uint64_t kSoleCopySlotsPart = 2, kReservePart = 8;
constexpr std::uint64_t kReadPart = 16, kMaxReadBytes = std::uint64_t{16} << 20;  // reserved for reads

// Reserves an address range of this size, aligned to `page_bytes`. Returns null on failure; errno has the reason.
std::byte* reserve(std::uint64_t bytes, std::uint64_t page_bytes) {
  const std::uint64_t step = std::max(page_bytes, std::uint64_t{2} << 20);
  void* const found = ::mmap(nullptr, bytes + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  auto* const base = static_cast<std::byte*>(found);
  const std::uint64_t before = -reinterpret_cast<std::uintptr_t>(base) % step;
  if (before > 0) ::munmap(base, before);
  if (before < step) ::munmap(base + before + bytes, step - before);
  return base + before;
}

// Maps a memfd with pages of this kind. info.fd stays -1 if the system refuses.
int map_memory(arena_info& info, unsigned kind) {
  const int fd = ::memfd_create("peerlane-store", MFD_CLOEXEC | MFD_ALLOW_SEALING | kind);
  if (fd < 0) return errno;
  int error = 0;
  std::byte* base = nullptr;
  struct stat about {};
  if (::ftruncate(fd, static_cast<off_t>(info.size_bytes)) == 0 && ::fstat(fd, &about) == 0)
    base = reserve(2 * info.size_bytes, static_cast<std::uint64_t>(about.st_blksize));
  // Normal pages are allocated when touched. Huge pages are reserved here; otherwise a later touch could raise SIGBUS.
  const int flags = MAP_SHARED | MAP_FIXED | (kind == 0 ? MAP_NORESERVE : 0);
  if (base == nullptr || ::mmap(base, info.size_bytes, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED) {
    error = errno;
    if (base != nullptr) ::munmap(base, 2 * info.size_bytes);
    ::close(fd);
    return error;
  }
  info.fd = fd;
  info.base = base;
  return 0;
}

}  // namespace

result<std::unique_ptr<arena>> arena::make(std::uint64_t size_bytes, std::uint64_t chunk_bytes, bool huge_pages) {
  arena_info info;
  info.chunk_bytes = chunk_bytes;
  info.size_bytes = (size_bytes + chunk_bytes - 1) / chunk_bytes * chunk_bytes;
  if (huge_pages) {
    if (const int error = map_memory(info, MFD_HUGETLB); error != 0)
      PL_LOG(warn, "store: no huge pages for %s of arena (%s; see /proc/sys/vm/nr_hugepages), normal ones",
             format_size(info.size_bytes).c_str(), errno_text(error).c_str());
  }
  info.huge_pages = info.fd >= 0;
  if (info.fd < 0) {
    if (const int error = map_memory(info, 0); error != 0)
      return failure{error,
                     format("arena of %s: %s%s", format_size(info.size_bytes).c_str(), errno_text(error).c_str(),
                            error == ENOMEM  ? ": raise the limit of memory (ulimit -v, or the container's), or give "
                                               "a smaller --arena"
                            : error == EFBIG ? ": raise the limit of file sizes (ulimit -f), or give a smaller --arena"
                                             : "")};
    ::madvise(info.base, info.size_bytes, MADV_HUGEPAGE);  // a hint
  }
  std::unique_ptr<arena> made(new arena(info));
  // A process that holds the descriptor must not be able to shrink the memory.
  if (::fcntl(info.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return failure{errno, "arena: memfd cannot be sealed: " + errno_text(errno)};
  // The file's mode keeps a read-only descriptor from being reopened for writing through /proc. F_SEAL_FUTURE_WRITE
  // does not fit: it would apply to every descriptor, and some clients map the memory to write.
  if (::fchmod(info.fd, S_IRUSR) != 0) return failure{errno, "arena: mode of the memfd: " + errno_text(errno)};
  made->info_.read_only_fd = ::open(format("/proc/self/fd/%d", info.fd).c_str(), O_RDONLY | O_CLOEXEC);
  if (made->info_.read_only_fd < 0)
    return failure{
        errno, "arena: opening it read-only through /proc: " + errno_text(errno) + (errno == ENOENT ? ": mount /proc" : "")};
  return made;
}

arena::arena(const arena_info& info) : info_(info), space_(info.chunk_bytes) { space_.add(segment{0, info.size_bytes}); }

arena::~arena() {
  ::munmap(info_.base, 2 * info_.size_bytes);
  ::close(info_.fd);
  if (info_.read_only_fd >= 0) ::close(info_.read_only_fd);
}

bool arena::open_apart() {
  if (private_is_open_) return true;
  private_is_open_ = ::mprotect(info_.base + info_.size_bytes, info_.size_bytes, PROT_READ | PROT_WRITE) == 0;
  return private_is_open_;
}

bool arena::may_take(std::uint64_t size_bytes, bool small, placement place) const {
  const std::uint64_t whole = info_.size_bytes;
  const std::uint64_t reserve = place.for_read ? 0 : std::min(whole / kReadPart, kMaxReadBytes);
  if (space_.free_bytes() < size_bytes + reserve) return false;
  if (!place.sole_copy) return true;
  if (small && sole_copy_slot_bytes_ + size_bytes > whole / kSoleCopySlotsPart) return false;
  return sole_copy_bytes_ + size_bytes <= whole - whole / kReservePart;
}

bool arena::is_sole_copy_full(std::uint64_t size_bytes) const {
  const bool small = size_bytes <= kSlotBytes;
  placement place;
  place.for_read = true;  // the other limits do not apply
  std::lock_guard lock(mutex_);
  if (!may_take(small ? kBlockBytes : whole_blocks(size_bytes), small, place)) return false;
  place.sole_copy = true;
  return !may_take(small ? kBlockBytes : whole_blocks(size_bytes), small, place);
}

bool arena::mark_sole_copy(std::span<const segment> pieces) noexcept {
  std::uint64_t bytes = 0;
  for (const segment& piece : pieces) bytes += whole_blocks(piece.size_bytes);
  std::lock_guard lock(mutex_);
  if (sole_copy_bytes_ + bytes > info_.size_bytes - info_.size_bytes / kReservePart) return false;
  sole_copy_bytes_ += bytes;
  return true;
}

std::optional<std::vector<segment>> arena::allocate_blocks(std::uint64_t size_bytes, placement place,
                                                           std::size_t max_pieces) {
  const std::uint64_t bytes = whole_blocks(size_bytes);
  if (!may_take(bytes, size_bytes <= kSlotBytes, place) || (place.apart && !open_apart())) return std::nullopt;
  auto pieces = space_.allocate(size_bytes, max_pieces);
  if (!pieces) return pieces;
  if (place.sole_copy) sole_copy_bytes_ += bytes;
  if (place.apart)
    for (segment& piece : *pieces) piece.offset_bytes += info_.size_bytes;
  return pieces;
}

void arena::release_blocks(segment piece, bool sole_copy) {
  if (sole_copy) sole_copy_bytes_ -= piece.size_bytes;
  if (piece.offset_bytes >= info_.size_bytes) {
    // Memory that is used in both halves would double the tier, so the pages of the other half are given back.
    ::madvise(info_.base + piece.offset_bytes, piece.size_bytes, MADV_DONTNEED);
    piece.offset_bytes -= info_.size_bytes;
  }
  space_.release({&piece, 1});
}

std::optional<std::vector<segment>> arena::allocate(std::uint64_t size_bytes, placement place) {
  if (size_bytes == 0) return std::vector<segment>{};
  std::optional<std::vector<segment>> pieces;
  {
    std::lock_guard lock(mutex_);
    if (size_bytes <= kSlotBytes) {
      if (const auto slot = allocate_slot(size_bytes, place)) pieces.emplace(1, *slot);
    } else {
      pieces = allocate_blocks(size_bytes, place);
    }
  }
  if (!pieces) return std::nullopt;
  std::uint64_t whole = 0;
  for (const segment& piece : *pieces) whole += piece.size_bytes;
  segment& last = pieces->back();
  zero_behind(last, last.size_bytes - (whole - size_bytes));
  return pieces;
}

// Zeroes the rest of the last block: it holds bytes of earlier values, which would go to disk with this one.
void arena::zero_behind(segment& piece, std::uint64_t used_bytes) const noexcept {
  const std::uint64_t excess = piece.size_bytes - used_bytes;
  // Checked because a memset of no bytes is still a masked store, which takes 0.4 us if the page is not there yet.
  if (excess > 0) std::memset(info_.base + piece.offset_bytes + used_bytes, 0, excess);
  piece.size_bytes = used_bytes;
}

void arena::allocate_many(std::span<const std::uint64_t> sizes, placement place, std::span<segment> pieces) {
  std::fill(pieces.begin(), pieces.end(), segment{});
  {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      if (sizes[i] != 0 && sizes[i] <= kSlotBytes) pieces[i] = allocate_slot(sizes[i], place).value_or(segment{});
    allocate_side_by_side(sizes, place, pieces);
  }
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (pieces[i].size_bytes != 0) zero_behind(pieces[i], sizes[i]);
}

// Places all values in one range; if there is none that long, tries each half of the list.
void arena::allocate_side_by_side(std::span<const std::uint64_t> sizes, placement place, std::span<segment> pieces) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t one : sizes) bytes += one > kSlotBytes ? whole_blocks(one) : 0;
  if (bytes == 0) return;
  if (const auto found = allocate_blocks(bytes, place, 1)) {
    std::uint64_t offset = found->front().offset_bytes;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] <= kSlotBytes) continue;
      pieces[i] = {offset, whole_blocks(sizes[i])};
      offset += pieces[i].size_bytes;
    }
    return;
  }
  if (sizes.size() == 1) return;
  const std::size_t half = sizes.size() / 2;
  allocate_side_by_side(sizes.first(half), place, pieces.first(half));
  allocate_side_by_side(sizes.subspan(half), place, pieces.subspan(half));
}

void arena::release(std::span<const segment> pieces, bool sole_copy) noexcept {
  if (pieces.empty()) return;
  {
    std::lock_guard lock(mutex_);
    for (segment piece : pieces) {
      if (lies_in_slot(piece)) {
        release_slot(piece);
        continue;
      }
      piece.size_bytes = whole_blocks(piece.size_bytes);
      release_blocks(piece, sole_copy);
    }
    releases_.fetch_add(1, std::memory_order_release);
    if (waiting_ == 0) return;
  }
  released_.notify_all();
}

// The last piece of a longer value may be as short as a slot.
bool arena::lies_in_slot(const segment& piece) const {
  return piece.size_bytes <= kSlotBytes && slot_blocks_.count(piece.offset_bytes / kBlockBytes * kBlockBytes) != 0;
}

void arena::release_many(std::span<released_piece> pieces) noexcept {
  if (pieces.empty()) return;
  std::sort(pieces.begin(), pieces.end(),
            [](const released_piece& a, const released_piece& b) { return a.piece.offset_bytes < b.piece.offset_bytes; });
  {
    std::lock_guard lock(mutex_);
    released_piece range;  // grows by neighbours
    const auto end_range = [&] {
      if (range.piece.size_bytes != 0) release_blocks(range.piece, range.sole_copy);
    };
    for (const released_piece& one : pieces) {
      if (lies_in_slot(one.piece)) {
        release_slot(one.piece);
        continue;
      }
      const segment whole{one.piece.offset_bytes, whole_blocks(one.piece.size_bytes)};
      const bool is_next = range.piece.offset_bytes + range.piece.size_bytes == whole.offset_bytes &&
                           range.sole_copy == one.sole_copy && whole.offset_bytes % info_.chunk_bytes != 0;
      if (is_next && range.piece.size_bytes != 0) {
        range.piece.size_bytes += whole.size_bytes;
        continue;
      }
      end_range();
      range = {whole, one.sole_copy};
    }
    end_range();
    releases_.fetch_add(1, std::memory_order_release);
    if (waiting_ == 0) return;
  }
  released_.notify_all();
}

std::optional<segment> arena::allocate_slot(std::uint64_t size_bytes, placement place) {
  const std::uint64_t slot_bytes = std::max(kSmallestSlotBytes, std::bit_ceil(size_bytes));
  auto& roomy = roomy_[{slot_bytes, place.apart, place.sole_copy}];
  if (roomy.empty()) {
    if (!may_take(kBlockBytes, true, place)) return std::nullopt;
    const auto fresh = allocate_blocks(kBlockBytes, place);
    if (!fresh) return std::nullopt;
    if (place.sole_copy) sole_copy_slot_bytes_ += kBlockBytes;
    slot_blocks_[fresh->front().offset_bytes] = slot_block{slot_bytes, all_free(slot_bytes), place.sole_copy};
    roomy.insert(fresh->front().offset_bytes);
  }
  const std::uint64_t block = *roomy.begin();
  slot_block& slots = slot_blocks_[block];
  const auto slot = static_cast<std::uint64_t>(std::countr_zero(slots.free));
  slots.free &= slots.free - 1;
  if (slots.free == 0) roomy.erase(block);
  return segment{block + slot * slot_bytes, slot_bytes};
}

void arena::release_slot(const segment& piece) {
  const std::uint64_t block = piece.offset_bytes / kBlockBytes * kBlockBytes;
  slot_block& slots = slot_blocks_[block];
  const bool sole_copy = slots.sole_copy;
  auto& roomy = roomy_[{slots.slot_bytes, block >= info_.size_bytes, sole_copy}];
  if (slots.free == 0) roomy.insert(block);
  slots.free |= std::uint64_t{1} << ((piece.offset_bytes - block) / slots.slot_bytes);
  if (slots.free != all_free(slots.slot_bytes)) return;
  roomy.erase(block);
  slot_blocks_.erase(block);
  if (sole_copy) sole_copy_slot_bytes_ -= kBlockBytes;
  release_blocks(segment{block, kBlockBytes}, sole_copy);
}

bool arena::wait_for_release(std::uint64_t seen, deadline_t deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++waiting_;
  const bool happened =
      released_.wait_until(lock, deadline, [&] { return releases_.load(std::memory_order_relaxed) != seen; });
  --waiting_;
  return happened;
}

std::uint64_t arena::used_bytes() const {
  std::lock_guard lock(mutex_);
  return space_.total_bytes() - space_.free_bytes();
}

}  // namespace pl::store
