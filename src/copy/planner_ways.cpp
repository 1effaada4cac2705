// SPDX-License-Identifier: Apache-2.0
// How the planner has each executor do a copy. EAGAIN: not open now; ENOTSUP: not for these addresses or this size.
#include <algorithm>
#include <cstring>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"
#include "copy/cpu_copy.hpp"
#include "copy/planner_impl.hpp"

namespace pl::copy {
namespace {

failure not_for(const choice& how, const char* why) { return {ENOTSUP, format("%s: %s", to_text(how).c_str(), why)}; }

// Whatever kept the memory from being mapped is no reason not to copy.
failure not_mapped(const failure& why) { return {ENOTSUP, why.message}; }

}  // namespace

char* planner::find_registered(std::uint64_t pointer, std::size_t bytes, arch::mapping_type& type,
                               const cu::pointer_info** info) const noexcept {
  const unsigned used = shared_->ranges_used.load(std::memory_order_acquire);
  for (unsigned i = 0; i < used; ++i) {
    if (char* const found = shared_->ranges[i].find(pointer, bytes, type)) {
      // No longer a race: this range is not ended while it is copied.
      if (info != nullptr) *info = &shared_->ranges[i].info();
      return found;
    }
  }
  return nullptr;
}

const cu::pointer_info* planner::registered(std::uint64_t pointer, std::size_t bytes) const noexcept {
  auto type = arch::mapping_type::none;
  const cu::pointer_info* info = nullptr;
  return find_registered(pointer, bytes, type, &info) != nullptr ? info : nullptr;
}

// Plain copies that one CPU thread does best whatever the host memory is: the same as the long way, with nothing on it that
// they do not need. Registered memory is not even looked at. False: not such a one, or it fails, which the long way words.
// `device_info`: what the driver said of the device side, null if it is to be asked.
bool planner::copy_shortly(const transfer& what, const cu::pointer_info* device_info) {
  if (what.way == direction::on_device) return false;
  const bool to_device = what.way == direction::to_device;
  const choice how = costs_.pick_unasked(what.way, true, what.row_bytes);
  if (how != choice{to_device ? method::cpu_store : method::cpu_load, 1} || !is_mine()) return false;
  const std::uint64_t device = to_device ? what.dst : what.src;
  void* const host = host_pointer(to_device ? what.src : what.dst);
  if (host == nullptr) return false;
  const auto move = [&](arch::mapping_type type, char* data) {
    if (to_device) arch::copy_to(type, data, host, what.row_bytes);
    else arch::copy_from(type, host, data, what.row_bytes);
    count(how.how, what.row_bytes);
    return true;
  };
  auto type = arch::mapping_type::none;
  if (char* const data = find_registered(device, what.row_bytes, type, nullptr)) return move(type, data);
  std::optional<cu::pointer_info> asked;
  if (device_info == nullptr) {
    asked = cu::find_device_memory(cuda_, device);
    if (!asked) return false;
    device_info = &*asked;
  }
  if (!device_info->allocation.contains({device, what.row_bytes})) return false;
  const auto place = maps_.find(cuda_, *device_info, device, what.row_bytes);
  return place && move(place->type, place->data);
}

result<planner::cpu_place> planner::reach(std::uint64_t pointer, std::size_t bytes, const cu::pointer_info& info) {
  cpu_place out;
  out.data = find_registered(pointer, bytes, out.type, nullptr);
  if (out.data != nullptr) return out;
  auto found = maps_.find(cuda_, info, pointer, bytes);
  if (!found) return found.error();
  out.kept = *std::move(found);
  out.data = out.kept.data;
  out.type = out.kept.type;
  return out;
}

status planner::by_cpu_store(const choice& how, const transfer& what, const sides& at) {
  if (what.rows == 1) {
    // Pieces that the mapping cache gives at once, whatever it begins with.
    const std::size_t most = static_cast<std::size_t>(options_.maps.window_bytes / 2);
    for (std::size_t done = 0; done < what.row_bytes;) {
      const std::size_t bytes = std::min(most, what.row_bytes - done);
      cu::pointer_info info = at.device;
      if (done != 0) {
        auto now = cu::inspect_pointer(cuda_, what.dst + done);  // the next piece may be of another memory object
        if (!now) return now.error();
        info = *now;
      }
      auto place = reach(what.dst + done, bytes, info);
      if (!place) return not_mapped(place.error());
      write_parallel(shared_->pool, how.width, place->type, place->data, host_pointer(what.src + done), bytes);
      done += bytes;
    }
    return {};
  }
  auto place = reach(what.dst, (what.rows - 1) * what.dst_pitch + what.row_bytes, at.device);
  if (!place) return not_mapped(place.error());
  for (std::size_t row = 0; row < what.rows; ++row)
    arch::copy_to_unfenced(place->type, place->data + row * what.dst_pitch, host_pointer(what.src + row * what.src_pitch),
                           what.row_bytes);
  arch::publish_to_device(place->type);
  return {};
}

status planner::by_cpu_load(const choice& how, const transfer& what, const sides& at) {
  auto place = reach(what.src, (what.rows - 1) * what.src_pitch + what.row_bytes, at.device);
  if (!place) return not_mapped(place.error());
  if (what.rows == 1 && how.width > 1) {
    read_parallel(shared_->pool, how.width, place->type, host_pointer(what.dst), place->data, what.row_bytes);
    return {};
  }
  for (std::size_t row = 0; row < what.rows; ++row)
    arch::copy_from(place->type, host_pointer(what.dst + row * what.dst_pitch), place->data + row * what.src_pitch,
                    what.row_bytes);
  return {};
}

status planner::by_cpu_relay(const transfer& what, const sides& at) {
  if (what.rows != 1) return not_for({method::cpu_relay, 1}, "rows go by DMA");
  auto from = reach(what.src, what.row_bytes, at.source);
  if (!from) return not_mapped(from.error());
  auto to = reach(what.dst, what.row_bytes, at.device);
  if (!to) return not_mapped(to.error());
  alignas(64) char passing[4096];
  for (std::size_t done = 0; done < what.row_bytes; done += sizeof passing) {
    const std::size_t bytes = std::min(sizeof passing, what.row_bytes - done);
    arch::copy_from(from->type, passing, from->data + done, bytes);
    arch::copy_to_unfenced(to->type, to->data + done, passing, bytes);
  }
  arch::publish_to_device(to->type);
  return {};
}

// Whether it is hot it says itself when it is given something.
result<gpu_engine*> planner::open_engine(sides& at) {
  auto state = state_for(at);
  if (!state) return state.error();
  auto* const engine = (*state)->open_engine();
  if (engine == nullptr)
    return failure{EAGAIN, "the GPU engine is not resident now: keep_hot() holds it, or use it more often than its lease"};
  return engine;
}

namespace {

failure not_taken() { return {EAGAIN, "the GPU engine did not take the copy: it is leaving or busy"}; }

status as_status(const result<gpu_engine::fate>& got) {
  if (!got) return got.error();
  if (*got != gpu_engine::fate::done) return not_taken();
  return {};
}

}  // namespace

status planner::by_low_latency(const transfer& what, sides& at) {
  if (what.way != direction::to_host || what.rows != 1 || what.row_bytes > kLowLatencyBytes)
    return not_for({method::engine_low_latency, 1}, "carries single rows of at most 32 KiB to the host");
  auto engine = open_engine(at);
  if (!engine) return engine.error();
  // What one round trip of the bus brings is there before the worker's first line (4 KiB: 2.47 us instead of 2.67, H200).
  constexpr std::size_t kHeadBytes = 1u << 10;
  cpu_place place;
  if (what.row_bytes >= 2 * kHeadBytes)
    if (auto reached = reach(what.src, kHeadBytes, at.device)) place = *std::move(reached);
  return as_status((*engine)->read_low_latency(host_pointer(what.dst), what.src, what.row_bytes,
                                               {place.type, place.data, place.data != nullptr ? kHeadBytes : 0}));
}

status planner::by_engine_copy(const choice& how, const transfer& what, sides& at) {
  inspect_other(what, at);
  transfer moved = what;
  if (at.way == direction::on_device) {
    if (at.other != other_side::same_gpu || at.device.context != at.source.context)
      return not_for(how, "both memories must be of one GPU and context");
  } else if (at.other != other_side::pinned) {
    return not_for(how, "the host memory is not pinned");
  } else {
    (at.way == direction::to_host ? moved.dst : moved.src) = at.host.device_ptr;
  }
  if (what.bytes() > kMostEngineBytes * 4) return not_for(how, "copies at most 16 MiB");
  auto engine = open_engine(at);
  if (!engine) return engine.error();
  auto begun = (*engine)->begin_copy(moved, how.width);
  if (!begun) return begun.error();
  return as_status((*engine)->wait(*begun));
}

// To pageable memory: parts to staging memory, each copied on by the CPU while the later ones are still coming.
status planner::by_engine_bounce(const choice& how, const transfer& what, sides& at) {
  const std::size_t bytes = what.bytes();
  if (at.way != direction::to_host || bytes > staging_area::kPieceBytes)
    return not_for(how, "carries at most 1 MiB to the host");
  auto engine = open_engine(at);
  if (!engine) return engine.error();
  auto state = state_for(at);
  if (!state) return state.error();
  auto area = (*state)->staging();
  if (!area) return area.error();
  auto piece = (*area)->borrow();
  if (!piece) return failure{EAGAIN, "other copies have all of the staging memory"};

  if (what.rows > 1) {
    transfer dense = what;
    dense.dst = piece.device_address();
    dense.dst_pitch = what.row_bytes;
    auto begun = (*engine)->begin_copy(dense, how.width);
    if (!begun) return begun.error();
    if (auto done = as_status((*engine)->wait(*begun)); !done) {
      if (done.code() != EAGAIN) piece.forfeit();
      return done;
    }
    for (std::size_t row = 0; row < what.rows; ++row)
      std::memcpy(host_pointer(what.dst + row * what.dst_pitch), piece.data() + row * what.row_bytes, what.row_bytes);
    return {};
  }
  constexpr std::size_t kMostParts = 8;
  const std::size_t parts = std::min<std::size_t>({how.width, kMostParts, (*engine)->workers()});
  const std::size_t share = ((bytes + parts - 1) / parts + 4095) / 4096 * 4096;
  std::array<gpu_engine::request, kMostParts> begun;
  const std::size_t count = (bytes + share - 1) / share;
  std::size_t given = 0;
  status outcome;
  for (std::size_t i = 0; i < count; ++i) {
    // As many at a time as there are workers free: a request keeps its worker until it has been waited for.
    for (; outcome && given < count; ++given) {
      const std::size_t from = given * share;
      auto one = (*engine)->begin_copy(
          {direction::to_host, piece.device_address() + from, what.src + from, std::min(share, bytes - from)}, 1);
      if (!one) return one.error();  // cannot be: the size was checked
      if (one->is_refused()) break;
      begun[given] = *std::move(one);
    }
    if (given == i) break;  // none is under way
    auto done = as_status((*engine)->wait(begun[i]));
    const std::size_t from = i * share;
    if (done && outcome) std::memcpy(host_pointer(what.dst + from), piece.data() + from, std::min(share, bytes - from));
    else if (!done && done.code() != EAGAIN) piece.forfeit();
    if (!done && (outcome || outcome.code() == EAGAIN)) outcome = std::move(done);
  }
  if (outcome && given < count) return not_taken();
  return outcome;
}

// Without it CUDA moves the data between the GPUs through host memory (38 GB/s instead of 380 over NVLink on H200).
// Applications with several GPUs mostly have it on already; it stays on. Failing is no reason not to copy.
void planner::enable_peer_access(const sides& at) {
  if (!options_.peer_access) return;
  auto from = find_context(cuda_, at.source.device_ordinal, at.source.context);
  auto to = find_context(cuda_, at.device.device_ordinal, at.device.context);
  if (!from || !to) return;
  const std::pair pair{from->id ^ (from->id == 0 ? address_of(from->handle) : 0),
                       to->id ^ (to->id == 0 ? address_of(to->handle) : 0)};
  const std::lock_guard lock(shared_->peers_mutex);
  if (!shared_->peers.insert(pair).second) return;
  if (auto scope = context_use::enter(*from)) (void)cuda_.cuCtxEnablePeerAccess(to->handle, 0);
}

status planner::by_copy_engine(const transfer& what, const sides& at) {
  if (at.other == other_side::peer_gpu) enable_peer_access(at);
  // The side that sends: a GPU's DMA engines write to a peer faster than they read from it.
  auto state = state_of(at.way == direction::on_device ? at.source : at.device);
  if (!state) return state.error();
  auto dma = (*state)->dma();
  if (!dma) return dma.error();
  auto ticket = (*dma)->submit(what);
  if (!ticket) return ticket.error();
  return (*dma)->wait(*ticket);
}

status planner::by_bounce(const choice& how, const transfer& what, sides& at) {
  if (what.rows != 1 || at.way == direction::on_device) return not_for(how, "takes plain copies from and to the host");
  auto state = state_for(at);
  if (!state) return state.error();
  auto ring = (*state)->ring();
  if (!ring) return ring.error();
  return at.way == direction::to_host ? (*ring)->to_host(host_pointer(what.dst), what.src, what.row_bytes, how.width)
                                      : (*ring)->to_device(what.dst, host_pointer(what.src), what.row_bytes, how.width);
}

}  // namespace pl::copy
