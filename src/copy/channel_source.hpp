// SPDX-License-Identifier: Apache-2.0
// What every DMA channel of a GPU needs: the process's client of the resource manager, an address space on the GPU, and
// the GPU's copy engines. The same on simulated and real GPUs.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dma/channel.hpp"
#include "map/rm_space.hpp"

namespace pl::copy {

// Whether copies use DMA channels.
enum class channel_use : std::uint8_t { never, on_real_gpus, always };
channel_use channel_use_from_environment();  // PEERLANE_COPY_ENGINE

// Uses of channels that have not been measured on a GPU yet: on by default only on the simulated GPU, elsewhere on
// request.
enum class trial : std::uint8_t { never, simulated, always };
trial trial_from_environment(const char* name, trial automatic);  // `automatic`: the meaning of "auto"
inline bool is_on(trial wanted, bool is_simulated) {
  return wanted == trial::always || (wanted == trial::simulated && is_simulated);
}

struct channel_source {
  std::shared_ptr<rm_space> space;  // its client outlives the address space
  std::shared_ptr<dma::address_space> addresses;
  std::vector<unsigned> engines;  // in the order of use; at least one

  // ENOTSUP: no channels with this driver or GPU, or MIG. EACCES, ENODEV: the device files.
  static result<channel_source> open(std::shared_ptr<rm_space> space, const rm::gpu& gpu);
  // The same for a CUDA device. Neither creates nor needs a context.
  static result<channel_source> open(const cu::driver_table& cuda, int device_ordinal);

  // The engine for a direction's channel of short copies, or for bulk lists. Bulk lists of both directions share an
  // engine: whoever shares one with them waits for a millisecond's turn (urgent lists to the device 1059 us instead of
  // 12; H100).
  unsigned engine_of(bool to_host, bool is_bulk) const {
    const std::size_t place = is_bulk ? 2 : to_host ? 0 : 1;
    return engines[place % engines.size()];
  }
  // The engine for every other part of a bulk list, on request; it also serves the other direction's short copies. With
  // pages of 4 KiB at random places in 2 GiB, two engines carry twice as much as one. But with a cache's pages in a
  // host pool, lists of one direction were slower with two, and urgent ones waited longer (docs/results/blocks).
  std::optional<unsigned> helper_engine_of(bool to_host) const {
    if (engines.size() < 3) return std::nullopt;
    return engines[to_host ? 1 : 0];
  }
};

}  // namespace pl::copy
