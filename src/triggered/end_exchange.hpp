// SPDX-License-Identifier: Apache-2.0
// What the two ends of a channel tell each other while they are set up. A call that runs out of time loses nothing: the next
// one continues.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/deadline.hpp"
#include "messaging/messenger.hpp"
#include "triggered/channel_core.hpp"
#include "triggered/executor.hpp"
#include "triggered/proxy_thread.hpp"

namespace pl::triggered {

// A limit that several waits share.
class setup_limit {
 public:
  explicit setup_limit(std::chrono::milliseconds limit) noexcept
      : end_ns_(deadline_after_ms(std::max<std::int64_t>(limit.count(), 0))) {}
  // Rounded up, so that who waits for it finds the limit passed.
  std::chrono::milliseconds left() const noexcept {
    const auto now = monotonic_ns();
    return std::chrono::milliseconds(now >= end_ns_ ? 0
                                                    : static_cast<std::int64_t>((end_ns_ - now + 999'999u) / 1'000'000u));
  }

 private:
  std::uint64_t end_ns_;
};

// One message in each direction. Both ends have one of the same kind. T must be plain bytes.
template <class T>
class end_exchange {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  end_exchange() = default;
  end_exchange(const end_exchange&) = delete;
  end_exchange& operator=(const end_exchange&) = delete;

  // The first call sends `mine`; later ones do not read it. Returns the peer's message. ETIMEDOUT: it has not come yet.
  result<T> get(messaging::messenger& messages, const channel_core& core, message_kind kind, const T& mine,
                const setup_limit& limit) {
    if (!has_begun_) {
      const auto tag = tag_of(kind, core.id, core.incarnation);
      mine_ = mine;
      has_begun_ = true;
      sent_ = messages.isend(core.peer, messaging::host_buffer(&mine_, sizeof mine_), tag);
      received_ = messages.irecv(core.peer, messaging::host_buffer(&theirs_, sizeof theirs_), tag);
    }
    if (auto done = sent_.wait(limit.left()); !done) return done.error();
    if (auto done = received_.wait(limit.left()); !done) return done.error();
    return theirs_;
  }

 private:
  bool has_begun_ = false;
  T mine_{}, theirs_{};
  messaging::request sent_, received_;  // end before their memory
};

// Agrees with the peer's end on an executor.
class executor_setup {
 public:
  virtual ~executor_setup() = default;
  // ETIMEDOUT: the peer has not done its part yet; the next call continues. Every other error is final.
  virtual result<std::unique_ptr<executor>> make(const setup_limit& limit) = 0;
};

}  // namespace pl::triggered
