// SPDX-License-Identifier: Apache-2.0
#include "compat/gdsync/gdsync_soft_pair.hpp"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "arch/copy_dispatch.hpp"
#include "base/clock.hpp"
#include "base/env.hpp"
#include "cuda/pointer.hpp"
#include "messaging/node.hpp"
#include "os/blocked_signals.hpp"

namespace pl::gds {
namespace {

bool is_before(std::uint32_t count, std::uint32_t other) noexcept { return static_cast<std::int32_t>(count - other) < 0; }

void copy_out(const soft_piece& piece, char* target, std::size_t bytes) {
  if (piece.is_device) arch::copy_from(piece.mapping->type, target, piece.data, bytes);
  else std::memcpy(target, piece.data, bytes);
}

// Reads GPU memory back: the completion is in host memory, and the GPU would not see it after these stores.
void copy_in(const soft_piece& piece, const char* origin, std::size_t bytes) {
  if (bytes == 0) return;
  if (!piece.is_device) {
    std::memcpy(piece.data, origin, bytes);
    return;
  }
  arch::copy_to(piece.mapping->type, piece.data, origin, bytes);
  char last = 0;
  arch::copy_from(piece.mapping->type, &last, piece.data + bytes - 1, 1);
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
  const auto passed = __atomic_load_n(&ours().passed[i], __ATOMIC_ACQUIRE);
  const bool is_free = is_before(waits, next) || !is_before(passed, next) || given_up_[i].count(next) != 0;
  if (!is_free) return {};  // a stream must see it first
  given_up_[i].erase(next);
  const auto out = done_[i].front();
  done_[i].pop_front();
  polled_[i] = next;
  return out;
}

// ---- The adapter's thread

bool soft_pair::advance() {
  const std::lock_guard lock(mutex_);
  if (!theirs_) return false;
  bool has_moved = gather();
  has_moved |= take();
  has_moved |= complete_sends();
  return has_moved;
}

// Moves the peer's sends into the slots. A doorbell beyond the prepared sends is ignored.
bool soft_pair::gather() {
  auto& mine = ours();
  const auto rung = __atomic_load_n(&mine.doorbell, __ATOMIC_ACQUIRE);
  bool has_moved = false;
  while (is_before(gathered_, rung) && is_before(gathered_, prepared_) &&
         gathered_ - mine.taken.load(std::memory_order_acquire) < kSlots) {
    const auto number = gathered_ + 1;
    char* target = slot_in(memory_, number);
    std::uint32_t bytes = 0;
    for (const auto& each : sends_[number - left_ - 1].pieces) {
      copy_out(each, target + bytes, each.bytes);
      bytes += static_cast<std::uint32_t>(each.bytes);
    }
    mine.bytes[number % kSlots] = bytes;
    gathered_ = number;
    mine.ready.store(number, std::memory_order_release);
    has_moved = true;
  }
  return has_moved;
}

bool soft_pair::take() {
  auto& their = words_in(*theirs_);
  bool has_moved = false;
  while (!receives_.empty() && is_before(got_, their.ready.load(std::memory_order_acquire))) {
    const auto number = got_ + 1;
    const char* origin = slot_in(*theirs_, number);
    const auto bytes = std::min<std::size_t>(their.bytes[number % kSlots], kMaxBytes);  // as stated by the peer
    const auto capture_state = std::move(receives_.front());
    receives_.pop_front();
    std::size_t left = bytes;
    for (const auto& each : capture_state.pieces) {
      const auto part = std::min(left, each.bytes);
      copy_in(each, origin, part);
      origin += part;
      left -= part;
    }
    got_ = number;
    complete(side::receive, {capture_state.id, static_cast<std::uint32_t>(bytes - left), left != 0});
    their.taken.store(number, std::memory_order_release);
    has_moved = true;
  }
  return has_moved;
}

bool soft_pair::complete_sends() {
  const auto taken = ours().taken.load(std::memory_order_acquire);
  bool has_moved = false;
  while (is_before(left_, taken) && is_before(left_, gathered_)) {
    const auto& first = sends_.front();
    if (first.is_signaled) complete(side::send, {first.id, 0, false});
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

}  // namespace

void attach_to_adapter(const std::shared_ptr<soft_pair>& pair) {
  static auto* const one = new adapter;  // its thread ends with the process
  one->attach(pair);
}

result<soft_piece> piece_at(const cu::driver_table& cuda, std::uint64_t address, std::size_t bytes) {
  soft_piece out;
  if (bytes != 0 && (address == 0 || address + bytes < address))
    return failure{EINVAL, "a piece of a message has no address, or leaves the address space"};
  out.data = reinterpret_cast<char*>(address);
  out.bytes = bytes;
  unsigned type = 0;
  if (bytes == 0 ||
      cuda.cuPointerGetAttribute(&type, cu::pointer_attribute::memory_type, address) != cu::error_code::success ||
      type != cu::memory_type::device)
    return out;
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
