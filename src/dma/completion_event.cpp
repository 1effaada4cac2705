// SPDX-License-Identifier: Apache-2.0
#include "dma/completion_event.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::dma {

result<std::unique_ptr<completion_event>> completion_event::open(std::shared_ptr<address_space> space, unsigned engine) {
  auto made = space->objects().make_event(engine);
  if (!made) return made.error();
  return std::unique_ptr<completion_event>(new completion_event(std::move(space), engine, *std::move(made)));
}

completion_event::~completion_event() { space_->objects().release_event(std::move(event_)); }

void completion_event::clear() noexcept { space_->objects().owner().io().clear_event(descriptor()); }

status completion_event::wait(channel& queue, sequence number, std::uint64_t timeout_ns) {
  clear();
  if (queue.is_done(number)) return {};
  if (auto asked = queue.interrupt(); !asked) return queue.is_done(number) ? status() : status(asked.error());
  const std::uint64_t end_ns = monotonic_ns() + timeout_ns;
  while (!queue.is_done(number)) {
    if (auto reason = queue.fault()) return queue.is_done(number) ? status() : *std::move(reason);
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= end_ns)
      return failure{ETIMEDOUT,
                     format("DMA channel: operation %llu is not done after %llu ms", static_cast<unsigned long long>(number),
                            static_cast<unsigned long long>(timeout_ns / 1'000'000))};
    const std::uint64_t sleep_ns = std::min(end_ns - now_ns, kRecheckNs);
    const timespec nap{static_cast<time_t>(sleep_ns / 1'000'000'000), static_cast<long>(sleep_ns % 1'000'000'000)};
    pollfd asked{descriptor(), POLLIN, 0};
    if (ppoll(&asked, 1, &nap, nullptr) == 0) queue.ring();
    clear();
  }
  return {};
}

}  // namespace pl::dma
