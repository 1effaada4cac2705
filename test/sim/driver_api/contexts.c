/* SPDX-License-Identifier: Apache-2.0
 * Contexts: what works before there is one, in a thread without a current one, and after the primary one has ended. */
#include <pthread.h>

#include "test/sim/driver_api/check.h"

CUresult CUDAAPI cuProfilerStart(void);  // cudaProfiler.h, which PyPI's toolkit lacks

static CUcontext g_primary;
static CUdeviceptr g_device, g_managed, g_other;
static void *g_pinned, *g_pageable, *g_registered;
static CUstream g_stream;
static CUevent g_event;

static void CUDA_CB do_nothing(void* data) { (void)data; }

/* Calls that need a current context: nothing in their arguments names one. */
static void refuse_without_context(void) {
  CUdevice device;
  CUdeviceptr pointer;
  CUstream stream;
  CUevent event;
  CUmodule module;
  CUcontext context;
  CUfunc_cache cache;
  CUipcMemHandle handle;
  void* host;
  size_t bytes, total;
  unsigned word;
  int number;
  int least, greatest;
  ANSWERS(INVALID_CONTEXT, cuCtxGetDevice(&device));
  ANSWERS(INVALID_CONTEXT, cuCtxSynchronize());
  ANSWERS(INVALID_CONTEXT, cuCtxGetFlags(&word));
  ANSWERS(INVALID_CONTEXT, cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
  ANSWERS(INVALID_CONTEXT, cuCtxGetStreamPriorityRange(&least, &greatest));
  ANSWERS(INVALID_CONTEXT, cuCtxGetApiVersion(NULL, &word));
  ANSWERS(INVALID_CONTEXT, cuCtxGetCacheConfig(&cache));
  ANSWERS(INVALID_CONTEXT, cuCtxPopCurrent(&context));
  ANSWERS(INVALID_CONTEXT, cuMemGetInfo(&bytes, &total));
  ANSWERS(INVALID_CONTEXT, cuMemAlloc(&pointer, 64));
  ANSWERS(INVALID_CONTEXT, cuMemHostAlloc(&host, 64, 0));
  ANSWERS(INVALID_CONTEXT, cuMemAllocHost(&host, 64));
  ANSWERS(INVALID_CONTEXT, cuMemAllocManaged(&pointer, 64, CU_MEM_ATTACH_GLOBAL));
  ANSWERS(INVALID_CONTEXT, cuMemHostRegister(g_registered, 4096, 0));
  ANSWERS(INVALID_CONTEXT, cuStreamCreate(&stream, 0));
  ANSWERS(INVALID_CONTEXT, cuEventCreate(&event, 0));
  ANSWERS(INVALID_CONTEXT, cuModuleLoadData(&module, "x"));
  ANSWERS(INVALID_CONTEXT, cuMemAllocAsync(&pointer, 64, NULL));
  ANSWERS(INVALID_CONTEXT, cuProfilerStart());
  ANSWERS(INVALID_CONTEXT, cuMemcpyHtoD(g_device, g_pageable, 16));
  ANSWERS(INVALID_CONTEXT, cuMemcpyDtoH(g_pageable, g_device, 16));
  ANSWERS(INVALID_CONTEXT, cuMemcpyDtoD(g_device, g_device + 64, 16));
  ANSWERS(INVALID_CONTEXT, cuMemcpy(g_device, g_device + 64, 16));
  ANSWERS(INVALID_CONTEXT, cuMemsetD8(g_device, 1, 16));
  ANSWERS(INVALID_CONTEXT, cuMemcpyAsync(g_device, g_device + 64, 16, NULL));
  ANSWERS(INVALID_CONTEXT, cuStreamSynchronize(NULL));
  ANSWERS(INVALID_CONTEXT, cuStreamQuery(NULL));
  ANSWERS(INVALID_CONTEXT, cuLaunchHostFunc(NULL, do_nothing, NULL));
  ANSWERS(INVALID_CONTEXT, cuMemGetAddressRange(&pointer, &bytes, g_device));
  ANSWERS(INVALID_CONTEXT, cuIpcGetMemHandle(&handle, g_device));
  ANSWERS(INVALID_CONTEXT, cuMemHostGetDevicePointer(&pointer, g_pinned, 0));
  ANSWERS(INVALID_CONTEXT, cuMemHostGetFlags(&word, g_pinned));
  ANSWERS(INVALID_CONTEXT, cuMemGetHandleForAddressRange(&number, g_device, 65536, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  ANSWERS(INVALID_CONTEXT, cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                      CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
}

/* Handles and addresses know their context, so these need no current one. */
static void* work_without_context(void* unused) {
  CUcontext current = (CUcontext)1;
  CUdeviceptr pointer;
  CUgraph graph;
  unsigned word = 1;
  (void)unused;
  OK(cuCtxGetCurrent(&current));
  HOLDS(current == NULL);
  refuse_without_context();
  OK(cuPointerGetAttribute(&word, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, g_device));
  HOLDS(word == CU_MEMORYTYPE_DEVICE);
  word = 1;
  OK(cuPointerSetAttribute(&word, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, g_device));
  OK(cuMemHostUnregister(g_registered));
  OK(cuMemcpyAsync(g_device, g_device + 64, 16, g_stream));
  OK(cuMemsetD8Async(g_device, 1, 16, g_stream));
  OK(cuStreamWriteValue32(g_stream, g_device, 1, 0));
  OK(cuLaunchHostFunc(g_stream, do_nothing, NULL));
  OK(cuEventRecord(g_event, g_stream));
  ANSWERS(INVALID_CONTEXT, cuEventRecord(g_event, NULL));
  OK(cuStreamWaitEvent(g_stream, g_event, 0));
  OK(cuStreamSynchronize(g_stream));
  OK(cuStreamQuery(g_stream));
  OK(cuEventSynchronize(g_event));
  OK(cuEventQuery(g_event));
  OK(cuStreamGetCtx(g_stream, &current));
  HOLDS(current == g_primary);
  OK(cuMemAllocAsync(&pointer, 64, g_stream));
  OK(cuMemFreeAsync(pointer, g_stream));
  OK(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamEndCapture(g_stream, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphDestroy(graph));
  OK(cuMemFree(g_managed));
  OK(cuMemFree(g_other));
  OK(cuMemFreeHost(g_pinned));
  OK(cuEventDestroy(g_event));
  OK(cuStreamDestroy(g_stream));
  return NULL;
}

/* Each thread has a stack of its own. */
static void* push_and_pop(void* made) {
  CUcontext got = NULL;
  OK(cuCtxPushCurrent((CUcontext)made));
  OK(cuCtxPushCurrent(g_primary));
  OK(cuCtxPopCurrent(&got));
  HOLDS(got == g_primary);
  OK(cuCtxGetCurrent(&got));
  HOLDS(got == (CUcontext)made);
  OK(cuCtxSetCurrent(NULL)); /* takes the top away */
  ANSWERS(INVALID_CONTEXT, cuCtxPopCurrent(&got));
  return NULL;
}

static void in_a_thread(void* (*body)(void*), void* argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, body, argument) != 0 || pthread_join(thread, NULL) != 0) abort();
}

static void before_any_context(void) {
  int count;
  unsigned flags = 9;
  int active = 9;
  CUcontext context;
  ANSWERS(NOT_INITIALIZED, cuDeviceGetCount(&count));
  ANSWERS(NOT_INITIALIZED, cuCtxGetCurrent(&context));
  ANSWERS(INVALID_VALUE, cuInit(1));
  OK(cuInit(0));
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  HOLDS(flags == 0 && active == 0);
  ANSWERS(INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
  ANSWERS(INVALID_VALUE, cuDevicePrimaryCtxSetFlags(0, 3)); /* two ways to wait at once */
  ANSWERS(INVALID_VALUE, cuDevicePrimaryCtxSetFlags(0, 256));
  ANSWERS(INVALID_DEVICE, cuDevicePrimaryCtxRetain(&context, 99));
  OK(cuDevicePrimaryCtxReset(0));
  refuse_without_context();
  ANSWERS(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(g_registered));
}

static void make_things(void) {
  OK(cuMemAlloc(&g_device, 1 << 20));
  OK(cuMemAlloc(&g_other, 4096));
  OK(cuMemAllocManaged(&g_managed, 65536, CU_MEM_ATTACH_GLOBAL));
  OK(cuMemHostAlloc(&g_pinned, 4096, 0));
  OK(cuMemHostRegister(g_registered, 65536, 0));
  OK(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&g_event, 0));
}

static CUcontext make_context(void) {
  CUcontext made = NULL;
#if CUDA_VERSION >= 13000
  OK(cuCtxCreate(&made, NULL, 0, 0));
#else
  OK(cuCtxCreate(&made, 0, 0));
#endif
  return made;
}

static void own_context(void) {
  CUcontext made = make_context(), got = NULL;
  CUdeviceptr pointer;
  OK(cuCtxGetCurrent(&got));
  HOLDS(got == made);
  OK(cuMemAlloc(&pointer, 4096));
  OK(cuMemcpyDtoD(pointer, g_device, 64)); /* memory of another context of the same device */
  in_a_thread(push_and_pop, made);
  ANSWERS(INVALID_CONTEXT, cuCtxDestroy(g_primary));
  ANSWERS(INVALID_VALUE, cuCtxDestroy(NULL));
  ANSWERS(INVALID_VALUE, cuCtxPushCurrent(NULL));
  ANSWERS(PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(made, 0));
  ANSWERS(PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(made));
  OK(cuCtxSetFlags(CU_CTX_SCHED_SPIN | CU_CTX_MAP_HOST));
  ANSWERS(INVALID_VALUE, cuCtxSetFlags(512));
  OK(cuCtxDestroy(made));
  OK(cuCtxSetCurrent(g_primary));
}

static void limits(void) {
  size_t bytes = 7;
  OK(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
  HOLDS(bytes == 1024);
  ANSWERS(UNSUPPORTED_LIMIT, cuCtxGetLimit(&bytes, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH));
  OK(cuCtxGetLimit(&bytes, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT));
  HOLDS(bytes == 2048);
  ANSWERS(INVALID_VALUE, cuCtxGetLimit(&bytes, CU_LIMIT_MAX));
  ANSWERS(INVALID_VALUE, cuCtxGetLimit(&bytes, (CUlimit)99));
  ANSWERS(INVALID_VALUE, cuCtxSetLimit((CUlimit)99, 1));
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  OK(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
  HOLDS(bytes == 4096);
}

/* The handle stays, the context behind it ends with its last user. */
static void end_of_the_primary_context(void) {
  CUdeviceptr pointer;
  CUdevice device;
  CUevent event;
  int active = 9;
  unsigned flags;
  OK(cuCtxSetCurrent(NULL));
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  HOLDS(active == 0);
  OK(cuCtxSetCurrent(g_primary));
  ANSWERS(CONTEXT_IS_DESTROYED, cuMemAlloc(&pointer, 64));
  ANSWERS(CONTEXT_IS_DESTROYED, cuEventCreate(&event, 0));
  OK(cuCtxGetDevice(&device));
  HOLDS(device == 0);
  ANSWERS(INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
}

int main(void) {
  g_pageable = malloc(1 << 20);
  if (g_pageable == NULL) return EXIT_FAILURE;
  g_registered = (void*)(((size_t)g_pageable + 65535) & ~(size_t)4095);
  g_device = 0x7000000000;
  g_pinned = (void*)0x7000000000;
  before_any_context();
  OK(cuDevicePrimaryCtxRetain(&g_primary, 0));
  refuse_without_context(); /* retained is not current */
  OK(cuCtxSetCurrent(g_primary));
  make_things();
  in_a_thread(work_without_context, NULL);
  own_context();
  limits();
  OK(cuMemFree(g_device));
  end_of_the_primary_context();
  return report("contexts");
}
