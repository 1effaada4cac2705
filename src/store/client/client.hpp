// SPDX-License-Identifier: Apache-2.0
// The client of one store server: one connection, any number of requests in progress, values in host or GPU memory.
//
// Thread-safe. A waiting thread drives the connection for all threads; the client's own thread drives it while there
// are operations with a callback or an event. After a broken connection the client reconnects and repeats pending
// operations until their deadlines. A put or erase whose answer was lost is applied once.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/env.hpp"
#include "store/client/arena_map.hpp"
#include "store/client/device_pace.hpp"
#include "store/client/operation.hpp"
#include "store/protocol/byte_channel.hpp"
#include "store/protocol/handshake.hpp"

namespace pl::store_client {

struct client_options {
  address server;
  unsigned timeout_ms = 30'000;     // deadline of connecting, and of operations that set none
  unsigned connect_ms = 0;          // deadline of open(); 0: timeout_ms
  copy::planner* copies = nullptr;  // for GPU memory; outlives the client. Null: host memory only.
  const cu::driver_table* cuda = nullptr;
  bool use_shm = true;
  // Together with use_shm: small messages without system calls
  bool use_rings = env_read("PEERLANE_STORE_RINGS").integer != 0;
  // An operation that would take another path fails with ENOTSUP
  store_protocol::path require = store_protocol::path::none;
  bool reconnect = true;
  std::optional<ucx_mode> ucx;       // unset: PEERLANE_STORE_UCX
  std::optional<bool> gpu_checksum;  // for large puts from GPU memory; unset: PEERLANE_STORE_GPU_CHECKSUM
  std::optional<bool> gpu_direct;    // unset: PEERLANE_STORE_GPU_DIRECT
  unsigned spin_us = 20;             // how long a waiting thread polls before it sleeps
};

struct put_request {
  std::optional<store_protocol::durability> level;
  std::optional<store_protocol::precondition> only;
  std::optional<std::uint32_t> user_flags;
  std::optional<std::uint64_t> offset;  // changes only this part of the value
  std::optional<std::uint64_t> ttl_ms;  // for a pool that is a cache: lifetime of the value
  std::optional<std::uint32_t> crc;     // of the value; the store refuses a mismatch (EBADMSG)
  std::uint64_t number = 0;  // number of an earlier request of this client that may have been applied; 0: a new request
  stream_order order;        // device memory is read after the work that the stream has now
  int timeout_ms = -1;       // -1: the client's default
};

struct get_request {
  std::uint64_t offset = 0;
  bool verify = false;
  stream_order order;  // device memory is written after the work that the stream has now, and before later work
  // With an order: the operation ends once the stream waits for the copy. ENOTSUP without shared memory.
  bool leave_to_stream = false;
  bool is_one_of_many = false;  // other operations of the same call are in progress
  int timeout_ms = -1;
};

struct key_search {
  std::string prefix, regex, after;
  std::uint64_t limit = 0;
};

// One key of a batch.
struct batch_entry {
  std::string_view key;
  memory buffer;  // put: source, get: destination
  std::optional<store_protocol::precondition> only;
  std::optional<store_protocol::durability> level;
  std::uint32_t user_flags = 0;
  std::uint64_t ttl_ms = 0;
  // Set for what no batch can do (parts of values, GPU streams): this operation replaces the entry
  operation_ptr alone;
};

struct batch_settings {
  bool atomic = false;  // put, erase: all or nothing
  int timeout_ms = -1;
  // For puts and erases that are not atomic: receives the number of each entry's request (of client::id()), with which
  // it may be sent again elsewhere. 0: it was not sent.
  std::vector<std::uint64_t>* numbers = nullptr;
};

// Classifies the caller's memory. EINVAL if it is GPU memory and `copies` is null.
result<memory> find_memory(const cu::driver_table* cuda, const copy::planner* copies, std::uint64_t address,
                           std::uint64_t bytes);

class client {
 public:
  static result<std::unique_ptr<client>> open(const client_options& options);
  // shut_down(). Not by the client's own thread, which calls `callback`.
  ~client();
  client(const client&) = delete;
  client& operator=(const client&) = delete;

  // ---- Creating operations. `callback` and `event_fd` may be set before start().
  operation_ptr make_put(std::uint32_t pool, std::string_view key, const memory& source, const put_request& options);
  operation_ptr make_get(std::uint32_t pool, std::string_view key, const memory& destination, const get_request& options);
  operation_ptr make_erase(std::uint32_t pool, std::string_view key, const put_request& options);
  operation_ptr make_plain(store_protocol::opcode op, std::uint32_t pool, std::string_view key, int timeout_ms = -1);
  operation_ptr make_find(std::uint32_t pool, const key_search& search, int timeout_ms = -1);
  // Gets, puts, erases or queries many keys (opcode::batch_get ... batch_erase). Values of up to kMaxBatchedBytes share
  // frames, as many as are needed; so do values in GPU memory (up to kMaxBatchedDeviceBytes) that the store moves
  // itself. Other values, and those that find no room, go one by one. The answers are in the order of the entries, each
  // with its own status. Atomic: all entries go in one frame. EMSGSIZE if they do not fit; ENOTSUP if the server has no
  // atomic batches.
  std::vector<reply> run_batch(store_protocol::opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                               const batch_settings& settings = {});
  // Limit of a batch's changes in progress: fewer than the requests of a client that a server remembers.
  static constexpr std::size_t kChangesAtATime = 512;
  // The operation for a batch entry that goes alone. `number` is put_request::number.
  operation_ptr make_alone(store_protocol::opcode op, std::uint32_t pool, const batch_entry& entry, std::uint64_t number,
                           int timeout_ms);
  // The client part of its request numbers (tail::request_number).
  std::uint64_t id() const noexcept { return client_id_; }
  // Erases the keys with this prefix. `result.value_bytes` of the answer is their number.
  // `page_time`: limit of one request, of which there may be many.
  reply erase_prefix(std::uint32_t pool, std::string_view prefix, int timeout_ms = -1,
                     std::chrono::milliseconds page_time = std::chrono::hours(1));
  static constexpr std::uint64_t kMaxBatchedBytes = 64 << 10;
  static constexpr std::uint64_t kMaxBatchedDeviceBytes = 1 << 20;

  // Starts the operations, which share system calls.
  void start(std::span<const operation_ptr> list);
  void start(const operation_ptr& one) { start({&one, 1}); }

  // Returns true if the operation has ended. Otherwise drives the connection once without blocking, and returns false.
  bool test(const operation_ptr& one);
  // Returns false if `deadline` has passed; the operation continues.
  bool wait(const operation_ptr& one, clock::time_point deadline = clock::time_point::max());
  // Ends the operation as soon as nothing touches its memory any more, with EINTR unless it ends otherwise first. Any
  // thread.
  void interrupt(const operation_ptr& one);
  // Calls the function once when the operation has ended: in this call if it has already, otherwise like `callback`.
  // EAGAIN if the thread that would call it cannot be started. Precondition: the operation was started without a
  // callback, and this is the first such call.
  status call_at_end(const operation_ptr& one, std::function<void(operation&)> function);
  // start() and wait().
  reply run(const operation_ptr& one);
  // Ends all operations with ECANCELED, also those that other threads wait for and later ones; copies in progress are waited
  // for. Afterwards nothing touches the callers' memory, and no callback runs on the client's own thread. Not by that
  // thread.
  void shut_down();

  // As find_memory.
  result<memory> classify(std::uint64_t address, std::uint64_t bytes) const;
  // The pool's number, which stays valid over reconnects.
  result<std::uint32_t> open_pool(std::string_view name, int timeout_ms = -1);
  // All pools that this client may open, by name; fetches all pages.
  result<std::vector<store_protocol::pool_entry>> list_pools();
  // ENOTSUP if `cache` is given and the server has no caches.
  result<std::uint32_t> create_pool(std::string_view name, const store_protocol::pool_settings& settings,
                                    const std::optional<store_protocol::cache_settings>& cache = std::nullopt);

  // Why shared memory is not used; empty if it is.
  std::string why_no_shm() const;
  std::string why_not_pinned() const;
  // Why values do not use UCX; empty if large values do.
  std::string why_no_ucx() const;
  // Why the server does not move device memory itself; empty if it does.
  std::string why_no_gpu_direct() const;
  // UCX's transports to the server, such as "rc_verbs/mlx5_0:1".
  std::string ucx_lanes() const;
  store_protocol::path way() const;
  // The instance number of the server that answered last; it changes with each start of the server.
  std::uint64_t server_instance() const;
  // store_protocol::capability bits.
  std::uint64_t server_capabilities() const;
  std::uint64_t reconnects() const;
  // For tests: breaks the connection, or the UCX stream, now.
  void break_connection();
  void break_ucx();

 private:
  static constexpr auto kMaxSleep = std::chrono::milliseconds(100);
  explicit client(const client_options& options);
  using lock_t = std::unique_lock<std::mutex>;

  // client.cpp
  clock::time_point deadline_of(int timeout_ms) const;
  // A wait() that sleeps only after it has found nothing to do for `spin`.
  void finish(const operation_ptr& one, int status, std::string text = {});
  void run_callbacks(lock_t& hold);
  void wake_background();
  status start_background();
  void background();
  struct batch_frame;
  struct alone_item {
    std::size_t entry = 0;
    std::uint64_t number = 0;  // put_request::number
  };
  class frame_maker;
  std::vector<reply> run_atomic(store_protocol::opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                                const batch_settings& settings);
  void run_frames(store_protocol::opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                  const batch_settings& settings, std::vector<bool>& is_answered, std::vector<reply>& out);
  void run_alone(store_protocol::opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                 std::span<const alone_item> items, const batch_settings& settings, std::vector<reply>& out);
  void take_outcomes(const batch_frame& frame, std::span<const batch_entry> entries, std::vector<reply>& out);
  status needs(std::uint64_t capability, const char* name) const;
  status copy_out(const memory& source, std::uint64_t skip, void* destination, std::uint64_t bytes,
                  const stream_order& order);
  result<std::uint32_t> remember_pool(const reply& got, std::string_view name);

  // client_pump.cpp; called by the thread that drives the connection
  bool pump(lock_t& hold, clock::time_point deadline, bool may_sleep);
  void submit(const operation_ptr& one);  // called by any thread
  void send_request(const operation_ptr& one);
  static store_protocol::tail fields_for_room(const operation& put);
  void ask(operation& one, store_protocol::opcode op, const store_protocol::tail& fields);
  bool flush();  // called by any thread
  bool send_next_data();
  void keep_rest_of_frame(operation& one);
  bool read_some();
  bool parse_one();
  void* room_for_data(std::size_t& room);
  void data_came(const std::byte* data, std::size_t bytes);
  void data_complete();
  void take_data(const store_protocol::head& header);
  void take_answer(const store_protocol::head& header, store_protocol::tail fields, std::string_view body);
  void take_answer_to(const operation_ptr& one, const store_protocol::head& header, store_protocol::tail fields,
                      std::string_view body, bool data_follow);
  void go_by_socket(const operation_ptr& one, const std::string& reason);
  status copy_in(const memory& destination, std::string_view body);
  result<std::vector<copy::transfer>> pieces_of(operation& one);
  status begin_copy(operation& one);
  void give_all(operation& one);
  bool may_report_arrival(const operation& one, std::optional<store_protocol::durability> of_pool) const;
  void report_arrival(operation& one);
  static status check_sum(const operation& one);
  void copy_on_cpu(operation& one, const std::vector<copy::transfer>& pieces);
  status begin_parts(operation& one, const std::vector<copy::transfer>& pieces);
  static void add_parts(operation& one, const copy::transfer& piece, const std::shared_ptr<copy::completion>& copied);
  result<bool> gpu_sum_ended(operation& one);
  result<bool> copy_ended(operation& one);
  static void wait_for_copies(operation& one);
  bool run_copies(lock_t& hold);
  void copied(const operation_ptr& one, const status& outcome);
  void let_go(std::uint64_t pin, std::uint64_t bytes);
  void expire();
  void bring_forward(const operation_ptr& one);
  clock::time_point next_deadline() const;

  // client_turns.cpp
  bool may_go(const operation& one) const;
  bool waits_its_turn(const operation_ptr& one);
  void take_turn(operation& one);
  void end_turn(operation& one);
  void forget_turns();
  bool send_held_back();
  bool try_again_alone(const operation_ptr& one);

  // client_ucx.cpp
  bool ucx_ready() const { return stream_session_ != nullptr && !stream_session_->lost; }
  std::optional<store_protocol::ucx_offer> offer_ucx();
  void join_ucx(const std::optional<store_protocol::ucx_offer>& theirs, const std::string& why_not);
  void submit_by_ucx(const operation_ptr& one);
  void ucx_answered(const operation_ptr& one, const store_protocol::head& header, const store_protocol::tail& fields);
  bool drive_ucx();
  void check_ucx_operation(const operation_ptr& one);
  void stop_ucx_transfer(operation& one);
  void leave_ucx();
  void drop_ucx();
  void give_grant_back(operation& one);
  store_protocol::path path_for(std::uint64_t bytes, bool may_map, bool at_any_size, bool may_use_ucx) const;

  // client_device.cpp
  bool wants_gpu_direct(int socket, std::string& why_not) const;
  void join_device(handshake_result& hello, std::string why_not);
  fd_memory hand_over(const memory& buffer, std::uint64_t least_bytes, const stream_order& order);
  bool submit_by_device(const operation_ptr& one);
  void device_refused(const operation_ptr& one);
  bool leave_device(operation& one, bool is_answered);
  bool check_path(operation& one, store_protocol::path way, const char* option) const;

  // client_connect.cpp
  status connect_now(lock_t& hold, unsigned timeout_ms);
  bool connect_again(lock_t& hold, clock::time_point deadline);
  void lose_connection(const failure& reason);
  bool leaves_memory_at_store();
  void take_back(std::uint64_t session) const;

  struct sending {
    std::string head;
    const std::byte* body = nullptr;
    std::size_t body_bytes = 0, done = 0;
    operation_ptr owner;  // owns the body's memory
    bool empty() const { return head.empty(); }
    void clear() {  // the head's memory stays for the next one, unless it is large
      if (head.capacity() > kMaxKept) head = {};
      head.clear();
      body = nullptr;
      body_bytes = done = 0;
      owner.reset();
    }
    static constexpr std::size_t kMaxKept = 1 << 20;
  };
  struct receiving {
    operation_ptr receiver;  // null: the bytes are dropped
    store_protocol::head header;
    std::size_t done = 0;
    std::uint32_t crc = 0;
  };

  client_options options_;
  mutable std::mutex lock_;
  std::condition_variable changed_;
  bool pumping_ = false;  // a thread drives the connection
  bool closing_ = false;
  int wake_fd_ = -1;  // wakes the driving thread

  std::unique_ptr<byte_channel> wire_;
  std::unique_ptr<arena_map> arena_;
  bool sums_on_gpu_ = false;
  checksum_pool checksum_pool_;
  store_protocol::hello server_;
  std::string why_no_shm_;
  std::unique_ptr<ucx_value_stream> ucx_stream_;
  stream_session_ptr stream_session_;
  std::vector<copy::planner::registration> ucx_staging_;  // for copies between the UCX transport's memory and a GPU
  int ucx_staging_device_ = 0;                            // the device that it is registered for
  std::vector<operation_ptr> ucx_operations_;             // put_ucx and get_ucx operations whose bytes may move
  std::string why_no_ucx_;
  std::shared_ptr<device_memories> device_;  // null: this connection has no device link
  std::string why_no_device_;
  device_pace pace_;
  std::map<std::uint32_t, std::string> pools_;
  std::uint64_t last_session_ = 0, reconnects_ = 0;
  clock::time_point next_connect_{}, next_check_{};
  std::chrono::milliseconds backoff_{10};
  failure lost_because_;

  std::uint64_t next_request_ = 1, client_id_ = 0, next_sequence_ = 1;
  // By request id; includes ended operations whose answer is still to come
  std::unordered_map<std::uint64_t, operation_ptr> asked_;
  std::deque<operation_ptr> streaming_;  // puts with data frames still to send
  std::deque<operation_ptr> copies_;     // operations in to_copy and copying
  // Puts that are not sent yet, because earlier ones have to end first (client_turns.cpp)
  std::deque<operation_ptr> held_grants_, held_streams_;
  std::size_t turns_ = 0;             // puts with has_turn
  std::uint64_t turn_bytes_ = 0;      // their values
  std::vector<operation_ptr> ended_;  // callbacks to run
  std::vector<std::uint64_t> unpin_;
  std::uint64_t unpin_bytes_ = 0;
  std::string out_;
  sending current_;
  std::vector<char> input_;
  std::size_t input_begin_ = 0, input_end_ = 0;
  std::optional<receiving> receiving_;
  bool data_next_ = false;     // the next frame is probably a data frame
  std::uint64_t noticed_ = 0;  // pending operations that nobody needs to wait for
  std::thread background_;
};

}  // namespace pl::store_client
