// SPDX-License-Identifier: Apache-2.0
#include "copy/planner.hpp"

#include <algorithm>

#include "arch/copy_dispatch.hpp"
#include "base/clock.hpp"
#include "base/cpu_share.hpp"
#include "base/env.hpp"
#include "base/live_counter.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "copy/calibration.hpp"
#include "copy/completion.hpp"
#include "copy/cpu_copy.hpp"
#include "copy/planner_impl.hpp"
#include "os/fork_guard.hpp"

namespace pl::copy {
namespace {

failure bad(const char* role, std::uint64_t address, std::uint64_t bytes, const std::string& reason) {
  return {EINVAL, format("the %s 0x%llx of %llu bytes: %s", role, static_cast<unsigned long long>(address),
                         static_cast<unsigned long long>(bytes), reason.c_str())};
}

// Bytes from the first to the last one that rows touch. Nothing if that overflows.
std::optional<std::uint64_t> extent(std::size_t rows, std::size_t pitch, std::size_t row_bytes) {
  const auto all_but_last = checked_mul(rows - 1, pitch);
  return all_but_last ? checked_add(*all_but_last, row_bytes) : std::nullopt;
}

// Rows without a gap on either side are a plain copy, which more methods support.
std::optional<transfer> flatten(const transfer& transfer) {
  if (transfer.rows <= 1 || !transfer.is_linear()) return std::nullopt;
  const auto bytes = checked_mul(transfer.rows, transfer.row_bytes);
  if (!bytes) return std::nullopt;
  return copy::transfer{transfer.way, transfer.dst, transfer.src, *bytes};
}

std::atomic<std::uint32_t> g_planners{1};

constexpr unsigned kRequestsBeforeOpening = 4;  // opening takes about 5 ms: not for a program that copies twice

}  // namespace

// ---- Life ------------------------------------------------------------------------------------------------------------

planner::planner(const cu::driver_table& cuda, const options& wanted, cost_table costs, std::string origin)
    : cuda_(cuda),
      options_(wanted),
      costs_(std::move(costs)),
      costs_origin_(std::move(origin)),
      threads_(wanted.threads != 0 ? wanted.threads : half_of_cpus(1, 8)),
      epoch_(claim_process_epoch()),
      serial_(g_planners.fetch_add(1, std::memory_order_relaxed)),
      uses_channels_(wanted.channels == channel_use::always ||
                     (wanted.channels == channel_use::on_real_gpus && !cuda.is_simulated)),
      orders_by_channel_(uses_channels_ && is_on(wanted.stream_order, cuda.is_simulated)),
      has_rings_(uses_channels_ && is_on(wanted.rings, cuda.is_simulated)),
      best_executor_(!uses_channels_     ? (wanted.use_engine ? executor::kernel : executor::none)
                     : wanted.use_engine ? executor::both
                                         : executor::channel),
      maps_(wanted.maps) {}

planner::options planner::options_from_environment() {
  options out;
  out.maps.backend = env_read("PEERLANE_BACKEND").text;
  const std::string engine = env_read("PEERLANE_COPY_ENGINE").text;
  out.use_engine = engine == "auto" || engine == "1" || engine == "kernel";
  out.channels = channel_use_from_environment();
  out.rings = trial_from_environment("PEERLANE_DMA_RINGS", trial::always);
  out.stream_order = trial_from_environment("PEERLANE_DMA_STREAM_ORDER", trial::simulated);
  out.peer_access = env_read("PEERLANE_COPY_PEER_ACCESS").integer != 0;
  const auto lease = env_read("PEERLANE_COPY_LEASE_US").integer;
  if (lease >= 20 && lease <= 1'000'000) out.engine.lease_us = static_cast<unsigned>(lease);
  const auto threads = env_read("PEERLANE_COPY_THREADS").integer;
  if (threads >= 0 && threads <= 64) out.threads = static_cast<unsigned>(threads);
  return out;
}

result<std::unique_ptr<planner>> planner::open(const cu::driver_table& cuda, const options& wanted) {
  publish_live_counters();
  auto found = find_costs(cuda, wanted.costs);
  if (!found) return found.error();
  // A calibration that was made with rings states their cost, not that they are wanted here.
  const bool has_rings = wanted.channels != channel_use::never && is_on(wanted.rings, cuda.is_simulated);
  if (!has_rings) found->table = found->table.drop_method(method::dma_ring);
  std::unique_ptr<planner> made(new planner(cuda, wanted, std::move(found->table), std::move(found->origin)));
  worker_pool::options pool;
  pool.helpers = made->threads_ - 1;
  pool.cpus = cpus_near_device(cuda, 0);
  made->shared_ = std::make_unique<shared>(std::move(pool));
  if (cuda.is_simulated) {
    // Its threads share the CPUs with the copying ones, and its clock is not a GPU's.
    made->options_.engine.shape = {std::min(wanted.engine.shape.workers, 2u), 4};
    made->options_.engine.lease_us = std::max(wanted.engine.lease_us, 5000u);
  }
  return made;
}

planner::~planner() {
  if (shared_ == nullptr) return;
  if (!is_mine()) {
    // In a forked child, threads, pinned memory and mappings are the parent's.
    (void)shared_.release();
    return;
  }
  {
    const std::lock_guard lock(shared_->queue_mutex);
    shared_->stop = true;
    shared_->queue_changed.notify_all();
  }
  if (shared_->runner.joinable()) shared_->runner.join();
  for (auto& range : shared_->ranges) range.clear();
  for (auto& range : shared_->host_ranges) range.clear();
}

failure planner::wrong_process() {
  return {EACCES, "this planner belongs to the parent process: CUDA does not work in a forked child, start it by exec"};
}

bool planner::is_mine() const noexcept { return process_epoch() == epoch_; }

// ---- Looking at addresses ---------------------------------------------------------------------------------------------

status planner::inspect(const transfer& transfer, sides& ends, const cu::pointer_info* device) const {
  ends.way = transfer.way;
  if (!is_mine()) return wrong_process();
  if (transfer.rows > 1 && (transfer.dst_pitch < transfer.row_bytes || transfer.src_pitch < transfer.row_bytes))
    return failure{EINVAL, format("pitches of %zu and %zu bytes: rows of %zu bytes would overlap", transfer.dst_pitch,
                                  transfer.src_pitch, transfer.row_bytes)};
  const auto dst_bytes = extent(transfer.rows, transfer.dst_pitch, transfer.row_bytes);
  const auto src_bytes = extent(transfer.rows, transfer.src_pitch, transfer.row_bytes);
  if (!dst_bytes || !src_bytes || !checked_add(transfer.dst, *dst_bytes) || !checked_add(transfer.src, *src_bytes))
    return failure{EINVAL, "rows times pitch exceeds the address space"};

  const auto inspect_side = [&](const char* name, std::uint64_t address, std::uint64_t bytes,
                                cu::pointer_info& out) -> status {
    if (const auto* const known = registered(address, bytes); known != nullptr) {
      out = *known;
      return {};
    }
    auto info = device != nullptr ? result<cu::pointer_info>(*device) : cu::inspect_pointer(cuda_, address);
    if (!info) return failure{info.error().code, format("the %s: %s", name, info.error().message.c_str())};
    if (!info->allocation.contains({address, bytes}))
      return bad(name, address, bytes,
                 format("its allocation ends %llu bytes after its start",
                        static_cast<unsigned long long>(info->allocation.end() - address)));
    out = *info;
    return {};
  };
  if (transfer.way == direction::to_device) {
    if (transfer.src == 0) return bad("source", transfer.src, *src_bytes, "a null pointer");
    if (auto good = inspect_side("destination", transfer.dst, *dst_bytes, ends.device); !good) return good.error();
    return {};
  }
  if (transfer.way == direction::to_host) {
    if (transfer.dst == 0) return bad("destination", transfer.dst, *dst_bytes, "a null pointer");
    if (auto good = inspect_side("source", transfer.src, *src_bytes, ends.device); !good) return good.error();
    return {};
  }
  if (auto good = inspect_side("destination", transfer.dst, *dst_bytes, ends.device); !good) return good.error();
  if (auto good = inspect_side("source", transfer.src, *src_bytes, ends.source); !good) return good.error();
  ends.other = ends.device.device_ordinal == ends.source.device_ordinal ? other_side::same_gpu : other_side::peer_gpu;
  ends.other_is_known = true;
  return {};
}

void planner::inspect_other(const transfer& transfer, sides& ends) const {
  if (ends.other_is_known) return;
  const bool to_host = transfer.way == direction::to_host;
  const std::uint64_t address = to_host ? transfer.dst : transfer.src;
  const auto bytes = extent(transfer.rows, to_host ? transfer.dst_pitch : transfer.src_pitch, transfer.row_bytes);
  if (!find_registered_host(address, *bytes, ends.host)) {
    const gpu_context context{&cuda_, ends.device.device_ordinal, ends.device.context};
    ends.host = inspect_host(cuda_, host_pointer(address), *bytes, ends.device.context != nullptr ? &context : nullptr);
  }
  ends.other = ends.host.is_pinned ? other_side::pinned : other_side::pageable;
  ends.other_is_known = true;
}

// A thread's cache for the planner that it used last. On the heap, because thread-local storage of the libraries is
// limited (registry.cpp says why).
struct planner::thread_memory {
  struct {
    const planner* owner = nullptr;
    cu::context_t handle = nullptr;
    unsigned long long id = 0;
    std::uint32_t serial = 0;
    gpu_state* state = nullptr;
  } last_state;
  struct {
    std::uint32_t serial = 0;
    shared::counter_block* block = nullptr;
  } counters;
};

struct planner::thread_memory_holder {
  thread_memory* memory = nullptr;
  constexpr thread_memory_holder() = default;
  ~thread_memory_holder() { delete memory; }
};
thread_local constinit planner::thread_memory_holder planner::t_memory;

planner::thread_memory& planner::this_thread() {
  if (t_memory.memory == nullptr) [[unlikely]]
    t_memory.memory = new thread_memory;
  return *t_memory.memory;
}

// ---- Choosing ---------------------------------------------------------------------------------------------------------

result<gpu_state*> planner::state_of(const cu::pointer_info& device) {
  auto context = find_context(cuda_, device.device_ordinal, device.context);
  if (!context) return context.error();
  auto& t_last = this_thread().last_state;
  if (t_last.owner == this && t_last.handle == context->handle && t_last.id == context->id && t_last.serial == serial_)
    return t_last.state;
  const std::lock_guard lock(shared_->mutex);
  const auto known = shared_->states.find(context->handle);
  if (known == shared_->states.end() || known->second->context.id != context->id) shared_->release_destroyed();
  auto& slot = shared_->states[context->handle];
  if (slot == nullptr) slot = std::make_unique<gpu_state>(*context, shared_->pool);
  t_last = {this, context->handle, context->id, serial_, slot.get()};
  return slot.get();
}

result<gpu_state*> planner::state_for(sides& ends) {
  if (ends.state != nullptr) return ends.state;
  auto found = state_of(ends.device);
  if (found) ends.state = *found;
  return found;
}

// Which executor would take a copy now. If channels work, the copy kernel is never started here: it takes room from the
// application's own kernels, and delays cudaFree. With keep_hot, the better of both is used.
executor planner::find_executor(sides& ends) {
  if (find_channels(ends) == nullptr) {
    const bool may_have_channels = uses_channels_ && ends.state != nullptr && !ends.state->are_channels_refused();
    return !may_have_channels && engine_is_hot(ends) ? executor::kernel : executor::none;
  }
  gpu_engine* const kernel = options_.use_engine && ends.state != nullptr ? ends.state->open_engine() : nullptr;
  return kernel != nullptr && kernel->is_hot() ? executor::both : executor::channel;
}

// The engine of the context's DMA channels. Repeated requests open it; null if it is not open yet, or cannot be opened.
dma_engine* planner::find_channels(sides& ends) {
  if (!uses_channels_) return nullptr;
  auto found = state_for(ends);
  return found ? find_channels(**found) : nullptr;
}

// The engine of the GPU whose channel takes lists.
dma_engine* planner::find_list_channels(const sides& ends) {
  if (!uses_channels_) return nullptr;
  auto found = state_of(ends.list_mover());
  return found ? find_channels(**found) : nullptr;
}

dma_engine* planner::find_channels(gpu_state& state) {
  if (auto* const open = state.open_channels()) return open;
  if (state.are_channels_refused()) return nullptr;
  if (state.wanted_count.fetch_add(1, std::memory_order_relaxed) + 1 < kRequestsBeforeOpening) return nullptr;
  auto opened = state.channels();
  return opened ? *opened : nullptr;
}

// Whether the GPU engine would take a copy now. If not, repeated requests start it.
bool planner::engine_is_hot(sides& ends) {
  if (!options_.use_engine) return false;
  auto found = state_for(ends);
  if (!found) return false;
  gpu_state& state = **found;
  auto* engine = state.open_engine();
  if (engine == nullptr) {
    if (state.is_engine_refused()) return false;
    if (state.wanted_count.fetch_add(1, std::memory_order_relaxed) + 1 < kRequestsBeforeOpening) return false;
    const std::lock_guard lock(shared_->mutex);
    auto maps = shared_->open_maps(cuda_, options_.maps.backend);
    if (!maps) return state.refuse_engine(maps.error()), false;
    auto opened = state.engine(**maps, options_.engine);
    if (!opened) return false;
    engine = *opened;
  }
  if (engine->is_hot()) return true;
  // A rare copy does not justify a launch; two within a lease do.
  const std::uint64_t now = ticks();
  const std::uint64_t before = state.wanted_ticks.exchange(now, std::memory_order_relaxed);
  if (now - before < ticks_per_ms() * options_.engine.lease_us / 1000) (void)engine->start();
  return false;
}

choice planner::choose(const transfer& transfer, sides& ends) {
  const std::size_t bytes = transfer.bytes();
  if (!transfer.is_linear()) return inspect_other(transfer, ends), choose_for_rows(transfer, ends);
  std::optional<executor> known;  // asked once, because each call counts as a request for the executor
  const auto present = [&] { return known ? *known : *(known = find_executor(ends)); };
  if (!ends.other_is_known) {
    // Registered memory is known without a driver call. For other memory one method is often good enough, pinned or
    // not.
    if (find_registered_host(ends.way == direction::to_host ? transfer.dst : transfer.src, bytes, ends.host)) {
      ends.other = other_side::pinned;
      ends.other_is_known = true;
    } else {
      // The executor is determined only if one could change the answer.
      choice without_query = costs_.pick_without_query(ends.way, best_executor_, bytes);
      if (without_query.width == 0 || needed_executor(without_query.kind) != executor::none)
        without_query = costs_.pick_without_query(ends.way, present(), bytes);
      if (without_query.width != 0) return without_query;
      inspect_other(transfer, ends);
    }
  }
  const choice best = costs_.pick(ends.way, ends.other, best_executor_, bytes);
  return needed_executor(best.kind) == executor::none ? best : costs_.pick(ends.way, ends.other, present(), bytes);
}

// Rows use fixed rules, because the curves are of plain copies. Loading a row costs the CPU one round trip; storing
// costs none.
choice planner::choose_for_rows(const transfer& transfer, sides& ends) {
  constexpr std::size_t kStoreBytes = 64u << 10;
  constexpr std::size_t kLoadRows = 2, kLoadRowBytes = 1u << 10;
  const std::size_t bytes = transfer.bytes();
  if (ends.way == direction::on_device) return {method::copy_engine, 1};
  if (ends.way == direction::to_device && bytes <= kStoreBytes) return {method::cpu_store, 1};
  if (ends.way == direction::to_host && transfer.rows <= kLoadRows && transfer.row_bytes <= kLoadRowBytes)
    return {method::cpu_load, 1};
  const bool fits_engine = bytes <= staging_area::kPieceBytes;
  const executor present = fits_engine ? find_executor(ends) : executor::none;
  if (is_available(method::dma_channel, present) && ends.other == other_side::pinned) return {method::dma_channel, 1};
  if (!is_available(method::engine_copy, present)) return {method::copy_engine, 1};
  if (ends.other == other_side::pinned) return {method::engine_copy, static_cast<std::uint8_t>(bytes > 65536 ? 4 : 1)};
  return ends.way == direction::to_host ? choice{method::engine_bounce, static_cast<std::uint8_t>(bytes > 65536 ? 4 : 1)}
                                        : choice{method::copy_engine, 1};
}

namespace {
// In the order of `method`; names as name_of(method) gives them.
live_pair g_copies[kMethods] = {
    {"copy.cpu_store.count", "copy.cpu_store.bytes"},     {"copy.cpu_load.count", "copy.cpu_load.bytes"},
    {"copy.cpu_relay.count", "copy.cpu_relay.bytes"},     {"copy.engine_low_latency.count", "copy.engine_low_latency.bytes"},
    {"copy.engine_copy.count", "copy.engine_copy.bytes"}, {"copy.engine_bounce.count", "copy.engine_bounce.bytes"},
    {"copy.copy_engine.count", "copy.copy_engine.bytes"}, {"copy.bounce.count", "copy.bounce.bytes"},
    {"copy.registered.count", "copy.registered.bytes"},   {"copy.dma_channel.count", "copy.dma_channel.bytes"},
    {"copy.dma_bounce.count", "copy.dma_bounce.bytes"},   {"copy.dma_ring.count", "copy.dma_ring.bytes"},
};
}  // namespace

void planner::count(method kind, std::size_t bytes, std::size_t copies) noexcept {
  auto& t_mine = this_thread().counters;
  if (t_mine.serial != serial_) [[unlikely]] {
    const std::lock_guard lock(shared_->counters_mutex);
    shared_->counters.push_back(std::make_unique<shared::counter_block>());
    t_mine = {serial_, shared_->counters.back().get()};
  }
  const auto add = [](std::atomic<std::uint64_t>& counter, std::uint64_t more) {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  };
  auto& counter = t_mine.block->taken[static_cast<std::size_t>(kind)];
  add(counter.copies, copies);
  add(counter.bytes, bytes);
  g_copies[static_cast<std::size_t>(kind)].add(bytes, copies);
}

void planner::count_refusal(const choice& option) noexcept {
  if (needed_executor(option.kind) != executor::none) shared_->engine_not_taken.fetch_add(1, std::memory_order_relaxed);
  else if (is_by_cpu(option.kind)) shared_->not_mapped.fetch_add(1, std::memory_order_relaxed);
}

status planner::run(const choice& option, const transfer& transfer, sides& ends) {
  switch (option.kind) {
    case method::cpu_store:
      return by_cpu_store(option, transfer, ends);
    case method::cpu_load:
      return by_cpu_load(option, transfer, ends);
    case method::cpu_relay:
      return by_cpu_relay(transfer, ends);
    case method::engine_low_latency:
      return by_low_latency(transfer, ends);
    case method::engine_copy:
      return by_engine_copy(option, transfer, ends);
    case method::engine_bounce:
      return by_engine_bounce(option, transfer, ends);
    case method::copy_engine:
      return by_copy_engine(transfer, ends);
    case method::dma_channel:
      return by_dma_channel(transfer, ends);
    case method::dma_bounce:
      return by_dma_bounce(transfer, ends);
    case method::dma_ring:
      return by_dma_ring(option, transfer, ends);
    case method::bounce:
      return by_bounce(option, transfer, ends);
    case method::registered: {
      auto state = state_for(ends);
      if (!state) return state.error();
      auto dma = (*state)->dma();
      if (!dma) return dma.error();
      return copy_registered(**dma, transfer);
    }
  }
  return failure{EINVAL, "no such copy method"};
}

// Unavailable methods return EAGAIN or ENOTSUP; whatever they wrote is written again by the next method.
status planner::run_or_fall_back(const transfer& transfer, sides& ends) {
  const choice first = choose(transfer, ends);
  auto done = run(first, transfer, ends);
  if (done) return count(first.kind, transfer.bytes()), status{};
  if (done.code() != EAGAIN && done.code() != ENOTSUP && first.kind != method::registered) return done;
  inspect_other(transfer, ends);
  count_refusal(first);
  if (needed_executor(first.kind) != executor::none) {
    const choice second =
        transfer.is_linear() ? costs_.pick(ends.way, ends.other, executor::none, transfer.bytes()) : choice{};
    done = run(second, transfer, ends);
    if (done) return count(second.kind, transfer.bytes()), status{};
    if (done.code() != EAGAIN && done.code() != ENOTSUP) return done;
    count_refusal(second);
  }
  done = by_copy_engine(transfer, ends);
  if (done) count(method::copy_engine, transfer.bytes());
  return done;
}

// ---- Calls --------------------------------------------------------------------------------------------------------------

status planner::copy(const transfer& transfer) { return copy_known(transfer, nullptr); }

status planner::copy(const transfer& transfer, const cu::pointer_info& device) {
  return copy_known(transfer, transfer.way == direction::on_device ? nullptr : &device);
}

status planner::copy_known(const transfer& transfer, const cu::pointer_info* device) {
  if (is_empty(transfer)) return {};
  if (const auto plain = flatten(transfer)) return copy_known(*plain, device);
  if (transfer.rows == 1 && copy_shortly(transfer, device)) return {};
  sides ends;
  if (auto good = inspect(transfer, ends, device); !good) return good;
  return run_or_fall_back(transfer, ends);
}

status planner::copy_by(const choice& option, const transfer& transfer) {
  if (is_empty(transfer)) return {};
  if (const auto plain = flatten(transfer)) return copy_by(option, *plain);
  sides ends;
  if (auto good = inspect(transfer, ends); !good) return good;
  const auto limits = limits_of(transfer.way, option);
  if (is_by_cpu(option.kind)) {
    const bool fits = option.kind == method::cpu_store  ? transfer.way == direction::to_device
                      : option.kind == method::cpu_load ? transfer.way == direction::to_host
                                                        : transfer.way == direction::on_device;
    if (!fits || transfer.bytes() > limits.most)
      return failure{ENOTSUP,
                     format("%s does not copy %zu bytes %s", name_of(option.kind), transfer.bytes(), name_of(transfer.way))};
  }
  auto done = run(option, transfer, ends);
  if (done) count(option.kind, transfer.bytes());
  return done;
}

// A fill costs as much as a copy within the GPU, for a channel and for CUDA.
bool planner::is_fill_for_channel(std::size_t bytes) const noexcept {
  const auto cost = [&](method kind) { return costs_.cost(direction::on_device, other_side::same_gpu, {kind, 1}, bytes); };
  return uses_channels_ && cost(method::dma_channel) < cost(method::copy_engine);
}

status planner::fill(std::uint64_t dst, unsigned char value, std::size_t bytes) {
  if (bytes == 0) return {};
  const transfer transfer{direction::to_device, dst, 1, bytes};  // the source is never read, but null would be refused
  sides ends;
  if (auto good = inspect(transfer, ends); !good) return good;
  const choice option = costs_.pick(direction::to_device, other_side::pinned, executor::none, bytes);
  if (option.kind == method::cpu_store) {
    if (auto place = reach(dst, bytes, ends.device)) {
      fill_parallel(shared_->pool, option.width, place->type, place->data, 0x0101010101010101u * value, bytes);
      return count(method::cpu_store, bytes), status{};
    }
    shared_->not_mapped.fetch_add(1, std::memory_order_relaxed);
  }
  if (is_fill_for_channel(bytes)) {
    if (auto* const channels = find_channels(ends)) {
      auto begun = channels->begin_fill(dst, value, bytes, ends.device);
      if (begun) return count(method::dma_channel, bytes), begun->wait();
      if (begun.code() != ENOTSUP && begun.code() != EAGAIN) return begun.error();
      count_refusal({method::dma_channel, 1});
    }
  }
  auto state = state_of(ends.device);
  if (!state) return state.error();
  auto dma = (*state)->dma();
  if (!dma) return dma.error();
  auto ticket = (*dma)->submit_fill(dst, value, bytes);
  if (!ticket) return ticket.error();
  count(method::copy_engine, bytes);
  return (*dma)->wait(*ticket);
}

status planner::prepare(int device_ordinal) {
  if (!is_mine()) return wrong_process();
  cu::pointer_info device;
  device.device_ordinal = device_ordinal;
  auto state = state_of(device);
  if (!state) return state.error();
  if (auto dma = (*state)->dma(); !dma) return dma.error();
  if (auto ring = (*state)->ring(); !ring) return ring.error();
  if (auto staging = (*state)->staging(); !staging) return staging.error();
  if (uses_channels_ && (*state)->channels()) return {};
  if (!options_.use_engine) return {};
  const std::lock_guard lock(shared_->mutex);
  if (auto maps = shared_->open_maps(cuda_, options_.maps.backend); maps)
    (void)(*state)->engine(**maps, options_.engine);  // without it, copies use another method
  return {};
}

result<gpu_engine::hold> planner::keep_hot(int device_ordinal) {
  if (!is_mine()) return wrong_process();
  cu::pointer_info device;
  device.device_ordinal = device_ordinal;
  auto state = state_of(device);
  if (!state) return state.error();
  gpu_engine* engine = nullptr;
  {
    const std::lock_guard lock(shared_->mutex);
    auto maps = shared_->open_maps(cuda_, options_.maps.backend);
    if (!maps) return failure{ENOTSUP, "the GPU engine needs a mapping of GPU memory: " + maps.error().message};
    auto opened = (*state)->engine(**maps, options_.engine);
    if (!opened) return opened.error();
    engine = *opened;
  }
  return engine->keep_hot();
}

void planner::trim() {
  maps_.trim(true);
  if (!is_mine()) return;
  const std::lock_guard lock(shared_->mutex);
  shared_->release_destroyed();
  for (const auto& [context, state] : shared_->states)
    if (auto* const channels = state->open_channels()) channels->trim();
}

planner::statistics planner::counts() const {
  statistics out;
  {
    const std::lock_guard lock(shared_->counters_mutex);
    for (const auto& block : shared_->counters)
      for (std::size_t i = 0; i < kMethods; ++i) {
        out.copies[i] += block->taken[i].copies.load(std::memory_order_relaxed);
        out.bytes[i] += block->taken[i].bytes.load(std::memory_order_relaxed);
      }
  }
  out.not_mapped = shared_->not_mapped.load(std::memory_order_relaxed);
  out.engine_not_taken = shared_->engine_not_taken.load(std::memory_order_relaxed);
  out.maps = maps_.counts();
  if (!is_mine()) return out;  // a thread of the parent may have held the lock at the fork
  const auto add = [&](const gpu_state& state) {
    const auto* const engine = state.open_engine();
    if (engine == nullptr) return;
    const auto one = engine->counts();
    out.engine.launches += one.launches;
    out.engine.low_latency += one.low_latency;
    out.engine.copies += one.copies;
    out.engine.lists += one.lists;
    out.engine.not_hot += one.not_hot;
    out.engine.all_busy += one.all_busy;
    out.engine.left += one.left;
    out.engine.never_started += one.never_started;
  };
  const std::lock_guard lock(shared_->mutex);
  for (const auto& [context, state] : shared_->states) add(*state);
  for (const auto& state : shared_->dead) add(*state);
  return out;
}

}  // namespace pl::copy
