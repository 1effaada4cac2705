// SPDX-License-Identifier: Apache-2.0
// Lets a thread sleep until an operation of a channel is done. The event is a descriptor of the GPU's device file, which
// becomes readable when a copy engine raises an interrupt.
//
//   clear()                       forget earlier interrupts
//   queue.interrupt()             request an interrupt after the operation
//   is_done? else poll(), clear(), and check again
//
// The event belongs to the engine, so other channels and other programs also trigger it. The completion word decides whether
// the operation is done. No wake-up is lost, because the interrupt arrives after the completion word: if the check does not
// see the word yet, the interrupt comes after clear() and wakes poll(). An operation that ends with a fault raises no
// interrupt. Each sleep therefore has a limit (kRecheckNs), after which the channel's error notifier is checked.
//
// Each waiter needs its own event, because the first poll() that finds the descriptor readable clears it. Do not make the
// descriptor non-blocking: the driver then wakes nobody. A forked child must not use it.
#pragma once

#include <memory>

#include "dma/channel.hpp"

namespace pl::dma {

class completion_event {
 public:
  static constexpr std::uint64_t kRecheckNs = 20'000'000;

  // Opens an event of COPY<engine>. ENOTSUP: the driver has no such events. EMFILE, EACCES: the device file cannot be
  // opened. Takes about 0.1 ms, so keep it.
  static result<std::unique_ptr<completion_event>> open(std::shared_ptr<address_space> space, unsigned engine);
  ~completion_event();
  completion_event(const completion_event&) = delete;
  completion_event& operator=(const completion_event&) = delete;

  unsigned engine() const noexcept { return engine_; }
  // For poll and epoll. Owned by this object.
  int descriptor() const noexcept { return event_.fd.get(); }
  // Forgets all earlier interrupts.
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
