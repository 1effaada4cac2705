// SPDX-License-Identifier: Apache-2.0
// The callers' side: creating, starting and awaiting operations.
#include "store/client/client.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "base/env.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"
#include "store/client/interruption.hpp"

namespace pl::store_client {
namespace {

using store_protocol::opcode;
namespace flag = store_protocol::flag;

// Up to this size, one round trip is faster than two with one copy less
constexpr std::uint64_t kInlineBytes = 16 << 10;
constexpr std::uint64_t kInlineSocketBytes = 64 << 10;  // without shared memory: longer values go in data frames
constexpr std::uint64_t kMinUcxBytes = 256 << 10;       // from this size on, another round trip costs less than frames
// For GPU memory that the store itself reaches. A single get up to several megabytes is faster when this process copies
// (docs/results/store/README.md#durable-batches-and-single-gets).
constexpr std::uint64_t kDevicePutFrom = 2 << 10, kDeviceGetFrom = 8 << 20;

operation_ptr failed(operation_ptr one, int code, std::string text) {
  one->phase = operation::stage::done;
  one->got.status = code;
  one->got.text = std::move(text);
  return one;
}

std::uint64_t random_number() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

}  // namespace

client::client(const client_options& options)
    : options_(options),
      wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      client_id_(random_number() | 1),
      input_(256 << 10) {
  // A simulated GPU reads no faster than the CPU it runs on.
  const auto& asked = env_read("PEERLANE_STORE_GPU_CHECKSUM").text;
  const bool is_wanted = asked == "on" || (asked != "off" && options_.cuda != nullptr && !options_.cuda->is_simulated);
  sums_on_gpu_ = options_.copies != nullptr && options_.gpu_checksum.value_or(is_wanted);
}

result<std::unique_ptr<client>> client::open(const client_options& options) {
  std::unique_ptr<client> made(new client(options));
  lock_t hold(made->lock_);
  const unsigned limit_ms = options.connect_ms != 0 ? options.connect_ms : options.timeout_ms;
  if (auto done = made->connect_now(hold, limit_ms); !done) return done.error();
  hold.unlock();
  return made;
}

client::~client() {
  shut_down();
  {
    const lock_t hold(lock_);
    leave_ucx();
  }
  arena_.reset();
  close(wake_fd_);
}

void client::shut_down() {
  lock_t hold(lock_);
  closing_ = true;  // no thread drives the connection any more, and no operation begins
  changed_.notify_all();
  (void)eventfd_write(wake_fd_, 1);
  changed_.wait(hold, [&] { return !pumping_; });
  for (auto& one : copies_) wait_for_copies(*one);
  const bool leaves_memory = leaves_memory_at_store();
  current_.clear();  // nothing more is sent
  const auto asked = asked_;
  for (const auto& [id, one] : asked)
    if (!one->done()) finish(one, ECANCELED, kClosed);
  wire_.reset();
  changed_.notify_all();
  run_callbacks(hold);
  const std::uint64_t session = std::exchange(last_session_, 0);
  std::thread background = std::exchange(background_, {});
  hold.unlock();
  if (background.joinable()) background.join();
  if (leaves_memory) take_back(session);
}

clock::time_point client::deadline_of(int timeout_ms) const {
  return clock::now() + std::chrono::milliseconds(timeout_ms < 0 ? options_.timeout_ms : static_cast<unsigned>(timeout_ms));
}

result<memory> find_memory(const cu::driver_table* cuda, const copy::planner* copies, std::uint64_t address,
                           std::uint64_t bytes) {
  memory out{address, bytes, std::nullopt};
  if (cuda == nullptr || bytes == 0) return out;
  out.device = cu::find_device_memory(*cuda, address);
  if (out.device && copies == nullptr) return failure{EINVAL, "this is GPU memory, and the client was opened without a GPU"};
  return out;
}

result<memory> client::classify(std::uint64_t address, std::uint64_t bytes) const {
  return find_memory(options_.cuda, options_.copies, address, bytes);
}

// ---- Operations ----------------------------------------------------------------------------------------------------------

operation_ptr client::make_plain(opcode op, std::uint32_t pool, std::string_view key, int timeout_ms) {
  auto one = std::make_shared<operation>();
  one->head.op = op;
  one->head.pool_id = pool;
  one->key = key;
  one->deadline = deadline_of(timeout_ms);
  one->may_repeat = op != opcode::pool_create && op != opcode::pool_delete;
  return one;
}

// The path of a value of this size; `path::none` means the connection. `at_any_size`: a small value may go through
// mapped memory too. Precondition: the lock is held.
store_protocol::path client::path_for(std::uint64_t bytes, bool may_map, bool at_any_size, bool may_use_ucx) const {
  using store_protocol::path;
  const path required = options_.require;
  const bool fits_memory = bytes > kInlineBytes || at_any_size || required == path::shm_direct;
  if (arena_ != nullptr && may_map && fits_memory && required != path::ucx) return path::shm_direct;
  if (may_use_ucx && ucx_ready() && (bytes >= kMinUcxBytes || required == path::ucx)) return path::ucx;
  return path::none;
}

operation_ptr client::make_put(std::uint32_t pool, std::string_view key, const memory& source, const put_request& options) {
  auto one = make_plain(opcode::put, pool, key, options.timeout_ms);
  one->mine = source;
  one->order = options.order;
  one->head.value_bytes = source.bytes;
  one->fields.level = options.level;
  one->fields.only = options.only;
  one->fields.user_flags = options.user_flags;
  one->fields.crc = options.crc;
  one->fields.ttl_ms = options.ttl_ms;
  if (options.offset) {
    one->head.flags |= flag::patch;
    one->head.offset = *options.offset;
  }
  if (!options.offset) one->handed = hand_over(source, kDevicePutFrom, options.order);
  lock_t hold(lock_);
  if (options.ttl_ms)
    if (const status able = needs(store_protocol::capability::cache, "time to live"); !able)
      return failed(one, able.code(), able.error().message);
  one->fields.request_number = {client_id_, options.number != 0 ? options.number : next_sequence_++};
  const auto way = one->handed.owner != nullptr
                       ? store_protocol::path::gpu_direct
                       : path_for(source.bytes, arena_ != nullptr && !arena_->read_only(), options.offset.has_value(), true);
  if (!check_path(*one, way, "put")) return one;
  if (way == store_protocol::path::gpu_direct) {
    one->method = operation::kind::put_device;
  } else if (way == store_protocol::path::shm_direct) {
    one->method = operation::kind::put_shm;
  } else if (way == store_protocol::path::ucx) {
    one->method = operation::kind::put_ucx;
  } else if (source.bytes > kInlineSocketBytes || options.offset) {
    one->method = operation::kind::put_streamed;
    one->head.flags |= flag::streamed;
  } else if (source.device) {
    hold.unlock();
    one->body.resize(source.bytes);
    if (auto done = copy_out(source, 0, one->body.data(), source.bytes, options.order); !done)
      return failed(one, done.code(), done.error().message);
  }
  return one;
}

operation_ptr client::make_get(std::uint32_t pool, std::string_view key, const memory& destination,
                               const get_request& options) {
  auto one = make_plain(opcode::get, pool, key, options.timeout_ms);
  one->mine = destination;
  one->order = options.order;
  one->head.offset = options.offset;
  one->head.value_bytes = destination.bytes;
  if (options.verify) one->head.flags |= flag::verify;
  one->handed = hand_over(destination, options.is_one_of_many ? kDevicePutFrom : kDeviceGetFrom, options.order);
  const lock_t hold(lock_);
  const auto way = one->handed.owner != nullptr ? store_protocol::path::gpu_direct
                                                : path_for(destination.bytes, true, options.order.has, !options.order.has);
  if (!check_path(*one, way, "get")) return one;
  const bool by_memory = way == store_protocol::path::shm_direct;
  one->method = one->handed.owner != nullptr       ? operation::kind::get_device
                : by_memory                        ? operation::kind::get_shm
                : way == store_protocol::path::ucx ? operation::kind::get_ucx
                                                   : operation::kind::get_streamed;
  if (!options.leave_to_stream || !options.order.has) return one;
  one->leave_to_stream = true;
  if (by_memory && destination.device) return one;
  return failed(one, ENOTSUP,
                "a get in stream order needs device memory and the store's memory mapped here: " + why_no_shm_);
}

operation_ptr client::make_erase(std::uint32_t pool, std::string_view key, const put_request& options) {
  auto one = make_plain(opcode::erase, pool, key, options.timeout_ms);
  one->fields.level = options.level;
  one->fields.only = options.only;
  const lock_t hold(lock_);
  one->fields.request_number = {client_id_, next_sequence_++};
  return one;
}

operation_ptr client::make_find(std::uint32_t pool, const key_search& search, int timeout_ms) {
  auto one = make_plain(opcode::find, pool, {}, timeout_ms);
  if (!search.prefix.empty()) one->fields.prefix = search.prefix;
  if (!search.regex.empty()) one->fields.regex = search.regex;
  if (!search.after.empty()) one->fields.after = search.after;
  one->head.value_bytes = search.limit;
  return one;
}

status client::copy_out(const memory& source, std::uint64_t skip, void* destination, std::uint64_t bytes,
                        const stream_order& order) {
  if (bytes == 0) return {};
  if (!source.device) {
    std::memcpy(destination, reinterpret_cast<const void*>(source.address + skip), bytes);
    return {};
  }
  const copy::transfer transfer{copy::direction::to_host, copy::address_of(destination), source.address + skip, bytes};
  if (!order.has) return options_.copies->copy(transfer, *source.device);
  auto begun = options_.copies->begin({&transfer, 1}, {true, order.stream});
  if (!begun) return begun.error();
  return begun->wait();
}

// ---- Starting and waiting ------------------------------------------------------------------------------------------------

void client::start(std::span<const operation_ptr> list) {
  lock_t hold(lock_);
  for (const auto& one : list) {
    const bool noticed = one->callback != nullptr || one->event_fd >= 0 || one->leave_to_stream;
    if (one->done()) {  // refused when it was created
      if (noticed) ended_.push_back(one);
      continue;
    }
    if (noticed) ++noticed_;
    if (closing_) finish(one, ECANCELED, kClosed);
    else if (auto able = noticed ? start_background() : status(); !able) finish(one, able.code(), able.error().message);
    else submit(one);
  }
  if (wire_ && !closing_ && !flush())
    (void)eventfd_write(wake_fd_, 1);  // wakes the driving thread, which then also waits for room in the socket
  wake_background();
  run_callbacks(hold);
}

// Precondition: the lock is held.
void client::wake_background() {
  if (noticed_ > 0) changed_.notify_all();
}

// Precondition: the lock is held.
status client::start_background() {
  if (background_.joinable() || closing_) return {};
  auto started = try_start_thread("ends operations of the store", [this] { background(); });
  if (!started) return started.error();
  background_ = *std::move(started);
  return {};
}

status client::call_at_end(const operation_ptr& one, std::function<void(operation&)> function) {
  lock_t hold(lock_);
  if (one->done()) {
    hold.unlock();
    function(*one);
    return {};
  }
  if (auto able = start_background(); !able) return able;
  const bool was_noticed = one->event_fd >= 0 || one->leave_to_stream;
  one->callback = std::move(function);
  if (!was_noticed) ++noticed_;
  wake_background();
  return {};
}

bool client::test(const operation_ptr& one) {
  lock_t hold(lock_);
  if (!one->done() && !pumping_ && !closing_) {
    pumping_ = true;
    pump(hold, clock::now(), false);
    pumping_ = false;
    changed_.notify_all();
    run_callbacks(hold);
  }
  return one->done();
}

interruption& own_interruption() noexcept {
  static thread_local interruption only;
  return only;
}

void client::interrupt(const operation_ptr& one) {
  const lock_t hold(lock_);
  bring_forward(one);
}

// Precondition: the lock is held.
void client::bring_forward(const operation_ptr& one) {
  if (one->done() || one->is_interrupted) return;
  one->is_interrupted = true;
  one->deadline = {};
  next_check_ = {};
  (void)eventfd_write(wake_fd_, 1);
}

bool client::wait(const operation_ptr& one, clock::time_point deadline) {
  interruption& mine = own_interruption();
  lock_t hold(lock_);
  const std::chrono::microseconds usual(options_.spin_us);
  auto busy = clock::now();
  while (!one->done()) {
    if (pumping_ || closing_) {
      changed_.wait_until(hold, std::min(deadline, clock::now() + kMaxSleep));
    } else {
      pumping_ = true;
      const auto spin = one->goes_by_device() ? pace_.spin(options_.spin_us) : usual;  // it may change its path
      const auto now = clock::now();
      const bool is_long = device_pace::is_sleep_due(*one, now);
      const bool may_sleep = is_long || (now - busy >= spin && now >= one->expected.poll_until);
      if (pump(hold, is_long ? std::min(deadline, one->expected.sleep_until) : deadline, may_sleep)) busy = clock::now();
      pumping_ = false;
      changed_.notify_all();
      run_callbacks(hold);
    }
    if (!one->done() && deadline != clock::time_point::max() && clock::now() >= deadline) return false;
    if (!mine.is_due() || one->done() || one->is_interrupted) continue;
    hold.unlock();
    const bool has_come = mine.comes(clock::now());
    hold.lock();
    if (has_come) bring_forward(one);
  }
  return true;
}

reply client::run(const operation_ptr& one) {
  start(one);
  wait(one);
  return one->got;
}

void client::background() {
  lock_t hold(lock_);
  while (!closing_) {
    if (noticed_ == 0 || pumping_) {
      changed_.wait_for(hold, kMaxSleep);
      continue;
    }
    pumping_ = true;
    pump(hold, clock::now() + kMaxSleep, true);
    pumping_ = false;
    changed_.notify_all();
    run_callbacks(hold);
  }
}

void client::finish(const operation_ptr& one, int status, std::string text) {
  if (one->done()) return;
  keep_rest_of_frame(*one);
  stop_ucx_transfer(*one);
  end_turn(*one);
  if (!leave_device(*one, false) && status != 0)
    text += "; the store has stopped while it moved this memory, and may still move it when it continues";
  one->phase = operation::stage::done;
  one->got.status = status;
  if (status != 0) one->got.text = std::move(text);
  const bool is_noticed = one->callback != nullptr || one->event_fd >= 0;
  if (is_noticed) ended_.push_back(one);
  if ((is_noticed || one->leave_to_stream) && !one->unpin_later) --noticed_;
}

void client::run_callbacks(lock_t& hold) {
  while (!ended_.empty()) {
    const auto list = std::exchange(ended_, {});
    hold.unlock();
    for (const auto& one : list) {
      if (one->event_fd >= 0) (void)eventfd_write(one->event_fd, 1);
      if (one->callback) one->callback(*one);
    }
    hold.lock();
  }
}

// ---- Pools ---------------------------------------------------------------------------------------------------------------

result<std::uint32_t> client::remember_pool(const reply& got, std::string_view name) {
  if (got.status != 0) return failure{got.status, got.text};
  const lock_t hold(lock_);
  pools_[got.pool_id] = name;
  return got.pool_id;
}

result<std::uint32_t> client::open_pool(std::string_view name, int timeout_ms) {
  return remember_pool(run(make_plain(opcode::pool_open, 0, name, timeout_ms)), name);
}

result<std::vector<store_protocol::pool_entry>> client::list_pools() {
  std::vector<store_protocol::pool_entry> all;
  for (std::string after;;) {
    const auto one = make_plain(opcode::pool_list, 0, {});
    if (!after.empty()) one->fields.after = after;
    const reply got = run(one);
    if (got.status != 0) return failure{got.status, got.text};
    auto page = store_protocol::decode_pools(got.body);
    if (!page) return page.error();
    all.insert(all.end(), std::make_move_iterator(page->begin()), std::make_move_iterator(page->end()));
    const std::string last = got.fields->after.value_or("");
    if (!got.more) return all;
    if (last <= after) return failure{EPROTO, "the server's next page of pools does not continue the last one"};
    after = last;
  }
}

// ENOTSUP if the server is of an earlier release, which would close the connection. Precondition: the lock is held.
status client::needs(std::uint64_t capability, const char* name) const {
  if ((server_.capabilities & capability) != 0) return {};
  return failure{ENOTSUP, std::string("the server does not support ") + name + ": it is an earlier release"};
}

result<std::uint32_t> client::create_pool(std::string_view name, const store_protocol::pool_settings& settings,
                                          const std::optional<store_protocol::cache_settings>& cache) {
  if (cache) {
    const lock_t hold(lock_);
    if (const status able = needs(store_protocol::capability::cache, "caches"); !able) return able.error();
  }
  auto one = make_plain(opcode::pool_create, 0, name);
  one->fields.settings = settings;
  one->fields.cache = cache;
  return remember_pool(run(one), name);
}

std::string client::why_no_shm() const {
  const lock_t hold(lock_);
  return why_no_shm_;
}
std::string client::why_not_pinned() const {
  const lock_t hold(lock_);
  return arena_ ? arena_->why_not() : std::string();
}
std::string client::why_no_ucx() const {
  const lock_t hold(lock_);
  return ucx_ready() ? std::string() : why_no_ucx_;
}
std::string client::why_no_gpu_direct() const {
  const lock_t hold(lock_);
  return device_ != nullptr ? std::string() : why_no_device_;
}
std::string client::ucx_lanes() const {
  const lock_t hold(lock_);
  return ucx_ready() ? stream_session_->transports : std::string();
}
store_protocol::path client::way() const {
  const lock_t hold(lock_);
  return wire_ ? wire_->way() : store_protocol::path::none;
}
std::uint64_t client::server_instance() const {
  const lock_t hold(lock_);
  return server_.instance;
}
std::uint64_t client::server_capabilities() const {
  const lock_t hold(lock_);
  return server_.capabilities;
}
std::uint64_t client::reconnects() const {
  const lock_t hold(lock_);
  return reconnects_;
}
void client::break_connection() {
  const lock_t hold(lock_);
  lose_connection({ECONNRESET, "the connection was broken on purpose"});
  (void)eventfd_write(wake_fd_, 1);
}

}  // namespace pl::store_client
