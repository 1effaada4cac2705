// SPDX-License-Identifier: Apache-2.0
#include "dma/address_space.hpp"

#include <unistd.h>

#include <bit>
#include <cerrno>
#include <utility>

#include "base/text.hpp"

namespace pl::dma {

using memory_kind = rm::channel_objects::memory_kind;

region::~region() {
  if (!space_) return;
  space_->objects_.unmap_dma(space_->virtual_memory_, memory_, address_);
  if (is_owner_) space_->objects_.owner().release(*owner_, memory_);
}

void region::swap(region& other) noexcept {
  std::swap(space_, other.space_);
  std::swap(owner_, other.owner_);
  std::swap(memory_, other.memory_);
  std::swap(is_owner_, other.is_owner_);
  std::swap(address_, other.address_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(offset_, other.offset_);
  std::swap(kind_, other.kind_);
}

result<std::shared_ptr<address_space>> address_space::open(rm::client& owner, const rm::gpu& target,
                                                           const std::string& driver_version) {
  auto objects = rm::channel_objects::open(owner, target, driver_version);
  if (!objects) return objects.error();
  std::shared_ptr<address_space> out(new address_space(std::move(*objects)));
  auto space = out->objects_.make_address_space();
  if (!space) return space.error();
  out->space_ = *space;
  auto range = out->objects_.make_virtual_memory(out->space_);
  if (!range) return range.error();
  out->virtual_memory_ = *range;
  auto doorbell = out->objects_.make_doorbell();
  if (!doorbell) return doorbell.error();
  out->doorbell_ = *doorbell;
  return out;
}

address_space::~address_space() {
  for (const rm::handle object : {doorbell_, virtual_memory_, space_})
    if (object != 0) objects_.release(object);
  for (const auto& [peer, link] : peers_)
    if (link) objects_.release(*link);
}

status address_space::reach(const rm::gpu& peer) {
  if (&peer == &objects_.device()) return {};
  const std::lock_guard lock(peers_mutex_);
  auto known = peers_.find(&peer);
  if (known == peers_.end()) {
    auto made = objects_.make_peer_link(peer);
    if (made.code() == ENOMEM) return made.error();  // may pass
    std::uint32_t none = 0;
    if (made) peer_engines_.compare_exchange_strong(none, objects_.peer_engines(peer));
    known = peers_.emplace(&peer, std::move(made)).first;
  }
  return known->second ? status() : status(known->second.error());
}

std::optional<unsigned> address_space::peer_engine() const noexcept {
  const std::uint32_t mask = peer_engines_.load();
  if (mask == 0) return std::nullopt;
  return static_cast<unsigned>(std::countr_zero(mask));
}

result<region> address_space::map(rm::handle memory, std::uint64_t offset, std::uint64_t length, memory_kind kind,
                                  const rm::gpu* owner) {
  if (kind == memory_kind::device && owner != nullptr && owner != &objects_.device()) {
    if (status reached = reach(*owner); !reached) return reached.error();
    kind = memory_kind::peer;
  }
  auto address = objects_.map_dma(virtual_memory_, memory, offset, length, kind);
  if (!address) return address.error();
  region out;
  out.space_ = shared_from_this();
  out.owner_ = owner != nullptr ? owner : &objects_.device();
  out.memory_ = memory;
  out.address_ = *address;
  out.size_bytes_ = length;
  out.offset_ = offset;
  out.kind_ = kind;
  return out;
}

result<region> address_space::bind(rm::handle memory, std::uint64_t offset, std::uint64_t length, memory_kind kind,
                                   const rm::gpu* owner) {
  auto made = map(memory, offset, length, kind, owner);
  if (!made) objects_.owner().release(owner != nullptr ? *owner : objects_.device(), memory);
  return made;
}

result<region> address_space::bind_import(rm::handle share, std::uint64_t offset, std::uint64_t length,
                                          const rm::gpu* owner) {
  return bind(share, offset, length, memory_kind::device, owner);
}

result<region> address_space::bind_object(rm::handle source_client, rm::handle source_object, std::uint64_t offset,
                                          std::uint64_t length, const rm::gpu* owner) {
  auto share = objects_.owner().duplicate(owner != nullptr ? *owner : objects_.device(), source_client, source_object);
  if (!share) return share.error();
  return bind(*share, offset, length, memory_kind::device, owner);
}

result<region> address_space::bind_share(rm::handle share, std::uint64_t offset, std::uint64_t length,
                                         const rm::gpu* owner) {
  auto made = map(share, offset, length, memory_kind::device, owner);
  if (made) made->is_owner_ = false;
  return made;
}

result<region> address_space::bind_host(void* address, std::size_t size_bytes) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (size_bytes == 0 || reinterpret_cast<std::uint64_t>(address) % page != 0 || size_bytes % page != 0)
    return failure{EINVAL, "host memory is bound to a DMA channel in whole pages"};
  auto memory = objects_.make_host_memory(address, size_bytes);
  if (!memory) return memory.error();
  return bind(*memory, 0, size_bytes, memory_kind::host, nullptr);
}

result<rm::cpu_mapping> address_space::map_doorbell() {
  return objects_.owner().map(objects_.device(), doorbell_, 0, rm::kDoorbellBytes, nullptr);
}

result<address_space::own_memory> address_space::make_device_memory(std::uint64_t size_bytes) {
  auto memory = objects_.make_device_memory(size_bytes);
  if (!memory) return memory.error();
  auto bound = bind(*memory, 0, size_bytes, memory_kind::device, nullptr);
  if (!bound) return bound.error();
  return own_memory{std::move(*bound), *memory};
}

}  // namespace pl::dma
