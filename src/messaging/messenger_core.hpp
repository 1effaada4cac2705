// SPDX-License-Identifier: Apache-2.0
// The implementation of `messenger`: its parts, the dispatch of frames to them, and progress.
//
//   messenger_context      peers, buffers, limits, operations
//   peer_watch             peers that have ended or left
//   packet_channel         frames in order, shm queues, UCX
//   rendezvous             RTS, RTR, ATS, and the transports
//   tagged_messages        send, receive, matching, cancellation
//   direct_windows         access to windows of this node without their owner
//   remote_access          windows: put, get, atomics
//   dissemination_barrier
//   failure_reports        reports of lost peers
//   memory_revocation      memory that its owner takes back
//   readmission            lost ranks that come back
//
// A part may use the parts that its constructor takes; they come before it in this list. Only packet_channel calls back,
// with dispatch().
//
// Owns: all parts. Threads: one lock guards everything. Errors: those of open(); a lost peer ends its operations with
// ECONNRESET.
#pragma once

#include <optional>
#include <string>

#include "base/attended_time.hpp"
#include "messaging/barrier.hpp"
#include "messaging/direct_windows.hpp"
#include "messaging/failure_reports.hpp"
#include "messaging/messenger.hpp"
#include "messaging/messenger_context.hpp"
#include "messaging/packet_channel.hpp"
#include "messaging/peer_watch.hpp"
#include "messaging/progress_thread.hpp"
#include "messaging/readmission.hpp"
#include "messaging/rma.hpp"
#include "messaging/rndv.hpp"
#include "messaging/tag_send_recv.hpp"
#include "messaging/window_revocation.hpp"
#include "os/biased_mutex.hpp"

namespace pl::messaging {

struct messenger_core {
  messenger_core(const cu::driver_table* cuda, const messenger_options& wanted, int rank, int size);
  ~messenger_core();

  status open(bootstrap& group);
  // Advances everything once; true if something moved. `with_network` is false for callers that poll more often than UCX
  // needs.
  bool progress(bool with_network = true);
  // Passes a frame to its part. Frames of one peer arrive in the order in which they were sent.
  void dispatch(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  // dispatch() of an eager message in a shm queue.
  void take_eager(peer_state& source, const compact_frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void mark_lost(int rank, const std::string& reason);

  // ---- Sleeping (wakeup.hpp)
  // Creates the descriptor of the transports. Without a progress thread, callers use it as well.
  result<int> open_descriptor();
  // Success: the descriptor becomes readable when something happens. EBUSY: something has happened since the last call, or
  // an operation in progress only advances by polling. ENOSYS: this process cannot be woken.
  status arm_owner();

  // ---- In messenger.cpp; these take the lock
  // Makes progress until `done` returns a status.
  template <class Done>
  status wait_until(Done done, std::chrono::milliseconds limit, bool may_sleep = true);
  template <class Done>
  status sleep_until(Done& done, std::chrono::milliseconds limit, std::optional<attended_time>& waited);
  // Call it with the lock held. Errors as request::cancel.
  status cancel(operation& op);
  // Waits, for a bounded time, until no transport uses the operation's memory any more.
  void reclaim_memory(operation& op);
  // reclaim_memory() for a signal whose put is in progress. False: no put is in progress.
  bool reclaim_put(operation& signal);

  biased_mutex mutex_;
  messenger_context context_;
  peer_watch watch_;
  packet_channel channel_;
  rendezvous rendezvous_;
  tagged_messages messages_;
  direct_windows direct_;
  remote_access windows_;
  dissemination_barrier barrier_;
  failure_reports failures_;
  memory_revocation revocation_;
  readmission returns_;
  bool do_all_calibrate_ = false;  // every process of the job requests a calibration
  std::optional<progress_thread> thread_;

 private:
  void update_credit(peer_state& remote, std::uint16_t gpu, std::uint64_t credit);
  void fail_operations(int rank, const std::string& reason);
  void fail_operation(operation& op, const std::string& reason);

  bool is_open_ = false;
  std::uint64_t seen_events_ = 0;  // events that the owner of the descriptor has seen
  unsigned rounds_ = 0;
};

}  // namespace pl::messaging
