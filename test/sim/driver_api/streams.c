/* SPDX-License-Identifier: Apache-2.0
 * Streams, events, captured graphs and modules: what calls answer to usual mistakes, and a round trip of each kind.
 * streams [KERNELS]: an image with the kernel count_threads, for what needs a function. */
#include "test/sim/driver_api/check.h"

static CUstream g_stream;

static void CUDA_CB do_nothing(void* data) { (void)data; }

static void events(void) {
  CUevent timed, untimed, made;
  CUevent shared = NULL;
  float elapsed = -1;
  (void)shared;
  OK(cuEventCreate(&timed, 0));
  OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  ANSWERS(INVALID_VALUE, cuEventCreate(&made, 8));
  ANSWERS(INVALID_VALUE, cuEventCreate(&made, CU_EVENT_INTERPROCESS)); /* only without timing */
  ANSWERS(INVALID_HANDLE, cuEventDestroy(NULL));
  ANSWERS(INVALID_HANDLE, cuEventRecord(NULL, g_stream));
  ANSWERS(INVALID_HANDLE, cuEventElapsedTime(&elapsed, timed, timed)); /* never recorded */
  OK(cuEventQuery(timed));
  OK(cuEventRecord(timed, g_stream));
  OK(cuEventSynchronize(timed));
  OK(cuEventElapsedTime(&elapsed, timed, timed));
  HOLDS(elapsed == 0);
  OK(cuEventRecord(untimed, g_stream));
  ANSWERS(INVALID_HANDLE, cuEventElapsedTime(&elapsed, timed, untimed));
  ANSWERS(INVALID_HANDLE, cuStreamWaitEvent(g_stream, NULL, 0));
  ANSWERS(INVALID_VALUE, cuStreamWaitEvent(g_stream, timed, 2));
  OK(cuStreamWaitEvent(g_stream, timed, 0));
  OK(cuEventDestroy(untimed));
  OK(cuEventDestroy(timed));
}

static void streams(void) {
  CUstream made;
  int least = 9, greatest = 9, priority = 9;
  unsigned flags = 9;
  ANSWERS(INVALID_VALUE, cuStreamCreate(&made, 2));
  ANSWERS(INVALID_HANDLE, cuStreamDestroy(NULL));
  ANSWERS(INVALID_HANDLE, cuStreamDestroy(CU_STREAM_LEGACY));
  ANSWERS(INVALID_VALUE, cuLaunchHostFunc(g_stream, NULL, NULL));
  OK(cuLaunchHostFunc(g_stream, do_nothing, NULL));
  OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  HOLDS(least == 0 && greatest < 0);
  OK(cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, greatest - 10)); /* is clamped */
  OK(cuStreamGetPriority(made, &priority));
  HOLDS(priority == greatest);
  OK(cuStreamGetFlags(made, &flags));
  HOLDS(flags == CU_STREAM_NON_BLOCKING);
  OK(cuStreamDestroy(made));
  OK(cuStreamQuery(g_stream) == CUDA_SUCCESS ? CUDA_SUCCESS : cuStreamSynchronize(g_stream));
}

static void captures(void) {
  CUgraph graph;
  CUgraphExec executable;
  CUdeviceptr memory;
  CUstreamCaptureStatus status;
  size_t nodes = 0;
  unsigned word = 0;
  OK(cuMemAlloc(&memory, 4096));
  OK(cuMemsetD32(memory, 7, 2));
  ANSWERS(ILLEGAL_STATE, cuStreamEndCapture(g_stream, &graph));
  ANSWERS(STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ANSWERS(INVALID_VALUE, cuStreamBeginCapture(g_stream, (CUstreamCaptureMode)9));
  OK(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ANSWERS(ILLEGAL_STATE, cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ANSWERS(STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(g_stream));
  ANSWERS(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(g_stream, &graph));
  OK(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuStreamIsCapturing(g_stream, &status));
  HOLDS(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(cuMemcpyDtoDAsync(memory + 64, memory, 4, g_stream));
  OK(cuMemsetD32Async(memory + 128, 9, 1, g_stream));
  OK(cuStreamEndCapture(g_stream, &graph));
  OK(cuGraphGetNodes(graph, NULL, &nodes));
  HOLDS(nodes == 2);
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphLaunch(executable, g_stream));
  OK(cuStreamSynchronize(g_stream));
  OK(cuMemcpyDtoH(&word, memory + 64, 4));
  HOLDS(word == 7);
  OK(cuMemcpyDtoH(&word, memory + 128, 4));
  HOLDS(word == 9);
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
  ANSWERS(INVALID_VALUE, cuGraphDestroy(NULL));
  ANSWERS(INVALID_VALUE, cuGraphLaunch(NULL, g_stream));
  ANSWERS(INVALID_VALUE, cuGraphCreate(&graph, 1));
  OK(cuMemFree(memory));
}

static void mistakes_with_modules(void) {
  CUmodule module;
  ANSWERS(INVALID_IMAGE, cuModuleLoadData(&module, "garbage"));
  ANSWERS(INVALID_VALUE, cuModuleLoadData(&module, NULL));
  ANSWERS(INVALID_HANDLE, cuModuleUnload(NULL));
  ANSWERS(FILE_NOT_FOUND, cuModuleLoad(&module, "/nonexistent"));
  ANSWERS(INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, g_stream, NULL, NULL));
}

static void a_kernel(const char* file) {
  CUmodule module, owner;
  CUfunction function;
  CUdeviceptr counter;
  void* parameters[] = {&counter};
  int blocks = 0, size = 0, threads = 0;
  unsigned counted = 0;
  OK(cuModuleLoad(&module, file));
  ANSWERS(NOT_FOUND, cuModuleGetFunction(&function, module, "no_such_kernel"));
  OK(cuModuleGetFunction(&function, module, "count_threads"));
  OK(cuFuncGetModule(&owner, function));
  HOLDS(owner == module);
  OK(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  HOLDS(threads >= 64);
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 64, 0));
  HOLDS(blocks >= 1);
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, 64, 0, 0));
  ANSWERS(INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 0, 0));
  OK(cuOccupancyMaxPotentialBlockSize(&blocks, &size, function, NULL, 0, 0));
  HOLDS(blocks >= 1 && size >= 64 && size <= threads);
  OK(cuOccupancyMaxPotentialBlockSizeWithFlags(&blocks, &size, function, NULL, 0, 128, 0));
  HOLDS(size <= 128);
  OK(cuMemAlloc(&counter, 64));
  OK(cuMemsetD8(counter, 0, 64));
  OK(cuLaunchKernel(function, 3, 1, 1, 64, 1, 1, 0, g_stream, parameters, NULL));
  OK(cuStreamSynchronize(g_stream));
  OK(cuMemcpyDtoH(&counted, counter, 4));
  HOLDS(counted == 192);
  ANSWERS(INVALID_VALUE, cuLaunchKernel(function, 0, 1, 1, 64, 1, 1, 0, g_stream, parameters, NULL));
  ANSWERS(INVALID_VALUE, cuLaunchKernel(function, 1, 1, 1, 4096, 1, 1, 0, g_stream, parameters, NULL));
  OK(cuMemFree(counter));
  OK(cuModuleUnload(module));
}

int main(int argc, char** argv) {
  CUcontext context;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
  events();
  streams();
  captures();
  mistakes_with_modules();
  if (argc > 1) a_kernel(argv[1]);
  OK(cuStreamDestroy(g_stream));
  OK(cuDevicePrimaryCtxRelease(0));
  return report("streams");
}
