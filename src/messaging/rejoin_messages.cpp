// SPDX-License-Identifier: Apache-2.0
#include "messaging/rejoin_messages.hpp"

#include <cstring>

namespace pl::messaging {
namespace {

constexpr std::uint64_t kRejoinTag = kReservedTags | 1;

struct rejoin_head {
  std::uint32_t type;
  std::int32_t rank;
  std::uint32_t incarnation, step;
};

}  // namespace

void rejoin_messages::send(int rank, rejoin_message message) {
  message.source = context_.rank;
  if (rank == context_.rank) return own_.push_back(std::move(message));
  if (context_.peer(rank).is_dead) return;
  const rejoin_head head{static_cast<std::uint32_t>(message.type), message.rank, message.incarnation, message.step};
  auto& sent = outgoing_.emplace_back();
  sent.bytes.resize(sizeof head);
  std::memcpy(sent.bytes.data(), &head, sizeof head);
  sent.bytes.insert(sent.bytes.end(), message.part.begin(), message.part.end());
  sent.op = &messages_.isend(rank, host_buffer(sent.bytes.data(), sent.bytes.size()), kRejoinTag, tag_space::collective);
}

void rejoin_messages::sweep() {
  for (auto each = outgoing_.begin(); each != outgoing_.end();) {
    const bool is_over = each->op->has_ended() && !each->op->is_sending;
    if (is_over) context_.release(*each->op);
    each = is_over ? outgoing_.erase(each) : std::next(each);
  }
}

std::optional<rejoin_message> rejoin_messages::next() {
  if (!outgoing_.empty()) sweep();
  if (!own_.empty()) {
    auto out = std::move(own_.front());
    own_.pop_front();
    return out;
  }
  while (operation* const found = messages_.find_message(kAnySource, kRejoinTag, kWholeTag, tag_space::collective, true)) {
    auto& arriving = incoming_.emplace_back();
    arriving.bytes.resize(found->bytes);
    arriving.op = &messages_.receive_taken(*found, host_buffer(arriving.bytes.data(), arriving.bytes.size()));
  }
  while (!incoming_.empty() && incoming_.front().op->has_ended()) {
    const auto arrived = std::move(incoming_.front());
    incoming_.pop_front();
    const bool is_whole = arrived.op->code == 0 && arrived.bytes.size() >= sizeof(rejoin_head);
    const int source = arrived.op->info.source;
    context_.release(*arrived.op);
    if (!is_whole) continue;
    rejoin_head head;
    std::memcpy(&head, arrived.bytes.data(), sizeof head);
    return rejoin_message{rejoin_message::kind{head.type},
                          head.rank,
                          head.incarnation,
                          head.step,
                          source,
                          byte_string(arrived.bytes.begin() + sizeof head, arrived.bytes.end())};
  }
  return std::nullopt;
}

}  // namespace pl::messaging
