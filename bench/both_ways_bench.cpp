// SPDX-License-Identifier: Apache-2.0
// Which rate copy kernels reach between host and device in both directions at once, by their shape. A kernel that copies its
// own vector again and again is measured with one pass and with more: bytes that never leave the GPU would show as a rise.
//
//     both_ways_bench [FILE.json]
//
// Exit code 1 if a byte arrived wrong.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "bench/must.hpp"
#include "both_ways_kernels_image.hpp"
#include "cuda/kernel_image.hpp"
#include "cuda/simulated_gpu.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"

namespace {

using namespace pl;

struct course {
  std::uint64_t destination, source;
};

// How the directions are spread over the GPU.
struct shape {
  const char* kernel;
  unsigned blocks, threads, readers;  // readers: blocks that copy to the device, of a kernel divided by blocks
  std::uint64_t passes;
};

class bench {
 public:
  explicit bench(const cu::driver_table& table) : cuda_(table) {}
  void set_up();
  void measure(const shape& one);
  unsigned multiprocessors() const { return multiprocessors_; }
  std::size_t vectors() const { return bytes_ / 16; }
  result_file file{"both_ways_bench", {"both_ways_bench"}};
  int failures = 0;

 private:
  void must(cu::result_t code, const char* step) const {
    if (code == cu::error_code::success) return;
    std::printf("FAILED: %s: %s\n", step, cu::error_text(cuda_, code).c_str());
    std::exit(1);
  }
  void launch(const shape& one);
  double run_ns(const shape& one);
  void clear();
  bool is_right();

  const cu::driver_table& cuda_;
  cu::context_t context_ = nullptr;
  cu::module_t module_ = nullptr;
  cu::stream_t stream_ = nullptr;
  cu::event_t begin_ = nullptr, end_ = nullptr;
  cu::device_ptr device_in_ = 0, device_out_ = 0, ends_ = 0;
  std::byte *host_in_ = nullptr, *host_out_ = nullptr, *seen_ = nullptr, *expected_out_ = nullptr;
  std::size_t bytes_ = 256u << 20;
  unsigned multiprocessors_ = 1;
};

void bench::set_up() {
  need(cu::initialize(cuda_), "cuInit");
  must(cuda_.cuDevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
  must(cuda_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  int count = 0;
  must(cuda_.cuDeviceGetAttribute(&count, cu::device_attribute::multiprocessor_count, 0), "cuDeviceGetAttribute");
  multiprocessors_ = static_cast<unsigned>(std::max(1, count));
  if (cu::is_simulated_gpu(cuda_.library)) bytes_ = 64u << 10;
  module_ = need(cu::load_kernels(cuda_, kernels::both_ways_kernels()), "kernels");
  must(cuda_.cuStreamCreate(&stream_, 1), "cuStreamCreate");
  must(cuda_.cuEventCreate(&begin_, 0), "cuEventCreate");
  must(cuda_.cuEventCreate(&end_, 0), "cuEventCreate");
  must(cuda_.cuMemAlloc_v2(&device_in_, bytes_), "cuMemAlloc");
  must(cuda_.cuMemAlloc_v2(&device_out_, bytes_), "cuMemAlloc");
  must(cuda_.cuMemAlloc_v2(&ends_, 64), "cuMemAlloc");
  for (auto* const one : {&host_in_, &host_out_, &seen_, &expected_out_}) {
    void* memory = nullptr;
    must(cuda_.cuMemHostAlloc(&memory, bytes_, 0), "cuMemHostAlloc");
    *one = static_cast<std::byte*>(memory);
  }
  for (std::size_t i = 0; i < bytes_ / 4; ++i) {
    reinterpret_cast<std::uint32_t*>(host_in_)[i] = static_cast<std::uint32_t>(i * 2654435761u);
    reinterpret_cast<std::uint32_t*>(expected_out_)[i] = ~static_cast<std::uint32_t>(i * 2654435761u);
  }
  must(cuda_.cuMemcpyHtoD_v2(device_out_, expected_out_, bytes_), "cuMemcpyHtoD");
  machine_facts facts = describe_host();
  describe_gpu(facts, cuda_, 0);
  file.set_machine(facts);
  file.set_parameter("bytes_a_direction", bytes_);
}

void bench::clear() {
  std::memset(host_out_, 0, bytes_);
  must(cuda_.cuMemsetD8_v2(device_in_, 0, bytes_), "cuMemsetD8");
  must(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
}

bool bench::is_right() {
  must(cuda_.cuMemcpyDtoH_v2(seen_, device_in_, bytes_), "cuMemcpyDtoH");
  return std::memcmp(seen_, host_in_, bytes_) == 0 && std::memcmp(host_out_, expected_out_, bytes_) == 0;
}

void bench::launch(const shape& one) {
  cu::function_t function = nullptr;
  must(cuda_.cuModuleGetFunction(&function, module_, one.kernel), one.kernel);
  course in{device_in_, reinterpret_cast<std::uint64_t>(host_in_)};
  course out{reinterpret_cast<std::uint64_t>(host_out_), device_out_};
  std::uint64_t vectors = bytes_ / 16, passes = one.passes, ends = ends_, readers = one.readers;
  std::array<void*, 6> parameters{&in, &out, &vectors, &passes, &ends, &readers};
  must(cuda_.cuLaunchKernel(function, one.blocks, 1, 1, one.threads, 1, 1, 0, stream_, parameters.data(), nullptr),
       one.kernel);
}

double bench::run_ns(const shape& one) {
  must(cuda_.cuEventRecord(begin_, stream_), "cuEventRecord");
  launch(one);
  must(cuda_.cuEventRecord(end_, stream_), "cuEventRecord");
  must(cuda_.cuStreamSynchronize(stream_), one.kernel);
  float milliseconds = 0;
  must(cuda_.cuEventElapsedTime(&milliseconds, begin_, end_), "cuEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e6;
}

void bench::measure(const shape& one) {
  constexpr int kSamples = 5;
  clear();
  std::vector<double> times_ns;
  for (int i = 0; i < kSamples; ++i) times_ns.push_back(run_ns(one));
  std::array<std::uint64_t, 3> ends{};
  must(cuda_.cuMemcpyDtoH_v2(ends.data(), ends_, sizeof ends), "cuMemcpyDtoH");
  const bool good = is_right();
  failures += !good;
  std::sort(times_ns.begin(), times_ns.end());
  const double moved = static_cast<double>(bytes_) * static_cast<double>(one.passes);
  const double rate = moved / times_ns[kSamples / 2];
  // Of the last run: each direction until its own last warp ended.
  const auto until_ns = [&](int direction) {
    return static_cast<double>(ends[static_cast<std::size_t>(direction)] - ends[2]);
  };
  nlohmann::json row{{"kind", "both_ways"},
                     {"kernel", one.kernel},
                     {"blocks", one.blocks},
                     {"threads", one.threads},
                     {"readers", one.readers},
                     {"passes", one.passes},
                     {"right", good},
                     {"each_way_gb_per_s", rate},
                     {"to_device_gb_per_s", moved / until_ns(0)},
                     {"to_host_gb_per_s", moved / until_ns(1)}};
  std::printf("%-12s %7u x %4u %4u %6llu   %6.1f   %6.1f %6.1f   %s\n", one.kernel, one.blocks, one.threads, one.readers,
              static_cast<unsigned long long>(one.passes), rate, moved / until_ns(0), moved / until_ns(1),
              good ? "" : "WRONG BYTES");
  std::fflush(stdout);
  file.add_row(std::move(row));
  file.set_pass(failures == 0);
}

// One copy of the buffers at a time, then its like again and again; then the GPU divided in other ways.
std::vector<shape> shapes_for(unsigned all, std::size_t vectors) {
  std::vector<shape> out;
  const auto wide = static_cast<unsigned>(2 * vectors / 1024);
  for (const std::uint64_t passes : {1u, 2u, 4u, 8u, 16u})
    out.push_back({"own_vectors", std::max(1u, wide), 1024, 0, passes});
  for (const auto& [kernel, each, threads] : {std::tuple{"by_warps_1", 1u, 512u},
                                              {"by_warps_4", 1u, 512u},
                                              {"by_warps_8", 1u, 512u},
                                              {"by_warps_1", 2u, 1024u},
                                              {"by_warps_4", 2u, 1024u},
                                              {"by_warps_1", 1u, 1024u},
                                              {"by_warps_1", 1u, 256u},
                                              {"by_warps_4", 1u, 128u},
                                              {"by_warps_8", 1u, 64u}})
    out.push_back({kernel, all * each, threads, 0, 8});
  for (const auto& [kernel, blocks, readers, threads] : {std::tuple{"by_blocks_8", all, all / 2, 512u},
                                                         {"by_blocks_4", all, all / 2, 512u},
                                                         {"by_blocks_1", all, all / 2, 512u},
                                                         {"by_blocks_8", 2 * all, all, 512u},
                                                         {"by_blocks_1", 2 * all, all, 1024u},
                                                         {"by_blocks_8", 32u, 16u, 512u},
                                                         {"by_blocks_8", 16u, 8u, 512u},
                                                         {"by_blocks_4", 64u, 32u, 256u},
                                                         {"by_blocks_8", all, all / 4, 512u},
                                                         {"by_blocks_8", all, all * 3 / 4, 512u},
                                                         {"by_blocks_8", 24u, 16u, 512u},
                                                         {"by_blocks_8", 40u, 32u, 512u},
                                                         {"by_blocks_8", 24u, 8u, 512u},
                                                         {"by_blocks_1", all, all / 2, 128u}})
    out.push_back({kernel, blocks, threads, readers, 8});
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const auto cuda = cu::driver();
  if (!cuda) return std::printf("FAILED: %s\n", cuda.error().message.c_str()), 1;
  bench run(**cuda);
  run.set_up();
  std::printf("%-12s %7s   %4s %4s %6s   %6s   %6s %6s\n", "kernel", "blocks", "thr.", "read", "passes", "each", "in",
              "out");
  for (const shape& one : shapes_for(run.multiprocessors(), run.vectors())) {
    run.measure(one);
    if (argc > 1)
      if (status done = run.file.write(argv[1]); !done) std::printf("FAILED: %s\n", done.error().message.c_str());
  }
  std::printf("%s\n", run.failures == 0 ? "every byte was right" : "SOMETHING IS WRONG");
  std::fflush(stdout);
  _exit(run.failures == 0 ? 0 : 1);
}
