// SPDX-License-Identifier: Apache-2.0
// Several rails as one network, with a UCX worker for each net device. Packets take the first rail that is up, and parts of
// messages the rail with the least load. The receiver acknowledges both. If a rail fails, everything unacknowledged is sent
// again over another one. Numbers and tags ensure that each counts once (docs/design/0012-rails.md).
//
// Owns: the workers, copies of packets that are not acknowledged, and the table of posted receives.
// Threads: the messenger's lock guards all calls; callbacks run inside progress().
// Errors: ECONNRESET at done(), and listener::on_lost once no rail to a peer is left.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "messaging/transport/rail_peer.hpp"
#include "messaging/transport/ucx_fabric.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {

class rail_set final : public network {
 public:
  // Needs two or more `devices`. Ignores `wanted.rails`.
  static result<std::unique_ptr<rail_set>> open(const ucx_fabric::options& wanted, const std::vector<std::string>& devices,
                                                int ranks, int own_rank, listener& handler);
  ~rail_set() override;

  const byte_string& address() const noexcept override { return address_; }
  const port_list& ports() const noexcept override { return ports_; }
  void set_peer(int rank, byte_string address, const port_list& ports) override;
  void keep_connections(int rank) const override;
  bool has_gpu_lanes() const noexcept override { return false; }
  bool has_rdma_lane(int) override { return false; }
  bool can_send_in_place() const noexcept override { return false; }
  unsigned rails() const noexcept override { return static_cast<unsigned>(devices_.size()); }
  std::string version() const override { return rails_.front()->version(); }
  std::string description(int rank) const override;
  std::uint64_t part_bytes_of(std::uint64_t message) const noexcept override;

  result<int> descriptor() override;
  bool arm() override;
  unsigned progress() override;
  void send(int rank, packet& outgoing) override;
  void send_tagged(int rank, std::uint64_t tag, const void* source, std::size_t bytes, bool is_gpu_memory,
                   ucx_part& part) override;
  void receive_tagged(int rank, std::uint64_t tag, void* destination, std::size_t bytes, bool is_gpu_memory,
                      ucx_part& part) override;
  void receive_remote(remote_data data, void* destination, std::size_t bytes, ucx_part& part) override;
  void cancel_tagged(ucx_part& part) override;
  void close(int rank, bool at_once) override;
  bool is_closing() const noexcept override;
  void reap_closed() override;
  // Bytes of packet copies for this rank, and of control messages to it that UCX has not sent.
  std::size_t memory_held(int rank) const noexcept;

 private:
  // Receives the messages of one rail.
  struct end final : listener {
    end(rail_set& set, unsigned number) : owner(&set), rail(number) {}
    void on_packet(const std::byte*, std::size_t) override {}
    void on_plain(const void*, std::size_t, const std::byte*, std::size_t) override {}
    void on_remote(const frame&, remote_data) override {}
    void on_lost(int rank, const char* reason) override { owner->failing_.push_back({rank, rail, reason}); }
    void on_rail(const rail_head& head, const std::byte* data, std::size_t bytes) override {
      owner->take(rail, head, data, bytes);
    }
    rail_set* owner;
    unsigned rail;
  };
  struct failing_rail {
    int rank;
    unsigned rail;
    std::string reason;
  };
  struct posted {
    int rank = -1;
    void* destination = nullptr;
    std::size_t bytes = 0;
    ucx_part* part = nullptr;  // null: cancelled
    bool has_arrived = false;  // after it was cancelled
  };
  struct control : rail_message {
    rail_set* owner = nullptr;
    control* next = nullptr;
    int rank = -1;
    unsigned rail = 0, life = 0;
  };

  rail_set(std::vector<std::string> devices, int ranks, int own_rank, listener& handler);
  status start(const ucx_fabric::options& wanted, int ranks);
  const rail_peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  rail_peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  // Sending
  void keep_and_transmit(int rank, packet& outgoing);
  void transmit(sent_unit& unit, unsigned rail);
  std::unique_ptr<sent_unit> make_sent_unit(int rank, std::uint32_t kind, std::uint64_t number);
  void send_waiting(int rank);
  void send_control(int rank, unsigned rail, std::uint32_t kind, std::uint64_t number);
  static void on_transmitted(rail_message& message);
  static void on_control_sent(rail_message& message);
  void settle(std::unique_ptr<sent_unit> unit, int code);
  static void finish(sent_unit& unit);
  void sweep_lingering();
  void stop_counting(sent_unit& lingering);
  // Receiving
  void take(unsigned rail, const rail_head& head, const std::byte* data, std::size_t bytes);
  void take_packet(int rank, std::uint64_t number, const std::byte* data, std::size_t bytes);
  void take_part(unsigned rail, int rank, std::uint64_t tag, const std::byte* data, std::size_t bytes);
  void take_packets_acknowledged(int rank, std::uint64_t next);
  void take_part_acknowledged(int rank, std::uint64_t tag);
  void note_due(int rank, std::size_t bytes);
  void send_due(bool is_idle);
  // The loss of a rail
  bool has_outstanding() const;
  void watch_rails();
  void watch_rail(int rank, unsigned rail, std::uint64_t now);
  void ping_others(int rank, unsigned silent, std::uint64_t now);
  void take_pong(int rank, std::uint64_t pinged_ns);
  bool is_link_down(unsigned rail) const;
  void fail_rail(const failing_rail& failed);
  void retransmit(int rank, unsigned failed);
  void end_all(int rank);
  void close_drained();

  const std::vector<std::string> devices_;
  const std::uint32_t own_rank_;
  listener* handler_;
  std::deque<rail_peer> peers_;
  std::unordered_map<std::uint64_t, posted> posted_;   // by tag
  std::deque<std::uint64_t> cancelled_;                // tags of `posted_`
  std::vector<std::unique_ptr<sent_unit>> lingering_;  // settled, but still held by UCX
  std::deque<std::unique_ptr<control>> controls_;
  control* free_control_ = nullptr;
  std::vector<int> due_;  // ranks to which acknowledgements are due
  std::vector<failing_rail> failing_;
  std::vector<std::unique_ptr<end>> ends_;
  std::vector<bool> has_link_state_;
  std::uint64_t watched_ns_ = 0;
  std::size_t min_part_bytes_ = 0, max_part_bytes_ = 0;
  unsigned draining_ = 0;
  byte_string address_;
  port_list ports_{};
  unique_fd epoll_, timer_;
  // Declared last: their destructors make callbacks that use the other members.
  std::vector<std::unique_ptr<ucx_fabric>> rails_;
};

}  // namespace pl::messaging
