// SPDX-License-Identifier: Apache-2.0
// C++ interface of the store's client: RAII over the C calls of <peerlane/store.h>, which describes each call. Link
// libpeerlane_store.
//
//   auto store = peerlane::store::open();                          // at the address in PEERLANE_STORE
//   auto pool = store->open_pool("checkpoints");
//   auto weights = peerlane::device_buffer(device_ptr, size_bytes);
//   auto put = store->put(*pool, "layer0", weights);               // result<op_info>: put->path, put->durability
//   auto later = store->begin_get(*pool, "layer0", weights);       // result<operation>
//   later->wait();
#pragma once

#include <peerlane/store.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <peerlane/buffer.hpp>
#include <peerlane/operation.hpp>
#include <peerlane/result.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace peerlane {

// Registered memory: operations on it do not have to ask the driver. Must outlive them, and be destroyed before its store.
class store_memory {
 public:
  explicit store_memory(peerlane_store_memory_t handle) noexcept : handle_(handle) {}
  store_memory(store_memory&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  store_memory& operator=(store_memory&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~store_memory() {
    if (handle_ != nullptr) peerlane_store_release_memory(handle_);
  }
  peerlane_store_memory_t get() const noexcept { return handle_; }

 private:
  peerlane_store_memory_t handle_;
};

// A watch of a pool's keys, made by store::watch(). Must be destroyed before its store. Only one thread at a time may wait;
// any thread may call close().
class store_watch {
 public:
  struct event {
    peerlane_store_change change = PEERLANE_CHANGE_PUT;
    std::string key;
    std::uint64_t version = 0, value_size_bytes = 0;
    std::uint64_t lost = 0;  // PEERLANE_CHANGE_LOST: how many, 0: not known
  };
  explicit store_watch(peerlane_store_watch_t handle) noexcept : handle_(handle) {}
  store_watch(store_watch&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  store_watch& operator=(store_watch&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~store_watch() {
    if (handle_ != nullptr) peerlane_store_watch_close(handle_);
  }
  peerlane_store_watch_t get() const noexcept { return handle_; }
  // Gives up ownership: the caller must close the returned handle.
  peerlane_store_watch_t release() noexcept { return std::exchange(handle_, nullptr); }
  // Returns at least one change; ETIMEDOUT if there was none. A negative limit means no limit.
  result<std::vector<event>> next(std::int64_t timeout_ms = -1) const {
    std::vector<event> out;
    const auto keep = [](void* context, const peerlane_watch_event* one) {
      static_cast<std::vector<event>*>(context)->push_back(
          {static_cast<peerlane_store_change>(one->change),
           one->key_size_bytes == 0 ? std::string() : std::string(static_cast<const char*>(one->key), one->key_size_bytes),
           one->version, one->size_bytes, one->lost});
      return 0;
    };
    const int code = peerlane_store_watch_next(handle_, timeout_ms, keep, &out);
    if (code != 0) return failure{code, peerlane_store_last_error()};
    return out;
  }
  // A next() in another thread ends with ECANCELED.
  status close() noexcept {
    const int code = peerlane_store_watch_close(handle_);
    if (code != 0) return failure{code, peerlane_store_last_error()};
    handle_ = nullptr;
    return {};
  }

 private:
  peerlane_store_watch_t handle_;
};

// Any thread. Must outlive its operations, memory and watches.
class store {
 public:
  // For options other than the defaults, start from store::options().
  static result<store> open(const peerlane_store_options* options = nullptr) {
    peerlane_store_t out = nullptr;
    if (const int code = peerlane_store_open(options, &out)) return failure{code, peerlane_store_last_error()};
    return store(out);
  }
  static peerlane_store_options options() noexcept {
    peerlane_store_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }
  // At a unix socket (a path) or "host:port".
  static result<store> open_at(const std::string& address) {
    auto given = options();
    (address.find('/') != std::string::npos ? given.socket : given.endpoint) = address.c_str();
    return open(&given);
  }
  store(store&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  store& operator=(store&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~store() {
    if (handle_ != nullptr) peerlane_store_close(handle_);
  }
  peerlane_store_t get() const noexcept { return handle_; }
  // EBUSY: a watch or registered memory keeps it open. EDEADLK: in a function of one of its operations; it stays open.
  status close() {
    const int code = peerlane_store_close(handle_);
    if (code != EBUSY && code != EDEADLK) handle_ = nullptr;
    return checked(code);
  }

  result<peerlane_pool_t> create_pool(const char* name, const peerlane_pool_options* options = nullptr) const {
    return checked<peerlane_pool_t>(
        [&](peerlane_pool_t* out) { return peerlane_store_create_pool(handle_, name, options, out); });
  }
  result<peerlane_pool_t> open_pool(const char* name) const {
    return checked<peerlane_pool_t>([&](peerlane_pool_t* out) { return peerlane_store_open_pool(handle_, name, out); });
  }
  status delete_pool(const char* name) const { return checked(peerlane_store_delete_pool(handle_, name)); }
  status sync(peerlane_pool_t pool) const { return checked(peerlane_store_sync(handle_, pool)); }

  // Options to start from.
  static peerlane_put_options put_options() noexcept {
    peerlane_put_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }
  static peerlane_get_options get_options() noexcept {
    peerlane_get_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }
  result<op_info> put(peerlane_pool_t pool, std::string_view key, const_buffer value,
                      const peerlane_put_options* options = nullptr) const {
    return checked<op_info>(
        [&](op_info* out) { return peerlane_store_put(handle_, pool, key.data(), key.size(), value, options, out); });
  }
  // op_info::moved_bytes is the number of bytes written, op_info::size_bytes the length of the stored value.
  result<op_info> get(peerlane_pool_t pool, std::string_view key, buffer value,
                      const peerlane_get_options* options = nullptr) const {
    return checked<op_info>(
        [&](op_info* out) { return peerlane_store_get(handle_, pool, key.data(), key.size(), value, options, out); });
  }
  result<op_info> erase(peerlane_pool_t pool, std::string_view key, const peerlane_put_options* options = nullptr) const {
    return checked<op_info>(
        [&](op_info* out) { return peerlane_store_erase(handle_, pool, key.data(), key.size(), options, out); });
  }
  result<op_info> stat(peerlane_pool_t pool, std::string_view key) const {
    return checked<op_info>([&](op_info* out) { return peerlane_store_stat(handle_, pool, key.data(), key.size(), out); });
  }
  // ---- Many keys at once: peerlane_store_batch(). The infos are in the order of the items, and each has the `error` of its
  // item. Make items with item_for(), all with the same request and pool.
  result<std::vector<op_info>> batch(std::span<const peerlane_store_item> items,
                                     const peerlane_batch_options* options = nullptr) const {
    std::vector<op_info> out(items.size());
    const int code = peerlane_store_batch(handle_, items.data(), items.size(), options, out.data());
    if (code != 0) return failure{code, peerlane_store_last_error()};
    return out;
  }
  // keys[i] belongs to values[i]. EINVAL: their numbers differ.
  result<std::vector<op_info>> multi_put(peerlane_pool_t pool, std::span<const std::string_view> keys,
                                         std::span<const const_buffer> values, const peerlane_put_options* options = nullptr,
                                         bool is_atomic = false) const {
    return multi(PEERLANE_STORE_PUT, pool, keys, values, options, is_atomic);
  }
  result<std::vector<op_info>> multi_get(peerlane_pool_t pool, std::span<const std::string_view> keys,
                                         std::span<const buffer> values) const {
    return multi(PEERLANE_STORE_GET, pool, keys, std::vector<const_buffer>(values.begin(), values.end()), nullptr, false);
  }
  result<std::vector<op_info>> multi_exists(peerlane_pool_t pool, std::span<const std::string_view> keys) const {
    return multi(PEERLANE_STORE_EXISTS, pool, keys, std::vector<const_buffer>(keys.size(), nothing()), nullptr, false);
  }
  result<std::vector<op_info>> multi_erase(peerlane_pool_t pool, std::span<const std::string_view> keys,
                                           const peerlane_put_options* options = nullptr, bool is_atomic = false) const {
    return multi(PEERLANE_STORE_ERASE, pool, keys, std::vector<const_buffer>(keys.size(), nothing()), options, is_atomic);
  }
  // Returns the number of erased keys.
  result<std::uint64_t> erase_prefix(peerlane_pool_t pool, std::string_view prefix) const {
    return checked<std::uint64_t>(
        [&](std::uint64_t* out) { return peerlane_store_erase_prefix(handle_, pool, prefix.data(), prefix.size(), out); });
  }
  struct found_key {
    std::string key;
    std::uint64_t value_size_bytes = 0;
    std::uint64_t version = 0;
  };
  // Up to `limit` keys after `after` (0: all), in order; `regex` as in find(), may be null. Continue after the last key.
  result<std::vector<found_key>> scan(peerlane_pool_t pool, std::string_view prefix, std::string_view after = {},
                                      std::uint64_t limit = 0, const char* regex = nullptr) const {
    peerlane_scan_options options{};
    options.struct_bytes = sizeof options;
    options.prefix = prefix.data(), options.prefix_size_bytes = prefix.size();
    options.regex = regex;
    options.after = after.data(), options.after_size_bytes = after.size();
    options.limit = limit;
    std::vector<found_key> out;
    const auto keep = [](void* context, const void* key, std::size_t size, const peerlane_op_info* info) {
      static_cast<std::vector<found_key>*>(context)->push_back(
          {std::string(static_cast<const char*>(key), size), info->size_bytes, info->version});
      return 0;
    };
    const int code = peerlane_store_scan(handle_, pool, &options, keep, &out);
    if (code != 0) return failure{code, peerlane_store_last_error()};
    return out;
  }
  // Watches changes of all keys with a prefix (empty: of all keys). For one key, use watch_key().
  result<store_watch> watch(peerlane_pool_t pool, std::string_view prefix = {}) const {
    return open_watch(pool, prefix, false);
  }
  result<store_watch> watch_key(peerlane_pool_t pool, std::string_view key) const { return open_watch(pool, key, true); }
  // `each` returns false to stop.
  status find(peerlane_pool_t pool, const char* prefix, const char* regex,
              std::function<bool(std::string_view key, std::uint64_t value_size_bytes)> each) const {
    constexpr int kStopped = -1;
    const auto call = [](void* context, const void* key, std::size_t key_size_bytes, std::uint64_t value_size_bytes) {
      auto& wanted = *static_cast<std::function<bool(std::string_view, std::uint64_t)>*>(context);
      return wanted({static_cast<const char*>(key), key_size_bytes}, value_size_bytes) ? 0 : kStopped;
    };
    const int code = peerlane_store_find(handle_, pool, prefix, regex, call, &each);
    return code == kStopped ? status{} : checked(code);
  }

  result<store_memory> register_memory(const_buffer memory) const {
    peerlane_store_memory_t out = nullptr;
    if (const int code = peerlane_store_register(handle_, memory, &out)) return failure{code, peerlane_store_last_error()};
    return store_memory(out);
  }
  // `size_bytes` bytes of the registered memory, from `offset_bytes`.
  result<op_info> put_registered(peerlane_pool_t pool, std::string_view key, const store_memory& memory,
                                 std::size_t offset_bytes, std::size_t size_bytes,
                                 const peerlane_put_options* options = nullptr) const {
    return checked<op_info>([&](op_info* out) {
      return peerlane_store_put_registered(handle_, pool, key.data(), key.size(), memory.get(), offset_bytes, size_bytes,
                                           options, out);
    });
  }
  result<op_info> get_registered(peerlane_pool_t pool, std::string_view key, const store_memory& memory,
                                 std::size_t offset_bytes, std::size_t size_bytes,
                                 const peerlane_get_options* options = nullptr) const {
    return checked<op_info>([&](op_info* out) {
      return peerlane_store_get_registered(handle_, pool, key.data(), key.size(), memory.get(), offset_bytes, size_bytes,
                                           options, out);
    });
  }

  // For several requests at once, use peerlane_store_begin(), and pass its operations to peerlane::operation.
  result<operation> begin(const peerlane_store_item& item) const {
    peerlane_op_t out{};
    if (const int code = peerlane_store_begin(handle_, &item, 1, &out)) return failure{code, peerlane_store_last_error()};
    return operation(out);
  }
  result<operation> begin_put(peerlane_pool_t pool, std::string_view key, const_buffer value,
                              const peerlane_put_options* options = nullptr) const {
    auto item = item_for(PEERLANE_STORE_PUT, pool, key, value);
    item.put_options = options;
    return begin(item);
  }
  result<operation> begin_get(peerlane_pool_t pool, std::string_view key, buffer value,
                              const peerlane_get_options* options = nullptr) const {
    auto item = item_for(PEERLANE_STORE_GET, pool, key, value);
    item.get_options = options;
    return begin(item);
  }
  static peerlane_store_item item_for(peerlane_store_request request, peerlane_pool_t pool, std::string_view key,
                                      const_buffer value) noexcept {
    peerlane_store_item item{};
    item.request = request;
    item.pool = pool;
    item.key = key.data();
    item.key_size_bytes = key.size();
    item.value = value;
    return item;
  }

 private:
  static const_buffer nothing() noexcept { return peerlane_host_buffer(nullptr, 0); }
  result<std::vector<op_info>> multi(peerlane_store_request request, peerlane_pool_t pool,
                                     std::span<const std::string_view> keys, std::span<const const_buffer> values,
                                     const peerlane_put_options* options, bool is_atomic) const {
    if (keys.size() != values.size()) return failure{EINVAL, "a batch has as many keys as values"};
    std::vector<peerlane_store_item> items;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      items.push_back(item_for(request, pool, keys[i], values[i]));
      items.back().put_options = options;
    }
    peerlane_batch_options settings{};
    settings.struct_bytes = sizeof settings;
    settings.is_atomic = is_atomic ? 1 : 0;
    return batch(items, &settings);
  }
  result<store_watch> open_watch(peerlane_pool_t pool, std::string_view prefix, bool is_key) const {
    peerlane_watch_options options{};
    options.struct_bytes = sizeof options;
    options.prefix = prefix.data(), options.prefix_size_bytes = prefix.size();
    options.is_key = is_key ? 1 : 0;
    peerlane_store_watch_t out = nullptr;
    if (const int code = peerlane_store_watch_open(handle_, pool, &options, &out))
      return failure{code, peerlane_store_last_error()};
    return store_watch(out);
  }
  explicit store(peerlane_store_t handle) noexcept : handle_(handle) {}
  static status checked(int code) { return code == 0 ? status{} : status(failure{code, peerlane_store_last_error()}); }
  template <class Out, class Call>
  static result<Out> checked(const Call& call) {
    Out out{};
    if (const int code = call(&out)) return failure{code, peerlane_store_last_error()};
    return out;
  }
  peerlane_store_t handle_;
};

}  // namespace peerlane
