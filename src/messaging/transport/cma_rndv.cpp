// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/cma_rndv.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "base/shortage.hpp"
#include "base/text.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/rndv.hpp"

namespace pl::messaging {
namespace {

// Bytes that one round of progress reads from other processes' memory: everything else waits for it, about 50 us.
constexpr std::size_t kMaxBytesPerRound = 512 << 10;
// Messages that one call reads: a call costs as much as 8 KiB, and its first message waits for the bytes of its last one.
constexpr std::size_t kMaxTogether = 16;
constexpr std::size_t kMaxBytesTogether = 64 << 10;  // size of each of them

}  // namespace

cma_rndv::cma_rndv(rendezvous& owner, peer_watch& watch)
    : transport(owner, true), watch_(watch), is_denied_(static_cast<std::size_t>(owner.context().size)) {}

bool cma_rndv::is_allowed(int rank) const {
  return context_.options.use_cma && is_denied_[static_cast<std::size_t>(rank)] == 0;
}

void cma_rndv::offer(operation& send, const std::optional<cu::pointer_info>&, rts_body& rts) {
  if (!context_.options.use_cma || send.range.is_device) return;
  rts.has_cma = true;
  rts.address = send.range.address;
}

// Reading waits while packets are still being processed, since more short messages may follow.
bool cma_rndv::start_receive(operation& receive, const rts_body& rts) {
  const bool suits =
      rts.has_cma && !receive.range.is_device && is_allowed(receive.peer) && !context_.peer(receive.peer).is_lost;
  if (!suits) return false;
  receive.transfer->slice.emplace<cma_transfer>(rts);
  const bool is_first = !is_busy();
  enter(receive);
  if (!is_first || channel_.is_reading()) return true;
  budget_ = kMaxBytesPerRound;
  advance(receive);
  return true;
}

void cma_rndv::advance() {
  budget_ = kMaxBytesPerRound;
  if (in_flight() > 1) read_together();
  for (operation* current = moving_.first(); current != nullptr;) {
    operation* const next = moving_.next(current);
    advance(*current);
    current = next;
  }
}

// Reads the first waiting messages with one call, if they are short and from one sender.
void cma_rndv::read_together() {
  std::array<operation*, kMaxTogether> list;
  std::array<iovec, kMaxTogether> local_part, remote_part;
  std::size_t count = 0, bytes = 0;
  for (operation* current = moving_.first(); current != nullptr && count < kMaxTogether; current = moving_.next(current)) {
    const auto& state = *current->transfer;
    const bool fits = state.ended == 0 && state.wanted <= kMaxBytesTogether && bytes + state.wanted <= budget_;
    if (!fits || (count != 0 && current->peer != list[0]->peer)) break;
    local_part[count] = {copy::host_pointer(current->range.address), state.wanted};
    remote_part[count] = {copy::host_pointer(slice_of<cma_transfer>(*current).source), state.wanted};
    bytes += state.wanted;
    list[count++] = current;
  }
  if (count < 2) return;
  const auto& source = context_.peer(list[0]->peer);
  const auto done = process_vm_readv(source.pid, local_part.data(), count, remote_part.data(), count, 0);
  // Reading each alone shows which one fails.
  if (done < 0 || static_cast<std::size_t>(done) != bytes || watch_.has_ended(source)) return;
  budget_ -= bytes;
  for (operation* const each : std::span(list).first(count)) {
    ++context_.counts.pulled;
    g_live_pulled.add(each->transfer->wanted);
    leave(*each);
    rendezvous_.finish_read(*each, 0);
  }
}

// In order: the first one gets the whole budget of this round.
void cma_rndv::advance(operation& op) {
  if (budget_ == 0) return;
  auto& state = *op.transfer;
  const auto before = state.ended;
  const bool is_readable = read_some_bytes(op, budget_);
  budget_ -= std::min<std::size_t>(budget_, state.ended - before);
  if (is_readable && state.code == 0 && state.ended != state.wanted) return;
  leave(op);
  if (is_readable) return rendezvous_.finish_read(op, state.code, std::move(state.message));
  state.ended = 0;
  const rts_body rts = slice_of<cma_transfer>(op).rts;
  rendezvous_.start_behind(op, *this, rts);
}

// Reads up to `most` further bytes of the message. False: as classify_read_error.
bool cma_rndv::read_some_bytes(operation& receive, std::size_t most) {
  auto& state = *receive.transfer;
  const auto& source = context_.peer(receive.peer);
  const std::size_t bytes = std::min<std::size_t>(most, state.wanted - state.ended);
  const int code = read_process(source.pid, slice_of<cma_transfer>(receive).source + state.ended,
                                copy::host_pointer(receive.range.address + state.ended), bytes);
  if (!classify_read_error(receive, source, code)) return false;
  if (state.ended == 0) {
    ++context_.counts.pulled;
    g_live_pulled.add(state.wanted);
  }
  if (state.code == 0) state.ended += bytes;
  return true;
}

// Reads all of it, or returns an errno value. Any thread.
int cma_rndv::read_process(pid_t pid, std::uint64_t address, void* destination, std::size_t bytes) {
  for (std::size_t done = 0; done != bytes;) {
    const iovec local_part{static_cast<std::byte*>(destination) + done, bytes - done};
    const iovec remote_part{copy::host_pointer(address + done), bytes - done};
    const auto got = process_vm_readv(pid, &local_part, 1, &remote_part, 1, 0);
    if (got <= 0) return got < 0 ? errno : EFAULT;
    done += static_cast<std::size_t>(got);
  }
  return 0;
}

// Interprets the errno of a read. False: the sender lives, and the kernel denies the read for the process (EPERM,
// ENOSYS) or for this memory (EFAULT: a driver's, such as managed memory).
bool cma_rndv::classify_read_error(operation& receive, const peer_state& source, int code) {
  // The process number may have been reused: check whether the sender has died.
  if (code == ESRCH || watch_.has_ended(source)) {
    receive.transfer->code = ECONNRESET;
    receive.transfer->message = format("rank %d is gone", receive.peer);
    return true;
  }
  if (code != 0 && !is_shortage(code)) is_denied_[static_cast<std::size_t>(receive.peer)] = code != EFAULT;
  return code == 0;
}

bool cma_rndv::abort(operation& op, const abort_reason& reason) {
  if (reason.cause == abort_cause::peer_lost) return false;  // the next read fails and ends it
  leave(op);
  if (reason.cause == abort_cause::refused) context_.end(op, reason.code, reason.message);
  else rendezvous_.finish_receive(op, reason.code, reason.message);
  return true;
}

}  // namespace pl::messaging
