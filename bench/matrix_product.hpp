// SPDX-License-Identifier: Apache-2.0
// Products of two bf16 matrices of 8192 x 8192 by a cuBLAS that is opened at run time: work that fills the GPU and has
// nothing to do with what is measured beside it.
#pragma once

#include <dlfcn.h>

#include <string>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "cuda/driver_table.hpp"

namespace pl {

class matrix_product {
 public:
  // ENOTSUP: no such library, or it refuses. The matrices live until the process ends.
  static result<matrix_product> open(const cu::driver_table& cuda, const std::string& library_path, cu::stream_t stream) {
    using create_t = int (*)(void**);
    using set_stream_t = int (*)(void*, cu::stream_t);
    if (library_path.empty()) return failure{ENOTSUP, "cublas=LIBRARY was not given"};
    void* const library = dlopen(library_path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) return failure{ENOTSUP, dlerror()};
    matrix_product made(cuda, stream);
    const auto create = reinterpret_cast<create_t>(dlsym(library, "cublasCreate_v2"));
    const auto set_stream = reinterpret_cast<set_stream_t>(dlsym(library, "cublasSetStream_v2"));
    made.gemm_ = reinterpret_cast<gemm_t>(dlsym(library, "cublasGemmEx"));
    if (create == nullptr || set_stream == nullptr || made.gemm_ == nullptr || create(&made.handle_) != 0 ||
        set_stream(made.handle_, stream) != 0)
      return failure{ENOTSUP, "the library does not answer"};
    constexpr std::size_t kMatrixBytes = std::size_t{kSide} * kSide * 2;
    for (auto* const one : {&made.a_, &made.b_, &made.c_})
      if (cuda.cuMemAlloc_v2(one, kMatrixBytes) != cu::error_code::success ||
          cuda.cuMemsetD8_v2(*one, 0, kMatrixBytes) != cu::error_code::success)
        return failure{ENOMEM, "no memory for the matrices"};
    if (cuda.cuCtxSynchronize() != cu::error_code::success) return failure{EIO, "the matrices"};
    return made;
  }

  // TFLOP/s of 40 products, one after the other; calls `during` until they are done. 0: one of them failed.
  template <class F>
  double run(F&& during) const {
    const float alpha = 1, beta = 0;
    const auto place = [](cu::device_ptr pointer) { return reinterpret_cast<void*>(pointer); };
    const std::uint64_t begin_ns = monotonic_ns();
    for (int i = 0; i < kTurns; ++i)
      if (gemm_(handle_, 0, 0, kSide, kSide, kSide, &alpha, place(a_), kBf16, kSide, place(b_), kBf16, kSide, &beta,
                place(c_), kBf16, kSide, kCompute32, -1) != 0)
        return 0;
    while (cuda_->cuStreamQuery(stream_) == cu::error_code::not_ready) during();
    return 2.0 * kSide * kSide * kSide * kTurns / static_cast<double>(monotonic_ns() - begin_ns) / 1e3;
  }

 private:
  using gemm_t = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                         const void*, void*, int, int, int, int);
  static constexpr int kSide = 8192, kBf16 = 14, kCompute32 = 68, kTurns = 40;

  matrix_product(const cu::driver_table& cuda, cu::stream_t stream) : cuda_(&cuda), stream_(stream) {}

  const cu::driver_table* cuda_;
  cu::stream_t stream_;
  gemm_t gemm_ = nullptr;
  void* handle_ = nullptr;
  cu::device_ptr a_ = 0, b_ = 0, c_ = 0;
};

}  // namespace pl
