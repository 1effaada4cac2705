// SPDX-License-Identifier: Apache-2.0
// Cases that GDRCopy does not have: mapping and moving bytes.
#include <atomic>
#include <cstring>
#include <peerlane/peerlane.hpp>

#include "tools/common/nvml.hpp"
#include "tools/common/simultaneous.hpp"
#include "tools/gdrcopy/sanity_case.hpp"

namespace pl::tools {
namespace {

template <class T>
T must_map(peerlane::result<T> outcome, const char* description) {
  if (!outcome) throw case_failed(format("%s: %s", description, outcome.error().message.c_str()));
  return std::move(*outcome);
}
void must_do(const peerlane::status& outcome, const char* description) {
  if (!outcome) throw case_failed(format("%s: %s", description, outcome.error().message.c_str()));
}

// Writes and reads [offset, offset + bytes) of a mapping, checked against CUDA on both ways.
void check_through(const case_fixture& fixture, const peerlane::mapping& session, cu::device_ptr pointer, std::size_t offset,
                   std::size_t bytes, unsigned seed) {
  const auto wanted = pattern(bytes, seed);
  must_do(session.write(offset, wanted.data(), bytes), "write");
  require_equal(fixture.device_bytes(pointer + offset, bytes), wanted, format("write of %zu bytes at %zu", bytes, offset));
  const auto other = pattern(bytes, seed + 1);
  fixture.write_device(pointer + offset, other.data(), bytes);
  std::vector<unsigned char> seen(bytes);
  must_do(session.read(offset, seen.data(), bytes), "read");
  require_equal(seen, other, format("read of %zu bytes at %zu", bytes, offset));
}

void read_write_every_alignment(const case_context& context) {
  constexpr std::size_t kWindow = 512;
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, GPU_PAGE_SIZE);
  const gdr_buffer buffer(fixture.gdr, memory.get(), GPU_PAGE_SIZE);
  for (std::size_t offset = 0; offset < 64; ++offset) {
    for (const std::size_t bytes : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200}) {
      const std::size_t host_at = (offset * 13 + bytes) % 64;
      auto whole = pattern(kWindow, static_cast<unsigned>(offset * 1000 + bytes));
      fixture.write_device(memory.get(), whole.data(), kWindow);
      const auto source = pattern(64 + bytes, static_cast<unsigned>(bytes * 77 + offset));
      check_gdr("gdr_copy_to_mapping",
                gdr_copy_to_mapping(buffer.handle(), buffer.user_pointer() + offset, source.data() + host_at, bytes));
      std::memcpy(whole.data() + offset, source.data() + host_at, bytes);
      require_equal(fixture.device_bytes(memory.get(), kWindow), whole,
                    format("write of %zu bytes at alignment %zu and its neighbours", bytes, offset));
      std::vector<unsigned char> target(64 + bytes + 64, 0xEE), wanted = target;
      std::memcpy(wanted.data() + host_at, whole.data() + offset, bytes);
      check_gdr("gdr_copy_from_mapping",
                gdr_copy_from_mapping(buffer.handle(), target.data() + host_at, buffer.user_pointer() + offset, bytes));
      require_equal(target, wanted, format("read of %zu bytes at alignment %zu and its neighbours", bytes, offset));
    }
  }
}

void over_read_stays_inside(const case_context& context) {
  // Reads fetch whole aligned lines: at both ends of the mapping there is nothing beyond it to fetch (a fault would end
  // this process), and copies that would leave it are refused.
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, GPU_PAGE_SIZE);
  const gdr_buffer buffer(fixture.gdr, memory.get(), GPU_PAGE_SIZE);
  const auto wanted = pattern(GPU_PAGE_SIZE, 3);
  fixture.write_device(memory.get(), wanted.data(), wanted.size());
  std::vector<unsigned char> seen(256);
  for (std::size_t bytes = 1; bytes <= 130; ++bytes) {
    for (const std::size_t offset : {std::size_t{0}, GPU_PAGE_SIZE - bytes}) {
      check_gdr("gdr_copy_from_mapping",
                gdr_copy_from_mapping(buffer.handle(), seen.data(), buffer.user_pointer() + offset, bytes));
      require_equal(std::span(seen).first(bytes), std::span(wanted).subspan(offset, bytes),
                    format("read of %zu bytes at %zu", bytes, offset));
    }
    PL_REQUIRE(gdr_copy_from_mapping(buffer.handle(), seen.data(), buffer.user_pointer() + GPU_PAGE_SIZE - bytes + 1,
                                     bytes) == EINVAL,
               "a read of %zu bytes past the end is not refused", bytes);
    PL_REQUIRE(gdr_copy_to_mapping(buffer.handle(), buffer.user_pointer() + GPU_PAGE_SIZE - bytes + 1, seen.data(), bytes) ==
                   EINVAL,
               "a write of %zu bytes past the end is not refused", bytes);
  }
}

void concurrent_pin_map_copy_threads(const case_context& context) {
  constexpr unsigned kThreads = 8, kRounds = 50;
  constexpr std::size_t kSlice = GPU_PAGE_SIZE;
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, kThreads * kSlice);
  std::vector<std::string> problems(kThreads);
  tools::run_simultaneously(kThreads, [&](std::size_t id) {
    try {
      fixture.gpu.make_current();
      for (unsigned round = 0; round < kRounds; ++round) {
        const gdr_buffer buffer(fixture.gdr, memory.get() + id * kSlice, kSlice);
        const auto wanted = pattern(1000 + round, static_cast<unsigned>(id) * 1000 + round);
        std::vector<unsigned char> seen(wanted.size());
        check_gdr("gdr_copy_to_mapping",
                  gdr_copy_to_mapping(buffer.handle(), buffer.user_pointer() + round, wanted.data(), wanted.size()));
        check_gdr("gdr_copy_from_mapping",
                  gdr_copy_from_mapping(buffer.handle(), seen.data(), buffer.user_pointer() + round, seen.size()));
        require_equal(seen, wanted, format("thread %zu, round %u", id, round));
      }
    } catch (const std::exception& reason) { problems[id] = reason.what(); }
  });
  for (const auto& text : problems) PL_REQUIRE(text.empty(), "%s", text.c_str());
}

void unaligned_map(const case_context& context) {
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, 4 * GPU_PAGE_SIZE);
  const auto session = must_map(peerlane::session::open(), "peerlane::session::open");
  for (const std::size_t offset : {std::size_t{1}, std::size_t{4099}, std::size_t{65535}, std::size_t{65537}})
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{777}, std::size_t{70001}}) {
      const auto mapped = must_map(session.map(memory.get() + offset, bytes), "peerlane::map");
      const auto info = mapped.info();
      PL_REQUIRE(info.ok(), "info: %s", info.error().message.c_str());
      PL_REQUIRE(info->device_ptr == memory.get() + offset && info->size_bytes == bytes,
                 "the mapping forgot what was asked");
      check_through(fixture, mapped, memory.get() + offset, 0, bytes, static_cast<unsigned>(offset + bytes));
      PL_REQUIRE(mapped.write(bytes, "x", 1).code() == ERANGE, "a write past the end is not refused");
    }
}

void small_suballocations(const case_context& context) {
  constexpr std::size_t kCount = 200, kBytes = 256;
  case_fixture fixture(context);
  const auto session = must_map(peerlane::session::open(), "peerlane::session::open");
  std::vector<cu::device_ptr> pointers(kCount);
  for (auto& pointer : pointers)
    fixture.gpu.check(fixture.gpu.cuda().cuMemAlloc_v2(&pointer, kBytes), "cuMemAlloc of 256 B");
  {
    std::vector<peerlane::mapping> mapped;
    for (const auto pointer : pointers) mapped.push_back(must_map(session.map(pointer, kBytes), "peerlane::map"));
    for (std::size_t i = 0; i < kCount; ++i)
      must_do(mapped[i].write(0, pattern(kBytes, static_cast<unsigned>(i)).data(), kBytes), "write");
    for (std::size_t i = 0; i < kCount; ++i)
      require_equal(fixture.device_bytes(pointers[i], kBytes), pattern(kBytes, static_cast<unsigned>(i)),
                    format("allocation %zu", i));
  }
  for (const auto pointer : pointers) fixture.gpu.check(fixture.gpu.cuda().cuMemFree_v2(pointer), "cuMemFree");
}

void vmm_adjacent_pieces(const case_context& context) {
  constexpr std::size_t kPieces = 3;
  case_fixture fixture(context);
  const auto& cuda = fixture.gpu.cuda();
  cu::allocation_prop prop{};
  prop.type = cu::allocation_type::pinned;
  prop.location = {cu::location_type::device, fixture.gpu.device()};
  prop.flags.gpu_direct_rdma_capable = 1;
  std::size_t piece = 0;
  fixture.gpu.check(cuda.cuMemGetAllocationGranularity(&piece, &prop, cu::granularity::minimum), "granularity");
  cu::device_ptr base = 0;
  fixture.gpu.check(cuda.cuMemAddressReserve(&base, kPieces * piece, 0, 0, 0), "cuMemAddressReserve");
  cu::physical_t physical[kPieces] = {};
  for (std::size_t i = 0; i < kPieces; ++i) {
    fixture.gpu.check(cuda.cuMemCreate(&physical[i], piece, &prop, 0), "cuMemCreate");
    fixture.gpu.check(cuda.cuMemMap(base + i * piece, piece, 0, physical[i], 0), "cuMemMap");
  }
  const cu::access_desc access{{cu::location_type::device, fixture.gpu.device()}, cu::access_flags::read_write};
  fixture.gpu.check(cuda.cuMemSetAccess(base, kPieces * piece, &access, 1), "cuMemSetAccess");
  {
    const auto session = must_map(peerlane::session::open(), "peerlane::session::open");
    const auto mapped = must_map(session.map(base, kPieces * piece), "peerlane::map over three cuMemCreate pieces");
    for (std::size_t edge = 0; edge <= kPieces; ++edge) {
      const std::size_t begin = edge == 0 ? 0 : edge * piece - 300;
      check_through(fixture, mapped, base, begin, edge == 0 || edge == kPieces ? 300 : 600, static_cast<unsigned>(edge + 1));
    }
  }
  for (std::size_t i = 0; i < kPieces; ++i) {
    cuda.cuMemUnmap(base + i * piece, piece);
    cuda.cuMemRelease(physical[i]);
  }
  cuda.cuMemAddressFree(base, kPieces * piece);
}

void mallocasync_pool(const case_context& context) {
  case_fixture fixture(context);
  const auto& cuda = fixture.gpu.cuda();
  if (fixture.gpu.attribute(cu::device_attribute::memory_pools) == 0 || cuda.cuMemAllocAsync == nullptr)
    throw case_waived("the GPU or driver has no memory pools (attribute MEMORY_POOLS_SUPPORTED is 0)");
  const gpu_stream stream(fixture.gpu);
  cu::device_ptr pointer = 0;
  fixture.gpu.check(cuda.cuMemAllocAsync(&pointer, 3 * GPU_PAGE_SIZE, stream.get()), "cuMemAllocAsync");
  fixture.gpu.check(cuda.cuStreamSynchronize(stream.get()), "cuStreamSynchronize");
  {
    const auto session = must_map(peerlane::session::open(), "peerlane::session::open");
    const auto mapped = must_map(session.map(pointer + 100, 2 * GPU_PAGE_SIZE), "peerlane::map of pool memory");
    check_through(fixture, mapped, pointer + 100, 0, 2 * GPU_PAGE_SIZE, 9);
  }
  fixture.gpu.check(cuda.cuMemFreeAsync(pointer, stream.get()), "cuMemFreeAsync");
  fixture.gpu.check(cuda.cuStreamSynchronize(stream.get()), "cuStreamSynchronize");
}

void unfenced_writes_then_flush(const case_context& context) {
  constexpr std::size_t kMessage = 64, kCount = 1024;
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, kMessage * kCount);
  const gdr_buffer buffer(fixture.gdr, memory.get(), kMessage * kCount);
  const auto wanted = pattern(kMessage * kCount, 21);
  for (unsigned round = 0; round < 20; ++round) {
    fixture.gpu.check(fixture.gpu.cuda().cuMemsetD8_v2(memory.get(), 0, kMessage * kCount), "cuMemsetD8");
    fixture.gpu.synchronize();
    for (std::size_t i = 0; i < kCount; ++i)
      check_gdr("gdr_copy_to_mapping_unfenced",
                gdr_copy_to_mapping_unfenced(buffer.handle(), buffer.user_pointer() + i * kMessage,
                                             wanted.data() + i * kMessage, kMessage));
    check_gdr("gdr_flush_mapping", gdr_flush_mapping(buffer.handle()));
    require_equal(fixture.device_bytes(memory.get(), wanted.size()), wanted, format("round %u", round));
  }
}

void large_mapping(const case_context& context) {
  constexpr std::uint64_t kMaxBytes = 40ull << 30, kStep = 16ull << 20, kMinBytes = 64ull << 20;
  case_fixture fixture(context);
  std::size_t free_bytes = 0, total_bytes = 0;
  fixture.gpu.check(fixture.gpu.cuda().cuMemGetInfo_v2(&free_bytes, &total_bytes), "cuMemGetInfo");
  std::uint64_t bytes = std::min<std::uint64_t>(kMaxBytes, free_bytes / 10 * 9);
  if (fixture.gpu.simulated()) bytes = std::min<std::uint64_t>(bytes, 512ull << 20);
  else if (const auto nvml = nvml_device::open(fixture.gpu.bus_id(), nullptr))
    if (const auto use = nvml->bar1()) bytes = std::min(bytes, (use->total_bytes - use->used_bytes) / 10 * 9);
  bytes = bytes / kStep * kStep;
  if (bytes < kMinBytes)
    throw case_waived(format("only %s of memory or BAR1 are free, the case wants 64 MiB", format_size(bytes).c_str()));
  const device_memory memory(fixture.gpu, bytes);
  const auto session = must_map(peerlane::session::open(), "peerlane::session::open");
  const auto mapped = must_map(session.map(memory.get(), bytes), "peerlane::map");
  for (std::uint64_t offset = 0; offset < bytes; offset += kStep) {
    const std::uint64_t mark[2] = {offset, ~offset};
    must_do(mapped.write(offset, mark, sizeof mark), "write");
  }
  check_through(fixture, mapped, memory.get(), bytes - 1000, 1000, 4);
  for (std::uint64_t offset = 0; offset < bytes; offset += kStep) {
    std::uint64_t seen[2] = {};
    fixture.gpu.check(fixture.gpu.cuda().cuMemcpyDtoH_v2(seen, memory.get() + offset, sizeof seen), "cuMemcpyDtoH");
    PL_REQUIRE(seen[0] == offset && seen[1] == ~offset, "the mark at %s is wrong", format_size(offset).c_str());
  }
}

constexpr sanity_case kOwnCopyCases[] = {
    {.name = "read_write_every_alignment",
     .asserts = "device alignments 0..63, many sizes, neighbours untouched, against CUDA's own copy",
     .run = read_write_every_alignment,
     .stock = false,
     .in_demo = true},
    {.name = "over_read_stays_inside",
     .asserts = "reads at both ends of a mapping, and refusals one byte past it",
     .run = over_read_stays_inside,
     .stock = false,
     .in_demo = true},
    {.name = "concurrent_pin_map_copy_threads",
     .asserts = "eight threads pin, map, copy, unmap, unpin on one gdr_t",
     .run = concurrent_pin_map_copy_threads,
     .stock = false},
    {.name = "unaligned_map",
     .asserts = "peerlane::map takes any address and length and returns the exact pointer",
     .run = unaligned_map,
     .stock = false,
     .in_demo = true,
     .sees_every_gpu = true},
    {.name = "small_suballocations",
     .asserts = "200 allocations of 256 bytes mapped at once, none mixed up",
     .run = small_suballocations,
     .stock = false},
    {.name = "vmm_adjacent_pieces",
     .asserts = "one mapping over three cuMemCreate pieces, written across their edges",
     .run = vmm_adjacent_pieces,
     .stock = false,
     .sees_every_gpu = true},
    {.name = "mallocasync_pool",
     .asserts = "memory of cuMemAllocAsync's pool maps",
     .run = mallocasync_pool,
     .stock = false},
    {.name = "unfenced_writes_then_flush",
     .asserts = "1024 unfenced writes are all in GPU memory after one flush",
     .run = unfenced_writes_then_flush,
     .stock = false},
    {.name = "large_mapping",
     .asserts = "as much as memory and BAR1 allow, up to 40 GiB, in one mapping",
     .run = large_mapping,
     .stock = false},
};

}  // namespace

std::span<const sanity_case> own_copy_cases() { return kOwnCopyCases; }

}  // namespace pl::tools
