// SPDX-License-Identifier: Apache-2.0
#include "test/triggered/mlx5_model.hpp"

#include <dlfcn.h>
#include <endian.h>

#include <cstring>
#include <vector>

#include "base/text.hpp"

namespace pl::triggered {
namespace {

constexpr unsigned kBlock = 64, kSegment = 16;
constexpr unsigned kNothing = 0x00, kWrite = 0x08;  // codes of requests
constexpr unsigned kRequest = 0, kError = 13;       // and of completions
constexpr std::uint8_t kBadRequest = 0x02, kLocalMemory = 0x04, kGivenUp = 0x05, kRemoteMemory = 0x13;
constexpr std::uint32_t kInline = 0x80000000;
constexpr unsigned kWantsCompletion = 2u << 2;
constexpr std::size_t kPage = 4096;

template <class T>
T get(const std::byte* place) {
  T out;
  std::memcpy(&out, place, sizeof out);
  return out;
}
template <class T>
void set(std::byte* place, T value) {
  std::memcpy(place, &value, sizeof value);
}

template <class Function>
Function* simulator_call(const char* name) {
  test::simulated_cuda();
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name));
}

int network_write(std::uint64_t target, const void* source, std::size_t bytes) {
  static const auto call = simulator_call<int(std::uint64_t, const void*, std::size_t)>("peerlaneSimNetworkWrite");
  return call(target, source, bytes);
}

}  // namespace

mlx5_model::mlx5_model(const copy::gpu_context& gpu) : gpu_(gpu), thread_([this] { run(); }) {}

mlx5_model::~mlx5_model() {
  is_over_ = true;
  thread_.join();
}

void mlx5_model::add_memory(std::uint32_t key, std::uint64_t begin, std::uint64_t bytes, unsigned allowed) {
  const std::lock_guard lock(mutex_);
  memories_[key] = {begin, bytes, allowed};
}

void mlx5_model::remove_memory(std::uint32_t key) {
  const std::lock_guard lock(mutex_);
  memories_.erase(key);
}

void mlx5_model::set_disorder(unsigned long long seed, unsigned delay_us) {
  simulator_call<void(unsigned long long, unsigned)>("peerlaneSimSetDisorder")(seed, delay_us);
}

int mlx5_model::init_obj(mlx5dv_obj* object, std::uint64_t types) {
  if ((types & MLX5DV_OBJ_QP) != 0) {
    const auto& pair = *static_cast<queue_pair*>(object->qp.in->qp_context);
    auto& out = *object->qp.out;
    out.dbrec = pair.records;
    out.sq.buf = pair.ring;
    out.sq.wqe_cnt = pair.is.blocks;
    out.sq.stride = kBlock;
    out.bf.reg = pair.registers;
  }
  if ((types & MLX5DV_OBJ_CQ) != 0) {
    const auto& pair = *static_cast<queue_pair*>(object->cq.in->cq_context);
    auto& out = *object->cq.out;
    out.buf = pair.entries;
    out.dbrec = pair.read_record;
    out.cqe_cnt = pair.is.entries;
    out.cqe_size = pair.is.entry_bytes;
  }
  return 0;
}

// One piece of pinned memory: the ring, the completions, then a page of records and a page of registers.
mlx5_pair mlx5_model::add_pair(const shape& wanted) {
  const std::lock_guard lock(mutex_);
  auto& pair = pairs_.emplace_back();
  pair.is = wanted;
  const std::size_t ring_bytes = std::size_t{wanted.blocks} * kBlock,
                    entries_bytes = std::size_t{wanted.entries} * wanted.entry_bytes,
                    queue_bytes = (ring_bytes + entries_bytes + kPage - 1) / kPage * kPage;
  pair.pages = std::move(copy::pinned_buffer::make(gpu_, queue_bytes + 2 * kPage)).value();
  auto* const pages = pair.pages.data();
  std::memset(pages, 0, queue_bytes + 2 * kPage);
  pair.ring = pages;
  pair.entries = pages + ring_bytes;
  pair.records = reinterpret_cast<std::uint32_t*>(pages + queue_bytes);
  pair.read_record = reinterpret_cast<std::uint32_t*>(pages + queue_bytes + kBlock);
  pair.registers = reinterpret_cast<std::uint64_t*>(pages + queue_bytes + kPage);
  for (std::uint32_t i = 1; i <= wanted.entries; ++i) set<std::uint8_t>(pair.entries + i * wanted.entry_bytes - 1, 0xf0);
  pair.qp.qp_num = wanted.number;
  pair.qp.qp_context = &pair;
  pair.cq.cq_context = &pair;
  mlx5_pair out;
  out.queue = std::move(mlx5_place::inspect(&pair.qp, {&mlx5_model::init_obj})).value();
  out.completions = std::move(mlx5_completion_place::inspect(&pair.cq, {&mlx5_model::init_obj})).value();
  const auto on_gpu = [&](const void* place) {
    return pair.pages.device_address() + static_cast<std::uint64_t>(static_cast<const std::byte*>(place) - pages);
  };
  out.record = on_gpu(out.queue.record);
  out.doorbell = on_gpu(out.queue.doorbell);
  return out;
}

std::uint64_t mlx5_model::done(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  for (const auto& pair : pairs_)
    if (pair.is.number == number) return pair.done;
  return 0;
}

std::uint64_t mlx5_model::completions(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  for (const auto& pair : pairs_)
    if (pair.is.number == number) return pair.completions;
  return 0;
}

std::string mlx5_model::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void mlx5_model::fail(const std::string& reason) {
  if (fault_.empty()) fault_ = reason;
}

void mlx5_model::run() {
  const test::current_device device(gpu_.device_ordinal);
  if (cuda().cuStreamCreate(&stream_, cu::stream_flag::non_blocking) != 0) abort();
  while (!is_over_) {
    bool has_moved = false;
    if (may_work_) {
      const std::lock_guard lock(mutex_);
      for (auto& pair : pairs_) has_moved |= advance(pair);
    }
    if (!has_moved) std::this_thread::yield();
  }
  static_cast<void>(cuda().cuStreamDestroy_v2(stream_));
}

// The register gets the first eight bytes of the last request; the record must have come before.
void mlx5_model::look_at_register(queue_pair& pair) {
  const auto doorbell = __atomic_load_n(pair.registers, __ATOMIC_ACQUIRE);
  if (doorbell == pair.last_doorbell) return;
  pair.last_doorbell = doorbell;
  const auto record = be32toh(__atomic_load_n(&pair.records[1], __ATOMIC_ACQUIRE));
  const auto* const bytes = reinterpret_cast<const std::byte*>(&pair.last_doorbell);
  const auto rung = static_cast<std::uint16_t>((be32toh(get<std::uint32_t>(bytes)) >> 8) + 1);
  if (be32toh(get<std::uint32_t>(bytes + 4)) >> 8 != pair.is.number) fail("a doorbell of another queue pair");
  if (record > 0xffff) fail("a doorbell record of more than 16 bits");
  if (static_cast<std::int16_t>(static_cast<std::uint16_t>(record) - rung) < 0) fail("a doorbell before its record");
  const std::uint64_t posted = pair.posted;
  const auto more = static_cast<std::uint16_t>(record - static_cast<std::uint16_t>(posted));
  if (posted + more - pair.done > pair.is.blocks) fail("more requests than the ring holds, or a record that went back");
  pair.posted = posted + more;
}

bool mlx5_model::advance(queue_pair& pair) {
  look_at_register(pair);
  while (!is_holding_ && !pair.held.empty()) {
    complete(pair, pair.held.front());
    pair.held.pop_front();
  }
  if (pair.done == pair.posted || !fault_.empty()) return false;
  unsigned blocks = 1;
  bool is_signaled = false;
  const auto number = static_cast<std::uint16_t>(pair.done);
  const auto syndrome = pair.is_broken ? kGivenUp : carry_out(pair, blocks, is_signaled);
  pair.is_broken |= syndrome != 0;
  pair.done += blocks;
  if (syndrome != 0 || is_signaled) pair.held.push_back({number, syndrome});
  return true;
}

// Segments of 16 bytes: control, remote address, then data. Returns a syndrome.
std::uint8_t mlx5_model::carry_out(queue_pair& pair, unsigned& blocks, bool& is_signaled) {
  const auto head = pair.ring + pair.done % pair.is.blocks * kBlock;
  const auto code = be32toh(get<std::uint32_t>(head)), length = be32toh(get<std::uint32_t>(head + 4));
  if ((code >> 8 & 0xffff) != (pair.done & 0xffff) || length >> 8 != pair.is.number) return kBadRequest;
  const unsigned segments = length & 0x3f;
  blocks = (segments * kSegment + kBlock - 1) / kBlock;
  if (blocks == 0 || blocks > pair.posted - pair.done) return blocks = 1, kBadRequest;
  is_signaled = (get<std::uint8_t>(head + 11) & kWantsCompletion) == kWantsCompletion;
  std::vector<std::byte> whole;  // a request goes on at the ring's begin
  for (unsigned i = 0; i < segments * kSegment; ++i)
    whole.push_back(pair.ring[(pair.done % pair.is.blocks * kBlock + i) % (pair.is.blocks * kBlock)]);
  if ((code & 0xff) == kNothing) return 0;
  if ((code & 0xff) != kWrite || code >> 24 != 0 || segments < 2) return kBadRequest;
  auto target = be64toh(get<std::uint64_t>(whole.data() + 16));
  const auto key = be32toh(get<std::uint32_t>(whole.data() + 24));
  for (std::size_t place = 2 * kSegment; place < whole.size();) {
    const auto count = be32toh(get<std::uint32_t>(whole.data() + place));
    std::uint64_t bytes = count & ~kInline;
    std::vector<std::byte> data(bytes);
    if ((count & kInline) != 0) {
      if (place + 4 + bytes > whole.size()) return kBadRequest;
      std::memcpy(data.data(), whole.data() + place + 4, bytes);
      place += (4 + bytes + kSegment - 1) / kSegment * kSegment;
    } else {
      const auto origin = be64toh(get<std::uint64_t>(whole.data() + place + 8));
      if (bytes == 0 || !is_inside(be32toh(get<std::uint32_t>(whole.data() + place + 4)), origin, bytes, local))
        return kLocalMemory;
      if (cuda().cuMemcpyDtoHAsync_v2(data.data(), origin, bytes, stream_) != 0 || cuda().cuStreamSynchronize(stream_) != 0)
        return kLocalMemory;
      place += kSegment;
    }
    if (const auto syndrome = write(data.data(), bytes, key, target); syndrome != 0) return syndrome;
    target += bytes;
  }
  return 0;
}

std::uint8_t mlx5_model::write(const std::byte* begin, std::uint64_t bytes, std::uint32_t key, std::uint64_t target) {
  if (!is_inside(key, target, bytes, remote_write)) return kRemoteMemory;
  return network_write(target, begin, bytes) == 0 ? std::uint8_t{0} : kRemoteMemory;
}

bool mlx5_model::is_inside(std::uint32_t key, std::uint64_t address, std::uint64_t bytes, unsigned needed) {
  const auto found = memories_.find(key);
  if (found == memories_.end() || (found->second.allowed & needed) != needed) return false;
  return address >= found->second.begin && bytes <= found->second.bytes &&
         address - found->second.begin <= found->second.bytes - bytes;
}

void mlx5_model::complete(queue_pair& pair, queue_pair::completion one) {
  const auto read = be32toh(__atomic_load_n(pair.read_record, __ATOMIC_ACQUIRE));
  const std::uint64_t number = pair.completions;
  if (((number - read) & 0xffffff) >= pair.is.entries) return fail("a completion queue was overrun");
  auto* const entry = pair.entries + (number % pair.is.entries + 1) * pair.is.entry_bytes - 64;
  std::memset(entry, 0xa5, 63);  // what an adapter leaves in fields that mean nothing
  set<std::uint32_t>(entry + 56, htobe32(kWrite << 24 | pair.is.number));
  set<std::uint16_t>(entry + 60, htobe16(one.request));
  set<std::uint8_t>(entry + 54, 0x77);
  set<std::uint8_t>(entry + 55, one.syndrome);
  const unsigned code = one.syndrome == 0 ? kRequest : kError, round = number / pair.is.entries & 1;
  __atomic_store_n(reinterpret_cast<std::uint8_t*>(entry + 63), static_cast<std::uint8_t>(code << 4 | round),
                   __ATOMIC_RELEASE);
  ++pair.completions;
}

}  // namespace pl::triggered
