// SPDX-License-Identifier: Apache-2.0
// src/cuda/driver_abi.hpp restates the CUDA driver's interface from knowledge; here the real header proves it.
// Nearly everything is a static_assert: if this file compiles with a toolkit at hand, the restatement is right.
// Without cuda.h nothing can be compared, and the one test says so. driver_abi_complete (ctest) sees that no constant of
// driver_abi.hpp is missing here.
#include <gtest/gtest.h>

#ifdef PL_CUDA_HEADER
// Makes the header declare every version of a call under its exported name instead of renaming by macro.
#define __CUDA_API_VERSION_INTERNAL
#include PL_CUDA_HEADER
#endif

#include "cuda/driver_abi.hpp"
#include "cuda/graph_conditions.hpp"

#if defined(PL_CUDA_HEADER) && CUDA_VERSION >= 13000

#include <cstddef>
#include <type_traits>

namespace cu = pl::cu;

#define SAME_VALUE(ours, theirs) \
  static_assert(static_cast<long long>(cu::ours) == static_cast<long long>(theirs), #ours " differs from " #theirs)
#define SAME_LAYOUT(ours, theirs) static_assert(sizeof(cu::ours) == sizeof(theirs) && alignof(cu::ours) == alignof(theirs))
#define SAME_FIELD(ours, our_field, theirs, their_field)                          \
  static_assert(offsetof(cu::ours, our_field) == offsetof(theirs, their_field) && \
                    sizeof(cu::ours::our_field) == sizeof(theirs::their_field),   \
                #ours "::" #our_field " is not where " #theirs "::" #their_field " lies")

// ---- Constants -------------------------------------------------------------------------------------------------------
SAME_VALUE(error_code::success, CUDA_SUCCESS);
SAME_VALUE(error_code::invalid_value, CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(error_code::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(error_code::not_initialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(error_code::unsupported_limit, CUDA_ERROR_UNSUPPORTED_LIMIT);
SAME_VALUE(error_code::deinitialized, CUDA_ERROR_DEINITIALIZED);
SAME_VALUE(error_code::stub_library, CUDA_ERROR_STUB_LIBRARY);
SAME_VALUE(error_code::device_unavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
SAME_VALUE(error_code::no_device, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(error_code::invalid_device, CUDA_ERROR_INVALID_DEVICE);
SAME_VALUE(error_code::invalid_image, CUDA_ERROR_INVALID_IMAGE);
SAME_VALUE(error_code::invalid_context, CUDA_ERROR_INVALID_CONTEXT);
SAME_VALUE(error_code::map_failed, CUDA_ERROR_MAP_FAILED);
SAME_VALUE(error_code::already_mapped, CUDA_ERROR_ALREADY_MAPPED);
SAME_VALUE(error_code::no_binary_for_gpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME_VALUE(error_code::not_mapped, CUDA_ERROR_NOT_MAPPED);
SAME_VALUE(error_code::ecc_uncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME_VALUE(error_code::peer_access_unsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME_VALUE(error_code::invalid_source, CUDA_ERROR_INVALID_SOURCE);
SAME_VALUE(error_code::file_not_found, CUDA_ERROR_FILE_NOT_FOUND);
SAME_VALUE(error_code::symbol_not_found, CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND);
SAME_VALUE(error_code::operating_system, CUDA_ERROR_OPERATING_SYSTEM);
SAME_VALUE(error_code::invalid_handle, CUDA_ERROR_INVALID_HANDLE);
SAME_VALUE(error_code::illegal_state, CUDA_ERROR_ILLEGAL_STATE);
SAME_VALUE(error_code::not_found, CUDA_ERROR_NOT_FOUND);
SAME_VALUE(error_code::not_ready, CUDA_ERROR_NOT_READY);
SAME_VALUE(error_code::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_VALUE(error_code::launch_out_of_resources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
SAME_VALUE(error_code::launch_timeout, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME_VALUE(error_code::peer_access_already_enabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME_VALUE(error_code::peer_access_not_enabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
SAME_VALUE(error_code::primary_context_active, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
SAME_VALUE(error_code::context_is_destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME_VALUE(error_code::host_memory_already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME_VALUE(error_code::host_memory_not_registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME_VALUE(error_code::misaligned_address, CUDA_ERROR_MISALIGNED_ADDRESS);
SAME_VALUE(error_code::launch_failed, CUDA_ERROR_LAUNCH_FAILED);
SAME_VALUE(error_code::not_permitted, CUDA_ERROR_NOT_PERMITTED);
SAME_VALUE(error_code::not_supported, CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(error_code::system_not_ready, CUDA_ERROR_SYSTEM_NOT_READY);
SAME_VALUE(error_code::system_driver_mismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME_VALUE(error_code::stream_capture_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME_VALUE(error_code::stream_capture_invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME_VALUE(error_code::stream_capture_merge, CUDA_ERROR_STREAM_CAPTURE_MERGE);
SAME_VALUE(error_code::stream_capture_unmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
SAME_VALUE(error_code::stream_capture_unjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
SAME_VALUE(error_code::stream_capture_isolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME_VALUE(error_code::stream_capture_implicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME_VALUE(error_code::captured_event, CUDA_ERROR_CAPTURED_EVENT);
SAME_VALUE(error_code::stream_capture_wrong_thread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME_VALUE(error_code::timeout, CUDA_ERROR_TIMEOUT);
SAME_VALUE(error_code::unknown, CUDA_ERROR_UNKNOWN);

SAME_VALUE(device_attribute::max_threads_per_block, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_VALUE(device_attribute::multiprocessor_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(device_attribute::integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
SAME_VALUE(device_attribute::can_map_host_memory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
SAME_VALUE(device_attribute::compute_mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME_VALUE(device_attribute::ecc_enabled, CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
SAME_VALUE(device_attribute::pci_bus_id, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME_VALUE(device_attribute::pci_device_id, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME_VALUE(device_attribute::l2_cache_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME_VALUE(device_attribute::max_threads_per_multiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME_VALUE(device_attribute::async_engine_count, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
SAME_VALUE(device_attribute::unified_addressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME_VALUE(device_attribute::pci_domain_id, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME_VALUE(device_attribute::compute_capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(device_attribute::compute_capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(device_attribute::managed_memory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
SAME_VALUE(device_attribute::pageable_memory_access, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
SAME_VALUE(device_attribute::can_use_host_pointer_for_registered_mem,
           CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME_VALUE(device_attribute::cooperative_launch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
SAME_VALUE(device_attribute::can_flush_remote_writes, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
SAME_VALUE(device_attribute::pageable_memory_access_uses_host_page_tables,
           CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
SAME_VALUE(device_attribute::virtual_memory_management, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_VALUE(device_attribute::handle_type_posix_fd, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME_VALUE(device_attribute::gpu_direct_rdma_with_vmm, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME_VALUE(device_attribute::memory_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
SAME_VALUE(device_attribute::gpu_direct_rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
SAME_VALUE(device_attribute::gpu_direct_rdma_flush_options, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
SAME_VALUE(device_attribute::gpu_direct_rdma_writes_ordering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
SAME_VALUE(device_attribute::can_use_stream_wait_value_nor, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR);
SAME_VALUE(device_attribute::dma_buf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
SAME_VALUE(device_attribute::handle_type_fabric, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
SAME_VALUE(device_attribute::numa_config, CU_DEVICE_ATTRIBUTE_NUMA_CONFIG);
SAME_VALUE(device_attribute::numa_id, CU_DEVICE_ATTRIBUTE_NUMA_ID);
SAME_VALUE(device_attribute::multicast_supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
SAME_VALUE(device_attribute::host_numa_id, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
#if CUDA_VERSION >= 13030
SAME_VALUE(device_attribute::dma_buf_mmap, CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED);
#endif

SAME_VALUE(pointer_attribute::context, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME_VALUE(pointer_attribute::memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_VALUE(pointer_attribute::device_pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME_VALUE(pointer_attribute::host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER);
SAME_VALUE(pointer_attribute::p2p_tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS);
SAME_VALUE(pointer_attribute::sync_memops, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
SAME_VALUE(pointer_attribute::buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME_VALUE(pointer_attribute::is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME_VALUE(pointer_attribute::device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_VALUE(pointer_attribute::is_legacy_ipc_capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME_VALUE(pointer_attribute::range_start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME_VALUE(pointer_attribute::range_size, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME_VALUE(pointer_attribute::mapped, CU_POINTER_ATTRIBUTE_MAPPED);
SAME_VALUE(pointer_attribute::allowed_handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
SAME_VALUE(pointer_attribute::is_gpu_direct_rdma_capable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE);
SAME_VALUE(pointer_attribute::access_flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS);
SAME_VALUE(pointer_attribute::mempool_handle, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
SAME_VALUE(pointer_attribute::mapping_size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
SAME_VALUE(pointer_attribute::mapping_base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
SAME_VALUE(pointer_attribute::memory_block_id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID);

SAME_VALUE(memory_type::host, CU_MEMORYTYPE_HOST);
SAME_VALUE(memory_type::device, CU_MEMORYTYPE_DEVICE);
SAME_VALUE(memory_type::array, CU_MEMORYTYPE_ARRAY);
SAME_VALUE(memory_type::unified, CU_MEMORYTYPE_UNIFIED);
SAME_VALUE(location_type::invalid, CU_MEM_LOCATION_TYPE_INVALID);
SAME_VALUE(location_type::device, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(location_type::host, CU_MEM_LOCATION_TYPE_HOST);
SAME_VALUE(location_type::host_numa, CU_MEM_LOCATION_TYPE_HOST_NUMA);
SAME_VALUE(allocation_type::pinned, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_VALUE(handle_type::none, CU_MEM_HANDLE_TYPE_NONE);
SAME_VALUE(handle_type::posix_fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_VALUE(handle_type::fabric, CU_MEM_HANDLE_TYPE_FABRIC);
SAME_VALUE(granularity::minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME_VALUE(granularity::recommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME_VALUE(granularity::minimum, CU_MULTICAST_GRANULARITY_MINIMUM);
SAME_VALUE(granularity::recommended, CU_MULTICAST_GRANULARITY_RECOMMENDED);
SAME_VALUE(access_flags::none, CU_MEM_ACCESS_FLAGS_PROT_NONE);
SAME_VALUE(access_flags::read, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME_VALUE(access_flags::read_write, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(range_handle_type::dma_buf_fd, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME_VALUE(compute_mode::shared, CU_COMPUTEMODE_DEFAULT);
SAME_VALUE(compute_mode::prohibited, CU_COMPUTEMODE_PROHIBITED);
SAME_VALUE(compute_mode::exclusive_process, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
SAME_VALUE(range_flag::mapping_type_pcie, CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE);
// Ours alone: must never be a flag that a real driver knows.
static_assert(static_cast<unsigned long long>(cu::range_flag::sim_offset_in_position) >
              static_cast<unsigned long long>(CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE));
SAME_VALUE(host_alloc_flag::portable, CU_MEMHOSTALLOC_PORTABLE);
SAME_VALUE(host_alloc_flag::device_map, CU_MEMHOSTALLOC_DEVICEMAP);
SAME_VALUE(host_alloc_flag::write_combined, CU_MEMHOSTALLOC_WRITECOMBINED);
SAME_VALUE(host_register_flag::portable, CU_MEMHOSTREGISTER_PORTABLE);
SAME_VALUE(host_register_flag::device_map, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME_VALUE(host_register_flag::io_memory, CU_MEMHOSTREGISTER_IOMEMORY);
SAME_VALUE(stream_flag::standard, CU_STREAM_DEFAULT);
SAME_VALUE(stream_flag::non_blocking, CU_STREAM_NON_BLOCKING);
SAME_VALUE(event_flag::standard, CU_EVENT_DEFAULT);
SAME_VALUE(event_flag::blocking_sync, CU_EVENT_BLOCKING_SYNC);
SAME_VALUE(event_flag::disable_timing, CU_EVENT_DISABLE_TIMING);
SAME_VALUE(event_flag::interprocess, CU_EVENT_INTERPROCESS);
SAME_VALUE(event_record_flag::standard, CU_EVENT_RECORD_DEFAULT);
SAME_VALUE(event_record_flag::external, CU_EVENT_RECORD_EXTERNAL);
SAME_VALUE(event_wait_flag::standard, CU_EVENT_WAIT_DEFAULT);
SAME_VALUE(event_wait_flag::external, CU_EVENT_WAIT_EXTERNAL);
SAME_VALUE(wait_value::geq, CU_STREAM_WAIT_VALUE_GEQ);
SAME_VALUE(wait_value::eq, CU_STREAM_WAIT_VALUE_EQ);
SAME_VALUE(wait_value::bit_and, CU_STREAM_WAIT_VALUE_AND);
SAME_VALUE(wait_value::nor, CU_STREAM_WAIT_VALUE_NOR);
SAME_VALUE(wait_value::flush, CU_STREAM_WAIT_VALUE_FLUSH);
SAME_VALUE(write_value::standard, CU_STREAM_WRITE_VALUE_DEFAULT);
SAME_VALUE(write_value::no_memory_barrier, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
SAME_VALUE(mem_op::wait32, CU_STREAM_MEM_OP_WAIT_VALUE_32);
SAME_VALUE(mem_op::write32, CU_STREAM_MEM_OP_WRITE_VALUE_32);
SAME_VALUE(mem_op::flush_remote_writes, CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES);
SAME_VALUE(mem_op::wait64, CU_STREAM_MEM_OP_WAIT_VALUE_64);
SAME_VALUE(mem_op::write64, CU_STREAM_MEM_OP_WRITE_VALUE_64);
SAME_VALUE(mem_op::barrier, CU_STREAM_MEM_OP_BARRIER);
SAME_VALUE(memory_barrier::system, CU_STREAM_MEMORY_BARRIER_TYPE_SYS);
SAME_VALUE(memory_barrier::device, CU_STREAM_MEMORY_BARRIER_TYPE_GPU);
SAME_VALUE(capture_mode::global, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME_VALUE(capture_mode::thread_local_only, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_VALUE(capture_mode::relaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(capture_status::none, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(capture_status::active, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME_VALUE(capture_status::invalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME_VALUE(capture_dependencies::add, CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
SAME_VALUE(capture_dependencies::set, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
SAME_VALUE(graph_node_type::kernel, CU_GRAPH_NODE_TYPE_KERNEL);
SAME_VALUE(graph_node_type::memcpy, CU_GRAPH_NODE_TYPE_MEMCPY);
SAME_VALUE(graph_node_type::memset, CU_GRAPH_NODE_TYPE_MEMSET);
SAME_VALUE(graph_node_type::host, CU_GRAPH_NODE_TYPE_HOST);
SAME_VALUE(graph_node_type::child_graph, CU_GRAPH_NODE_TYPE_GRAPH);
SAME_VALUE(graph_node_type::event_wait, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
SAME_VALUE(graph_node_type::event_record, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
SAME_VALUE(graph_node_type::batch_mem_op, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
SAME_VALUE(graph_node_type::conditional, CU_GRAPH_NODE_TYPE_CONDITIONAL);
SAME_VALUE(graph_condition::once_if, CU_GRAPH_COND_TYPE_IF);
SAME_VALUE(graph_condition::repeat_while, CU_GRAPH_COND_TYPE_WHILE);
SAME_VALUE(graph_condition_flag::assign_default, CU_GRAPH_COND_ASSIGN_DEFAULT);
SAME_VALUE(user_object_flag::no_destructor_sync, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
SAME_VALUE(user_object_retain_flag::move, CU_GRAPH_USER_OBJECT_MOVE);
SAME_VALUE(memcpy_source_order::stream, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
SAME_VALUE(memcpy_source_order::during_call, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
SAME_VALUE(memcpy_source_order::any, CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
SAME_VALUE(flush_target::current_context, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
SAME_VALUE(flush_scope::owner, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
SAME_VALUE(flush_scope::all_devices, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);

// ---- Layouts ---------------------------------------------------------------------------------------------------------
SAME_LAYOUT(device_ptr, CUdeviceptr);
SAME_LAYOUT(device_t, CUdevice);
SAME_LAYOUT(result_t, CUresult);
SAME_LAYOUT(physical_t, CUmemGenericAllocationHandle);
SAME_LAYOUT(uuid_t, CUuuid);
SAME_LAYOUT(ipc_mem_handle_t, CUipcMemHandle);
SAME_LAYOUT(memory_location, CUmemLocation);
SAME_FIELD(memory_location, type, CUmemLocation, type);
SAME_FIELD(memory_location, id, CUmemLocation, id);
SAME_LAYOUT(allocation_prop, CUmemAllocationProp);
SAME_FIELD(allocation_prop, type, CUmemAllocationProp, type);
SAME_FIELD(allocation_prop, requested_handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_FIELD(allocation_prop, location, CUmemAllocationProp, location);
SAME_FIELD(allocation_prop, win32_meta, CUmemAllocationProp, win32HandleMetaData);
SAME_FIELD(allocation_prop, flags.compression_type, CUmemAllocationProp, allocFlags.compressionType);
SAME_FIELD(allocation_prop, flags.gpu_direct_rdma_capable, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_FIELD(allocation_prop, flags.usage, CUmemAllocationProp, allocFlags.usage);
SAME_LAYOUT(multicast_prop, CUmulticastObjectProp);
SAME_FIELD(multicast_prop, devices, CUmulticastObjectProp, numDevices);
SAME_FIELD(multicast_prop, bytes, CUmulticastObjectProp, size);
SAME_FIELD(multicast_prop, handle_types, CUmulticastObjectProp, handleTypes);
SAME_FIELD(multicast_prop, flags, CUmulticastObjectProp, flags);
SAME_LAYOUT(access_desc, CUmemAccessDesc);
SAME_FIELD(access_desc, location, CUmemAccessDesc, location);
SAME_FIELD(access_desc, flags, CUmemAccessDesc, flags);
SAME_LAYOUT(pool_props, CUmemPoolProps);
SAME_FIELD(pool_props, alloc_type, CUmemPoolProps, allocType);
SAME_FIELD(pool_props, handle_types, CUmemPoolProps, handleTypes);
SAME_FIELD(pool_props, location, CUmemPoolProps, location);
SAME_FIELD(pool_props, win32_security, CUmemPoolProps, win32SecurityAttributes);
SAME_FIELD(pool_props, max_bytes, CUmemPoolProps, maxSize);
SAME_FIELD(pool_props, usage, CUmemPoolProps, usage);
SAME_LAYOUT(memcpy_2d, CUDA_MEMCPY2D);
SAME_FIELD(memcpy_2d, src_x_bytes, CUDA_MEMCPY2D, srcXInBytes);
SAME_FIELD(memcpy_2d, src_y, CUDA_MEMCPY2D, srcY);
SAME_FIELD(memcpy_2d, src_type, CUDA_MEMCPY2D, srcMemoryType);
SAME_FIELD(memcpy_2d, src_host, CUDA_MEMCPY2D, srcHost);
SAME_FIELD(memcpy_2d, src_device, CUDA_MEMCPY2D, srcDevice);
SAME_FIELD(memcpy_2d, src_array, CUDA_MEMCPY2D, srcArray);
SAME_FIELD(memcpy_2d, src_pitch, CUDA_MEMCPY2D, srcPitch);
SAME_FIELD(memcpy_2d, dst_x_bytes, CUDA_MEMCPY2D, dstXInBytes);
SAME_FIELD(memcpy_2d, dst_y, CUDA_MEMCPY2D, dstY);
SAME_FIELD(memcpy_2d, dst_type, CUDA_MEMCPY2D, dstMemoryType);
SAME_FIELD(memcpy_2d, dst_host, CUDA_MEMCPY2D, dstHost);
SAME_FIELD(memcpy_2d, dst_device, CUDA_MEMCPY2D, dstDevice);
SAME_FIELD(memcpy_2d, dst_array, CUDA_MEMCPY2D, dstArray);
SAME_FIELD(memcpy_2d, dst_pitch, CUDA_MEMCPY2D, dstPitch);
SAME_FIELD(memcpy_2d, width_bytes, CUDA_MEMCPY2D, WidthInBytes);
SAME_FIELD(memcpy_2d, height, CUDA_MEMCPY2D, Height);
SAME_LAYOUT(mem_op_params, CUstreamBatchMemOpParams);
SAME_FIELD(mem_op_params, operation, CUstreamBatchMemOpParams, operation);
SAME_FIELD(mem_op_params, value.address, CUstreamBatchMemOpParams, waitValue.address);
SAME_FIELD(mem_op_params, value.value32, CUstreamBatchMemOpParams, waitValue.value);
SAME_FIELD(mem_op_params, value.value64, CUstreamBatchMemOpParams, waitValue.value64);
SAME_FIELD(mem_op_params, value.flags, CUstreamBatchMemOpParams, waitValue.flags);
SAME_FIELD(mem_op_params, value.alias, CUstreamBatchMemOpParams, waitValue.alias);
SAME_FIELD(mem_op_params, value.address, CUstreamBatchMemOpParams, writeValue.address);
SAME_FIELD(mem_op_params, value.value64, CUstreamBatchMemOpParams, writeValue.value64);
SAME_FIELD(mem_op_params, value.flags, CUstreamBatchMemOpParams, writeValue.flags);
SAME_FIELD(mem_op_params, value.alias, CUstreamBatchMemOpParams, writeValue.alias);
SAME_FIELD(mem_op_params, simple.flags, CUstreamBatchMemOpParams, flushRemoteWrites.flags);
SAME_FIELD(mem_op_params, simple.flags, CUstreamBatchMemOpParams, memoryBarrier.flags);
SAME_LAYOUT(batch_mem_op_node_params, CUDA_BATCH_MEM_OP_NODE_PARAMS);
SAME_FIELD(batch_mem_op_node_params, context, CUDA_BATCH_MEM_OP_NODE_PARAMS, ctx);
SAME_FIELD(batch_mem_op_node_params, count, CUDA_BATCH_MEM_OP_NODE_PARAMS, count);
SAME_FIELD(batch_mem_op_node_params, ops, CUDA_BATCH_MEM_OP_NODE_PARAMS, paramArray);
SAME_FIELD(batch_mem_op_node_params, flags, CUDA_BATCH_MEM_OP_NODE_PARAMS, flags);
SAME_LAYOUT(conditional_node_params, CUgraphNodeParams);
SAME_FIELD(conditional_node_params, type, CUgraphNodeParams, type);
SAME_FIELD(conditional_node_params, handle, CUgraphNodeParams, conditional.handle);
SAME_FIELD(conditional_node_params, condition, CUgraphNodeParams, conditional.type);
SAME_FIELD(conditional_node_params, count, CUgraphNodeParams, conditional.size);
SAME_FIELD(conditional_node_params, bodies, CUgraphNodeParams, conditional.phGraph_out);
SAME_FIELD(conditional_node_params, context, CUgraphNodeParams, conditional.ctx);
SAME_LAYOUT(memcpy_attributes, CUmemcpyAttributes);
SAME_FIELD(memcpy_attributes, source_order, CUmemcpyAttributes, srcAccessOrder);
SAME_FIELD(memcpy_attributes, source_hint, CUmemcpyAttributes, srcLocHint);
SAME_FIELD(memcpy_attributes, destination_hint, CUmemcpyAttributes, dstLocHint);
SAME_FIELD(memcpy_attributes, flags, CUmemcpyAttributes, flags);

// ---- Calls -----------------------------------------------------------------------------------------------------------
// Names of types differ, so calls are compared by what a caller's machine code depends on: the number of parameters and,
// for each, its size and whether it is a pointer (and then whether to const).
template <class Ours, class Theirs>
constexpr bool passes_alike() {
  if (sizeof(Ours) != sizeof(Theirs) || std::is_pointer_v<Ours> != std::is_pointer_v<Theirs>) return false;
  return std::is_const_v<std::remove_pointer_t<Ours>> == std::is_const_v<std::remove_pointer_t<Theirs>>;
}

template <class Ours, class Theirs>
struct same_call : std::false_type {};  // another number of parameters
template <class R1, class... Ours, class R2, class... Theirs>
requires(sizeof...(Ours) == sizeof...(Theirs)) struct same_call<R1 (*)(Ours...), R2 (*)(Theirs...)>
    : std::bool_constant<(sizeof(R1) == sizeof(R2)) && (passes_alike<Ours, Theirs>() && ...)> {
};

namespace ours {
using namespace pl::cu;
#define PL_DECLARE(name, params) using name = result_t(*) params;
PL_CUDA_DRIVER_FUNCTIONS(PL_DECLARE)
#undef PL_DECLARE
}  // namespace ours

#define PL_COMPARE(name, params) \
  static_assert(same_call<ours::name, decltype(&::name)>::value, #name " is declared otherwise");
PL_CUDA_DRIVER_FUNCTIONS(PL_COMPARE)
#undef PL_COMPARE

// The comparison itself must be able to fail.
static_assert(!same_call<int (*)(int), int (*)(int, int)>::value);
static_assert(!same_call<int (*)(int), int (*)(long)>::value);
static_assert(!same_call<int (*)(long), int (*)(void*)>::value);
static_assert(!same_call<int (*)(void*), int (*)(const void*)>::value);

TEST(DriverAbi, AgreesWithTheRealHeader) { SUCCEED() << "compared at compile time with cuda.h of CUDA " << CUDA_VERSION; }

#elif defined(PL_CUDA_HEADER)

TEST(DriverAbi, AgreesWithTheRealHeader) {
  GTEST_SKIP() << "cuda.h of this machine is of CUDA " << CUDA_VERSION << ", the comparison needs 13000 or later";
}

#else

TEST(DriverAbi, AgreesWithTheRealHeader) {
  GTEST_SKIP() << "no CUDA toolkit: cuda.h was not found when this build was configured";
}

#endif
