// SPDX-License-Identifier: Apache-2.0
#include "messaging/barrier.hpp"

#include "base/text.hpp"

namespace pl::messaging {

std::optional<status> dissemination_barrier::advance() {
  if (!is_open_) {
    if (!stopped_.empty()) return status(failure{ECONNRESET, stopped_});
    ++number_;
    distance_ = 1;
    is_open_ = true;
    has_sent_ = false;
  }
  const int rank = context_.rank, size = context_.size;
  for (; distance_ < size; distance_ *= 2, has_sent_ = false) {
    const int destination_rank = (rank + distance_) % size, source_rank = (rank - distance_ + size) % size;
    if (!has_sent_) {
      if (auto refused = context_.refuses_peer(destination_rank)) return status(*std::move(refused));
      channel_.send_control(destination_rank, {.kind = frame_kind::barrier, .tag = number_});
      has_sent_ = true;
    }
    if (context_.peer(source_rank).barriers >= number_ && channel_.barrier_frames() == 0) continue;
    if (context_.peer(source_rank).is_dead) return status(failure{ECONNRESET, context_.peer(source_rank).loss});
    return std::nullopt;
  }
  is_open_ = false;
  return status{};
}

void dissemination_barrier::continue_at(std::uint64_t number) {
  stopped_.clear();
  may_skip_ = true;
  is_open_ = false;
  number_ = number;
}

// A peer may have entered the barrier after a return before this process knows its number.
void dissemination_barrier::on_frame(peer_state& source, const frame& head) {
  const bool is_later = may_skip_ || !stopped_.empty();
  if (head.tag == source.barriers + 1 || (is_later && head.tag > source.barriers)) source.barriers = head.tag;
  else
    watch_.report(source.rank,
                  format("is out of step: it sent barrier %llu when %llu was expected",
                         static_cast<unsigned long long>(head.tag), static_cast<unsigned long long>(source.barriers) + 1));
}

}  // namespace pl::messaging
