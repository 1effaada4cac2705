// SPDX-License-Identifier: Apache-2.0
// The copies' C interface: the planner behind checked handles. peerlane/copy.h defines the contract.
#include <peerlane/copy.h>

#include <array>
#include <atomic>
#include <cstring>

#include "base/env.hpp"
#include "capi/borrowed_planner.hpp"
#include "capi/capi_call.hpp"
#include "capi/errno_keeper.hpp"
#include "capi/live_handles.hpp"
#include "copy/completion.hpp"
#include "copy/explain.hpp"
#include "copy/planner.hpp"
#include "os/fork_guard.hpp"

// What handles point to: a slot of a fixed table, so that any address can be checked without a lock on the way to a copy of
// 0.2 us.
struct peerlane_copier {
  std::atomic<pl::copy::planner*> planner{nullptr};
  std::uint32_t epoch = 0;
  std::atomic<int> objects{0};  // completions, holds, registrations
};

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
struct owned_completion : owned {
  using owned::owned;
  pl::copy::completion value;
};
struct owned_hold : owned {
  owned_hold(peerlane_copier* copier, pl::copy::gpu_engine::hold held) : owned(copier), value(std::move(held)) {}
  pl::copy::gpu_engine::hold value;
};
struct owned_registration : owned {
  owned_registration(peerlane_copier* copier, planner::registration kept) : owned(copier), value(std::move(kept)) {}
  planner::registration value;
};
using completions = pl::live_handles<owned_completion>;
using holds = pl::live_handles<owned_hold>;
using registrations = pl::live_handles<owned_registration>;

// The planner, or null with `code` and the message set.
planner* planner_of(peerlane_copier_t copier, int& code) noexcept {
  const auto distance = reinterpret_cast<std::uintptr_t>(copier) - reinterpret_cast<std::uintptr_t>(g_copiers.data());
  if (distance >= sizeof g_copiers || distance % sizeof(peerlane_copier) != 0) return code = fail(EINVAL, kDead), nullptr;
  auto* const found = copier->planner.load(std::memory_order_acquire);
  if (found == nullptr) return code = fail(EINVAL, kDead), nullptr;
  if (copier->epoch != pl::process_epoch()) [[unlikely]]
    return code = fail(EACCES, kForeign), nullptr;
  return found;
}

bool take(const peerlane_transfer& given, transfer& out) {
  if (given.direction > PEERLANE_ON_DEVICE) return false;
  out = {static_cast<direction>(given.direction),
         given.dst,
         given.src,
         given.row_bytes,
         given.rows,
         given.dst_pitch,
         given.src_pitch};
  return true;
}

int take_all(const peerlane_transfer* given, std::size_t count, std::vector<transfer>& out) {
  if (given == nullptr && count != 0) return fail(EINVAL, kNullPointer);
  out.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    if (!take(given[i], out[i]))
      return fail(EINVAL, "a transfer's direction is none of PEERLANE_TO_DEVICE, _TO_HOST, _ON_DEVICE");
  return 0;
}

}  // namespace

namespace pl {

copy::planner* borrow_planner(peerlane_copier_t copier, int& code) noexcept {
  auto* const found = planner_of(copier, code);
  if (found != nullptr) copier->objects.fetch_add(1, std::memory_order_relaxed);
  return found;
}

void return_planner(peerlane_copier_t copier) noexcept { copier->objects.fetch_sub(1, std::memory_order_release); }

}  // namespace pl

PL_EXPORT int peerlane_copier_open(const struct peerlane_copier_options* options, peerlane_copier_t* copier) try {
  const pl::errno_keeper keeper;
  if (copier == nullptr) return fail(EINVAL, kNullPointer);
  peerlane_copier_options given{};
  if (options != nullptr) {
    if (options->struct_bytes < sizeof(size_t) + sizeof(char*))
      return fail(EINVAL, "options->struct_bytes is not sizeof(struct peerlane_copier_options)");
    std::memcpy(&given, options, std::min(options->struct_bytes, sizeof given));
  }
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
    slot.planner.store(opened->release(), std::memory_order_release);
    *copier = &slot;
    return 0;
  }
  return fail(ENFILE, "64 copiers are open: one is enough for all threads and GPUs of a process");
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copier_close(peerlane_copier_t copier) try {
  const pl::errno_keeper keeper;
  const std::lock_guard lock(g_copiers_mutex);
  int code = 0;
  auto* const ended = planner_of(copier, code);
  if (ended == nullptr) return code;
  if (copier->objects.load(std::memory_order_acquire) != 0)
    return fail(EBUSY, "completions, holds or registrations of the copier are left: end them first");
  copier->planner.store(nullptr, std::memory_order_release);
  delete ended;
  return 0;
}
PL_NO_EXCEPTIONS

// One exit for the plain copies. errno is kept: CUDA and the kernel may be called.
static int copy_one(peerlane_copier_t copier, const transfer& request) try {
  const pl::errno_keeper keeper;
  int code = 0;
  auto* const engine = planner_of(copier, code);
  return engine != nullptr ? return_code(engine->copy(request)) : code;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copy_to_device(peerlane_copier_t copier, uint64_t dst, const void* src, size_t bytes) {
  return copy_one(copier, {direction::to_device, dst, pl::copy::address_of(src), bytes});
}

PL_EXPORT int peerlane_copy_to_host(peerlane_copier_t copier, void* dst, uint64_t src, size_t bytes) {
  return copy_one(copier, {direction::to_host, pl::copy::address_of(dst), src, bytes});
}

PL_EXPORT int peerlane_copy_on_device(peerlane_copier_t copier, uint64_t dst, uint64_t src, size_t bytes) {
  return copy_one(copier, {direction::on_device, dst, src, bytes});
}

PL_EXPORT int peerlane_copy_2d(peerlane_copier_t copier, const struct peerlane_transfer* given) {
  if (given == nullptr) return fail(EINVAL, kNullPointer);
  transfer request;
  if (!take(*given, request)) return fail(EINVAL, "the direction is none of PEERLANE_TO_DEVICE, _TO_HOST, _ON_DEVICE");
  return copy_one(copier, request);
}

PL_EXPORT int peerlane_copy_list(peerlane_copier_t copier, const struct peerlane_transfer* given, size_t count) try {
  const pl::errno_keeper keeper;
  int code = 0;
  auto* const engine = planner_of(copier, code);
  if (engine == nullptr) return code;
  std::vector<transfer> list;
  if ((code = take_all(given, count, list)) != 0) return code;
  return return_code(engine->copy_list(list));
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copy_fill(peerlane_copier_t copier, uint64_t dst, int byte_value, size_t bytes) try {
  const pl::errno_keeper keeper;
  int code = 0;
  auto* const engine = planner_of(copier, code);
  return engine != nullptr ? return_code(engine->fill(dst, static_cast<unsigned char>(byte_value), bytes)) : code;
}
PL_NO_EXCEPTIONS

// ---- Asynchronous ------------------------------------------------------------------------------------------------------

PL_EXPORT int peerlane_copy_begin(peerlane_copier_t copier, const struct peerlane_transfer* given, size_t count,
                                  uint32_t flags, void* stream, peerlane_completion_t* completion) try {
  const pl::errno_keeper keeper;
  if (completion == nullptr) return fail(EINVAL, kNullPointer);
  if ((flags & ~static_cast<uint32_t>(PEERLANE_BEGIN_AFTER_STREAM)) != 0)
    return fail(EINVAL, "unknown bits in flags: give PEERLANE_BEGIN_ values only");
  int code = 0;
  auto* const engine = planner_of(copier, code);
  if (engine == nullptr) return code;
  std::vector<transfer> list;
  if ((code = take_all(given, count, list)) != 0) return code;
  auto made = std::make_shared<owned_completion>(copier);
  auto begun = engine->begin(list, {(flags & PEERLANE_BEGIN_AFTER_STREAM) != 0, static_cast<pl::cu::stream_t>(stream)});
  if (!begun) return fail(begun.error());
  made->value = *std::move(begun);
  *completion = static_cast<peerlane_completion_t>(completions::instance().add(std::move(made)));
  return 0;
}
PL_NO_EXCEPTIONS

template <class Act>
static int with_completion(peerlane_completion_t handle, Act&& act) try {
  const pl::errno_keeper keeper;
  const auto found = completions::instance().find(handle);
  if (found == nullptr) return fail(EINVAL, kDead);
  if (found->owner->epoch != pl::process_epoch()) return fail(EACCES, kForeign);
  return act(found->value);
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_completion_test(peerlane_completion_t completion, int* done) {
  if (done == nullptr) return fail(EINVAL, kNullPointer);
  return with_completion(completion, [&](pl::copy::completion& operation) {
    auto state = operation.test();
    if (!state) return fail(state.error());
    *done = *state ? 1 : 0;
    return 0;
  });
}

PL_EXPORT int peerlane_completion_wait(peerlane_completion_t completion) {
  return with_completion(completion, [](pl::copy::completion& operation) { return return_code(operation.wait()); });
}

PL_EXPORT int peerlane_completion_make_wait(peerlane_completion_t completion, void* stream) {
  return with_completion(completion, [&](pl::copy::completion& operation) {
    return return_code(operation.make_wait(static_cast<pl::cu::stream_t>(stream)));
  });
}

PL_EXPORT int peerlane_completion_record(peerlane_completion_t completion, void* event) {
  return with_completion(completion, [&](pl::copy::completion& operation) {
    return return_code(operation.record(static_cast<pl::cu::event_t>(event)));
  });
}

PL_EXPORT int peerlane_completion_free(peerlane_completion_t completion) {
  const int code =
      with_completion(completion, [](pl::copy::completion& operation) { return return_code(operation.wait()); });
  if (code != EACCES) completions::instance().remove(completion);
  return code;
}

// ---- Control -------------------------------------------------------------------------------------------------------------

PL_EXPORT int peerlane_copier_prepare(peerlane_copier_t copier, int device_ordinal) try {
  const pl::errno_keeper keeper;
  int code = 0;
  auto* const engine = planner_of(copier, code);
  return engine != nullptr ? return_code(engine->prepare(device_ordinal)) : code;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copier_keep_hot(peerlane_copier_t copier, int device_ordinal, peerlane_hold_t* hold) try {
  const pl::errno_keeper keeper;
  if (hold == nullptr) return fail(EINVAL, kNullPointer);
  int code = 0;
  auto* const engine = planner_of(copier, code);
  if (engine == nullptr) return code;
  auto held = engine->keep_hot(device_ordinal);
  if (!held) return fail(held.error());
  auto made = std::make_shared<owned_hold>(copier, *std::move(held));
  *hold = static_cast<peerlane_hold_t>(static_cast<void*>(holds::instance().add(std::move(made))));
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copier_let_go(peerlane_hold_t hold) {
  const pl::errno_keeper keeper;
  return holds::instance().remove(hold) != nullptr ? 0 : fail(EINVAL, kDead);
}

template <class Register>
static int register_by(peerlane_copier_t copier, peerlane_registration_t* handle, Register&& act) try {
  const pl::errno_keeper keeper;
  if (handle == nullptr) return fail(EINVAL, kNullPointer);
  int code = 0;
  auto* const engine = planner_of(copier, code);
  if (engine == nullptr) return code;
  auto kept = act(*engine);
  if (!kept) return fail(kept.error());
  auto made = std::make_shared<owned_registration>(copier, *std::move(kept));
  *handle = static_cast<peerlane_registration_t>(registrations::instance().add(std::move(made)));
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copier_register(peerlane_copier_t copier, uint64_t device_ptr, size_t bytes,
                                       peerlane_registration_t* handle) {
  return register_by(copier, handle, [&](planner& engine) { return engine.register_memory(device_ptr, bytes); });
}

PL_EXPORT int peerlane_copier_register_host(peerlane_copier_t copier, void* pointer, size_t bytes, int device_ordinal,
                                            peerlane_registration_t* handle) {
  return register_by(copier, handle,
                     [&](planner& engine) { return engine.register_host_memory(pointer, bytes, device_ordinal); });
}

PL_EXPORT int peerlane_copier_unregister(peerlane_registration_t handle) {
  const pl::errno_keeper keeper;
  return registrations::instance().remove(handle) != nullptr ? 0 : fail(EINVAL, kDead);
}

PL_EXPORT int peerlane_copier_trim(peerlane_copier_t copier) try {
  const pl::errno_keeper keeper;
  int code = 0;
  auto* const engine = planner_of(copier, code);
  if (engine == nullptr) return code;
  engine->trim();
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copier_explain(peerlane_copier_t copier, uint32_t way, int pageable, size_t bytes, char* text,
                                      size_t capacity, size_t* needed) try {
  const pl::errno_keeper keeper;
  if (text == nullptr && capacity != 0) return fail(EINVAL, kNullPointer);
  if (way > PEERLANE_ON_DEVICE) return fail(EINVAL, "the direction is none of PEERLANE_TO_DEVICE, _TO_HOST, _ON_DEVICE");
  int code = 0;
  auto* const engine = planner_of(copier, code);
  if (engine == nullptr) return code;
  using pl::copy::other_side;
  const bool on_device = way == PEERLANE_ON_DEVICE;
  const auto side = on_device ? (pageable != 0 ? other_side::peer_gpu : other_side::same_gpu)
                              : (pageable != 0 ? other_side::pageable : other_side::pinned);
  const std::string words = pl::copy::explain(engine->costs(), engine->costs_origin(), static_cast<direction>(way), side,
                                              engine->best_executor(), bytes);
  return pl::give_text(words, text, capacity, needed);
}
PL_NO_EXCEPTIONS
