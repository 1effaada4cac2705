// SPDX-License-Identifier: Apache-2.0
// The store's C interface: the client behind checked handles. The contract is in peerlane/store.h.
#include <peerlane/store.h>

#include <climits>

#include "base/env.hpp"
#include "capi/errno_guard.hpp"
#include "capi/open_store.hpp"
#include "capi/store_requests.hpp"
#include "store/client/interruption.hpp"

namespace {

using pl::check_item;
using pl::check_key;
using pl::check_options;
using pl::check_size;
using pl::fail;
using pl::get_request_of;
using pl::given_level;
using pl::kDead;
using pl::key_of;
using pl::kNullPointer;
using pl::limit_of;
using pl::make_item;
using pl::open_store;
using pl::pending_request;
using pl::put_request_of;
using pl::taken;
using pl::text_or_empty;
using pl::store_client::client;
using pl::store_client::memory;
using stores = pl::open_stores;
using pl::store_client::operation_ptr;
using pl::store_client::routed_ptr;
using pl::store_client::router;
namespace wire = pl::store_protocol;

static_assert(PEERLANE_PATH_SHM_DIRECT == static_cast<int>(wire::path::shm_direct));
static_assert(PEERLANE_PATH_TLS == static_cast<int>(wire::path::tls));
static_assert(PEERLANE_PATH_GPU_DIRECT == static_cast<int>(wire::path::last));
static_assert(PEERLANE_POOL_DEFAULT == static_cast<int>(wire::durability::pool_default));
static_assert(PEERLANE_VOLATILE == static_cast<int>(wire::durability::volatile_));
static_assert(PEERLANE_LOGGED == static_cast<int>(wire::durability::logged));
static_assert(PEERLANE_DURABLE == static_cast<int>(wire::durability::durable));
static_assert(PEERLANE_IF_VERSION == static_cast<int>(wire::condition::if_version));

struct registered_memory {
  std::shared_ptr<open_store> owner;
  memory buffer;
  std::atomic<int> busy{0};
};
using memories = pl::live_handles<registered_memory>;

// Nothing if the pool is to be no cache. EINVAL if the options contradict each other.
pl::result<std::optional<wire::cache_settings>> cache_of(const peerlane_pool_options& options) {
  const bool given = options.cache_memory_bytes != 0 || options.cache_disk_bytes != 0 || options.cache_ttl_ms != 0 ||
                     options.cache_eviction != 0;
  if (options.is_cache == 0 && given) return pl::failure{EINVAL, "a pool's cache_* options need is_cache = 1"};
  if (options.cache_eviction > PEERLANE_EVICT_LRU)
    return pl::failure{EINVAL, "unknown cache_eviction: PEERLANE_EVICT_S3_FIFO or PEERLANE_EVICT_LRU"};
  if (options.is_cache == 0) return std::optional<wire::cache_settings>();
  return std::optional(wire::cache_settings{options.cache_memory_bytes, options.cache_disk_bytes, options.cache_ttl_ms,
                                            static_cast<std::uint8_t>(options.cache_eviction)});
}

int ended(const pl::store_client::reply& got, peerlane_op_info* out) {
  pl::write_info(pl::info_from(got), out);
  return got.status == 0 ? 0 : fail(got.status, got.text.c_str());
}

int refused(const pl::failure& reason, peerlane_op_info* out) {
  peerlane_op_info info;
  peerlane_op_info_clear(&info);
  info.error = reason.code;
  pl::write_info(info, out);
  return fail(reason);
}

// Runs the operation of `make` on a client, or that of `ask` on a cluster, if the store is open.
template <class Make, class Ask>
int run(peerlane_store_t handle, peerlane_op_info* info, const Make& make, const Ask& ask) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(handle);
    if (!one) return refused(stores::instance().missing(), info);
    if (one->cluster) return ended(ask(*one->cluster), info);
    return ended(one->store->run(make(*one->store)), info);
  }
  PL_NO_EXCEPTIONS
}

pl::status open_gpu(open_store& target, pl::store_client::client_options& options) {
  auto cuda = pl::cu::driver();
  if (!cuda || !pl::cu::initialize(**cuda)) return {};  // host memory only
  auto opened = pl::copy::planner::open(**cuda, pl::copy::planner::options_from_environment());
  if (!opened) return opened.error();
  target.copies = *std::move(opened);
  options.copies = target.copies.get();
  options.cuda = *cuda;
  return {};
}

pl::store_client::address address_of(const peerlane_store_options& options) {
  pl::store_client::address out;
  out.socket = text_or_empty(options.socket);
  out.endpoint = text_or_empty(options.endpoint);
  out.tls_certificate = text_or_empty(options.tls_certificate);
  out.tls_key = text_or_empty(options.tls_key);
  out.tls_authority = text_or_empty(options.tls_authority);
  if (out.socket.empty() && out.endpoint.empty()) {
    const std::string given = pl::env_read("PEERLANE_STORE").text;
    (given.find('/') != std::string::npos ? out.socket : out.endpoint) = given;
  }
  return out;
}

pl::status check_open(const peerlane_store_options* given) {
  if (auto sized = check_size(given); !sized) return sized;
  const auto options = taken(given);
  constexpr std::uint32_t kFlags =
      PEERLANE_STORE_NO_SHM | PEERLANE_STORE_NO_GPU | PEERLANE_STORE_NO_RECONNECT | PEERLANE_STORE_ONE_SERVER;
  constexpr std::uint32_t kNoPath = 2;  // between SHM_DIRECT and UNIX
  if (options.require_path > PEERLANE_PATH_GPU_DIRECT || options.require_path == kNoPath)
    return pl::failure{EINVAL, "unknown require_path"};
  if ((options.flags & ~kFlags) != 0)
    return pl::failure{EINVAL, pl::format("unknown flags 0x%x: PEERLANE_STORE_*", options.flags & ~kFlags)};
  if (!text_or_empty(options.socket).empty() && !text_or_empty(options.endpoint).empty())
    return pl::failure{EINVAL, "socket and endpoint are both given: give one of them"};
  return {};
}

// Does the item synchronously.
pl::store_client::reply do_item(const open_store& opened, const peerlane_store_item& item, const memory& buffer) {
  if (!opened.cluster) return opened.store->run(make_item(*opened.store, item, buffer));
  const auto key = key_of(item.key, item.key_size_bytes);
  if (item.request == PEERLANE_STORE_ERASE) return opened.cluster->erase(item.pool, key, put_request_of(item.put_options));
  if (item.request == PEERLANE_STORE_PUT)
    return opened.cluster->put(item.pool, key, buffer, put_request_of(item.put_options));
  return opened.cluster->get(item.pool, key, buffer, get_request_of(item.get_options));
}

peerlane_store_item item_for(std::uint32_t request, peerlane_pool_t pool, const void* key, std::size_t key_size_bytes,
                             const peerlane_buffer& value) {
  peerlane_store_item out{};
  out.request = request;
  out.pool = pool;
  out.key = key;
  out.key_size_bytes = key_size_bytes;
  out.value = value;
  return out;
}

int run(peerlane_store_t handle, peerlane_op_info* info, const peerlane_store_item& item) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(handle);
    if (!one) return refused(stores::instance().missing(), info);
    if (const auto fine = check_item(item); !fine) return refused(fine.error(), info);
    const auto buffer = one->classify(item.value);
    if (!buffer) return refused(buffer.error(), info);
    return ended(do_item(*one, item, *buffer), info);
  }
  PL_NO_EXCEPTIONS
}

// The cluster to which the store's server belongs; null if none.
pl::result<std::unique_ptr<router>> cluster_of(client& store, const pl::store_client::client_options& options) {
  const auto got = store.run(store.make_plain(wire::opcode::cluster_map, 0, {}));
  if (got.status == ENOTSUP) return std::unique_ptr<router>();
  if (got.status != 0) return pl::failure{got.status, got.text};
  const auto map = pl::store_client::read_cluster_map(got.body);
  if (!map) return map.error();
  pl::store_client::router_options out;
  out.security = options.server;
  out.timeout_ms = options.timeout_ms;
  out.copies = options.copies;
  out.cuda = options.cuda;
  out.use_shm = options.use_shm;
  out.require = options.require;
  if (!options.server.endpoint.empty()) out.servers.push_back(options.server.endpoint);
  for (const auto& [name, one] : map->servers) out.servers.push_back(one.endpoint);
  return router::open(out);
}

// A part of registered memory, marked as busy while this object exists.
class busy_part {
 public:
  static pl::result<busy_part> take(peerlane_store_t store, peerlane_store_memory_t handle, std::size_t offset,
                                    std::size_t bytes) {
    auto found = memories::instance().find(handle);
    if (!found) return memories::instance().missing();
    if (found->owner.get() != static_cast<void*>(store)) return pl::failure{EINVAL, kDead};
    if (offset > found->buffer.bytes || bytes > found->buffer.bytes - offset)
      return pl::failure{EINVAL, "the range leaves the registered memory"};
    memory part{found->buffer.address + offset, bytes, found->buffer.device};
    return busy_part(std::move(found), part);
  }
  busy_part(busy_part&& other) noexcept : memory_(std::move(other.memory_)), part_(other.part_) {}
  ~busy_part() {
    if (memory_) --memory_->busy;
  }
  const memory& get() const { return part_; }

 private:
  busy_part(std::shared_ptr<registered_memory> owner, memory part) : memory_(std::move(owner)), part_(part) {
    ++memory_->busy;
  }
  std::shared_ptr<registered_memory> memory_;
  memory part_;
};

}  // namespace

pl::result<memory> pl::open_store::classify(const peerlane_buffer& buffer) const {
  if (buffer.memory > PEERLANE_MEMORY_DEVICE)
    return failure{EINVAL, "a buffer's memory is not one of PEERLANE_MEMORY_ANY, _HOST, _DEVICE"};
  if (buffer.memory == PEERLANE_MEMORY_HOST) return memory{buffer.address, buffer.size_bytes, std::nullopt};
  auto found =
      cluster ? cluster->classify(buffer.address, buffer.size_bytes) : store->classify(buffer.address, buffer.size_bytes);
  if (found && !found->device && buffer.memory == PEERLANE_MEMORY_DEVICE && buffer.size_bytes > 0)
    return failure{
        EINVAL,
        "the buffer is declared as device memory, but it is not GPU memory (or the store was opened without GPU support)"};
  return found;
}

PL_EXPORT const char* peerlane_store_last_error(void) { return pl::last_error(); }

PL_EXPORT void peerlane_store_interrupt_by(int (*asks)(void*), void* context) {
  auto& mine = pl::store_client::own_interruption();
  mine = {};
  mine.asks = asks;
  mine.context = context;
  mine.begin();
}

PL_EXPORT int peerlane_store_open(const peerlane_store_options* given, peerlane_store_t* store) {
  const pl::errno_guard keep;
  try {
    if (store == nullptr) return fail(EINVAL, kNullPointer);
    if (const auto fine = check_open(given); !fine) return fail(fine.error());
    const auto options = taken(given);
    auto made = std::make_shared<open_store>();
    pl::store_client::client_options settings;
    settings.server = address_of(options);
    if (options.timeout_ms != 0) settings.timeout_ms = static_cast<unsigned>(limit_of(options.timeout_ms));
    settings.require = static_cast<wire::path>(options.require_path);
    settings.use_shm = (options.flags & PEERLANE_STORE_NO_SHM) == 0;
    settings.reconnect = (options.flags & PEERLANE_STORE_NO_RECONNECT) == 0;
    if ((options.flags & PEERLANE_STORE_NO_GPU) == 0)
      if (const auto gpu = open_gpu(*made, settings); !gpu) return fail(gpu.error());
    auto opened = client::open(settings);
    if (!opened) return fail(opened.error());
    if ((options.flags & PEERLANE_STORE_ONE_SERVER) == 0) {
      auto cluster = cluster_of(**opened, settings);
      if (!cluster) return fail(cluster.error());
      made->cluster = *std::move(cluster);
    }
    if (!made->cluster) made->store = *std::move(opened);
    *store = static_cast<peerlane_store_t>(stores::instance().add(std::move(made)));
    return 0;
  }
  PL_NO_EXCEPTIONS
}

PL_EXPORT int peerlane_store_close(peerlane_store_t store) {
  const pl::errno_guard keep;
  try {
    const auto found = stores::instance().find(store);
    if (!found) return fail(stores::instance().missing());
    // The thread may be the store's own, whose end the call would wait for.
    if (pl::end_function::is_in_one_of(store))
      return fail(EDEADLK,
                  "a function of peerlane_op_then() does not close the store of its operation: close it after the function");
    if (found->registered > 0) return fail(EBUSY, "memory is still registered with this store: release it first");
    if (found->watches > 0) return fail(EBUSY, "a watch of this store is open: close it first");
    // First, because a thread that finds its operation not live may free the operation's memory.
    found->shut_down();
    if (!stores::instance().remove(store)) return fail(stores::instance().missing());
    return 0;
  }
  PL_NO_EXCEPTIONS
}

// ---- Pools
// -----------------------------------------------------------------------------------------------------------------

PL_EXPORT int peerlane_store_create_pool(peerlane_store_t store, const char* name, const peerlane_pool_options* given,
                                         peerlane_pool_t* pool) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(store);
    if (!one) return fail(stores::instance().missing());
    if (name == nullptr || pool == nullptr) return fail(EINVAL, kNullPointer);
    if (const auto sized = check_size(given); !sized) return fail(sized.error());
    const auto options = taken(given);
    const auto level = given_level(options.durability);
    if (!level) return fail(EINVAL, "unknown durability");
    if (options.reserved != 0) return fail(EINVAL, "options->reserved must be 0");
    wire::pool_settings settings;
    settings.size_bytes = options.quota_bytes;
    settings.max_keys = options.quota_keys;
    settings.level = *level;
    settings.allow_shm = options.no_shm == 0;
    settings.access = text_or_empty(options.access);
    if (options.copies > pl::store_client::kMaxCopies) return fail(EINVAL, "a pool has 1 to 3 copies");
    if (options.copies > 1 && !one->cluster) return fail(EINVAL, "copies of a pool need a cluster of stores");
    if (options.copies != 0) settings.copies = static_cast<std::uint8_t>(options.copies);
    const auto cache = cache_of(options);
    if (!cache) return fail(cache.error());
    const auto made =
        one->cluster ? one->cluster->create_pool(name, settings, *cache) : one->store->create_pool(name, settings, *cache);
    if (!made) return fail(made.error());
    *pool = *made;
    return 0;
  }
  PL_NO_EXCEPTIONS
}

PL_EXPORT int peerlane_store_open_pool(peerlane_store_t store, const char* name, peerlane_pool_t* pool) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(store);
    if (!one) return fail(stores::instance().missing());
    if (name == nullptr || pool == nullptr) return fail(EINVAL, kNullPointer);
    const auto found = one->cluster ? one->cluster->open_pool(name) : one->store->open_pool(name);
    if (!found) return fail(found.error());
    *pool = *found;
    return 0;
  }
  PL_NO_EXCEPTIONS
}

PL_EXPORT int peerlane_store_delete_pool(peerlane_store_t store, const char* name) {
  if (name == nullptr) return fail(EINVAL, kNullPointer);
  return run(
      store, nullptr, [&](client& connection) { return connection.make_plain(wire::opcode::pool_delete, 0, name); },
      [&](router& cluster) { return cluster.ask_anyone(wire::opcode::pool_delete, name); });
}

PL_EXPORT int peerlane_store_sync(peerlane_store_t store, peerlane_pool_t pool) {
  return run(
      store, nullptr, [&](client& connection) { return connection.make_plain(wire::opcode::sync, pool, {}); },
      [&](router& cluster) { return cluster.sync(pool); });
}

// ---- Values
// ----------------------------------------------------------------------------------------------------------------

PL_EXPORT int peerlane_store_put(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                                 struct peerlane_buffer value, const peerlane_put_options* options, peerlane_op_info* info) {
  auto item = item_for(PEERLANE_STORE_PUT, pool, key, key_size_bytes, value);
  item.put_options = options;
  return run(store, info, item);
}

PL_EXPORT int peerlane_store_get(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                                 struct peerlane_buffer value, const peerlane_get_options* options, peerlane_op_info* info) {
  auto item = item_for(PEERLANE_STORE_GET, pool, key, key_size_bytes, value);
  item.get_options = options;
  return run(store, info, item);
}

PL_EXPORT int peerlane_store_erase(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                                   const peerlane_put_options* options, peerlane_op_info* info) {
  auto item = item_for(PEERLANE_STORE_ERASE, pool, key, key_size_bytes, peerlane_host_buffer(nullptr, 0));
  item.put_options = options;
  return run(store, info, item);
}

PL_EXPORT int peerlane_store_stat(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                                  peerlane_op_info* info) {
  if (const auto fine = check_key(key, key_size_bytes); !fine) return refused(fine.error(), info);
  return run(
      store, info,
      [&](client& connection) { return connection.make_plain(wire::opcode::stat, pool, key_of(key, key_size_bytes)); },
      [&](router& cluster) { return cluster.stat(pool, key_of(key, key_size_bytes)); });
}

PL_EXPORT int peerlane_store_find(peerlane_store_t store, peerlane_pool_t pool, const char* prefix, const char* regex,
                                  int (*each)(void*, const void*, size_t, uint64_t), void* context) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(store);
    if (!one) return fail(stores::instance().missing());
    if (each == nullptr) return fail(EINVAL, kNullPointer);
    pl::store_client::key_search search;
    search.prefix = text_or_empty(prefix);
    search.regex = text_or_empty(regex);
    for (;;) {
      const auto got =
          one->cluster ? one->cluster->find(pool, search) : one->store->run(one->store->make_find(pool, search));
      if (got.status != 0) return fail(got.status, got.text.c_str());
      const auto keys = wire::decode_keys(got.body);
      if (!keys) return fail(keys.error());
      for (const auto& key : *keys)
        if (const int code = each(context, key.key.data(), key.key.size(), key.value_bytes)) return code;
      if (!got.more) return 0;
      search.after = got.fields->after.value_or("");
    }
  }
  PL_NO_EXCEPTIONS
}

// ---- Registered memory
// ---------------------------------------------------------------------------------------------------------

PL_EXPORT int peerlane_store_register(peerlane_store_t store, struct peerlane_buffer given, peerlane_store_memory_t* out) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(store);
    if (!one) return fail(stores::instance().missing());
    if (out == nullptr) return fail(EINVAL, kNullPointer);
    if (given.size_bytes == 0 || given.address == 0) return fail(EINVAL, "an empty range cannot be registered");
    const auto buffer = one->classify(given);
    if (!buffer) return fail(buffer.error());
    if (buffer->device && !buffer->device->allocation.contains({buffer->address, buffer->bytes}))
      return fail(EINVAL, "the range leaves its allocation of GPU memory");
    auto made = std::make_shared<registered_memory>();
    made->owner = one;
    made->buffer = *buffer;
    ++one->registered;
    *out = static_cast<peerlane_store_memory_t>(memories::instance().add(std::move(made)));
    return 0;
  }
  PL_NO_EXCEPTIONS
}

PL_EXPORT int peerlane_store_release_memory(peerlane_store_memory_t handle) {
  const pl::errno_guard keep;
  const auto found = memories::instance().find(handle);
  if (!found) return fail(memories::instance().missing());
  if (found->busy > 0) return fail(EBUSY, "operations in this memory are in progress: wait for them first");
  if (!memories::instance().remove(handle)) return fail(memories::instance().missing());
  --found->owner->registered;
  return 0;
}

PL_EXPORT int peerlane_store_put_registered(peerlane_store_t store, peerlane_pool_t pool, const void* key,
                                            size_t key_size_bytes, peerlane_store_memory_t handle, size_t offset_bytes,
                                            size_t size_bytes, const peerlane_put_options* options, peerlane_op_info* info) {
  if (const auto fine = check_key(key, key_size_bytes); !fine) return refused(fine.error(), info);
  if (const auto fine = check_options(options); !fine) return refused(fine.error(), info);
  const auto part = busy_part::take(store, handle, offset_bytes, size_bytes);
  if (!part) return refused(part.error(), info);
  return run(
      store, info,
      [&](client& connection) {
        return connection.make_put(pool, key_of(key, key_size_bytes), part->get(), put_request_of(options));
      },
      [&](router& cluster) { return cluster.put(pool, key_of(key, key_size_bytes), part->get(), put_request_of(options)); });
}

PL_EXPORT int peerlane_store_get_registered(peerlane_store_t store, peerlane_pool_t pool, const void* key,
                                            size_t key_size_bytes, peerlane_store_memory_t handle, size_t offset_bytes,
                                            size_t size_bytes, const peerlane_get_options* options, peerlane_op_info* info) {
  if (const auto fine = check_key(key, key_size_bytes); !fine) return refused(fine.error(), info);
  if (const auto sized = check_size(options); !sized) return refused(sized.error(), info);
  const auto part = busy_part::take(store, handle, offset_bytes, size_bytes);
  if (!part) return refused(part.error(), info);
  return run(
      store, info,
      [&](client& connection) {
        return connection.make_get(pool, key_of(key, key_size_bytes), part->get(), get_request_of(options));
      },
      [&](router& cluster) { return cluster.get(pool, key_of(key, key_size_bytes), part->get(), get_request_of(options)); });
}

// ---- Asynchronous
// ----------------------------------------------------------------------------------------------------------

PL_EXPORT int peerlane_store_begin(peerlane_store_t store, const peerlane_store_item* items, size_t count,
                                   peerlane_op_t* ops) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(store);
    if (!one) return fail(stores::instance().missing());
    if (count > 0 && (items == nullptr || ops == nullptr)) return fail(EINVAL, kNullPointer);
    if (const auto fine = pl::check_count(count); !fine) return fail(fine.error());
    std::vector<operation_ptr> plain;
    std::vector<routed_ptr> routed;
    for (std::size_t i = 0; i < count; ++i) {
      const auto fine = check_item(items[i]);
      const auto buffer = fine ? one->classify(items[i].value) : pl::result<memory>(fine.error());
      if (!buffer) return fail(buffer.code(), ("item " + std::to_string(i) + ": " + buffer.error().message).c_str());
      const int event = items[i].event_fd > 0 ? items[i].event_fd : -1;
      if (one->cluster) {
        routed.push_back(make_item(*one->cluster, items[i], *buffer));
        routed.back()->event_fd = event;
      } else {
        plain.push_back(make_item(*one->store, items[i], *buffer));
        plain.back()->event_fd = event;
      }
    }
    std::vector<peerlane_op_t> begun(count);
    for (std::size_t i = 0; i < count; ++i) {
      pending_request request;
      if (one->cluster) request.routed = routed[i];
      else request.op = plain[i];
      if (pl::keep_request(store, *one, std::move(request), &begun[i])) continue;
      while (i-- > 0) (void)one->operations.take(begun[i].number);
      return fail(EAGAIN, "4 million operations of this store have not been ended: end some");
    }
    std::copy(begun.begin(), begun.end(), ops);
    if (one->cluster) one->cluster->start(routed);
    else one->store->start(plain);
    return 0;
  }
  PL_NO_EXCEPTIONS
}
