// SPDX-License-Identifier: Apache-2.0
// Memory comes and goes at random, and every write and read through the cache must be what CUDA sees at that address at that
// moment. Addresses are reused at once (the simulated allocators take the lowest free place), so a mapping that outlives its
// memory wrongly is met within a few steps. A failure names its seed.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "test/copy/mapping_cache_fixture.hpp"

namespace pl::copy {
namespace {

using test::kMiB;

constexpr std::size_t kPieceBytes = 2 * kMiB;
constexpr std::size_t kSlots = 4;  // of one reservation
constexpr std::size_t kFrameBytes = 32;
constexpr std::size_t kLongestCopy = 300;

enum class kind { plain, pooled, mapped };

struct region {
  kind made_by;
  std::uint64_t pointer;
  std::size_t bytes;
};

cu::result_t trim(cu::pool_t pool) {
  using call_t = cu::result_t (*)(cu::pool_t, std::size_t);
  static const auto call = reinterpret_cast<call_t>(dlsym(test::simulated_cuda().library, "cuMemPoolTrimTo"));
  return call(pool, 0);
}

// One thread's memory: allocations, pool allocations, and two reservations into which a few handles are mapped.
class actor {
 public:
  actor(mapping_cache& cache, std::uint64_t seed) : cache_(cache), random_(seed), seed_(seed) {
    for (auto& base : reservations_) EXPECT_EQ(cuda_.cuMemAddressReserve(&base, kSlots * kPieceBytes, kPieceBytes, 0, 0), 0);
    for (std::size_t i = 0; i < handles_.size(); ++i) make_handle(i);
    EXPECT_EQ(cuda_.cuDeviceGetDefaultMemPool(&pool_, 0), 0);
  }
  ~actor() {
    while (!regions_.empty()) free_one(regions_.size() - 1);
    for (const auto handle : handles_) cuda_.cuMemRelease(handle);
    for (const auto base : reservations_) cuda_.cuMemAddressFree(base, kSlots * kPieceBytes);
  }
  actor(const actor&) = delete;
  actor& operator=(const actor&) = delete;

  // False: the cache is wrong.
  bool step() {
    ++steps_;
    const std::uint64_t action = below(100);
    if (action < 14) allocate();
    else if (action < 28 && !regions_.empty()) free_one(below(regions_.size()));
    else if (action < 33) map_piece();
    else if (action < 38) shift_piece();
    else if (action < 39) make_handle_anew(below(handles_.size()));
    else if (action < 41) trim(pool_);
    else if (action < 42) cache_.trim(below(4) == 0);
    else if (action < 45) holds_.clear();
    else if (!regions_.empty()) return below(2) == 0 ? write_through() : read_through();
    return true;
  }
  int checks() const { return checks_; }

 private:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  void make_handle(std::size_t index) {
    cu::allocation_prop prop{};
    prop.type = cu::allocation_type::pinned;
    prop.location = {cu::location_type::device, 0};
    prop.flags.gpu_direct_rdma_capable = 1;
    EXPECT_EQ(cuda_.cuMemCreate(&handles_[index], (1 + index % 2) * kPieceBytes, &prop, 0), 0);
  }
  // The old one lives on where it is mapped.
  void make_handle_anew(std::size_t index) {
    cuda_.cuMemRelease(handles_[index]);
    make_handle(index);
  }

  void allocate() {
    if (regions_.size() >= 12) return;
    region made{below(3) == 0 ? kind::pooled : kind::plain, 0, 0};
    switch (below(3)) {
      case 0:
        made.bytes = 1 + below(5000);
        break;
      case 1:
        made.bytes = 1 + below(kMiB);
        break;
      default:
        made.bytes = kMiB + below(4) * kMiB / 2;
    }
    const auto rc = made.made_by == kind::pooled ? cuda_.cuMemAllocAsync(&made.pointer, made.bytes, nullptr)
                                                 : cuda_.cuMemAlloc_v2(&made.pointer, made.bytes);
    if (rc == 0) regions_.push_back(made);
  }

  // A handle, whole or its first half, at any place that is free; the same handle may lie at several.
  void map_piece() {
    const std::size_t index = below(handles_.size());
    const std::size_t bytes = index % 2 == 1 && below(2) == 0 ? 2 * kPieceBytes : kPieceBytes;
    const std::uint64_t base = reservations_[below(reservations_.size())] + below(kSlots) * kPieceBytes;
    if (cuda_.cuMemMap(base, bytes, 0, handles_[index], 0) != 0) return;  // occupied, or beyond the end
    const cu::access_desc access{{cu::location_type::device, 0}, cu::access_flags::read_write};
    EXPECT_EQ(cuda_.cuMemSetAccess(base, bytes, &access, 1), 0);
    regions_.push_back({kind::mapped, base, bytes});
  }

  // The same memory a piece further on or back: pages that stay mapped now show another part of it.
  void shift_piece() {
    for (auto& r : regions_) {
      if (r.made_by != kind::mapped || below(2) == 0) continue;
      const std::uint64_t base = below(2) == 0 ? r.pointer + kPieceBytes : r.pointer - kPieceBytes;
      cu::physical_t handle = 0;
      EXPECT_EQ(cuda_.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(r.pointer)), 0);
      EXPECT_EQ(cuda_.cuMemUnmap(r.pointer, r.bytes), 0);
      if (cuda_.cuMemMap(base, r.bytes, 0, handle, 0) == 0) r.pointer = base;
      else EXPECT_EQ(cuda_.cuMemMap(r.pointer, r.bytes, 0, handle, 0), 0);
      const cu::access_desc access{{cu::location_type::device, 0}, cu::access_flags::read_write};
      EXPECT_EQ(cuda_.cuMemSetAccess(r.pointer, r.bytes, &access, 1), 0);
      cuda_.cuMemRelease(handle);
    }
  }

  void free_one(std::size_t index) {
    const region gone = regions_[index];
    regions_[index] = regions_.back();
    regions_.pop_back();
    switch (gone.made_by) {
      case kind::plain:
        EXPECT_EQ(cuda_.cuMemFree_v2(gone.pointer), 0);
        break;
      case kind::pooled:
        EXPECT_EQ(cuda_.cuMemFreeAsync(gone.pointer, nullptr), 0);
        EXPECT_EQ(cuda_.cuStreamSynchronize(nullptr), 0);
        break;
      case kind::mapped:
        EXPECT_EQ(cuda_.cuMemUnmap(gone.pointer, gone.bytes), 0);
    }
  }

  struct place {
    std::uint64_t begin, bytes;    // of the copy
    std::uint64_t around, margin;  // with canaries as far as the region goes
    std::size_t around_bytes;
  };
  place any_place() {
    const region& r = regions_[below(regions_.size())];
    const std::uint64_t bytes = 1 + below(std::min<std::uint64_t>(r.bytes, kLongestCopy));
    // Borders of windows and pages are where mistakes would be.
    std::uint64_t offset = below(r.bytes - bytes + 1);
    const std::uint64_t before_border = align_down(r.pointer + offset, below(2) == 0 ? kMiB : kHostPageBytes) - bytes / 2;
    if (before_border >= r.pointer && below(2) == 0) offset = before_border - r.pointer;
    if (below(4) == 0) offset = 0;
    if (below(4) == 0) offset = r.bytes - bytes;
    const std::uint64_t margin = std::min<std::uint64_t>(offset, kFrameBytes);
    const std::uint64_t behind = std::min<std::uint64_t>(r.bytes - offset - bytes, kFrameBytes);
    return {r.pointer + offset, bytes, r.pointer + offset - margin, margin, margin + bytes + behind};
  }

  // Null: copies of other threads hold everything.
  char* mapping_of(const place& position) {
    auto hold = test::find(cache_, position.begin, position.bytes);
    if (!hold) {
      EXPECT_EQ(hold.code(), EBUSY) << hold.error().message;
      return nullptr;
    }
    char* const data = hold->data;
    if (holds_.size() >= 3) holds_.erase(holds_.begin());
    holds_.push_back(*std::move(hold));  // some outlive their memory
    return data;
  }

  bool write_through() {
    const place position = any_place();
    auto wanted = test::device_bytes(position.around, position.around_bytes);
    const auto tag = test::random_bytes(position.bytes, random_());
    char* const data = mapping_of(position);
    if (data == nullptr) return !testing::Test::HasFailure();
    std::memcpy(data, tag.data(), tag.size());
    std::copy(tag.begin(), tag.end(), wanted.begin() + static_cast<std::ptrdiff_t>(position.margin));
    return is_right(test::device_bytes(position.around, position.around_bytes) == wanted, "written");
  }

  bool read_through() {
    const place position = any_place();
    const auto tag = test::random_bytes(position.bytes, random_());
    test::set_device_bytes(position.begin, tag);
    const char* const data = mapping_of(position);
    if (data == nullptr) return !testing::Test::HasFailure();
    return is_right(std::memcmp(data, tag.data(), tag.size()) == 0, "read");
  }

  bool is_right(bool right, const char* claim) {
    ++checks_;
    EXPECT_TRUE(right) << "other memory was " << claim << ": seed " << seed_ << ", step " << steps_;
    return right;
  }

  const cu::driver_table& cuda_ = test::simulated_cuda();
  const test::current_device context_{0};
  mapping_cache& cache_;
  std::mt19937_64 random_;
  const std::uint64_t seed_;
  std::vector<region> regions_;
  std::vector<mapping_cache::hold> holds_;
  std::array<std::uint64_t, 2> reservations_{};
  std::array<cu::physical_t, 4> handles_{};
  cu::pool_t pool_ = nullptr;
  int steps_ = 0;
  int checks_ = 0;
};

mapping_cache::options tight(const std::string& backend) {
  mapping_cache::options wanted;
  wanted.window_bytes = 2 * kMiB;
  wanted.capacity_bytes = 12 * kMiB;  // below what an actor has mapped: evictions all the time
  wanted.sweep_ms = 1;
  wanted.backend = backend;
  return wanted;
}

class MappingCacheFuzz : public testing::TestWithParam<const char*> {
 protected:
  test::mapping_kernel kernel{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(backends, MappingCacheFuzz, testing::ValuesIn(test::kMappingBackends), test::backend_name);

TEST_P(MappingCacheFuzz, OneThreadAlwaysMeetsTheMemoryThatIsThere) {
  mapping_cache::statistics sum;
  int checks = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    auto wanted = tight(GetParam());
    if (seed % 2 == 0) wanted.window_bytes = wanted.capacity_bytes = 32 * kMiB;
    if (seed % 3 == 0) wanted.sweep_ms = 0;
    mapping_cache cache(wanted);
    {
      actor memory(cache, seed);
      for (int step = 0; step < 2000; ++step) ASSERT_TRUE(memory.step());
      checks += memory.checks();
    }
    const auto counts = cache.counts();
    sum.hits += counts.hits;
    sum.stale += counts.stale;
    sum.evictions += counts.evictions;
  }
  EXPECT_GT(checks, 5000);
  EXPECT_GT(sum.hits, 1000u) << "a cache that never hits proves nothing";
  EXPECT_GT(sum.stale, 1000u);
  EXPECT_GT(sum.evictions, 100u);
}

TEST_P(MappingCacheFuzz, ThreadsThatTakeEachOthersAddressesDoToo) {
  mapping_cache cache(tight(GetParam()));
  std::atomic<bool> is_wrong{false};
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 100; seed < 103; ++seed)
    threads.emplace_back([&cache, &is_wrong, seed] {
      actor memory(cache, seed);
      for (int step = 0; step < 2000 && !is_wrong; ++step)
        if (!memory.step()) is_wrong = true;
    });
  for (auto& each : threads) each.join();
  EXPECT_FALSE(is_wrong);
  EXPECT_GT(cache.counts().hits, 100u);
  EXPECT_EQ(cache.trim(true), 0u);
}

}  // namespace
}  // namespace pl::copy
