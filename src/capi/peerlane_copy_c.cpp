// SPDX-License-Identifier: Apache-2.0
// The copies' C interface: the planner behind checked handles. peerlane/copy.h defines the contract.
#include <peerlane/copy.h>

#include <array>
#include <cstring>

#include "base/checked_math.hpp"
#include "capi/borrowed_planner.hpp"
#include "capi/errno_guard.hpp"
#include "capi/live_handles.hpp"
#include "capi/open_copier.hpp"
#include "copy/explain.hpp"
#include "cuda/driver_table.hpp"
#include "cuda/pointer.hpp"
#include "os/fork_guard.hpp"

namespace {

using pl::fail;
using pl::kDead;
using pl::kNullPointer;
using pl::return_code;
using pl::copy::direction;
using pl::copy::planner;
using pl::copy::transfer;

constexpr std::size_t kCopiers = 64;
std::array<peerlane_copier, kCopiers> g_copiers;
std::mutex g_copiers_mutex;

constexpr const char* kForeign =
    "the copier belongs to another process (made before fork): CUDA does not work in a forked child";

struct owned {  // by a copier, which it keeps from being closed
  explicit owned(peerlane_copier* copier) : owner(copier) { owner->objects.fetch_add(1, std::memory_order_relaxed); }
  ~owned() { owner->objects.fetch_sub(1, std::memory_order_release); }
  owned(const owned&) = delete;
  owned& operator=(const owned&) = delete;
  peerlane_copier* owner;
};
struct owned_hold : owned {
  owned_hold(peerlane_copier* copier, pl::copy::gpu_engine::hold held) : owned(copier), value(std::move(held)) {}
  pl::copy::gpu_engine::hold value;
};
struct owned_registration : owned {
  owned_registration(peerlane_copier* copier, planner::registration kept) : owned(copier), value(std::move(kept)) {}
  planner::registration value;
};
using holds = pl::live_handles<owned_hold>;
using registrations = pl::live_handles<owned_registration>;

bool is_kind(const peerlane_buffer& buffer) { return buffer.memory <= PEERLANE_MEMORY_DEVICE; }

// Whether `rows` rows of `row_bytes` with this pitch lie inside the buffer.
bool holds_rows(const peerlane_buffer& buffer, const peerlane_transfer& rows, std::size_t pitch) {
  const auto skipped = pl::checked_mul(std::uint64_t{rows.rows - 1}, std::uint64_t{pitch});
  const auto end = skipped ? pl::checked_add(*skipped, std::uint64_t{rows.row_size_bytes}) : std::nullopt;
  return end && *end <= buffer.size_bytes;
}

direction direction_of(bool to_device, bool from_device) {
  if (!to_device) return direction::to_host;
  return from_device ? direction::on_device : direction::to_device;
}

}  // namespace

namespace pl {

planner* planner_of(peerlane_copier_t copier, int& code) noexcept {
  const auto distance = reinterpret_cast<std::uintptr_t>(copier) - reinterpret_cast<std::uintptr_t>(g_copiers.data());
  if (distance >= sizeof g_copiers || distance % sizeof(peerlane_copier) != 0) return code = fail(EINVAL, kDead), nullptr;
  auto* const found = copier->planner.load(std::memory_order_acquire);
  if (found == nullptr) return code = fail(EINVAL, kDead), nullptr;
  if (copier->epoch != pl::process_epoch()) [[unlikely]]
    return code = fail(EACCES, kForeign), nullptr;
  return found;
}

bool is_device_memory(const peerlane_buffer& buffer) {
  if (buffer.memory != PEERLANE_MEMORY_ANY) return buffer.memory == PEERLANE_MEMORY_DEVICE;
  const auto cuda = cu::driver();
  return cuda && cu::find_device_memory(**cuda, buffer.address).has_value();
}

int read_transfer(const peerlane_transfer& given, copy::transfer& out) {
  if (!is_kind(given.destination) || !is_kind(given.source)) return fail(EINVAL, kNoMemoryKind);
  const bool is_plain = given.rows <= 1;
  if (is_plain ? given.source.size_bytes == 0 : given.row_size_bytes == 0) return out = {}, 0;
  const bool fits = is_plain ? given.destination.size_bytes >= given.source.size_bytes
                             : holds_rows(given.destination, given, given.destination_pitch_bytes) &&
                                   holds_rows(given.source, given, given.source_pitch_bytes);
  if (!fits)
    return fail(ERANGE, is_plain ? "the destination is shorter than the source: nothing was copied"
                                 : "the rows leave the destination or the source: nothing was copied");
  const bool to_device = is_device_memory(given.destination), from_device = is_device_memory(given.source);
  if (!to_device && !from_device)
    return fail(EINVAL, "the destination and the source are host memory both: use memcpy, or say device memory");
  out = {direction_of(to_device, from_device), given.destination.address, given.source.address, given.source.size_bytes};
  if (!is_plain)
    out = {out.way,
           out.dst,
           out.src,
           given.row_size_bytes,
           given.rows,
           given.destination_pitch_bytes,
           given.source_pitch_bytes};
  return 0;
}

int read_transfers(const peerlane_transfer* given, std::size_t count, std::vector<transfer>& out) {
  if (given == nullptr && count != 0) return fail(EINVAL, kNullPointer);
  out.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    if (const int code = read_transfer(given[i], out[i])) return code;
  return 0;
}

copy::planner* borrow_planner(peerlane_copier_t copier, int& code) noexcept {
  auto* const found = planner_of(copier, code);
  if (found != nullptr) copier->objects.fetch_add(1, std::memory_order_relaxed);
  return found;
}

void return_planner(peerlane_copier_t copier) noexcept { copier->objects.fetch_sub(1, std::memory_order_release); }

}  // namespace pl

PL_EXPORT int peerlane_copier_open(const struct peerlane_copier_options* options, peerlane_copier_t* copier) try {
  const pl::errno_guard guard;
  if (copier == nullptr) return fail(EINVAL, kNullPointer);
  peerlane_copier_options given{};
  if (options != nullptr) {
    if (options->struct_bytes < sizeof(size_t) + sizeof(char*))
      return fail(EINVAL, "options->struct_bytes is not sizeof(struct peerlane_copier_options)");
    std::memcpy(&given, options, std::min(options->struct_bytes, sizeof given));
  }
  if (given.reserved != 0) return fail(EINVAL, "reserved must be 0");
  auto cuda = pl::cu::driver();
  if (!cuda) return fail(cuda.error());
  planner::options wanted = planner::options_from_environment();
  if (given.backend != nullptr) wanted.maps.backend = given.backend;
  if (given.threads != 0) wanted.threads = given.threads;
  if (given.lease_us != 0) wanted.engine.lease_us = given.lease_us;
  if (given.no_gpu_engine != 0) wanted.use_engine = false;
  if (given.cache_bytes != 0) wanted.maps.capacity_bytes = given.cache_bytes;
  const std::lock_guard lock(g_copiers_mutex);
  for (auto& slot : g_copiers) {
    if (slot.planner.load(std::memory_order_relaxed) != nullptr && slot.epoch == pl::process_epoch()) continue;
    auto opened = planner::open(**cuda, wanted);
    if (!opened) return fail(opened.error());
    slot.epoch = pl::claim_process_epoch();
    slot.objects.store(0, std::memory_order_relaxed);
    slot.operations = new pl::copier_operations;
    slot.planner.store(opened->release(), std::memory_order_release);
    *copier = &slot;
    return 0;
  }
  return fail(ENFILE, "64 copiers are open: one is enough for all threads and GPUs of a process");
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copier_close(peerlane_copier_t copier) try {
  const pl::errno_guard guard;
  const std::lock_guard lock(g_copiers_mutex);
  int code = 0;
  auto* const ended = pl::planner_of(copier, code);
  if (ended == nullptr) return code;
  if (copier->objects.load(std::memory_order_acquire) != 0)
    return fail(EBUSY, "operations, holds or registrations of the copier are left: end them first");
  copier->planner.store(nullptr, std::memory_order_release);
  delete std::exchange(copier->operations, nullptr);
  delete ended;
  return 0;
}
PL_NO_EXCEPTIONS

// Common exit of the plain copies. Preserves errno, because CUDA and the kernel may be called.
static int copy_one(peerlane_copier_t copier, const peerlane_transfer& given) try {
  const pl::errno_guard guard;
  int code = 0;
  auto* const engine = pl::planner_of(copier, code);
  if (engine == nullptr) return code;
  transfer request;
  if ((code = pl::read_transfer(given, request)) != 0) return code;
  return return_code(engine->copy(request));
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copy(peerlane_copier_t copier, struct peerlane_buffer destination, struct peerlane_buffer source) {
  return copy_one(copier, {destination, source, 0, 0, 0, 0});
}

PL_EXPORT int peerlane_copy_rows(peerlane_copier_t copier, const struct peerlane_transfer* given) {
  return given != nullptr ? copy_one(copier, *given) : fail(EINVAL, kNullPointer);
}

PL_EXPORT int peerlane_copy_list(peerlane_copier_t copier, const struct peerlane_transfer* given, size_t count) try {
  const pl::errno_guard guard;
  int code = 0;
  auto* const engine = pl::planner_of(copier, code);
  if (engine == nullptr) return code;
  std::vector<transfer> list;
  if ((code = pl::read_transfers(given, count, list)) != 0) return code;
  return return_code(engine->copy_list(list));
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copy_fill(peerlane_copier_t copier, struct peerlane_buffer destination, int byte_value) try {
  const pl::errno_guard guard;
  int code = 0;
  auto* const engine = pl::planner_of(copier, code);
  if (engine == nullptr) return code;
  if (!is_kind(destination)) return fail(EINVAL, pl::kNoMemoryKind);
  if (destination.memory == PEERLANE_MEMORY_HOST) return fail(EINVAL, "the destination is host memory: use memset");
  return return_code(engine->fill(destination.address, static_cast<unsigned char>(byte_value), destination.size_bytes));
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_detect_buffer(const void* pointer, size_t size_bytes, struct peerlane_buffer* buffer) try {
  const pl::errno_guard guard;
  if (buffer == nullptr) return fail(EINVAL, kNullPointer);
  auto found = peerlane_any_buffer(pointer, size_bytes);
  const auto cuda = pl::cu::driver();
  const auto device = cuda ? pl::cu::find_device_memory(**cuda, found.address) : std::nullopt;
  if (device && !device->allocation.contains({found.address, size_bytes}))
    return fail(EINVAL, "the range leaves its allocation of GPU memory");
  found.memory = device ? PEERLANE_MEMORY_DEVICE : PEERLANE_MEMORY_HOST;
  *buffer = found;
  return 0;
}
PL_NO_EXCEPTIONS

// ---- Control -------------------------------------------------------------------------------------------------------------

PL_EXPORT int peerlane_copier_prepare(peerlane_copier_t copier, int device_ordinal) try {
  const pl::errno_guard guard;
  int code = 0;
  auto* const engine = pl::planner_of(copier, code);
  return engine != nullptr ? return_code(engine->prepare(device_ordinal)) : code;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copier_keep_hot(peerlane_copier_t copier, int device_ordinal, peerlane_hold_t* hold) try {
  const pl::errno_guard guard;
  if (hold == nullptr) return fail(EINVAL, kNullPointer);
  int code = 0;
  auto* const engine = pl::planner_of(copier, code);
  if (engine == nullptr) return code;
  auto held = engine->keep_hot(device_ordinal);
  if (!held) return fail(held.error());
  auto made = std::make_shared<owned_hold>(copier, *std::move(held));
  *hold = static_cast<peerlane_hold_t>(static_cast<void*>(holds::instance().add(std::move(made))));
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_hold_release(peerlane_hold_t hold) {
  const pl::errno_guard guard;
  return holds::instance().remove(hold) != nullptr ? 0 : fail(holds::instance().missing());
}

template <class Register>
static int register_by(peerlane_copier_t copier, peerlane_registration_t* handle, Register&& act) try {
  const pl::errno_guard guard;
  if (handle == nullptr) return fail(EINVAL, kNullPointer);
  int code = 0;
  auto* const engine = pl::planner_of(copier, code);
  if (engine == nullptr) return code;
  auto kept = act(*engine);
  if (!kept) return fail(kept.error());
  auto made = std::make_shared<owned_registration>(copier, *std::move(kept));
  *handle = static_cast<peerlane_registration_t>(registrations::instance().add(std::move(made)));
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copier_register(peerlane_copier_t copier, struct peerlane_buffer buffer,
                                       peerlane_registration_t* registration) {
  if (!is_kind(buffer)) return fail(EINVAL, pl::kNoMemoryKind);
  return register_by(copier, registration, [&](planner& engine) {
    if (pl::is_device_memory(buffer)) return engine.register_memory(buffer.address, buffer.size_bytes);
    constexpr int kAnyDevice = 0;  // pinned for all of them
    auto* const pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(buffer.address));
    return engine.register_host_memory(pointer, buffer.size_bytes, kAnyDevice);
  });
}

PL_EXPORT int peerlane_registration_release(peerlane_registration_t registration) {
  const pl::errno_guard guard;
  return registrations::instance().remove(registration) != nullptr ? 0 : fail(registrations::instance().missing());
}

PL_EXPORT int peerlane_copier_trim(peerlane_copier_t copier) try {
  const pl::errno_guard guard;
  int code = 0;
  auto* const engine = pl::planner_of(copier, code);
  if (engine == nullptr) return code;
  engine->trim();
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copier_explain(peerlane_copier_t copier, uint32_t way, int pageable, size_t size_bytes, char* text,
                                      size_t capacity, size_t* needed) try {
  const pl::errno_guard guard;
  if (text == nullptr && capacity != 0) return fail(EINVAL, kNullPointer);
  if (way > PEERLANE_ON_DEVICE) return fail(EINVAL, "the direction is not one of PEERLANE_TO_DEVICE, _TO_HOST, _ON_DEVICE");
  int code = 0;
  auto* const engine = pl::planner_of(copier, code);
  if (engine == nullptr) return code;
  using pl::copy::other_side;
  const bool on_device = way == PEERLANE_ON_DEVICE;
  const auto side = on_device ? (pageable != 0 ? other_side::peer_gpu : other_side::same_gpu)
                              : (pageable != 0 ? other_side::pageable : other_side::pinned);
  const std::string words = pl::copy::explain(engine->costs(), engine->costs_origin(), static_cast<direction>(way), side,
                                              engine->best_executor(), size_bytes);
  return pl::give_text(words, text, capacity, needed);
}
PL_NO_EXCEPTIONS
