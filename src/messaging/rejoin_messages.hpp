// SPDX-License-Identifier: Apache-2.0
// Messages between rank 0 and the others when ranks leave and come back. They use tags of the collectives' tag
// space that no collective uses.
//
// Owns: messages in progress. Threads: the messenger's lock guards all calls. Errors: none. A message to or from a rank that
// is lost meanwhile is dropped.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>

#include "messaging/tag_send_recv.hpp"

namespace pl::messaging {

struct rejoin_message {
  enum class kind : std::uint32_t {
    step,    // from rank 0: `part` is the message of the new process in this step
    answer,  // to rank 0: the sender's answer
    abort,   // from rank 0: the return has failed
    gone,    // from rank 0: this incarnation has ended, or closed its communicator
  };
  kind type = kind::step;
  std::int32_t rank = -1;         // the rank that leaves or comes back
  std::uint32_t incarnation = 0;  // of that rank
  std::uint32_t step = 0;         // 1: hosts, 2 and 3: peer_info, 4: it is back
  std::int32_t source = -1;       // of the message
  byte_string part{};
};

class rejoin_messages {
 public:
  rejoin_messages(messenger_context& context, tagged_messages& messages) : context_(context), messages_(messages) {}
  // `rank` may be this process itself.
  void send(int rank, rejoin_message message);
  // The next message that has arrived.
  std::optional<rejoin_message> next();

 private:
  struct transit {
    byte_string bytes;
    operation* op = nullptr;
  };
  void sweep();
  messenger_context& context_;
  tagged_messages& messages_;
  std::deque<rejoin_message> own_;
  std::list<transit> outgoing_, incoming_;
};

}  // namespace pl::messaging
