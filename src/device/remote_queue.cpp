// SPDX-License-Identifier: Apache-2.0
#include "device/remote_queue.hpp"

namespace pl::device {

result<std::optional<std::uint32_t>> remote_queue::poll() {
  std::optional<std::uint32_t> done;
  while (!in_flight_.empty() && in_flight_.front().transfer->poll()) {
    if (const status ended = in_flight_.front().transfer->outcome(); !ended) return ended.error();
    if (in_flight_.front().ticket) done = in_flight_.front().ticket;
    in_flight_.pop_front();
  }
  return done;
}

}  // namespace pl::device
