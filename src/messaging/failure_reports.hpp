// SPDX-License-Identifier: Apache-2.0
// Reports failed processes of the job to the operations that wait for a failure. Each failure is reported once, in the order
// in which this process noticed them.
//
// Owns: the failures that are not reported yet, and the operations that wait. Threads: the messenger's lock guards all
// calls. Errors: none.
#pragma once

#include <algorithm>
#include <deque>

#include "messaging/messenger_context.hpp"

namespace pl::messaging {

class failure_reports {
 public:
  explicit failure_reports(messenger_context& context) : context_(context) {}

  // Begins an operation that succeeds when a process has failed: `info.source` is its rank, `info.tag` a failure_kind.
  operation& begin() {
    operation& made = context_.operations.take(operation_kind::failure);
    made.peer = kAnySource;
    waiting_.push_back(&made);
    tell();
    return made;
  }
  void report(int rank, failure_kind kind) {
    unreported_.push_back({rank, kind});
    tell();
  }
  // The rank is back: drops its failure if it has not been reported yet.
  void forget(int rank) {
    std::erase_if(unreported_, [&](const failed_peer& each) { return each.rank == rank; });
  }
  // Ends an operation of begin() with ECANCELED, unless it has already ended.
  void cancel(operation& op) {
    std::erase(waiting_, &op);
    context_.end(op, ECANCELED, "cancelled");
  }

 private:
  struct failed_peer {
    int rank;
    failure_kind kind;
  };
  void tell() {
    for (; !waiting_.empty() && !unreported_.empty(); waiting_.pop_front(), unreported_.pop_front()) {
      operation& ended = *waiting_.front();
      ended.info.source = unreported_.front().rank;
      ended.info.tag = static_cast<std::uint64_t>(unreported_.front().kind);
      context_.end(ended, 0, {});
    }
  }
  messenger_context& context_;
  std::deque<failed_peer> unreported_;
  std::deque<operation*> waiting_;
};

}  // namespace pl::messaging
