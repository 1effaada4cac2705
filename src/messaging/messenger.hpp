// SPDX-License-Identifier: Apache-2.0
// Tagged messages, put and get between any mix of host and GPU memory of the processes of one job.
//
// CPU loads and stores through mapped GPU memory move small messages. The plan of the two processes names the transport of
// larger ones (docs/messaging-transports.md). Messages from one process to another match in the order in which they were
// sent, whatever their size and kind of memory.
//
// Threads: every call from any thread; one at a time works, so a process with one communicating thread never waits.
// Progress: only inside calls, or by a thread (messenger_options::progress_thread). A process that makes none neither takes
// part in larger messages nor answers put and get.
// Device memory: it is read or written at an unspecified time between the call and the end of the request. The caller orders
// GPU work on it (synchronises the stream before isend, launches kernels after the receive has ended).
// fork: in a child, every call on an inherited messenger answers EACCES.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
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

namespace pl::messaging {

inline constexpr int kAnySource = -1;
inline constexpr std::uint64_t kWholeTag = ~0ull;  // mask: every bit of the tag counts

// Messages match only within their space, whatever their tags and wildcards: those of collectives are not the user's.
enum class tag_space : std::uint8_t { user, collective };
inline constexpr std::size_t kTagSpaces = 2;
// Tags of the collectives' space from here up belong to no collective, but to ranks that leave and come back.
inline constexpr std::uint64_t kReservedTags = std::uint64_t{0xffff} << 48;

// For `detect` and `device` the driver is asked once for each message (0.1 us). It is not asked for registered memory, nor
// for host memory on the heap of the main thread's malloc or on the caller's stack.
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

// The result of a receive. After an error `bytes` is 0, except EMSGSIZE: the message was longer than the buffer, which then
// holds its first bytes.
struct message_info {
  int source = kAnySource;
  std::uint64_t tag = 0;
  std::size_t bytes = 0;  // of the message, also for EMSGSIZE
};

struct operation;
struct messenger_core;
class messenger;

// A pending operation. Dropping a request that has not ended cancels it. Where it is too late for that, its memory is taken
// back: the peer has some 0.2 s to answer, then the operation continues without the memory and ends with ECANCELED at the
// peer. If UCX moves it and the peer takes nothing for another second, the connection to the peer is closed. A request must
// end before its messenger. One thread at a time per object.
class request {
 public:
  request() = default;
  request(request&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), op_(std::exchange(other.op_, nullptr)), sent_(other.sent_) {}
  request& operator=(request&& other) noexcept;
  ~request();

  bool is_empty() const noexcept { return op_ == nullptr; }
  // Whether it has ended, without making progress.
  bool has_ended() const;
  // The same, but looks at the queues some times first: the step of a wait whose caller has other things to advance.
  bool poll();
  // The call that made it rejected its arguments: outcome() says why, and nothing has started.
  bool is_refused() const noexcept;
  // Makes progress once if it has not ended. True: it has ended, and outcome() has the result.
  bool test();
  // Success once it ended well, else its error; ETIMEDOUT leaves it under way. A negative time waits without limit (the
  // death of the peer still ends it).
  status wait(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // The same, but after the limit the request is dropped as above, so that its memory is free on return. ETIMEDOUT: it was
  // dropped; otherwise the result with which it ended after all.
  status end_within(std::chrono::milliseconds limit);
  // An unmatched receive, and a send that has not left, end with ECANCELED at once. EBUSY: anything else, which continues.
  status cancel();
  // Once ended. EMSGSIZE truncated, ECONNRESET peer gone, ECANCELED, EINVAL memory refused, ... or the driver's reason.
  status outcome() const;
  const message_info& info() const;

 private:
  friend class messenger;
  request(messenger* owner, operation* op) noexcept : owner_(owner), op_(op) {}
  request(messenger* owner, const message_info& sent) noexcept;  // of a send that ended at once
  void drop() noexcept;
  messenger* owner_ = nullptr;
  operation* op_ = nullptr;
  message_info sent_;
};

// A message that matched() has taken out of the matching: only receive() can have it. Dropping it discards the message.
class matched_message {
 public:
  matched_message() = default;
  matched_message(matched_message&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), op_(std::exchange(other.op_, nullptr)) {}
  matched_message& operator=(matched_message&& other) noexcept;
  ~matched_message();
  bool is_empty() const noexcept { return op_ == nullptr; }
  const message_info& info() const;

 private:
  friend class messenger;
  matched_message(messenger* owner, operation* op) noexcept : owner_(owner), op_(op) {}
  messenger* owner_ = nullptr;
  operation* op_ = nullptr;
};

// Memory that other processes may put to and get from. Send `key()` to them (in a message, by all_gather) for
// messenger::put/get/atomic. Dropping the window ends access: later requests end with EINVAL at their origin, pending ones
// with ECANCELED, and no transport touches the memory any more. Only a peer that does not answer may still read it after
// kPatience, and discards what it reads; close() reports that.
class window {
 public:
  window() = default;
  window(window&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), key_(other.key_), data_(std::exchange(other.data_, nullptr)) {}
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
  // Of allocate(), until the window ends; else null.
  std::byte* data() const noexcept { return data_; }

 private:
  friend class messenger;
  window(messenger* owner, const key_t& key, std::byte* data = nullptr) noexcept : owner_(owner), key_(key), data_(data) {}
  messenger* owner_ = nullptr;
  key_t key_;
  std::byte* data_ = nullptr;
};

// What a put raises at its target once its bytes are there: an aligned 64-bit word of a window of the same process, or one
// of 32 bits (set_32: the lower half of `value`).
enum class signal_kind : std::uint8_t { set, add, set_32 };
struct signal_word {
  window::key_t key;
  std::uint64_t offset = 0;
  std::uint64_t value = 1;
  signal_kind kind = signal_kind::add;
};

// How this process noticed that another one is gone.
enum class failure_kind : std::uint8_t {
  lost,    // it has ended, or answers nothing any more
  closed,  // it closed its messenger
};

enum class atomic_op : std::uint8_t { add, bit_and, bit_or, bit_xor, swap, compare_swap };

// Sizes from which another protocol or transport is used; 0 keeps the plan's value. From options or PEERLANE_LINK_*.
struct messenger_options {
  copy::planner* planner = nullptr;  // shared with the application, must outlive the messenger; null: one of its own
  std::string ucx_library;           // path of libucp.so.0; empty: PEERLANE_UCX_LIBRARY, else by name
  enum class path_t { automatic, network } path = path_t::automatic;  // network: as if every peer were on another host
  bool use_ipc = true;
  bool use_channels = true;  // windows of GPU memory by DMA channels of the process that puts and gets
  bool use_cma = true;       // cma: between host memories of a node the receiver reads the sender's memory, if permitted
  bool calibrate =
      false;  // measure packets and handshakes at open, if all processes want it and none knows (message_calibration.hpp)
  bool progress_thread = false;   // a thread makes progress; calls that wait sleep
  bool use_ucx_gpu_lanes = true;  // raw GPU pointers to UCX where it has lanes for them
  // From host memory: UCX's own rendezvous, in place, instead of tagged parts whose receives are posted first.
  enum class rendezvous_t {
    automatic,
    never,
    always
  } rendezvous = rendezvous_t::automatic;  // automatic: where UCX has RDMA
  std::size_t eager_limit = 0;             // messages up to here travel with their header; at most 32 KiB
  std::size_t gdr_send_limit = 0;          // device memory is read by CPU loads up to here
  std::size_t gdr_receive_limit = 0;       // device memory is written by CPU stores up to here
  std::size_t ipc_threshold = 0;           // device to device on one node: CUDA IPC from here up
  std::size_t chunk_bytes = 0;             // of the rings of pinned memory
  std::size_t unexpected_bytes = 0;        // limit of one peer's unexpected messages; beyond it, the peer's sends wait
  std::string rails;                       // UCX's net devices, "mlx5_0:1,mlx5_1:1"; empty: all
  bool fixed_rail = false;                 // each process uses one of `rails`, by its rank on the node
  std::size_t stripe_threshold = 0;        // messages are spread over rails from here up
  // Several `rails` make up for each other, without RDMA's own transfers. automatic: where none is an adapter for RDMA.
  enum class rail_failover_t { automatic, never, always } rail_failover = rail_failover_t::automatic;
  std::chrono::milliseconds peer_timeout{0};  // silence of a host after which it counts as dead

  // The PEERLANE_LINK_* variables and their MVAPICH2 and Open MPI names.
  static messenger_options from_environment();
};

class messenger {
 public:
  // Collective. `cuda` may be null: host memory only. ENOSYS: UCX is not installed, or of a version this was not made for;
  // the sentence names the package.
  static result<std::unique_ptr<messenger>> open(const cu::driver_table* cuda, bootstrap& group,
                                                 const messenger_options& wanted = messenger_options::from_environment());
  // Not collective. Pending operations with peers end with ECONNRESET at the peers.
  ~messenger();
  messenger(const messenger&) = delete;
  messenger& operator=(const messenger&) = delete;

  int rank() const noexcept;
  int size() const noexcept;

  // ---- Messages. A rejected argument becomes the error of the returned request (EINVAL, EACCES), so that a loop over
  // wait() needs no second path. `peer` may be the process itself.
  request isend(int peer, const buffer& data, std::uint64_t tag, tag_space space = tag_space::user);
  request irecv(int peer_or_any, const buffer& data, std::uint64_t tag, std::uint64_t mask = kWholeTag,
                tag_space space = tag_space::user);
  status send(int peer, const buffer& data, std::uint64_t tag,
              std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  result<message_info> recv(int peer_or_any, const buffer& data, std::uint64_t tag, std::uint64_t mask = kWholeTag,
                            std::chrono::milliseconds limit = std::chrono::milliseconds(-1));

  // The first message that such a receive would match, if one has arrived; makes progress once.
  bool probe(int peer_or_any, std::uint64_t tag, std::uint64_t mask, message_info& found, tag_space space = tag_space::user);
  // The same, and takes the message out of the matching. Empty: none has arrived.
  matched_message match(int peer_or_any, std::uint64_t tag, std::uint64_t mask, tag_space space = tag_space::user);
  request receive(matched_message&& message, const buffer& data);

  // The index of the first of these that has ended; null entries are skipped. ETIMEDOUT: none has. EINVAL: all are null.
  result<std::size_t> wait_any(std::span<const request* const> requests,
                               std::chrono::milliseconds limit = std::chrono::milliseconds(-1));

  // ---- Put, get, atomics. Complete at the target too when the request ends. flush: everything that was put to `peer` by
  // requests that are still alive.
  result<window> expose(const buffer& memory);
  // Zeroed host memory that the other processes of the node map: they put, get and count there without this process, which
  // may sleep or be stopped. Atomics are the CPU's: atomic towards each other and towards std::atomic_ref.
  result<window> allocate(std::size_t bytes);
  request put(const window::key_t& key, std::uint64_t offset, const buffer& data);
  request get(const window::key_t& key, std::uint64_t offset, const buffer& data);
  // Who sees the word's new value sees the bytes. Without the target where the put needs none and the word lies in a window
  // of allocate(), or, for `set`, in GPU memory of this node. `set` is not atomic towards other changes of the word.
  request put_signal(const window::key_t& key, std::uint64_t offset, const buffer& data, const signal_word& word);
  // Makes progress until the word of this process's window is `least` or more; its value. EINVAL: it is no such word.
  result<std::uint64_t> wait_signal(const window::key_t& own, std::uint64_t offset, std::uint64_t least,
                                    std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // On an aligned 64-bit word; `before`, if not null, gets its old value and must live until the request ends.
  // Atomic towards every atomic() on the word, and in host memory towards atomics of CPU threads; not towards GPU kernels.
  request atomic(const window::key_t& key, std::uint64_t offset, atomic_op op, std::uint64_t operand,
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
  // Whether this is memory of a GPU. EINVAL: it cannot be reached.
  result<bool> is_device_memory(const buffer& memory);

  // ---- Control
  // Advances everything once; true if something moved.
  bool progress();
  // A descriptor for poll, epoll or an event loop: it becomes readable when something happens after arm() succeeded. One
  // loop sleeps on it; other threads may make any call meanwhile. It stays the messenger's.
  result<int> event_descriptor();
  // Call it before each sleep. EBUSY: something has happened since the last call, or is under way that only polling
  // advances (copies of a GPU): test your requests, make progress, and call it again. ENOSYS: this process cannot be woken.
  status arm();
  // ECONNRESET: a process died. By messages, not by the bootstrap. After ETIMEDOUT the next call goes on with the same
  // barrier.
  status barrier(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // Ends well when another process of the job is gone, also one that was before: info().source is its rank, info().tag a
  // failure_kind. Each is told once, to the request that was made first. It can be cancelled at any time.
  request await_failure();
  // Of an elastic job. Ends well when another process is a rank that was gone: info().source is the rank, info().tag its
  // incarnation. Each return needs one at every rank: before it has ended, nothing of the new process reaches this one.
  // While rank 0 is gone only rank 0 can. ENOTSUP: the job is not elastic. It can be cancelled at any time.
  request await_return();
  // While it is true every return is agreed to without await_return().
  void let_return(bool is_let);
  bool is_elastic() const;
  // Which process of its rank it is, from 1; 0: none that this process has known.
  std::uint32_t incarnation(int peer) const;
  // Losses so far. While it has changed since then, barrier() answers ECONNRESET until continue_barriers().
  std::uint64_t losses() const;
  std::uint64_t last_barrier() const;
  // For errors: what the return of this rank waits for, as far as this process knows. Empty: it is not gone.
  std::string awaited_for_return(int rank) const;
  // The next barrier has the number behind this one, on which all ranks agree, unless there was a loss beyond `losses`.
  void continue_barriers(std::uint64_t number, std::uint64_t losses);
  // Drops messages of the collectives that nobody has received.
  void drop_collective_messages(const std::function<bool(std::uint64_t tag)>& is_unwanted);
  // Collective in that all ranks come to it: the bootstrap's exchanges are over, and ranks may come back from now on. They
  // are told what rank 0 gives here when they open their collectives.
  void hold_meeting(std::string opening_text);
  // EINVAL no such rank, ECONNRESET dead (the sentence says how it was noticed), else success.
  status peer_state(int peer) const;
  // Whether another process of this host uses a GPU of this one's (-1: any of them), as far as its messages have told.
  bool is_gpu_shared(int ordinal = -1) const;
  bool is_same_node(int peer) const;
  // The most bytes of host memory that one packet carries to this peer, if it is on another host to which UCX has no RDMA:
  // longer messages begin with a handshake there. 0: not so, or no such peer. May connect to it.
  std::size_t packet_limit(int peer);
  // The transports to this peer and the sizes from which they are used, as text for people (--show-plan).
  std::string plan(int peer) const;

  struct statistics {
    std::uint64_t eager = 0;  // messages sent, by transport
    std::uint64_t self = 0;
    std::uint64_t shared_ring = 0;
    std::uint64_t network_ring = 0;
    std::uint64_t ipc = 0;     // received
    std::uint64_t dma = 0;     // received, by DMA channels
    std::uint64_t pulled = 0;  // received
    std::uint64_t ucx_direct = 0;
    std::uint64_t one_sided = 0;         // puts, gets and atomics without the target
    std::uint64_t unexpected = 0;        // arrived before their receive
    std::uint64_t waiting_sends = 0;     // sends that waited because of the peer's unexpected_bytes
    std::uint64_t unexpected_bytes = 0;  // held now
    std::uint64_t operations = 0;        // pending now
    std::uint64_t comparisons = 0;       // of receives with messages, to match them
  };
  statistics counts() const;

 private:
  friend class request;
  friend class matched_message;
  friend class window;
  explicit messenger(std::unique_ptr<messenger_core> core);
  status calibrate(bootstrap& group);
  status end_window(std::uint32_t id, std::chrono::milliseconds limit, bool is_last_word);
  std::unique_ptr<messenger_core> core_;
};

}  // namespace pl::messaging
