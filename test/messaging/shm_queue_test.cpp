// SPDX-License-Identifier: Apache-2.0
// A shm queue between two threads in one mapping, where ThreadSanitizer sees both ends; and what an end must survive of the
// other.
#include "messaging/transport/shm_queue.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "messaging/transport/shm_ring.hpp"

namespace pl::messaging {

// An end that has already carried so many packets and bytes: 2^32 of them take too long.
struct queue_position {
  static shm_queue behind(void* mapping, std::uint32_t packets, std::uint32_t data_bytes) {
    shm_queue out(mapping);
    out.number_ = packets;
    out.data_ = data_bytes;
    out.taken_ = std::uint64_t{packets} << 32 | data_bytes;
    out.shared_->taken.store(out.taken_, std::memory_order_relaxed);
    return out;
  }
  static void claim_head_of(const shm_queue& queue, std::uint8_t bytes) {
    queue.slot_of(queue.number_).packet.head_bytes = bytes;
  }
};

namespace {

class shared_memory {
 public:
  shared_memory() : mapping_(mmap(nullptr, shm_queue::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~shared_memory() { munmap(mapping_, shm_queue::kBytes); }
  void* mapping() const { return mapping_; }

 private:
  void* mapping_;
};

struct parcel {
  std::size_t head_bytes, body_bytes;
  unsigned char salt;
  int outcome;
};

// Bodies are full of what the mark of some packet looks like.
void fill(std::byte* destination, std::size_t bytes, unsigned salt) {
  for (std::size_t i = 0; i < bytes; ++i) destination[i] = static_cast<std::byte>(i % 4 == 0 ? salt : 0);
}
bool is_filled(const std::byte* source, std::size_t bytes, unsigned salt) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (source[i] != static_cast<std::byte>(i % 4 == 0 ? salt : 0)) return false;
  return true;
}

struct whole_head {
  std::byte bytes[24];
};
bool put_at_once(shm_queue& queue, const parcel& op) {
  whole_head head;
  std::vector<std::byte> body(op.body_bytes);
  fill(head.bytes, sizeof head, op.salt);
  fill(body.data(), body.size(), op.salt + 1u);
  return queue.put(head, body.data(), body.size());
}

// Both ways of writing a packet share one queue.
bool put(shm_queue& queue, const parcel& op) {
  if (op.head_bytes == sizeof(whole_head) && op.outcome == 0) return put_at_once(queue, op);
  const auto room = queue.reserve(op.head_bytes, op.body_bytes);
  if (room.head == nullptr) return false;
  fill(room.head, op.head_bytes, op.salt);
  fill(room.body, op.body_bytes, op.salt + 1u);
  queue.publish(op.outcome);
  return true;
}

bool is_there(shm_queue& queue, const parcel& sample) {
  const auto seen = queue.peek();
  return seen.head != nullptr && seen.head_bytes == sample.head_bytes && seen.body_bytes == sample.body_bytes &&
         seen.outcome == sample.outcome && is_filled(seen.head, sample.head_bytes, sample.salt) &&
         is_filled(seen.body, sample.body_bytes, sample.salt + 1u);
}

std::vector<parcel> random_parcels(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<parcel> out;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t most = random() % 50 == 0 ? shm_queue::kMaxBody : random() % 4 == 0 ? 600 : 40;
    const std::size_t head = random() % 3 == 0 ? sizeof(whole_head) : random() % (shm_queue::kMaxHead + 1);
    out.push_back({head, random() % (most + 1), static_cast<unsigned char>(random()),
                   static_cast<int>(random() % 3 == 0 ? random() % 256 : 0)});
  }
  return out;
}

void carry_all(shm_queue writer, shm_queue reader, const std::vector<parcel>& all) {
  std::thread other([&] {
    for (const auto& each : all)
      while (!put(writer, each)) std::this_thread::yield();
  });
  std::size_t wrong = 0;
  for (const auto& each : all) {
    while (reader.peek().head == nullptr) std::this_thread::yield();
    wrong += is_there(reader, each) ? 0 : 1;
    reader.release();
  }
  other.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(reader.peek().head, nullptr);
}

TEST(shm_queue, random_packets_between_two_threads) {
  const shared_memory memory;
  carry_all(shm_queue(memory.mapping()), shm_queue(memory.mapping()), random_parcels(5000, 1));
}

TEST(shm_queue, numbers_wrap) {
  const shared_memory memory;
  constexpr std::uint32_t kPackets = 0u - 1500u, kData = 0u - 64u * 5000u;
  const auto writer = queue_position::behind(memory.mapping(), kPackets, kData);
  carry_all(writer, queue_position::behind(memory.mapping(), kPackets, kData), random_parcels(4000, 2));
}

TEST(shm_queue, a_full_queue_takes_no_more_until_the_oldest_is_taken) {
  const shared_memory memory;
  shm_queue writer(memory.mapping()), reader(memory.mapping());
  const parcel small{24, 8, 3, 0}, large{56, 60000, 5, 0};
  std::size_t taken = 0;
  while (put(writer, small)) ++taken;
  EXPECT_EQ(taken, shm_queue::kSlots);
  for (std::size_t i = 0; i < taken; ++i) {
    EXPECT_TRUE(is_there(reader, small));
    reader.release();
  }
  for (taken = 0; put(writer, large);) ++taken;
  EXPECT_EQ(taken, shm_queue::kDataBytes / 60032);
  EXPECT_TRUE(put(writer, small)) << "a short packet needs no data area";
  EXPECT_TRUE(is_there(reader, large));
  EXPECT_FALSE(put(writer, large)) << "its reader has not finished with it";
  reader.release();
  EXPECT_TRUE(put(writer, large));
  for (std::size_t i = 1; i < taken; ++i) {
    EXPECT_TRUE(is_there(reader, large));
    reader.release();
  }
  EXPECT_TRUE(is_there(reader, small));
  reader.release();
  EXPECT_TRUE(is_there(reader, large));
}

TEST(shm_queue, a_writer_that_dies_leaves_whole_packets) {
  const shared_memory memory;
  shm_queue writer(memory.mapping()), reader(memory.mapping());
  const parcel whole{24, 400, 3, 0};
  ASSERT_TRUE(put(writer, whole));
  for (const std::size_t bytes : {8, 400}) {
    const auto room = writer.reserve(24, bytes);
    fill(room.head, 24, 9);
    fill(room.body, bytes, 9);
  }
  EXPECT_TRUE(is_there(reader, whole));
  reader.release();
  EXPECT_EQ(reader.peek().head, nullptr);
}

TEST(shm_queue, a_length_that_cannot_be_ends_it) {
  const shared_memory memory;
  shm_queue writer(memory.mapping()), reader(memory.mapping());
  ASSERT_TRUE(put(writer, {24, 8, 3, 0}));
  queue_position::claim_head_of(reader, shm_queue::kMaxHead + 1);
  EXPECT_EQ(reader.peek().head, nullptr);
}

TEST(shm_queue, any_failure_stays_one) {
  const shared_memory memory;
  shm_queue writer(memory.mapping()), reader(memory.mapping());
  for (const int code : {EPERM, 255, 256, 70000, -1}) {
    ASSERT_TRUE(put(writer, {24, 8, 3, code}));
    EXPECT_EQ(reader.peek().outcome, code > 0 && code < 256 ? code : EIO);
    reader.release();
  }
}

// A peer that could shrink the file of a mapping would end this process with SIGBUS.
TEST(shm_queue, nobody_can_shrink_an_outbox) {
  const auto outbox = shm_queue_set::make(2);
  ASSERT_TRUE(outbox);
  const auto path = "/proc/self/fd/" + std::to_string(outbox->own_name().fd);
  EXPECT_NE(truncate(path.c_str(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  auto inbound = shm_queue_set::open_queue(outbox->own_name(), 1);
  ASSERT_TRUE(inbound) << inbound.error().message;
  EXPECT_EQ(inbound->peek().head, nullptr);
  shm_queue_set::close(*inbound);
}

TEST(shm_queue, an_outbox_that_its_owner_could_shrink_is_refused) {
  const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  struct stat info {};
  ASSERT_EQ(ftruncate(fd, static_cast<off_t>(2 * shm_queue::kBytes)), 0);
  ASSERT_EQ(fstat(fd, &info), 0);
  EXPECT_EQ(shm_queue_set::open_queue({getpid(), fd, info.st_ino}, 1).code(), EPROTO);
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  auto inbound = shm_queue_set::open_queue({getpid(), fd, info.st_ino}, 1);
  ASSERT_TRUE(inbound);
  shm_queue_set::close(*inbound);
  EXPECT_EQ(shm_queue_set::open_queue({getpid(), fd, info.st_ino}, 2).code(), ESTALE) << "too short for a third rank";
  close(fd);
}

TEST(shm_ring, nobody_can_shrink_it_and_an_unsealed_one_is_refused) {
  constexpr std::size_t kChunk = 64 << 10;
  auto ring = shm_ring::make(kChunk);
  ASSERT_TRUE(ring);
  const auto name = (*ring)->own_name();
  EXPECT_NE(truncate(("/proc/self/fd/" + std::to_string(name.fd)).c_str(), 0), 0);
  EXPECT_TRUE(shm_ring::open(name));
  const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  struct stat info {};
  ASSERT_EQ(ftruncate(fd, static_cast<off_t>(4096 + shm_ring::kChunks * kChunk)), 0);
  ASSERT_EQ(fstat(fd, &info), 0);
  EXPECT_EQ(shm_ring::open({getpid(), fd, info.st_ino, kChunk}).code(), EPROTO);
  close(fd);
}

}  // namespace
}  // namespace pl::messaging
