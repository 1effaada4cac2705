// SPDX-License-Identifier: Apache-2.0
// The attributes_* and basic_* cases of gdrcopy_sanity.
#include <array>
#include <thread>

#include "tools/common/simultaneous.hpp"
#include "tools/gdrcopy/sanity_case.hpp"

namespace pl::tools {
namespace {

void attributes_sanity(const case_context& context) {
  // No CUDA call on purpose, but a library must be chosen: on the simulated GPU its backend is the only one.
  const gpu_session gpu(context.gpu, false);
  const gdr_session gdr;
  for (const auto attribute_id : {GDR_ATTR_USE_PERSISTENT_MAPPING, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE}) {
    int value = -1;
    PL_REQUIRE(gdr_get_attribute(gdr.get(), attribute_id, &value) == 0, "attribute %d is refused", attribute_id);
    PL_REQUIRE(value == 0 || value == 1, "attribute %d answers %d", attribute_id, value);
  }
}

template <alloc_kind kKind, bool kV2, unsigned kFlags>
void basic(const case_context& context) {
  case_fixture fixture(context);
  if (kFlags == GDR_PIN_FLAG_FORCE_PCIE) {
    const bool coherent = fixture.gpu.attribute(cu::device_attribute::pageable_memory_access_uses_host_page_tables) != 0 &&
                          fixture.gpu.attribute(cu::device_attribute::compute_capability_major) >= 10;
    if (fixture.gdr.attribute(GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE) == 0 || !coherent)
      throw case_waived("FORCE_PCIE is for CPU-coherent platforms with compute capability 10 or newer");
  }
  const device_memory memory(fixture.gpu, kCaseBytes, kKind);
  gdr_mh_t handle{0};
  const int code = kV2 ? gdr_pin_buffer_v2(fixture.gdr.get(), memory.get(), kCaseBytes, kFlags, &handle)
                       : gdr_pin_buffer(fixture.gdr.get(), memory.get(), kCaseBytes, 0, 0, &handle);
  PL_REQUIRE(code == 0, "%s", gdr_error_text("gdr_pin_buffer", code).c_str());
  PL_REQUIRE(handle.h != 0, "the handle is 0");
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), handle) == 0, "unpin failed: %s", gdr_last_error());
}

void basic_with_tokens(const case_context& context) {
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, kCaseBytes);
  struct {
    unsigned long long p2p_token;
    unsigned int va_space;
  } tokens{};
  // Tokens are ignored where mappings are persistent, so old programs that pass them must get their pin. GDRCopy's own test
  // program waives the case there; and where the driver hands out no tokens any more, any numbers must do.
  if (fixture.gpu.cuda().cuPointerGetAttribute(&tokens, cu::pointer_attribute::p2p_tokens, memory.get()) !=
      cu::error_code::success)
    tokens = {0x5a5a5a5a5a5a5a5a, 0x5a5a};
  gdr_mh_t handle{0};
  const int code = gdr_pin_buffer(fixture.gdr.get(), memory.get(), kCaseBytes, tokens.p2p_token, tokens.va_space, &handle);
  PL_REQUIRE(code == 0, "%s", gdr_error_text("gdr_pin_buffer", code).c_str());
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), handle) == 0, "unpin failed: %s", gdr_last_error());
}

void basic_unaligned_mapping(const case_context& context) {
  case_fixture fixture(context);
  const auto& cuda = fixture.gpu.cuda();
  cu::device_ptr neighbour = 0, block = 0;
  fixture.gpu.check(cuda.cuMemAlloc_v2(&neighbour, GPU_PAGE_SIZE + 512), "cuMemAlloc");
  fixture.gpu.check(cuda.cuMemAlloc_v2(&block, 3 * GPU_PAGE_SIZE), "cuMemAlloc");
  const cu::device_ptr aligned = (block + GPU_PAGE_SIZE - 1) & GPU_PAGE_MASK;
  const cu::device_ptr unaligned = block % GPU_PAGE_SIZE != 0 ? block : block + 256;

  gdr_mh_t handle{0};
  void* mapped = nullptr;
  int code = gdr_pin_buffer(fixture.gdr.get(), unaligned, GPU_PAGE_SIZE, 0, 0, &handle);
  PL_REQUIRE(code == 0, "an unaligned pin must work: %s", gdr_error_text("gdr_pin_buffer", code).c_str());
  PL_REQUIRE(gdr_map(fixture.gdr.get(), handle, &mapped, GPU_PAGE_SIZE) != 0, "gdr_map of an unaligned pin must fail");
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), handle) == 0, "unpin failed: %s", gdr_last_error());

  const gdr_buffer buffer(fixture.gdr, aligned, GPU_PAGE_SIZE);
  auto* words = static_cast<volatile std::uint32_t*>(buffer.mapped());
  words[0] = 0x11111111;
  fixture.gpu.check(cuda.cuMemFree_v2(neighbour), "cuMemFree of the neighbour");
  words[1] = 0x22222222;
  gdr_flush_mapping(buffer.handle());
  const auto seen = fixture.device_bytes(aligned, 8);
  const unsigned char wanted[] = {0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x22, 0x22};
  require_equal(seen, wanted, "stores through the aligned mapping");
  fixture.gpu.check(cuda.cuMemFree_v2(block), "cuMemFree");
}

void basic_small_buffers_mapping(const case_context& context) {
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, GPU_PAGE_SIZE);
  gdr_mh_t first{0}, second{0};
  void *first_va = nullptr, *second_va = nullptr;
  PL_REQUIRE(gdr_pin_buffer(fixture.gdr.get(), memory.get(), 8, 0, 0, &first) == 0, "pin: %s", gdr_last_error());
  PL_REQUIRE(gdr_pin_buffer(fixture.gdr.get(), memory.get() + 8, 8, 0, 0, &second) == 0, "pin: %s", gdr_last_error());
  PL_REQUIRE(first.h != second.h, "two pins have one handle");
  PL_REQUIRE(gdr_map(fixture.gdr.get(), first, &first_va, 8) == 0, "map: %s", gdr_last_error());
  PL_REQUIRE(gdr_map(fixture.gdr.get(), second, &second_va, 8) != 0, "gdr_map of a pin at offset 8 must fail");
  PL_REQUIRE(gdr_unmap(fixture.gdr.get(), first, first_va, 8) == 0, "unmap: %s", gdr_last_error());
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), second) == 0, "unpin: %s", gdr_last_error());
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), first) == 0, "unpin: %s", gdr_last_error());
}

// Exceptions must not leave a thread: the first one is carried to the joiner.
template <class Body>
void run_in_thread(Body&& body) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      body();
    } catch (...) { failure = std::current_exception(); }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

struct life {
  gdr_mh_t handle{0};
  void* mapped = nullptr;
  void pin(gdr_t gdr, cu::device_ptr pointer) {
    PL_REQUIRE(gdr_pin_buffer(gdr, pointer, kCaseBytes, 0, 0, &handle) == 0, "pin: %s", gdr_last_error());
  }
  void map(gdr_t gdr) { PL_REQUIRE(gdr_map(gdr, handle, &mapped, kCaseBytes) == 0, "map: %s", gdr_last_error()); }
  void unmap(gdr_t gdr) { PL_REQUIRE(gdr_unmap(gdr, handle, mapped, kCaseBytes) == 0, "unmap: %s", gdr_last_error()); }
  void unpin(gdr_t gdr) { PL_REQUIRE(gdr_unpin_buffer(gdr, handle) == 0, "unpin: %s", gdr_last_error()); }
  void whole(gdr_t gdr, cu::device_ptr pointer) { pin(gdr, pointer), map(gdr), unmap(gdr), unpin(gdr); }
};

template <alloc_kind kKind>
void basic_child_thread_pins_buffer(const case_context& context) {
  const gpu_session gpu(context.gpu, false);
  const device_memory memory(gpu, kCaseBytes, kKind);
  const gdr_t gdr = gdr_open();
  PL_REQUIRE(gdr != nullptr, "gdr_open failed");
  run_in_thread([&] { life().whole(gdr, memory.get()); });
  life split;
  run_in_thread([&] { split.pin(gdr, memory.get()); });
  split.map(gdr);
  run_in_thread([&] { split.unmap(gdr); });
  run_in_thread([&] { split.unpin(gdr); });
  std::array<std::exception_ptr, 2> failures;
  tools::run_simultaneously(failures.size(), [&](std::size_t i) {
    try {
      for (int round = 0; round < 20; ++round) life().whole(gdr, memory.get());
    } catch (...) { failures[i] = std::current_exception(); }
  });
  for (auto& one : failures)
    if (one) std::rethrow_exception(one);
  run_in_thread([&] { PL_REQUIRE(gdr_close(gdr) == 0, "close from a thread: %s", gdr_last_error()); });
}

constexpr sanity_case kStockBasicCases[] = {
    {.name = "attributes_sanity", .asserts = "attributes 1 and 2 are answered", .run = attributes_sanity},
    {.name = "basic_cumemalloc",
     .asserts = "pin of 320 KiB, unpin, close",
     .run = basic<kCuMemAlloc, false, 0>,
     .in_demo = true},
    {.name = "basic_vmmalloc",
     .asserts = "the same on cuMemCreate memory",
     .run = basic<kCuMemCreate, false, 0>,
     .in_demo = true},
    {.name = "basic_v2_cumemalloc", .asserts = "gdr_pin_buffer_v2", .run = basic<kCuMemAlloc, true, 0>},
    {.name = "basic_v2_vmmalloc", .asserts = "gdr_pin_buffer_v2 on cuMemCreate memory", .run = basic<kCuMemCreate, true, 0>},
    {.name = "basic_v2_forcepci_cumemalloc",
     .asserts = "pin with FORCE_PCIE",
     .run = basic<kCuMemAlloc, true, GDR_PIN_FLAG_FORCE_PCIE>},
    {.name = "basic_v2_forcepci_vmmalloc",
     .asserts = "pin with FORCE_PCIE",
     .run = basic<kCuMemCreate, true, GDR_PIN_FLAG_FORCE_PCIE>},
    {.name = "basic_with_tokens", .asserts = "pin with P2P tokens, which are ignored", .run = basic_with_tokens},
    {.name = "basic_unaligned_mapping",
     .asserts = "unaligned pins work, their gdr_map fails; freeing a neighbour leaves an aligned mapping alive",
     .run = basic_unaligned_mapping},
    {.name = "basic_small_buffers_mapping",
     .asserts = "two 8-byte pins in a page: the first maps, the second does not",
     .run = basic_small_buffers_mapping},
    {.name = "basic_child_thread_pins_buffer_cumemalloc",
     .asserts = "pin, map, unmap, unpin, close from any thread and from two at once",
     .run = basic_child_thread_pins_buffer<kCuMemAlloc>},
    {.name = "basic_child_thread_pins_buffer_vmmalloc",
     .asserts = "the same on cuMemCreate memory",
     .run = basic_child_thread_pins_buffer<kCuMemCreate>},
};

}  // namespace

std::span<const sanity_case> stock_basic_cases() { return kStockBasicCases; }

}  // namespace pl::tools
