// SPDX-License-Identifier: Apache-2.0
// Collective calls over a star of connections with rank 0 in the middle.
//
// A star rather than a tree: rank 0 hears from every rank directly, so it can name the one that is missing, and a job of GPU
// processes has tens or hundreds of ranks, not many thousands.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/bootstrap/rejoin_requests.hpp"
#include "messaging/bootstrap/star_channel.hpp"

namespace pl::messaging {

// If a rank dies or stays silent for longer than `timeout_s` seconds, the call fails on all other ranks (ECONNRESET,
// ETIMEDOUT; the message names the rank and its host). After a failure every later call fails at once with the same message.
// Use it from one thread.
class star_exchange final : public bootstrap, private rejoin_requests, private rank_0_search {
 public:
  star_exchange(std::unique_ptr<star_channel> channel, unsigned timeout_s)
      : channel_(std::move(channel)), timeout_ms_(timeout_s * 1000) {}

  int rank() const noexcept override { return channel_->rank(); }
  int size() const noexcept override { return channel_->size(); }
  std::string library() const { return channel_->library(); }  // "TCP", "local sockets", "MPI: Open MPI 4.1.4"
  result<std::vector<byte_string>> all_gather(std::span<const std::byte> mine) override { return exchange(mine, true); }
  bool stays_open() const noexcept override { return channel_->stays_open(); }
  std::uint32_t incarnation() const noexcept override { return channel_->incarnation(); }
  rejoin_requests* returns() noexcept override { return channel_->rejoins() != nullptr ? this : nullptr; }
  rank_0_search* rank_0() noexcept override { return channel_->finder() != nullptr ? this : nullptr; }
  // A barrier without a time limit, for ranks that are idle while another one works for a long time. It still fails if a
  // rank dies.
  status slow_barrier();

  // Host names by rank, for messages.
  void set_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }
  std::string name_of(int rank) const;  // "rank 2 (node7)"

 private:
  using parts_t = std::vector<std::optional<byte_string>>;
  result<std::vector<byte_string>> exchange(std::span<const std::byte> mine, bool is_limited);
  result<std::vector<byte_string>> collect(std::span<const std::byte> mine, bool is_limited);
  result<std::vector<byte_string>> ask_survivors(std::span<const std::byte> mine);
  byte_string living() const;
  result<std::vector<byte_string>> contribute(std::span<const std::byte> mine, bool is_limited);
  status take_part(channel_event&& event, parts_t& parts) const;
  status spread(const byte_string& message);
  void send_heartbeats(const parts_t& parts);
  void give_up(const failure& reason);
  failure lost(int peer, const std::string& reason) const;
  failure silent(const parts_t& parts) const;

  // ---- rejoin_requests
  std::optional<return_event> poll() override;
  int descriptor() const noexcept override;
  status admit(int rank, std::uint32_t incarnation) override;
  void refuse(int rank, const failure& reason) override;
  void dismiss(int rank, const failure& reason) override;
  void answer(int rank, const std::vector<byte_string>& all) override;
  void extend_time_limit(int rank) override;
  unsigned timeout_ms() const noexcept override { return timeout_ms_; }
  std::vector<std::uint32_t> last_incarnations() const override {
    return channel_->survivors() != nullptr ? channel_->survivors()->last : std::vector<std::uint32_t>();
  }

  // ---- rank_0_search
  std::optional<rank_0_event> poll_rank_0() override;
  int rank_0_descriptor() const noexcept override;
  status find_rank_0(survivor_claim known) override;
  void stop_finding_rank_0() override;
  bool is_finding_rank_0() override;
  void answer_rank_0(std::uint64_t step, const std::vector<std::byte>& part) override;

  std::unique_ptr<star_channel> channel_;
  unsigned timeout_ms_;
  std::vector<std::string> hosts_;
  std::uint64_t sequence_ = 0;
  std::optional<failure> broken_;
  // On a rank 0 that has rejoined: survivors that have ended since, and the text that their collectives were opened with.
  std::set<int> ended_;
  byte_string opening_text_;
  std::map<int, std::uint64_t> admitted_;  // rejoined ranks, and the exchange that each has begun
};

}  // namespace pl::messaging
