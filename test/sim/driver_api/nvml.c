/* SPDX-License-Identifier: Apache-2.0
 * The management library beside the driver: what monitoring programs and benchmarks ask first. */
#include "test/sim/driver_api/check.h"

#if __has_include(<nvml.h>)
#include <nvml.h>
#else /* toolkits for building leave it out */
typedef int nvmlReturn_t;
typedef struct nvmlDevice_st* nvmlDevice_t;
typedef struct {
  unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct {
  unsigned gpu, memory;
} nvmlUtilization_t;
typedef struct {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlInitWithFlags(unsigned flags);
nvmlReturn_t nvmlShutdown(void);
const char* nvmlErrorString(nvmlReturn_t result);
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length);
nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned length);
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* device);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length);
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* use);
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor);
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned* generation);
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned* width);
nvmlReturn_t nvmlDeviceSetCpuAffinity(nvmlDevice_t device);
nvmlReturn_t nvmlDeviceClearCpuAffinity(nvmlDevice_t device);
#endif

static const nvmlReturn_t kOk = 0, kUninitialized = 1, kInvalidArgument = 2, kNotFound = 6, kInsufficientSize = 7;

#define IS(code, call) check_result(__FILE__, __LINE__, #call, (CUresult)(code), (CUresult)(call))

static void system_facts(void) {
  char text[96];
  int version = 0, driver = 0;
  IS(kInsufficientSize, nvmlSystemGetDriverVersion(text, 2));
  IS(kOk, nvmlSystemGetDriverVersion(text, sizeof text));
  HOLDS(atoi(text) >= 525 && strchr(text, '.') != NULL);
  IS(kOk, nvmlSystemGetNVMLVersion(text, sizeof text));
  IS(kOk, nvmlSystemGetCudaDriverVersion(&version));
  OK(cuDriverGetVersion(&driver));
  HOLDS(version == driver);
  HOLDS(strcmp(nvmlErrorString(kOk), "Success") == 0);
  HOLDS(strcmp(nvmlErrorString(kUninitialized), "Uninitialized") == 0);
  HOLDS(strcmp(nvmlErrorString(999), "Unknown Error") == 0);
}

static nvmlDevice_t find_device(void) {
  char uuid[96], bus_id[32], name[96], cuda_name[96];
  nvmlDevice_t by_index = NULL, other = NULL;
  unsigned count = 0, index = 99;
  int cuda_count = 0;
  nvmlPciInfo_t pci;
  IS(kOk, nvmlDeviceGetCount_v2(&count));
  OK(cuDeviceGetCount(&cuda_count));
  HOLDS((int)count == cuda_count);
  IS(kInvalidArgument, nvmlDeviceGetHandleByIndex_v2(99, &other));
  IS(kOk, nvmlDeviceGetHandleByIndex_v2(0, &by_index));
  IS(kOk, nvmlDeviceGetUUID(by_index, uuid, sizeof uuid));
  IS(kInsufficientSize, nvmlDeviceGetUUID(by_index, uuid, 3));
  IS(kOk, nvmlDeviceGetHandleByUUID(uuid, &other));
  HOLDS(other == by_index);
  IS(kNotFound, nvmlDeviceGetHandleByUUID("GPU-x", &other));
  OK(cuDeviceGetPCIBusId(bus_id, sizeof bus_id, 0)); /* both libraries number the boards alike */
  IS(kOk, nvmlDeviceGetHandleByPciBusId_v2(bus_id, &other));
  HOLDS(other == by_index);
  IS(kOk, nvmlDeviceGetPciInfo_v3(by_index, &pci));
  HOLDS(strcmp(pci.busIdLegacy, bus_id) == 0 && strlen(pci.busId) == strlen(bus_id) + 4);
  IS(kInvalidArgument, nvmlDeviceGetHandleByPciBusId_v2("zz", &other));
  IS(kNotFound, nvmlDeviceGetHandleByPciBusId_v2("0000:ee:1e.0", &other));
  IS(kOk, nvmlDeviceGetIndex(by_index, &index));
  HOLDS(index == 0);
  IS(kOk, nvmlDeviceGetName(by_index, name, sizeof name));
  OK(cuDeviceGetName(cuda_name, sizeof cuda_name, 0));
  HOLDS(strcmp(name, cuda_name) == 0);
  IS(kInsufficientSize, nvmlDeviceGetName(by_index, name, 3));
  IS(kInvalidArgument, nvmlDeviceGetName(NULL, name, sizeof name));
  IS(kInvalidArgument, nvmlDeviceGetName(by_index, NULL, sizeof name));
  return by_index;
}

static void memory_in_use(nvmlDevice_t device) {
  const size_t taken = 32 << 20;
  nvmlMemory_t before = {0, 0, 0}, after = {0, 0, 0};
  nvmlMemory_v2_t second;
  size_t total = 0;
  CUcontext context;
  CUdeviceptr pointer;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuDeviceTotalMem(&total, 0));
  IS(kOk, nvmlDeviceGetMemoryInfo(device, &before));
  HOLDS(before.total >= total && before.free + before.used <= before.total);
  OK(cuMemAlloc(&pointer, taken));
  IS(kOk, nvmlDeviceGetMemoryInfo(device, &after));
  HOLDS(after.used >= before.used + taken);
  memset(&second, 0, sizeof second);
  HOLDS(nvmlDeviceGetMemoryInfo_v2(device, &second) != kOk); /* it must say its version */
  second.version = (unsigned)(sizeof second | 2u << 24);
  IS(kOk, nvmlDeviceGetMemoryInfo_v2(device, &second));
  HOLDS(second.total == after.total && second.used + second.reserved >= taken);
  OK(cuMemFree(pointer));
  OK(cuDevicePrimaryCtxRelease(0));
}

static void device_facts(nvmlDevice_t device) {
  nvmlUtilization_t use = {999, 999};
  unsigned generation = 0, width = 0;
  int major = 0, minor = 0, cuda_major = 1, cuda_minor = 1;
  IS(kOk, nvmlDeviceGetUtilizationRates(device, &use));
  HOLDS(use.gpu <= 100 && use.memory <= 100);
  IS(kInvalidArgument, nvmlDeviceGetUtilizationRates(device, NULL));
  IS(kOk, nvmlDeviceGetCudaComputeCapability(device, &major, &minor));
  OK(cuDeviceGetAttribute(&cuda_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  OK(cuDeviceGetAttribute(&cuda_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
  HOLDS(major == cuda_major && minor == cuda_minor);
  IS(kOk, nvmlDeviceGetCurrPcieLinkGeneration(device, &generation));
  IS(kOk, nvmlDeviceGetCurrPcieLinkWidth(device, &width));
  HOLDS(generation >= 1 && width >= 1);
  IS(kOk, nvmlDeviceSetCpuAffinity(device));
  IS(kOk, nvmlDeviceClearCpuAffinity(device));
}

int main(void) {
  nvmlDevice_t device;
  unsigned count;
  OK(cuInit(0));
  IS(kUninitialized, nvmlDeviceGetCount_v2(&count));
  IS(kUninitialized, nvmlShutdown());
  IS(kOk, nvmlInit_v2());
  IS(kOk, nvmlInitWithFlags(0));
  IS(kOk, nvmlShutdown()); /* as often as it was initialised */
  system_facts();
  device = find_device();
  memory_in_use(device);
  device_facts(device);
  IS(kOk, nvmlShutdown());
  IS(kUninitialized, nvmlShutdown());
  return report("nvml");
}
