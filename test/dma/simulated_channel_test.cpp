// SPDX-License-Identifier: Apache-2.0
// DMA channels on the simulated GPU, beside CUDA in the same process.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "dma/channel.hpp"
#include "rm/export_listener.hpp"
#include "rm/simulated_device_io.hpp"

namespace {

using namespace pl;

constexpr std::size_t kBytes = 4u << 20;
constexpr std::uint64_t kTimeoutNs = 20'000'000'000;

const cu::driver_table& cuda() { return **cu::driver(); }
device_io& simulated_io() { return *rm::simulated_device_io(cuda()); }

void expect_success(cu::result_t rc) { EXPECT_EQ(rc, cu::error_code::success); }

std::vector<std::byte> pattern(unsigned start) {
  std::vector<std::byte> out(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) out[i] = static_cast<std::byte>(start + i * 7 + (i >> 10));
  return out;
}

// A simulated GPU with an address space for channels, and pages of the host in it.
class gpu_with_channels {
 public:
  explicit gpu_with_channels(rm::client& client, int ordinal) : client_(client) {
    char pci[32] = {};
    expect_success(cuda().cuDeviceGetPCIBusId(pci, sizeof pci, ordinal));
    auto found = client.find_gpu(*rm::parse_pci_address(pci));
    EXPECT_TRUE(found) << found.error().message;
    gpu = *found;
    auto opened = dma::address_space::open(client, *gpu, *rm::driver_version(simulated_io()));
    EXPECT_TRUE(opened) << opened.error().message;
    space = *opened;
    host = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    host_region = std::move(*space->bind_host(host, kBytes));
  }
  ~gpu_with_channels() { munmap(host, kBytes); }

  std::unique_ptr<dma::channel> open() const {
    auto opened = dma::channel::open(space, {});
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
  }
  result<dma::region> bind(cu::device_ptr pointer, std::size_t size_bytes) const {
    const auto pieces = rm::find_backing(cuda(), pointer, size_bytes);
    EXPECT_TRUE(pieces) << pieces.error().message;
    EXPECT_EQ(pieces->size(), 1u);
    const auto& piece = pieces->front();
    return space->bind_object(piece.client, piece.object, piece.offset, piece.size_bytes);
  }
  // The region's bytes, by a channel of its own.
  std::vector<std::byte> read(const dma::region& source) const {
    const auto queue = open();
    const auto number = queue->copy(host_region.address(), source.address(), source.size_bytes());
    EXPECT_TRUE(queue->wait(*number, kTimeoutNs));
    return {host, host + source.size_bytes()};
  }

  rm::client& client_;
  const rm::gpu* gpu = nullptr;
  std::shared_ptr<dma::address_space> space;
  std::byte* host = nullptr;
  dma::region host_region;
};

class simulated_channel : public testing::Test {
 protected:
  void SetUp() override {
    expect_success(cuda().cuInit(0));
    for (int ordinal = 0; ordinal < 2; ++ordinal)
      expect_success(cuda().cuDevicePrimaryCtxRetain(&contexts_[ordinal], ordinal));
    expect_success(cuda().cuCtxSetCurrent(contexts_[0]));
    auto opened = rm::client::open(simulated_io());
    ASSERT_TRUE(opened) << opened.error().message;
    client_ = std::move(*opened);
    zero_ = std::make_unique<gpu_with_channels>(*client_, 0);
  }
  void TearDown() override {
    zero_.reset();
    client_.reset();
    expect_success(cuda().cuCtxSetCurrent(nullptr));
    for (int ordinal = 0; ordinal < 2; ++ordinal) expect_success(cuda().cuDevicePrimaryCtxRelease_v2(ordinal));
  }
  static cu::device_ptr allocate(const std::vector<std::byte>& bytes) {
    cu::device_ptr pointer = 0;
    expect_success(cuda().cuMemAlloc_v2(&pointer, bytes.size()));
    expect_success(cuda().cuMemcpyHtoD_v2(pointer, bytes.data(), bytes.size()));
    return pointer;
  }
  static std::vector<std::byte> read(cu::device_ptr pointer) {
    std::vector<std::byte> out(kBytes);
    expect_success(cuda().cuMemcpyDtoH_v2(out.data(), pointer, kBytes));
    return out;
  }
  static std::size_t free_bytes() {
    std::size_t left = 0, total = 0;
    expect_success(cuda().cuMemGetInfo_v2(&left, &total));
    return left;
  }

  cu::context_t contexts_[2] = {};
  std::unique_ptr<rm::client> client_;
  std::unique_ptr<gpu_with_channels> zero_;
};

TEST_F(simulated_channel, MovesCudasMemoryBothWays) {
  const auto sent = pattern(1), answered = pattern(77);
  const auto pointer = allocate(sent);
  {
    const auto region = std::move(*zero_->bind(pointer, kBytes));
    EXPECT_EQ(zero_->read(region), sent);

    const auto queue = zero_->open();
    std::copy(answered.begin(), answered.end(), zero_->host);
    const auto number = queue->copy(region.address(), zero_->host_region.address(), kBytes);
    ASSERT_TRUE(queue->wait(*number, kTimeoutNs));
    EXPECT_EQ(read(pointer), answered);
  }
  expect_success(cuda().cuMemFree_v2(pointer));
}

TEST_F(simulated_channel, APartOfAnAllocation) {
  const auto sent = pattern(9);
  const auto pointer = allocate(sent);
  const auto region = std::move(*zero_->bind(pointer + 8192, 4096));
  const auto got = zero_->read(region);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), sent.begin() + 8192));
  expect_success(cuda().cuMemFree_v2(pointer));
}

TEST_F(simulated_channel, FreedMemoryStaysUntilItsRegionEnds) {
  const auto old_bytes = pattern(3), new_bytes = pattern(200);
  const std::size_t left = free_bytes();
  const auto pointer = allocate(old_bytes);
  auto region = std::move(*zero_->bind(pointer, kBytes));
  expect_success(cuda().cuMemFree_v2(pointer));
  EXPECT_EQ(free_bytes(), left - kBytes);
  const auto again = allocate(new_bytes);
  EXPECT_EQ(again, pointer);
  EXPECT_EQ(zero_->read(region), old_bytes);
  EXPECT_EQ(read(again), new_bytes);
  region = dma::region();
  EXPECT_EQ(free_bytes(), left - kBytes);
  expect_success(cuda().cuMemFree_v2(again));
  EXPECT_EQ(free_bytes(), left);
}

TEST_F(simulated_channel, TwoGpusAreDistinct) {
  gpu_with_channels one(*client_, 1);
  EXPECT_NE(one.gpu->minor, zero_->gpu->minor);
  const auto first = pattern(1), second = pattern(2);
  const auto on_zero = allocate(first);
  expect_success(cuda().cuCtxSetCurrent(contexts_[1]));
  const auto on_one = allocate(second);
  {
    const auto zeros = std::move(*zero_->bind(on_zero, kBytes)), ones = std::move(*one.bind(on_one, kBytes));
    EXPECT_EQ(zero_->read(zeros), first);
    EXPECT_EQ(one.read(ones), second);
    EXPECT_FALSE(zero_->bind(on_one, kBytes));
    // An address of one is no address of the other.
    const auto lost = one.open(), sound = zero_->open();
    const auto number = lost->copy(one.host_region.address(), zeros.address(), 64);
    EXPECT_FALSE(number && lost->wait(*number, 30'000'000));
    EXPECT_TRUE(sound->wait(*sound->fill(zeros.address(), 0, 64), kTimeoutNs));
  }
  expect_success(cuda().cuMemFree_v2(on_one));
  expect_success(cuda().cuCtxSetCurrent(contexts_[0]));
  expect_success(cuda().cuMemFree_v2(on_zero));
}

TEST_F(simulated_channel, AFaultEndsOneChannelAndNothingElse) {
  const auto sent = pattern(5);
  const auto pointer = allocate(sent);
  {
    const auto region = std::move(*zero_->bind(pointer, kBytes));
    const auto broken = zero_->open(), sound = zero_->open();
    const auto number = broken->copy(region.address() + kBytes + 64, zero_->host_region.address(), 64);
    EXPECT_FALSE(number && broken->wait(*number, 30'000'000));
    EXPECT_TRUE(sound->wait(*sound->copy(zero_->host_region.address(), region.address(), kBytes), kTimeoutNs));
    EXPECT_EQ(read(pointer), sent);
    EXPECT_EQ(zero_->read(region), sent);
  }
  expect_success(cuda().cuMemFree_v2(pointer));
}

TEST_F(simulated_channel, AForkedChildGetsErrors) {
  const auto queue = zero_->open();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that hangs does not end with 0
    const bool is_refused = !rm::client::open(simulated_io()) && !zero_->space->bind_host(zero_->host, kBytes) &&
                            !dma::channel::open(zero_->space, {}) && !client_->find_gpu({0, 0xfe, 1});
    _exit(is_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(queue->wait(*queue->fill(zero_->host_region.address(), 1, 64), kTimeoutNs));
}

TEST_F(simulated_channel, TheCpuMapsCudasMemoryThroughIt) {
  const auto pointer = allocate(pattern(1));
  const auto pieces = *rm::find_backing(cuda(), pointer, kBytes);
  const auto share = client_->duplicate(*zero_->gpu, pieces[0].client, pieces[0].object);
  ASSERT_TRUE(share) << share.error().message;
  const auto view = client_->map(*zero_->gpu, *share, 4096, 8192, nullptr);
  ASSERT_TRUE(view) << view.error().message;
  static_cast<std::byte*>(view->address)[5] = std::byte{0x5a};
  EXPECT_EQ(read(pointer)[4096 + 5], std::byte{0x5a});
  EXPECT_FALSE(client_->map(*zero_->gpu, *share, kBytes, 4096, nullptr));
  client_->unmap(*view, rm::unmap_policy::hole);
  client_->release(*zero_->gpu, *share);
  EXPECT_FALSE(client_->duplicate(*zero_->gpu, pieces[0].client, 0x7fffffff));
  expect_success(cuda().cuMemFree_v2(pointer));
}

// Clients of one process have names of their own.
TEST_F(simulated_channel, AnotherClientIsAnother) {
  const auto sent = pattern(8);
  const auto pointer = allocate(sent);
  auto other = std::move(*rm::client::open(simulated_io()));
  {
    const gpu_with_channels theirs(*other, 0);
    const auto ours = std::move(*zero_->bind(pointer, kBytes)), also = std::move(*theirs.bind(pointer, kBytes));
    EXPECT_EQ(zero_->read(ours), sent);
    EXPECT_EQ(theirs.read(also), sent);
    const auto queue = zero_->open();
    other->release(*theirs.gpu, theirs.gpu->device);  // with all that hangs below it
    EXPECT_TRUE(queue->wait(*queue->fill(ours.address(), 0, 64), kTimeoutNs));
  }
  expect_success(cuda().cuMemFree_v2(pointer));
}

// Threads of this process that execute channels.
int engine_threads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    count += name == "sim-copy-engine" ? 1 : 0;
  }
  return count;
}

TEST_F(simulated_channel, OneThreadExecutesAllChannelsAndEndsWithTheLast) {
  const auto settles_at = [](int wanted) {
    for (int i = 0; i < 5000 && engine_threads() != wanted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return engine_threads() == wanted;
  };
  EXPECT_TRUE(settles_at(0));  // of the tests before this one
  {
    const auto first = zero_->open(), second = zero_->open();
    EXPECT_EQ(engine_threads(), 1);
  }
  EXPECT_TRUE(settles_at(0));
}

TEST(simulated_device_io, IsOfTheSimulatedGpuAlone) {
  cu::driver_table other = cuda();
  EXPECT_NE(rm::simulated_device_io(other), nullptr);
  other.is_simulated = false;
  EXPECT_EQ(rm::simulated_device_io(other), nullptr);
}

TEST(simulated_device_io, TellsItsDriversVersion) {
  const auto version = rm::driver_version(simulated_io());
  ASSERT_TRUE(version);
  EXPECT_NE(rm::channel_layout_of(*version), nullptr);
  const auto text = simulated_io().read_text("/proc/driver/nvidia/version");
  ASSERT_TRUE(text);
  EXPECT_NE(text->find(*version), std::string::npos);
  EXPECT_FALSE(simulated_io().read_text("/proc/driver/nvidia/none"));
  EXPECT_TRUE(simulated_io().read_text("/proc/self/stat"));
  EXPECT_LT(simulated_io().open("/dev/nvidia7", 0), 0);
}

}  // namespace
