// SPDX-License-Identifier: Apache-2.0
// The data_validation_* cases of gdrcopy_sanity.
#include <cstring>

#include "tools/gdrcopy/sanity_case.hpp"

namespace pl::tools {
namespace {

constexpr std::size_t kCopyBytes = 128 * 1024;
constexpr int kDirectRounds = 1000;

bool is_coherent(const gpu_session& gpu) {
  return gpu.attribute(cu::device_attribute::pageable_memory_access_uses_host_page_tables) != 0;
}

struct data_check {
  case_fixture& fixture;
  cu::device_ptr pointer;
  gdr_mh_t handle;
  unsigned char* mapped;

  void clear() const {
    fixture.gpu.check(fixture.gpu.cuda().cuMemsetD8_v2(pointer, 0, kCopyBytes), "cuMemsetD8");
    fixture.gpu.synchronize();
  }

  // Plain CPU stores through the mapping, seen by CUDA.
  void direct_stores() const {
    auto* words = reinterpret_cast<volatile std::uint32_t*>(mapped);
    constexpr std::size_t kWords = 256;  // a moving window: the whole buffer every round would take minutes on a slow bus
    for (unsigned round = 0; round < kDirectRounds; ++round) {
      const std::size_t first = round * 37 % (kCopyBytes / 4 - kWords);
      const auto wanted = pattern(kWords * 4, round + 1);
      for (std::size_t i = 0; i < kWords; ++i) {
        std::uint32_t word;
        std::memcpy(&word, wanted.data() + 4 * i, 4);
        words[first + i] = word;
      }
      gdr_flush_mapping(handle);
      require_equal(fixture.device_bytes(pointer + 4 * first, kWords * 4), wanted, format("direct stores, round %u", round));
    }
  }

  void copy_both_ways(std::size_t device_offset, std::size_t host_offset, std::size_t bytes,
                      const std::string& description) const {
    clear();
    auto source = pattern(host_offset + bytes, static_cast<unsigned>(device_offset * 7 + host_offset + 1));
    const std::span<const unsigned char> wanted(source.data() + host_offset, bytes);
    int code = gdr_copy_to_mapping(handle, mapped + device_offset, wanted.data(), bytes);
    PL_REQUIRE(code == 0, "%s: %s", description.c_str(), gdr_error_text("gdr_copy_to_mapping", code).c_str());
    require_equal(fixture.device_bytes(pointer + device_offset, bytes), wanted,
                  description + ": gdr_copy_to_mapping seen by CUDA");
    std::vector<unsigned char> target(host_offset + bytes, 0xA5);
    code = gdr_copy_from_mapping(handle, target.data() + host_offset, mapped + device_offset, bytes);
    PL_REQUIRE(code == 0, "%s: %s", description.c_str(), gdr_error_text("gdr_copy_from_mapping", code).c_str());
    require_equal(std::span(target).subspan(host_offset), wanted, description + ": gdr_copy_from_mapping");
    for (std::size_t i = 0; i < host_offset; ++i)
      PL_REQUIRE(target[i] == 0xA5, "%s: a byte before the target changed", description.c_str());
  }

  void offsets() const {
    for (const std::size_t offset : {1, 2, 3, 4, 5, 6, 7, 11, 129, 1023})
      for (const std::size_t unit : {4, 1}) {
        const std::size_t byte_offset = offset * unit;
        const std::string name = format("offset %zu %s", offset, unit == 4 ? "dwords" : "bytes");
        copy_both_ways(byte_offset, 0, kCopyBytes - byte_offset, name + " on the mapping");
        copy_both_ways(0, byte_offset, kCopyBytes - byte_offset, name + " on the host");
        copy_both_ways(byte_offset, byte_offset, kCopyBytes - byte_offset, name + " on both");
      }
  }
};

void validate(case_fixture& fixture, alloc_kind kind, bool v2, unsigned pin_flags) {
  const device_memory memory(fixture.gpu, kCopyBytes, kind);
  gdr_mh_t handle{0};
  int code = v2 ? gdr_pin_buffer_v2(fixture.gdr.get(), memory.get(), kCopyBytes, pin_flags, &handle)
                : gdr_pin_buffer(fixture.gdr.get(), memory.get(), kCopyBytes, 0, 0, &handle);
  PL_REQUIRE(code == 0, "%s", gdr_error_text("gdr_pin_buffer", code).c_str());
  gdr_info_t info{};
  PL_REQUIRE(gdr_get_info(fixture.gdr.get(), handle, &info) == 0, "get_info: %s", gdr_last_error());
  PL_REQUIRE(info.mapped == 0, "info.mapped is %u before gdr_map", info.mapped);
  void* mapped = nullptr;
  code = v2 ? gdr_map_v2(fixture.gdr.get(), handle, &mapped, kCopyBytes, GDR_MAP_FLAG_DEFAULT)
            : gdr_map(fixture.gdr.get(), handle, &mapped, kCopyBytes);
  PL_REQUIRE(code == 0, "%s", gdr_error_text("gdr_map", code).c_str());
  PL_REQUIRE(gdr_get_info(fixture.gdr.get(), handle, &info) == 0, "get_info: %s", gdr_last_error());
  PL_REQUIRE(info.mapped == 1, "info.mapped is %u after gdr_map", info.mapped);
  PL_REQUIRE(info.va <= memory.get() && memory.get() - info.va < info.mapped_size, "info.va does not cover the buffer");

  const data_check check{fixture, memory.get(), handle, static_cast<unsigned char*>(mapped) + (memory.get() - info.va)};
  check.clear();
  check.direct_stores();
  check.copy_both_ways(0, 0, kCopyBytes, "whole buffer");
  check.offsets();
  PL_REQUIRE(gdr_unmap(fixture.gdr.get(), handle, mapped, kCopyBytes) == 0, "unmap: %s", gdr_last_error());
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), handle) == 0, "unpin: %s", gdr_last_error());
}

template <alloc_kind kKind, bool kV2>
void data_validation(const case_context& context) {
  case_fixture fixture(context);
  validate(fixture, kKind, kV2, GDR_PIN_FLAG_DEFAULT);
}

void data_validation_v2_forcepci(const case_context& context) {
  case_fixture fixture(context);
  if (fixture.gdr.attribute(GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE) == 0 || !is_coherent(fixture.gpu))
    throw case_waived("FORCE_PCIE is for CPU-coherent platforms");
  validate(fixture, kCuMemAlloc, true, GDR_PIN_FLAG_FORCE_PCIE);
}

void data_validation_mix_mappings(const case_context& context) {
  case_fixture fixture(context);
  if (!is_coherent(fixture.gpu))
    throw case_waived("a cached and a write-combining mapping side by side need a coherent platform");
  if (fixture.gdr.attribute(GDR_ATTR_USING_DMA_BUF_MMAP) != 0) throw case_waived("dma-buf mappings have one type each");
  const device_memory memory(fixture.gpu, kCopyBytes);
  const gdr_buffer combined(fixture.gdr, memory.get(), kCopyBytes, GDR_MAP_FLAG_REQ_WC_MAPPING);
  const gdr_buffer cached(fixture.gdr, memory.get(), kCopyBytes, GDR_MAP_FLAG_REQ_CACHE_MAPPING);
  const auto wanted = pattern(kCopyBytes, 5);
  std::vector<unsigned char> seen(kCopyBytes);
  check_gdr("gdr_copy_to_mapping",
            gdr_copy_to_mapping(combined.handle(), combined.user_pointer(), wanted.data(), kCopyBytes));
  check_gdr("gdr_copy_from_mapping", gdr_copy_from_mapping(cached.handle(), seen.data(), cached.user_pointer(), kCopyBytes));
  require_equal(seen, wanted, "written through WC, read through the cached mapping");
}

constexpr sanity_case kStockDataCases[] = {
    {.name = "data_validation_cumemalloc",
     .asserts = "direct stores, copies both ways, and every stock offset, against CUDA's own copy",
     .run = data_validation<kCuMemAlloc, false>,
     .in_demo = true,
     .sees_every_gpu = true},
    {.name = "data_validation_vmmalloc",
     .asserts = "the same on cuMemCreate memory",
     .run = data_validation<kCuMemCreate, false>},
    {.name = "data_validation_v2_cumemalloc",
     .asserts = "the same through the v2 calls",
     .run = data_validation<kCuMemAlloc, true>},
    {.name = "data_validation_v2_forcepci_cumemalloc",
     .asserts = "the same with FORCE_PCIE",
     .run = data_validation_v2_forcepci},
    {.name = "data_validation_mix_mappings_cumemalloc",
     .asserts = "a WC and a cached mapping of one buffer agree",
     .run = data_validation_mix_mappings},
};

}  // namespace

std::span<const sanity_case> stock_data_cases() { return kStockDataCases; }

}  // namespace pl::tools
