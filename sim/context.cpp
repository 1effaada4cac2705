// SPDX-License-Identifier: Apache-2.0
// Contexts: life cycle, the per-thread stack, ordering between the legacy stream and the others.
//
// The primary context of a device keeps its handle for the life of the process, as the real driver's mostly does; a
// handle of an ended context is recognised (context_is_destroyed) because the table no longer knows it.
#include "sim/context.hpp"

#include <algorithm>

#include "sim/capture.hpp"
#include "sim/settings.hpp"

namespace pl::sim {

PL_SIM_API cuDevicePrimaryCtxRetain(context_t* out, device_t ordinal);

namespace {

using context_table = handle_table<context, context_t, 1>;

struct primary_slot {
  context_t handle = nullptr;
  unsigned users = 0;
  unsigned flags = 0;
};

struct all_contexts {
  context_table table;
  std::mutex primary_mutex;
  std::map<int, primary_slot> primaries;
};

all_contexts& contexts() {
  static auto* const instance = new all_contexts;
  return *instance;
}

thread_local std::vector<context_t> t_stack;

context_t current() { return t_stack.empty() ? nullptr : t_stack.back(); }

context_ref make_context(device& gpu, unsigned flags, bool is_primary, context_t handle) {
  static std::atomic<unsigned long long> g_last_id{0};
  auto made = std::make_shared<context>();
  made->id = ++g_last_id;
  made->handle = handle != nullptr ? handle : contexts().table.new_handle();
  made->gpu = &gpu;
  made->flags = flags;
  made->is_primary = is_primary;
  made->legacy = std::make_shared<stream>(made->handle, made->fate, gpu.ordinal, stream_flag::standard, 0);
  assign_queue(*made, *made->legacy);
  contexts().table.assign(made->handle, made);
  return made;
}

// Ends everything that belongs to the context. Pending waits and kernels give up, queued work is dropped.
void end_context(const context_ref& ended) {
  ended->fate->stopped = true;
  ended->synchronize();
  for (const auto& gone : streams().remove_if([&](const stream& s) { return s.owner() == ended->handle; }))
    leave_capture(*gone);
  release_context_memory(ended->handle);
  release_context_events(ended->handle);
  release_context_modules(ended->handle);
}

constexpr unsigned kContextFlags = 0x7f;  // scheduling (0..7), map host, local memory resize, core dumps, sync memops

// At most one way to wait.
bool are_flags_valid(unsigned flags) {
  const unsigned scheduling = flags & 7;
  return (flags & ~kContextFlags) == 0 && (scheduling & (scheduling - 1)) == 0;
}

// The device of a primary context's handle, also after the context's end; null for other handles.
device* device_of_primary(context_t handle) {
  auto& all = contexts();
  const std::lock_guard lock(all.primary_mutex);
  for (const auto& [ordinal, slot] : all.primaries)
    if (handle != nullptr && slot.handle == handle) return find_device(ordinal);
  return nullptr;
}

}  // namespace

context_ref find_context(context_t handle) { return contexts().table.find(handle); }

stream_table& streams() {
  static auto* const instance = new stream_table;
  return *instance;
}

result_t context::synchronize() {
  std::vector<std::pair<std::shared_ptr<stream>, stream::ticket>> targets;
  {
    const std::lock_guard lock(mutex);
    targets.emplace_back(legacy, legacy->submitted());
    for (const auto& weak : streams)
      if (auto live = weak.lock()) targets.emplace_back(live, live->submitted());
  }
  for (const auto& [target, position] : targets) target->wait(position);
  return fate->error.load();
}

namespace {

std::atomic<bool> g_runtime_asked{false};

// A program of the CUDA runtime counts on its first cuda* call to make the device's primary context current. That call fails
// here, and what such a program does by the driver API should not fail with it.
context_t make_primary_current() {
  static const context_t primary = [] {
    context_t retained = nullptr;  // for the life of the process
    return cuDevicePrimaryCtxRetain(&retained, 0) == code::success ? retained : nullptr;
  }();
  if (primary != nullptr) t_stack.push_back(primary);
  return primary;
}

}  // namespace

void note_runtime() { g_runtime_asked = true; }

entry enter(context_t handle) {
  entry e;
  e.rc = check_initialized();
  if (e.rc != code::success) return e;
  if (handle == nullptr) handle = current();
  if (handle == nullptr && g_runtime_asked.load(std::memory_order_relaxed)) handle = make_primary_current();
  if (handle == nullptr) return e.rc = code::invalid_context, e;
  e.ctx = find_context(handle);
  e.rc = e.ctx == nullptr ? code::context_is_destroyed : e.ctx->fate->error.load();
  return e;
}

entry enter() { return enter(nullptr); }

bool has_current_context() { return current() != nullptr; }

stream_entry enter_stream(stream_t handle) {
  stream_entry s;
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) {
    auto e = enter();
    s.rc = e.rc;
    s.ctx = std::move(e.ctx);
    if (s.ctx != nullptr) s.target_stream = s.ctx->legacy;
    return s;
  }
  s.rc = check_initialized();
  if (s.rc != code::success) return s;
  s.target_stream = streams().find(handle);
  if (s.target_stream == nullptr) return s.rc = code::invalid_handle, s;
  auto e = enter(s.target_stream->owner());
  s.rc = e.rc;
  s.ctx = std::move(e.ctx);
  return s;
}

namespace {

const queue_settings& queues() {
  static const queue_settings settings = read_queue_settings();
  return settings;
}

std::atomic<std::uint64_t> g_waits_for_room{0};

void make_room(stream& target_stream) {
  const auto depth = queues().depth;
  if (depth == 0 || target_stream.has_room(depth)) return;
  ++g_waits_for_room;  // before the wait: it may be for ever
  target_stream.wait_for_room(depth);
}

void note_end(context& ctx, const std::shared_ptr<stream>& target_stream, engine runs_on, stream::ticket done) {
  if (queues().queues != 0)
    ctx.ends.insert_or_assign({target_stream->queue, runs_on}, stream::dependency{target_stream, done});
}

// Under ctx.mutex: what work on `on` must wait for.
std::vector<stream::dependency> dependencies(context& ctx, const std::shared_ptr<stream>& target_stream, engine runs_on) {
  std::vector<stream::dependency> after;
  if (const auto end = ctx.ends.find({target_stream->queue, runs_on}); end != ctx.ends.end())
    if (const auto& last = end->second;
        last.target_stream != target_stream && !last.target_stream->has_completed(last.position))
      after.push_back(last);
  if (target_stream != ctx.legacy) {
    if (target_stream->is_blocking() && !ctx.legacy->is_idle()) after.push_back({ctx.legacy, ctx.legacy->submitted()});
    return after;
  }
  std::erase_if(ctx.streams, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : ctx.streams)
    if (auto other = weak.lock(); other != nullptr && other->is_blocking() && !other->is_idle())
      after.push_back({other, other->submitted()});
  return after;
}

}  // namespace

void assign_queue(context& ctx, stream& made) {
  if (queues().queues != 0) made.queue = ctx.next_queue++ % queues().queues;
}

stream::ticket submit(const context_ref& ctx, const std::shared_ptr<stream>& target_stream, stream::action work, bool always,
                      engine runs_on) {
  const std::lock_guard submitting(ctx->submitting);
  make_room(*target_stream);
  const std::lock_guard lock(ctx->mutex);
  const auto done = target_stream->submit(dependencies(*ctx, target_stream, runs_on), std::move(work), always);
  note_end(*ctx, target_stream, runs_on, done);
  return done;
}

result_t enqueue(const stream_entry& s, int type, stream::action work, bool always, stream::ticket* queued) {
  result_t rc = code::success;
  if (capture_operation(s, type, work, rc)) return rc;
  if (s.target_stream == s.ctx->legacy) rc = refuse_while_capturing(s);
  if (rc != code::success) return rc;
  const auto runs_on = type == graph_node_type::memcpy ? engine::copy : engine::compute;
  const auto done = submit(s.ctx, s.target_stream, std::move(work), always, runs_on);
  if (queued != nullptr) *queued = done;
  return code::success;
}

result_t run_synchronously(const context_ref& ctx, const stream::action& work) {
  if (is_anything_captured())
    if (const auto rc = refuse_while_capturing({code::success, ctx, ctx->legacy}); rc != code::success) return rc;
  stream::ticket done = 0;
  bool is_claimed = false;
  {
    const std::lock_guard submitting(ctx->submitting);
    const std::lock_guard lock(ctx->mutex);
    auto after = dependencies(*ctx, ctx->legacy, engine::copy);
    is_claimed = after.empty() && ctx->legacy->try_claim(done);
    if (!is_claimed) done = ctx->legacy->submit(std::move(after), work, false);
    note_end(*ctx, ctx->legacy, engine::copy, done);
  }
  if (is_claimed) ctx->legacy->run_claimed(work);
  else ctx->legacy->wait(done);
  return ctx->fate->error.load();
}

// How often a call found its stream's queue full and blocked, since the process began.
PL_SIM_EXPORT unsigned long long peerlaneSimQueueWaits() { return g_waits_for_room.load(); }

// ---- driver calls ---------------------------------------------------------------------------------------------------

PL_SIM_API cuDevicePrimaryCtxRetain(context_t* out, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  device* gpu = find_device(ordinal);
  if (out == nullptr) return code::invalid_value;
  if (gpu == nullptr) return code::invalid_device;
  auto& all = contexts();
  const std::lock_guard lock(all.primary_mutex);
  auto& slot = all.primaries[ordinal];
  if (slot.users == 0) slot.handle = make_context(*gpu, slot.flags, true, slot.handle)->handle;
  ++slot.users;
  *out = slot.handle;
  return code::success;
}

PL_SIM_API cuDevicePrimaryCtxRelease_v2(device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (find_device(ordinal) == nullptr) return code::invalid_device;
  auto& all = contexts();
  context_ref ended;
  {
    const std::lock_guard lock(all.primary_mutex);
    auto& slot = all.primaries[ordinal];
    if (slot.users == 0) return code::invalid_context;
    if (--slot.users == 0) ended = all.table.remove(slot.handle);
  }
  if (ended != nullptr) end_context(ended);
  return code::success;
}

PL_SIM_API cuDevicePrimaryCtxReset_v2(device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  device* gpu = find_device(ordinal);
  if (gpu == nullptr) return code::invalid_device;
  auto& all = contexts();
  context_ref ended;
  {
    const std::lock_guard lock(all.primary_mutex);
    auto& slot = all.primaries[ordinal];
    if (slot.users == 0) return code::success;
    ended = all.table.remove(slot.handle);
    if (ended == nullptr) return code::success;
    // Holders of the handle keep it: it names a fresh context from now on.
    make_context(*gpu, slot.flags, true, slot.handle);
  }
  end_context(ended);
  return code::success;
}

PL_SIM_API cuDevicePrimaryCtxSetFlags_v2(device_t ordinal, unsigned flags) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (find_device(ordinal) == nullptr) return code::invalid_device;
  if (!are_flags_valid(flags)) return code::invalid_value;
  auto& all = contexts();
  const std::lock_guard lock(all.primary_mutex);
  auto& slot = all.primaries[ordinal];
  slot.flags = flags;
  if (auto live = find_context(slot.handle)) live->flags = flags;
  return code::success;
}

PL_SIM_API cuDevicePrimaryCtxGetState(device_t ordinal, unsigned* flags, int* active) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (find_device(ordinal) == nullptr) return code::invalid_device;
  if (flags == nullptr || active == nullptr) return code::invalid_value;
  auto& all = contexts();
  const std::lock_guard lock(all.primary_mutex);
  const auto& slot = all.primaries[ordinal];
  *flags = slot.flags;
  *active = slot.users != 0 ? 1 : 0;
  return code::success;
}

PL_SIM_API cuCtxCreate_v2(context_t* out, unsigned flags, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  device* gpu = find_device(ordinal);
  if (gpu == nullptr) return code::invalid_device;
  if (out == nullptr || !are_flags_valid(flags)) return code::invalid_value;
  *out = make_context(*gpu, flags, false, nullptr)->handle;
  t_stack.push_back(*out);
  return code::success;
}

// v3's and v4's parameters ask for execution affinity and the like; only "nothing special" exists here.
PL_SIM_API cuCtxCreate_v3(context_t* out, void* params, int count, unsigned flags, device_t ordinal) {
  if (params != nullptr || count != 0) return code::not_supported;
  return cuCtxCreate_v2(out, flags, ordinal);
}
PL_SIM_API cuCtxCreate_v4(context_t* out, void* params, unsigned flags, device_t ordinal) {
  if (params != nullptr) return code::not_supported;
  return cuCtxCreate_v2(out, flags, ordinal);
}

PL_SIM_API cuCtxDestroy_v2(context_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (handle == nullptr) return code::invalid_value;
  const auto found = find_context(handle);
  if (found == nullptr || found->is_primary) return code::invalid_context;
  const auto ended = contexts().table.remove(handle);
  if (ended == nullptr) return code::invalid_context;
  if (current() == handle) t_stack.pop_back();
  end_context(ended);
  return code::success;
}

PL_SIM_API cuCtxGetCurrent(context_t* out) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (out == nullptr) return code::invalid_value;
  *out = current();
  return code::success;
}

PL_SIM_API cuCtxSetCurrent(context_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  // A primary context that has ended can be made current; calls that use it then say that it is destroyed.
  if (handle != nullptr && find_context(handle) == nullptr && device_of_primary(handle) == nullptr)
    return code::invalid_context;
  if (!t_stack.empty()) t_stack.pop_back();
  if (handle != nullptr) t_stack.push_back(handle);
  return code::success;
}

PL_SIM_API cuCtxPushCurrent_v2(context_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (const auto rc = injected_failure("cuCtxPushCurrent_v2"); rc != code::success) return rc;
  if (handle == nullptr) return code::invalid_value;
  if (find_context(handle) == nullptr) return code::invalid_context;
  t_stack.push_back(handle);
  return code::success;
}

PL_SIM_API cuCtxPopCurrent_v2(context_t* out) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (t_stack.empty()) return code::invalid_context;
  if (out != nullptr) *out = t_stack.back();
  t_stack.pop_back();
  return code::success;
}

PL_SIM_API cuCtxGetDevice(device_t* out) {
  const auto e = enter();
  const device* const ended = e.rc == code::context_is_destroyed ? device_of_primary(current()) : nullptr;
  if (e.ctx == nullptr && ended == nullptr) return e.rc;
  if (out == nullptr) return code::invalid_value;
  if (ended != nullptr) return *out = ended->ordinal, code::success;
  *out = e.ctx->gpu->ordinal;
  return code::success;
}

PL_SIM_API cuCtxGetDevice_v2(device_t* out, context_t handle) {
  const auto e = enter(handle);
  if (e.ctx == nullptr) return e.rc;
  if (out == nullptr) return code::invalid_value;
  *out = e.ctx->gpu->ordinal;
  return code::success;
}

PL_SIM_API cuCtxGetFlags(unsigned* flags) {
  const auto e = enter();
  if (e.ctx == nullptr) return e.rc;
  if (flags == nullptr) return code::invalid_value;
  *flags = e.ctx->flags;
  return code::success;
}

PL_SIM_API cuCtxSetFlags(unsigned flags) {
  const auto e = enter();
  if (e.ctx == nullptr) return e.rc;
  if (!are_flags_valid(flags)) return code::invalid_value;
  e.ctx->flags = flags;
  return code::success;
}

PL_SIM_API cuCtxGetId(context_t handle, unsigned long long* id) {
  const auto e = enter(handle);
  if (e.ctx == nullptr) return e.rc;
  if (id == nullptr) return code::invalid_value;
  *id = e.ctx->id;
  return code::success;
}

PL_SIM_API cuCtxSynchronize_v2(context_t handle) {
  const auto e = enter(handle);
  if (!e) return e.rc;
  if (const auto rc = refuse_while_capturing(*e.ctx); rc != code::success) return rc;
  return e.ctx->synchronize();
}

PL_SIM_API cuCtxSynchronize() { return cuCtxSynchronize_v2(nullptr); }

PL_SIM_API cuCtxGetApiVersion(context_t handle, unsigned* version) {
  const auto e = enter(handle);
  if (e.ctx == nullptr) return e.rc;
  if (version == nullptr) return code::invalid_value;
  *version = 3020;  // what every context made by cuCtxCreate_v2 or later reports
  return code::success;
}

PL_SIM_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  const auto e = enter();
  if (!e) return e.rc;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return code::success;
}

namespace {

// Stack size, printf fifo, heap, device runtime's depth and launches, L2 fetch, persisting L2, shared memory, three of CIG.
// What compute capability 9.0 does not have is unsupported.
constexpr std::size_t kNoLimit = ~std::size_t{0};
constexpr std::size_t kDefaultLimits[] = {1024, 1 << 20, 8 << 20, kNoLimit, 2048, 64, 0, kMaxSharedBytes, 0, kNoLimit};

result_t check_limit(int limit) {
  if (limit < 0 || limit >= static_cast<int>(std::size(kDefaultLimits))) return code::invalid_value;
  return kDefaultLimits[limit] == kNoLimit ? code::unsupported_limit : code::success;
}

}  // namespace

PL_SIM_API cuCtxGetLimit(std::size_t* value, int limit) {
  const auto e = enter();
  if (!e) return e.rc;
  if (value == nullptr) return code::invalid_value;
  if (const auto rc = check_limit(limit); rc != code::success) return rc;
  const std::lock_guard lock(e.ctx->mutex);
  const auto set = e.ctx->limits.find(limit);
  *value = set != e.ctx->limits.end() ? set->second : kDefaultLimits[limit];
  return code::success;
}

PL_SIM_API cuCtxSetLimit(int limit, std::size_t value) {
  const auto e = enter();
  if (!e) return e.rc;
  if (const auto rc = check_limit(limit); rc != code::success) return rc;
  const std::lock_guard lock(e.ctx->mutex);
  e.ctx->limits[limit] = value;
  return code::success;
}

PL_SIM_API cuCtxGetCacheConfig(int* config) {
  const auto e = enter();
  if (!e) return e.rc;
  if (config == nullptr) return code::invalid_value;
  *config = 0;
  return code::success;
}

PL_SIM_API cuCtxSetCacheConfig(int) { return enter().rc; }

PL_SIM_API cuCtxEnablePeerAccess(context_t peer, unsigned flags) {
  const auto e = enter();
  if (!e) return e.rc;
  const auto other = find_context(peer);
  if (other == nullptr) return code::invalid_context;
  if (other->gpu == e.ctx->gpu) return code::peer_access_unsupported;
  if (flags != 0) return code::invalid_value;
  const unsigned bit = 1u << other->gpu->ordinal;
  return (e.ctx->peers.fetch_or(bit) & bit) != 0 ? code::peer_access_already_enabled : code::success;
}

PL_SIM_API cuCtxDisablePeerAccess(context_t peer) {
  const auto e = enter();
  if (!e) return e.rc;
  const auto other = find_context(peer);
  if (other == nullptr) return code::invalid_context;
  const unsigned bit = 1u << other->gpu->ordinal;
  return (e.ctx->peers.fetch_and(~bit) & bit) != 0 ? code::success : code::peer_access_not_enabled;
}

}  // namespace pl::sim
