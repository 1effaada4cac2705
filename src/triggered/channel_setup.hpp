// SPDX-License-Identifier: Apache-2.0
// The way of a channel's end from connect() to its executor, which may take several calls of channel::ready().
#pragma once

#include <memory>
#include <optional>

#include "triggered/channel.hpp"
#include "triggered/context_parts.hpp"
#include "triggered/end_exchange.hpp"

namespace pl::triggered {

class channel_setup {
 public:
  channel_setup(context::parts& owner, std::shared_ptr<channel_core> core) : parts_(owner), core_(std::move(core)) {}
  // ETIMEDOUT: call again. Any other error is final: the same call returns it from then on.
  result<std::unique_ptr<executor>> make(const setup_limit& limit);

 private:
  struct verdict {
    std::uint32_t can_reach, wanted;
  };
  result<std::unique_ptr<executor>> try_make(const setup_limit& limit);
  // The first message of the peer.
  status receive_hello(const setup_limit& limit);
  result<std::unique_ptr<executor>> make_peer();

  context::parts& parts_;
  const std::shared_ptr<channel_core> core_;
  std::optional<failure> failed_;
  std::optional<hello> theirs_;
  std::optional<result<cu::device_ptr>> reach_;  // the peer's words, for this GPU
  end_exchange<verdict> verdicts_;
  std::unique_ptr<executor_setup> executor_;
};

}  // namespace pl::triggered
