// SPDX-License-Identifier: Apache-2.0
// The calls: descriptors, mappings and controls. Objects are in resource_objects.cpp, the engine is in channel_engine.cpp.
#include "sim/resource_manager.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "sim/resource_calls.hpp"

namespace pl::sim {
namespace {

constexpr rm::handle kFirstRoot = 0xc1e00001;  // away from what CUDA's objects have for a client

int fail_with(int code) {
  errno = code;
  return -1;
}

// -1: /dev/nvidiactl; -2: neither that nor /dev/nvidia<N>.
int board_of_path(std::string_view path) {
  constexpr std::string_view kPrefix = "/dev/nvidia";
  if (!path.starts_with(kPrefix)) return -2;
  path.remove_prefix(kPrefix.size());
  if (path == "ctl") return -1;
  unsigned short number = 0;
  const auto parsed = std::from_chars(path.data(), path.data() + path.size(), number);
  return parsed.ec == std::errc() && parsed.ptr == path.data() + path.size() ? number : -2;
}

}  // namespace

channel_memory_ref machine::make_memory(unsigned board, std::uint64_t size_bytes) {
  return make_anonymous_memory(size_bytes, board);
}
channel_memory_ref machine::find_memory(rm::handle, rm::handle, unsigned&) { return nullptr; }
channel_memory_ref machine::import_memory(int fd, unsigned& board) { return adopt_memory(fd, board); }
bool machine::is_linked(unsigned, unsigned) { return true; }
random_source machine::make_random() {
  return [](std::uint64_t) { return std::uint64_t{0}; };
}

resource_manager::resource_manager(std::shared_ptr<machine> hardware, options given)
    : machine_(std::move(hardware)),
      options_(std::move(given)),
      layout_(rm::channel_layout_of(options_.version)),
      boards_(machine_->boards()),
      pid_(getpid()),
      next_root_(kFirstRoot),
      doorbells_(boards_.size()) {}

std::shared_ptr<resource_manager> resource_manager::make(std::shared_ptr<machine> hardware, options given) {
  return std::shared_ptr<resource_manager>(new resource_manager(std::move(hardware), std::move(given)));
}

resource_manager::~resource_manager() = default;

bool resource_manager::is_forked() const { return getpid() != pid_; }

// ---- Descriptors

int resource_manager::open(const char* path, int flags) {
  const int board = board_of_path(path);
  if (board == -2) return ::open(path, flags);
  if (is_forked()) return fail_with(ENODEV);
  if (board >= static_cast<int>(boards_.size())) return fail_with(ENOENT);
  const call_scope hold(*this);
  const int fd = board >= 0 ? ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd >= 0) nodes_[fd].board = board;
  return fd;
}

int resource_manager::close(int fd) {
  if (is_forked()) return ::close(fd);
  const call_scope hold(*this);
  if (const auto found = nodes_.find(fd); found != nodes_.end()) {
    std::vector<rm::handle> ended;
    for (const auto& [root, one] : clients_)
      if (one.control_fd == fd) ended.push_back(root);
    for (const rm::handle root : ended) end_client(root);
    // The driver would forget the event with the file, but a forked child may have that too: then its number stays taken.
    for (const auto& [root, one] : clients_)
      for (const auto& [number, event_fd] : one.os_events)
        if (event_fd == fd) ++protocol_errors_;
    nodes_.erase(found);
  }
  return ::close(fd);
}

void* resource_manager::mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) {
  if (fd < 0 || is_forked()) return ::mmap(address, size_bytes, protection, flags, fd, offset);
  channel_memory_ref shown;
  {
    const call_scope hold(*this);
    const auto found = nodes_.find(fd);
    if (found == nodes_.end()) return ::mmap(address, size_bytes, protection, flags, fd, offset);
    shown = std::exchange(found->second.pending, nullptr);
    offset = static_cast<off_t>(found->second.pending_offset);
  }
  if (shown == nullptr) return errno = EINVAL, MAP_FAILED;
  return ::mmap(address, size_bytes, protection, flags, shown->fd(), offset);
}

int resource_manager::ioctl(int fd, unsigned long request, void* argument) {
  if (is_forked()) return fail_with(EACCES);  // without the lock: a thread that held it may not exist here
  const call_scope hold(*this);
  const auto found = nodes_.find(fd);
  if (found == nodes_.end() || (request >> 8 & 0xff) != 'F' || argument == nullptr) return fail_with(ENOTTY);
  if (is_lost_) return fail_with(EIO);
  const unsigned number = request & 0xff;
  const std::size_t bytes = request >> 16 & 0x3fff;
  if (found->second.board >= 0) return device_call(fd, found->second, number, bytes, argument);
  return control_call(fd, number, bytes, argument);
}

void resource_manager::clear_event(int fd) {
  if (is_forked()) return;
  const call_scope hold(*this);
  const auto found = nodes_.find(fd);
  eventfd_t count = 0;
  if (found != nodes_.end() && !found->second.has_data) (void)eventfd_read(fd, &count);
}

int resource_manager::device_call(int fd, node& opened, unsigned number, std::size_t bytes, void* argument) {
  if (number == rm::esc_register_fd && bytes == sizeof(rm::register_fd_params)) {
    opened.control_fd = static_cast<rm::register_fd_params*>(argument)->control_fd;
    return 0;
  }
  if ((number == rm::esc_alloc_os_event || number == rm::esc_free_os_event) && bytes == sizeof(rm::os_event_params) &&
      opened.control_fd >= 0) {
    auto& params = *static_cast<rm::os_event_params*>(argument);
    params.status = call_os_event(fd, number == rm::esc_alloc_os_event, params);
    return 0;
  }
  if (number != rm::esc_alloc_memory || bytes != sizeof(rm::host_memory_params) || opened.control_fd < 0) {
    ++protocol_errors_;
    return fail_with(EINVAL);
  }
  auto& params = *static_cast<rm::host_memory_params*>(argument);
  params.status = alloc_host(params);
  return 0;
}

// One event a number and client.
std::uint32_t resource_manager::call_os_event(int fd, bool is_alloc, const rm::os_event_params& params) {
  const auto owner = clients_.find(params.client);
  if (owner == clients_.end()) return bad_call(rm::status_invalid_client);
  auto& events = owner->second.os_events;
  if (!is_alloc) return events.erase(params.fd) != 0 ? std::uint32_t{rm::status_ok} : bad_call(kBadArgument);
  return events.emplace(params.fd, fd).second ? rm::status_ok : rm::status_insufficient_resources;
}

std::uint32_t resource_manager::set_notification(const rm::control_params& params) {
  if (params.params_bytes != sizeof(rm::set_notification_params)) return bad_call(kBadParams);
  const auto owner = clients_.find(params.client);
  if (owner == clients_.end()) return rm::status_invalid_client;
  const auto found = owner->second.objects.find(params.object);
  if (found == owner->second.objects.end() || found->second.object_class != rm::class_subdevice)
    return rm::status_object_not_found;
  const auto& wanted = *reinterpret_cast<const rm::set_notification_params*>(params.params);
  if (wanted.action == 0) found->second.notifiers.erase(wanted.event);
  else found->second.notifiers.insert(wanted.event);
  return rm::status_ok;
}

// ---- Calls on the control node

int resource_manager::control_call(int fd, unsigned number, std::size_t bytes, void* argument) {
  const auto answer = [&]<class Params>(std::uint32_t (resource_manager::*call)(const Params&)) {
    if (bytes != sizeof(Params)) return ++protocol_errors_, fail_with(EINVAL);
    auto& params = *static_cast<Params*>(argument);
    params.status = (this->*call)(params);
    return 0;
  };
  switch (number) {
    case rm::esc_alloc:
      if (bytes != sizeof(rm::alloc_params)) break;
      static_cast<rm::alloc_params*>(argument)->status = alloc(fd, *static_cast<rm::alloc_params*>(argument));
      return 0;
    case rm::esc_control:
      return answer(&resource_manager::control);
    case rm::esc_free:
      return answer(&resource_manager::free_object);
    case rm::esc_dup_object:
      return answer(&resource_manager::duplicate);
    case rm::esc_map_memory: {
      if (bytes != sizeof(rm::map_params)) break;
      auto& params = *static_cast<rm::map_params*>(argument);
      params.status = map_cpu(params, params.linear_address);
      return 0;
    }
    case rm::esc_unmap_memory:
      if (bytes != sizeof(rm::unmap_params)) break;
      static_cast<rm::unmap_params*>(argument)->status = rm::status_ok;
      return 0;
    case rm::esc_map_memory_dma: {
      if (layout_ == nullptr || bytes != layout_->map_dma_bytes) break;
      const std::uint32_t status = map_dma(static_cast<std::byte*>(argument));
      std::memcpy(static_cast<std::byte*>(argument) + layout_->map_dma_status, &status, sizeof status);
      return 0;
    }
    case rm::esc_unmap_memory_dma:
      if (layout_ == nullptr || bytes != layout_->unmap_dma_bytes) break;
      if (unmap_dma(*static_cast<rm::unmap_dma_head*>(argument)) != rm::status_ok) ++protocol_errors_;
      return 0;
    case rm::esc_card_info:
      return list_cards(argument, bytes), 0;
    case rm::esc_check_version: {
      if (bytes != sizeof(rm::version_params)) break;
      auto& params = *static_cast<rm::version_params*>(argument);
      params.reply = 1;
      std::snprintf(params.text, sizeof params.text, "%s", options_.version.c_str());
      return 0;
    }
    default:
      break;
  }
  ++protocol_errors_;
  return fail_with(EINVAL);
}

void resource_manager::list_cards(void* argument, std::size_t bytes) const {
  const std::size_t room = bytes / sizeof(rm::card_info);
  auto* const cards = static_cast<rm::card_info*>(argument);
  std::fill_n(cards, room, rm::card_info{});
  for (std::size_t i = 0; i < std::min(room, boards_.size()); ++i) {
    cards[i].valid = 1;
    cards[i].bus = static_cast<std::uint8_t>(boards_[i].bus);
    cards[i].slot = static_cast<std::uint8_t>(boards_[i].slot);
    cards[i].gpu_id = gpu_id_of(static_cast<unsigned>(i));
    cards[i].minor = static_cast<std::uint32_t>(i);
  }
}

// The next mmap of the descriptor shows this memory.
std::uint32_t resource_manager::map_cpu(const rm::map_params& params, std::uint64_t& linear_address) {
  const auto opened = nodes_.find(params.fd);
  const object* const found = find(params.client, params.memory);
  if (opened == nodes_.end() || opened->second.control_fd < 0) return bad_call(kBadArgument);
  if (found == nullptr) return bad_call(rm::status_object_not_found);
  const channel_memory_ref shown = is_doorbell(found->object_class) ? doorbells_[found->board] : found->memory;
  if (shown == nullptr || shown->is_host()) return bad_call(kBadArgument);
  if (params.offset > shown->size_bytes() || params.length > shown->size_bytes() - params.offset)
    return rm::status_invalid_limit;
  opened->second.pending = shown;
  opened->second.pending_offset = params.offset;
  linear_address = next_linear_++;
  return rm::status_ok;
}

std::uint32_t resource_manager::map_dma(std::byte* block) {
  rm::map_dma_head head;
  std::memcpy(&head, block, sizeof head);
  const object* const memory = find(head.client, head.memory);
  const object* const range = find(head.client, head.virtual_memory);
  if (memory == nullptr || memory->memory == nullptr || range == nullptr || range->space == nullptr)
    return rm::status_object_not_found;
  const bool is_peer = memory->board != range->board;
  // Without the flag the driver maps other memory, with it memory of the same GPU: no correct client asks for either.
  if (is_peer != ((head.flags & rm::kMapPeer) != 0)) return bad_call(kBadArgument);
  if (is_peer && (memory->memory->is_host() || !has_link(clients_[head.client], range->board, memory->board)))
    return kNothingKnown;
  if (memory->memory->is_host() != ((head.flags & rm::kMapSnooped) != 0)) ++protocol_errors_;
  if (head.length == 0 || head.offset > memory->memory->size_bytes() ||
      head.length > memory->memory->size_bytes() - head.offset)
    return rm::status_invalid_limit;
  const std::uint64_t address = range->space->map(memory->memory, head.memory, head.offset, head.length, is_peer);
  if (address == 0) return rm::status_no_memory;
  std::memcpy(block + layout_->map_dma_address, &address, sizeof address);
  return rm::status_ok;
}

std::uint32_t resource_manager::unmap_dma(const rm::unmap_dma_head& head) {
  const object* const range = find(head.client, head.virtual_memory);
  if (range == nullptr || range->space == nullptr) return rm::status_object_not_found;
  return range->space->unmap(head.address) ? std::uint32_t{rm::status_ok} : kBadArgument;
}

std::uint32_t resource_manager::control(const rm::control_params& params) {
  auto* const block = reinterpret_cast<void*>(params.params);
  switch (params.command) {
    case rm::ctrl_gpu_id_info_v2: {
      if (params.params_bytes != sizeof(rm::gpu_id_info_params)) return bad_call(kBadParams);
      auto& info = *static_cast<rm::gpu_id_info_params*>(block);
      for (unsigned board = 0; board < boards_.size(); ++board)
        if (info.gpu_id == gpu_id_of(board)) return info.device_instance = board, std::uint32_t{rm::status_ok};
      return kBadArgument;
    }
    case rm::ctrl_class_list: {
      if (layout_ == nullptr || params.params_bytes != 4 + 4 * layout_->class_room) return bad_call(kBadParams);
      auto& list = *static_cast<rm::class_list_params*>(block);
      list.count = std::size(kGpuClasses);
      std::copy(std::begin(kGpuClasses), std::end(kGpuClasses), list.classes);
      return rm::status_ok;
    }
    case rm::ctrl_copy_engine_caps: {
      if (params.params_bytes != sizeof(rm::copy_engine_caps_params)) return bad_call(kBadParams);
      auto& caps = *static_cast<rm::copy_engine_caps_params*>(block);
      if (!is_copy_engine(caps.engine)) return rm::status_not_supported;
      caps.caps[0] = caps.engine - rm::kEngineCopy0 < kSharedEngines ? rm::kCopyEngineShared : 0;
      return rm::status_ok;
    }
    case rm::ctrl_gpu_info: {
      if (layout_ == nullptr || params.params_bytes != layout_->gpu_info_bytes) return bad_call(kBadParams);
      if (!options_.knows_restrictions) return rm::status_not_supported;
      auto& info = *static_cast<rm::gpu_info_params*>(block);
      if (info.count != 1 || info.entries[0].index != rm::kGpuInfoMigMode) return bad_call(kBadArgument);
      info.entries[0].value = options_.mig_mode;
      return rm::status_ok;
    }
    case rm::ctrl_confidential: {
      const object* const asked = find(params.client, params.object);
      if (asked == nullptr || asked->object_class != rm::class_confidential_computing) return rm::status_object_not_found;
      if (layout_ == nullptr || params.params_bytes != layout_->confidential_bytes) return bad_call(kBadParams);
      static_cast<rm::confidential_params*>(block)->feature = options_.is_confidential ? 2 : 0;
      return rm::status_ok;
    }
    case rm::ctrl_peer_capabilities: {
      if (params.params_bytes != sizeof(rm::peer_capabilities_params)) return bad_call(kBadParams);
      auto& answer = *static_cast<rm::peer_capabilities_params*>(block);
      if (answer.a_count != 1 || answer.b_count != 1 || answer.a[0] == answer.b[0]) return bad_call(kBadArgument);
      answer.write_engines[0][0] = answer.read_engines[0][0] = 1u << kPeerEngine;
      return rm::status_ok;
    }
    case rm::ctrl_set_notification:
      return set_notification(params);
    case rm::ctrl_os_export_object:
      if (params.params_bytes != sizeof(rm::export_object_params)) return bad_call(kBadParams);
      return export_object(params.client, *static_cast<const rm::export_object_params*>(block));
    case rm::ctrl_os_import_object:
      if (params.params_bytes != sizeof(rm::import_object_params)) return bad_call(kBadParams);
      return import_object(params.client, *static_cast<rm::import_object_params*>(block));
    case rm::ctrl_group_schedule:
      return layout_ != nullptr && params.params_bytes == layout_->schedule_bytes ? std::uint32_t{rm::status_ok}
                                                                                  : bad_call(kBadParams);
    case rm::ctrl_group_timeslice:  // its engines take turns by commands, so that nothing changes
      if (params.params_bytes != sizeof(rm::timeslice_params)) return bad_call(kBadParams);
      if (refuses_timeslices_) return kBadArgument;
      last_timeslice_us_ = static_cast<const rm::timeslice_params*>(block)->microseconds;
      return rm::status_ok;
    default:
      return control_channel(params);
  }
}

std::uint32_t resource_manager::control_channel(const rm::control_params& params) {
  if (params.command != rm::ctrl_work_submit_token && params.command != rm::ctrl_mmu_fault) return rm::status_not_supported;
  const object* const found = find(params.client, params.object);
  if (found == nullptr || found->channel == nullptr) return rm::status_object_not_found;
  auto* const block = reinterpret_cast<void*>(params.params);
  if (params.command == rm::ctrl_work_submit_token) {
    if (params.params_bytes != sizeof(std::uint32_t)) return bad_call(kBadParams);
    *static_cast<std::uint32_t*>(block) = found->channel->token();
    return rm::status_ok;
  }
  if (params.params_bytes != sizeof(rm::mmu_fault_params)) return bad_call(kBadParams);
  const auto address = found->channel->take_fault_address();
  if (!address) return kNothingKnown;
  auto& report = *static_cast<rm::mmu_fault_params*>(block);
  report = {};
  report.address_high = static_cast<std::uint32_t>(*address >> 32);
  report.address_low = static_cast<std::uint32_t>(*address);
  return rm::status_ok;
}

}  // namespace pl::sim
