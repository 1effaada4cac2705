// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/direct_copy.hpp"

#include <sched.h>

#include <algorithm>

#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "compat/mpi/device_memory.hpp"

namespace pl::mpi {
namespace {

constexpr std::uint64_t kOfferedNs = 200'000;          // minimum: the time that 3 MiB take through the ring
constexpr std::uint64_t kRingBytesOfNs = 15;           // approximately, which is GB/s
constexpr std::uint64_t kLivenessCheckNs = 2'000'000;  // between two checks whether the receiver is alive
constexpr unsigned kMaxSkipped = 256;                  // messages without an offer, after several unsuccessful ones
constexpr unsigned kPollsAwake = 200;

std::uint64_t g_offered_ns = kOfferedNs;

bool is_dense(const pieces& rows) { return rows.size() == 1 && rows[0].rows == 1; }

bool exchange(message_slot& slot, direct_state expected, direct_state next) noexcept {
  return slot.direct.compare_exchange_strong(expected, next, std::memory_order_acq_rel);
}

void relax(unsigned polls) {
  if (polls < kPollsAwake) arch::relax();
  else sched_yield();
}

// For the senders' threads; the receiver's words do not matter here.
bool skips_this_one(receiver& peer) noexcept {
  unsigned left = peer.direct_skips.load(std::memory_order_relaxed);
  while (left != 0 && !peer.direct_skips.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {}
  return left != 0;
}

// One unsuccessful offer does not count against a receiver that has taken some: it was busy.
void note(receiver& peer, bool was_taken) noexcept {
  if (was_taken) peer.has_taken_directly.store(true, std::memory_order_relaxed);
  const unsigned failed = was_taken ? 0 : std::min(peer.direct_failures.load(std::memory_order_relaxed) + 1, 8u);
  peer.direct_failures.store(failed, std::memory_order_relaxed);
  const unsigned tolerated = peer.has_taken_directly.load(std::memory_order_relaxed) ? 1 : 0;
  peer.direct_skips.store(failed <= tolerated ? 0 : std::min(1u << failed, kMaxSkipped), std::memory_order_relaxed);
}

// Changes as the receiver works on messages that were sent before this one.
std::uint64_t work_of(const receiver& peer) noexcept {
  std::uint64_t out = 0;
  for (unsigned i = 0; i < kSlots; ++i) {
    const message_slot& slot = peer.slots()[i];
    if (slot.is_used.load(std::memory_order_relaxed) == 0) continue;
    out += slot.taken.load(std::memory_order_relaxed) + slot.is_done.load(std::memory_order_relaxed) +
           static_cast<std::uint64_t>(slot.direct.load(std::memory_order_relaxed));
  }
  return out;
}

}  // namespace

void set_offer_timeout_for_tests(std::uint64_t ns) noexcept { g_offered_ns = ns != 0 ? ns : kOfferedNs; }

bool send_directly(const outgoing_message& message, const pieces& device_rows) {
  if (!is_dense(device_rows) || skips_this_one(*message.peer)) return false;
  message_slot& slot = message.shared();
  const auto pointer = static_cast<std::uint64_t>(device_rows[0].offset);
  const auto offer = hand_over({pointer, slot.bytes});
  if (!offer) return note(*message.peer, false), false;
  slot.direct_place = offer->place;
  slot.direct_id = offer->id;
  slot.direct_pointer = pointer;
  slot.direct.store(direct_state::offered, std::memory_order_release);
  const std::uint64_t time_limit_ns = std::max(g_offered_ns, slot.bytes / kRingBytesOfNs);
  std::uint64_t begin_ns = monotonic_ns(), polled_ns = begin_ns, work = work_of(*message.peer);
  for (unsigned polls = 0;; ++polls) {
    const auto now = slot.direct.load(std::memory_order_acquire);
    if (now == direct_state::done) return note(*message.peer, true), true;
    if (now == direct_state::refused) return note(*message.peer, false), false;
    if (slot.is_done.load(std::memory_order_acquire) != 0) return true;  // the receiver does not want it
    const std::uint64_t now_ns = monotonic_ns();
    if (now == direct_state::offered && now_ns - begin_ns > time_limit_ns) {
      const std::uint64_t work_now = work_of(*message.peer);
      if (work_now != work) begin_ns = now_ns, work = work_now;  // it will reach this message in its turn
      else if (exchange(slot, direct_state::offered, direct_state::withdrawn)) return note(*message.peer, false), false;
    }
    if (now_ns - polled_ns > kLivenessCheckNs) {
      polled_ns = now_ns;
      if (!pipeline_peers::has_receiver(message)) return true;
    }
    relax(polls);
  }
}

bool receive_directly(const incoming_message& message, const pieces& device_rows) {
  message_slot& slot = message.shared();
  if (slot.direct.load(std::memory_order_acquire) != direct_state::offered) return false;
  if (!is_dense(device_rows) || message.origin->pid <= 0) return refuse_direct(message), false;
  if (!exchange(slot, direct_state::offered, direct_state::taken)) return false;
  const copy::memory_exchange::owner exporter{message.origin->rank, message.origin->pid, slot.direct_id, slot.direct_place};
  const bool is_there = pull(exporter, slot.direct_pointer, static_cast<std::uint64_t>(device_rows[0].offset), slot.bytes);
  slot.direct.store(is_there ? direct_state::done : direct_state::refused, std::memory_order_release);
  return is_there;
}

void refuse_direct(const incoming_message& message) noexcept {
  exchange(message.shared(), direct_state::offered, direct_state::refused);
}

}  // namespace pl::mpi
