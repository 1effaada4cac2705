// SPDX-License-Identifier: Apache-2.0
#include "compat/gdsync/gdsync_soft_pair.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "arch/copy_dispatch.hpp"
#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/text.hpp"
#include "cuda/pointer.hpp"
#include "messaging/node.hpp"
#include "os/blocked_signals.hpp"

namespace pl::gds {
namespace {

bool is_before(std::uint32_t count, std::uint32_t other) noexcept { return static_cast<std::int32_t>(count - other) < 0; }

// Nobody registers memory, so nobody keeps it from being unmapped before its message comes; an adapter reports that.
bool is_mapped(const char* data, std::size_t bytes) noexcept {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0) return true;
  constexpr std::size_t kPages = 256;
  unsigned char resident[kPages];
  const auto begin = reinterpret_cast<std::uintptr_t>(data) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(data) + bytes;
  for (auto page_begin = begin; page_begin < end; page_begin += kPages * page)
    if (mincore(reinterpret_cast<void*>(page_begin), std::min<std::uintptr_t>(end - page_begin, kPages * page), resident) !=
            0 &&
        errno == ENOMEM)
      return false;
  return true;
}

// These answer whether the memory is still there.
bool copy_out(const soft_piece& piece, char* target, std::size_t bytes) {
  if (piece.is_device) {
    arch::copy_from(piece.mapping->type, target, piece.data, bytes);
    return true;
  }
  if (!is_mapped(piece.data, bytes)) return false;
  std::memcpy(target, piece.data, bytes);
  return true;
}

// Reads GPU memory back: the completion is in host memory, and the GPU would not see it after these stores.
bool copy_in(const soft_piece& piece, const char* origin, std::size_t bytes) {
  if (bytes == 0) return true;
  if (!piece.is_device) {
    if (!is_mapped(piece.data, bytes)) return false;
    std::memcpy(piece.data, origin, bytes);
    return true;
  }
  arch::copy_to(piece.mapping->type, piece.data, origin, bytes);
  char last = 0;
  arch::copy_from(piece.mapping->type, &last, piece.data + bytes - 1, 1);
  return true;
}

}  // namespace

result<std::shared_ptr<soft_pair>> soft_pair::make(const copy::gpu_context& context, unsigned sends, unsigned receives) {
  auto memory = triggered::shared_memory::make("peerlane-pair", kMemoryBytes);
  if (!memory) return memory.error();
  std::shared_ptr<soft_pair> out(new soft_pair(context, std::move(memory).value(), sends, receives));
  auto use = copy::context_use::enter(context);
  if (!use) return use.error();
  constexpr unsigned kFlags = cu::host_register_flag::portable | cu::host_register_flag::device_map;
  const auto rc = context.cuda->cuMemHostRegister_v2(out->memory_.data(), kWordsBytes, kFlags);
  if (rc != cu::error_code::success) return cu::make_error(*context.cuda, rc, "registering a queue pair's words");
  out->is_registered_ = true;
  return out;
}

soft_pair::~soft_pair() {
  if (!is_registered_) return;
  if (auto use = copy::context_use::enter(context_)) static_cast<void>(context_.cuda->cuMemHostUnregister(memory_.data()));
}

soft_pair::address soft_pair::own_address() const {
  const auto identity = messaging::node_identity::current();
  return {memory_.own_name(), identity.boot, identity.pid_namespace};
}

status soft_pair::connect(const address& destination) {
  messaging::node_identity peer_node;
  peer_node.boot = destination.boot;
  peer_node.pid_namespace = destination.pid_namespace;
  if (!messaging::node_identity::current().is_same_node(peer_node))
    return failure{ENOTSUP, "the peer of this queue pair is on another node: use peerlane/triggered.h"};
  if (destination.memory.bytes != kMemoryBytes) return failure{EINVAL, "not a queue pair's address"};
  auto theirs = triggered::shared_memory::open(destination.memory);
  if (!theirs) return failure{ENOTSUP, theirs.error().message};
  const std::lock_guard lock(mutex_);
  if (theirs_) return failure{EINVAL, "the queue pair is connected already"};
  theirs_.emplace(std::move(theirs).value());
  return {};
}

result<std::uint32_t> soft_pair::prepare(soft_work work) {
  std::size_t bytes = 0;
  for (const auto& each : work.pieces) bytes += each.bytes;
  if (bytes > kMaxBytes) return failure{EINVAL, "a message of a soft queue pair has at most 1 MiB"};
  const std::lock_guard lock(mutex_);
  if (!theirs_) return failure{EINVAL, "the queue pair is not connected: gds_soft_connect"};
  if (sends_.size() >= most_[0]) return failure{ENOMEM, "max_send_wr sends have not completed"};
  sends_.push_back(std::move(work));
  return ++prepared_;
}

void soft_pair::take_back() {
  const std::lock_guard lock(mutex_);
  sends_.pop_back();
  --prepared_;
}

status soft_pair::receive(soft_work work) {
  const std::lock_guard lock(mutex_);
  if (receives_.size() >= most_[1]) return failure{ENOMEM, "max_recv_wr receives are posted"};
  receives_.push_back(std::move(work));
  return {};
}

// Not in the words: a stream writes there how far it has come, and other waits may precede this one.
void soft_pair::give_up(side direction, std::uint32_t number) {
  const auto i = index(direction);
  const std::lock_guard lock(mutex_);
  if (is_before(polled_[i], number)) given_up_[i].insert(number);
}

std::optional<soft_completion> soft_pair::poll(side direction, std::uint32_t waits) {
  const auto i = index(direction);
  const std::lock_guard lock(mutex_);
  if (done_[i].empty()) return {};
  const auto next = polled_[i] + 1;
  const auto has_passed = __atomic_load_n(passed(direction, next), __ATOMIC_ACQUIRE);
  const bool is_free = is_before(waits, next) || !is_before(has_passed, next) || given_up_[i].count(next) != 0;
  if (!is_free) return {};  // a stream must see it first
  given_up_[i].erase(next);
  const auto out = done_[i].front();
  done_[i].pop_front();
  polled_[i] = next;
  return out;
}

void soft_pair::close(std::uint32_t send_waits, std::uint32_t receive_waits) {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  const std::uint32_t waits[] = {send_waits, receive_waits};
  for (unsigned i = 0; i < 2; ++i)
    if (is_before(counted_[i], waits[i])) __atomic_store_n(&ours().completed[i], waits[i], __ATOMIC_RELEASE);
}

// ---- The adapter's thread

bool soft_pair::advance() {
  const std::lock_guard lock(mutex_);
  if (!theirs_ || is_closed_) return false;
  bool has_moved = gather();
  has_moved |= take();
  has_moved |= complete_sends();
  return has_moved;
}

// Moves this end's sends into the slots. A doorbell beyond the prepared sends is ignored.
bool soft_pair::gather() {
  auto& mine = ours();
  bool has_moved = false;
  while (is_before(gathered_, prepared_) && gathered_ - mine.taken.load(std::memory_order_acquire) < kSlots) {
    const auto number = gathered_ + 1;
    if (__atomic_load_n(doorbell(number), __ATOMIC_ACQUIRE) != number) break;
    char* target = slot_in(memory_, number);
    auto& work = sends_[number - left_ - 1];
    std::uint32_t bytes = 0;
    for (const auto& each : work.pieces) {
      work.is_unreadable |= !copy_out(each, target + bytes, each.bytes);
      bytes += static_cast<std::uint32_t>(each.bytes);
    }
    mine.bytes[number % kSlots] = work.is_unreadable ? kDropped : bytes;
    gathered_ = number;
    mine.ready.store(number, std::memory_order_release);
    has_moved = true;
  }
  return has_moved;
}

bool soft_pair::take() {
  auto& their = words_in(*theirs_);
  bool has_moved = false;
  while (is_before(got_, their.ready.load(std::memory_order_acquire))) {
    const auto number = got_ + 1;
    const auto stated = their.bytes[number % kSlots];
    if (stated != kDropped) {
      if (receives_.empty()) break;
      const auto work = std::move(receives_.front());
      receives_.pop_front();
      complete(side::receive, deliver(work, slot_in(*theirs_, number), std::min<std::size_t>(stated, kMaxBytes)));
    }
    got_ = number;
    their.taken.store(number, std::memory_order_release);
    has_moved = true;
  }
  return has_moved;
}

soft_completion soft_pair::deliver(const soft_work& work, const char* origin, std::size_t bytes) {
  std::size_t left = bytes;
  bool has_memory = true;
  for (const auto& each : work.pieces) {
    const auto part = std::min(left, each.bytes);
    has_memory &= copy_in(each, origin, part);
    origin += part;
    left -= part;
  }
  using outcome = soft_completion::outcome;
  return {work.id, static_cast<std::uint32_t>(bytes - left),
          !has_memory ? outcome::no_memory
          : left != 0 ? outcome::too_long
                      : outcome::success};
}

// A failed send completes even if it was not to be reported, as an adapter's does.
bool soft_pair::complete_sends() {
  using outcome = soft_completion::outcome;
  const auto taken = ours().taken.load(std::memory_order_acquire);
  bool has_moved = false;
  while (is_before(left_, taken) && is_before(left_, gathered_)) {
    const auto& first = sends_.front();
    if (first.is_signaled || first.is_unreadable)
      complete(side::send, {first.id, 0, first.is_unreadable ? outcome::no_memory : outcome::success});
    sends_.pop_front();
    ++left_;
    has_moved = true;
  }
  return has_moved;
}

void soft_pair::complete(side direction, const soft_completion& completion) {
  const auto i = index(direction);
  done_[i].push_back(completion);
  __atomic_store_n(&ours().completed[i], ++counted_[i], __ATOMIC_RELEASE);
}

// ---- The adapter

namespace {

class adapter {
 public:
  adapter() : thread_(start_thread([this] { run(); })) { thread_.detach(); }
  void attach(const std::shared_ptr<soft_pair>& pair) {
    const std::lock_guard lock(mutex_);
    pairs_.push_back(pair);
  }
  void detach(const std::shared_ptr<soft_pair>& pair) {
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(pairs_, [&](const auto& each) { return each.lock() == pair; });
    }
    while (pair.use_count() > 1) sched_yield();  // for the rest of the thread's round
  }

 private:
  // After the last movement; then it naps, which delays a message by the nap.
  static constexpr std::uint64_t kAwakeNs = 1'000'000;
  static constexpr long kSleepNs = 50'000;

  void run() {
    pthread_setname_np(pthread_self(), "peerlane-pairs");
    for (auto last = monotonic_ns();;) {
      bool has_moved = false;
      for (const auto& each : living()) has_moved |= each->advance();
      const auto now = monotonic_ns();
      if (has_moved) last = now;
      if (now - last < kAwakeNs) {
        sched_yield();
        continue;
      }
      const timespec nap{0, kSleepNs};
      nanosleep(&nap, nullptr);
    }
  }

  std::vector<std::shared_ptr<soft_pair>> living() {
    std::vector<std::shared_ptr<soft_pair>> out;
    const std::lock_guard lock(mutex_);
    std::erase_if(pairs_, [](const auto& each) { return each.expired(); });
    for (const auto& each : pairs_)
      if (auto pair = each.lock()) out.push_back(std::move(pair));
    return out;
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<soft_pair>> pairs_;
  std::thread thread_;
};

// Never destroyed: memory of pairs may be mapped until the process ends.
copy::mapping_cache& mappings() {
  static auto* const one = [] {
    copy::mapping_cache::options wanted;
    wanted.backend = env_read("PEERLANE_BACKEND").text;
    return new copy::mapping_cache(wanted);
  }();
  return *one;
}

adapter& only_adapter() {
  static auto* const one = new adapter;  // its thread ends with the process
  return *one;
}

}  // namespace

void attach_to_adapter(const std::shared_ptr<soft_pair>& pair) { only_adapter().attach(pair); }
void detach_from_adapter(const std::shared_ptr<soft_pair>& pair) { only_adapter().detach(pair); }

result<soft_piece> piece_at(const cu::driver_table& cuda, std::uint64_t address, std::size_t bytes) {
  soft_piece out;
  if (bytes != 0 && (address == 0 || address + bytes < address))
    return failure{EINVAL, "a piece of a message has no address, or leaves the address space"};
  out.data = reinterpret_cast<char*>(address);
  out.bytes = bytes;
  unsigned type = 0;
  if (bytes == 0) return out;
  if (cuda.cuPointerGetAttribute(&type, cu::pointer_attribute::memory_type, address) != cu::error_code::success ||
      type != cu::memory_type::device) {
    if (!is_mapped(out.data, bytes))
      return failure{EFAULT,
                     format("no memory lies at %p, where a piece of a message of %zu bytes is to be", out.data, bytes)};
    return out;
  }
  const auto info = cu::inspect_pointer(cuda, address);
  if (!info) return info.error();
  auto found = mappings().find(cuda, *info, address, bytes);
  if (!found) return failure{ENOTSUP, "GPU memory of a message cannot be mapped for the CPU: " + found.error().message};
  out.mapping = std::make_shared<copy::mapping_cache::hold>(std::move(found).value());
  out.data = out.mapping->data;
  out.is_device = true;
  return out;
}

}  // namespace pl::gds
