// SPDX-License-Identifier: Apache-2.0
// Shared by the simulator's tests, which link sim/libcuda.so.1 itself and call it like any driver API program.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "cuda/driver_abi.hpp"

namespace pl::cu {
extern "C" {
#define PL_DECLARE(name, params) result_t name params;
PL_CUDA_DRIVER_FUNCTIONS(PL_DECLARE)
#undef PL_DECLARE
int peerlaneSimVersion();
unsigned long long peerlaneSimQueueWaits();
unsigned long long peerlaneSimIdleRounds();
void peerlaneSimFail(const char* call, int nth, int code);
int peerlaneSimObjectFd(unsigned client, unsigned object);
unsigned long long peerlaneSimObjectBytes(unsigned client, unsigned object);
}
}  // namespace pl::cu

#define CU_OK(call) ASSERT_EQ((call), ::pl::cu::error_code::success)
#define CU_FAILS(code, call) EXPECT_EQ((call), ::pl::cu::error_code::code)

namespace pl::cu {

// A context of its own for every test, current on the test's thread.
class SimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CU_OK(cuInit(0));
    CU_OK(cuCtxCreate_v2(&context_, 0, 0));
  }
  void TearDown() override {
    if (context_ != nullptr) { EXPECT_EQ(cuCtxDestroy_v2(context_), error_code::success); }
  }

  device_ptr allocate(std::size_t bytes) {
    device_ptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, bytes), error_code::success);
    return pointer;
  }

  context_t context_ = nullptr;
};

template <class T>
T attribute(int attribute_id, device_ptr pointer) {
  T value{};
  EXPECT_EQ(cuPointerGetAttribute(&value, attribute_id, pointer), error_code::success) << "attribute " << attribute_id;
  return value;
}

inline std::vector<unsigned char> pattern(std::size_t bytes, unsigned start) {
  std::vector<unsigned char> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<unsigned char>(start + i * 7 + (i >> 8));
  return made;
}

// A CPU mapping of an exported range; unmapped and closed at the end of the scope.
class exported_range {
 public:
  exported_range(device_ptr pointer, std::size_t bytes, unsigned long long flags) : bytes_(bytes) {
    rc = cuMemGetHandleForAddressRange(&fd, pointer, bytes, range_handle_type::dma_buf_fd, flags);
    if (rc != error_code::success) return;
    const off_t offset = lseek(fd, 0, SEEK_CUR);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    if (mapped != MAP_FAILED) data = static_cast<unsigned char*>(mapped);
  }
  ~exported_range() {
    if (data != nullptr) munmap(data, bytes_);
    if (fd >= 0) close(fd);
  }
  exported_range(const exported_range&) = delete;
  exported_range& operator=(const exported_range&) = delete;

  result_t rc = error_code::success;
  int fd = -1;
  unsigned char* data = nullptr;

 private:
  std::size_t bytes_;
};

}  // namespace pl::cu
