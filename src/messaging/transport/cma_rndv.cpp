// SPDX-License-Identifier: Apache-2.0
// Between host memories of one node: the receiver reads its sender's memory (process_vm_readv), one copy instead of a ring's
// two and no answer to wait for. The kernel allows it between processes of one user that may trace each other; where it does
// not (other users, a container's filter, Yama), the ring is the way.
#include <sys/uio.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::link {
namespace {

// Of messages that one call reads: the call costs as much as 8 KiB, and its first message waits for the last one's bytes.
constexpr std::size_t kMostTogether = 16;
constexpr std::size_t kMostBytesTogether = 64 << 10;  // of each

}  // namespace

// The message is under way, maybe by a ring, or over already. While packets are read there may be more to read with it.
void engine::start_pull(operation& to, const bulk_offer& offer) {
  to.transfer->source = offer.address;
  to.transfer->offer = offer;
  moving_.push_back(&to);
  if (pulls_++ != 0 || is_reading_) return;
  pull_budget_ = kPullAtOnce;
  advance_pull(to);
}

// The first messages of those that wait, if they are short and of one sender.
void engine::pull_together() {
  std::array<operation*, kMostTogether> list;
  std::array<iovec, kMostTogether> here, there;
  std::size_t count = 0, bytes = 0;
  for (operation* at = moving_.first(); at != nullptr && count < kMostTogether; at = moving_.next(at)) {
    const auto& state = *at->transfer;
    if (state.way != bulk_way::pull) continue;
    const bool fits = state.ended == 0 && state.wanted <= kMostBytesTogether && bytes + state.wanted <= pull_budget_;
    if (!fits || (count != 0 && at->peer != list[0]->peer)) break;
    here[count] = {copy::host_pointer(at->at.address), state.wanted};
    there[count] = {copy::host_pointer(state.source), state.wanted};
    bytes += state.wanted;
    list[count++] = at;
  }
  if (count < 2) return;
  auto& from = peer(list[0]->peer);
  const auto done = process_vm_readv(from.pid, here.data(), count, there.data(), count, 0);
  // Which of them cannot be read shows when each is read alone.
  if (done < 0 || static_cast<std::size_t>(done) != bytes || is_gone(from)) return;
  pull_budget_ -= bytes;
  for (operation* const each : std::span(list).first(count)) {
    ++counts_.pulled;
    g_live_pulled.add(each->transfer->wanted);
    --pulls_;
    moving_.remove(each);
    finish_read(*each, 0);
  }
}

// In order: the first one gets all that may be read now.
void engine::advance_pull(operation& of) {
  if (pull_budget_ == 0) return;
  auto& state = *of.transfer;
  const auto before = state.ended;
  const bool is_readable = pull_some(of, pull_budget_);
  pull_budget_ -= std::min<std::size_t>(pull_budget_, state.ended - before);
  if (is_readable && state.code == 0 && state.ended != state.wanted) return;
  --pulls_;
  moving_.remove(&of);
  if (is_readable) return finish_read(of, state.code, std::move(state.message));
  state.ended = 0;
  start_ring(of, peer(of.peer), state.offer);
}

// Up to `most` bytes more of the message. False as for judge_read.
bool engine::pull_some(operation& to, std::size_t most) {
  auto& state = *to.transfer;
  auto& from = peer(to.peer);
  const std::size_t bytes = std::min<std::size_t>(most, state.wanted - state.ended);
  const int code =
      read_process(from.pid, state.source + state.ended, copy::host_pointer(to.at.address + state.ended), bytes);
  if (!judge_read(to, from, code)) return false;
  if (state.ended == 0) {
    ++counts_.pulled;
    g_live_pulled.add(state.wanted);
  }
  if (state.code == 0) state.ended += bytes;
  return true;
}

// All of it, or an errno value. From any thread.
int engine::read_process(pid_t pid, std::uint64_t from, void* to, std::size_t bytes) {
  for (std::size_t done = 0; done != bytes;) {
    const iovec here{static_cast<std::byte*>(to) + done, bytes - done};
    const iovec there{copy::host_pointer(from + done), bytes - done};
    const auto got = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (got <= 0) return got < 0 ? errno : EFAULT;
    done += static_cast<std::size_t>(got);
  }
  return 0;
}

// What a read's errno means. False: its sender is there, and the kernel does not do it, for this process (EPERM, ENOSYS) or
// for this memory (EFAULT: a driver's, such as managed memory).
bool engine::judge_read(operation& to, peer_state& from, int code) {
  // A process number that was used again may have been read: not without the death being seen.
  if (code == ESRCH || is_gone(from)) {
    to.transfer->code = ECONNRESET;
    to.transfer->message = format("rank %d is gone", to.peer);
    return true;
  }
  if (code != 0) from.refuses_pull = code != EFAULT;
  return code == 0;
}

}  // namespace pl::link
