// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's binary interface that Peerlane uses, restated: types, constants, struct layouts.
//
// Why not <cuda.h>: the library is built on machines without a toolkit and opens libcuda.so.1 at run time.
// test/abi/driver_abi_test.cpp compares every line here with the real header wherever that is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::cu {

using device_ptr = std::uint64_t;  // CUdeviceptr
using device_t = int;              // CUdevice: an ordinal
using result_t = int;              // CUresult
struct context_s;
struct stream_s;
struct event_s;
struct module_s;
struct function_s;
struct pool_s;
struct graph_s;
struct graph_exec_s;
struct graph_node_s;
struct user_object_s;
using context_t = context_s*;
using stream_t = stream_s*;
using event_t = event_s*;
using module_t = module_s*;
using function_t = function_s*;
using pool_t = pool_s*;
using graph_t = graph_s*;
using graph_exec_t = graph_exec_s*;
using graph_node_t = graph_node_s*;
using user_object_t = user_object_s*;
using host_function_t = void (*)(void*);  // CUhostFn
using physical_t = unsigned long long;    // CUmemGenericAllocationHandle

struct uuid_t {
  unsigned char bytes[16];
};
struct ipc_mem_handle_t {
  char reserved[64];
};

namespace error_code {
enum : result_t {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  stub_library = 34,
  device_unavailable = 46,
  no_device = 100,
  invalid_device = 101,
  invalid_image = 200,
  invalid_context = 201,
  map_failed = 205,
  already_mapped = 208,
  no_binary_for_gpu = 209,
  not_mapped = 211,
  ecc_uncorrectable = 214,
  unsupported_limit = 215,
  peer_access_unsupported = 217,
  invalid_source = 300,
  file_not_found = 301,
  symbol_not_found = 302,
  operating_system = 304,
  invalid_handle = 400,
  illegal_state = 401,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  launch_out_of_resources = 701,
  launch_timeout = 702,
  peer_access_already_enabled = 704,
  peer_access_not_enabled = 705,
  primary_context_active = 708,
  context_is_destroyed = 709,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  misaligned_address = 716,
  launch_failed = 719,
  not_permitted = 800,
  not_supported = 801,
  system_not_ready = 802,
  system_driver_mismatch = 803,
  stream_capture_unsupported = 900,
  stream_capture_invalidated = 901,
  stream_capture_merge = 902,
  stream_capture_unmatched = 903,
  stream_capture_unjoined = 904,
  stream_capture_isolation = 905,
  stream_capture_implicit = 906,
  captured_event = 907,
  stream_capture_wrong_thread = 908,
  timeout = 909,
  unknown = 999,
};
}

namespace device_attribute {
enum : int {
  max_threads_per_block = 1,
  multiprocessor_count = 16,
  integrated = 18,
  can_map_host_memory = 19,
  compute_mode = 20,
  ecc_enabled = 32,
  pci_bus_id = 33,
  pci_device_id = 34,
  l2_cache_bytes = 38,
  max_threads_per_multiprocessor = 39,
  async_engine_count = 40,
  unified_addressing = 41,
  pci_domain_id = 50,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  managed_memory = 83,
  pageable_memory_access = 88,
  can_use_host_pointer_for_registered_mem = 91,
  cooperative_launch = 95,
  can_flush_remote_writes = 98,
  pageable_memory_access_uses_host_page_tables = 100,
  virtual_memory_management = 102,
  handle_type_posix_fd = 103,
  gpu_direct_rdma_with_vmm = 110,
  memory_pools = 115,
  gpu_direct_rdma = 116,
  gpu_direct_rdma_flush_options = 117,
  gpu_direct_rdma_writes_ordering = 118,
  can_use_stream_wait_value_nor = 123,
  dma_buf = 124,
  handle_type_fabric = 128,
  numa_config = 130,
  numa_id = 131,
  multicast_supported = 132,
  host_numa_id = 134,
  dma_buf_mmap = 152,  // since CUDA 13.3: exported dma-bufs can be mapped
};
}

namespace pointer_attribute {
enum : int {
  context = 1,
  memory_type = 2,
  device_pointer = 3,
  host_pointer = 4,
  p2p_tokens = 5,
  sync_memops = 6,
  buffer_id = 7,
  is_managed = 8,
  device_ordinal = 9,
  is_legacy_ipc_capable = 10,
  range_start = 11,
  range_size = 12,
  mapped = 13,
  allowed_handle_types = 14,
  is_gpu_direct_rdma_capable = 15,
  access_flags = 16,
  mempool_handle = 17,
  mapping_size = 18,
  mapping_base = 19,
  memory_block_id = 20,
};
}

namespace memory_type {
enum : unsigned { host = 1, device = 2, array = 3, unified = 4 };
}
namespace location_type {
enum : int { invalid = 0, device = 1, host = 2, host_numa = 3 };
}
namespace allocation_type {
enum : int { pinned = 1 };
}
namespace handle_type {
enum : int { none = 0, posix_fd = 1, fabric = 8 };
}
namespace granularity {
enum : int { minimum = 0, recommended = 1 };
}
namespace access_flags {
enum : int { none = 0, read = 1, read_write = 3 };
}
namespace range_handle_type {
enum : int { dma_buf_fd = 1 };
}
namespace compute_mode {
enum : int { shared = 0, prohibited = 2, exclusive_process = 3 };
}

// flags of cuMemGetHandleForAddressRange. `sim_offset_in_position` is understood by the simulated GPU only (real
// drivers refuse unknown flags): the returned descriptor's file position is the offset of the range's first byte.
namespace range_flag {
enum : unsigned long long { mapping_type_pcie = 1, sim_offset_in_position = 1ull << 62 };
}

namespace host_alloc_flag {
enum : unsigned { portable = 1, device_map = 2, write_combined = 4 };
}
namespace host_register_flag {
enum : unsigned { portable = 1, device_map = 2, io_memory = 4 };
}
namespace stream_flag {
enum : unsigned { standard = 0, non_blocking = 1 };
}
namespace event_flag {
enum : unsigned { standard = 0, blocking_sync = 1, disable_timing = 2, interprocess = 4 };
}
namespace event_record_flag {
enum : unsigned { standard = 0, external = 1 };
}
namespace event_wait_flag {
enum : unsigned { standard = 0, external = 1 };
}
namespace wait_value {
enum : unsigned { geq = 0, eq = 1, bit_and = 2, nor = 3, flush = 1u << 30 };
}
namespace write_value {
enum : unsigned { standard = 0, no_memory_barrier = 1 };
}
namespace mem_op {
enum : int { wait32 = 1, write32 = 2, flush_remote_writes = 3, wait64 = 4, write64 = 5, barrier = 6 };
}
namespace memory_barrier {
enum : unsigned { system = 0, device = 1 };
}
namespace capture_mode {
enum : int { global = 0, thread_local_only = 1, relaxed = 2 };
}
namespace capture_status {
enum : int { none = 0, active = 1, invalidated = 2 };
}
namespace capture_dependencies {
enum : unsigned { add = 0, set = 1 };
}
namespace graph_node_type {
enum : int {
  kernel = 0,
  memcpy = 1,
  memset = 2,
  host = 3,
  event_wait = 6,
  event_record = 7,
  batch_mem_op = 12,
};
}
namespace user_object_flag {
enum : unsigned { no_destructor_sync = 1 };
}
namespace user_object_retain_flag {
enum : unsigned { move = 1 };
}
namespace memcpy_source_order {
enum : int { stream = 1, during_call = 2, any = 3 };
}
namespace flush_target {
enum : int { current_context = 0 };
}
namespace flush_scope {
enum : int { owner = 100, all_devices = 200 };
}

struct memory_location {  // CUmemLocation
  int type;
  int id;
};

struct allocation_prop {  // CUmemAllocationProp
  int type;
  int requested_handle_types;
  memory_location location;
  void* win32_meta;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
static_assert(sizeof(allocation_prop) == 32);

struct multicast_prop {  // CUmulticastObjectProp
  unsigned devices;
  std::size_t bytes;  // of each device
  unsigned long long handle_types;
  unsigned long long flags;
};
static_assert(sizeof(multicast_prop) == 32);

struct access_desc {  // CUmemAccessDesc
  memory_location location;
  int flags;
};
static_assert(sizeof(access_desc) == 12);

struct pool_props {  // CUmemPoolProps
  int alloc_type;
  int handle_types;
  memory_location location;
  void* win32_security;
  std::size_t max_bytes;
  unsigned short usage;
  unsigned char reserved[54];
};
static_assert(sizeof(pool_props) == 88);

union mem_op_params {  // CUstreamBatchMemOpParams
  int operation;
  struct value_op {
    int operation;
    device_ptr address;
    union {
      std::uint32_t value32;
      std::uint64_t value64;
    };
    unsigned flags;
    device_ptr alias;
  } value;
  struct simple_op {
    int operation;
    unsigned flags;
  } simple;
  std::uint64_t pad[6];
};
static_assert(sizeof(mem_op_params) == 48);

struct batch_mem_op_node_params {  // CUDA_BATCH_MEM_OP_NODE_PARAMS
  context_t context;
  unsigned count;
  mem_op_params* ops;
  unsigned flags;
};
static_assert(sizeof(batch_mem_op_node_params) == 32);

struct memcpy_attributes {  // CUmemcpyAttributes
  int source_order;         // memcpy_source_order
  memory_location source_hint;
  memory_location destination_hint;
  unsigned flags;
};
static_assert(sizeof(memcpy_attributes) == 24);

struct memcpy_2d {  // CUDA_MEMCPY2D
  std::size_t src_x_bytes, src_y;
  unsigned src_type;  // memory_type
  const void* src_host;
  device_ptr src_device;
  void* src_array;
  std::size_t src_pitch;
  std::size_t dst_x_bytes, dst_y;
  unsigned dst_type;
  void* dst_host;
  device_ptr dst_device;
  void* dst_array;
  std::size_t dst_pitch;
  std::size_t width_bytes;
  std::size_t height;
};
static_assert(sizeof(memcpy_2d) == 128);

// The newer part of the list below: graphs, and what streams learnt with them.
#define PL_CUDA_GRAPH_FUNCTIONS(X)                                                                                          \
  X(cuMemcpyBatchAsync_v2,                                                                                                  \
    (device_ptr * dsts, device_ptr * srcs, std::size_t * sizes, std::size_t count, memcpy_attributes * attributes,          \
     std::size_t * first, std::size_t attribute_count, stream_t stream))                                                    \
  X(cuStreamGetCtx, (stream_t stream, context_t * context))                                                                 \
  X(cuStreamGetId, (stream_t stream, unsigned long long* id))                                                               \
  X(cuLaunchHostFunc, (stream_t stream, host_function_t function, void* data))                                              \
  X(cuEventRecordWithFlags, (event_t event, stream_t stream, unsigned flags))                                               \
  X(cuStreamBeginCapture_v2, (stream_t stream, int mode))                                                                   \
  X(cuStreamEndCapture, (stream_t stream, graph_t * graph))                                                                 \
  X(cuStreamGetCaptureInfo_v3, (stream_t stream, int* status, std::uint64_t* id, graph_t* graph,                            \
                                const graph_node_t** nodes, const void** edges, std::size_t* count))                        \
  X(cuStreamUpdateCaptureDependencies_v2,                                                                                   \
    (stream_t stream, graph_node_t * nodes, const void* edges, std::size_t count, unsigned flags))                          \
  X(cuGraphCreate, (graph_t * graph, unsigned flags))                                                                       \
  X(cuGraphDestroy, (graph_t graph))                                                                                        \
  X(cuGraphGetNodes, (graph_t graph, graph_node_t * nodes, std::size_t * count))                                            \
  X(cuGraphNodeGetType, (graph_node_t node, int* type))                                                                     \
  X(cuGraphAddBatchMemOpNode, (graph_node_t * node, graph_t graph, const graph_node_t* after, std::size_t count,            \
                               const batch_mem_op_node_params* params))                                                     \
  X(cuGraphInstantiateWithFlags, (graph_exec_t * exec, graph_t graph, unsigned long long flags))                            \
  X(cuGraphExecBatchMemOpNodeSetParams, (graph_exec_t exec, graph_node_t node, const batch_mem_op_node_params* params))     \
  X(cuGraphLaunch, (graph_exec_t exec, stream_t stream))                                                                    \
  X(cuGraphExecDestroy, (graph_exec_t exec))                                                                                \
  X(cuUserObjectCreate, (user_object_t * object, void* data, host_function_t destroy, unsigned references, unsigned flags)) \
  X(cuUserObjectRetain, (user_object_t object, unsigned count))                                                             \
  X(cuUserObjectRelease, (user_object_t object, unsigned count))                                                            \
  X(cuGraphRetainUserObject, (graph_t graph, user_object_t object, unsigned count, unsigned flags))                         \
  X(cuGraphReleaseUserObject, (graph_t graph, user_object_t object, unsigned count))

// X(name as exported, parameter list). Every function returns result_t. The list is the driver table
// (driver_table.hpp) and what the simulated GPU must at least provide.
#define PL_CUDA_DRIVER_FUNCTIONS(X)                                                                                     \
  X(cuInit, (unsigned flags))                                                                                           \
  X(cuDriverGetVersion, (int* version))                                                                                 \
  X(cuGetErrorName, (result_t code, const char** name))                                                                 \
  X(cuGetErrorString, (result_t code, const char** text))                                                               \
  X(cuDeviceGetCount, (int* count))                                                                                     \
  X(cuDeviceGet, (device_t * device, int ordinal))                                                                      \
  X(cuDeviceGetName, (char* name, int capacity, device_t device))                                                       \
  X(cuDeviceGetUuid_v2, (uuid_t * uuid, device_t device))                                                               \
  X(cuDeviceGetPCIBusId, (char* text, int capacity, device_t device))                                                   \
  X(cuDeviceGetAttribute, (int* value, int attribute, device_t device))                                                 \
  X(cuDeviceTotalMem_v2, (std::size_t * bytes, device_t device))                                                        \
  X(cuDeviceCanAccessPeer, (int* can, device_t device, device_t peer))                                                  \
  X(cuDevicePrimaryCtxRetain, (context_t * context, device_t device))                                                   \
  X(cuDevicePrimaryCtxRelease_v2, (device_t device))                                                                    \
  X(cuDevicePrimaryCtxGetState, (device_t device, unsigned* flags, int* active))                                        \
  X(cuCtxCreate_v2, (context_t * context, unsigned flags, device_t device))                                             \
  X(cuCtxDestroy_v2, (context_t context))                                                                               \
  X(cuCtxGetCurrent, (context_t * context))                                                                             \
  X(cuCtxSetCurrent, (context_t context))                                                                               \
  X(cuCtxPushCurrent_v2, (context_t context))                                                                           \
  X(cuCtxPopCurrent_v2, (context_t * context))                                                                          \
  X(cuCtxGetDevice, (device_t * device))                                                                                \
  X(cuCtxSynchronize, ())                                                                                               \
  X(cuCtxEnablePeerAccess, (context_t peer, unsigned flags))                                                            \
  X(cuMemGetInfo_v2, (std::size_t * free_bytes, std::size_t * total_bytes))                                             \
  X(cuMemAlloc_v2, (device_ptr * pointer, std::size_t bytes))                                                           \
  X(cuMemFree_v2, (device_ptr pointer))                                                                                 \
  X(cuMemAllocManaged, (device_ptr * pointer, std::size_t bytes, unsigned flags))                                       \
  X(cuMemHostAlloc, (void** pointer, std::size_t bytes, unsigned flags))                                                \
  X(cuMemFreeHost, (void* pointer))                                                                                     \
  X(cuMemHostRegister_v2, (void* pointer, std::size_t bytes, unsigned flags))                                           \
  X(cuMemHostUnregister, (void* pointer))                                                                               \
  X(cuMemHostGetDevicePointer_v2, (device_ptr * pointer, void* host, unsigned flags))                                   \
  X(cuMemGetAddressRange_v2, (device_ptr * base, std::size_t * bytes, device_ptr pointer))                              \
  X(cuMemGetHandleForAddressRange,                                                                                      \
    (void* handle, device_ptr pointer, std::size_t bytes, int type, unsigned long long flags))                          \
  X(cuMemcpyHtoD_v2, (device_ptr dst, const void* src, std::size_t bytes))                                              \
  X(cuMemcpyDtoH_v2, (void* dst, device_ptr src, std::size_t bytes))                                                    \
  X(cuMemcpyDtoD_v2, (device_ptr dst, device_ptr src, std::size_t bytes))                                               \
  X(cuMemcpyHtoDAsync_v2, (device_ptr dst, const void* src, std::size_t bytes, stream_t stream))                        \
  X(cuMemcpyDtoHAsync_v2, (void* dst, device_ptr src, std::size_t bytes, stream_t stream))                              \
  X(cuMemcpyDtoDAsync_v2, (device_ptr dst, device_ptr src, std::size_t bytes, stream_t stream))                         \
  X(cuMemcpyAsync, (device_ptr dst, device_ptr src, std::size_t bytes, stream_t stream))                                \
  X(cuMemcpy2DAsync_v2, (const memcpy_2d* copy, stream_t stream))                                                       \
  X(cuMemsetD8_v2, (device_ptr dst, unsigned char value, std::size_t count))                                            \
  X(cuMemsetD32_v2, (device_ptr dst, unsigned value, std::size_t count))                                                \
  X(cuMemsetD8Async, (device_ptr dst, unsigned char value, std::size_t count, stream_t stream))                         \
  X(cuPointerGetAttribute, (void* data, int attribute, device_ptr pointer))                                             \
  X(cuPointerGetAttributes, (unsigned count, int* attributes, void** data, device_ptr pointer))                         \
  X(cuPointerSetAttribute, (const void* value, int attribute, device_ptr pointer))                                      \
  X(cuMemAddressReserve,                                                                                                \
    (device_ptr * pointer, std::size_t bytes, std::size_t alignment, device_ptr hint, unsigned long long flags))        \
  X(cuMemAddressFree, (device_ptr pointer, std::size_t bytes))                                                          \
  X(cuMemCreate, (physical_t * handle, std::size_t bytes, const allocation_prop* prop, unsigned long long flags))       \
  X(cuMemRelease, (physical_t handle))                                                                                  \
  X(cuMemMap, (device_ptr pointer, std::size_t bytes, std::size_t offset, physical_t handle, unsigned long long flags)) \
  X(cuMemUnmap, (device_ptr pointer, std::size_t bytes))                                                                \
  X(cuMemSetAccess, (device_ptr pointer, std::size_t bytes, const access_desc* desc, std::size_t count))                \
  X(cuMemGetAllocationGranularity, (std::size_t * bytes, const allocation_prop* prop, int option))                      \
  X(cuMemExportToShareableHandle, (void* out, physical_t handle, int type, unsigned long long flags))                   \
  X(cuMemImportFromShareableHandle, (physical_t * handle, void* os_handle, int type))                                   \
  X(cuMemRetainAllocationHandle, (physical_t * handle, void* pointer))                                                  \
  X(cuMulticastCreate, (physical_t * handle, const multicast_prop* prop))                                               \
  X(cuMulticastAddDevice, (physical_t handle, device_t device))                                                         \
  X(cuMulticastBindMem, (physical_t handle, std::size_t offset, physical_t memory, std::size_t memory_offset,           \
                         std::size_t bytes, unsigned long long flags))                                                  \
  X(cuMulticastUnbind, (physical_t handle, device_t device, std::size_t offset, std::size_t bytes))                     \
  X(cuMulticastGetGranularity, (std::size_t * bytes, const multicast_prop* prop, int option))                           \
  X(cuMemAllocAsync, (device_ptr * pointer, std::size_t bytes, stream_t stream))                                        \
  X(cuMemFreeAsync, (device_ptr pointer, stream_t stream))                                                              \
  X(cuDeviceGetDefaultMemPool, (pool_t * pool, device_t device))                                                        \
  X(cuIpcGetMemHandle, (ipc_mem_handle_t * handle, device_ptr pointer))                                                 \
  X(cuIpcOpenMemHandle_v2, (device_ptr * pointer, ipc_mem_handle_t handle, unsigned flags))                             \
  X(cuIpcCloseMemHandle, (device_ptr pointer))                                                                          \
  X(cuStreamCreate, (stream_t * stream, unsigned flags))                                                                \
  X(cuStreamCreateWithPriority, (stream_t * stream, unsigned flags, int priority))                                      \
  X(cuCtxGetStreamPriorityRange, (int* least, int* greatest))                                                           \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                                     \
  X(cuStreamIsCapturing, (stream_t stream, int* status))                                                                \
  X(cuCtxGetId, (context_t context, unsigned long long* id))                                                            \
  X(cuStreamDestroy_v2, (stream_t stream))                                                                              \
  X(cuStreamSynchronize, (stream_t stream))                                                                             \
  X(cuStreamQuery, (stream_t stream))                                                                                   \
  X(cuStreamWaitEvent, (stream_t stream, event_t event, unsigned flags))                                                \
  X(cuStreamWaitValue32_v2, (stream_t stream, device_ptr address, std::uint32_t value, unsigned flags))                 \
  X(cuStreamWriteValue32_v2, (stream_t stream, device_ptr address, std::uint32_t value, unsigned flags))                \
  X(cuStreamWaitValue64_v2, (stream_t stream, device_ptr address, std::uint64_t value, unsigned flags))                 \
  X(cuStreamWriteValue64_v2, (stream_t stream, device_ptr address, std::uint64_t value, unsigned flags))                \
  X(cuStreamBatchMemOp_v2, (stream_t stream, unsigned count, mem_op_params* ops, unsigned flags))                       \
  X(cuEventCreate, (event_t * event, unsigned flags))                                                                   \
  X(cuEventDestroy_v2, (event_t event))                                                                                 \
  X(cuEventRecord, (event_t event, stream_t stream))                                                                    \
  X(cuEventSynchronize, (event_t event))                                                                                \
  X(cuEventQuery, (event_t event))                                                                                      \
  X(cuEventElapsedTime, (float* milliseconds, event_t start, event_t end))                                              \
  X(cuModuleLoadData, (module_t * module, const void* image))                                                           \
  X(cuModuleUnload, (module_t module))                                                                                  \
  X(cuModuleGetFunction, (function_t * function, module_t module, const char* name))                                    \
  X(cuLaunchKernel,                                                                                                     \
    (function_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,        \
     unsigned block_z, unsigned shared_bytes, stream_t stream, void** params, void** extra))                            \
  X(cuFlushGPUDirectRDMAWrites, (int target, int scope))                                                                \
  PL_CUDA_GRAPH_FUNCTIONS(X)

}  // namespace pl::cu
