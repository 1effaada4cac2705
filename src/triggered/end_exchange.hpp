// SPDX-License-Identifier: Apache-2.0
// Exchanges one message in each direction between the two ends of a channel while they are set up.
#pragma once

#include <chrono>
#include <type_traits>

#include "messaging/messenger.hpp"
#include "triggered/channel_core.hpp"
#include "triggered/proxy_thread.hpp"

namespace pl::triggered {

// Sends `mine` and returns the peer's. T must be plain bytes. Both ends call it with the same kind.
template <class T>
result<T> exchange_with_peer(messaging::messenger& messages, const channel_core& core, message_kind kind, const T& mine,
                             std::chrono::milliseconds limit) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto tag = tag_of(kind, core.id, core.incarnation);
  if (auto sent = messages.send(core.peer, messaging::host_buffer(&mine, sizeof mine), tag, limit); !sent)
    return sent.error();
  T theirs{};
  const auto got =
      messages.recv(core.peer, messaging::host_buffer(&theirs, sizeof theirs), tag, messaging::kWholeTag, limit);
  if (!got) return got.error();
  return theirs;
}

}  // namespace pl::triggered
