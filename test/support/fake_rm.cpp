// SPDX-License-Identifier: Apache-2.0
#include "test/support/fake_rm.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

constexpr std::uint32_t kObjectNotFound = 0x57, kInvalidLimit = 0x2e, kInvalidParent = 0x36, kInUse = 0x17,
                        kBadArgument = 0x1f;

int fail_call(int code) {
  errno = code;
  return -1;
}

}  // namespace

int fake_rm::live_objects() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(objects_.size());
}
int fake_rm::live_clients() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(clients_.size());
}
int fake_rm::live_mappings() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(mappings_.size());
}

bool fake_rm::owned(rm::handle root) const {
  const auto found = clients_.find(root);
  return found != clients_.end() && found->second == getpid();
}

int fake_rm::open(const char* path, int) {
  const std::lock_guard lock(mutex_);
  if (options_.no_driver) return fail_call(ENOENT);
  device_node fresh;
  if (std::strcmp(path, "/dev/nvidiactl") == 0) {
    if (options_.deny_control_node) return fail_call(EACCES);
  } else if (std::sscanf(path, "/dev/nvidia%d", &fresh.minor) == 1) {
    if (fresh.minor >= options_.gpus) return fail_call(ENOENT);
    if (options_.deny_device_nodes) return fail_call(EACCES);
  } else {
    return fail_call(ENOENT);
  }
  const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd >= 0) nodes_[fd] = fresh;
  return fd;
}

int fake_rm::close(int fd) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = nodes_.find(fd); found != nodes_.end()) {
      if (found->second.pending_fd >= 0) ::close(found->second.pending_fd);
      nodes_.erase(found);
    }
  }
  return ::close(fd);
}

int fake_rm::ioctl(int fd, unsigned long request, void* argument) {
  const std::lock_guard lock(mutex_);
  const auto found = nodes_.find(fd);
  if (found == nodes_.end() || ((request >> 8) & 0xff) != 'F') return fail_call(ENOTTY);
  const unsigned number = request & 0xff;
  const std::size_t bytes = (request >> 16) & 0x3fff;
  const auto is = [&](unsigned wanted, std::size_t size) {
    if (number != wanted) return false;
    if (bytes != size) ++protocol_errors_;
    return bytes == size;
  };
  if (number == rm::esc_register_fd) {
    if (found->second.minor < 0) return fail_call(EINVAL);
    found->second.registered = nodes_.count(static_cast<rm::register_fd_params*>(argument)->control_fd) != 0;
    return found->second.registered ? 0 : fail_call(EINVAL);
  }
  if (found->second.minor >= 0) {  // everything else goes to the control node
    ++protocol_errors_;
    return fail_call(EINVAL);
  }
  if (is(rm::esc_alloc, sizeof(rm::alloc_params))) {
    auto& p = *static_cast<rm::alloc_params*>(argument);
    p.status = alloc(p);
  } else if (is(rm::esc_dup_object, sizeof(rm::dup_params))) {
    auto& p = *static_cast<rm::dup_params*>(argument);
    p.status = duplicate(p);
  } else if (is(rm::esc_map_memory, sizeof(rm::map_params))) {
    auto& p = *static_cast<rm::map_params*>(argument);
    p.status = map(p);
  } else if (is(rm::esc_unmap_memory, sizeof(rm::unmap_params))) {
    auto& p = *static_cast<rm::unmap_params*>(argument);
    p.status = unmap(p);
  } else if (is(rm::esc_free, sizeof(rm::free_params))) {
    auto& p = *static_cast<rm::free_params*>(argument);
    p.status = free(p);
  } else if (is(rm::esc_control, sizeof(rm::control_params))) {
    auto& p = *static_cast<rm::control_params*>(argument);
    p.status = control(p);
  } else if (is(rm::esc_check_version, sizeof(rm::version_params))) {
    auto& p = *static_cast<rm::version_params*>(argument);
    std::snprintf(p.text, sizeof p.text, "%s", options_.version.c_str());
    p.reply = 1;
  } else if (number == rm::esc_card_info) {
    list_cards(static_cast<rm::card_info*>(argument), bytes / sizeof(rm::card_info));
  } else {
    return fail_call(EINVAL);
  }
  return 0;
}

void fake_rm::list_cards(rm::card_info* cards, std::size_t count) {
  for (int gpu = 0; gpu < options_.gpus && static_cast<std::size_t>(gpu) < count; ++gpu) {
    rm::card_info& card = cards[options_.gpus - 1 - gpu];  // listed backwards
    card.valid = 1;
    card.domain = 0;
    card.bus = 0xfe;
    card.slot = static_cast<std::uint8_t>(gpu);
    card.gpu_id = 0x100u + static_cast<unsigned>(gpu);
    card.minor = static_cast<std::uint32_t>(minor_of(gpu));
  }
}

std::uint32_t fake_rm::alloc(rm::alloc_params& p) {
  if (p.object_class == rm::class_root_client) {
    p.object = next_client_++;
    clients_[p.object] = getpid();
    return rm::status_ok;
  }
  if (!owned(p.root)) return rm::status_invalid_client;
  if (objects_.count({p.root, p.object}) != 0) return kInUse;
  object fresh{p.root, p.parent, p.object_class};
  if (p.object_class == rm::class_device) {
    if (p.params_bytes != sizeof(rm::device_params) || p.parent != p.root) return kInvalidParent;
    const auto instance = reinterpret_cast<const rm::device_params*>(p.params)->device_instance;
    for (int gpu = 0; gpu < options_.gpus; ++gpu)
      if (instance_of(gpu) == instance) fresh.gpu = gpu;
    if (fresh.gpu < 0) return kBadArgument;
    // As where no process has CUDA: the driver holds a GPU only while somebody has its node open.
    const bool is_held = std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& one) {
      return one.second.registered && one.second.minor == minor_of(fresh.gpu);
    });
    if (!is_held) return rm::status_insufficient_permissions;
  } else if (p.object_class == rm::class_subdevice) {
    const auto parent = objects_.find({p.root, p.parent});
    if (parent == objects_.end() || parent->second.object_class != rm::class_device) return kInvalidParent;
    fresh.gpu = parent->second.gpu;
  } else {
    return kBadArgument;
  }
  objects_[{p.root, p.object}] = fresh;
  return rm::status_ok;
}

std::uint32_t fake_rm::add_memory(rm::handle root, rm::handle parent, rm::handle handle, int memfd, std::uint64_t bytes) {
  const auto device = objects_.find({root, parent});
  if (device == objects_.end() || device->second.object_class != rm::class_device || objects_.count({root, handle}) != 0) {
    ::close(memfd);
    return kInvalidParent;
  }
  objects_[{root, handle}] = object{root, parent, kMemory, device->second.gpu, memfd, bytes};
  return rm::status_ok;
}

std::uint32_t fake_rm::duplicate(rm::dup_params& p) {
  if (!owned(p.client)) return rm::status_invalid_client;
  const int memfd = sim_object_fd(p.client_source, p.object_source);
  if (memfd < 0) return kObjectNotFound;
  return add_memory(p.client, p.parent, p.object, memfd, sim_object_bytes(p.client_source, p.object_source));
}

std::uint32_t fake_rm::import(rm::handle root, rm::import_object_params& p) {
  struct stat about {};
  if (p.type != rm::kExportObjectTypeRm || fstat(p.fd, &about) != 0) return kBadArgument;
  return add_memory(root, p.parent, p.object, fcntl(p.fd, F_DUPFD_CLOEXEC, 0), static_cast<std::uint64_t>(about.st_size));
}

std::uint32_t fake_rm::control(rm::control_params& p) {
  if (!owned(p.client)) return rm::status_invalid_client;
  if (p.command == rm::ctrl_gpu_id_info_v2) {
    auto& info = *reinterpret_cast<rm::gpu_id_info_params*>(p.params);
    const int gpu = static_cast<int>(info.gpu_id) - 0x100;
    if (gpu < 0 || gpu >= options_.gpus) return kBadArgument;
    info.device_instance = instance_of(gpu);
    info.subdevice_instance = 0;
    return rm::status_ok;
  }
  if (p.command == rm::ctrl_os_import_object)
    return import(p.client, *reinterpret_cast<rm::import_object_params*>(p.params));
  return rm::status_not_supported;
}

std::uint32_t fake_rm::map(rm::map_params& p) {
  if (!owned(p.client)) return rm::status_invalid_client;
  const auto memory = objects_.find({p.client, p.memory});
  const auto subdevice = objects_.find({p.client, p.device});
  if (memory == objects_.end() || memory->second.object_class != kMemory) return kObjectNotFound;
  if (subdevice == objects_.end() || subdevice->second.object_class != rm::class_subdevice ||
      subdevice->second.gpu != memory->second.gpu)
    return kInvalidParent;
  if (p.length == 0 || p.offset > memory->second.bytes || p.length > memory->second.bytes - p.offset) return kInvalidLimit;
  if (options_.bar1_full) return rm::status_no_memory;
  const auto node = nodes_.find(p.fd);
  if (node == nodes_.end() || !node->second.registered || node->second.minor != minor_of(memory->second.gpu)) {
    ++protocol_errors_;
    return kBadArgument;
  }
  if (node->second.pending_fd >= 0) {
    ++protocol_errors_;
    return kInUse;
  }
  node->second.pending_fd = fcntl(memory->second.memfd, F_DUPFD_CLOEXEC, 0);
  node->second.pending_offset =
      p.offset + (options_.shift_mapping && p.offset + p.length + 4096 <= memory->second.bytes ? 4096 : 0);
  node->second.pending_length = p.length;
  p.linear_address = next_linear_;
  next_linear_ += 1 << 20;
  mappings_[p.linear_address] = {p.client, p.memory};
  return rm::status_ok;
}

std::uint32_t fake_rm::unmap(rm::unmap_params& p) {
  if (!owned(p.client)) return rm::status_invalid_client;
  const auto found = mappings_.find(p.linear_address);
  if (found == mappings_.end() || found->second.memory != p.memory) {
    ++protocol_errors_;
    return kObjectNotFound;
  }
  mappings_.erase(found);
  return rm::status_ok;
}

std::uint32_t fake_rm::free(rm::free_params& p) {
  if (!owned(p.root)) return rm::status_invalid_client;
  const bool whole_client = p.object == p.root;
  for (auto it = objects_.begin(); it != objects_.end();) {
    if (it->first.first == p.root && (whole_client || it->first.second == p.object)) {
      if (it->second.memfd >= 0) ::close(it->second.memfd);
      it = objects_.erase(it);
    } else {
      ++it;
    }
  }
  for (auto it = mappings_.begin(); it != mappings_.end();) {
    const bool gone = it->second.root == p.root && (whole_client || it->second.memory == p.object);
    if (gone) ++protocol_errors_;  // freed under a live mapping: the real RM copes, a tidy client does not do it
    it = gone ? mappings_.erase(it) : std::next(it);
  }
  if (whole_client) clients_.erase(p.root);
  return rm::status_ok;
}

void* fake_rm::mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) {
  int memfd = fd;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = nodes_.find(fd); found != nodes_.end()) {
      if (found->second.pending_fd < 0 || found->second.pending_length != size_bytes || offset != 0)
        return errno = EINVAL, MAP_FAILED;
      if (found->second.pending_offset % 4096 != 0) return errno = ENXIO, MAP_FAILED;
      memfd = found->second.pending_fd;
      offset = static_cast<off_t>(found->second.pending_offset);
      found->second.pending_fd = -1;
    }
  }
  void* got = ::mmap(address, size_bytes, protection, flags, memfd, offset);
  const int saved = errno;
  if (memfd != fd) ::close(memfd);
  errno = saved;
  return got;
}

int fake_rm::munmap(void* address, std::size_t size_bytes) { return ::munmap(address, size_bytes); }
int fake_rm::madvise(void* address, std::size_t size_bytes, int advice) { return ::madvise(address, size_bytes, advice); }

result<std::string> fake_rm::read_text(const char* path) {
  if (options_.no_driver) return failure{ENOENT, path};
  if (std::strcmp(path, "/sys/module/nvidia/version") == 0) return options_.version + "\n";
  return failure{ENOENT, path};
}

}  // namespace pl::test
