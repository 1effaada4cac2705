// SPDX-License-Identifier: Apache-2.0
// Memory that runs out: allocation number k of a pin, a map, and a whole life fails, for k = 0, 1, 2 ... until one passes
// without reaching k. After each failure nothing may be pinned, mapped or open that was not before, and the same call must
// succeed right afterwards. A program of its own: it replaces operator new, and counts what the library's own code asks for
// (not what the fake kernels and the simulated driver do). The same for CUDA's calls on the way, whichever thread makes
// them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include "map/registry.hpp"
#include "test/support/counting_io.hpp"
#include "test/support/fake_gdrdrv.hpp"
#include "test/support/fake_rm.hpp"
#include "test/support/sim_fixture.hpp"

namespace {

thread_local int t_remaining = -1;  // allocations until one fails; negative: none does
thread_local int t_paused = 0;      // inside a fake kernel or the driver
thread_local bool t_fired = false;

bool must_fail() {
  if (t_remaining < 0 || t_paused > 0) return false;
  if (t_remaining-- != 0) return false;
  t_fired = true;
  return true;
}

}  // namespace

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // GCC 12 at -O1 inlines one of the pair and not the other
#endif
void* operator new(std::size_t bytes) {
  if (must_fail()) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  if (must_fail()) throw std::bad_alloc();
  void* memory = nullptr;
  if (posix_memalign(&memory, static_cast<std::size_t>(alignment), bytes != 0 ? bytes : 1) == 0) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace pl::test {
namespace {

struct pause {
  pause() { ++t_paused; }
  ~pause() { --t_paused; }
  pause(const pause&) = delete;
  pause& operator=(const pause&) = delete;
};

std::atomic<int> g_calls_remaining{-1};  // of CUDA until one fails; negative: none does
std::atomic<bool> g_call_failed{false};

// The kernel's allocations are not the library's.
class paused_io final : public device_io {
 public:
  explicit paused_io(device_io& next) : next_(next) {}
  int open(const char* path, int flags) override {
    const pause pausing;
    return next_.open(path, flags);
  }
  int close(int fd) override {
    const pause pausing;
    return next_.close(fd);
  }
  int ioctl(int fd, unsigned long request, void* argument) override {
    const pause pausing;
    return next_.ioctl(fd, request, argument);
  }
  void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) override {
    const pause pausing;
    return next_.mmap(address, bytes, protection, flags, fd, offset);
  }
  int munmap(void* address, std::size_t bytes) override {
    const pause pausing;
    return next_.munmap(address, bytes);
  }
  int madvise(void* address, std::size_t bytes, int advice) override {
    const pause pausing;
    return next_.madvise(address, bytes, advice);
  }
  result<std::string> read_text(const char* path) override {
    const pause pausing;
    return next_.read_text(path);
  }

 private:
  device_io& next_;
};

// Calls of the driver on the way to a mapping, with the count at rest.
template <auto Member>
struct paused;
template <class... Arguments, cu::result_t (*cu::driver_table::*Member)(Arguments...)>
struct paused<Member> {
  static cu::result_t call(Arguments... arguments) {
    const pause pausing;
    if (g_calls_remaining.load() >= 0 && g_calls_remaining.fetch_sub(1) == 0) {
      g_call_failed = true;
      return cu::error_code::unknown;
    }
    return (simulated_cuda().*Member)(arguments...);
  }
};

cu::driver_table paused_table() {
  using t = cu::driver_table;
  cu::driver_table table = simulated_cuda();
  table.cuMemGetHandleForAddressRange = paused<&t::cuMemGetHandleForAddressRange>::call;
  table.cuPointerGetAttributes = paused<&t::cuPointerGetAttributes>::call;
  table.cuPointerGetAttribute = paused<&t::cuPointerGetAttribute>::call;
  table.cuCtxGetCurrent = paused<&t::cuCtxGetCurrent>::call;
  table.cuCtxGetDevice = paused<&t::cuCtxGetDevice>::call;
  table.cuCtxPushCurrent_v2 = paused<&t::cuCtxPushCurrent_v2>::call;
  table.cuDeviceGet = paused<&t::cuDeviceGet>::call;
  table.cuDeviceGetCount = paused<&t::cuDeviceGetCount>::call;
  table.cuDeviceGetName = paused<&t::cuDeviceGetName>::call;
  table.cuDeviceGetAttribute = paused<&t::cuDeviceGetAttribute>::call;
  table.cuDeviceGetPCIBusId = paused<&t::cuDeviceGetPCIBusId>::call;
  table.cuMemRetainAllocationHandle = paused<&t::cuMemRetainAllocationHandle>::call;
  table.cuDevicePrimaryCtxRetain = paused<&t::cuDevicePrimaryCtxRetain>::call;
  table.cuStreamCreate = paused<&t::cuStreamCreate>::call;
  table.cuStreamSynchronize = paused<&t::cuStreamSynchronize>::call;
  table.cuMemAllocAsync = paused<&t::cuMemAllocAsync>::call;
  table.cuMemcpyDtoHAsync_v2 = paused<&t::cuMemcpyDtoHAsync_v2>::call;
  table.cuMemcpyHtoDAsync_v2 = paused<&t::cuMemcpyHtoDAsync_v2>::call;
  return table;  // names of errors, and what gives something back, are as they are
}

class exhaustion : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    table_ = paused_table();
    context_ = std::make_unique<current_device>();
    if (std::string(GetParam()) == "rm") {
      auto rm = std::make_unique<fake_rm>();
      rm->settings().version = "570.86.10";  // known by reading only: proofs are part of it
      kernel_ = std::move(rm);
    }
    if (std::string(GetParam()) == "gdrdrv") kernel_ = std::make_unique<fake_gdrdrv>();
    counted_ = std::make_unique<counting_io>(kernel_ ? *kernel_ : real_device_io());
    io_ = std::make_unique<paused_io>(*counted_);
    const device_buffer warm_up(1 << 20);
    session* s = open();
    auto mapped = pin_and_map_region(s, asked(warm_up.pointer()));  // what is made once and stays
    EXPECT_TRUE(mapped);
    EXPECT_TRUE(close_session(s));
  }
  session* open() {
    auto opened = open_session({io_.get(), &table_}, GetParam());
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
    return *opened;
  }
  static pin_request asked(std::uint64_t pointer, std::uint64_t bytes = 4096, bool is_sole = false) {
    pin_request request;
    request.range = {pointer, bytes};
    request.is_sole = is_sole;
    return request;
  }

  // The kernels' resources in use at this moment.
  std::vector<long> holdings() const {
    std::vector<long> out{counted_->open_descriptors(), static_cast<long>(counted_->mapped_bytes()),
                          open_descriptor_count()};
    if (const auto* rm = dynamic_cast<const fake_rm*>(kernel_.get()))
      out.insert(out.end(), {rm->live_clients(), rm->live_objects(), rm->live_mappings()});
    if (const auto* module = dynamic_cast<const fake_gdrdrv*>(kernel_.get())) out.push_back(module->live_pins());
    return out;
  }

  // Step k of `body` fails for all k. `body` is true if it worked; what it made it releases itself.
  template <class Body>
  void sweep(const char* subject, Body body) {
    SCOPED_TRACE(subject);
    constexpr int kMaxSteps = 500;
    ASSERT_TRUE(body());
    const auto before = holdings();
    int step = 0;
    for (; step < kMaxSteps; ++step) {
      t_remaining = step;
      t_fired = false;
      bool worked = false;
      try {
        worked = body();
      } catch (const std::bad_alloc&) {}
      t_remaining = -1;
      ASSERT_EQ(holdings(), before) << "left behind by allocation " << step;
      if (!t_fired) {
        EXPECT_TRUE(worked);
        break;
      }
      ASSERT_TRUE(body()) << "not usable after allocation " << step << " had failed";
      ASSERT_EQ(holdings(), before);
    }
    EXPECT_GT(step, 0) << "nothing was ever allocated";
    EXPECT_LT(step, kMaxSteps);
  }

  cu::driver_table table_;
  std::unique_ptr<current_device> context_;
  std::unique_ptr<device_io> kernel_;
  std::unique_ptr<counting_io> counted_;
  std::unique_ptr<paused_io> io_;
};

TEST_P(exhaustion, OfAPin) {
  const device_buffer buffer(1 << 20);
  session* s = open();
  std::vector<region*> kept;  // the session's list grows beneath the sweep
  for (int round = 0; round < 3; ++round) {
    sweep("pin", [&] {
      auto pinned = pin_region(s, asked(buffer.pointer()));
      return pinned && unpin_region(s, *pinned);
    });
    auto one = pin_region(s, asked(buffer.pointer()));
    ASSERT_TRUE(one);
    kept.push_back(*one);
  }
  EXPECT_TRUE(close_session(s));
}

TEST_P(exhaustion, OfAPinAndItsMapping) {
  const device_buffer buffer(1 << 20);
  session* s = open();
  for (const bool is_sole : {false, true})
    sweep(is_sole ? "its own addresses" : "shared addresses", [&] {
      auto mapped = pin_and_map_region(s, asked(buffer.pointer(), 65536, is_sole));
      return mapped && unpin_region(s, *mapped, unmapping::by_request);
    });
  EXPECT_TRUE(close_session(s));
}

TEST_P(exhaustion, OfAMappingBesideAnother) {
  const device_buffer buffer(8 << 20);
  session* s = open();
  auto other = pin_and_map_region(s, asked(buffer.pointer()));
  ASSERT_TRUE(other);
  sweep("second extent", [&] {
    auto mapped = pin_and_map_region(s, asked(buffer.pointer() + (4 << 20)));
    return mapped && unpin_region(s, *mapped, unmapping::by_request);
  });
  EXPECT_TRUE(close_session(s));
}

class joining_exhaustion : public exhaustion {};

TEST_P(joining_exhaustion, OfARangeOverSeveralObjects) {
  const vmm_buffer buffer({2 << 20, 2 << 20, 2 << 20});
  session* s = open();
  sweep("three pieces", [&] {
    auto mapped = pin_and_map_region(s, asked(buffer.pointer(), buffer.bytes()));
    return mapped && unpin_region(s, *mapped, unmapping::by_request);
  });
  EXPECT_TRUE(close_session(s));
}

TEST_P(exhaustion, FromOpenToClose) {
  const device_buffer buffer(1 << 20);
  sweep("life", [&] {
    auto opened = open_session({io_.get(), &table_}, GetParam());
    if (!opened) return false;
    bool worked = false;
    try {
      worked = pin_and_map_region(*opened, asked(buffer.pointer())).ok();
    } catch (const std::bad_alloc&) {}
    const int remaining = t_remaining;
    t_remaining = -1;  // a release needs no memory; a failing one could not be told from a leak
    const bool closed = close_session(*opened).ok();
    t_remaining = remaining;
    return worked && closed;
  });
}

// CUDA's call number k fails instead, with an error that means nothing.
TEST_P(exhaustion, OfCudasPatience) {
  const device_buffer buffer(1 << 20);
  const auto before = holdings();
  constexpr int kMaxCalls = 300;
  int call = 0;
  for (bool failed = true; failed && call < kMaxCalls; ++call) {
    session* s = open();  // with nothing proved and no device known
    g_calls_remaining = call;
    g_call_failed = false;
    auto mapped = pin_and_map_region(s, asked(buffer.pointer()));
    g_calls_remaining = -1;
    failed = g_call_failed.load();
    if (!mapped) {
      EXPECT_TRUE(failed);
      EXPECT_FALSE(mapped.error().message.empty());
    } else {
      EXPECT_TRUE(unpin_region(s, *mapped, unmapping::by_request));
    }
    EXPECT_EQ(counted_->mapped_bytes(), 0u) << "left mapped by call " << call;
    EXPECT_TRUE(close_session(s));
    // The proof of a mapping runs on a thread of its own, which may still close its descriptor.
    for (int tries = 0; tries < 2000 && holdings() != before; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(holdings(), before) << "left behind by call " << call;
  }
  EXPECT_GT(call, 1);
  EXPECT_LT(call, kMaxCalls);
}

TEST_P(exhaustion, ReleasesNeedNoMemory) {
  const device_buffer buffer(1 << 20);
  for (int round = 0; round < 2; ++round) {
    session* s = open();
    auto mapped = pin_and_map_region(s, asked(buffer.pointer()));
    auto forgotten = pin_and_map_region(s, asked(buffer.pointer(), 4096, true));
    ASSERT_TRUE(mapped && forgotten);
    t_remaining = 0;
    t_fired = false;
    const bool unpinned = unpin_region(s, *mapped, unmapping::by_request).ok();
    const bool closed = close_session(s).ok();
    t_remaining = -1;
    EXPECT_TRUE(unpinned && closed);
    EXPECT_FALSE(t_fired) << "a release asked for memory";
  }
}

// The fake gdrdrv module pins within one object.
INSTANTIATE_TEST_SUITE_P(backends, joining_exhaustion, testing::Values("dmabuf", "rm"),
                         [](const auto& one) { return std::string(one.param); });
INSTANTIATE_TEST_SUITE_P(backends, exhaustion, testing::Values("dmabuf", "rm", "gdrdrv"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace pl::test
