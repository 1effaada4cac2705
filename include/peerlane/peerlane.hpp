// SPDX-License-Identifier: Apache-2.0
// C++ API: sessions and mappings as RAII objects over the C calls of <peerlane/peerlane.h>; link libpeerlane.
//
//   auto session = peerlane::session::open();              // result<session>
//   auto flag = session->map(device_ptr, sizeof(int));      // result<mapping>: any alignment, any length
//   flag->write(0, &one, sizeof one);                    // no CUDA call
//
// Header-only on purpose: what crosses the library boundary is C, so compilers and standard libraries may differ.
#pragma once

#include <peerlane/peerlane.h>

#include <cstddef>
#include <mutex>
#include <peerlane/buffer.hpp>
#include <peerlane/result.hpp>
#include <span>
#include <utility>

namespace peerlane {

namespace detail {
inline status to_status(int code) {
  if (code == 0) return {};
  return failure{code, peerlane_last_error()};
}
}  // namespace detail

// Non-owning reference to a mapping; copyable, valid while the owner lives. Any thread.
class mapping_view {
 public:
  mapping_view() = default;
  explicit mapping_view(peerlane_mapping_t handle) noexcept : handle_(handle) {}

  peerlane_mapping_t get() const noexcept { return handle_; }
  // CPU address of the mapped device pointer; null for an empty view.
  void* data() const noexcept { return handle_ != nullptr ? peerlane_mapping_data(handle_) : nullptr; }
  result<peerlane_mapping_info> info() const {
    peerlane_mapping_info out{};
    if (const int code = peerlane_mapping_get_info(handle_, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  // Bytes from offset_bytes on; ordered before later stores of this thread.
  status write(std::size_t offset_bytes, const void* source, std::size_t size_bytes) const {
    return detail::to_status(peerlane_mapping_write(handle_, offset_bytes, source, size_bytes));
  }
  // As write, unordered until flush().
  status write_unfenced(std::size_t offset_bytes, const void* source, std::size_t size_bytes) const {
    return detail::to_status(peerlane_mapping_write_unfenced(handle_, offset_bytes, source, size_bytes));
  }
  status read(std::size_t offset_bytes, void* destination, std::size_t size_bytes) const {
    return detail::to_status(peerlane_mapping_read(handle_, offset_bytes, destination, size_bytes));
  }
  status fill(std::size_t offset_bytes, std::byte value, std::size_t size_bytes) const {
    return detail::to_status(peerlane_mapping_fill(handle_, offset_bytes, std::to_integer<int>(value), size_bytes));
  }
  status flush() const { return detail::to_status(peerlane_mapping_flush(handle_)); }

 protected:
  peerlane_mapping_t handle_ = nullptr;
};

// Owner: unmaps when destroyed (errors there are ignored; call unmap() to see them).
class mapping : public mapping_view {
 public:
  mapping() = default;
  mapping(mapping&& other) noexcept : mapping_view(other.give_up()) {}
  mapping& operator=(mapping&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = other.give_up();
    }
    return *this;
  }
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  ~mapping() { reset(); }

  // Takes ownership of a handle from peerlane_map.
  static mapping from_native_handle(peerlane_mapping_t handle) noexcept {
    mapping out;
    out.handle_ = handle;
    return out;
  }
  mapping_view view() const noexcept { return mapping_view(handle_); }
  // Gives up ownership: the caller must end the returned handle.
  peerlane_mapping_t give_up() noexcept { return std::exchange(handle_, nullptr); }
  status unmap() { return detail::to_status(peerlane_unmap(give_up())); }

 private:
  void reset() noexcept {
    if (handle_ != nullptr) peerlane_unmap(give_up());
  }
};

// Owner of a session. Mappings made from it must be gone before it is (close unmaps leftovers, whose owners then hold
// dead handles: using them is an error value, not a crash).
class session {
 public:
  session() = default;
  session(session&& other) noexcept : handle_(other.give_up()) {}
  session& operator=(session&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = other.give_up();
    }
    return *this;
  }
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session() { reset(); }

  // On the best backend. Options to start from: session::options().
  static result<session> open(const peerlane_session_options* options = nullptr) {
    peerlane_session_t out = nullptr;
    if (const int code = peerlane_session_open(options, &out)) return failure{code, peerlane_last_error()};
    return from_native_handle(out);
  }
  static peerlane_session_options options() noexcept {
    peerlane_session_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }
  static session from_native_handle(peerlane_session_t handle) noexcept {
    session out;
    out.handle_ = handle;
    return out;
  }
  peerlane_session_t get() const noexcept { return handle_; }
  // Gives up ownership: the caller must end the returned handle.
  peerlane_session_t give_up() noexcept { return std::exchange(handle_, nullptr); }
  status close() { return detail::to_status(peerlane_session_close(give_up())); }

  result<mapping> map(device_ptr_t device_ptr, std::size_t size_bytes, std::uint32_t flags = PEERLANE_MAP_DEFAULT) const {
    peerlane_mapping_t out = nullptr;
    if (const int code = peerlane_map(handle_, device_ptr, size_bytes, flags, &out))
      return failure{code, peerlane_last_error()};
    return mapping::from_native_handle(out);
  }
  // Memory of another process, opened by cuIpcOpenMemHandle with these 64 bytes.
  result<mapping> map_ipc(device_ptr_t device_ptr, std::size_t size_bytes, const void* ipc_handle,
                          std::uint32_t flags = PEERLANE_MAP_DEFAULT) const {
    peerlane_mapping_t out = nullptr;
    if (const int code = peerlane_map_ipc(handle_, device_ptr, size_bytes, flags, ipc_handle, &out))
      return failure{code, peerlane_last_error()};
    return mapping::from_native_handle(out);
  }
  const char* backend_name() const { return peerlane_session_backend_name(handle_); }

 private:
  void reset() noexcept {
    if (handle_ != nullptr) peerlane_session_close(give_up());
  }
  peerlane_session_t handle_ = nullptr;
};

// A buffer that says what lies there, as the driver answers now.
inline result<buffer> detect_buffer(void* pointer, std::size_t size_bytes) {
  peerlane_buffer out{};
  if (const int code = peerlane_detect_buffer(pointer, size_bytes, &out)) return failure{code, peerlane_last_error()};
  return buffer(out);
}

namespace detail {
// The session behind peerlane::map. A forked child finds its parent's and opens one of its own.
class shared_session {
 public:
  result<mapping> map(device_ptr_t device_ptr, std::size_t size_bytes, std::uint32_t flags) {
    const std::lock_guard lock(mutex_);
    if (*peerlane_session_backend_name(session_.get()) == '\0') {  // not open, or another process's
      (void)session_.give_up();
      auto fresh = session::open();
      if (!fresh) return fresh.error();
      session_ = *std::move(fresh);
    }
    return session_.map(device_ptr, size_bytes, flags);
  }

 private:
  std::mutex mutex_;
  session session_;
};
}  // namespace detail

// Maps with a session of the process's own, opened on first use and left open at exit. Calls take turns.
inline result<mapping> map(device_ptr_t device_ptr, std::size_t size_bytes, std::uint32_t flags = PEERLANE_MAP_DEFAULT) {
  static auto* shared = new detail::shared_session;  // never destroyed: mappings may outlive static objects
  return shared->map(device_ptr, size_bytes, flags);
}

}  // namespace peerlane
