// SPDX-License-Identifier: Apache-2.0
// Between host memories of one node: the receiver reads its sender's memory (process_vm_readv), one copy instead of a ring's
// two and no answer to wait for. The kernel allows it between processes of one user that may trace each other; where it does
// not (other users, a container's filter, Yama), the ring is the way.
#include <sys/uio.h>

#include <algorithm>

#include "clock.hpp"
#include "engine.hpp"
#include "text.hpp"

namespace pl::link {

// False: it cannot be done this way. Else the message is under way, or over already.
bool engine::start_pull(operation& to, peer_state& from, const bulk_offer& offer) {
  auto& state = *to.transfer;
  state.source = offer.address;
  state.offer = offer;
  const bool has_turn = pulls_ == 0 || !from.is_pull_tried;
  if (has_turn && !pull_some(to, kPullAtOnce)) return false;
  ++counts_.pulled;
  if (state.code != 0 || state.ended == state.wanted) {
    finish_receive(to, state.code, std::move(state.message));
    return true;
  }
  ++pulls_;
  moving_.push_back(&to);
  return true;
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
  if (is_readable) return finish_receive(of, state.code, std::move(state.message));
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
  from.is_pull_tried = true;
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
