// SPDX-License-Identifier: Apache-2.0
// Host pools' C interface; the contract is in peerlane/host_pool.h.
#include <peerlane/host_pool.h>

#include <memory>

#include "capi/borrowed_planner.hpp"
#include "capi/capi_call.hpp"
#include "capi/errno_guard.hpp"
#include "capi/live_handles.hpp"
#include "copy/host_pool.hpp"
#include "copy/planner.hpp"
#include "cuda/driver_table.hpp"

namespace {

using pl::fail;
using pools = pl::live_handles<pl::copy::host_pool>;

// Keeps the copier from being closed while the pool lives.
struct borrowed_planner {
  explicit borrowed_planner(peerlane_copier_t given, int& code) : copier(given), planner(pl::borrow_planner(given, code)) {}
  ~borrowed_planner() {
    if (planner != nullptr) pl::return_planner(copier);
  }
  borrowed_planner(const borrowed_planner&) = delete;
  borrowed_planner& operator=(const borrowed_planner&) = delete;

  const peerlane_copier_t copier;
  pl::copy::planner* const planner;
};

}  // namespace

PL_EXPORT int peerlane_host_pool_open(const struct peerlane_host_pool_options* options, peerlane_host_pool_t* pool) try {
  const pl::errno_guard guard;
  if (options == nullptr || pool == nullptr) return fail(EINVAL, pl::kNullPointer);
  if (options->struct_bytes < 2 * sizeof(size_t))
    return fail(EINVAL, "options->struct_bytes is not sizeof(struct peerlane_host_pool_options)");
  peerlane_host_pool_options given{};
  std::memcpy(&given, options, std::min(options->struct_bytes, sizeof given));
  if (given.reserved != 0) return fail(EINVAL, "reserved must be 0");
  auto cuda = pl::cu::driver();
  if (!cuda) return fail(cuda.error());
  pl::copy::host_pool::options wanted;
  wanted.size_bytes = given.size_bytes;
  wanted.device_ordinal = given.device_ordinal;
  if (given.piece_size_bytes != 0) wanted.piece_bytes = given.piece_size_bytes;
  if (given.copier != nullptr) {
    int code = 0;
    const auto borrowed = std::make_shared<borrowed_planner>(given.copier, code);
    if (borrowed->planner == nullptr) return code;
    // If that is refused (no channels), lists take their usual path.
    wanted.pinned = [borrowed, device = given.device_ordinal](std::byte* data, std::uint64_t size_bytes) {
      (void)borrowed->planner->prepare_host_memory(data, size_bytes, device);
    };
  }
  auto made = pl::copy::host_pool::make(**cuda, wanted);
  if (!made) return fail(made.error());
  *pool = static_cast<peerlane_host_pool_t>(pools::instance().add(*std::move(made)));
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_host_pool_get_info(peerlane_host_pool_t pool, struct peerlane_host_pool_info* info) try {
  const pl::errno_guard guard;
  if (info == nullptr) return fail(EINVAL, pl::kNullPointer);
  const auto found = pools::instance().find(pool);
  if (found == nullptr) return fail(pools::instance().missing());
  const auto pinning = found->pinning();
  *info = {found->data(), found->size_bytes(), found->pinned_bytes(), found->numa_node(), pinning ? 0 : pinning.code()};
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_host_pool_wait(peerlane_host_pool_t pool, int64_t timeout_ms) try {
  const pl::errno_guard guard;
  const auto found = pools::instance().find(pool);
  if (found == nullptr) return fail(pools::instance().missing());
  return pl::return_code(found->wait(timeout_ms));
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_host_pool_close(peerlane_host_pool_t pool) try {
  const pl::errno_guard guard;
  return pools::instance().remove(pool) != nullptr ? 0 : fail(pools::instance().missing());
}
PL_NO_EXCEPTIONS
