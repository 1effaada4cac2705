// SPDX-License-Identifier: Apache-2.0
// The rights of a client over the memory tier that it has mapped.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/protocol/handshake.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::opcode;
using store_protocol::path;

// The memory's descriptor as a client gets it, and the connection that it came by.
struct attached {
  explicit attached(const store_rig& rig) {
    auto made = store_client::connect(rig.over_unix().server, 1000);
    EXPECT_TRUE(made);
    if (!made) return;
    wire = *std::move(made);
    auto hello = store_client::do_handshake(*wire, {}, 1000);
    EXPECT_TRUE(hello && hello->memory);
    if (!hello || !hello->memory) return;
    fd = hello->arena_fd;
    arena = *hello->memory;
  }
  ~attached() { close(fd); }
  std::unique_ptr<store_client::byte_channel> wire;
  int fd = -1;
  store_protocol::arena arena;
};

// As a user who is not the store's and may do what its file mode says.
template <class Try>
bool works_for_another_user(const Try& attempt) {
  const pid_t child = fork();
  if (child == 0) _exit((geteuid() != 0 || setuid(65534) == 0) && attempt() ? 1 : 0);
  int status = -1;
  waitpid(child, &status, 0);
  return status != 0;
}

TEST(store_mapping, SizeAndSealsAreNotTheClients) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  const auto value = random_value(300'000, 1);
  ASSERT_EQ(put(*store, pool, "k", value, at_level(durability::volatile_)).status, 0);
  const attached one(rig);
  ASSERT_GE(one.fd, 0);
  EXPECT_FALSE(one.arena.read_only);
  // Shorter, and the server would die of SIGBUS at its next access.
  for (const off_t size :
       {off_t{0}, static_cast<off_t>(one.arena.size_bytes / 2), static_cast<off_t>(one.arena.size_bytes * 2)}) {
    EXPECT_EQ(ftruncate(one.fd, size), -1);
    EXPECT_EQ(errno, EPERM);
  }
  // Nor may it take the server's own right to write away.
  EXPECT_EQ(fcntl(one.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_TRUE(get(*store, pool, "k", value.size()) == value);
  EXPECT_EQ(put(*store, pool, "k", random_value(300'000, 2)).status, 0);
}

// Copied in one go, in parts by several threads, past the cache.
constexpr std::size_t kShmSizes[] = {100'000, 6'000'001, 12'000'001};

void scribble(store_rig& rig, store_client::client& store, std::uint32_t pool, std::uint64_t offset) {
  const auto found = store.run(store.make_plain(opcode::lookup, pool, "k"));
  ASSERT_EQ(found.status, 0) << found.text;
  const attached one(rig);
  void* address = mmap(nullptr, one.arena.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, one.fd, 0);
  ASSERT_NE(address, MAP_FAILED);
  static_cast<unsigned char*>(address)[found.fields->extents[0].offset + offset] ^= 1;
  munmap(address, one.arena.size_bytes);
}

TEST(store_mapping, AWriteAfterTheCommitIsDetected) {
  for (const std::size_t bytes : kShmSizes) {
    store_rig rig;
    rig.start();
    const auto store = store_rig::open(rig.over_unix());
    const auto pool = make_pool(*store, "p");
    const auto value = random_value(bytes, 1);
    ASSERT_EQ(put(*store, pool, "k", value, at_level(durability::volatile_)).status, 0);
    ASSERT_TRUE(get(*store, pool, "k", bytes) == value) << bytes;
    scribble(rig, *store, pool, bytes / 2);
    bytes_t room(bytes);
    // By the client, which sums as it copies.
    const auto got = store->run(store->make_get(pool, "k", memory_of(room), {}));
    EXPECT_EQ(got.status, EBADMSG) << bytes << ": " << got.text;
    EXPECT_NE(got.text.find("a client that maps this memory"), std::string::npos) << got.text;
    // By the store, which is asked to.
    store_client::get_request options;
    options.verify = true;
    const auto verified = store->run(store->make_get(pool, "k", memory_of(room), options));
    EXPECT_EQ(verified.status, EBADMSG) << verified.text;
    EXPECT_NE(verified.text.find("pool 'p', key 'k'"), std::string::npos) << verified.text;
    // A part cannot be held against the whole one's checksum.
    options = {};
    options.offset = 1;
    EXPECT_EQ(store->run(store->make_get(pool, "k", memory_of(room), options)).status, 0);
    ASSERT_EQ(put(*store, pool, "k", value, at_level(durability::volatile_)).status, 0);
    EXPECT_TRUE(get(*store, pool, "k", bytes) == value) << bytes;
  }
}

// Values that are changed in part, by host memory of all sizes: the store sums what became of them.
TEST(store_mapping, PartsOfAValueAreCopiedInParts) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  for (const std::size_t bytes : kShmSizes) {
    auto value = random_value(bytes + 1000, 1);
    const auto part = random_value(bytes, 2);
    ASSERT_EQ(put(*store, pool, "k", value).status, 0);
    auto options = at_level(durability::durable);
    options.offset = 500;
    const auto done = put(*store, pool, "k", part, options);
    ASSERT_EQ(done.status, 0) << done.text;
    EXPECT_EQ(done.result.way, path::shm_direct);
    std::copy(part.begin(), part.end(), value.begin() + 500);
    EXPECT_TRUE(get(*store, pool, "k", value.size()) == value) << bytes;
  }
}

TEST(store_mapping, ReadersReadThereAndWriteByTheSocket) {
  store_rig rig;
  rig.config.mappers = {"uid:4242424"};
  rig.config.map_readers = {own_uid()};
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  const auto value = random_value(300'000, 1);
  const auto done = put(*store, pool, "k", value);
  ASSERT_EQ(done.status, 0) << done.text;
  EXPECT_EQ(done.result.way, path::unix_socket);
  store_client::reply got;
  EXPECT_TRUE(get(*store, pool, "k", value.size(), &got) == value);
  EXPECT_EQ(got.result.way, path::shm_direct);
  auto options = rig.over_unix();
  options.require = path::shm_direct;
  const auto strict = store_rig::open(options);
  ASSERT_TRUE(strict->open_pool("p"));
  const auto refused = put(*strict, pool, "k", value);
  EXPECT_EQ(refused.status, ENOTSUP);
  EXPECT_NE(refused.text.find("to read only"), std::string::npos) << refused.text;
  // Nor by asking for a grant all the same.
  auto grab = store->make_plain(opcode::alloc, pool, "k");
  grab->head.value_bytes = 1000;
  EXPECT_EQ(store->run(grab).status, EACCES);
}

TEST(store_mapping, PoolsThatForbidItAreReachedByTheSocket) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  store_protocol::pool_settings settings;
  settings.allow_shm = false;
  const auto pool = make_pool(*store, "p", settings);
  const auto value = random_value(300'000, 1);
  const auto done = put(*store, pool, "k", value);
  EXPECT_EQ(done.status, 0) << done.text;
  EXPECT_EQ(done.result.way, path::unix_socket);
  EXPECT_TRUE(get(*store, pool, "k", value.size()) == value);
}

TEST(store_mapping, WhatReadersGetCannotBeMadeWritable) {
  store_rig rig;
  rig.config.mappers = {"uid:4242424"};
  rig.config.map_readers = {own_uid()};
  rig.start();
  const attached one(rig);
  ASSERT_TRUE(one.arena.read_only);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, one.fd, 0), MAP_FAILED);
  void* address = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, one.fd, 0);
  ASSERT_NE(address, MAP_FAILED);
  EXPECT_NE(mprotect(address, 4096, PROT_READ | PROT_WRITE), 0);
  munmap(address, 4096);
  EXPECT_NE(ftruncate(one.fd, 0), 0);
  const std::string again = "/proc/self/fd/" + std::to_string(one.fd);
  EXPECT_FALSE(works_for_another_user([&] { return open(again.c_str(), O_RDWR) >= 0; }));
  // (which it can be with a file that anybody may write)
  const int other = memfd_create("peerlane-test", MFD_CLOEXEC);
  const std::string easy = "/proc/self/fd/" + std::to_string(other);
  const int reading = open(easy.c_str(), O_RDONLY | O_CLOEXEC);
  const std::string other_again = "/proc/self/fd/" + std::to_string(reading);
  EXPECT_TRUE(works_for_another_user([&] { return open(other_again.c_str(), O_RDWR) >= 0; }));
  close(reading);
  close(other);
}

}  // namespace
}  // namespace pl::store_test
