// SPDX-License-Identifier: Apache-2.0
#include "test/compat/gdrapi/gdrapi_model.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/text.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {

gdrapi_model::~gdrapi_model() { finish(); }

void gdrapi_model::require(bool truth, const char* claim) {
  if (!truth && problem_.empty()) problem_ = claim;
}

void gdrapi_model::expect(const char* call, int got, int wanted) {
  ++calls_[call];
  if (wanted == 0) ++calls_[std::string(call) + " succeeded"];
  if (got != wanted && problem_.empty())
    problem_ = format("%s returned %d, the model says %d (last error: %s)", call, got, wanted, gdr_last_error());
}

bool gdrapi_model::is_open(gdr_t g) const { return std::find(sessions_.begin(), sessions_.end(), g) != sessions_.end(); }

gdr_t gdrapi_model::pick_session(byte_source& source) {
  const std::uint32_t choice = source.next();
  if (choice < 220 && !sessions_.empty()) return sessions_[choice % sessions_.size()];
  if (choice < 235 && !closed_.empty()) return closed_[choice % closed_.size()];
  if (choice < 240 && !pins_.empty()) return reinterpret_cast<gdr_t>(pins_[choice % pins_.size()].handle.h);
  if (choice < 245 && !sessions_.empty()) return reinterpret_cast<gdr_t>(reinterpret_cast<char*>(sessions_[0]) + 8);
  static const std::uintptr_t kGarbage[] = {0, 1, ~std::uintptr_t{0}, 0x7f0000001000, 0xffff888000000000};
  return reinterpret_cast<gdr_t>(kGarbage[choice % 5]);
}

gdr_mh_t gdrapi_model::pick_handle(byte_source& source, pin*& known) {
  known = nullptr;
  const std::uint32_t choice = source.next();
  if (choice < 235 && !pins_.empty()) {
    const std::size_t recent = std::min<std::size_t>(pins_.size(), choice < 200 ? 6 : pins_.size());
    pin& picked = pins_[pins_.size() - 1 - choice % recent];
    if (picked.live) known = &picked;
    return picked.handle;
  }
  if (choice < 240 && !sessions_.empty()) return {reinterpret_cast<unsigned long>(sessions_[0])};
  if (choice < 248 && !pins_.empty()) return {pins_.back().handle.h + 8 * (choice - 239)};
  static const unsigned long kGarbage[] = {0, 1, ~0ul, 0x7f0000001000, 0xdead0000beef0000};
  return {kGarbage[choice % 5]};
}

// The answer that every call on (gdr_t, handle) gives before it checks further.
int gdrapi_model::wanted_of_pair(gdr_t g, const pin* known) const {
  return is_open(g) && known != nullptr && known->owner == g ? 0 : EINVAL;
}

void gdrapi_model::open(byte_source&) {
  if (sessions_.size() >= 3 || opens_ >= kMaxOpens) return;
  ++opens_;
  gdr_t g = gdr_open();
  ++calls_["open"];
  require(g != nullptr, "gdr_open failed");
  require(!is_open(g), "gdr_open returned an instance that is open already");
  require(std::find(closed_.begin(), closed_.end(), g) == closed_.end(), "gdr_open gave out a stale pointer again");
  if (g != nullptr) sessions_.push_back(g);
}

void gdrapi_model::close(byte_source& source) {
  gdr_t g = pick_session(source);
  const bool was_open = is_open(g);
  expect("close", gdr_close(g), was_open ? 0 : EINVAL);
  if (!was_open) return;
  std::erase(sessions_, g);
  closed_.push_back(g);
  for (pin& p : pins_)
    if (p.owner == g) p.live = p.mapped = false;
}

// The simulator backs each large allocation with fresh (zero) memory, which the model relies on.
void gdrapi_model::allocate(byte_source& source) {
  if (allocations_.size() >= 4) return;
  const std::size_t bytes = kChunkBytes * (1 + source.next() % 2);
  allocation made{0, bytes};
  require(simulated_cuda().cuMemAlloc_v2(&made.pointer, bytes) == 0, "cuMemAlloc failed");
  require(made.pointer % kChunkBytes == 0, "the simulator no longer aligns large allocations to 2 MiB: adapt the model");
  allocations_.push_back(made);
  for (std::size_t offset = 0; offset < bytes; offset += kChunkBytes)
    chunks_[made.pointer + offset] = contents(static_cast<unsigned char*>(std::calloc(1, kChunkBytes)), std::free);
}

void gdrapi_model::release(byte_source& source) {
  if (allocations_.empty()) return;
  const std::size_t index = source.next() % allocations_.size();
  const allocation gone = allocations_[index];
  allocations_.erase(allocations_.begin() + static_cast<std::ptrdiff_t>(index));
  require(simulated_cuda().cuMemFree_v2(gone.pointer) == 0, "cuMemFree failed");
  for (std::size_t offset = 0; offset < gone.bytes; offset += kChunkBytes) chunks_.erase(gone.pointer + offset);
}

bool gdrapi_model::every_granule_lives(std::uint64_t begin, std::uint64_t end) const {
  for (std::uint64_t chunk = begin & ~std::uint64_t{kChunkBytes - 1}; chunk < end; chunk += kChunkBytes)
    if (chunks_.count(chunk) == 0) return false;
  return true;
}

std::vector<gdrapi_model::contents> gdrapi_model::chunks_under(const pin& p) const {
  std::vector<contents> out;
  for (std::uint64_t chunk = p.first_chunk; chunk < p.begin + p.bytes; chunk += kChunkBytes)
    out.push_back(chunks_.at(chunk));
  return out;
}

void gdrapi_model::pin_some(byte_source& source) {
  static const std::size_t kSizes[] = {
      65536, 65536,           3 * 65536,           1, 100, 70'000, kChunkBytes, 2 * kChunkBytes, 3 * kChunkBytes,
      0,     ~std::size_t{0}, std::size_t{1} << 40};
  static const std::uint64_t kOffsets[] = {0, 0, 0, 65536, 65536, 8 * 65536, 1, 4096, kChunkBytes - 65536, kChunkBytes - 1};
  gdr_t g = pick_session(source);
  const std::size_t size = kSizes[source.next() % std::size(kSizes)];
  const std::uint32_t choice = source.next();
  std::uint64_t address = choice > 245 ? 0 : choice > 240 ? reinterpret_cast<std::uint64_t>(this) : 1 << 20;
  if (choice <= 240 && !allocations_.empty()) address = allocations_[choice % allocations_.size()].pointer;
  if (choice <= 240) address += kOffsets[source.next() % std::size(kOffsets)];
  const std::uint32_t flags = source.next();

  std::uint64_t end = 0;
  const bool wraps = __builtin_add_overflow(address, size, &end) || end > ~std::uint64_t{65535};
  const bool fits = size != 0 && address != 0 && !wraps && size < (1u << 30) && every_granule_lives(address, end);
  gdr_mh_t handle{0x5555};
  const int got = (flags & 2) != 0 ? gdr_pin_buffer_v2(g, address, size, flags, &handle)
                                   : gdr_pin_buffer(g, address, size, 1, 2, &handle);
  expect("pin", got, is_open(g) && fits ? 0 : EINVAL);
  if (got != 0) return require(handle.h == 0, "a failed pin left a handle");
  for (const pin& p : pins_) require(p.handle.h != handle.h, "a handle of this run was given out again");
  pin made;
  made.handle = handle;
  made.owner = g;
  made.live = true;
  made.asked = address;
  made.begin = address & ~std::uint64_t{65535};
  made.bytes = ((end + 65535) & ~std::uint64_t{65535}) - made.begin;
  made.first_chunk = made.begin & ~std::uint64_t{kChunkBytes - 1};
  if (problem_.empty()) made.chunks = chunks_under(made);
  pins_.push_back(std::move(made));
}

void gdrapi_model::map(byte_source& source) {
  gdr_t g = pick_session(source);
  pin* known = nullptr;
  const gdr_mh_t handle = pick_handle(source, known);
  const std::uint64_t pinned = known != nullptr ? known->bytes : 65536;
  const std::uint64_t sizes[] = {pinned, pinned, pinned, 1, 5000, pinned + 1, 0, ~std::uint64_t{0}};
  const std::uint64_t size = sizes[source.next() % std::size(sizes)];
  const std::uint32_t choice = source.next();
  const int flags = choice < 200 ? static_cast<int>(choice % 2) : static_cast<int>(choice % 8) - 1;
  int wanted = wanted_of_pair(g, known);
  if (flags < 0 || flags > 3) wanted = EINVAL;
  if (wanted == 0 && known->asked % 65536 != 0) wanted = EINVAL;
  if (wanted == 0 && known->mapped) wanted = EAGAIN;
  else if (wanted == 0 && (size == 0 || size > pinned)) wanted = EINVAL;
  else if (wanted == 0 && flags > 1) wanted = EOPNOTSUPP;
  void* va = this;
  const int got = gdr_map_v2(g, handle, &va, size, flags);
  expect("map", got, wanted);
  if (got != 0) return require(va == this, "a failed map wrote its output");
  if (!problem_.empty()) return;
  known->mapped = true;
  known->va = static_cast<char*>(va);
  known->mapped_bytes = (size + 4095) & ~std::size_t{4095};
}

void gdrapi_model::unmap(byte_source& source) {
  gdr_t g = pick_session(source);
  pin* known = nullptr;
  const gdr_mh_t handle = pick_handle(source, known);
  const std::uint32_t choice = source.next();
  char* va = known != nullptr ? known->va : nullptr;
  std::size_t size = known != nullptr ? known->mapped_bytes : 4096;
  if (choice > 240) va = reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(va) + 4096);
  if (choice % 16 == 15) size += 4096;
  int wanted = wanted_of_pair(g, known);
  if (wanted == 0 && (!known->mapped || va != known->va || size != known->mapped_bytes)) wanted = EINVAL;
  const int got = gdr_unmap(g, handle, va, size);
  expect("unmap", got, wanted);
  if (got == 0 && known != nullptr) known->mapped = false;
}

void gdrapi_model::unpin(byte_source& source) {
  gdr_t g = pick_session(source);
  pin* known = nullptr;
  const gdr_mh_t handle = pick_handle(source, known);
  const int got = gdr_unpin_buffer(g, handle);
  expect("unpin", got, wanted_of_pair(g, known));
  if (got == 0 && known != nullptr) {
    known->live = known->mapped = false;
    known->chunks.clear();
  }
}

void gdrapi_model::info(byte_source& source) {
  gdr_t g = pick_session(source);
  pin* known = nullptr;
  const gdr_mh_t handle = pick_handle(source, known);
  gdr_info_t filled;
  std::memset(&filled, 0xcc, sizeof filled);
  const int got = gdr_get_info_v2(g, handle, &filled);
  expect("info", got, wanted_of_pair(g, known));
  if (got != 0 || known == nullptr) return;
  require(filled.va == known->begin && filled.mapped_size == known->bytes, "info: wrong range");
  require(filled.mapped == (known->mapped ? 1 : 0), "info: wrong mapped bit");
  require(filled.mapping_type == (known->mapped ? GDR_MAPPING_TYPE_WC : GDR_MAPPING_TYPE_NONE), "info: wrong type");
}

unsigned char& gdrapi_model::byte_at(pin& p, std::uint64_t address) {
  const std::uint64_t offset = address - p.first_chunk;
  return p.chunks[offset / kChunkBytes][offset % kChunkBytes];
}

void gdrapi_model::copy(byte_source& source) {
  pin* known = nullptr;
  const gdr_mh_t handle = pick_handle(source, known);
  const std::uint32_t kind = source.next();
  std::size_t size = source.next16() % 5000;
  char host[5000], seen[5000];
  for (std::size_t i = 0; i < sizeof host; ++i) host[i] = static_cast<char>(i * 31 + kind + size);
  std::memset(seen, 0x6b, sizeof seen);
  if (known == nullptr || !known->mapped) {
    char* nowhere = known != nullptr ? known->va : host;
    expect("copy_to unmapped", gdr_copy_to_mapping(handle, nowhere, host, size), EINVAL);
    expect("copy_from unmapped", gdr_copy_from_mapping(handle, seen, nowhere, size), EINVAL);
    return;
  }
  // Somewhere in the mapping, often at its end, sometimes across it.
  const std::size_t limit = known->mapped_bytes;
  const std::size_t offset =
      kind < 128 ? (source.next16() * 37) % limit : limit - std::min(limit, std::size_t{source.next16()} % 6000);
  if (kind % 8 == 7 && limit - offset + 2 < sizeof host)
    size = limit - offset + kind / 8 % 3;  // up to the last byte, or over
  const bool inside = size == 0 || (offset <= limit && size <= limit - offset);
  char* mapped = known->va + offset;
  const int wrote = kind % 4 == 0 ? gdr_copy_to_mapping_unfenced(handle, mapped, host, size)
                                  : gdr_copy_to_mapping(handle, mapped, host, size);
  expect("copy_to", wrote, inside ? 0 : EINVAL);
  const std::uint64_t device = known->begin + offset;
  if (wrote == 0)
    for (std::size_t i = 0; i < size; ++i) byte_at(*known, device + i) = static_cast<unsigned char>(host[i]);
  if (kind % 4 == 0) expect("flush", gdr_flush_mapping(handle), 0);
  // A stretch that begins elsewhere, so that bytes beside the write are looked at too.
  const std::size_t back = std::min<std::size_t>(offset, kind % 300);
  const std::size_t length =
      std::min<std::size_t>(std::min<std::size_t>(size + 2 * back, sizeof seen), limit - (offset - back));
  expect("copy_from", gdr_copy_from_mapping(handle, seen, mapped - back, length), 0);
  const std::uint64_t begin = device - back;
  for (std::size_t i = 0; i < length; ++i)
    if (static_cast<unsigned char>(seen[i]) != byte_at(*known, begin + i)) return require(false, "copy_from: wrong bytes");
  if (length < sizeof seen) require(seen[length] == 0x6b, "copy_from wrote past its size");
  // The bytes that CUDA sees, while the memory still belongs to it.
  const auto chunk = chunks_.find(begin & ~std::uint64_t{kChunkBytes - 1});
  const bool same_memory = chunk != chunks_.end() &&
                           chunk->second == known->chunks[(begin - known->first_chunk) / kChunkBytes] &&
                           (begin % kChunkBytes) + length <= kChunkBytes;
  if (!same_memory || length == 0) return;
  require(simulated_cuda().cuMemcpyDtoH_v2(host, begin, length) == 0, "cuMemcpyDtoH failed");
  require(std::memcmp(host, seen, length) == 0, "CUDA sees other bytes than the mapping");
}

void gdrapi_model::small_questions(byte_source& source) {
  gdr_t g = pick_session(source);
  int value = -1, major = -1, minor = -1;
  const int attribute = static_cast<int>(source.next() % 6);
  const int open = is_open(g) ? 0 : EINVAL;
  const bool known_attribute = attribute >= 1 && attribute <= 3;
  expect("attribute", gdr_get_attribute(g, static_cast<gdr_attr_t>(attribute), &value), known_attribute ? open : EINVAL);
  require(value == (open == 0 && known_attribute && attribute != 3 ? 1 : 0), "attribute: wrong value");
  expect("driver_version", gdr_driver_get_version(g, &major, &minor), open);
  require(open == 0 ? major == 2 && minor == 6 : major == -1 && minor == -1, "driver_version: wrong outputs");
  pin* known = nullptr;
  const gdr_mh_t handle = pick_handle(source, known);
  int flag = -1;
  expect("callback_flag", gdr_get_callback_flag(g, handle, &flag), wanted_of_pair(g, known));
}

// A child may use nothing of ours, and what it tries changes nothing here.
void gdrapi_model::fork_and_try() {
  if (!may_fork_ || forked_ || sessions_.empty()) return;
  forked_ = true;
  ++calls_["fork"];
  const pid_t child = fork();
  if (child == 0) {
    gdr_mh_t handle{};
    void* va = nullptr;
    for (gdr_t g : sessions_) {
      if (gdr_pin_buffer(g, 1 << 20, 65536, 0, 0, &handle) != EACCES) _exit(1);
      if (gdr_close(g) != EACCES) _exit(2);
    }
    for (gdr_t g : closed_)
      if (gdr_close(g) != EINVAL) _exit(3);
    for (const pin& p : pins_) {
      const int wanted = p.live ? EACCES : EINVAL;
      if (gdr_copy_to_mapping(p.handle, p.va, "x", 1) != wanted) _exit(4);
      if (gdr_map(sessions_[0], p.handle, &va, 65536) != EACCES) _exit(5);
      if (gdr_unpin_buffer(sessions_[0], p.handle) != EACCES) _exit(6);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0 && problem_.empty()) problem_ = format("a forked child: status 0x%x", static_cast<unsigned>(status));
}

std::string gdrapi_model::run(byte_source source) {
  open(source);
  allocate(source);
  while (!source.empty() && problem_.empty()) {
    const std::uint32_t action = source.next();
    if (action < 12) open(source);
    else if (action < 20) close(source);
    else if (action < 32) allocate(source);
    else if (action < 40) release(source);
    else if (action < 90) pin_some(source);
    else if (action < 140) map(source);
    else if (action < 155) unmap(source);
    else if (action < 175) unpin(source);
    else if (action < 190) info(source);
    else if (action < 250) copy(source);
    else if (action < 255) small_questions(source);
    else fork_and_try();
  }
  return problem_;
}

std::string gdrapi_model::finish() {
  for (gdr_t g : sessions_)
    if (gdr_close(g) != 0) require(false, "gdr_close at the end failed");
  sessions_.clear();
  for (const allocation& left : allocations_) simulated_cuda().cuMemFree_v2(left.pointer);
  allocations_.clear();
  return problem_;
}

}  // namespace pl::test
