// SPDX-License-Identifier: Apache-2.0
// Memory of one process under the channels of another, on the simulated GPU. The other process is this program again, and
// never initializes CUDA.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "dma/channel.hpp"
#include "dma/shared_region.hpp"
#include "rm/export_listener.hpp"
#include "rm/simulated_device_io.hpp"

namespace {

using namespace pl;

constexpr std::size_t kBytes = 1u << 20;
constexpr std::size_t kOffset = 64u << 10;
constexpr std::uint64_t kTimeoutNs = 20'000'000'000;
constexpr int kTimeoutMs = 20'000;

const cu::driver_table& cuda() { return **cu::driver(); }
device_io& simulated_io() { return *rm::simulated_device_io(cuda()); }

std::byte pattern(unsigned start, std::size_t i) { return static_cast<std::byte>(start + i * 7 + (i >> 10)); }
void fill(std::byte* bytes, unsigned start) {
  for (std::size_t i = 0; i < kBytes; ++i) bytes[i] = pattern(start, i);
}
bool is_filled(const std::byte* bytes, unsigned start) {
  for (std::size_t i = 0; i < kBytes; ++i)
    if (bytes[i] != pattern(start, i)) return false;
  return true;
}

// Channels of a process, with CUDA or without.
struct dma_user {
  explicit dma_user(unsigned slot = 0) {
    client = std::move(*rm::client::open(simulated_io()));
    const rm::gpu* gpu = nullptr;
    for (unsigned bus = 0; bus < 256 && gpu == nullptr; ++bus)
      if (auto found = client->find_gpu({0, bus, slot})) gpu = *found;
    space = *dma::address_space::open(*client, *gpu, *rm::driver_version(simulated_io()));
    queue = std::move(*dma::channel::open(space, {}));
  }
  bool copy(std::uint64_t destination, std::uint64_t source) const {
    const auto number = queue->copy(destination, source, kBytes, dma::ordering::flush_last);
    return number && queue->wait(*number, kTimeoutNs);
  }
  std::unique_ptr<rm::client> client;
  std::shared_ptr<dma::address_space> space;
  std::unique_ptr<dma::channel> queue;
};

// A process of this program in a role, and the socket to it.
class peer {
 public:
  explicit peer(const char* role) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    child_ = fork();
    if (child_ == 0) {
      fcntl(ends[1], F_SETFD, 0);
      const std::string number = std::to_string(ends[1]);
      execl("/proc/self/exe", "peer", "--peer", role, number.c_str(), nullptr);
      _exit(99);
    }
    close(ends[1]);
    socket = ends[0];
  }
  ~peer() {
    close(socket);
    if (child_ > 0) end();
  }
  int end() {
    int status = -1;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void kill() const { ::kill(child_, SIGKILL); }
  bool is_told() const {
    char byte = 0;
    return read(socket, &byte, 1) == 1;
  }
  void tell() const { EXPECT_EQ(write(socket, "x", 1), 1); }
  int socket = -1;

 private:
  pid_t child_ = -1;
};

// ---- Roles of the other process: what is wrong ends it with its line

#define DEMAND(condition) \
  if (!(condition)) return std::fprintf(stderr, "peer: line %d: %s\n", __LINE__, #condition), 1

bool has_told(int socket) { return write(socket, "x", 1) == 1; }
bool is_told(int socket) {
  char byte = 0;
  return read(socket, &byte, 1) == 1;
}

// Reads what it gets into shared host memory, and writes something else there.
int import_without_cuda(int socket) {
  const auto device = dma::receive_region(socket, kTimeoutMs);
  DEMAND(device);
  const auto host = dma::receive_region(socket, kTimeoutMs);
  DEMAND(host);
  const dma_user user;
  const auto memory = dma::import_region(*user.space, *device);
  DEMAND(memory);
  DEMAND(memory->size_bytes() == kBytes);
  auto shared = dma::shared_host::open(*host);
  DEMAND(shared);
  const auto pages = user.space->bind_host(shared->data(), shared->size_bytes());
  DEMAND(pages);
  DEMAND(user.copy(pages->address(), memory->address()));
  DEMAND(is_filled(shared->data(), 3));
  DEMAND(has_told(socket) && is_told(socket));
  fill(shared->data(), 99);
  DEMAND(user.copy(memory->address(), pages->address()));
  DEMAND(has_told(socket) && is_told(socket));
  return 0;
}

// Gives memory away and is killed.
int die_as_owner(int socket) {
  const dma_user user;
  const auto memory = user.space->make_device_memory(kBytes);
  std::vector<std::byte> pages(kBytes + 4096);
  auto* const aligned = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(pages.data()) + 4095) & ~4095ull);
  fill(aligned, 17);
  const auto host = user.space->bind_host(aligned, kBytes);
  DEMAND(memory && host);
  DEMAND(user.copy(memory->bound.address(), host->address()));
  const auto shared = dma::export_region(memory->bound);
  DEMAND(shared);
  DEMAND(dma::send_region(socket, *shared));
  ::kill(getpid(), SIGKILL);
  return 1;
}

// ---- Tests

class DmaSharing : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuda().cuInit(0), cu::error_code::success);
    ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&context_, 0), cu::error_code::success);
    ASSERT_EQ(cuda().cuCtxSetCurrent(context_), cu::error_code::success);
    std::size_t all = 0;
    ASSERT_EQ(cuda().cuMemGetInfo_v2(&free_before_, &all), cu::error_code::success);
  }
  void TearDown() override { cuda().cuDevicePrimaryCtxRelease_v2(0); }
  // A part of an allocation of CUDA's.
  dma::region make_region(const dma_user& user, unsigned start) {
    EXPECT_EQ(cuda().cuMemAlloc_v2(&pointer_, kBytes + kOffset), cu::error_code::success);
    std::vector<std::byte> bytes(kBytes);
    fill(bytes.data(), start);
    EXPECT_EQ(cuda().cuMemcpyHtoD_v2(pointer_ + kOffset, bytes.data(), kBytes), cu::error_code::success);
    const auto piece = rm::find_backing(cuda(), pointer_ + kOffset, kBytes)->front();
    return std::move(*user.space->bind_object(piece.client, piece.object, piece.offset, piece.size_bytes));
  }
  std::vector<std::byte> get() const {
    std::vector<std::byte> out(kBytes);
    EXPECT_EQ(cuda().cuMemcpyDtoH_v2(out.data(), pointer_ + kOffset, kBytes), cu::error_code::success);
    return out;
  }
  std::size_t free_bytes() const {
    std::size_t now = 0, all = 0;
    EXPECT_EQ(cuda().cuMemGetInfo_v2(&now, &all), cu::error_code::success);
    return now;
  }
  cu::context_t context_ = nullptr;
  cu::device_ptr pointer_ = 0;
  std::size_t free_before_ = 0;
};

TEST_F(DmaSharing, AProcessWithoutCudaReadsAndWritesCudasMemory) {
  {
    const dma_user owner;
    const auto memory = make_region(owner, 3);
    auto shared = dma::export_region(memory);
    ASSERT_TRUE(shared) << shared.error().message;
    auto host = dma::shared_host::make(kBytes);
    ASSERT_TRUE(host) << host.error().message;
    peer other("import");
    ASSERT_TRUE(dma::send_region(other.socket, *shared));
    ASSERT_TRUE(dma::send_region(other.socket, *host->share()));
    ASSERT_TRUE(other.is_told());
    EXPECT_TRUE(is_filled(host->data(), 3));
    other.tell();
    ASSERT_TRUE(other.is_told());
    EXPECT_TRUE(is_filled(get().data(), 99));
    other.tell();
    EXPECT_EQ(other.end(), 0);
    EXPECT_EQ(cuda().cuMemFree_v2(pointer_), cu::error_code::success);
  }
  EXPECT_EQ(free_bytes(), free_before_) << "nothing keeps it: region, descriptor and importer have ended";
}

// The descriptor is enough: region, allocation and the owner's own descriptor are gone before the other imports.
TEST_F(DmaSharing, WhatTheOwnerFreesStaysForTheImporter) {
  const dma_user owner;
  peer other("import");
  auto host = dma::shared_host::make(kBytes);
  {
    const auto memory = make_region(owner, 3);
    ASSERT_TRUE(dma::send_region(other.socket, *dma::export_region(memory)));
  }
  EXPECT_EQ(cuda().cuMemFree_v2(pointer_), cu::error_code::success);
  ASSERT_TRUE(dma::send_region(other.socket, *host->share()));
  ASSERT_TRUE(other.is_told());
  EXPECT_TRUE(is_filled(host->data(), 3));
  other.tell();
  ASSERT_TRUE(other.is_told());
  other.tell();
  EXPECT_EQ(other.end(), 0);
}

TEST_F(DmaSharing, AnImporterThatIsKilledLeavesTheOwnersMemoryAlone) {
  const dma_user owner;
  const auto memory = make_region(owner, 3);
  auto host = dma::shared_host::make(kBytes);
  peer other("import");
  ASSERT_TRUE(dma::send_region(other.socket, *dma::export_region(memory)));
  ASSERT_TRUE(dma::send_region(other.socket, *host->share()));
  ASSERT_TRUE(other.is_told());
  other.kill();
  EXPECT_EQ(other.end(), 128 + SIGKILL);
  EXPECT_TRUE(is_filled(get().data(), 3));
  const auto pages = owner.space->bind_host(host->data(), kBytes);
  ASSERT_TRUE(pages);
  EXPECT_TRUE(owner.copy(pages->address(), memory.address()));
  EXPECT_EQ(cuda().cuMemFree_v2(pointer_), cu::error_code::success);
}

TEST_F(DmaSharing, MemoryOutlivesAnOwnerThatIsKilled) {
  peer owner("die");
  const auto shared = dma::receive_region(owner.socket, kTimeoutMs);
  ASSERT_TRUE(shared) << shared.error().message;
  EXPECT_EQ(owner.end(), 128 + SIGKILL);
  const dma_user user;
  const auto memory = dma::import_region(*user.space, *shared);
  ASSERT_TRUE(memory) << memory.error().message;
  auto host = dma::shared_host::make(kBytes);
  const auto pages = user.space->bind_host(host->data(), kBytes);
  ASSERT_TRUE(pages && user.copy(pages->address(), memory->address()));
  EXPECT_TRUE(is_filled(host->data(), 17));
}

TEST_F(DmaSharing, WhatIsNoMemoryOfTheGpuIsRefused) {
  const dma_user user;
  const auto memory = make_region(user, 3);
  auto good = std::move(*dma::export_region(memory));
  const int objects = user.client->live_objects();
  const auto refusal = [&](auto change) {
    dma::shared_region wrong;
    wrong.fd = unique_fd(real_device_io(), fcntl(good.fd.get(), F_DUPFD_CLOEXEC, 0));
    wrong.gpu = good.gpu;
    wrong.offset = good.offset;
    wrong.size_bytes = good.size_bytes;
    change(wrong);
    const auto got = dma::import_region(*user.space, wrong);
    EXPECT_TRUE(got || !got.error().message.empty());
    return got.code();
  };
  const auto of_path = [](const char* path) { return unique_fd(real_device_io(), open(path, O_RDONLY | O_CLOEXEC)); };
  EXPECT_EQ(refusal([](auto&) {}), 0);
  EXPECT_EQ(refusal([&](auto& one) { one.fd = of_path("/dev/null"); }), EINVAL);
  EXPECT_EQ(refusal([&](auto& one) { one.fd = of_path("/proc/self/exe"); }), EINVAL);
  EXPECT_EQ(refusal([](auto& one) { one.fd = unique_fd(); }), EINVAL);
  EXPECT_EQ(refusal([](auto& one) { one.fd = unique_fd(real_device_io(), memfd_create("another", MFD_CLOEXEC)); }), EINVAL);
  EXPECT_EQ(refusal([&](auto& one) { one.fd = std::move(dma::shared_host::make(kBytes)->share()->fd); }), EINVAL);
  EXPECT_EQ(refusal([](auto& one) { one.size_bytes = 0; }), EINVAL);
  EXPECT_EQ(refusal([](auto& one) { one.size_bytes += 1; }), EINVAL);
  EXPECT_EQ(refusal([](auto& one) { one.offset = 1; }), EINVAL);
  EXPECT_EQ(refusal([](auto& one) { one.offset = UINT64_MAX - 4095; }), EINVAL);
  EXPECT_EQ(refusal([](auto& one) { one.size_bytes = 64u << 20; }), EINVAL);
  EXPECT_EQ(refusal([](auto& one) { one.gpu.bus ^= 1; }), ENODEV);
  EXPECT_EQ(refusal([](auto& one) { one.memory = dma::shared_region::kind::host; }), EINVAL);
  EXPECT_EQ(user.client->live_objects(), objects) << "a refusal leaves nothing";
  EXPECT_EQ(cuda().cuMemFree_v2(pointer_), cu::error_code::success);
}

TEST_F(DmaSharing, OwnPagesAndEmptyRegionsAreNotGiven) {
  const dma_user user;
  auto host = dma::shared_host::make(100);
  ASSERT_TRUE(host);
  EXPECT_EQ(host->size_bytes(), 4096u);
  const auto pages = user.space->bind_host(host->data(), host->size_bytes());
  EXPECT_EQ(dma::export_region(*pages).code(), ENOTSUP);
  EXPECT_EQ(dma::export_region({}).code(), EINVAL);
  EXPECT_EQ(dma::shared_host::make(0).code(), EINVAL);
  dma::shared_region open_size;
  open_size.memory = dma::shared_region::kind::host;
  open_size.fd = unique_fd(real_device_io(), memfd_create("loose", MFD_CLOEXEC));
  open_size.size_bytes = 4096;
  ASSERT_EQ(ftruncate(open_size.fd.get(), 4096), 0);
  EXPECT_EQ(dma::shared_host::open(open_size).code(), EPROTO) << "its sender could shrink it under us";
  auto too_long = std::move(*host->share());
  too_long.size_bytes = 8192;
  EXPECT_EQ(dma::shared_host::open(too_long).code(), EINVAL);
}

TEST_F(DmaSharing, WhatComesByTheSocketIsChecked) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  EXPECT_EQ(dma::receive_region(ends[0], 1).code(), ETIMEDOUT);
  char garbage[40] = "garbage";
  ASSERT_EQ(write(ends[1], garbage, sizeof garbage), static_cast<ssize_t>(sizeof garbage));
  EXPECT_EQ(dma::receive_region(ends[0], kTimeoutMs).code(), EPROTO);
  EXPECT_EQ(dma::send_region(ends[1], {}).code(), EINVAL);
  const auto host = dma::shared_host::make(4096);
  ASSERT_TRUE(dma::send_region(ends[1], *host->share()));
  const auto got = dma::receive_region(ends[0], kTimeoutMs);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(fcntl(got->fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  close(ends[1]);
  EXPECT_EQ(dma::receive_region(ends[0], kTimeoutMs).code(), EPIPE);
  EXPECT_EQ(dma::send_region(ends[0], *host->share()).code(), EPIPE);
  close(ends[0]);
}

// The limit holds for the whole message, however its bytes come.
TEST_F(DmaSharing, ASenderThatStopsInTheMiddleIsNotWaitedFor) {
  int ends[2] = {-1, -1}, others[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, others), 0);
  const auto host = dma::shared_host::make(4096);
  ASSERT_TRUE(dma::send_region(others[1], *host->share()));
  char message[40];
  ASSERT_EQ(read(others[0], message, sizeof message), static_cast<ssize_t>(sizeof message));  // without its descriptor
  ASSERT_EQ(write(ends[1], message, 1), 1);
  const int late = dup(ends[1]);
  std::atomic<bool> has_ended{false};
  std::thread unblock([&] {  // so that a call that waits for ever fails this test instead
    for (int i = 0; i < 200 && !has_ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    shutdown(late, SHUT_RDWR);
    close(late);
  });
  EXPECT_EQ(dma::receive_region(ends[0], 50).code(), ETIMEDOUT);
  has_ended = true;
  unblock.join();
  for (const int one : {ends[0], ends[1], others[0], others[1]}) close(one);
}

TEST_F(DmaSharing, AMessageMayComeInPieces) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const auto host = dma::shared_host::make(4096);
  ASSERT_TRUE(dma::send_region(ends[1], *host->share()));
  const auto whole = dma::receive_region(ends[0], kTimeoutMs);
  ASSERT_TRUE(whole) << whole.error().message;
  // The same by hand: one byte with the descriptor, then the rest.
  ASSERT_TRUE(dma::send_region(ends[1], *host->share()));
  char message[40];
  ASSERT_EQ(read(ends[0], message, sizeof message), static_cast<ssize_t>(sizeof message));
  iovec bytes{message, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = sizeof room;
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = whole->fd.get();
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  ASSERT_EQ(sendmsg(ends[1], &header, 0), 1);
  std::thread rest([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(write(ends[1], message + 1, sizeof message - 1), static_cast<ssize_t>(sizeof message) - 1);
  });
  const auto got = dma::receive_region(ends[0], kTimeoutMs);
  rest.join();
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_TRUE(dma::shared_host::open(*got));
  for (const int one : ends) close(one);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--peer") {
    alarm(60);  // one that hangs ends
    const int socket = std::stoi(argv[3]);
    return std::string(argv[2]) == "import" ? import_without_cuda(socket) : die_as_owner(socket);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
