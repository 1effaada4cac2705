// SPDX-License-Identifier: Apache-2.0
// The other processes of this host that have the same library preloaded: who they are, and the memory shared with them.
//
// A process whose receives all pass through this library announces itself by a socket with a name that only its job
// knows; the kernel says who listens there. A sender that finds no such socket, or another user's, sends as usual.
// Connecting requires nothing of the receiver, which may be busy: it accepts when a header or a probe makes it look.
//
// All calls are thread-safe, and none waits.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "compat/mpi/pipeline_format.hpp"
#include "compat/mpi/shared_segment.hpp"
#include "os/process_end.hpp"
#include "os/sealed_memory.hpp"

namespace pl::mpi {

// Memory of this process for one message at a time.
struct send_segment {
  std::uint32_t id = 0;
  sealed_memory file;
  shared_segment memory;
  bool is_free = true;
  bool is_kept = true;  // a tail's ends with its message
};

// One receiver of this process's messages.
struct receiver {
  unique_fd socket;
  pipeline_nonce nonce{};
  sealed_memory slots_file;
  shared_segment slots_memory;
  struct use {
    std::shared_ptr<send_segment> ring, tail;
    bool is_written = false;  // by a thread of ours, at this time: a receiver that wants no more does not free it
  };
  std::array<use, kSlots> uses;
  std::vector<std::uint32_t> sent;  // segments that it has been given
  std::uint64_t serial = 0;
  unsigned slots_tried = 0;                                   // those behind have never been used
  std::atomic<unsigned> direct_skips{0}, direct_failures{0};  // direct_copy.cpp, as this
  std::atomic<bool> has_taken_directly{false};
  bool is_lost = false;
  message_slot* slots() const noexcept { return reinterpret_cast<message_slot*>(slots_memory.data()); }
};

// One sender of messages for this process.
struct sender {
  unique_fd socket;
  process_end process;  // watches nobody where it has no number here
  pipeline_nonce nonce{};
  std::int32_t rank = -1, pid = 0;  // pid: 0 if it has none here
  shared_segment slots_memory;
  std::map<std::uint32_t, std::shared_ptr<shared_segment>> segments;
  message_slot* slots() const noexcept { return reinterpret_cast<message_slot*>(slots_memory.data()); }
  bool has_ended() const noexcept;
};

// A message that is being sent: its slot is this object's until the receiver has it.
struct outgoing_message {
  std::shared_ptr<receiver> peer;
  unsigned slot = 0;
  std::shared_ptr<send_segment> ring;
  message_slot& shared() const noexcept { return peer->slots()[slot]; }
};

struct incoming_message {
  std::shared_ptr<sender> origin;
  unsigned slot = 0;
  std::shared_ptr<shared_segment> ring;
  message_slot& shared() const noexcept { return origin->slots()[slot]; }
};

class pipeline_peers {
 public:
  struct options {
    std::size_t budget = 0;  // bytes of rings, in use and kept
    std::size_t ring = 0;    // most of them that one message gets
  };

  // The abstract name of a rank's socket.
  static std::string socket_name(const std::string& job_key, int ranks, int rank);
  // Makes this process known under the job's key. EADDRINUSE: somebody else has the name.
  static result<std::unique_ptr<pipeline_peers>> open(const std::string& job_key, int rank, int ranks,
                                                      const options& wanted);

  // Begins a message to a rank of this job. Empty if it must take another path (the rank is on another host or lacks
  // this library, or slots or memory are exhausted).
  std::optional<outgoing_message> begin(int rank, int tag, std::uint64_t bytes);
  // Memory for the rest of a message, from byte `from` on. ENOMEM, EMFILE, or what the connection says.
  result<std::shared_ptr<send_segment>> add_tail(const outgoing_message& message, std::uint64_t origin);
  // Returns false if the receiver's process has ended.
  static bool has_receiver(const outgoing_message& message) noexcept;
  // Nobody writes the message's data any more: its memory is free once the receiver says so.
  void end_writing(const outgoing_message& message);
  // The message was never sent, or was cancelled.
  void withdraw(const outgoing_message& message);
  message_header header_of(const outgoing_message& message) const;

  // The message that a header announces. EPROTO: it is none of ours.
  result<incoming_message> find(const message_header& header);
  result<std::shared_ptr<shared_segment>> tail_of(const incoming_message& message);
  // The true size of a message that a probe saw as kHeaderBytes + slot; 0: it is no header.
  std::uint64_t size_behind(int rank, unsigned slot, int tag);

 private:
  using lock = std::lock_guard<std::mutex>;
  struct tries {
    std::uint64_t next_ns = 0;
    unsigned failed = 0;
  };
  pipeline_peers(std::string job_key, int rank, int ranks, const options& wanted)
      : job_key_(std::move(job_key)), rank_(rank), ranks_(ranks), options_(wanted) {}
  std::shared_ptr<receiver> connect(int rank);
  std::shared_ptr<receiver> receiver_of(int rank);
  void reclaim(receiver& peer);
  void reclaim_all();
  result<std::shared_ptr<send_segment>> take_segment(std::size_t bytes, bool is_tail);
  status give(receiver& peer, const send_segment& segment);
  void accept_all();
  void accept_one(unique_fd socket);
  void read_segments(sender& origin);
  std::shared_ptr<sender> sender_of(int rank);
  result<std::shared_ptr<shared_segment>> segment_of(sender& origin, std::uint32_t id);

  const std::string job_key_;
  const int rank_, ranks_;
  const options options_;
  unique_fd listener_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<receiver>> receivers_;
  std::map<int, tries> tries_;
  std::map<int, std::shared_ptr<sender>> senders_;
  std::vector<std::shared_ptr<send_segment>> segments_;
  std::size_t kept_bytes_ = 0;
  std::uint32_t next_segment_ = 1;
};

}  // namespace pl::mpi
