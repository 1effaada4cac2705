// SPDX-License-Identifier: Apache-2.0
// The part of the NVIDIA resource manager's ioctl interface that mapping needs, restated: numbers and layouts.
//
// Source of the facts: NVIDIA open-gpu-kernel-modules (nvos.h, nv_escape.h, nv-ioctl.h, nv-ioctl-numbers.h, cl0080.h,
// cl2080.h, ctrl0000gpu.h, ctrl0000unix.h), compared with what libcuda of driver 580.159 sends. Little-endian, natural
// alignment. One file per ABI: if a driver series changes a layout, it gets its own file beside this one. An ioctl that
// returns 0 may still have failed: the RM's result is in `status`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::rm {

using handle = std::uint32_t;

constexpr unsigned ioctl_request(unsigned number, std::size_t size_bytes) {  // _IOWR('F', number, size)
  return (3u << 30) | (static_cast<unsigned>(size_bytes) << 16) | (unsigned{'F'} << 8) | number;
}

enum escape : unsigned {
  esc_free = 0x29,
  esc_control = 0x2a,
  esc_alloc = 0x2b,
  esc_dup_object = 0x34,
  esc_map_memory = 0x4e,
  esc_unmap_memory = 0x4f,
  esc_card_info = 200,
  esc_register_fd = 201,
  esc_check_version = 210,
  esc_transfer = 211,  // {u32 nr, u32 size, u64 pointer}: structs too large for the request word
  esc_export_dma_buf = 217,
};

enum object_class : std::uint32_t { class_root_client = 0x41, class_device = 0x80, class_subdevice = 0x2080 };

enum control : std::uint32_t {
  ctrl_gpu_id_info_v2 = 0x205,
  ctrl_os_export_object = 0x3d05,
  ctrl_os_import_object = 0x3d06,
};

// Status words that the client distinguishes (nvstatuscodes.h); everything else is reported by number.
enum rm_status : std::uint32_t {
  status_ok = 0x00,
  status_insufficient_resources = 0x1a,
  status_insufficient_permissions = 0x1b,
  status_invalid_client = 0x23,
  status_invalid_limit = 0x2e,
  status_invalid_object_handle = 0x33,
  status_no_memory = 0x51,
  status_not_supported = 0x56,
  status_object_not_found = 0x57,
};

struct alloc_params {  // NVOS21
  handle root, parent, object;
  std::uint32_t object_class;
  std::uint64_t params;
  std::uint32_t params_bytes;
  std::uint32_t status;
};
static_assert(sizeof(alloc_params) == 32);

struct device_params {  // NV0080_ALLOC_PARAMETERS
  std::uint32_t device_instance;
  handle client_share, target_client, target_device;
  std::uint32_t flags;
  std::uint32_t pad;
  std::uint64_t va_space_bytes, va_start, va_limit;
  std::uint32_t va_mode;
  std::uint32_t pad2;
};
static_assert(sizeof(device_params) == 56);

struct subdevice_params {  // NV2080_ALLOC_PARAMETERS
  std::uint32_t subdevice_instance;
};

struct dup_params {  // NVOS55
  handle client, parent, object, client_source, object_source;
  std::uint32_t flags;
  std::uint32_t status;
};
static_assert(sizeof(dup_params) == 28);

struct map_params {  // NVOS33 with the descriptor that will be mmapped
  handle client, device, memory;
  std::uint32_t pad;
  std::uint64_t offset, length, linear_address;
  std::uint32_t status;
  std::uint32_t flags;
  std::int32_t fd;
  std::uint32_t pad2;
};
static_assert(sizeof(map_params) == 56);

struct unmap_params {  // NVOS34
  handle client, device, memory;
  std::uint32_t pad;
  std::uint64_t linear_address;
  std::uint32_t status;
  std::uint32_t flags;
};
static_assert(sizeof(unmap_params) == 32);

struct free_params {  // NVOS00
  handle root, parent, object;
  std::uint32_t status;
};
static_assert(sizeof(free_params) == 16);

struct control_params {  // NVOS54
  handle client, object;
  std::uint32_t command, flags;
  std::uint64_t params;
  std::uint32_t params_bytes;
  std::uint32_t status;
};
static_assert(sizeof(control_params) == 32);

struct version_params {  // nv_ioctl_rm_api_version_t; command '2' asks for the kernel module's version
  std::uint32_t command;
  std::uint32_t reply;
  char text[64];
};
static_assert(sizeof(version_params) == 72);
constexpr std::uint32_t kVersionQuery = '2';

struct register_fd_params {
  std::int32_t control_fd;
};

struct transfer_params {
  std::uint32_t number;
  std::uint32_t size_bytes;
  std::uint64_t pointer;
};
static_assert(sizeof(transfer_params) == 16);

// All GPUs that the driver knows, as the kernel fills them: an array whose unused entries are not valid. (Control
// 0x3d07, which also returns the minor number, answers NOT_SUPPORTED to ordinary clients on 580.159.)
constexpr std::size_t kMaxGpus = 32;
struct card_info {  // nv_ioctl_card_info_t
  std::uint8_t valid;
  std::uint8_t pad[3];
  std::uint32_t domain;
  std::uint8_t bus, slot, function, pad2;
  std::uint16_t vendor_id, device_id;
  std::uint32_t gpu_id;
  std::uint16_t interrupt_line, pad3;
  std::uint64_t reg_address, reg_bytes, fb_address, fb_bytes;
  std::uint32_t minor;
  std::uint8_t device_name[10];
  std::uint8_t pad4[2];
};
static_assert(sizeof(card_info) == 72);

struct gpu_id_info_params {
  std::uint32_t gpu_id, gpu_flags, device_instance, subdevice_instance, sli_status, board_id, gpu_instance;
  std::int32_t numa_id;
};
static_assert(sizeof(gpu_id_info_params) == 32);

struct import_object_params {  // NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS
  std::int32_t fd;
  std::uint32_t type;  // 1 = an RM object
  handle device, parent, object;
};
static_assert(sizeof(import_object_params) == 20);
constexpr std::uint32_t kExportObjectTypeRm = 1;

struct export_object_params {  // NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS
  std::uint32_t type;
  handle device, parent, object;
  std::int32_t fd;  // a fresh descriptor of /dev/nvidiactl, which represents the object from then on
  std::uint32_t flags;
};
static_assert(sizeof(export_object_params) == 24);

// What libcuda passes to the kernel when it exports a range as a dma-buf: the objects behind the range, in order.
constexpr std::size_t kExportMaxHandles = 128;
struct export_dma_buf_params {
  std::int32_t fd;
  handle client;
  std::uint32_t total_objects, object_count, index;
  std::uint32_t pad;
  std::uint64_t total_bytes;
  std::uint8_t mapping_type;
  std::uint8_t allow_mmap;
  std::uint8_t pad2[2];
  handle handles[kExportMaxHandles];
  std::uint32_t pad3;
  std::uint64_t offsets[kExportMaxHandles];
  std::uint64_t sizes[kExportMaxHandles];
  std::uint32_t status;
  std::uint32_t pad4;
};
static_assert(sizeof(export_dma_buf_params) == 2608);

// The same before mapping_type existed; the size in the request word distinguishes the two.
struct export_dma_buf_params_2600 {
  std::int32_t fd;
  handle client;
  std::uint32_t total_objects, object_count, index;
  std::uint32_t pad;
  std::uint64_t total_bytes;
  handle handles[kExportMaxHandles];
  std::uint64_t offsets[kExportMaxHandles];
  std::uint64_t sizes[kExportMaxHandles];
  std::uint32_t status;
  std::uint32_t pad2;
};
static_assert(sizeof(export_dma_buf_params_2600) == 2600);

}  // namespace pl::rm
