// SPDX-License-Identifier: Apache-2.0
#include "copy/channel_source.hpp"

#include <cerrno>
#include <string>
#include <utility>

#include "base/env.hpp"
#include "os/device_io.hpp"
#include "rm/simulated_device_io.hpp"

namespace pl::copy {

channel_use channel_use_from_environment() {
  const std::string engine = env_read("PEERLANE_COPY_ENGINE").text;
  if (engine == "dma") return channel_use::always;
  return engine == "auto" || engine == "1" ? channel_use::on_real_gpus : channel_use::never;
}

trial trial_from_environment(const char* name, trial automatic) {
  const std::string wanted = env_read(name).text;
  if (wanted == "on") return trial::always;
  return wanted == "off" ? trial::never : automatic;
}

result<channel_source> channel_source::open(std::shared_ptr<rm_space> space, const rm::gpu& gpu) {
  rm::client& client = space->client();
  auto version = rm::driver_version(client.io());
  if (!version) return version.error();
  auto addresses = dma::address_space::open(client, gpu, *version);
  if (!addresses) return addresses.error();
  auto engines = dma::copy_engines((*addresses)->objects(), true);
  if (engines.empty()) return failure{ENOTSUP, "DMA channels: the GPU names no copy engine"};
  return channel_source{std::move(space), *std::move(addresses), std::move(engines)};
}

result<channel_source> channel_source::open(const cu::driver_table& cuda, int device_ordinal) {
  // Channels between an MPS server and its clients are untested. An older driver does not know the attribute.
  constexpr int kMpsEnabled = 133;  // CU_DEVICE_ATTRIBUTE_MPS_ENABLED
  int is_mps = 0;
  if (cuda.cuDeviceGetAttribute(&is_mps, kMpsEnabled, device_ordinal) == cu::error_code::success && is_mps != 0)
    return failure{ENOTSUP, "DMA channels: CUDA runs under the Multi-Process Service (MPS), with which they are untested"};
  device_io* const simulated = rm::simulated_device_io(cuda);
  auto space = rm_space::get(simulated != nullptr ? *simulated : default_device_io());
  if (!space) return space.error();
  auto gpu = (*space)->gpu_of(cuda, device_ordinal);
  if (!gpu) return gpu.error();
  return open(*std::move(space), **gpu);
}

}  // namespace pl::copy
