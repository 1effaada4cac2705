// SPDX-License-Identifier: Apache-2.0
#include "copy/memory_exchange.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/shortage.hpp"

namespace pl::copy {

void memory_exchange::refuse(const char* subject, const failure& reason) {
  refusal_ = std::string(subject) + ": " + reason.message;
  PL_LOG(debug, "GPU memory between processes by DMA channel: %s", refusal_.c_str());
}

// ---- The owner

std::optional<memory_exchange::offer> memory_exchange::hand_over(const cu::pointer_info& gpu, address_range bytes) {
  if (gpu.buffer_id == 0) return std::nullopt;
  // A VMM reservation may hold several objects; the bytes must lie in one of them.
  address_range object = gpu.allocation;
  if (gpu.object.size_bytes != 0) {
    const std::uint64_t begin = std::max(object.begin, gpu.object.begin);
    object = {begin, std::min(object.end(), gpu.object.end()) - begin};
  }
  if (!object.contains(bytes)) return std::nullopt;
  const fd_memory_key key{gpu.buffer_id, gpu.block_id, object.begin};
  auto known = fd_memories_.find(key);
  if (known == fd_memories_.end()) {
    if (fd_memories_.size() >= kMaxFdMemories) make_room_for_fd_memory();
    handed made{++ids_, object.begin, 0, nullptr};
    auto space = gpus_.space();
    auto memory = space ? fd_memory::make(**space, *cuda_, object) : result<fd_memory>(space.error());
    if (memory) made.memory = std::make_shared<const fd_memory>(*std::move(memory));
    else refuse("it is not handed over", memory.error());
    if (!memory && is_shortage_or_full(memory.code())) return std::nullopt;  // the next message may find descriptors again
    known = fd_memories_.emplace(key, std::move(made)).first;
  }
  known->second.last_use = ++uses_;
  if (known->second.memory == nullptr) return std::nullopt;
  return offer{known->second.id, known->second.memory->place(), known->second.memory};
}

// Drops memory that is gone, or else the least recently used.
void memory_exchange::make_room_for_fd_memory() {
  std::erase_if(fd_memories_,
                [&](const auto& each) { return !cu::is_still_buffer(*cuda_, each.second.probe, std::get<0>(each.first)); });
  if (fd_memories_.size() < kMaxFdMemories) return;
  fd_memories_.erase(std::min_element(fd_memories_.begin(), fd_memories_.end(), [](const auto& one, const auto& other) {
    return one.second.last_use < other.second.last_use;
  }));
}

// ---- A peer

memory_exchange::route* memory_exchange::route_to(int device_ordinal) {
  const auto [place, is_new] = routes_.try_emplace(device_ordinal);
  route& way = place->second;
  if (is_new) {
    auto queues = gpus_.find(*cuda_, device_ordinal);
    if (!queues) {
      refuse("no DMA channels", queues.error());
      if (is_shortage_or_full(queues.code())) return routes_.erase(place), nullptr;
    } else {
      way.queues = *std::move(queues);
      const auto& source = way.queues->source();
      way.local = std::make_unique<channel_memory>(*cuda_, source.space, source.addresses);
    }
  }
  return way.queues != nullptr ? &way : nullptr;
}

std::shared_ptr<imported_memory> memory_exchange::import(const owner& exporter, int device_ordinal, const route& way) {
  const import_key key{exporter.rank, exporter.id, device_ordinal};
  if (const auto known = imported_.find(key); known != imported_.end()) {
    known->second->last_use = ++uses_;
    return known->second;
  }
  if (imported_.size() >= kMaxImported)
    imported_.erase(std::min_element(imported_.begin(), imported_.end(), [](const auto& one, const auto& other) {
      return one.second->last_use < other.second->last_use;
    }));
  auto made = std::make_shared<imported_memory>();
  made->last_use = ++uses_;
  bool is_final = true;  // false: what was short may be there for the next message
  const auto note = [&](const failure& reason) {
    refuse("another process's memory", reason);
    is_final = !is_shortage_or_full(reason.code);
  };
  auto pieces = fetch_fd_memory(exporter.pid, exporter.place);
  if (!pieces) note(pieces.error());
  for (std::size_t i = 0; pieces && i < pieces->size(); ++i) {
    const taken_piece& one = (*pieces)[i];
    auto bound = dma::import_region(way.queues->addresses(), one.region);
    if (!bound) {
      note(bound.error());
      made->pieces.clear();
      break;
    }
    made->is_on_peer |= bound->kind() == rm::channel_objects::memory_kind::peer;
    made->pieces.push_back({one.begin, *std::move(bound)});
  }
  if (is_final) imported_[key] = made;
  return made;
}

// From the owner's address on. Returns false if some of it was not imported.
bool memory_exchange::add_blocks(pull& made, std::uint64_t source, std::uint64_t bytes) {
  constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 30;
  std::size_t local = 0;
  std::uint64_t local_done = 0;
  while (bytes != 0) {
    const auto& pieces = made.source->pieces;
    const auto found = std::find_if(pieces.begin(), pieces.end(), [&](const imported_memory::piece& one) {
      return source >= one.begin && source - one.begin < one.bound.size_bytes();
    });
    if (found == pieces.end()) return false;
    const std::uint64_t inside = source - found->begin;
    const auto& target = made.local[local];
    const std::uint64_t length =
        std::min({bytes, found->bound.size_bytes() - inside, target.size_bytes - local_done, kMaxBlockBytes});
    made.blocks.push_back(
        {target.address + local_done, found->bound.address() + inside, static_cast<std::uint32_t>(length)});
    source += length;
    bytes -= length;
    local_done += length;
    if (local_done == target.size_bytes) ++local, local_done = 0;
  }
  return true;
}

std::optional<memory_exchange::pull> memory_exchange::prepare(const owner& exporter, std::uint64_t source,
                                                              const cu::pointer_info& target, std::uint64_t destination,
                                                              std::uint64_t bytes) {
  route* const way = route_to(target.device_ordinal);
  if (way == nullptr) return std::nullopt;
  pull made;
  made.queues = way->queues;
  made.source = import(exporter, target.device_ordinal, *way);
  if (made.source->pieces.empty()) return std::nullopt;
  for (std::uint64_t done = 0; done < bytes;) {
    auto info = std::optional(target);
    if (done != 0 && !(info = cu::find_device_memory(*cuda_, destination + done))) return std::nullopt;
    auto piece = way->local->find_device(*info, destination + done, bytes - done);
    if (!piece) {
      refuse("this process's memory", piece.error());
      return std::nullopt;
    }
    done += piece->size_bytes;
    made.local.push_back(*std::move(piece));
  }
  if (!add_blocks(made, source, bytes)) return std::nullopt;
  return made;
}

void memory_exchange::forget(int rank) {
  std::erase_if(imported_, [&](const auto& each) { return std::get<0>(each.first) == rank; });
}

}  // namespace pl::copy
