/* SPDX-License-Identifier: Apache-2.0
 * Questions that need no context: devices and their attributes, names of errors, entry points by CUDA version. */
#include <dlfcn.h>

#include "test/sim/driver_api/check.h"

/* Every enumerator of CUDA 13.0 that has a name of its own. */
// clang-format off
#define ERRORS(X) \
  X(INVALID_VALUE) \
  X(OUT_OF_MEMORY) \
  X(NOT_INITIALIZED) \
  X(DEINITIALIZED) \
  X(PROFILER_DISABLED) \
  X(PROFILER_NOT_INITIALIZED) \
  X(PROFILER_ALREADY_STARTED) \
  X(PROFILER_ALREADY_STOPPED) \
  X(STUB_LIBRARY) \
  X(DEVICE_UNAVAILABLE) \
  X(NO_DEVICE) \
  X(INVALID_DEVICE) \
  X(DEVICE_NOT_LICENSED) \
  X(INVALID_IMAGE) \
  X(INVALID_CONTEXT) \
  X(CONTEXT_ALREADY_CURRENT) \
  X(MAP_FAILED) \
  X(UNMAP_FAILED) \
  X(ARRAY_IS_MAPPED) \
  X(ALREADY_MAPPED) \
  X(NO_BINARY_FOR_GPU) \
  X(ALREADY_ACQUIRED) \
  X(NOT_MAPPED) \
  X(NOT_MAPPED_AS_ARRAY) \
  X(NOT_MAPPED_AS_POINTER) \
  X(ECC_UNCORRECTABLE) \
  X(UNSUPPORTED_LIMIT) \
  X(CONTEXT_ALREADY_IN_USE) \
  X(PEER_ACCESS_UNSUPPORTED) \
  X(INVALID_PTX) \
  X(INVALID_GRAPHICS_CONTEXT) \
  X(NVLINK_UNCORRECTABLE) \
  X(JIT_COMPILER_NOT_FOUND) \
  X(UNSUPPORTED_PTX_VERSION) \
  X(JIT_COMPILATION_DISABLED) \
  X(UNSUPPORTED_EXEC_AFFINITY) \
  X(UNSUPPORTED_DEVSIDE_SYNC) \
  X(INVALID_SOURCE) \
  X(FILE_NOT_FOUND) \
  X(SHARED_OBJECT_SYMBOL_NOT_FOUND) \
  X(SHARED_OBJECT_INIT_FAILED) \
  X(OPERATING_SYSTEM) \
  X(INVALID_HANDLE) \
  X(ILLEGAL_STATE) \
  X(LOSSY_QUERY) \
  X(NOT_FOUND) \
  X(NOT_READY) \
  X(ILLEGAL_ADDRESS) \
  X(LAUNCH_OUT_OF_RESOURCES) \
  X(LAUNCH_TIMEOUT) \
  X(LAUNCH_INCOMPATIBLE_TEXTURING) \
  X(PEER_ACCESS_ALREADY_ENABLED) \
  X(PEER_ACCESS_NOT_ENABLED) \
  X(PRIMARY_CONTEXT_ACTIVE) \
  X(CONTEXT_IS_DESTROYED) \
  X(ASSERT) \
  X(TOO_MANY_PEERS) \
  X(HOST_MEMORY_ALREADY_REGISTERED) \
  X(HOST_MEMORY_NOT_REGISTERED) \
  X(HARDWARE_STACK_ERROR) \
  X(ILLEGAL_INSTRUCTION) \
  X(MISALIGNED_ADDRESS) \
  X(INVALID_ADDRESS_SPACE) \
  X(INVALID_PC) \
  X(LAUNCH_FAILED) \
  X(COOPERATIVE_LAUNCH_TOO_LARGE) \
  X(NOT_PERMITTED) \
  X(NOT_SUPPORTED) \
  X(SYSTEM_NOT_READY) \
  X(SYSTEM_DRIVER_MISMATCH) \
  X(COMPAT_NOT_SUPPORTED_ON_DEVICE) \
  X(MPS_CONNECTION_FAILED) \
  X(MPS_RPC_FAILURE) \
  X(MPS_SERVER_NOT_READY) \
  X(MPS_MAX_CLIENTS_REACHED) \
  X(MPS_MAX_CONNECTIONS_REACHED) \
  X(MPS_CLIENT_TERMINATED) \
  X(CDP_NOT_SUPPORTED) \
  X(CDP_VERSION_MISMATCH) \
  X(STREAM_CAPTURE_UNSUPPORTED) \
  X(STREAM_CAPTURE_INVALIDATED) \
  X(STREAM_CAPTURE_MERGE) \
  X(STREAM_CAPTURE_UNMATCHED) \
  X(STREAM_CAPTURE_UNJOINED) \
  X(STREAM_CAPTURE_ISOLATION) \
  X(STREAM_CAPTURE_IMPLICIT) \
  X(CAPTURED_EVENT) \
  X(STREAM_CAPTURE_WRONG_THREAD) \
  X(TIMEOUT) \
  X(GRAPH_EXEC_UPDATE_FAILURE) \
  X(EXTERNAL_DEVICE) \
  X(INVALID_CLUSTER_SIZE) \
  X(FUNCTION_NOT_LOADED) \
  X(INVALID_RESOURCE_TYPE) \
  X(INVALID_RESOURCE_CONFIGURATION) \
  X(UNKNOWN)
// clang-format on

static void error_names(void) {
  const char* text = NULL;
#define CHECK_ERROR(name)                                        \
  OK(cuGetErrorName(CUDA_ERROR_##name, &text));                  \
  HOLDS(text != NULL && strcmp(text, "CUDA_ERROR_" #name) == 0); \
  OK(cuGetErrorString(CUDA_ERROR_##name, &text));                \
  HOLDS(text != NULL && strlen(text) > 5);
  ERRORS(CHECK_ERROR)
  OK(cuGetErrorName(CUDA_SUCCESS, &text));
  HOLDS(strcmp(text, "CUDA_SUCCESS") == 0);
  ANSWERS(INVALID_VALUE, cuGetErrorName((CUresult)9999, &text));
  HOLDS(text == NULL);
  ANSWERS(INVALID_VALUE, cuGetErrorString((CUresult)9999, &text));
  HOLDS(text == NULL);
}

static int attribute(CUdevice_attribute attribute_id) {
  int value = -777;
  OK(cuDeviceGetAttribute(&value, attribute_id, 0));
  return value;
}

static void device_attributes(void) {
  int value = 0;
  int i;
  for (i = 1; i < 148; ++i) OK(cuDeviceGetAttribute(&value, (CUdevice_attribute)i, 0));
  ANSWERS(INVALID_VALUE, cuDeviceGetAttribute(&value, (CUdevice_attribute)0, 0));
  ANSWERS(INVALID_VALUE, cuDeviceGetAttribute(&value, (CUdevice_attribute)9999, 0));
  ANSWERS(INVALID_DEVICE, cuDeviceGetAttribute(&value, (CUdevice_attribute)1, 99));
  /* What programs divide by, or take as the least they can rely on. */
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE) == 32);
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) > 0);
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) > 0);
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) > 0);
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) > 0);
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE) > 0);
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) >=
        attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT) == 32);
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO) > 0);
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT) > 0);
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 1);
  HOLDS(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) >=
        attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
}

static void devices(void) {
  char text[64];
  size_t bytes = 0;
  int count = 0, can = 9;
  CUdevice device;
  OK(cuDeviceGetCount(&count));
  HOLDS(count > 0);
  ANSWERS(INVALID_DEVICE, cuDeviceGet(&device, 99));
  ANSWERS(INVALID_DEVICE, cuDeviceTotalMem(&bytes, 99));
  OK(cuDeviceGetName(text, 5, 0));
  HOLDS(strlen(text) == 4);
  OK(cuDeviceGetPCIBusId(text, 13, 0));
  OK(cuDeviceGetByPCIBusId(&device, text));
  HOLDS(device == 0);
  ANSWERS(INVALID_VALUE, cuDeviceGetPCIBusId(text, 12, 0));
  ANSWERS(INVALID_VALUE, cuDeviceGetByPCIBusId(&device, "zz"));
  ANSWERS(INVALID_DEVICE, cuDeviceGetByPCIBusId(&device, "0000:ee:1e.0"));
  OK(cuDeviceCanAccessPeer(&can, 0, 0));
  HOLDS(can == 0);
  ANSWERS(INVALID_DEVICE, cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
}

/* The symbol that a program built for a CUDA version means by a name; NULL: that version had none. */
static void names(const char* name, int version, cuuint64_t flags, const char* symbol) {
  CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)9;
  void* found = NULL;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  OK(cuGetProcAddress(name, &found, version, flags, &status));
  if (symbol == NULL) {
    HOLDS(found == NULL);
    HOLDS(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  } else {
    HOLDS(found != NULL && found == dlsym(driver, symbol));
    HOLDS(status == CU_GET_PROC_ADDRESS_SUCCESS);
  }
  if (g_failures != 0) printf("  at %s of version %d\n", name, version);
}

static void entry_points(void) {
  int version = 0;
  void* found = NULL;
  CUdriverProcAddressQueryResult status;
  const cuuint64_t legacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM, per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  names("cuInit", 2000, legacy, "cuInit");
  names("cuMemAlloc", 2000, legacy, "cuMemAlloc");
  names("cuMemAlloc", 3020, legacy, "cuMemAlloc_v2");
  names("cuCtxCreate", 3020, legacy, "cuCtxCreate_v2");
  names("cuCtxCreate", 11040, legacy, "cuCtxCreate_v3");
  names("cuCtxCreate", 12050, legacy, "cuCtxCreate_v4");
  names("cuStreamWriteValue32", 2000, legacy, NULL);
  names("cuStreamWriteValue32", 8000, legacy, "cuStreamWriteValue32");
  names("cuStreamWriteValue32", 11070, legacy, "cuStreamWriteValue32_v2");
  names("cuMemAdvise", 8000, legacy, "cuMemAdvise");
  names("cuMemAdvise", 12020, legacy, "cuMemAdvise_v2");
  names("cuMulticastCreate", 11000, legacy, NULL);
  names("cuDriverGetVersion", 2020, legacy, "cuDriverGetVersion");
  names("cuCtxGetLimit", 3010, legacy, "cuCtxGetLimit");
  names("cuLinkCreate", 5050, legacy, "cuLinkCreate");
  names("cuMulticastCreate", 13000, legacy, "cuMulticastCreate");
  names("cuStreamGetCaptureInfo", 9000, legacy, NULL);
  names("cuStreamGetCaptureInfo", 10010, legacy, "cuStreamGetCaptureInfo");
  names("cuStreamGetCaptureInfo", 11030, per_thread, "cuStreamGetCaptureInfo_v2_ptsz");
  names("cuStreamGetCaptureInfo", 12030, legacy, "cuStreamGetCaptureInfo_v3");
  names("cuEventRecord", 2000, legacy, "cuEventRecord");
  names("cuEventRecord", 2000, per_thread, NULL);
  names("cuEventRecord", 7000, per_thread, "cuEventRecord_ptsz");
  names("cuMemcpyHtoD", 6050, per_thread, NULL);
  names("cuMemcpyHtoD", 7000, per_thread, "cuMemcpyHtoD_v2_ptds");
  names("cuGetProcAddress", 11030, legacy, "cuGetProcAddress");
  names("cuGetProcAddress", 12000, legacy, "cuGetProcAddress_v2");
  names("cuGraphInstantiate", 11000, legacy, "cuGraphInstantiate_v2");
  OK(cuDriverGetVersion(&version));
  ANSWERS(INVALID_VALUE, cuGetProcAddress("cuInit", &found, version + 10, legacy, &status)); /* newer than the driver */
}

int main(void) {
  OK(cuInit(0));
  error_names();
  device_attributes();
  devices();
  entry_points();
  return report("tables");
}
