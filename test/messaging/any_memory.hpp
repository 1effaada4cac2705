// SPDX-License-Identifier: Apache-2.0
// Memory of every kind that the simulated GPU has, with its bytes; for a rank that has a GPU.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "messaging/messenger.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::messaging {

enum class memory_of { host, pinned, device, vmm, managed };
constexpr int kKindsOfMemory = 5;

class any_memory {
 public:
  any_memory(memory_of kind, std::size_t bytes) : kind_(kind), bytes_(bytes) {
    const std::size_t least = std::max<std::size_t>(bytes, 1);
    const auto& cuda = test::simulated_cuda();
    constexpr unsigned kAttachGlobal = 1;
    void* mapping = nullptr;
    if (kind == memory_of::host) {
      // Not from the heap: a sanitizer's would not give an address out again.
      mapping = mmap(nullptr, least, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (mapping != MAP_FAILED) address_ = reinterpret_cast<std::uint64_t>(mapping);
    } else if (kind == memory_of::pinned) {
      if (cuda.cuMemHostAlloc(&mapping, least, 0) == cu::error_code::success)
        address_ = reinterpret_cast<std::uint64_t>(mapping);
    } else if (kind == memory_of::managed) {
      if (cuda.cuMemAllocManaged(&address_, least, kAttachGlobal) != cu::error_code::success) address_ = 0;
    } else if (kind == memory_of::device) {
      address_ = device_.emplace(least).pointer();
    } else {
      constexpr std::size_t kGranularity = 2 << 20;
      address_ = vmm_.emplace(std::vector<std::size_t>{(least + kGranularity - 1) / kGranularity * kGranularity}).pointer();
    }
  }
  ~any_memory() {
    if (kind_ == memory_of::host) munmap(reinterpret_cast<void*>(address_), std::max<std::size_t>(bytes_, 1));
    if (kind_ == memory_of::pinned) test::simulated_cuda().cuMemFreeHost(reinterpret_cast<void*>(address_));
    if (kind_ == memory_of::managed) test::simulated_cuda().cuMemFree_v2(address_);
  }
  any_memory(const any_memory&) = delete;
  any_memory& operator=(const any_memory&) = delete;

  std::uint64_t address() const { return address_; }
  buffer all() const { return {address_, bytes_}; }
  void set(const std::vector<unsigned char>& bytes) {
    if (bytes.empty()) return;
    if (is_on_device()) test::set_device_bytes(address_, bytes);
    else std::memcpy(reinterpret_cast<void*>(address_), bytes.data(), bytes.size());
  }
  std::vector<unsigned char> get(std::size_t bytes) const {
    if (bytes == 0) return {};
    if (is_on_device()) return test::device_bytes(address_, bytes);
    const auto* const bytes_here = reinterpret_cast<const unsigned char*>(address_);
    return {bytes_here, bytes_here + bytes};
  }

 private:
  bool is_on_device() const { return kind_ == memory_of::device || kind_ == memory_of::vmm; }

  memory_of kind_;
  std::size_t bytes_;
  std::uint64_t address_ = 0;
  std::optional<test::device_buffer> device_;
  std::optional<test::vmm_buffer> vmm_;
};

}  // namespace pl::messaging
