// SPDX-License-Identifier: Apache-2.0
// Cases that GDRCopy does not have: wrong use is refused with an error value and a sentence, never by a crash.
#include <dlfcn.h>

#include <cstring>

#include "tools/gdrcopy/sanity_case.hpp"

namespace pl::tools {
namespace {

// The call failed with EINVAL, left *handle 0, and gdr_last_error explains.
void require_pin_refused(const case_fixture& fixture, cu::device_ptr pointer, std::size_t bytes, const char* description) {
  gdr_mh_t handle{0x5A5A};
  const int code = gdr_pin_buffer(fixture.gdr.get(), pointer, bytes, 0, 0, &handle);
  PL_REQUIRE(code == EINVAL, "pin of %s returns %d instead of EINVAL", description, code);
  PL_REQUIRE(handle.h == 0, "pin of %s leaves 0x%lx in the handle", description, handle.h);
  PL_REQUIRE(std::strlen(gdr_last_error()) > 10, "pin of %s is refused without a reason", description);
}

void managed_memory_refused(const case_context& context) {
  case_fixture fixture(context);
  if (fixture.gpu.attribute(cu::device_attribute::managed_memory) == 0) throw case_waived("the GPU has no managed memory");
  cu::device_ptr pointer = 0;
  constexpr unsigned kAttachGlobal = 1;
  fixture.gpu.check(fixture.gpu.cuda().cuMemAllocManaged(&pointer, GPU_PAGE_SIZE, kAttachGlobal), "cuMemAllocManaged");
  require_pin_refused(fixture, pointer, GPU_PAGE_SIZE, "managed memory");
  PL_REQUIRE(std::strstr(gdr_last_error(), "managed") != nullptr, "the reason does not say managed: %s", gdr_last_error());
  fixture.gpu.check(fixture.gpu.cuda().cuMemFree_v2(pointer), "cuMemFree");
}

void host_memory_refused(const case_context& context) {
  case_fixture fixture(context);
  const host_memory pinned(fixture.gpu, GPU_PAGE_SIZE);
  require_pin_refused(fixture, pinned.device_address(), GPU_PAGE_SIZE, "page-locked host memory");
  const std::vector<unsigned char> plain(GPU_PAGE_SIZE);
  require_pin_refused(fixture, reinterpret_cast<std::uintptr_t>(plain.data()), plain.size(), "plain host memory");
}

void freed_pointer_refused(const case_context& context) {
  case_fixture fixture(context);
  device_memory memory(fixture.gpu, 64ull << 20);  // a block of its own, not a piece of one that stays
  const auto pointer = memory.get();
  memory.free();
  require_pin_refused(fixture, pointer, GPU_PAGE_SIZE, "freed memory");
}

void size_zero_refused(const case_context& context) {
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, GPU_PAGE_SIZE);
  require_pin_refused(fixture, memory.get(), 0, "0 bytes");
  require_pin_refused(fixture, 0, GPU_PAGE_SIZE, "address 0");
  gdr_buffer buffer(fixture.gdr, memory.get(), GPU_PAGE_SIZE);
  unsigned char byte = 0;
  PL_REQUIRE(gdr_copy_to_mapping(buffer.handle(), buffer.user_pointer(), &byte, 0) == 0,
             "a copy of 0 bytes must do nothing");
  void* again = nullptr;
  PL_REQUIRE(gdr_map(fixture.gdr.get(), buffer.handle(), &again, GPU_PAGE_SIZE) == EAGAIN,
             "a second map must return EAGAIN");
  buffer.unmap();
  PL_REQUIRE(gdr_map(fixture.gdr.get(), buffer.handle(), &again, 0) == EINVAL, "gdr_map of 0 bytes must return EINVAL");
  buffer.unpin();
}

void beyond_allocation_refused(const case_context& context) {
  case_fixture fixture(context);
  cu::device_ptr base = 0, start = 0;
  std::size_t bytes = 0;
  fixture.gpu.check(fixture.gpu.cuda().cuMemAlloc_v2(&base, 32ull << 20), "cuMemAlloc");
  fixture.gpu.check(fixture.gpu.cuda().cuMemGetAddressRange_v2(&start, &bytes, base), "cuMemGetAddressRange");
  require_pin_refused(fixture, base, bytes + 64 * GPU_PAGE_SIZE, "a range that leaves the allocation");
  require_pin_refused(fixture, base, ~std::size_t{0} - base + 1, "a range that wraps around");
  gdr_mh_t handle{0};
  PL_REQUIRE(gdr_pin_buffer(fixture.gdr.get(), base, GPU_PAGE_SIZE, 0, 0, &handle) == 0, "pin: %s", gdr_last_error());
  gdr_info_t info{};
  PL_REQUIRE(gdr_get_info(fixture.gdr.get(), handle, &info) == 0, "get_info: %s", gdr_last_error());
  void* mapped = nullptr;
  PL_REQUIRE(gdr_map(fixture.gdr.get(), handle, &mapped, info.mapped_size + 1) == EINVAL,
             "a map beyond the pin is not refused");
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), handle) == 0, "unpin: %s", gdr_last_error());
  fixture.gpu.check(fixture.gpu.cuda().cuMemFree_v2(base), "cuMemFree");
}

void closed_gdr_refused(const case_context& context) {
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, GPU_PAGE_SIZE);
  const gdr_t closed = gdr_open();
  PL_REQUIRE(closed != nullptr, "gdr_open failed: %s", gdr_last_error());
  PL_REQUIRE(gdr_close(closed) == 0, "gdr_close failed: %s", gdr_last_error());
  gdr_mh_t handle{0};
  int value = 0;
  PL_REQUIRE(gdr_pin_buffer(closed, memory.get(), GPU_PAGE_SIZE, 0, 0, &handle) == EINVAL, "pin on a closed gdr_t");
  PL_REQUIRE(gdr_close(closed) == EINVAL, "a second close is not refused");
  PL_REQUIRE(gdr_get_attribute(closed, GDR_ATTR_USE_PERSISTENT_MAPPING, &value) == EINVAL, "an attribute of a closed gdr_t");
  PL_REQUIRE(gdr_close(nullptr) == EINVAL, "gdr_close(NULL)");
}

void foreign_gdr_handle_refused(const case_context& context) {
  case_fixture fixture(context);
  const gdr_session other;
  const device_memory memory(fixture.gpu, GPU_PAGE_SIZE);
  gdr_buffer buffer(fixture.gdr, memory.get(), GPU_PAGE_SIZE);
  gdr_info_t info{};
  void* mapped = nullptr;
  PL_REQUIRE(gdr_get_info(other.get(), buffer.handle(), &info) == EINVAL, "get_info with a handle of another gdr_t");
  PL_REQUIRE(gdr_map(other.get(), buffer.handle(), &mapped, GPU_PAGE_SIZE) == EINVAL, "map with a handle of another gdr_t");
  PL_REQUIRE(gdr_unmap(other.get(), buffer.handle(), buffer.mapped(), GPU_PAGE_SIZE) == EINVAL, "unmap by another gdr_t");
  PL_REQUIRE(gdr_unpin_buffer(other.get(), buffer.handle()) == EINVAL, "unpin with a handle of another gdr_t");
  // The owner's mapping still works.
  const std::uint32_t word = 42;
  check_gdr("gdr_copy_to_mapping", gdr_copy_to_mapping(buffer.handle(), buffer.user_pointer(), &word, sizeof word));
  alignas(16) const unsigned char made_up[128] = {};
  for (const unsigned long h : {0ul, 1ul, ~0ul, reinterpret_cast<unsigned long>(made_up), buffer.handle().h + 8}) {
    PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), {h}) == EINVAL, "unpin of the made-up handle 0x%lx", h);
    PL_REQUIRE(gdr_copy_to_mapping({h}, buffer.user_pointer(), &word, sizeof word) == EINVAL, "copy by the handle 0x%lx", h);
  }
}

void double_unpin_refused(const case_context& context) {
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, GPU_PAGE_SIZE);
  gdr_mh_t handle{0};
  void* mapped = nullptr;
  PL_REQUIRE(gdr_pin_buffer(fixture.gdr.get(), memory.get(), GPU_PAGE_SIZE, 0, 0, &handle) == 0, "pin: %s",
             gdr_last_error());
  PL_REQUIRE(gdr_map(fixture.gdr.get(), handle, &mapped, GPU_PAGE_SIZE) == 0, "map: %s", gdr_last_error());
  PL_REQUIRE(gdr_unmap(fixture.gdr.get(), handle, static_cast<char*>(mapped) + 4096, GPU_PAGE_SIZE) == EINVAL,
             "unmap at a wrong address");
  PL_REQUIRE(gdr_unmap(fixture.gdr.get(), handle, mapped, GPU_PAGE_SIZE) == 0, "unmap: %s", gdr_last_error());
  PL_REQUIRE(gdr_unmap(fixture.gdr.get(), handle, mapped, GPU_PAGE_SIZE) == EINVAL, "a second unmap is not refused");
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), handle) == 0, "unpin: %s", gdr_last_error());
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), handle) == EINVAL, "a second unpin is not refused");
}

void v1_info_struct_canary(const case_context& context) {
  // The symbol, not the macro of the header: what programs compiled against 2.3 and older call.
  using old_call = int (*)(gdr_t, gdr_mh_t, gdr_info_v1_t*);
  const auto get_info_v1 = reinterpret_cast<old_call>(dlsym(RTLD_DEFAULT, "gdr_get_info"));
  PL_REQUIRE(get_info_v1 != nullptr, "the symbol gdr_get_info is not exported");
  static_assert(sizeof(gdr_info_v1_t) == 40);
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, GPU_PAGE_SIZE);
  const gdr_buffer buffer(fixture.gdr, memory.get(), GPU_PAGE_SIZE);
  struct {
    gdr_info_v1_t info;
    unsigned char canary[64];
  } guarded;
  std::memset(&guarded, 0xC3, sizeof guarded);
  PL_REQUIRE(get_info_v1(fixture.gdr.get(), buffer.handle(), &guarded.info) == 0, "gdr_get_info: %s", gdr_last_error());
  for (const unsigned char byte : guarded.canary) PL_REQUIRE(byte == 0xC3, "gdr_get_info writes beyond its 40 bytes");
  PL_REQUIRE(guarded.info.va == buffer.info().va && guarded.info.mapped_size == buffer.info().mapped_size &&
                 guarded.info.mapped == 1,
             "v1 and v2 disagree");
}

#define PL_REFUSAL(name_, text) \
  { .name = #name_, .asserts = text, .run = name_, .stock = false }

constexpr sanity_case kOwnRefusalCases[] = {
    PL_REFUSAL(managed_memory_refused, "EINVAL and a reason that says managed"),
    PL_REFUSAL(host_memory_refused, "EINVAL for page-locked and plain host memory"),
    PL_REFUSAL(freed_pointer_refused, "EINVAL for memory that was freed"),
    PL_REFUSAL(size_zero_refused, "EINVAL for pins and maps of 0 bytes and for address 0; copies of 0 bytes do nothing"),
    PL_REFUSAL(beyond_allocation_refused, "EINVAL for ranges that leave the allocation, wrap around, or leave the pin"),
    PL_REFUSAL(closed_gdr_refused, "EINVAL for every call on a closed gdr_t"),
    PL_REFUSAL(foreign_gdr_handle_refused, "EINVAL for handles of another gdr_t and made-up ones"),
    PL_REFUSAL(double_unpin_refused, "EINVAL for a second unpin or unmap and for a wrong address"),
    PL_REFUSAL(v1_info_struct_canary, "the old symbol writes 40 bytes and no more"),
};

}  // namespace

std::span<const sanity_case> own_refusal_cases() { return kOwnRefusalCases; }

}  // namespace pl::tools
