// SPDX-License-Identifier: Apache-2.0
// Tagged messages, put and get between any mix of host and GPU memory of the processes of one job.
//
// Small messages are moved by CPU loads and stores through mapped GPU memory, larger ones by the way that the plan of the
// two processes names (docs/messaging.md). Messages from one process to another match in the order in which they were
// sent, whatever their size and kind of memory.
//
// Threads: every call from any thread; one at a time works, so a process with one communicating thread never waits.
// Progress: only inside calls. A process that makes none neither takes part in larger messages nor answers put and get.
// Device memory: its bytes are taken and stored at an unspecified time between the call and the end of the request; GPU
// work that makes or uses them must be ordered with that by the caller (stream synchronised before isend, launched after
// the receive has ended).
// fork: in a child, every call on an inherited messenger answers EACCES.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"
#include "messaging/bootstrap/bootstrap.hpp"

namespace pl::copy {
class planner;
}

namespace pl::link {

inline constexpr int kAnySource = -1;
inline constexpr std::uint64_t kWholeTag = ~0ull;  // mask: every bit of the tag counts

// The driver is asked once for each detect and for device memory (0.1 us): not if the memory is registered,
// nor for host memory on the heap of the main thread's malloc or on the caller's stack.
enum class memory_kind : std::uint8_t { detect, host, device };

struct buffer {
  std::uint64_t address = 0;  // a pointer as a number, host or device
  std::size_t bytes = 0;
  memory_kind kind = memory_kind::detect;
};

inline buffer host_buffer(const void* pointer, std::size_t bytes) noexcept {
  return {reinterpret_cast<std::uint64_t>(pointer), bytes, memory_kind::host};
}
inline buffer device_buffer(std::uint64_t pointer, std::size_t bytes) noexcept {
  return {pointer, bytes, memory_kind::device};
}

// What ended. After an error, `bytes` is what the buffer holds for certain (0), except EMSGSIZE: the message was longer
// than the buffer, which then holds its first bytes.
struct message_info {
  int source = kAnySource;
  std::uint64_t tag = 0;
  std::size_t bytes = 0;  // of the message, also for EMSGSIZE
};

struct operation;
struct engine;
class messenger;

// An operation under way. Dropping one that has not ended cancels it, and takes its memory back where that is too late: its
// peer has some 0.2 s to answer, then the operation goes on without the memory, and ends with ECANCELED over there. Where
// UCX moves it and the peer takes nothing for another second, the connection with the peer is closed. Must end before its
// messenger does. One thread at a time per object.
class request {
 public:
  request() = default;
  request(request&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), of_(std::exchange(other.of_, nullptr)) {}
  request& operator=(request&& other) noexcept;
  ~request();

  bool is_empty() const noexcept { return of_ == nullptr; }
  // The call that made it refused its arguments: outcome() says why, and nothing has begun.
  bool is_refused() const noexcept;
  // Makes progress once if it has not ended. True: ended, and outcome() says how.
  bool test();
  // Success once it ended well, else its error; ETIMEDOUT leaves it under way. A negative time waits without limit (the
  // death of the peer still ends it).
  status wait(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // The same, and where the limit ran out the request is dropped as above: its memory is free on return. ETIMEDOUT: it was;
  // else how it has ended after all.
  status end_within(std::chrono::milliseconds limit);
  // A receive that nothing has matched, and a send that has not left, end with ECANCELED at once; anything else goes on and
  // EBUSY says so.
  status cancel();
  // Once ended. EMSGSIZE truncated, ECONNRESET peer gone, ECANCELED, EINVAL memory refused, ... or the driver's reason.
  status outcome() const;
  const message_info& info() const;

 private:
  friend class messenger;
  request(messenger* owner, operation* of) noexcept : owner_(owner), of_(of) {}
  void drop() noexcept;
  messenger* owner_ = nullptr;
  operation* of_ = nullptr;
};

// A message that matched() has taken out of the matching: only receive() can have it. Dropping it discards the message.
class matched_message {
 public:
  matched_message() = default;
  matched_message(matched_message&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), of_(std::exchange(other.of_, nullptr)) {}
  matched_message& operator=(matched_message&& other) noexcept;
  ~matched_message();
  bool is_empty() const noexcept { return of_ == nullptr; }
  const message_info& info() const;

 private:
  friend class messenger;
  matched_message(messenger* owner, operation* of) noexcept : owner_(owner), of_(of) {}
  messenger* owner_ = nullptr;
  operation* of_ = nullptr;
};

// Memory that other processes may put to and get from: `key()` goes to them by any way (a message, all_gather), and
// messenger::put/get/atomic take it. Ends access when dropped: what arrives later is refused with EINVAL at its origin, what
// is under way ends there with ECANCELED, and no transport touches the memory any more. Only a peer that does not answer may
// still read it after kPatience (never as data that counts): close() tells.
class window {
 public:
  window() = default;
  window(window&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), key_(other.key_) {}
  window& operator=(window&& other) noexcept;
  ~window();
  static constexpr std::chrono::milliseconds kPatience{2000};
  // ETIMEDOUT: the named rank may still read the memory. Call it again.
  status close(std::chrono::milliseconds limit = kPatience);

  // Plain bytes, valid until the window ends.
  struct key_t {
    std::int32_t rank = -1;
    std::uint32_t id = 0;
    std::uint64_t bytes = 0;
  };
  const key_t& key() const noexcept { return key_; }

 private:
  friend class messenger;
  window(messenger* owner, const key_t& key) noexcept : owner_(owner), key_(key) {}
  messenger* owner_ = nullptr;
  key_t key_;
};

enum class atomic_op : std::uint8_t { add, bit_and, bit_or, bit_xor, swap, compare_swap };

// Where messages of a size change the way; 0 keeps what the plan has for the pair. From options or PEERLANE_LINK_*.
struct messenger_options {
  copy::planner* planner = nullptr;  // shared with the application, must outlive the messenger; null: one of its own
  std::string ucx_library;           // path of libucp.so.0; empty: PEERLANE_UCX_LIBRARY, else by name
  enum class path_t { automatic, network } path = path_t::automatic;  // network: as if every peer were on another host
  bool use_ipc = true;
  bool use_pull = true;  // between host memories of a node the receiver reads the sender's, if it may
  bool calibrate =
      false;  // measure packets and handshakes at open, if all processes want it and none knows (message_calibration.hpp)
  bool use_ucx_gpu_lanes = true;  // raw GPU pointers to UCX where it has lanes for them
  // From host memory: UCX's own rendezvous, in place, instead of a receive that is posted for it and told of.
  enum class rendezvous_t {
    automatic,
    never,
    always
  } rendezvous = rendezvous_t::automatic;     // automatic: where UCX has RDMA
  std::size_t eager_limit = 0;                // messages up to here travel with their header; at most 32 KiB
  std::size_t gdr_send_limit = 0;             // device memory is read by CPU loads up to here
  std::size_t gdr_receive_limit = 0;          // device memory is written by CPU stores up to here
  std::size_t ipc_threshold = 0;              // device to device on one node: CUDA IPC from here up
  std::size_t chunk_bytes = 0;                // of the rings of pinned memory
  std::size_t unexpected_bytes = 0;           // what one peer may have sent without a receive for it; beyond, its sends wait
  std::string rails;                          // UCX's net devices, "mlx5_0:1,mlx5_1:1"; empty: all
  bool fixed_rail = false;                    // each process uses one of `rails`, by its rank on the node
  std::size_t stripe_threshold = 0;           // messages are spread over rails from here up
  std::chrono::milliseconds peer_timeout{0};  // silence of a host after which it counts as dead

  // The PEERLANE_LINK_* variables and their MVAPICH2 and Open MPI names.
  static messenger_options from_environment();
};

class messenger {
 public:
  // Collective. `cuda` may be null: host memory only. ENOSYS: UCX is not installed, or of a version this was not made for;
  // the sentence names the package.
  static result<std::unique_ptr<messenger>> open(const cu::driver_table* cuda, bootstrap& with,
                                                 const messenger_options& wanted = messenger_options::from_environment());
  // Not collective. What is under way with others ends with ECONNRESET there.
  ~messenger();
  messenger(const messenger&) = delete;
  messenger& operator=(const messenger&) = delete;

  int rank() const noexcept;
  int size() const noexcept;

  // ---- Messages. An error of the arguments is the error of the returned request (EINVAL, EACCES), so that a loop over
  // wait() needs no second path. `peer` may be the process itself.
  request isend(int peer, const buffer& from, std::uint64_t tag);
  request irecv(int peer_or_any, const buffer& to, std::uint64_t tag, std::uint64_t mask = kWholeTag);
  status send(int peer, const buffer& from, std::uint64_t tag,
              std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  result<message_info> recv(int peer_or_any, const buffer& to, std::uint64_t tag, std::uint64_t mask = kWholeTag,
                            std::chrono::milliseconds limit = std::chrono::milliseconds(-1));

  // The first message that such a receive would get, if one is here; makes progress once.
  bool probe(int peer_or_any, std::uint64_t tag, std::uint64_t mask, message_info& found);
  // The same, and takes it: empty if none is here.
  matched_message match(int peer_or_any, std::uint64_t tag, std::uint64_t mask);
  request receive(matched_message&& message, const buffer& to);

  // The place of the first of these (null is left out) that has ended. ETIMEDOUT: none has. EINVAL: there is none.
  result<std::size_t> wait_any(std::span<const request* const> of,
                               std::chrono::milliseconds limit = std::chrono::milliseconds(-1));

  // ---- Put, get, atomics. Complete at the target too when the request ends. flush: everything that was put to `peer` by
  // requests that are still alive.
  result<window> expose(const buffer& memory);
  request put(const window::key_t& to, std::uint64_t offset, const buffer& from);
  request get(const window::key_t& from, std::uint64_t offset, const buffer& to);
  // On an aligned 64-bit word; `before`, if not null, gets its old value and must live until the request ends.
  // Atomic towards every atomic() on the word, not towards GPU kernels or other CPU threads.
  request atomic(const window::key_t& at, std::uint64_t offset, atomic_op what, std::uint64_t operand,
                 std::uint64_t compare = 0, std::uint64_t* before = nullptr);
  status flush(int peer, std::chrono::milliseconds limit = std::chrono::milliseconds(-1));

  // ---- Registered memory: kept mapped, and its messages do not ask the driver. End it before the memory is freed.
  class registration {
   public:
    registration();
    registration(registration&&) noexcept;
    registration& operator=(registration&&) noexcept;
    ~registration();

   private:
    friend class messenger;
    struct kept;
    std::unique_ptr<kept> kept_;
  };
  result<registration> register_memory(const buffer& memory);

  // ---- Control
  // Advances everything once; true if something moved.
  bool progress();
  // ECONNRESET: a process died. By messages, not by the bootstrap. After ETIMEDOUT the next call goes on with the same
  // barrier.
  status barrier(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // EINVAL no such rank, ECONNRESET dead, else success.
  status peer_state(int peer) const;
  bool is_same_node(int peer) const;
  // What goes which way to this peer, from which size: lines for people (--show-plan).
  std::string plan(int peer) const;

  struct statistics {
    std::uint64_t eager = 0;  // messages sent, by way
    std::uint64_t self = 0;
    std::uint64_t shared_ring = 0;
    std::uint64_t network_ring = 0;
    std::uint64_t ipc = 0;     // received
    std::uint64_t pulled = 0;  // received
    std::uint64_t ucx_direct = 0;
    std::uint64_t unexpected = 0;        // arrived before their receive
    std::uint64_t waiting_sends = 0;     // sends that had to wait for the peer's unexpected_bytes
    std::uint64_t unexpected_bytes = 0;  // held now
    std::uint64_t operations = 0;        // requests under way now
  };
  statistics counts() const;

 private:
  friend class request;
  friend class matched_message;
  friend class window;
  explicit messenger(std::unique_ptr<engine> of);
  status calibrate(bootstrap& with);
  status end_window(std::uint32_t id, std::chrono::milliseconds limit, bool is_last_word);
  std::unique_ptr<engine> engine_;
};

}  // namespace pl::link
