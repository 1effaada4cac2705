// SPDX-License-Identifier: Apache-2.0
// cma (cross memory attach): between host memories of one node the receiver reads the sender's memory with
// process_vm_readv, one copy instead of a ring's two and without waiting for the sender. The kernel permits it between
// processes of one user that may trace each other. Otherwise (other users, a container's filter, Yama) the ring is used.
#include <sys/uio.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::messaging {
namespace {

// Messages that one call reads: a call costs as much as 8 KiB, and its first message waits for the last one's bytes.
constexpr std::size_t kMaxTogether = 16;
constexpr std::size_t kMaxBytesTogether = 64 << 10;  // of each

}  // namespace

// Starts the receive, through the ring if cma is denied. Reading waits while packets are still being processed, since
// more short messages may follow.
void messenger_core::start_cma(operation& receive, const rts_body& rts) {
  receive.transfer->source = rts.address;
  receive.transfer->rts = rts;
  moving_.push_back(&receive);
  if (cma_receives_++ != 0 || channel_.is_reading()) return;
  cma_budget_ = kMaxCmaBytesPerRound;
  advance_cma(receive);
}

// Reads the first waiting messages with one call, if they are short and of one sender.
void messenger_core::read_together() {
  std::array<operation*, kMaxTogether> list;
  std::array<iovec, kMaxTogether> here, there;
  std::size_t count = 0, bytes = 0;
  for (operation* current = moving_.first(); current != nullptr && count < kMaxTogether; current = moving_.next(current)) {
    const auto& state = *current->transfer;
    if (state.transport != transport_kind::cma) continue;
    const bool fits = state.ended == 0 && state.wanted <= kMaxBytesTogether && bytes + state.wanted <= cma_budget_;
    if (!fits || (count != 0 && current->peer != list[0]->peer)) break;
    here[count] = {copy::host_pointer(current->range.address), state.wanted};
    there[count] = {copy::host_pointer(state.source), state.wanted};
    bytes += state.wanted;
    list[count++] = current;
  }
  if (count < 2) return;
  auto& source = context_.peer(list[0]->peer);
  const auto done = process_vm_readv(source.pid, here.data(), count, there.data(), count, 0);
  // Reading each alone shows which one fails.
  if (done < 0 || static_cast<std::size_t>(done) != bytes || watch_.has_ended(source)) return;
  cma_budget_ -= bytes;
  for (operation* const each : std::span(list).first(count)) {
    ++context_.counts.pulled;
    g_live_pulled.add(each->transfer->wanted);
    --cma_receives_;
    moving_.remove(each);
    finish_read(*each, 0);
  }
}

// In order: the first one gets the whole budget of this round.
void messenger_core::advance_cma(operation& op) {
  if (cma_budget_ == 0) return;
  auto& state = *op.transfer;
  const auto before = state.ended;
  const bool is_readable = read_some_bytes(op, cma_budget_);
  cma_budget_ -= std::min<std::size_t>(cma_budget_, state.ended - before);
  if (is_readable && state.code == 0 && state.ended != state.wanted) return;
  --cma_receives_;
  moving_.remove(&op);
  if (is_readable) return finish_read(op, state.code, std::move(state.message));
  state.ended = 0;
  start_ring(op, context_.peer(op.peer), state.rts);
}

// Up to `most` bytes more of the message. False as for classify_read_error.
bool messenger_core::read_some_bytes(operation& receive, std::size_t most) {
  auto& state = *receive.transfer;
  auto& source = context_.peer(receive.peer);
  const std::size_t bytes = std::min<std::size_t>(most, state.wanted - state.ended);
  const int code =
      read_process(source.pid, state.source + state.ended, copy::host_pointer(receive.range.address + state.ended), bytes);
  if (!classify_read_error(receive, source, code)) return false;
  if (state.ended == 0) {
    ++context_.counts.pulled;
    g_live_pulled.add(state.wanted);
  }
  if (state.code == 0) state.ended += bytes;
  return true;
}

// Reads all of it, or returns an errno value. Any thread.
int messenger_core::read_process(pid_t pid, std::uint64_t address, void* destination, std::size_t bytes) {
  for (std::size_t done = 0; done != bytes;) {
    const iovec here{static_cast<std::byte*>(destination) + done, bytes - done};
    const iovec there{copy::host_pointer(address + done), bytes - done};
    const auto got = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (got <= 0) return got < 0 ? errno : EFAULT;
    done += static_cast<std::size_t>(got);
  }
  return 0;
}

// Interprets the errno of a read. False: the sender lives, and the kernel denies the read for the process (EPERM,
// ENOSYS) or for this memory (EFAULT: a driver's, such as managed memory).
bool messenger_core::classify_read_error(operation& receive, peer_state& source, int code) {
  // The process number may have been reused: check whether the sender has died.
  if (code == ESRCH || watch_.has_ended(source)) {
    receive.transfer->code = ECONNRESET;
    receive.transfer->message = format("rank %d is gone", receive.peer);
    return true;
  }
  if (code != 0) source.refuses_cma = code != EFAULT;
  return code == 0;
}

}  // namespace pl::messaging
