// SPDX-License-Identifier: Apache-2.0
// The server's counters and their Prometheus text. Counting is thread-safe and takes no lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/engine.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_server {

// A label's value, escaped for Prometheus. Bytes that are not printable UTF-8 become \xNN, so different names stay
// different.
std::string metric_label(std::string_view text);

class metrics {
 public:
  // Counts an operation that ended: its duration on this server, and its errno.
  void operation(store_protocol::opcode op, int status, std::uint64_t ns) noexcept;
  // Counts bytes of values that took this path.
  void bytes(store_protocol::path way, bool into_store, std::uint64_t count) noexcept;

  std::atomic<std::int64_t> connections{0}, in_handshake{0};
  std::atomic<std::uint64_t> accepted{0}, refused{0}, protocol_errors{0}, stalled{0}, idle{0}, waits_for_room{0}, rings{0};
  std::atomic<std::uint64_t> ucx_refused{0};  // UCX messages that named no transfer of a session
  // Transfers by the server's DMA channels that failed and took another path
  std::atomic<std::uint64_t> device_failures{0};
  std::string device_refusal;  // why there are no DMA channels; set before anything is served
  std::atomic<std::int64_t> watches{0};
  std::atomic<std::uint64_t> watch_events{0}, watch_lost{0};  // changes delivered, and changes lost for lack of room
  std::atomic<std::int64_t> orphans{0};  // sessions of lost connections whose process may still access the arena

  // Prometheus' text format, version 0.0.4.
  std::string text(const store::engine_stats& engine, const std::vector<store::pool_info>& pools = {},
                   const std::vector<store::owner_info>& principals = {}) const;

 private:
  static constexpr std::size_t kOps = static_cast<std::size_t>(store_protocol::opcode::last) + 1;
  static constexpr std::size_t kPaths = static_cast<std::size_t>(store_protocol::path::last) + 1;
  static constexpr std::size_t kBuckets = 25;  // buckets up to 1 us, 2 us, 4 us, ... 16 s, and above
  struct per_operation {
    std::array<std::atomic<std::uint64_t>, kBuckets> buckets{};
    std::atomic<std::uint64_t> count{0}, failed{0}, total_ns{0};
  };
  std::array<per_operation, kOps> operations_;
  std::array<std::array<std::atomic<std::uint64_t>, 2>, kPaths> bytes_{};
};

}  // namespace pl::store_server
