// SPDX-License-Identifier: Apache-2.0
// Sleeping until operations of a channel are done: a descriptor of the GPU that becomes readable when a copy engine raises
// an interrupt.
//
//   clear()                       what came before is forgotten
//   queue.interrupt()             behind the operation that is waited for
//   is_done? else poll(), clear(), and look again
//
// The event belongs to the engine and not to a channel: other channels and other programs wake too, so the completion word
// decides. Clearing before the look misses nothing: an interrupt comes behind the word that it tells of, so whatever is not
// seen by the look wakes the sleep. An operation that a fault ends raises no interrupt, so each sleep has a bound
// (kLookAgainNs), after which the channel's error notifier is looked at.
//
// One waiter each: the first poll() that sees the descriptor readable clears it, and another would sleep on. The descriptor
// must not be made non-blocking: the driver wakes nobody then. A forked child must not use it.
#pragma once

#include <memory>

#include "dma/channel.hpp"

namespace pl::dma {

class completion_event {
 public:
  static constexpr std::uint64_t kLookAgainNs = 20'000'000;

  // An event of COPY<engine>. ENOTSUP: the driver gives none; EMFILE, EACCES: the device file. Takes some 0.1 ms: keep it.
  static result<std::unique_ptr<completion_event>> open(std::shared_ptr<address_space> space, unsigned engine);
  ~completion_event();
  completion_event(const completion_event&) = delete;
  completion_event& operator=(const completion_event&) = delete;

  unsigned engine() const noexcept { return engine_; }
  // For poll and epoll. Stays open, and this object's, until it ends.
  int descriptor() const noexcept { return event_.fd.get(); }
  // Forgets the interrupts that came until now.
  void clear() noexcept;

  // Sleeps until `number` is done. `queue` is a channel of this event's engine. Errors as channel::wait's.
  status wait(channel& queue, sequence number, std::uint64_t timeout_ns);

 private:
  completion_event(std::shared_ptr<address_space> space, unsigned engine, rm::channel_objects::event event)
      : space_(std::move(space)), engine_(engine), event_(std::move(event)) {}

  std::shared_ptr<address_space> space_;
  const unsigned engine_;
  rm::channel_objects::event event_;
};

}  // namespace pl::dma
