/* SPDX-License-Identifier: Apache-2.0
 * A libcuda.so.1 without a device, as driver packages leave it on machines without a GPU. */
int cuInit(unsigned flags);
int cuDeviceGetCount(int* count);
int cuDriverGetVersion(int* version);
int cuPointerGetAttribute(void* data, int attribute, unsigned long long pointer);

int cuInit(unsigned flags) { return (void)flags, 100; }
int cuDeviceGetCount(int* count) { return *count = 0, 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuPointerGetAttribute(void* data, int attribute, unsigned long long pointer) {
  return (void)data, (void)attribute, (void)pointer, 1;
}
