// SPDX-License-Identifier: Apache-2.0
// What most tests of DMA channels begin with.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <utility>

#include "dma/channel.hpp"
#include "test/dma/fake_engine.hpp"

namespace pl::test {

constexpr std::uint64_t kTimeoutNs = 20'000'000'000;
constexpr std::size_t kChannelBytes = 4u << 20;

// One client with an address space, host memory and GPU memory in it.
struct channel_setting {
  explicit channel_setting(fake_engine& kernel) : io(kernel) {
    auto opened = rm::client::open(io);
    EXPECT_TRUE(opened);
    client = std::move(*opened);
    gpu = *client->find_gpu({0, 6, 0});
    auto made = dma::address_space::open(*client, *gpu, "580.159.04");
    EXPECT_TRUE(made) << made.error().message;
    space = *made;
    host = static_cast<std::byte*>(mmap(nullptr, kChannelBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    host_region = std::move(*space->bind_host(host, kChannelBytes));
    device = std::move(*space->make_device_memory(kChannelBytes));
  }
  ~channel_setting() { munmap(host, kChannelBytes); }

  std::unique_ptr<dma::channel> open(dma::channel_options options = {}) {
    auto opened = dma::channel::open(space, options);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
  }
  std::uint64_t host_at(std::size_t offset) const { return host_region.address() + offset; }
  std::uint64_t device_at(std::size_t offset) const { return device.bound.address() + offset; }

  fake_engine& io;
  std::unique_ptr<rm::client> client;
  const rm::gpu* gpu = nullptr;
  std::shared_ptr<dma::address_space> space;
  std::byte* host = nullptr;
  dma::region host_region;
  dma::address_space::own_memory device;
};

}  // namespace pl::test
