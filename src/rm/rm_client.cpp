// SPDX-License-Identifier: Apache-2.0
#include "rm/rm_client.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/text.hpp"
#include "os/faulting_range.hpp"

namespace pl::rm {
namespace {

constexpr int kMaxInterruptedRetries = 1000;  // EINTR/EAGAIN are transient; the bound turns a broken kernel into an error

int errno_of_status(std::uint32_t rm_status_word) {
  switch (rm_status_word) {
    case status_insufficient_resources:
    case status_no_memory:
      return ENOMEM;
    case status_insufficient_permissions:
    case status_invalid_client:
      return EACCES;
    case status_invalid_limit:
      return EINVAL;
    case status_object_not_found:
    case status_invalid_object_handle:
      return ENOENT;
    case status_not_supported:
      return ENOTSUP;
    default:
      return EIO;
  }
}

failure rm_failure(const char* operation, int rc, std::uint32_t rm_status_word) {
  if (rc != 0) return failure{errno, format("resource manager: %s failed: %s", operation, errno_text(errno).c_str())};
  const int code = errno_of_status(rm_status_word);
  const char* hint = "";
  if (code == ENOMEM)
    hint = ": GPU memory, BAR1 or memory of the driver is used up; release mappings or memory, or map smaller ranges";
  if (code == EACCES) hint = ": the driver does not let this process do it (a forked child, or a restricted container)";
  if (code == ENOENT) hint = ": the memory object is gone (freed meanwhile?)";
  return failure{code, format("resource manager: %s failed with status 0x%x%s", operation, rm_status_word, hint)};
}

}  // namespace

result<pci_address> parse_pci_address(const std::string& text) {
  pci_address out;
  const char* position = text.data();
  const char* const end = position + text.size();
  for (std::uint32_t* field : {&out.domain, &out.bus, &out.device}) {
    const auto parsed = std::from_chars(position, end, *field, 16);
    const bool last = field == &out.device;
    const bool separated = last ? parsed.ptr == end || *parsed.ptr == '.' : parsed.ptr != end && *parsed.ptr == ':';
    if (parsed.ec != std::errc{} || !separated)
      return failure{EINVAL, format("\"%s\" is not a PCI address such as 0000:0a:00.0", text.c_str())};
    position = parsed.ptr + 1;
  }
  return out;
}

int client::call(int fd, unsigned escape, void* params, std::size_t size_bytes) {
  int rc = -1;
  for (int attempt = 0; attempt < kMaxInterruptedRetries; ++attempt) {
    rc = io_.ioctl(fd, ioctl_request(escape, size_bytes), params);
    if (rc >= 0 || (errno != EINTR && errno != EAGAIN)) break;
  }
  return rc;
}

result<std::unique_ptr<client>> client::open(device_io& io) {
  const int fd = io.open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    const int code = errno;
    const char* hint = code == EACCES || code == EPERM
                           ? "no permission: run in the group that owns it, or chmod 666 /dev/nvidiactl /dev/nvidia0 as root"
                           : "no NVIDIA driver is loaded, or the container was started without the GPU's device nodes";
    return failure{code, format("/dev/nvidiactl cannot be opened (%s): %s", errno_text(code).c_str(), hint)};
  }
  unique_fd owner(io, fd);  // before memory for the client is allocated
  auto self = std::unique_ptr<client>(new client(io, std::move(owner)));
  alloc_params params{};
  params.object_class = class_root_client;
  const int rc = self->call(fd, esc_alloc, &params, sizeof params);
  if (rc != 0 || params.status != status_ok) return rm_failure("making a root client", rc, params.status);
  self->root_ = params.object;
  return self;
}

client::~client() {
  if (root_ == 0) return;
  free_params params{root_, 0, root_, 0};  // frees every object below it
  call(control_.get(), esc_free, &params, sizeof params);
}

status client::alloc(handle parent, handle object, std::uint32_t object_class, void* params, std::size_t bytes,
                     const char* operation) {
  alloc_params request{};
  request.root = root_;
  request.parent = parent;
  request.object = object;
  request.object_class = object_class;
  request.params = reinterpret_cast<std::uint64_t>(params);
  request.params_bytes = static_cast<std::uint32_t>(bytes);
  const int rc = call(control_.get(), esc_alloc, &request, sizeof request);
  if (rc != 0 || request.status != status_ok) return rm_failure(operation, rc, request.status);
  return {};
}

status client::control(handle object, std::uint32_t command, void* params, std::size_t bytes, const char* operation) {
  control_params request{};
  request.client = root_;
  request.object = object;
  request.command = command;
  request.params = reinterpret_cast<std::uint64_t>(params);
  request.params_bytes = static_cast<std::uint32_t>(bytes);
  const int rc = call(control_.get(), esc_control, &request, sizeof request);
  if (rc != 0 || request.status != status_ok) return rm_failure(operation, rc, request.status);
  return {};
}

result<unique_fd> client::open_device_node(const gpu& target) {
  char path[32];
  std::snprintf(path, sizeof path, "/dev/nvidia%u", target.minor);
  const int fd = io_.open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    const int code = errno;
    return failure{code, format("%s cannot be opened (%s): the GPU's device node must be in the container and readable "
                                "and writable for this user",
                                path, errno_text(code).c_str())};
  }
  unique_fd owner(io_, fd);
  register_fd_params params{control_.get()};
  if (call(fd, esc_register_fd, &params, sizeof params) != 0) return rm_failure("registering a device descriptor", -1, 0);
  return owner;
}

status client::make_device_objects(gpu& target) {
  auto node = open_device_node(target);
  if (!node) return node.error();  // a lack of permission is reported here, with its own message
  device_params device{};
  device.device_instance = target.device_instance;
  const handle device_handle = next_handle();
  if (auto s = alloc(root_, device_handle, class_device, &device, sizeof device, "making a device object"); !s) return s;
  subdevice_params subdevice{target.subdevice_instance};
  const handle subdevice_handle = next_handle();
  if (auto s =
          alloc(device_handle, subdevice_handle, class_subdevice, &subdevice, sizeof subdevice, "making a subdevice object");
      !s) {
    free_params undo{root_, root_, device_handle, 0};
    call(control_.get(), esc_free, &undo, sizeof undo);
    return s;
  }
  target.device = device_handle;
  target.subdevice = subdevice_handle;
  target.node = *std::move(node);
  return {};
}

result<const gpu*> client::find_gpu(const pci_address& pci) {
  const std::lock_guard lock(gpus_mutex_);
  for (const auto& known : gpus_)
    if (known->pci == pci) return known.get();
  card_info cards[kMaxGpus] = {};
  const int rc = call(control_.get(), esc_card_info, cards, sizeof cards);
  if (rc != 0) return rm_failure("listing the GPUs", rc, 0);
  for (const auto& card : cards) {
    if (card.valid == 0 || pci_address{card.domain, card.bus, card.slot} != pci) continue;
    auto found = std::make_unique<gpu>();
    found->pci = pci;
    found->gpu_id = card.gpu_id;
    found->minor = card.minor;
    gpu_id_info_params id{};
    id.gpu_id = card.gpu_id;
    if (auto s = control(root_, ctrl_gpu_id_info_v2, &id, sizeof id, "asking for a GPU's device instance"); !s)
      return s.error();
    found->device_instance = id.device_instance;
    found->subdevice_instance = id.subdevice_instance;
    gpus_.reserve(gpus_.size() + 1);  // before the objects are created, because memory may run out
    if (auto s = make_device_objects(*found); !s) return s.error();
    gpus_.push_back(std::move(found));
    return gpus_.back().get();
  }
  return failure{ENODEV,
                 format("the resource manager knows no GPU at PCI %04x:%02x:%02x: its device node is not visible here",
                        pci.domain, pci.bus, pci.device)};
}

result<handle> client::duplicate(const gpu& owner, handle source_client, handle source_object) {
  dup_params params{};
  params.client = root_;
  params.parent = owner.device;
  params.object = next_handle();
  params.client_source = source_client;
  params.object_source = source_object;
  const int rc = call(control_.get(), esc_dup_object, &params, sizeof params);
  if (rc != 0 || params.status != status_ok) return rm_failure("sharing CUDA's memory object", rc, params.status);
  live_objects_.fetch_add(1);
  return params.object;
}

result<handle> client::import(const gpu& owner, int exported_fd) {
  import_object_params params{};
  params.fd = exported_fd;
  params.type = kExportObjectTypeRm;
  params.device = owner.device;
  params.parent = owner.device;
  params.object = next_handle();
  if (auto s = control(root_, ctrl_os_import_object, &params, sizeof params, "importing an exported memory object"); !s)
    return s.error();
  live_objects_.fetch_add(1);
  return params.object;
}

result<unique_fd> client::export_object(const gpu& owner, handle object) {
  const int fd = io_.open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
  if (fd < 0) return failure{errno, format("no descriptor to export GPU memory by: %s", errno_text(errno).c_str())};
  unique_fd out(io_, fd);
  export_object_params params{kExportObjectTypeRm, owner.device, owner.device, object, fd, 0};
  if (auto s = control(root_, ctrl_os_export_object, &params, sizeof params, "exporting a memory object"); !s)
    return s.error();
  return out;
}

void client::release(const gpu& owner, handle object) noexcept {
  free_params params{root_, owner.device, object, 0};
  call(control_.get(), esc_free, &params, sizeof params);
  live_objects_.fetch_sub(1);
}

result<cpu_mapping> client::map(const gpu& owner, handle memory, std::uint64_t offset, std::size_t length,
                                void* fixed_address) {
  auto node = open_device_node(owner);  // a descriptor carries one pending mapping, so each map needs a fresh one
  if (!node) return node.error();
  map_params params{};
  params.client = root_;
  params.device = owner.subdevice;
  params.memory = memory;
  params.offset = offset;
  params.length = length;
  params.fd = node->get();
  const int rc = call(control_.get(), esc_map_memory, &params, sizeof params);
  if (rc != 0 || params.status != status_ok) return rm_failure("mapping GPU memory through BAR1", rc, params.status);
  cpu_mapping out{nullptr, length, params.linear_address, memory, &owner};
  const int flags = MAP_SHARED | (fixed_address != nullptr ? MAP_FIXED : 0);
  void* address = io_.mmap(fixed_address, length, PROT_READ | PROT_WRITE, flags, node->get(), 0);
  const int mmap_errno = errno;
  if (address != MAP_FAILED) {
    out.address = address;
    if (io_.madvise(address, length, MADV_DONTFORK) == 0) {
      live_objects_.fetch_add(1);
      return out;  // the VMA keeps the file; the descriptor is closed here
    }
  }
  const int code = address == MAP_FAILED ? mmap_errno : errno;
  const char* step = address == MAP_FAILED ? "mmap" : "madvise(MADV_DONTFORK)";
  live_objects_.fetch_add(1);  // unmap() undoes it
  unmap(out, fixed_address != nullptr ? unmap_policy::reservation : unmap_policy::hole);
  return failure{code,
                 format("%s of %s of GPU memory failed: %s", step, format_size(length).c_str(), errno_text(code).c_str())};
}

void client::unmap(const cpu_mapping& mapping, unmap_policy left) noexcept {
  constexpr int kReserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mapping.address != nullptr) {
    if (left == unmap_policy::reservation) io_.mmap(mapping.address, mapping.size_bytes, PROT_NONE, kReserve, -1, 0);
    else if (left == unmap_policy::faulting) leave_faulting_range(io_, mapping.address, mapping.size_bytes);
    else io_.munmap(mapping.address, mapping.size_bytes);
  }
  unmap_params params{};
  params.client = root_;
  params.device = mapping.owner->subdevice;
  params.memory = mapping.memory;
  params.linear_address = mapping.linear_address;
  call(control_.get(), esc_unmap_memory, &params, sizeof params);
  live_objects_.fetch_sub(1);
}

}  // namespace pl::rm
