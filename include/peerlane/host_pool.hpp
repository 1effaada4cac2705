// SPDX-License-Identifier: Apache-2.0
// C++ API of host pools: RAII over the C calls of <peerlane/host_pool.h>, which describes each call; link libpeerlane.
//
//   auto pool = peerlane::host_pool::open(std::size_t{64} << 30);   // result<host_pool>
//   std::memcpy(pool->data(), page, page_bytes);                    // usable at once, pinned in the background
#pragma once

#include <peerlane/host_pool.h>

#include <cstddef>
#include <cstdint>
#include <peerlane/copy.hpp>

namespace peerlane {

class host_pool : public detail::owned_handle<peerlane_host_pool_t, peerlane_host_pool_close> {
 public:
  using owned_handle::owned_handle;

  static result<host_pool> open(std::size_t size_bytes, int device_ordinal = 0, std::size_t piece_size_bytes = 0,
                                peerlane_copier_t copier = nullptr) {
    peerlane_host_pool_options options{};
    options.struct_bytes = sizeof options;
    options.size_bytes = size_bytes;
    options.piece_size_bytes = piece_size_bytes;
    options.device_ordinal = device_ordinal;
    options.copier = copier;
    peerlane_host_pool_t out = nullptr;
    if (const int code = peerlane_host_pool_open(&options, &out)) return failure{code, peerlane_last_error()};
    return host_pool(out);
  }
  result<peerlane_host_pool_info> info() const {
    peerlane_host_pool_info out{};
    if (const int code = peerlane_host_pool_get_info(handle_, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  // Null in a child of fork.
  std::byte* data() const noexcept {
    peerlane_host_pool_info out{};
    return peerlane_host_pool_get_info(handle_, &out) == 0 ? static_cast<std::byte*>(out.data) : nullptr;
  }
  // Waits until the whole pool is pinned; negative: no limit.
  status wait(std::int64_t timeout_ms = -1) const { return detail::to_status(peerlane_host_pool_wait(handle_, timeout_ms)); }
};

}  // namespace peerlane
