// SPDX-License-Identifier: Apache-2.0
// The resource manager's objects: what is made under a client's device, shared with it, and freed.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <set>

#include "sim/host_memory.hpp"
#include "sim/resource_calls.hpp"

namespace pl::sim {
namespace {

// ENOMEM for a range with holes.
bool is_mapped(std::uint64_t address, std::uint64_t size_bytes) {
  return msync(reinterpret_cast<void*>(address), size_bytes, MS_ASYNC) == 0;
}

std::uint32_t with_size(const rm::alloc_params& params, std::size_t bytes) {
  return params.params_bytes == bytes && params.params != 0 ? std::uint32_t{rm::status_ok} : kBadParams;
}

}  // namespace

resource_manager::object* resource_manager::find(rm::handle root, rm::handle handle) {
  const auto owner = clients_.find(root);
  if (owner == clients_.end()) return nullptr;
  const auto found = owner->second.objects.find(handle);
  return found == owner->second.objects.end() ? nullptr : &found->second;
}

std::uint32_t resource_manager::alloc(int control_fd, rm::alloc_params& params) {
  if (params.object_class == rm::class_root_client) {
    params.object = next_root_++;
    clients_[params.object].control_fd = control_fd;
    return rm::status_ok;
  }
  const auto owner = clients_.find(params.root);
  if (owner == clients_.end() || owner->second.control_fd != control_fd) return rm::status_invalid_client;
  if (owner->second.objects.count(params.object) != 0) return kInUse;
  object made;
  made.parent = params.parent;
  made.object_class = params.object_class;
  if (params.parent != params.root) {
    const object* const parent = find(params.root, params.parent);
    if (parent == nullptr) return rm::status_object_not_found;
    made.board = parent->board;
  }
  const std::uint32_t status = layout_ == nullptr ? rm::status_not_supported : make_object(params, made);
  if (status == kBadParams) ++protocol_errors_;
  if (status != rm::status_ok) return status;
  if (made.channel != nullptr && !add_channel(made)) return rm::status_insufficient_resources;
  owner->second.objects[params.object] = std::move(made);
  return rm::status_ok;
}

std::uint32_t resource_manager::make_object(const rm::alloc_params& params, object& made) {
  switch (params.object_class) {
    case rm::class_device: {
      if (params.params_bytes != sizeof(rm::device_params)) return kBadParams;
      made.board = reinterpret_cast<const rm::device_params*>(params.params)->device_instance;
      return made.board < boards_.size() ? std::uint32_t{rm::status_ok} : kBadArgument;
    }
    case rm::class_subdevice:
      return with_size(params, sizeof(rm::subdevice_params));
    case rm::class_address_space:
      made.space = std::make_shared<channel_space>(spaces_++);
      return with_size(params, layout_->address_space_bytes);
    case rm::class_virtual_memory:
    case rm::class_channel_group:
      return make_in_space(params, made);
    case rm::class_device_memory: {
      if (params.params_bytes != layout_->device_memory_bytes) return kBadParams;
      const auto size_bytes = reinterpret_cast<const rm::device_memory_params*>(params.params)->size_bytes;
      made.memory = size_bytes != 0 ? machine_->make_memory(made.board, size_bytes) : nullptr;
      return made.memory != nullptr ? rm::status_ok : rm::status_no_memory;
    }
    case kChannelClass:
      return make_channel(params, made);
    case kCopyClass:
      return with_size(params, sizeof(rm::copy_object_params));
    case rm::class_confidential_computing:
      if (params.parent != params.root) return bad_call(kBadArgument);
      return options_.knows_restrictions ? std::uint32_t{rm::status_ok} : std::uint32_t{rm::status_not_supported};
    case rm::class_os_event:
      return make_event(params, made);
    case rm::class_peer_link:
      return make_peer_link(params, made);
    case kDoorbellClass:
      if (doorbells_[made.board] == nullptr) doorbells_[made.board] = make_anonymous_memory(rm::kDoorbellBytes, made.board);
      return doorbells_[made.board] != nullptr ? rm::status_ok : rm::status_no_memory;
    default:
      return rm::status_not_supported;
  }
}

std::uint32_t resource_manager::make_in_space(const rm::alloc_params& params, object& made) {
  rm::handle space = 0;
  if (params.object_class == rm::class_virtual_memory) {
    if (with_size(params, sizeof(rm::virtual_memory_params)) != rm::status_ok) return kBadParams;
    space = reinterpret_cast<const rm::virtual_memory_params*>(params.params)->address_space;
  } else {
    if (with_size(params, sizeof(rm::channel_group_params)) != rm::status_ok) return kBadParams;
    const auto& group = *reinterpret_cast<const rm::channel_group_params*>(params.params);
    if (!is_copy_engine(group.engine)) return kBadArgument;
    space = group.address_space;
    made.engine = group.engine;
  }
  const object* const found = find(params.root, space);
  if (found == nullptr || found->object_class != rm::class_address_space) return rm::status_object_not_found;
  made.space = found->space;
  return rm::status_ok;
}

std::uint32_t resource_manager::make_channel(const rm::alloc_params& params, object& made) {
  if (with_size(params, layout_->channel_bytes) != rm::status_ok) return kBadParams;
  const auto& wanted = *reinterpret_cast<const rm::channel_params*>(params.params);
  const object* const group = find(params.root, params.parent);
  if (group == nullptr || group->object_class != rm::class_channel_group) return kBadArgument;
  const object* const user_words = find(params.root, wanted.user_words_memory[0]);
  const object* const notifier = wanted.error_object != 0 ? find(params.root, wanted.error_object) : nullptr;
  if (user_words == nullptr || user_words->memory == nullptr) return rm::status_object_not_found;
  if (wanted.error_object != 0 && (notifier == nullptr || notifier->memory == nullptr)) return rm::status_object_not_found;
  if (wanted.ring_entries == 0) return kBadArgument;
  channel_settings settings;
  settings.space = group->space;
  settings.ring_address = wanted.ring_address;
  settings.ring_entries = wanted.ring_entries;
  settings.user_words = user_words->memory;
  settings.user_words_offset = wanted.user_words_offset[0];
  if (notifier != nullptr) settings.error_notifier = notifier->memory;
  settings.copy_class = kCopyClass;
  settings.token = next_token_++;
  settings.random = machine_->make_random();
  settings.interrupt = [this, board = made.board, engine = group->engine] { interrupt(board, engine); };
  made.channel = std::make_shared<copy_channel>(std::move(settings));
  return rm::status_ok;
}

std::uint32_t resource_manager::make_event(const rm::alloc_params& params, object& made) {
  if (with_size(params, sizeof(rm::event_params)) != rm::status_ok) return kBadParams;
  made.event = *reinterpret_cast<const rm::event_params*>(params.params);
  const object* const source = find(params.root, params.parent);
  if (source == nullptr || source->object_class != rm::class_subdevice || made.event.source != params.parent ||
      made.event.client != params.root || made.event.object_class != rm::class_os_event)
    return bad_call(kBadArgument);
  const auto number = static_cast<std::uint32_t>(made.event.fd);
  return clients_[params.root].os_events.count(number) != 0 ? std::uint32_t{rm::status_ok} : bad_call(kBadArgument);
}

std::uint32_t resource_manager::make_peer_link(const rm::alloc_params& params, object& made) {
  if (with_size(params, layout_->peer_link_bytes) != rm::status_ok) return kBadParams;
  if (params.parent != params.root) return bad_call(kBadArgument);
  const auto& wanted = *reinterpret_cast<const rm::peer_link_params*>(params.params);
  const object* const near = find(params.root, wanted.subdevice);
  const object* const far = find(params.root, wanted.peer_subdevice);
  if (near == nullptr || far == nullptr || near->object_class != rm::class_subdevice ||
      far->object_class != rm::class_subdevice || near->board == far->board)
    return bad_call(kBadArgument);
  made.board = near->board;
  made.peer_board = far->board;
  return machine_->is_linked(near->board, far->board) ? std::uint32_t{rm::status_ok}
                                                      : std::uint32_t{rm::status_not_supported};
}

// Links are of both directions.
bool resource_manager::has_link(const client& owner, unsigned board, unsigned peer_board) {
  for (const auto& [handle, one] : owner.objects)
    if (one.object_class == rm::class_peer_link &&
        ((one.board == board && one.peer_board == peer_board) || (one.board == peer_board && one.peer_board == board)))
      return true;
  return false;
}

// Drops what the two boards' address spaces show of each other's memory: it is out of reach. Says how many mappings that
// were.
std::size_t resource_manager::unmap_peers(client& owner, unsigned board, unsigned peer_board) {
  std::size_t dropped = 0;
  for (const auto& [handle, memory] : owner.objects)
    for (const auto& [other, one] : owner.objects)
      if (memory.memory != nullptr && one.space != nullptr &&
          ((memory.board == board && one.board == peer_board) || (memory.board == peer_board && one.board == board)))
        dropped += one.space->unmap_all(handle);
  return dropped;
}

std::uint32_t resource_manager::alloc_host(const rm::host_memory_params& params) {
  const object* const device = find(params.root, params.parent);
  if (device == nullptr || device->object_class != rm::class_device) return rm::status_object_not_found;
  if (find(params.root, params.object) != nullptr) return kInUse;
  const std::uint64_t size_bytes = params.limit + 1, page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (params.object_class != rm::class_host_memory || params.address % page != 0 || size_bytes % page != 0)
    return bad_call(kBadArgument);
  if (!is_mapped(params.address, size_bytes)) return kCannotPin;
  object made;
  made.parent = params.parent;
  made.object_class = params.object_class;
  made.board = device->board;
  made.memory = pin_host_memory(reinterpret_cast<std::byte*>(params.address), size_bytes);
  clients_[params.root].objects[params.object] = std::move(made);
  return rm::status_ok;
}

// An object of another client of ours, or of CUDA's. The share keeps the memory alive.
std::uint32_t resource_manager::duplicate(const rm::dup_params& params) {
  unsigned board = 0;
  channel_memory_ref memory;
  if (const object* const source = find(params.client_source, params.object_source)) {
    memory = source->memory;
    board = source->board;
  } else {
    memory = machine_->find_memory(params.client_source, params.object_source, board);
  }
  return add_shared(params.client, params.parent, params.object, std::move(memory), board);
}

// The descriptor stands for the memory from then on: here it becomes one of the memory's file, which other processes can
// map. Only a fresh one of the control node may be given.
std::uint32_t resource_manager::export_object(rm::handle root, const rm::export_object_params& params) {
  const object* const found = find(root, params.object);
  const object* const device = find(root, params.device);
  const auto opened = nodes_.find(params.fd);
  if (params.type != rm::kExportObjectTypeRm || device == nullptr || device->object_class != rm::class_device)
    return bad_call(kBadArgument);
  if (found == nullptr || found->memory == nullptr || found->board != device->board) return rm::status_object_not_found;
  if (found->memory->is_host()) return rm::status_not_supported;
  if (opened == nodes_.end() || opened->second.board >= 0 || opened->second.is_export) return bad_call(kBadArgument);
  for (const auto& [other, owner] : clients_)
    if (owner.control_fd == params.fd) return bad_call(kBadArgument);
  if (dup3(found->memory->fd(), params.fd, O_CLOEXEC) < 0) return rm::status_insufficient_resources;
  opened->second.is_export = true;
  return rm::status_ok;
}

std::uint32_t resource_manager::import_object(rm::handle root, const rm::import_object_params& params) {
  if (params.type != rm::kExportObjectTypeRm) return kBadArgument;
  unsigned board = 0;
  auto memory = machine_->import_memory(params.fd, board);
  return add_shared(root, params.parent, params.object, std::move(memory), board);
}

std::uint32_t resource_manager::add_shared(rm::handle root, rm::handle parent, rm::handle handle, channel_memory_ref memory,
                                           unsigned board) {
  if (memory == nullptr) return rm::status_object_not_found;
  const object* const device = find(root, parent);
  if (device == nullptr) return rm::status_invalid_client;
  if (device->board != board) return kBadArgument;  // memory is shared under the GPU that it lies on
  if (find(root, handle) != nullptr) return kInUse;
  object made;
  made.parent = parent;
  made.object_class = memory->is_host() ? rm::class_host_memory : rm::class_device_memory;
  made.board = board;
  made.memory = std::move(memory);
  clients_[root].objects[handle] = std::move(made);
  return rm::status_ok;
}

std::uint32_t resource_manager::free_object(const rm::free_params& params) {
  const auto owner = clients_.find(params.root);
  if (owner == clients_.end()) return bad_call(rm::status_invalid_client);
  if (params.object == params.root) return end_client(params.root), std::uint32_t{rm::status_ok};
  if (owner->second.objects.count(params.object) == 0) return bad_call(rm::status_object_not_found);
  forget(owner->second, params.object, true);
  return rm::status_ok;
}

void resource_manager::forget(client& owner, rm::handle handle, bool counts_errors) {
  std::vector<rm::handle> children;
  for (const auto& [child, one] : owner.objects)
    if (one.parent == handle) children.push_back(child);
  for (const rm::handle child : children) forget(owner, child, counts_errors);
  const auto found = owner.objects.find(handle);
  if (found->second.channel != nullptr) drop_channel(found->second.channel.get());
  if (found->second.memory != nullptr) {
    std::size_t dropped = 0;
    for (const auto& [other, one] : owner.objects)
      if (one.space != nullptr) dropped += one.space->unmap_all(handle);
    if (counts_errors && dropped != 0) ++protocol_errors_;  // freed while it is mapped
  }
  const bool is_link = found->second.object_class == rm::class_peer_link;
  const unsigned board = found->second.board, peer_board = found->second.peer_board;
  owner.objects.erase(found);
  if (is_link && !has_link(owner, board, peer_board) && unmap_peers(owner, board, peer_board) != 0 && counts_errors)
    ++protocol_errors_;  // ended while memory is mapped by it
}

void resource_manager::end_client(rm::handle root) {
  const auto owner = clients_.find(root);
  if (owner == clients_.end()) return;
  while (!owner->second.objects.empty()) forget(owner->second, owner->second.objects.begin()->first, false);
  clients_.erase(owner);
}

int resource_manager::live_objects() {
  const call_scope hold(*this);
  std::size_t count = 0;
  for (const auto& [root, one] : clients_) count += one.objects.size();
  return static_cast<int>(count);
}

int resource_manager::live_maps() {
  const call_scope hold(*this);
  std::set<const channel_space*> seen;
  std::size_t count = 0;
  for (const auto& [root, owner] : clients_)
    for (const auto& [handle, one] : owner.objects)
      if (one.space != nullptr && seen.insert(one.space.get()).second) count += one.space->live_maps();
  return static_cast<int>(count);
}

}  // namespace pl::sim
