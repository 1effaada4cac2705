// SPDX-License-Identifier: Apache-2.0
#include "tools/common/device_block.hpp"

#include "base/text.hpp"

namespace pl::tools {

device_block::device_block(const gpu_session& gpu, int ordinal, std::uint64_t bytes) : gpu_(gpu) {
  gpu.check(gpu.cuda().cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  gpu.check(gpu.cuda().cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  inside([&] {
    gpu.check(gpu.cuda().cuMemAlloc_v2(&pointer_, bytes),
              format("cuMemAlloc of %s on GPU %d", format_size(bytes).c_str(), ordinal));
  });
}

device_block::~device_block() {
  if (pointer_ != 0 && gpu_.cuda().cuCtxPushCurrent_v2(context_) == cu::error_code::success) {
    gpu_.cuda().cuMemFree_v2(pointer_);
    cu::context_t popped = nullptr;
    gpu_.cuda().cuCtxPopCurrent_v2(&popped);
  }
  gpu_.cuda().cuDevicePrimaryCtxRelease_v2(device_);
}

template <class Work>
void device_block::inside(Work&& work) const {
  gpu_.check(gpu_.cuda().cuCtxPushCurrent_v2(context_), "cuCtxPushCurrent");
  struct leave {
    const cu::driver_table& cuda;
    ~leave() {
      cu::context_t popped = nullptr;
      cuda.cuCtxPopCurrent_v2(&popped);
    }
  } const at_end{gpu_.cuda()};
  work();
}

void device_block::write(std::uint64_t offset, const void* source, std::uint64_t bytes) const {
  inside([&] {
    gpu_.check(gpu_.cuda().cuMemcpyHtoD_v2(pointer_ + offset, source, bytes), "cuMemcpyHtoD");
    gpu_.check(gpu_.cuda().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  });
}

void device_block::read(std::uint64_t offset, void* target, std::uint64_t bytes) const {
  inside([&] { gpu_.check(gpu_.cuda().cuMemcpyDtoH_v2(target, pointer_ + offset, bytes), "cuMemcpyDtoH"); });
}

// The default stream, not the context, is waited for: a held copy kernel never leaves the context idle.
void device_block::set(std::uint64_t offset, unsigned char value, std::uint64_t bytes) const {
  inside([&] {
    gpu_.check(gpu_.cuda().cuMemsetD8_v2(pointer_ + offset, value, bytes), "cuMemsetD8");
    gpu_.check(gpu_.cuda().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  });
}

}  // namespace pl::tools
