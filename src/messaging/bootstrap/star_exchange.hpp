// SPDX-License-Identifier: Apache-2.0
// Collective calls over a star of messages with rank 0 in the middle.
//
// Why a star and not a tree: rank 0 hears every rank itself, so it can name the one that is missing, and a job of GPU
// processes has tens or hundreds of ranks, not many thousands.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/bootstrap/star_channel.hpp"

namespace pl::messaging {

// A rank that dies or is silent for longer than the time-out makes the call fail on all others (ECONNRESET, ETIMEDOUT, with
// the rank's number and host). After a failure every later call fails at once with the same sentence. One thread.
class star_exchange final : public bootstrap {
 public:
  star_exchange(std::unique_ptr<star_channel> channel, unsigned timeout_s)
      : channel_(std::move(channel)), timeout_ms_(timeout_s * 1000) {}

  int rank() const noexcept override { return channel_->rank(); }
  int size() const noexcept override { return channel_->size(); }
  std::string library() const { return channel_->library(); }  // "TCP", "local sockets", "MPI: Open MPI 4.1.4"
  result<std::vector<byte_string>> all_gather(std::span<const std::byte> mine) override { return exchange(mine, true); }
  // A barrier without a time limit, for ranks that have nothing to do while another works for long. A dead rank still ends
  // it.
  status patient_barrier();

  // Hosts by rank, for sentences about them.
  void set_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }
  std::string name_of(int rank) const;  // "rank 2 (node7)"

 private:
  using parts_t = std::vector<std::optional<byte_string>>;
  result<std::vector<byte_string>> exchange(std::span<const std::byte> mine, bool is_limited);
  result<std::vector<byte_string>> collect(std::span<const std::byte> mine, bool is_limited);
  result<std::vector<byte_string>> contribute(std::span<const std::byte> mine, bool is_limited);
  status take_part(channel_event&& event, parts_t& parts) const;
  status spread(const byte_string& message);
  void send_heartbeats(const parts_t& parts);
  void give_up(const failure& reason);
  failure lost(int peer, const std::string& reason) const;
  failure silent(const parts_t& parts) const;

  std::unique_ptr<star_channel> channel_;
  unsigned timeout_ms_;
  std::vector<std::string> hosts_;
  std::uint64_t sequence_ = 0;
  std::optional<failure> broken_;
};

}  // namespace pl::messaging
