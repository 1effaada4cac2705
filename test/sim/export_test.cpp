// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include <cstdarg>

#include "test/sim/sim_test.hpp"

namespace {

struct announcement {  // the resource manager's struct, written down a second time on purpose
  int fd;
  unsigned client, total_objects, object_count, first_index;
  unsigned long long total_bytes;
  unsigned char mapping_type, allow_mmap;
  unsigned handles[128];
  unsigned long long offsets[128];
  unsigned long long sizes[128];
  unsigned status;
};
static_assert(sizeof(announcement) == 2608);

thread_local std::vector<announcement>* t_listener = nullptr;

}  // namespace

// Stands before libc's: the simulator must call ioctl through its import table for listeners to hear it.
extern "C" __attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list args;
  va_start(args, request);
  void* const argument = va_arg(args, void*);
  va_end(args);
  if (t_listener != nullptr && request == _IOWR('F', 217, announcement))
    t_listener->push_back(*static_cast<const announcement*>(argument));
  return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
}

namespace pl::cu {
namespace {

class Export : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    t_listener = &heard_;
  }
  void TearDown() override {
    t_listener = nullptr;
    SimTest::TearDown();
  }
  std::vector<announcement> heard_;
};

constexpr auto kSeek = range_flag::sim_offset_in_position;

TEST_F(Export, WholeObjectIsSharedBothWays) {
  const device_ptr pointer = allocate(4u << 20);
  const auto sent = pattern(4u << 20, 1);
  CU_OK(cuMemcpyHtoD_v2(pointer, sent.data(), sent.size()));
  exported_range view(pointer, 4u << 20, range_flag::mapping_type_pcie);
  CU_OK(view.rc);
  ASSERT_NE(view.data, nullptr);
  EXPECT_NE(fcntl(view.fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(std::memcmp(view.data, sent.data(), sent.size()), 0);
  view.data[12345] = 200;
  unsigned char byte = 0;
  CU_OK(cuMemcpyDtoH_v2(&byte, pointer + 12345, 1));
  EXPECT_EQ(byte, 200);
}

TEST_F(Export, OffsetsGoIntoThePositionOrAreRefused) {
  const device_ptr pointer = allocate(4u << 20);
  CU_OK(cuMemsetD8_v2(pointer + 8192, 0x42, 4096));
  int fd = -1;
  testing::internal::CaptureStderr();
  CU_FAILS(not_supported, cuMemGetHandleForAddressRange(&fd, pointer + 8192, 4096, range_handle_type::dma_buf_fd, 0));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("8192 bytes into its memory object"), std::string::npos);
  EXPECT_EQ(fd, -1);
  exported_range view(pointer + 8192, 4096, kSeek);
  ASSERT_NE(view.data, nullptr);
  EXPECT_EQ(lseek(view.fd, 0, SEEK_CUR), 8192);
  EXPECT_EQ(view.data[0], 0x42);
  EXPECT_EQ(view.data[4095], 0x42);
  // own file descriptions: one's position does not move the other's
  exported_range start(pointer, 4096, kSeek);
  EXPECT_EQ(lseek(view.fd, 0, SEEK_CUR), 8192);
  EXPECT_EQ(lseek(start.fd, 0, SEEK_CUR), 0);
}

TEST_F(Export, NeighboursShareThePageAndTheObject) {
  const device_ptr a = allocate(600);
  const device_ptr b = allocate(600);
  ASSERT_EQ(a / 4096, b / 4096);
  exported_range view(a / 4096 * 4096, 8192, kSeek);  // sticks out of both, stays in the block
  ASSERT_NE(view.data, nullptr);
  CU_OK(cuMemsetD8_v2(b, 0x99, 600));
  EXPECT_EQ(view.data[b % 4096], 0x99);
  EXPECT_NE(attribute<unsigned long long>(pointer_attribute::buffer_id, a),
            attribute<unsigned long long>(pointer_attribute::buffer_id, b));
}

TEST_F(Export, Refusals) {
  const device_ptr pointer = allocate(4u << 20);
  int fd = -1;
  const auto exported = [&](device_ptr address, std::size_t bytes, unsigned long long flags = 0) {
    return cuMemGetHandleForAddressRange(&fd, address, bytes, range_handle_type::dma_buf_fd, flags);
  };
  CU_FAILS(invalid_value, exported(pointer + 512, 4096));
  CU_FAILS(invalid_value, exported(pointer, 100));
  CU_FAILS(invalid_value, exported(pointer, 0));
  CU_FAILS(invalid_value, exported(pointer, 4096, 2));
  CU_FAILS(invalid_value, exported(pointer, 64u << 20));
  CU_FAILS(invalid_value, cuMemGetHandleForAddressRange(&fd, pointer, 4096, 2, 0));
  std::vector<unsigned char> host(8192);
  CU_FAILS(invalid_value, exported(reinterpret_cast<device_ptr>(host.data()) / 4096 * 4096 + 4096, 4096));
  device_ptr managed = 0;
  CU_OK(cuMemAllocManaged(&managed, 4096, 1));
  CU_FAILS(not_supported, exported(managed, 4096));
  CU_OK(cuMemFree_v2(managed));
  CU_OK(cuMemFree_v2(pointer));
  CU_FAILS(invalid_value, exported(pointer, 4096));
  EXPECT_TRUE(heard_.empty());
  EXPECT_EQ(fd, -1);
}

TEST_F(Export, AnnouncesTheObjectThroughIoctl) {
  const device_ptr pointer = allocate(6u << 20);
  CU_OK(cuMemsetD8_v2(pointer, 0x31, 6u << 20));
  exported_range view(pointer + 4096, 8192, kSeek);
  CU_OK(view.rc);
  ASSERT_EQ(heard_.size(), 1u);
  const auto& said = heard_[0];
  EXPECT_EQ(said.total_objects, 1u);
  EXPECT_EQ(said.object_count, 1u);
  EXPECT_EQ(said.total_bytes, 8192u);
  EXPECT_EQ(said.offsets[0], 4096u);
  EXPECT_EQ(said.sizes[0], 8192u);
  EXPECT_EQ(said.client & 0xfff00000u, 0xc1d00000u);
  EXPECT_EQ(peerlaneSimObjectBytes(said.client, said.handles[0]), 6u << 20);
  const int fd = peerlaneSimObjectFd(said.client, said.handles[0]);
  ASSERT_GE(fd, 0);
  unsigned char byte = 0;
  EXPECT_EQ(pread(fd, &byte, 1, static_cast<off_t>(said.offsets[0])), 1);
  EXPECT_EQ(byte, 0x31);
  close(fd);
  EXPECT_EQ(peerlaneSimObjectFd(said.client, 0x123), -1);
  CU_OK(cuMemFree_v2(pointer));
  EXPECT_EQ(peerlaneSimObjectFd(said.client, said.handles[0]), -1);
}

// ---- virtual memory management --------------------------------------------------------------------------------------

class Vmm : public Export {
 protected:
  static constexpr std::size_t kPiece = 2u << 20;
  static constexpr allocation_prop kProp = {
      allocation_type::pinned, handle_type::posix_fd, {location_type::device, 0}, nullptr, {0, 1, 0, {}}};
  static constexpr access_desc kReadWrite = {{location_type::device, 0}, access_flags::read_write};

  physical_t create(std::size_t bytes = kPiece) {
    physical_t made = 0;
    EXPECT_EQ(cuMemCreate(&made, bytes, &kProp, 0), error_code::success);
    return made;
  }
  device_ptr reserve(std::size_t bytes) {
    device_ptr base = 0;
    EXPECT_EQ(cuMemAddressReserve(&base, bytes, 0, 0, 0), error_code::success);
    return base;
  }
};

TEST_F(Vmm, PiecesMakeOneRange) {
  std::size_t step = 0;
  CU_OK(cuMemGetAllocationGranularity(&step, &kProp, granularity::minimum));
  EXPECT_EQ(step, kPiece);
  const device_ptr base = reserve(3 * kPiece);
  const physical_t a = create();
  const physical_t b = create();
  unsigned char byte = 1;
  CU_FAILS(invalid_value, cuMemcpyDtoH_v2(&byte, base, 1));
  EXPECT_FALSE(attribute<int>(pointer_attribute::mapped, base));
  CU_OK(cuMemMap(base, kPiece, 0, a, 0));
  CU_OK(cuMemMap(base + kPiece, kPiece, 0, b, 0));
  CU_FAILS(invalid_value, cuMemMap(base, kPiece, 0, b, 0));
  CU_FAILS(invalid_value, cuMemcpyDtoH_v2(&byte, base, 1)) << "no access yet";
  CU_FAILS(invalid_value, cuMemSetAccess(base, 3 * kPiece, &kReadWrite, 1));
  CU_OK(cuMemSetAccess(base, 2 * kPiece, &kReadWrite, 1));
  EXPECT_TRUE(attribute<int>(pointer_attribute::mapped, base));
  EXPECT_EQ(attribute<std::size_t>(pointer_attribute::range_size, base), 3 * kPiece);

  const auto sent = pattern(8192, 5);
  std::vector<unsigned char> got(8192);
  CU_OK(cuMemcpyHtoD_v2(base + kPiece - 4096, sent.data(), 8192));
  CU_OK(cuMemcpyDtoH_v2(got.data(), base + kPiece - 4096, 8192));
  EXPECT_EQ(sent, got);
  CU_FAILS(invalid_value, cuMemcpyDtoH_v2(got.data(), base + 2 * kPiece - 4096, 8192));

  int fd = -1;
  testing::internal::CaptureStderr();
  CU_FAILS(not_supported,
           cuMemGetHandleForAddressRange(&fd, base + kPiece - 4096, 8192, range_handle_type::dma_buf_fd, kSeek));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("2 memory objects"), std::string::npos);
  ASSERT_EQ(heard_.size(), 1u) << "the announcement comes before the refusal";
  ASSERT_EQ(heard_[0].total_objects, 2u);
  EXPECT_EQ(heard_[0].offsets[0], kPiece - 4096);
  EXPECT_EQ(heard_[0].sizes[0], 4096u);
  EXPECT_EQ(heard_[0].offsets[1], 0u);
  EXPECT_EQ(heard_[0].sizes[1], 4096u);
  EXPECT_NE(heard_[0].handles[0], heard_[0].handles[1]);

  CU_OK(cuMemRelease(a));
  CU_OK(cuMemcpyDtoH_v2(got.data(), base, 16)) << "a mapping keeps the memory";
  CU_FAILS(invalid_value, cuMemUnmap(base, kPiece / 2));
  CU_FAILS(invalid_value, cuMemAddressFree(base, 3 * kPiece)) << "still mapped";
  CU_OK(cuMemUnmap(base, 2 * kPiece));
  CU_FAILS(invalid_value, cuMemcpyDtoH_v2(&byte, base, 1));
  CU_OK(cuMemRelease(b));
  CU_FAILS(invalid_value, cuMemRelease(b));
  CU_OK(cuMemAddressFree(base, 3 * kPiece));
  CU_FAILS(invalid_value, cuMemAddressFree(base, 3 * kPiece));
}

TEST_F(Vmm, OtherMemoryAtTheSameAddressIsSeenAsSuch) {
  const device_ptr base = reserve(kPiece);
  std::vector<unsigned long long> ids;
  std::vector<unsigned> objects;
  for (const unsigned char fill : std::initializer_list<unsigned char>{0x11, 0x22}) {
    const physical_t memory = create();
    CU_OK(cuMemMap(base, kPiece, 0, memory, 0));
    CU_OK(cuMemSetAccess(base, kPiece, &kReadWrite, 1));
    CU_OK(cuMemsetD8_v2(base, fill, 4096));
    ids.push_back(attribute<unsigned long long>(pointer_attribute::buffer_id, base));
    exported_range view(base, 4096, 0);
    ASSERT_NE(view.data, nullptr);
    EXPECT_EQ(view.data[7], fill);
    objects.push_back(heard_.back().handles[0]);
    CU_OK(cuMemUnmap(base, kPiece));
    CU_OK(cuMemRelease(memory));
    EXPECT_EQ(view.data[7], fill) << "the CPU mapping keeps the old memory";
  }
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_NE(objects[0], objects[1]);
  CU_OK(cuMemAddressFree(base, kPiece));
}

TEST_F(Vmm, HandlesAreCountedExportedAndImported) {
  const device_ptr base = reserve(2 * kPiece);
  const physical_t memory = create();
  CU_OK(cuMemMap(base, kPiece, 0, memory, 0));
  CU_OK(cuMemSetAccess(base, kPiece, &kReadWrite, 1));
  CU_OK(cuMemsetD8_v2(base, 0x3c, kPiece));
  physical_t again = 0;
  CU_OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(base + 64)));
  EXPECT_EQ(again, memory);
  CU_OK(cuMemRelease(memory));
  int fd = -1;
  CU_OK(cuMemExportToShareableHandle(&fd, again, handle_type::posix_fd, 0));
  CU_OK(cuMemRelease(again));
  physical_t imported = 0;
  CU_OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                       handle_type::posix_fd));
  close(fd);
  CU_OK(cuMemMap(base + kPiece, kPiece, 0, imported, 0));
  CU_OK(cuMemSetAccess(base + kPiece, kPiece, &kReadWrite, 1));
  unsigned char byte = 0;
  CU_OK(cuMemcpyDtoH_v2(&byte, base + kPiece + 100, 1));
  EXPECT_EQ(byte, 0x3c);
  CU_OK(cuMemUnmap(base, 2 * kPiece));
  CU_OK(cuMemRelease(imported));
  CU_OK(cuMemAddressFree(base, 2 * kPiece));
  const int other = memfd_create("not ours", 0);
  CU_FAILS(invalid_value, cuMemImportFromShareableHandle(
                              &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(other)), handle_type::posix_fd));
  close(other);
}

TEST_F(Vmm, MemoryIsGivenBackWithItsLastUser) {
  std::size_t before = 0;
  std::size_t now = 0;
  std::size_t total = 0;
  CU_OK(cuMemGetInfo_v2(&before, &total));
  const device_ptr base = reserve(kPiece);
  const physical_t memory = create();
  CU_OK(cuMemMap(base, kPiece, 0, memory, 0));
  CU_OK(cuMemRelease(memory));
  CU_OK(cuMemGetInfo_v2(&now, &total));
  EXPECT_EQ(now, before - kPiece);
  CU_OK(cuMemUnmap(base, kPiece));
  CU_OK(cuMemGetInfo_v2(&now, &total));
  EXPECT_EQ(now, before);
  CU_OK(cuMemAddressFree(base, kPiece));
}

// ---- pools ----------------------------------------------------------------------------------------------------------

TEST_F(Export, PoolPointersArePartsOfALargerObject) {
  device_ptr a = 0;
  device_ptr b = 0;
  CU_OK(cuMemAllocAsync(&a, 64 << 10, nullptr));
  CU_OK(cuMemAllocAsync(&b, 64 << 10, nullptr));
  EXPECT_EQ(b - a, 64u << 10);
  pool_t pool = nullptr;
  CU_OK(cuDeviceGetDefaultMemPool(&pool, 0));
  EXPECT_EQ(attribute<pool_t>(pointer_attribute::mempool_handle, a), pool);
  exported_range view(b, 64 << 10, kSeek);
  ASSERT_NE(view.data, nullptr);
  EXPECT_EQ(heard_.back().offsets[0], 64u << 10);
  EXPECT_EQ(peerlaneSimObjectBytes(heard_.back().client, heard_.back().handles[0]), 32u << 20);
  CU_OK(cuMemsetD8_v2(b, 0x66, 64 << 10));
  EXPECT_EQ(view.data[65535], 0x66);
  const auto old_id = attribute<unsigned long long>(pointer_attribute::buffer_id, b);
  CU_OK(cuMemFreeAsync(b, nullptr));
  CU_FAILS(invalid_value, cuMemFreeAsync(b, nullptr));
  CU_OK(cuStreamSynchronize(nullptr));
  device_ptr again = 0;
  CU_OK(cuMemAllocAsync(&again, 64 << 10, nullptr));
  EXPECT_EQ(again, b);
  EXPECT_NE(attribute<unsigned long long>(pointer_attribute::buffer_id, again), old_id);
  CU_OK(cuMemFree_v2(a));
  CU_OK(cuMemFreeAsync(again, nullptr));
  CU_OK(cuStreamSynchronize(nullptr));
  CU_FAILS(invalid_value, cuMemFree_v2(a));
}

}  // namespace
}  // namespace pl::cu
