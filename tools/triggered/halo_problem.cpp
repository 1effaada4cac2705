// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/halo_problem.hpp"

#include <algorithm>

#include "cuda/kernel_image.hpp"
#include "halo_steps_image.hpp"
#include "tools/common/tool.hpp"

namespace pl::async {
namespace {

constexpr unsigned kPointThreads = 256;
constexpr std::uint64_t kMostPointBlocks = 2112;  // 16 a multiprocessor of an H200

}  // namespace

block_kernels::block_kernels(station& at, const block_place& place) : at_(at), place_(place) {
  module_ = tools::must(cu::load_kernels(at.cuda(), kernels::halo_steps()));
}

block_kernels::~block_kernels() {
  static_cast<void>(at_.cuda().cuStreamSynchronize(at_.on()));
  static_cast<void>(at_.cuda().cuModuleUnload(module_));
}

cu::function_t block_kernels::find(const char* kernel) const {
  cu::function_t out = nullptr;
  at_.gpu().check(at_.cuda().cuModuleGetFunction(&out, module_, kernel), kernel);
  return out;
}

void block_kernels::launch(cu::function_t kernel, std::uint64_t points, void** parameters) const {
  const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>(points / kPointThreads, 1, kMostPointBlocks));
  at_.gpu().check(at_.cuda().cuLaunchKernel(kernel, blocks, 1, 1, kPointThreads, 1, 1, 0, at_.on(), parameters, nullptr),
                  "kernel launch");
}

void block_kernels::set_ghosts(const std::vector<double>& values) const {
  for (std::uint64_t exchange = 0; exchange < 2; ++exchange)
    at_.gpu().check(
        at_.cuda().cuMemcpyHtoD_v2(at_.in() + edges_of(exchange, place_.n).first, values.data(), kSides * row_bytes()),
        "cuMemcpyHtoD");
}

std::vector<double> block_kernels::read_field(std::uint64_t from) const {
  std::vector<double> out(field_bytes() / sizeof(double));
  at_.gpu().check(at_.cuda().cuMemcpyDtoH_v2(out.data(), from, field_bytes()), "cuMemcpyDtoH");
  return out;
}

}  // namespace pl::async
