// SPDX-License-Identifier: Apache-2.0
// The part of the resource manager's interface that DMA channels need, restated: classes, controls and layouts.
//
// Source of the facts: NVIDIA open-gpu-kernel-modules, tags 535.43.02 to 595.45.04 (nvos.h, alloc/alloc_channel.h,
// cl0070.h, ctrl0080gpu.h, ctrl2080ce.h, ctrla06c/ctrla06cgpfifo.h, ctrlc36f.h, and the class headers of each GPU
// generation). Fields that are used have the same offsets in every branch, except after the flags of map_dma and
// unmap_dma. Sizes differ, and the resource manager refuses a block of the wrong size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "rm/rm_abi.hpp"

namespace pl::rm {

enum channel_escape : unsigned {
  esc_alloc_memory = 0x27,
  esc_map_memory_dma = 0x57,
  esc_unmap_memory_dma = 0x58,
  esc_alloc_os_event = 206,  // this and the next on a registered descriptor of /dev/nvidiaN
  esc_free_os_event = 207,
};

enum channel_object_class : std::uint32_t {
  class_device_memory = 0x40,    // NV01_MEMORY_LOCAL_USER
  class_virtual_memory = 0x70,   // NV01_MEMORY_VIRTUAL
  class_host_memory = 0x71,      // NV01_MEMORY_SYSTEM_OS_DESCRIPTOR
  class_os_event = 0x79,         // NV01_EVENT_OS_EVENT
  class_address_space = 0x90f1,  // FERMI_VASPACE_A
  class_channel_group = 0xa06c,  // KEPLER_CHANNEL_GROUP_A
  class_peer_link = 0x503b,      // NV50_P2P, under the client

  class_confidential_computing = 0xcb33,  // NV_CONFIDENTIAL_COMPUTE, under the client
};

enum channel_control : std::uint32_t {
  ctrl_class_list = 0x800292,           // on the device
  ctrl_copy_engine_caps = 0x20802a03,   // on the subdevice
  ctrl_set_notification = 0x20800301,   // on the subdevice
  ctrl_group_schedule = 0xa06c0101,     // on the group
  ctrl_group_timeslice = 0xa06c0103,    // on the group
  ctrl_work_submit_token = 0xc36f0108,  // on the channel
  ctrl_mmu_fault = 0x906f0106,          // on the channel
  ctrl_gpu_info = 0x20800102,           // on the subdevice
  ctrl_confidential = 0xcb330101,       // on the object of that class
  ctrl_peer_capabilities = 0x13a,       // on the client
};

// Classes of each generation, newest first; a GPU's class list names those that it has.
inline constexpr std::array<std::uint32_t, 6> kChannelClasses{0xca6f, 0xc96f, 0xc86f, 0xc56f, 0xc46f, 0xc36f};
inline constexpr std::array<std::uint32_t, 7> kCopyClasses{0xcab5, 0xc9b5, 0xc8b5, 0xc7b5, 0xc6b5, 0xc5b5, 0xc3b5};
inline constexpr std::array<std::uint32_t, 5> kDoorbellClasses{0xc761, 0xc661, 0xc561, 0xc461, 0xc361};

// Doorbell page: 64 KiB, the channel's token is stored at this offset.
constexpr std::size_t kDoorbellBytes = 0x10000;
constexpr std::size_t kDoorbellOffset = 0x90;
// The channel's user words (USERD): how far work has been queued.
constexpr std::size_t kPutOffset = 0x8c;

constexpr std::uint32_t kEngineCopy0 = 9;  // COPYn = 9 + n, for n < 10
constexpr unsigned kMaxCopyEngines = 10;

// Capabilities of a copy engine, first byte.
constexpr std::uint8_t kCopyEngineShared = 1 << 0;  // "GRCE": shares its runlist with the graphics engine

// NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS: a count, and room for as many classes as the branch defines.
constexpr std::size_t kMaxClassRoom = 200;
struct class_list_params {
  std::uint32_t count;
  std::uint32_t classes[kMaxClassRoom];
};

struct copy_engine_caps_params {  // NV2080_CTRL_CE_GET_CAPS_V2_PARAMS
  std::uint32_t engine;
  std::uint8_t caps[2];
  std::uint8_t pad[2];
};
static_assert(sizeof(copy_engine_caps_params) == 8);

// NV_VASPACE_ALLOCATION_PARAMETERS, all zero; 48 bytes until 575, 56 from 580 on.
struct address_space_params {
  std::uint32_t index, flags;
  std::uint64_t size_bytes, start, limit;
  std::uint32_t big_page_bytes, pad;
  std::uint64_t base;
  std::uint32_t pasid, pad2;
};
static_assert(sizeof(address_space_params) == 56);

struct virtual_memory_params {  // NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS
  std::uint64_t offset, limit;
  handle address_space;
  std::uint32_t pad;
};
static_assert(sizeof(virtual_memory_params) == 24);

// NV_MEMORY_ALLOCATION_PARAMS: 120 bytes in 535, 128 from 550 on.
struct device_memory_params {
  std::uint32_t owner, type, flags, width, height;
  std::int32_t pitch;
  std::uint32_t attributes, attributes2, format, compression, z_culling, pad;
  std::uint64_t range_low, range_high, size_bytes, alignment, offset, limit, address;
  std::uint32_t tag_offset;
  handle address_space;
  std::uint32_t internal_flags, tag;
  std::int32_t numa_node, pad2;
};
static_assert(sizeof(device_memory_params) == 128 && offsetof(device_memory_params, size_bytes) == 64);
constexpr std::uint32_t kAttributePages = 1u << 27;  // pages need not be contiguous, because the GPU's addresses are
constexpr std::uint32_t kFormatPitch = 6;

struct host_memory_params {  // NVOS02 with the descriptor of nv_ioctl_nvos02_parameters_with_fd
  handle root, parent, object;
  std::uint32_t object_class, flags, pad;
  std::uint64_t address, limit;
  std::uint32_t status, pad2;
  std::int32_t fd;
  std::uint32_t pad3;
};
static_assert(sizeof(host_memory_params) == 56 && offsetof(host_memory_params, fd) == 48);
// Pages need not be contiguous, are cached by the CPU, and are never mapped for it by the resource manager.
constexpr std::uint32_t kHostMemoryFlags = 1u << 4 | 1u << 12 | 1u << 30;

struct map_dma_head {  // NVOS46 up to its flags; the rest depends on the branch
  handle client, device, virtual_memory, memory;
  std::uint64_t offset, length;
  std::uint32_t flags, pad;
};
static_assert(sizeof(map_dma_head) == 40);
constexpr std::uint32_t kMapSnooped = 1u << 4;  // host memory: DMA snoops the CPU's caches
// Memory of another GPU, with a peer link between the two. Mandatory for such memory: the driver would otherwise map
// this GPU's own memory at the other's physical addresses.
constexpr std::uint32_t kMapPeer = 2u << 20;

struct unmap_dma_head {  // NVOS47
  handle client, device, virtual_memory, memory;
  std::uint32_t flags, pad;
  std::uint64_t address;
};
static_assert(sizeof(unmap_dma_head) == 32);

// NV503B_ALLOC_PARAMETERS: 72 bytes until 580, 88 from 590 on. All zero except for the two GPUs.
struct peer_link_params {
  handle subdevice, peer_subdevice;
  std::uint32_t peer_ids, peer_ids_back;  // masks; 0: the driver chooses and returns its choice
  std::uint64_t mailbox_address;
  std::uint32_t mailbox_bytes, flags, egm_peer_ids, egm_peer_ids_back;
  std::uint64_t bar_addresses[4], fabric_addresses[2];
};
static_assert(sizeof(peer_link_params) == 88);

constexpr std::size_t kMaxPeerGroup = 8;
struct peer_capabilities_params {  // NV0000_CTRL_SYSTEM_GET_P2P_CAPS_MATRIX_PARAMS: rows of group a, columns of group b
  std::uint32_t a_count, b_count, a[kMaxPeerGroup], b[kMaxPeerGroup];
  std::uint32_t capabilities[kMaxPeerGroup][kMaxPeerGroup];
  // Masks of the copy engines that use a link at its full rate; others are several times slower (H100: 395 and 90
  // GB/s).
  std::uint32_t read_engines[kMaxPeerGroup][kMaxPeerGroup], write_engines[kMaxPeerGroup][kMaxPeerGroup];
  std::uint32_t read_engines_back[kMaxPeerGroup][kMaxPeerGroup], write_engines_back[kMaxPeerGroup][kMaxPeerGroup];
};
static_assert(sizeof(peer_capabilities_params) == 1352);

struct channel_group_params {  // NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS
  handle error_context, ecc_error_context, address_space;
  std::uint32_t engine;
  std::uint8_t is_vgpu_plugin, pad[3];
};
static_assert(sizeof(channel_group_params) == 20);

struct memory_description {  // NV_MEMORY_DESC_PARAMS
  std::uint64_t base, size_bytes;
  std::uint32_t address_space, cache_attributes;
};

// NV_CHANNEL_ALLOC_PARAMS: 360 bytes until 565, 368 from 570 on.
struct channel_params {
  handle error_object, buffer_object;
  std::uint64_t ring_address;
  std::uint32_t ring_entries, flags;
  handle context_share, address_space;
  handle user_words_memory[8];
  std::uint64_t user_words_offset[8];
  std::uint32_t engine, channel_id, subdevice_id;
  handle ecc_error_object;
  memory_description instance, user_words, ram_fc, method_buffer;
  handle physical_group;
  std::uint32_t internal_flags;
  memory_description error_notifier, ecc_error_notifier;
  std::uint32_t process_id, sub_process_id;
  std::uint32_t encryption_iv[3], decryption_iv[3], hmac_nonce[8];
  std::uint32_t tpc_config, pad;
};
static_assert(sizeof(channel_params) == 368 && offsetof(channel_params, engine) == 128);
static_assert(offsetof(channel_params, process_id) == 296 && offsetof(channel_params, tpc_config) == 360);

struct notification {  // NvNotification: what the driver writes to the channel's error object
  std::uint32_t time_ns[2];
  std::uint32_t info;  // the Xid's number
  std::uint16_t info16;
  std::uint16_t status;  // 0: nothing was written
};
static_assert(sizeof(notification) == 16);

struct mmu_fault_params {  // NV906F_CTRL_GET_MMU_FAULT_INFO_PARAMS
  std::uint32_t address_high, address_low, type;
  char name[32];
  std::uint32_t pad;
  std::uint64_t shaders[7];
};
static_assert(sizeof(mmu_fault_params) == 104);

struct copy_object_params {  // NVB0B5_ALLOCATION_PARAMETERS
  std::uint32_t version, engine;
};
struct timeslice_params {  // NVA06C_CTRL_TIMESLICE_PARAMS
  std::uint64_t microseconds;
};
static_assert(sizeof(timeslice_params) == 8);

struct schedule_params {  // NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS, of which only the first field is set
  std::uint8_t enable, skip_submit, skip_enable;
};
static_assert(sizeof(schedule_params) == 3);

// ---- Interrupts to a descriptor

// nv_ioctl_alloc_os_event_t and nv_ioctl_free_os_event_t: events are identified by client and number.
struct os_event_params {
  handle client, device;
  std::uint32_t fd;
  std::uint32_t status;
};
static_assert(sizeof(os_event_params) == 16);

struct event_params {  // NV0005_ALLOC_PARAMETERS
  handle client, source;
  std::uint32_t object_class, index;
  std::uint64_t fd;
};
static_assert(sizeof(event_params) == 24);
constexpr std::uint32_t kNotifierCopy0 = 23;  // COPYn = 23 + n, for n < 10
// Flags of `index`. Without the first the event never arrives; without the second its data piles up, and the descriptor
// stays readable for ever (H100).
constexpr std::uint32_t kEventOfEngine = 0x0800'0000, kEventWithoutData = 0x1000'0000;

struct set_notification_params {  // NV2080_CTRL_EVENT_SET_NOTIFICATION_PARAMS
  std::uint32_t event, action;
  std::uint8_t state, pad[3];
  std::uint32_t info32;
  std::uint16_t info16, pad2;
};
static_assert(sizeof(set_notification_params) == 20);
constexpr std::uint32_t kNotifyAlways = 2;

// ---- States in which no channel may be opened

struct gpu_info_entry {  // NV2080_CTRL_GPU_INFO
  std::uint32_t index, value;
};
constexpr std::size_t kMaxGpuInfo = 70;
struct gpu_info_params {  // NV2080_CTRL_GPU_GET_INFO_V2_PARAMS: room for as many entries as the branch defines
  std::uint32_t count;
  gpu_info_entry entries[kMaxGpuInfo];
};
constexpr std::uint32_t kGpuInfoMigMode = 0x2a;
constexpr std::uint32_t kMigEnabled = 1, kMigDisablePending = 4;  // both: it is enabled now

struct confidential_params {  // NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES_PARAMS
  std::uint8_t cpu, gpus, environment, feature, developer_tools, multi_gpu;
};
static_assert(sizeof(confidential_params) == 6);

// What differs between driver branches: the size of each block, and where map_dma's results are.
struct channel_layout {
  unsigned branch;  // 535 of "535.98"
  std::uint32_t address_space_bytes, device_memory_bytes, channel_bytes, schedule_bytes;
  std::uint32_t map_dma_bytes, map_dma_address, map_dma_status;
  std::uint32_t unmap_dma_bytes;
  std::uint32_t class_room;
  std::uint32_t gpu_info_bytes, confidential_bytes, peer_link_bytes;
};
// Every published release of these branches was compared (scripts/check-rm-layouts.py, docs/results/dma/layouts.txt).
// Layouts of others are not guessed.
inline constexpr std::array<channel_layout, 11> kChannelLayouts{{
    {535, 48, 120, 360, 2, 56, 40, 48, 40, 160, 516, 5, 72},
    {545, 48, 128, 360, 2, 56, 40, 48, 40, 160, 524, 5, 72},
    {550, 48, 128, 360, 2, 56, 40, 48, 48, 174, 524, 6, 72},
    {555, 48, 128, 360, 2, 56, 40, 48, 48, 100, 524, 6, 72},
    {560, 48, 128, 360, 2, 56, 40, 48, 48, 100, 524, 6, 72},
    {565, 48, 128, 360, 2, 56, 40, 48, 48, 100, 524, 6, 72},
    {570, 48, 128, 368, 2, 56, 40, 48, 48, 100, 524, 6, 72},
    {575, 48, 128, 368, 3, 56, 40, 48, 48, 100, 532, 6, 72},
    {580, 56, 128, 368, 3, 64, 48, 56, 48, 200, 564, 6, 72},
    {590, 56, 128, 368, 3, 64, 48, 56, 48, 200, 564, 6, 88},
    {595, 56, 128, 368, 3, 64, 48, 56, 48, 200, 564, 6, 88},
}};
// The first releases of branch 535, whose block for channels is shorter.
inline constexpr channel_layout kFirst535Layout{535, 48, 120, 304, 2, 56, 40, 48, 40, 160, 516, 5, 72};
inline constexpr std::array<std::string_view, 2> kFirst535Releases{"535.43.02", "535.54.03"};
constexpr std::size_t kMaxMapDmaBytes = 64;

// The layout of a release such as "580.159.04". Null if it is unknown: no channel may be tried then.
constexpr const channel_layout* channel_layout_of(std::string_view driver_version) {
  for (const auto release : kFirst535Releases)
    if (release == driver_version) return &kFirst535Layout;
  unsigned branch = 0;
  for (std::size_t i = 0; i < driver_version.size() && driver_version[i] != '.'; ++i) {
    if (driver_version[i] < '0' || driver_version[i] > '9' || branch > 9999) return nullptr;
    branch = branch * 10 + static_cast<unsigned>(driver_version[i] - '0');
  }
  for (const auto& layout : kChannelLayouts)
    if (layout.branch == branch) return &layout;
  return nullptr;
}

}  // namespace pl::rm
