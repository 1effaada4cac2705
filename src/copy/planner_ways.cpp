// SPDX-License-Identifier: Apache-2.0
// The planner's methods, one function each. EAGAIN: not available now; ENOTSUP: not for these addresses or this size.
#include <algorithm>
#include <cstring>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"
#include "copy/cpu_copy.hpp"
#include "copy/planner_impl.hpp"

namespace pl::copy {
namespace {

failure not_for(const choice& option, const char* reason) {
  return {ENOTSUP, format("%s: %s", to_text(option).c_str(), reason)};
}

// Copies rows that are packed in `dense` to their places in host memory.
void spread_rows(const transfer& transfer, const std::byte* dense) {
  for (std::size_t row = 0; row < transfer.rows; ++row)
    std::memcpy(host_pointer(transfer.dst + row * transfer.dst_pitch), dense + row * transfer.row_bytes, transfer.row_bytes);
}

// A mapping failure does not fail the copy: another method takes it.
failure not_mapped(const failure& reason) { return {ENOTSUP, reason.message}; }

}  // namespace

char* planner::find_registered(std::uint64_t pointer, std::size_t bytes, arch::mapping_type& type,
                               const cu::pointer_info** info) const noexcept {
  const unsigned used = shared_->ranges_used.load(std::memory_order_acquire);
  for (unsigned i = 0; i < used; ++i) {
    if (char* const found = shared_->ranges[i].find(pointer, bytes, type)) {
      // No race: the application does not end this range while it is copied.
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

// The fast path for plain copies that one CPU thread does best whatever the host memory is; registered host memory is
// not looked up. Returns false if it is not such a copy, or if it failed: the general path then reports the error.
// `device_info`: the driver's attributes of the device side; null: they are queried.
bool planner::copy_shortly(const transfer& transfer, const cu::pointer_info* device_info) {
  if (transfer.way == direction::on_device) return false;
  const bool to_device = transfer.way == direction::to_device;
  const choice option = costs_.pick_without_query(transfer.way, best_executor_, transfer.row_bytes);
  if (option != choice{to_device ? method::cpu_store : method::cpu_load, 1} || !is_mine()) return false;
  const std::uint64_t device = to_device ? transfer.dst : transfer.src;
  void* const host = host_pointer(to_device ? transfer.src : transfer.dst);
  if (host == nullptr) return false;
  const auto move = [&](arch::mapping_type type, char* data) {
    if (to_device) arch::copy_to(type, data, host, transfer.row_bytes);
    else arch::copy_from(type, host, data, transfer.row_bytes);
    count(option.kind, transfer.row_bytes);
    return true;
  };
  auto type = arch::mapping_type::none;
  if (char* const data = find_registered(device, transfer.row_bytes, type, nullptr)) return move(type, data);
  std::optional<cu::pointer_info> asked;
  if (device_info == nullptr) {
    asked = cu::find_device_memory(cuda_, device);
    if (!asked) return false;
    device_info = &*asked;
  }
  if (!device_info->allocation.contains({device, transfer.row_bytes})) return false;
  const auto place = maps_.find(cuda_, *device_info, device, transfer.row_bytes);
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

status planner::by_cpu_store(const choice& option, const transfer& transfer, const sides& ends) {
  if (transfer.rows == 1) {
    // A size that the mapping cache grants at any start address.
    const std::size_t most = static_cast<std::size_t>(options_.maps.window_bytes / 2);
    for (std::size_t done = 0; done < transfer.row_bytes;) {
      const std::size_t bytes = std::min(most, transfer.row_bytes - done);
      cu::pointer_info info = ends.device;
      if (done != 0) {
        auto now = cu::inspect_pointer(cuda_, transfer.dst + done);  // the next piece may be in another memory object
        if (!now) return now.error();
        info = *now;
      }
      auto place = reach(transfer.dst + done, bytes, info);
      if (!place) return not_mapped(place.error());
      write_parallel(shared_->pool, option.width, place->type, place->data, host_pointer(transfer.src + done), bytes);
      done += bytes;
    }
    return {};
  }
  auto place = reach(transfer.dst, (transfer.rows - 1) * transfer.dst_pitch + transfer.row_bytes, ends.device);
  if (!place) return not_mapped(place.error());
  for (std::size_t row = 0; row < transfer.rows; ++row)
    arch::copy_to_unfenced(place->type, place->data + row * transfer.dst_pitch,
                           host_pointer(transfer.src + row * transfer.src_pitch), transfer.row_bytes);
  arch::publish_to_device(place->type);
  return {};
}

status planner::by_cpu_load(const choice& option, const transfer& transfer, const sides& ends) {
  auto place = reach(transfer.src, (transfer.rows - 1) * transfer.src_pitch + transfer.row_bytes, ends.device);
  if (!place) return not_mapped(place.error());
  if (transfer.rows == 1 && option.width > 1) {
    read_parallel(shared_->pool, option.width, place->type, host_pointer(transfer.dst), place->data, transfer.row_bytes);
    return {};
  }
  for (std::size_t row = 0; row < transfer.rows; ++row)
    arch::copy_from(place->type, host_pointer(transfer.dst + row * transfer.dst_pitch),
                    place->data + row * transfer.src_pitch, transfer.row_bytes);
  return {};
}

status planner::by_cpu_relay(const transfer& transfer, const sides& ends) {
  if (transfer.rows != 1) return not_for({method::cpu_relay, 1}, "rows go by DMA");
  auto source = reach(transfer.src, transfer.row_bytes, ends.source);
  if (!source) return not_mapped(source.error());
  auto destination = reach(transfer.dst, transfer.row_bytes, ends.device);
  if (!destination) return not_mapped(destination.error());
  alignas(64) char passing[4096];
  for (std::size_t done = 0; done < transfer.row_bytes; done += sizeof passing) {
    const std::size_t bytes = std::min(sizeof passing, transfer.row_bytes - done);
    arch::copy_from(source->type, passing, source->data + done, bytes);
    arch::copy_to_unfenced(destination->type, destination->data + done, passing, bytes);
  }
  arch::publish_to_device(destination->type);
  return {};
}

// The engine itself reports whether it is hot when it gets a request.
result<gpu_engine*> planner::open_engine(sides& ends) {
  auto state = state_for(ends);
  if (!state) return state.error();
  auto* const engine = (*state)->open_engine();
  if (engine == nullptr)
    return failure{EAGAIN, "the GPU engine is not resident now: keep_hot() holds it, or use it more often than its lease"};
  return engine;
}

namespace {

failure not_taken() { return {EAGAIN, "the GPU engine did not take the copy: it is leaving or busy"}; }

status to_status(const result<gpu_engine::fate>& got) {
  if (!got) return got.error();
  if (*got != gpu_engine::fate::done) return not_taken();
  return {};
}

}  // namespace

status planner::by_low_latency(const transfer& transfer, sides& ends) {
  if (transfer.way != direction::to_host || transfer.rows != 1 || transfer.row_bytes > kLowLatencyBytes)
    return not_for({method::engine_low_latency, 1}, "carries single rows of at most 32 KiB to the host");
  auto engine = open_engine(ends);
  if (!engine) return engine.error();
  // The result of one bus round trip is there before the worker's first line (4 KiB: 2.47 us instead of 2.67, H200).
  constexpr std::size_t kHeadBytes = 1u << 10;
  cpu_place place;
  if (transfer.row_bytes >= 2 * kHeadBytes)
    if (auto reached = reach(transfer.src, kHeadBytes, ends.device)) place = *std::move(reached);
  return to_status((*engine)->read_low_latency(host_pointer(transfer.dst), transfer.src, transfer.row_bytes,
                                               {place.type, place.data, place.data != nullptr ? kHeadBytes : 0}));
}

status planner::by_engine_copy(const choice& option, const transfer& transfer, sides& ends) {
  inspect_other(transfer, ends);
  copy::transfer moved = transfer;
  if (ends.way == direction::on_device) {
    if (ends.other != other_side::same_gpu || ends.device.context != ends.source.context)
      return not_for(option, "both memories must be of one GPU and context");
  } else if (ends.other != other_side::pinned) {
    return not_for(option, "the host memory is not pinned");
  } else {
    (ends.way == direction::to_host ? moved.dst : moved.src) = ends.host.device_ptr;
  }
  if (transfer.bytes() > kMaxEngineBytes * 4) return not_for(option, "copies at most 16 MiB");
  auto engine = open_engine(ends);
  if (!engine) return engine.error();
  auto begun = (*engine)->begin_copy(moved, option.width);
  if (!begun) return begun.error();
  return to_status((*engine)->wait(*begun));
}

// To pageable memory: parts go to staging memory, from which the CPU copies each while the later ones still arrive.
status planner::by_engine_bounce(const choice& option, const transfer& transfer, sides& ends) {
  const std::size_t bytes = transfer.bytes();
  if (ends.way != direction::to_host || bytes > staging_area::kPieceBytes)
    return not_for(option, "carries at most 1 MiB to the host");
  auto engine = open_engine(ends);
  if (!engine) return engine.error();
  auto state = state_for(ends);
  if (!state) return state.error();
  auto area = (*state)->staging();
  if (!area) return area.error();
  auto piece = (*area)->borrow();
  if (!piece) return failure{EAGAIN, "other copies have all of the staging memory"};

  if (transfer.rows > 1) {
    copy::transfer dense = transfer;
    dense.dst = piece.device_address();
    dense.dst_pitch = transfer.row_bytes;
    auto begun = (*engine)->begin_copy(dense, option.width);
    if (!begun) return begun.error();
    if (auto done = to_status((*engine)->wait(*begun)); !done) {
      if (done.code() != EAGAIN) piece.forfeit();
      return done;
    }
    spread_rows(transfer, piece.data());
    return {};
  }
  constexpr std::size_t kMaxParts = 8;
  const std::size_t parts = std::min<std::size_t>({option.width, kMaxParts, (*engine)->workers()});
  const std::size_t share = ((bytes + parts - 1) / parts + 4095) / 4096 * 4096;
  std::array<gpu_engine::request, kMaxParts> begun;
  const std::size_t count = (bytes + share - 1) / share;
  std::size_t given = 0;
  status outcome;
  for (std::size_t i = 0; i < count; ++i) {
    // As many at a time as workers are free: a request keeps its worker until it has been waited for.
    for (; outcome && given < count; ++given) {
      const std::size_t begin = given * share;
      auto one = (*engine)->begin_copy(
          {direction::to_host, piece.device_address() + begin, transfer.src + begin, std::min(share, bytes - begin)}, 1);
      if (!one) return one.error();  // cannot happen: the size was checked
      if (one->is_refused()) break;
      begun[given] = *std::move(one);
    }
    if (given == i) break;  // none is in progress
    auto done = to_status((*engine)->wait(begun[i]));
    const std::size_t begin = i * share;
    if (done && outcome)
      std::memcpy(host_pointer(transfer.dst + begin), piece.data() + begin, std::min(share, bytes - begin));
    else if (!done && done.code() != EAGAIN) piece.forfeit();
    if (!done && (outcome || outcome.code() == EAGAIN)) outcome = std::move(done);
  }
  if (outcome && given < count) return not_taken();
  return outcome;
}

result<dma_engine::operation> planner::give_to_channel(const transfer& transfer, sides& ends) {
  inspect_other(transfer, ends);
  constexpr choice kMine{method::dma_channel, 1};
  if (!is_for_channels(ends.other)) return not_for(kMine, "takes pinned memory and that of GPUs");
  auto* const channels = find_channels(ends);
  if (channels == nullptr) return failure{EAGAIN, "the DMA channel is not open"};
  return channels->begin(transfer, sides_for_channel(ends));
}

status planner::by_dma_channel(const transfer& transfer, sides& ends) {
  auto begun = give_to_channel(transfer, ends);
  return begun ? begun->wait() : status(begun.error());
}

// To any host memory, through our own pinned memory, from which the CPU copies each line as it arrives. Rows pass
// through staging memory.
status planner::by_dma_bounce(const transfer& transfer, sides& ends) {
  constexpr choice kMine{method::dma_bounce, 1};
  const std::size_t bytes = transfer.bytes();
  if (ends.way != direction::to_host || bytes > staging_area::kPieceBytes)
    return not_for(kMine, "carries at most 1 MiB to the host");
  auto* const channels = find_channels(ends);
  if (channels == nullptr) return failure{EAGAIN, "the DMA channel is not open"};
  if (transfer.rows == 1) return channels->read(transfer, ends.device);
  auto state = state_for(ends);
  if (!state) return state.error();
  auto area = (*state)->staging();
  if (!area) return area.error();
  const auto piece = (*area)->borrow();
  if (!piece) return failure{EAGAIN, "other copies have all of the staging memory"};

  dma_engine::sides ends_of_staging = sides_for_channel(ends);
  ends_of_staging.host = &(*area)->host();
  copy::transfer dense = transfer;
  dense.dst = address_of(piece.data());
  dense.dst_pitch = transfer.row_bytes;
  auto begun = channels->begin(dense, ends_of_staging);
  if (!begun) return begun.error();
  if (auto done = begun->wait(); !done) return done;
  spread_rows(transfer, piece.data());
  return {};
}

status planner::by_dma_ring(const choice& option, const transfer& transfer, sides& ends) {
  if (transfer.rows != 1 || ends.way == direction::on_device)
    return not_for(option, "takes plain copies from and to the host");
  if (!has_rings_) return not_for(option, "PEERLANE_DMA_RINGS=off forbids it");
  if (find_channels(ends) == nullptr) return failure{EAGAIN, "the DMA channel is not open"};
  auto state = state_for(ends);
  if (!state) return state.error();
  auto ring = (*state)->channel_rings();
  if (!ring) return ring.error();
  return (*ring)->copy(transfer, ends.device, option.width);
}

// Without it, CUDA moves data between GPUs through host memory (38 GB/s instead of 380 over NVLink on H200).
// Applications with several GPUs mostly have it enabled already; it stays enabled. A failure does not stop the copy.
void planner::enable_peer_access(const sides& ends) {
  if (!options_.peer_access) return;
  auto source = find_context(cuda_, ends.source.device_ordinal, ends.source.context);
  auto destination = find_context(cuda_, ends.device.device_ordinal, ends.device.context);
  if (!source || !destination) return;
  const std::pair pair{source->id ^ (source->id == 0 ? address_of(source->handle) : 0),
                       destination->id ^ (destination->id == 0 ? address_of(destination->handle) : 0)};
  const std::lock_guard lock(shared_->peers_mutex);
  if (!shared_->peers.insert(pair).second) return;
  if (auto scope = context_use::enter(*source)) (void)cuda_.cuCtxEnablePeerAccess(destination->handle, 0);
}

status planner::by_copy_engine(const transfer& transfer, const sides& ends) {
  if (ends.other == other_side::peer_gpu) enable_peer_access(ends);
  // The sending side: a GPU's DMA engines write to a peer faster than they read from it.
  auto state = state_of(ends.way == direction::on_device ? ends.source : ends.device);
  if (!state) return state.error();
  auto dma = (*state)->dma();
  if (!dma) return dma.error();
  auto ticket = (*dma)->submit(transfer);
  if (!ticket) return ticket.error();
  return (*dma)->wait(*ticket);
}

status planner::by_bounce(const choice& option, const transfer& transfer, sides& ends) {
  if (transfer.rows != 1 || ends.way == direction::on_device)
    return not_for(option, "takes plain copies from and to the host");
  auto state = state_for(ends);
  if (!state) return state.error();
  auto ring = (*state)->ring();
  if (!ring) return ring.error();
  return ends.way == direction::to_host
             ? (*ring)->to_host(host_pointer(transfer.dst), transfer.src, transfer.row_bytes, option.width)
             : (*ring)->to_device(transfer.dst, host_pointer(transfer.src), transfer.row_bytes, option.width);
}

}  // namespace pl::copy
