// SPDX-License-Identifier: Apache-2.0
// C++ API of the store's client: RAII over the C calls of <peerlane/store.h>, where each call is described; link
// libpeerlane_store.
//
//   auto store = peerlane::store::open();                       // PEERLANE_STORE says where
//   auto pool = store->open_pool("checkpoints");
//   auto put = store->put(*pool, "layer0", device_ptr, bytes);  // put->path, put->durability: what became of it
//   auto later = store->begin_get(*pool, "layer0", device_ptr, bytes);
//   later->wait();
#pragma once

#include <peerlane/store.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <peerlane/result.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace peerlane {

using store_reply = peerlane_store_reply;

// An operation under way. Dropping it before it has ended waits for it: its memory is in use.
class store_operation {
 public:
  explicit store_operation(peerlane_store_op_t handle) noexcept : handle_(handle) {}
  store_operation(store_operation&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  store_operation& operator=(store_operation&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~store_operation() { reset(); }

  result<bool> test() const {
    int done = 0;
    if (const int code = peerlane_store_test(handle_, &done)) return failure{code, peerlane_store_last_error()};
    return done != 0;
  }
  // ETIMEDOUT: not by then; it goes on.
  result<store_reply> wait(std::int32_t timeout_ms = -1) const {
    store_reply out{};
    if (const int code = peerlane_store_wait(handle_, timeout_ms, &out)) return failure{code, peerlane_store_last_error()};
    return out;
  }

 private:
  void reset() noexcept {
    if (handle_ == nullptr) return;
    peerlane_store_wait(handle_, -1, nullptr);
    peerlane_store_free(std::exchange(handle_, nullptr));
  }
  peerlane_store_op_t handle_;
};

// Memory that operations need not look at again. Must outlive them; ends before its store does.
class direct_memory {
 public:
  explicit direct_memory(peerlane_direct_memory_t handle) noexcept : handle_(handle) {}
  direct_memory(direct_memory&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  direct_memory& operator=(direct_memory&&) = delete;
  ~direct_memory() {
    if (handle_ != nullptr) peerlane_store_unregister_direct_memory(handle_);
  }
  peerlane_direct_memory_t get() const noexcept { return handle_; }

 private:
  peerlane_direct_memory_t handle_;
};

// Any thread.
class store {
 public:
  static result<store> open(const peerlane_store_options* options = nullptr) {
    peerlane_store_t out = nullptr;
    if (const int code = peerlane_store_open(options, &out)) return failure{code, peerlane_store_last_error()};
    return store(out);
  }
  // At a unix socket (a path) or "host:port".
  static result<store> open_at(const std::string& address) {
    peerlane_store_options options{};
    options.struct_bytes = sizeof options;
    (address.find('/') != std::string::npos ? options.socket : options.endpoint) = address.c_str();
    return open(&options);
  }
  store(store&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  store& operator=(store&&) = delete;
  ~store() {
    if (handle_ != nullptr) peerlane_store_close(handle_);
  }
  peerlane_store_t get() const noexcept { return handle_; }

  result<peerlane_pool_t> create_pool(const char* name, const peerlane_pool_options* options = nullptr) const {
    return checked<peerlane_pool_t>(
        [&](peerlane_pool_t* out) { return peerlane_store_create_pool(handle_, name, options, out); });
  }
  result<peerlane_pool_t> open_pool(const char* name) const {
    return checked<peerlane_pool_t>([&](peerlane_pool_t* out) { return peerlane_store_open_pool(handle_, name, out); });
  }
  status sync(peerlane_pool_t pool) const { return checked(peerlane_store_sync(handle_, pool)); }

  result<store_reply> put(peerlane_pool_t pool, std::string_view key, const void* value, std::size_t bytes,
                          const peerlane_put_options* options = nullptr) const {
    return checked<store_reply>([&](store_reply* out) {
      return peerlane_store_put(handle_, pool, key.data(), key.size(), value, bytes, options, out);
    });
  }
  result<store_reply> get(peerlane_pool_t pool, std::string_view key, void* value, std::size_t bytes,
                          const peerlane_get_options* options = nullptr) const {
    return checked<store_reply>([&](store_reply* out) {
      return peerlane_store_get(handle_, pool, key.data(), key.size(), value, bytes, options, out);
    });
  }
  result<store_reply> erase(peerlane_pool_t pool, std::string_view key,
                            const peerlane_put_options* options = nullptr) const {
    return checked<store_reply>(
        [&](store_reply* out) { return peerlane_store_erase(handle_, pool, key.data(), key.size(), options, out); });
  }
  result<store_reply> stat(peerlane_pool_t pool, std::string_view key) const {
    return checked<store_reply>(
        [&](store_reply* out) { return peerlane_store_stat(handle_, pool, key.data(), key.size(), out); });
  }
  // `each` returns false to stop.
  status find(peerlane_pool_t pool, const char* prefix, const char* regex,
              std::function<bool(std::string_view key, std::uint64_t value_bytes)> each) const {
    constexpr int kStopped = -1;
    const auto call = [](void* context, const void* key, std::size_t bytes, std::uint64_t value_bytes) {
      auto& wanted = *static_cast<std::function<bool(std::string_view, std::uint64_t)>*>(context);
      return wanted({static_cast<const char*>(key), bytes}, value_bytes) ? 0 : kStopped;
    };
    const int code = peerlane_store_find(handle_, pool, prefix, regex, call, &each);
    return code == kStopped ? status{} : checked(code);
  }

  result<direct_memory> register_direct_memory(void* address, std::size_t bytes) const {
    peerlane_direct_memory_t out = nullptr;
    if (const int code = peerlane_store_register_direct_memory(handle_, address, bytes, &out))
      return failure{code, peerlane_store_last_error()};
    return direct_memory(out);
  }
  result<store_reply> put_direct(peerlane_pool_t pool, std::string_view key, const direct_memory& memory, std::size_t offset,
                                 std::size_t bytes, const peerlane_put_options* options = nullptr) const {
    return checked<store_reply>([&](store_reply* out) {
      return peerlane_store_put_direct(handle_, pool, key.data(), key.size(), memory.get(), offset, bytes, options, out);
    });
  }
  result<store_reply> get_direct(peerlane_pool_t pool, std::string_view key, const direct_memory& destination,
                                 std::size_t offset, std::size_t bytes,
                                 const peerlane_get_options* options = nullptr) const {
    return checked<store_reply>([&](store_reply* out) {
      return peerlane_store_get_direct(handle_, pool, key.data(), key.size(), destination.get(), offset, bytes, options,
                                       out);
    });
  }

  result<store_operation> begin(const peerlane_store_item& item) const {
    peerlane_store_op_t out = nullptr;
    if (const int code = peerlane_store_begin(handle_, &item, 1, &out)) return failure{code, peerlane_store_last_error()};
    return store_operation(out);
  }
  result<store_operation> begin_put(peerlane_pool_t pool, std::string_view key, const void* value, std::size_t bytes,
                                    const peerlane_put_options* options = nullptr) const {
    auto item = item_of(PEERLANE_STORE_PUT, pool, key, const_cast<void*>(value), bytes);
    item.put_options = options;
    return begin(item);
  }
  result<store_operation> begin_get(peerlane_pool_t pool, std::string_view key, void* value, std::size_t bytes,
                                    const peerlane_get_options* options = nullptr) const {
    auto item = item_of(PEERLANE_STORE_GET, pool, key, value, bytes);
    item.get_options = options;
    return begin(item);
  }

 private:
  explicit store(peerlane_store_t handle) noexcept : handle_(handle) {}
  static status checked(int code) { return code == 0 ? status{} : status(failure{code, peerlane_store_last_error()}); }
  template <class Out, class Call>
  static result<Out> checked(const Call& call) {
    Out out{};
    if (const int code = call(&out)) return failure{code, peerlane_store_last_error()};
    return out;
  }
  static peerlane_store_item item_of(std::uint32_t kind, peerlane_pool_t pool, std::string_view key, void* value,
                                     std::size_t bytes) {
    peerlane_store_item item{};
    item.operation = kind;
    item.pool = pool;
    item.key = key.data();
    item.key_bytes = key.size();
    item.value = value;
    item.bytes = bytes;
    return item;
  }
  peerlane_store_t handle_;
};

}  // namespace peerlane
