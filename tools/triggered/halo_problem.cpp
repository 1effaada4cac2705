// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/halo_problem.hpp"

#include <algorithm>

#include "cuda/kernel_image.hpp"
#include "halo_steps_image.hpp"
#include "tools/common/tool.hpp"

namespace pl::async {
namespace {

constexpr unsigned kPointThreads = 256;
constexpr std::uint64_t kMaxPointBlocks = 2112;  // 16 a multiprocessor of an H200

}  // namespace

block_kernels::block_kernels(bench_rank& session, const block_place& place) : session_(session), place_(place) {
  module_ = tools::must(cu::load_kernels(session.cuda(), kernels::halo_steps()));
}

block_kernels::~block_kernels() {
  static_cast<void>(session_.cuda().cuStreamSynchronize(session_.stream()));
  static_cast<void>(session_.cuda().cuModuleUnload(module_));
}

cu::function_t block_kernels::find(const char* kernel) const {
  cu::function_t out = nullptr;
  session_.gpu().check(session_.cuda().cuModuleGetFunction(&out, module_, kernel), kernel);
  return out;
}

void block_kernels::launch(cu::function_t kernel, std::uint64_t points, void** parameters) const {
  const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>(points / kPointThreads, 1, kMaxPointBlocks));
  session_.gpu().check(
      session_.cuda().cuLaunchKernel(kernel, blocks, 1, 1, kPointThreads, 1, 1, 0, session_.stream(), parameters, nullptr),
      "kernel launch");
}

void block_kernels::set_ghosts(const std::vector<double>& values) const {
  for (std::uint64_t exchange = 0; exchange < 2; ++exchange)
    session_.gpu().check(session_.cuda().cuMemcpyHtoD_v2(session_.receive_buffer() + edges_of(exchange, place_.n).first,
                                                         values.data(), kSides * row_bytes()),
                         "cuMemcpyHtoD");
}

std::vector<double> block_kernels::read_field(std::uint64_t field) const {
  std::vector<double> out(field_bytes() / sizeof(double));
  session_.gpu().check(session_.cuda().cuMemcpyDtoH_v2(out.data(), field, field_bytes()), "cuMemcpyDtoH");
  return out;
}

}  // namespace pl::async
