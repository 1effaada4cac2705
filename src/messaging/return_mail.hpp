// SPDX-License-Identifier: Apache-2.0
// What rank 0 and the others tell each other when ranks leave and come back: messages of the collectives' tag space, which
// no collective uses.
//
// Owns: letters under way. Threads: the messenger's lock guards all calls. Errors: none; a letter to or from a rank that is
// lost meanwhile is not delivered.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>

#include "messaging/tag_send_recv.hpp"

namespace pl::messaging {

struct return_letter {
  enum class kind : std::uint32_t {
    step,    // from rank 0: `part` is what the rank that comes back says in this step
    answer,  // to rank 0: what the sender says to it
    abort,   // from rank 0: it does not come back after all
    gone,    // from rank 0: this process of the rank has ended, or closed its communicator
  };
  kind type = kind::step;
  std::int32_t rank = -1;         // that leaves or comes back
  std::uint32_t incarnation = 0;  // of it
  std::uint32_t step = 0;         // 1: hosts, 2 and 3: introductions, 4: it is back
  std::int32_t source = -1;       // of the letter
  byte_string part{};
};

class return_mail {
 public:
  return_mail(messenger_context& context, tagged_messages& messages) : context_(context), messages_(messages) {}
  // Also to this process itself.
  void send(int rank, return_letter letter);
  // The next letter that has come.
  std::optional<return_letter> next();

 private:
  struct transit {
    byte_string bytes;
    operation* op = nullptr;
  };
  void sweep();
  messenger_context& context_;
  tagged_messages& messages_;
  std::deque<return_letter> own_;
  std::list<transit> outgoing_, incoming_;
};

}  // namespace pl::messaging
