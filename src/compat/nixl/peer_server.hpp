// SPDX-License-Identifier: Apache-2.0
// The thread that answers other agents of this host: it hands over memory, takes notifications, runs copies into and
// out of this process's host memory, and notices when an agent that we talk to has ended. It waits for nobody: a
// message arrives in parts, an unread answer stays in the connection's queue, and a connection with too much of that is
// closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "compat/nixl/copy_list.hpp"
#include "compat/nixl/nixl_abi.hpp"
#include "compat/nixl/peers.hpp"

namespace pl::nixl {

class peer_server {
 public:
  static result<std::unique_ptr<peer_server>> open(std::shared_ptr<gpu_table> gpus, std::shared_ptr<cpu_mover> mover);
  ~peer_server();
  peer_server(const peer_server&) = delete;
  peer_server& operator=(const peer_server&) = delete;

  const address& own_address() const noexcept { return address_; }

  // Memory that others may request by its id.
  void add(const std::shared_ptr<memory>& own);
  void remove(std::uint64_t id);
  void add_notification(const std::string& agent, const std::string& text);
  void take_notifications(abi::notifications& out);
  // Until it is lost.
  void watch(const std::shared_ptr<peer>& spoken_to);

 private:
  // Memory of which not all descriptors have come.
  struct begun_offer {
    std::uint64_t id = 0;
    std::vector<shared_piece> pieces;
    std::vector<dma::shared_region> regions;
    dma::region_reader reader;
  };
  using answer_part = std::variant<std::string, dma::shared_region>;
  struct connection {
    unique_fd socket;
    std::string agent;  // once it has greeted
    bool is_handshake_done = false, is_closed = false;
    std::string begun;           // of the message that comes
    std::uint64_t since_ns = 0;  // accepted
    std::map<std::uint64_t, std::shared_ptr<memory>> offered;
    std::optional<begun_offer> offer;
    std::deque<answer_part> answers;  // that were not taken yet
    std::size_t answer_bytes = 0;
    std::shared_ptr<std::atomic<std::size_t>> notification_bytes = std::make_shared<std::atomic<std::size_t>>(0);
  };
  struct notification {
    std::string agent, text;
    std::shared_ptr<std::atomic<std::size_t>> counted_in;  // of its sender; null: this agent itself
  };
  struct job {
    std::shared_ptr<connection> asker;
    std::uint64_t id = 0;
    std::unique_ptr<copy_list> list;
  };
  peer_server(std::shared_ptr<gpu_table> gpus, std::shared_ptr<cpu_mover> mover)
      : gpus_(std::move(gpus)), mover_(std::move(mover)) {}
  void work();
  void wake() const;
  void accept_one();
  void close_in_handshake();
  int wait_limit_ms() const;
  static short events_of(const connection& one);
  status receive(const std::shared_ptr<connection>& asker);
  void serve(const std::shared_ptr<connection>& asker, short events);
  void cut_off(const std::shared_ptr<connection>& asker, const failure& reason);
  static status queue(connection& asker, answer_part part);
  static status send_answers(connection& asker);
  status answer(connection& asker, const received& got);
  status hand_over(connection& asker, std::uint64_t id);
  status take_notification(connection& asker, const std::string& text);
  status begin_offer(connection& asker, const received& got);
  status go_on_with_offer(connection& asker);
  void finish_offer(connection& asker);
  status begin_job(const std::shared_ptr<connection>& asker, const received& got);
  status compile(connection& asker, const received& got, copy_list& list);
  void test_jobs();
  std::shared_ptr<memory> find(std::uint64_t id);

  const std::shared_ptr<gpu_table> gpus_;
  const std::shared_ptr<cpu_mover> mover_;
  address address_;
  unique_fd listener_, wake_;
  std::thread thread_;

  std::mutex mutex_;
  bool is_ending_ = false;
  std::map<std::uint64_t, std::shared_ptr<memory>> memory_;
  std::vector<notification> notifications_;
  std::vector<std::shared_ptr<peer>> watched_;

  // The thread's own.
  std::vector<std::shared_ptr<connection>> connections_;
  std::vector<job> jobs_;
  std::uint64_t accepts_from_ns_ = 0;  // out of descriptors: not before
};

// For connections that have not sent the secret, which anybody who sees the socket's name can make.
inline constexpr std::size_t kMaxInHandshake = 64;
inline constexpr std::uint64_t kHandshakeTimeoutNs = 5'000'000'000;
// For connections that have: answers that it has not read, and notifications that nobody here has fetched. Beyond the
// latter limit, it is not read until some are fetched.
inline constexpr std::size_t kMaxAnswerBytes = 16u << 20, kMaxNotificationBytes = 64u << 20;

}  // namespace pl::nixl
