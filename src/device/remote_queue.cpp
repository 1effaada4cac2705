// SPDX-License-Identifier: Apache-2.0
#include "device/remote_queue.hpp"

namespace pl::device {

result<std::optional<std::uint32_t>> remote_queue::poll() {
  std::optional<std::uint32_t> done;
  while (!under_way_.empty() && under_way_.front().transfer->poll()) {
    if (const status ended = under_way_.front().transfer->outcome(); !ended) return ended.error();
    if (under_way_.front().ticket) done = under_way_.front().ticket;
    under_way_.pop_front();
  }
  return done;
}

}  // namespace pl::device
