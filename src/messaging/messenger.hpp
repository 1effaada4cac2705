// SPDX-License-Identifier: Apache-2.0
// Tagged messages, put and get between any mix of host and GPU memory of the processes of one job.
//
// Small messages are moved with CPU loads and stores through mapped GPU memory. For larger ones the plan of the two
// processes selects a transport (docs/messaging-transports.md). Messages from one process to another match in the order in
// which they were sent, regardless of their size and kind of memory.
//
// Threads: thread-safe; one lock serialises all calls, so a process with one communicating thread never waits for it.
// Progress: only during calls, or by a progress thread (messenger_options::progress_thread). A process that makes no
// progress neither takes part in larger messages nor answers put and get. Device memory: it is read or written at any time
// between the call and the end of the request. The caller must order GPU work on it: synchronise the stream before isend,
// and launch kernels only after the receive has ended. fork: in a child process, every call on an inherited messenger fails
// with EACCES.
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

// Messages match only within their space, regardless of tags and wildcards. This separates collectives from the user.
enum class tag_space : std::uint8_t { user, collective };
inline constexpr std::size_t kTagSpaces = 2;
// Tags of the collective space from this value up are reserved for ranks that leave and come back.
inline constexpr std::uint64_t kReservedTags = std::uint64_t{0xffff} << 48;

// For `detect` and `device` the driver is queried once for each message (0.1 us), except for registered memory, and for host
// memory in the malloc heap of the main thread or on the caller's stack.
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

// A pending operation. Destroying a request that has not ended cancels it. If it is too late to cancel, the memory is taken
// back: the peer has about 0.2 s to answer, then the operation continues without the memory and ends with ECANCELED at the
// peer. If UCX moves the data and the peer accepts nothing for another second, the connection to the peer is closed. A
// request must be destroyed before its messenger. Use an object from one thread at a time.
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
  // has_ended(), after polling the queues a few times: one step of a wait by a caller that has other things to advance.
  bool poll();
  // True: the call that returned the request rejected its arguments and started nothing; outcome() says why.
  bool is_refused() const noexcept;
  // Makes progress once if it has not ended. True: it has ended, and outcome() has the result.
  bool test();
  // Waits for the end, and returns success or the error of the operation. ETIMEDOUT: it is still in progress. A negative
  // limit waits without a time limit; the death of the peer still ends the wait.
  status wait(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // wait(), but cancels the request after the limit as the destructor does, so that the memory is free on return. ETIMEDOUT:
  // it was cancelled; otherwise the result of the operation.
  status end_within(std::chrono::milliseconds limit);
  // Cancels an unmatched receive, or a send that was not sent yet; it ends with ECANCELED. EBUSY: it is too late, and the
  // operation continues.
  status cancel();
  // The result, once the operation has ended. EMSGSIZE: truncated; ECONNRESET: the peer is gone; EINVAL: the memory was
  // rejected; ECANCELED; other errno values with the driver's reason.
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

// A message that match() has removed from the matching, so that only receive() can receive it. Destroying the object
// discards the message.
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

// Memory that other processes may put to and get from. Send them `key()`, in a message or with all_gather, for
// messenger::put/get/atomic. Destroying the window ends access: at their origin, later requests fail with EINVAL and pending
// ones with ECANCELED, and no transport accesses the memory any more. Only a peer that does not answer may still read it
// after kTimeout, and discards what it has read; close() reports that.
class window {
 public:
  window() = default;
  window(window&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), key_(other.key_), data_(std::exchange(other.data_, nullptr)) {}
  window& operator=(window&& other) noexcept;
  ~window();
  static constexpr std::chrono::milliseconds kTimeout{2000};
  // Ends the window, as the destructor does. ETIMEDOUT: the rank named in the message may still read the memory; call it
  // again.
  status close(std::chrono::milliseconds limit = kTimeout);

  // Identifies the window in every process. Plain bytes, valid until the window ends.
  struct key_t {
    std::int32_t rank = -1;
    std::uint32_t id = 0;
    std::uint64_t bytes = 0;
  };
  const key_t& key() const noexcept { return key_; }
  // The memory of a window of allocate(), valid until the window ends; null for other windows.
  std::byte* data() const noexcept { return data_; }

 private:
  friend class messenger;
  window(messenger* owner, const key_t& key, std::byte* data = nullptr) noexcept : owner_(owner), key_(key), data_(data) {}
  messenger* owner_ = nullptr;
  key_t key_;
  std::byte* data_ = nullptr;
};

// A word that a put changes at its target once its bytes have arrived: an aligned 64-bit word in a window of the same
// process, or a 32-bit word (set_32: the lower half of `value`).
enum class signal_kind : std::uint8_t { set, add, set_32 };
struct signal_word {
  window::key_t key;
  std::uint64_t offset = 0;
  std::uint64_t value = 1;
  signal_kind kind = signal_kind::add;
};

// How this process noticed that another one is gone.
enum class failure_kind : std::uint8_t {
  lost,    // it has ended, or no longer answers
  closed,  // it has closed its messenger
};

enum class atomic_op : std::uint8_t { add, bit_and, bit_or, bit_xor, swap, compare_swap };

// Options of a messenger. Sizes are in bytes; 0 keeps the value of the plan. Environment: PEERLANE_LINK_*.
struct messenger_options {
  copy::planner* planner = nullptr;  // of the application, must outlive the messenger; null: the messenger creates one
  std::string ucx_library;           // path of libucp.so.0; empty: PEERLANE_UCX_LIBRARY, else by name
  enum class path_t { automatic, network } path = path_t::automatic;  // network: treat every peer as if on another host
  bool use_ipc = true;
  bool use_channels = true;      // access windows of GPU memory with DMA channels of the origin
  bool use_cma = true;           // cma: between host memories of a node the receiver reads the sender's memory, if permitted
  bool calibrate = false;        // measure packets and handshakes at open, if all processes request it and none knows them
                                 // (message_calibration.hpp)
  bool progress_thread = false;  // a thread makes progress; waiting calls sleep
  bool use_ucx_gpu_lanes = true;  // pass GPU pointers to UCX if it has lanes for them
  // For host memory: use UCX's own rendezvous, in place, instead of tagged parts whose receives are posted first.
  enum class rendezvous_t { automatic, never, always } rendezvous = rendezvous_t::automatic;  // automatic: if UCX has RDMA
  std::size_t eager_limit = 0;        // messages up to this size are sent with their header; at most 32 KiB
  std::size_t gdr_send_limit = 0;     // device memory is read with CPU loads up to this size
  std::size_t gdr_receive_limit = 0;  // device memory is written with CPU stores up to this size
  std::size_t ipc_threshold = 0;      // device to device on one node: CUDA IPC from this size up
  std::size_t chunk_bytes = 0;        // chunk size of the rings of pinned memory
  // Threads that copy pageable memory on its way to or from a GPU, the caller included; at most 6. 0: this rank's share of
  // the CPUs.
  unsigned copy_threads = 0;
  std::size_t unexpected_bytes = 0;  // limit of one peer's unexpected messages; beyond it, the peer's sends wait
  std::string rails;                 // UCX's net devices, "mlx5_0:1,mlx5_1:1"; empty: all
  bool fixed_rail = false;           // each process uses one of `rails`, by its rank on the node
  std::size_t stripe_threshold = 0;  // messages are spread over rails from this size up
  // Failover among several `rails`, without the RDMA transfers of UCX. automatic: if none of them is an RDMA adapter.
  enum class rail_failover_t { automatic, never, always } rail_failover = rail_failover_t::automatic;
  std::chrono::milliseconds peer_timeout{0};  // silence of a host after which it counts as dead

  // Reads the PEERLANE_LINK_* variables and their MVAPICH2 and Open MPI names.
  static messenger_options from_environment();
};

class messenger {
 public:
  // Collective. `cuda`: must outlive the messenger; null: host memory only. ENOSYS: UCX is not installed, or its version is
  // not supported; the message names the package.
  static result<std::unique_ptr<messenger>> open(const cu::driver_table* cuda, bootstrap& group,
                                                 const messenger_options& wanted = messenger_options::from_environment());
  // Not collective. Pending operations of peers with this process end with ECONNRESET.
  ~messenger();
  messenger(const messenger&) = delete;
  messenger& operator=(const messenger&) = delete;

  int rank() const noexcept;
  int size() const noexcept;

  // ---- Messages. Rejected arguments become the error of the returned request (EINVAL, EACCES), so that callers handle
  // errors only at wait(). `peer` may be this process. The buffer must stay valid until the request ends.
  request isend(int peer, const buffer& data, std::uint64_t tag, tag_space space = tag_space::user);
  request irecv(int peer_or_any, const buffer& data, std::uint64_t tag, std::uint64_t mask = kWholeTag,
                tag_space space = tag_space::user);
  status send(int peer, const buffer& data, std::uint64_t tag,
              std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  result<message_info> recv(int peer_or_any, const buffer& data, std::uint64_t tag, std::uint64_t mask = kWholeTag,
                            std::chrono::milliseconds limit = std::chrono::milliseconds(-1));

  // Makes progress once. True: a message has arrived that such a receive would match; `found` describes the first one.
  bool probe(int peer_or_any, std::uint64_t tag, std::uint64_t mask, message_info& found, tag_space space = tag_space::user);
  // probe(), and removes the message from the matching. Empty: none has arrived.
  matched_message match(int peer_or_any, std::uint64_t tag, std::uint64_t mask, tag_space space = tag_space::user);
  request receive(matched_message&& message, const buffer& data);

  // Waits until one of the requests has ended, and returns its index. Skips null entries. ETIMEDOUT: none has ended within
  // the limit. EINVAL: all are null.
  result<std::size_t> wait_any(std::span<const request* const> requests,
                               std::chrono::milliseconds limit = std::chrono::milliseconds(-1));

  // ---- Put, get, atomics. When the request ends, the operation is also complete at the target.
  result<window> expose(const buffer& memory);
  // Makes a window of new, zeroed host memory that the other processes of the node map. They put, get and use atomics on it
  // without this process, which may sleep or be stopped. Atomics are those of the CPU: atomic with respect to each other and
  // to std::atomic_ref.
  result<window> allocate(std::size_t bytes);
  request put(const window::key_t& key, std::uint64_t offset, const buffer& data);
  request get(const window::key_t& key, std::uint64_t offset, const buffer& data);
  // Puts `data`, then changes `word` (release): a reader that sees the new value (acquire) also sees the bytes. Needs no
  // progress at the target if the put needs none and the word is in a window of allocate() or, for `set`, in GPU memory of
  // this node. `set` is not atomic with respect to other changes of the word.
  request put_signal(const window::key_t& key, std::uint64_t offset, const buffer& data, const signal_word& word);
  // Makes progress until the word in this process's window is `least` or more, and returns its value (acquire). EINVAL: the
  // window has ended, or the offset is not that of a word in it. ETIMEDOUT: not within the limit.
  result<std::uint64_t> wait_signal(const window::key_t& own, std::uint64_t offset, std::uint64_t least,
                                    std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // Changes an aligned 64-bit word. `before`, if not null, receives the old value and must live until the request ends.
  // Atomic with respect to every other atomic() on the word and, in host memory, to atomics of CPU threads; not to GPU
  // kernels.
  request atomic(const window::key_t& key, std::uint64_t offset, atomic_op op, std::uint64_t operand,
                 std::uint64_t compare = 0, std::uint64_t* before = nullptr);
  // Waits until everything that was put to `peer` is complete there. Puts whose requests were destroyed are not included.
  status flush(int peer, std::chrono::milliseconds limit = std::chrono::milliseconds(-1));

  // ---- Registered memory stays mapped, and messages in it need no query to the driver. Destroy the registration before the
  // memory is freed.
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
  // Whether this is memory of a GPU. EINVAL: the memory cannot be accessed.
  result<bool> is_device_memory(const buffer& memory);

  // ---- Control
  // Makes progress once. True: something was sent, received or completed.
  bool progress();
  // A descriptor for poll, epoll or an event loop, owned by the messenger. It becomes readable when something happens after
  // arm() succeeded. Only one loop may sleep on it; other threads may make any call meanwhile.
  result<int> event_descriptor();
  // Call it before each sleep. EBUSY: something has happened since the last call, or an operation in progress only advances
  // by polling (copies of a GPU); test your requests, make progress, and call it again. ENOSYS: this process cannot be
  // woken.
  status arm();
  // Collective. Uses messages, not the bootstrap. ECONNRESET: a process died. ETIMEDOUT: the next call continues the same
  // barrier.
  status barrier(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // Succeeds when another process of the job is gone, or was gone before the call: info().source is its rank, info().tag a
  // failure_kind. Each failure is reported once, to the oldest request. Can be cancelled at any time.
  request await_failure();
  // In an elastic job: succeeds when a new process has a rank that was gone: info().source is the rank, info().tag its
  // incarnation. Each return needs such a request at every rank; until it has ended, nothing from the new process arrives at
  // this one. While rank 0 is gone, only rank 0 can come back. ENOTSUP: the job is not elastic. Can be cancelled at any
  // time.
  request await_return();
  // While true, this process consents to every return without await_return().
  void allow_returns(bool is_let);
  bool is_elastic() const;
  // Counts the processes that have had the rank of `peer`, from 1; 0: none that this process has known.
  std::uint32_t incarnation(int peer) const;
  // Number of losses so far. After a loss, barrier() fails with ECONNRESET until continue_barriers() is called.
  std::uint64_t losses() const;
  // Number of the last barrier that this process has entered.
  std::uint64_t last_barrier() const;
  // For error messages: what the return of this rank waits for, as far as this process knows. Empty: it is not gone.
  std::string awaited_for_return(int rank) const;
  // Allows barriers again: the next one has the number after `number`, which must be equal on all ranks. No effect if there
  // were more than `losses` losses.
  void continue_barriers(std::uint64_t number, std::uint64_t losses);
  // Drops unexpected messages of collectives for which `is_unwanted(tag)` is true.
  void drop_collective_messages(const std::function<bool(std::uint64_t tag)>& is_unwanted);
  // All ranks must call it, after the last exchange of the bootstrap; from then on ranks may come back. `opening_text` of
  // rank 0 is sent to them when they open their collectives.
  void accept_rejoins(std::string opening_text);
  // Success: the peer is alive. EINVAL: no such rank. ECONNRESET: it is dead; the message says how that was noticed.
  status peer_state(int peer) const;
  // Whether another process of this host uses this GPU as well, as far as its messages show. -1: any GPU of this process.
  bool is_gpu_shared(int ordinal = -1) const;
  bool is_same_node(int peer) const;
  // The largest message from host memory, in bytes, that needs no handshake with this peer, if it is on another host without
  // RDMA. 0: it is not on such a host, or there is no such peer. May connect to the peer.
  std::size_t packet_limit(int peer);
  // Describes the transports to this peer and the sizes from which they are used, for display (--show-plan).
  std::string plan(int peer) const;

  struct statistics {
    std::uint64_t eager = 0;  // messages sent or received, by transport
    std::uint64_t self = 0;
    std::uint64_t shared_ring = 0;
    std::uint64_t network_ring = 0;
    std::uint64_t ipc = 0;     // received
    std::uint64_t dma = 0;     // received with DMA channels
    std::uint64_t pulled = 0;  // received
    std::uint64_t ucx_direct = 0;
    std::uint64_t one_sided = 0;         // puts, gets and atomics that needed no progress at the target
    std::uint64_t unexpected = 0;        // messages that arrived before their receive
    std::uint64_t waiting_sends = 0;     // sends that waited for the peer's unexpected_bytes
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
