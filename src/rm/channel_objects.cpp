// SPDX-License-Identifier: Apache-2.0
#include "rm/channel_objects.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/text.hpp"

namespace pl::rm {
namespace {

constexpr std::uint64_t kDeviceMemoryAlignment = 0x10000;

// The newest of `known` that the GPU has; 0 if it has none.
std::uint32_t newest(std::span<const std::uint32_t> known, std::span<const std::uint32_t> present) {
  for (const std::uint32_t candidate : known)
    if (std::find(present.begin(), present.end(), candidate) != present.end()) return candidate;
  return 0;
}

}  // namespace

result<channel_objects> channel_objects::open(client& owner, const gpu& target, const std::string& driver_version) {
  const channel_layout* layout = channel_layout_of(driver_version);
  if (layout == nullptr)
    return failure{ENOTSUP, format("DMA channels: the layouts of driver %s are unknown to this version (known: the branches "
                                   "535 to 580, 590 and 595)",
                                   driver_version.c_str())};
  channel_objects out(owner, target, *layout);
  if (status allowed = out.refuse_restrictions(); !allowed) return allowed.error();
  if (status chosen = out.choose_classes(); !chosen) return chosen.error();
  return out;
}

// If the driver does not answer, it has none of these modes.
status channel_objects::refuse_restrictions() {
  gpu_info_params info{};
  info.count = 1;
  info.entries[0].index = kGpuInfoMigMode;
  const bool answers =
      client_->control(gpu_->subdevice, ctrl_gpu_info, &info, layout_->gpu_info_bytes, "asking for the GPU's mode").ok();
  if (answers && (info.entries[0].value == kMigEnabled || info.entries[0].value == kMigDisablePending))
    return failure{ENOTSUP,
                   "DMA channels: the GPU is divided into instances (MIG), whose copy engines are not reached this way"};
  const handle object = client_->next_handle();
  if (!client_->alloc(client_->root_, object, class_confidential_computing, nullptr, 0, "asking for confidential computing"))
    return {};
  confidential_params mode{};
  const bool is_told =
      client_->control(object, ctrl_confidential, &mode, layout_->confidential_bytes, "asking for confidential computing")
          .ok();
  client_->live_objects_.fetch_add(1);
  release(object);
  if (is_told && mode.feature != 0)
    return failure{ENOTSUP,
                   "DMA channels: confidential computing is on, and host memory must be reached encrypted, which CUDA does"};
  return {};
}

status channel_objects::choose_classes() {
  class_list_params list{};
  const std::size_t bytes = sizeof list.count + layout_->class_room * sizeof list.classes[0];
  if (status asked = client_->control(gpu_->device, ctrl_class_list, &list, bytes, "listing the GPU's classes"); !asked)
    return asked;
  const std::span<const std::uint32_t> present(list.classes, std::min<std::size_t>(list.count, layout_->class_room));
  channel_class_ = newest(kChannelClasses, present);
  copy_class_ = newest(kCopyClasses, present);
  doorbell_class_ = newest(kDoorbellClasses, present);
  if (channel_class_ == 0 || copy_class_ == 0 || doorbell_class_ == 0)
    return failure{ENOTSUP,
                   "DMA channels: this GPU has no channel, copy engine or doorbell of a known kind (Volta and later)"};
  return {};
}

result<handle> channel_objects::make(handle parent, std::uint32_t object_class, void* params, std::size_t bytes,
                                     const char* purpose) {
  const handle object = client_->next_handle();
  if (status made = client_->alloc(parent, object, object_class, params, bytes, purpose); !made) return made.error();
  client_->live_objects_.fetch_add(1);
  return object;
}

void channel_objects::release(handle object) noexcept { client_->release(*gpu_, object); }

result<handle> channel_objects::make_address_space() {
  address_space_params params{};
  return make(gpu_->device, class_address_space, &params, layout_->address_space_bytes, "making a GPU address space");
}

result<handle> channel_objects::make_virtual_memory(handle address_space) {
  virtual_memory_params params{};
  params.address_space = address_space;
  return make(gpu_->device, class_virtual_memory, &params, sizeof params, "making a range of GPU addresses");
}

result<handle> channel_objects::make_device_memory(std::uint64_t size_bytes) {
  device_memory_params params{};
  params.owner = client_->root_;
  params.attributes = kAttributePages;
  params.format = kFormatPitch;
  params.size_bytes = size_bytes;
  params.alignment = kDeviceMemoryAlignment;
  return make(gpu_->device, class_device_memory, &params, layout_->device_memory_bytes, "taking GPU memory for a channel");
}

result<handle> channel_objects::make_host_memory(void* address, std::size_t size_bytes) {
  auto node = client_->open_device_node(*gpu_);
  if (!node) return node.error();
  host_memory_params params{};
  params.root = client_->root_;
  params.parent = gpu_->device;
  params.object = client_->next_handle();
  params.object_class = class_host_memory;
  params.flags = kHostMemoryFlags;
  params.address = reinterpret_cast<std::uint64_t>(address);
  params.limit = size_bytes - 1;
  params.fd = -1;
  const int rc = client_->call(node->get(), esc_alloc_memory, &params, sizeof params);
  if (rc != 0)
    return failure{errno, format("registering %s of host memory for DMA failed: %s", format_size(size_bytes).c_str(),
                                 errno_text(errno).c_str())};
  if (params.status != status_ok)
    return failure{
        params.status == status_no_memory ? ENOMEM : EFAULT,
        format("registering %s of host memory for DMA failed with status 0x%x: its pages cannot be pinned (a file in the "
               "page cache, managed memory, or the limit of locked memory)",
               format_size(size_bytes).c_str(), params.status)};
  client_->live_objects_.fetch_add(1);
  return params.object;
}

result<handle> channel_objects::make_peer_link(const gpu& peer) {
  peer_link_params params{};
  params.subdevice = gpu_->subdevice;
  params.peer_subdevice = peer.subdevice;
  auto made = make(client_->root_, class_peer_link, &params, layout_->peer_link_bytes, "linking two GPUs");
  if (made || made.code() == ENOMEM) return made;
  return failure{EXDEV,
                 format("the GPUs at %04x:%02x:%02x and %04x:%02x:%02x do not reach each other's memory, by NVLink or "
                        "PCIe (%s)",
                        gpu_->pci.domain, gpu_->pci.bus, gpu_->pci.device, peer.pci.domain, peer.pci.bus, peer.pci.device,
                        made.error().message.c_str())};
}

std::uint32_t channel_objects::peer_engines(const gpu& peer) const noexcept try {
  peer_capabilities_params params{};
  params.a_count = params.b_count = 1;
  params.a[0] = gpu_->gpu_id;
  params.b[0] = peer.gpu_id;
  const bool is_told = client_
                           ->control(client_->root_, ctrl_peer_capabilities, &params, sizeof params,
                                     "asking which copy engines reach another GPU")
                           .ok();
  return is_told ? params.write_engines[0][0] : 0;
} catch (const std::bad_alloc&) { return 0; }

result<std::uint64_t> channel_objects::map_dma(handle virtual_memory, handle memory, std::uint64_t offset,
                                               std::uint64_t length, memory_kind kind) {
  alignas(8) std::byte block[kMaxMapDmaBytes] = {};
  map_dma_head head{};
  head.client = client_->root_;
  head.device = gpu_->device;
  head.virtual_memory = virtual_memory;
  head.memory = memory;
  head.offset = offset;
  head.length = length;
  head.flags = kind == memory_kind::host ? kMapSnooped : kind == memory_kind::peer ? kMapPeer : 0;
  std::memcpy(block, &head, sizeof head);
  const int rc = client_->call(client_->control_.get(), esc_map_memory_dma, block, layout_->map_dma_bytes);
  if (rc != 0)
    return failure{errno, format("mapping memory into a channel's address space failed: %s", errno_text(errno).c_str())};
  std::uint32_t answer = 0;
  std::uint64_t address = 0;
  std::memcpy(&answer, block + layout_->map_dma_status, sizeof answer);
  std::memcpy(&address, block + layout_->map_dma_address, sizeof address);
  if (answer != status_ok)
    return failure{
        answer == status_no_memory || answer == status_insufficient_resources ? ENOMEM : EINVAL,
        format("mapping %s into a channel's address space failed with status 0x%x", format_size(length).c_str(), answer)};
  return address;
}

void channel_objects::unmap_dma(handle virtual_memory, handle memory, std::uint64_t address) noexcept {
  alignas(8) std::byte block[kMaxMapDmaBytes] = {};
  unmap_dma_head head{};
  head.client = client_->root_;
  head.device = gpu_->device;
  head.virtual_memory = virtual_memory;
  head.memory = memory;
  head.address = address;
  std::memcpy(block, &head, sizeof head);
  // A length of 0 is the whole mapping.
  client_->call(client_->control_.get(), esc_unmap_memory_dma, block, layout_->unmap_dma_bytes);
}

result<std::uint8_t> channel_objects::copy_engine_capabilities(unsigned number) {
  copy_engine_caps_params params{};
  params.engine = kEngineCopy0 + number;
  if (status asked =
          client_->control(gpu_->subdevice, ctrl_copy_engine_caps, &params, sizeof params, "asking for a copy engine");
      !asked)
    return failure{ENOTSUP, asked.error().message};
  return params.caps[0];
}

result<channel_objects::channel_handles> channel_objects::make_channel(const channel_request& request) {
  channel_handles out;
  const std::uint32_t engine = kEngineCopy0 + request.engine;
  channel_group_params group{};
  group.engine = engine;
  group.address_space = request.address_space;
  auto made = make(gpu_->device, class_channel_group, &group, sizeof group, "making a channel group");
  if (!made) return made.error();
  out.group = *made;
  const auto give_up = [&](const failure& reason) {
    release(out.group);  // releases everything below it
    return reason;
  };
  channel_params channel{};
  channel.error_object = request.error_memory;
  channel.ring_address = request.ring_address;
  channel.ring_entries = request.ring_entries;
  channel.user_words_memory[0] = request.user_words_memory;
  channel.user_words_offset[0] = request.user_words_offset;
  channel.engine = engine;
  out.channel = client_->next_handle();
  if (status done =
          client_->alloc(out.group, out.channel, channel_class_, &channel, layout_->channel_bytes, "making a channel");
      !done)
    return give_up(done.error());
  copy_object_params copy{1, engine};
  out.copy = client_->next_handle();
  if (status done =
          client_->alloc(out.channel, out.copy, copy_class_, &copy, sizeof copy, "giving a channel its copy engine");
      !done)
    return give_up(done.error());
  schedule_params schedule{1, 0, 0};
  if (status done =
          client_->control(out.group, ctrl_group_schedule, &schedule, layout_->schedule_bytes, "scheduling a channel");
      !done)
    return give_up(done.error());
  if (status done = client_->control(out.channel, ctrl_work_submit_token, &out.token, sizeof out.token,
                                     "asking for a channel's token");
      !done)
    return give_up(done.error());
  return out;
}

status channel_objects::set_timeslice(handle group, std::uint64_t microseconds) {
  timeslice_params params{microseconds};
  return client_->control(group, ctrl_group_timeslice, &params, sizeof params, "setting a channel's time slice");
}

std::optional<std::uint64_t> channel_objects::fault_address(handle channel) const noexcept try {
  mmu_fault_params params{};
  if (!client_->control(channel, ctrl_mmu_fault, &params, sizeof params, "asking for a channel's fault")) return {};
  return std::uint64_t{params.address_high} << 32 | params.address_low;
} catch (const std::bad_alloc&) { return {}; }

// The driver knows the event by the descriptor's number, and forgets it when the file is closed. A forked child may
// keep the file open, so the driver is told.
void channel_objects::release_event(event ended) noexcept {
  if (ended.object != 0) release(ended.object);
  os_event_params params{client_->root_, gpu_->device, static_cast<std::uint32_t>(ended.fd.get()), 0};
  client_->call(ended.fd.get(), esc_free_os_event, &params, sizeof params);
}

result<channel_objects::event> channel_objects::make_event(unsigned engine) {
  auto node = client_->open_device_node(*gpu_);
  if (!node) return node.error();
  const auto number = static_cast<std::uint32_t>(node->get());
  os_event_params os{client_->root_, gpu_->device, number, 0};
  const int rc = client_->call(node->get(), esc_alloc_os_event, &os, sizeof os);
  if (rc != 0 || os.status != status_ok)
    return failure{ENOTSUP, rc != 0 ? format("an event of the GPU was refused: %s", errno_text(errno).c_str())
                                    : format("an event of the GPU was refused with status 0x%x", os.status)};
  event made{*std::move(node), 0};
  const auto give_up = [&](const failure& reason) {
    release_event(std::move(made));
    return reason;
  };
  const std::uint32_t notifier = kNotifierCopy0 + engine;
  event_params params{client_->root_, gpu_->subdevice, class_os_event, notifier | kEventOfEngine | kEventWithoutData,
                      number};
  auto object = make(gpu_->subdevice, class_os_event, &params, sizeof params, "making an event of a copy engine");
  if (!object) return give_up(object.error());
  made.object = *object;
  set_notification_params notify{};
  notify.event = notifier;
  notify.action = kNotifyAlways;
  if (status done = client_->control(gpu_->subdevice, ctrl_set_notification, &notify, sizeof notify,
                                     "asking for a copy engine's interrupts");
      !done)
    return give_up(done.error());
  return made;
}

result<handle> channel_objects::make_doorbell() {
  return make(gpu_->subdevice, doorbell_class_, nullptr, 0, "reaching the GPU's doorbells");
}

}  // namespace pl::rm
