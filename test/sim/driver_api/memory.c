/* SPDX-License-Identifier: Apache-2.0
 * Memory: what calls answer to usual mistakes, flags of host memory, virtual memory management, pools, IPC handles. */
#include "test/sim/driver_api/check.h"

enum { kDeviceBytes = 1 << 20 };

static CUdeviceptr g_device, g_managed;
static char *g_pinned, *g_pageable, *g_registered;
static CUstream g_stream;

static CUdeviceptr address_of(const void* host) { return (CUdeviceptr)(size_t)host; }

static void host_registration(void) {
  ANSWERS(HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(g_registered, 4096, 0));
  ANSWERS(HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(g_registered + 4096, 4096, 0));
  ANSWERS(INVALID_VALUE, cuMemHostRegister(g_pageable, 0, 0));
  ANSWERS(INVALID_VALUE, cuMemHostRegister(NULL, 4096, 0));
  ANSWERS(INVALID_VALUE, cuMemHostRegister((void*)(size_t)g_device, 4096, 0));
  OK(cuMemHostRegister(g_registered + 131073, 100, 0)); /* no alignment is needed */
  ANSWERS(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(g_registered + 131072));
  OK(cuMemHostUnregister(g_registered + 131073));
  ANSWERS(INVALID_VALUE, cuMemHostUnregister(g_registered + 64));
  ANSWERS(INVALID_VALUE, cuMemHostUnregister(NULL));
}

static void host_flags(void) {
  unsigned flags = 99;
  CUdeviceptr pointer = 0;
  OK(cuMemHostGetFlags(&flags, g_pinned));
  HOLDS(flags == CU_MEMHOSTALLOC_DEVICEMAP); /* always mapped under unified addressing */
  OK(cuMemHostGetFlags(&flags, g_registered));
  HOLDS(flags == CU_MEMHOSTALLOC_DEVICEMAP);
  ANSWERS(INVALID_VALUE, cuMemHostGetFlags(&flags, g_pageable));
  OK(cuMemHostGetDevicePointer(&pointer, g_pinned, 0));
  HOLDS(pointer == address_of(g_pinned));
  ANSWERS(INVALID_VALUE, cuMemHostGetDevicePointer(&pointer, g_pageable, 0));
  ANSWERS(INVALID_VALUE, cuMemHostGetDevicePointer(&pointer, (void*)(size_t)g_managed, 0));
  ANSWERS(INVALID_VALUE, cuMemHostGetDevicePointer(&pointer, g_pinned, 1));
}

static void allocation(void) {
  CUdeviceptr pointer = 0;
  void* host = &pointer;
  ANSWERS(INVALID_VALUE, cuMemAlloc(&pointer, 0));
  ANSWERS(OUT_OF_MEMORY, cuMemAlloc(&pointer, (size_t)1 << 50));
  OK(cuMemFree(0));
  ANSWERS(INVALID_VALUE, cuMemFree(g_device + 1));
  ANSWERS(INVALID_VALUE, cuMemFree(address_of(g_pinned)));
  ANSWERS(INVALID_VALUE, cuMemFree(address_of(g_pageable)));
  OK(cuMemFreeHost(NULL));
  ANSWERS(INVALID_VALUE, cuMemFreeHost((void*)(size_t)g_device));
  ANSWERS(INVALID_VALUE, cuMemFreeHost(g_pageable));
  ANSWERS(INVALID_VALUE, cuMemFreeHost(g_pinned + 1));
  OK(cuMemHostAlloc(&host, 0, 0));
  HOLDS(host == NULL);
  ANSWERS(INVALID_VALUE, cuMemHostAlloc(&host, 8, 8));
  ANSWERS(INVALID_VALUE, cuMemAllocManaged(&pointer, 64, 0));
  ANSWERS(INVALID_VALUE, cuMemAllocManaged(&pointer, 0, CU_MEM_ATTACH_GLOBAL));
  OK(cuMemAllocAsync(&pointer, 0, g_stream));
  HOLDS(pointer == 0);
  OK(cuMemAllocAsync(&pointer, 4096, g_stream));
  ANSWERS(INVALID_VALUE, cuMemFreeAsync(pointer + 1, g_stream));
  OK(cuMemFreeAsync(pointer, g_stream));
  ANSWERS(INVALID_VALUE, cuMemFreeAsync(pointer, g_stream));
  OK(cuMemFreeAsync(0, g_stream));
}

static void copies_and_fills(void) {
  const CUdeviceptr end = g_device + kDeviceBytes;
  OK(cuMemcpyHtoD(0, NULL, 0));
  ANSWERS(INVALID_VALUE, cuMemcpyHtoD(0, g_pageable, 4));
  ANSWERS(INVALID_VALUE, cuMemcpyHtoD(end - 4, g_pageable, 8));
  ANSWERS(INVALID_VALUE, cuMemcpyHtoD(address_of(g_pageable), g_pageable + 64, 4));
  OK(cuMemcpyHtoD(address_of(g_pinned), g_pageable, 4));
  ANSWERS(INVALID_VALUE, cuMemcpyDtoD(g_device, address_of(g_pageable), 4));
  OK(cuMemcpyDtoD(g_device, address_of(g_pinned), 4));
  OK(cuMemcpy(address_of(g_pageable), address_of(g_pageable + 64), 4));
  ANSWERS(INVALID_VALUE, cuMemsetD32(g_device + 2, 1, 4));
  ANSWERS(INVALID_VALUE, cuMemsetD8(end - 4, 1, 8));
  OK(cuMemsetD8(0, 1, 0));
  ANSWERS(INVALID_VALUE, cuMemsetD8(address_of(g_pageable), 1, 8));
  ANSWERS(INVALID_VALUE, cuMemsetD2D8(g_device, 16, 1, 32, 2));
}

static void pointer_questions(void) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  unsigned long long value = 0;
  OK(cuMemGetAddressRange(&base, &bytes, g_device + 5));
  HOLDS(base == g_device && bytes == kDeviceBytes);
  OK(cuMemGetAddressRange(&base, &bytes, address_of(g_pinned)));
  HOLDS(base == address_of(g_pinned));
  ANSWERS(NOT_FOUND, cuMemGetAddressRange(&base, &bytes, address_of(g_pageable)));
  ANSWERS(INVALID_VALUE, cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(g_pageable)));
  ANSWERS(INVALID_VALUE, cuPointerGetAttribute(&value, (CUpointer_attribute)99, g_device));
  ANSWERS(INVALID_VALUE, cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_HOST_POINTER, g_device));
  OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address_of(g_pinned)));
  HOLDS(value == address_of(g_pinned));
}

static void ipc_handles(void) {
  CUipcMemHandle handle;
  CUipcEventHandle event_handle;
  CUevent event;
  OK(cuIpcGetMemHandle(&handle, g_device + 64));
  ANSWERS(INVALID_VALUE, cuIpcGetMemHandle(&handle, address_of(g_pinned)));
  ANSWERS(INVALID_VALUE, cuIpcGetMemHandle(&handle, g_managed));
  ANSWERS(INVALID_VALUE, cuIpcCloseMemHandle(g_device));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  ANSWERS(INVALID_HANDLE, cuIpcGetEventHandle(&event_handle, event));
  OK(cuEventDestroy(event));
}

static void virtual_memory(void) {
  CUmemAllocationProp prop;
  CUmemAccessDesc access;
  CUmemGenericAllocationHandle memory, other;
  CUdeviceptr address;
  size_t page = 0;
  int descriptor = -1;
  memset(&prop, 0, sizeof prop);
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memset(&access, 0, sizeof access);
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(cuMemGetAllocationGranularity(&page, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  HOLDS(page == 2 << 20);
  ANSWERS(INVALID_VALUE, cuMemAddressReserve(&address, 0, 0, 0, 0));
  ANSWERS(INVALID_VALUE, cuMemAddressReserve(&address, 4096, 0, 0, 0));
  ANSWERS(INVALID_VALUE, cuMemAddressReserve(&address, page, 3, 0, 0));
  ANSWERS(INVALID_VALUE, cuMemCreate(&memory, 0, &prop, 0));
  ANSWERS(INVALID_VALUE, cuMemCreate(&memory, 4096, &prop, 0));
  OK(cuMemAddressReserve(&address, 2 * page, 0, 0, 0));
  OK(cuMemCreate(&memory, page, &prop, 0));
  ANSWERS(NOT_SUPPORTED, cuMemMap(address, page / 2, 0, memory, 0)); /* all of the memory, or nothing */
  ANSWERS(INVALID_VALUE, cuMemMap(address + 4096, page, 0, memory, 0));
  ANSWERS(NOT_SUPPORTED, cuMemMap(address, 2 * page, 0, memory, 0));
  ANSWERS(NOT_SUPPORTED, cuMemMap(address, page, page, memory, 0));
  ANSWERS(INVALID_VALUE, cuMemMap(g_device, page, 0, memory, 0));
  OK(cuMemMap(address, page, 0, memory, 0));
  ANSWERS(INVALID_VALUE, cuMemMap(address, page, 0, memory, 0));
  ANSWERS(INVALID_VALUE, cuMemSetAccess(address, 2 * page, &access, 1));
  ANSWERS(INVALID_VALUE, cuMemSetAccess(address, page, &access, 0));
  OK(cuMemSetAccess(address, page, &access, 1));
  OK(cuMemcpyHtoD(address, g_pageable, 4));
  ANSWERS(INVALID_VALUE, cuMemFree(address));
  ANSWERS(INVALID_VALUE, cuMemAddressFree(address, 2 * page));
  ANSWERS(INVALID_VALUE, cuMemRetainAllocationHandle(&other, (void*)(size_t)g_device));
  ANSWERS(INVALID_VALUE, cuMemExportToShareableHandle(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ANSWERS(INVALID_VALUE, cuMemUnmap(address + page / 2, page / 2));
  OK(cuMemUnmap(address, 2 * page)); /* what of it is mapped */
  OK(cuMemUnmap(address, page));
  OK(cuMemRelease(memory));
  ANSWERS(INVALID_VALUE, cuMemRelease(0));
  ANSWERS(INVALID_VALUE, cuMemAddressFree(address, page));
  OK(cuMemAddressFree(address, 2 * page));
  ANSWERS(INVALID_VALUE, cuMemAddressFree(address, 2 * page));
}

int main(void) {
  CUcontext context;
  g_pageable = malloc(1 << 20);
  if (g_pageable == NULL) return EXIT_FAILURE;
  g_registered = (char*)(((size_t)g_pageable + 65535) & ~(size_t)4095);
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuMemAlloc(&g_device, kDeviceBytes));
  OK(cuMemAllocManaged(&g_managed, 65536, CU_MEM_ATTACH_GLOBAL));
  OK(cuMemHostAlloc((void**)&g_pinned, 4096, 0));
  OK(cuMemHostRegister(g_registered, 65536, 0));
  OK(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
  host_registration();
  host_flags();
  allocation();
  copies_and_fills();
  pointer_questions();
  ipc_handles();
  virtual_memory();
  OK(cuStreamSynchronize(g_stream));
  OK(cuMemHostUnregister(g_registered));
  OK(cuMemFreeHost(g_pinned));
  OK(cuMemFree(g_managed));
  OK(cuMemFree(g_device));
  OK(cuDevicePrimaryCtxRelease(0));
  free(g_pageable);
  return report("memory");
}
