// SPDX-License-Identifier: Apache-2.0
// A lane between two threads in one mapping, where ThreadSanitizer sees both ends; and what an end must survive of the
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

namespace pl::link {

// An end that has already carried so many packets and bytes: 2^32 of them take too long.
struct lane_position {
  static shm_lane behind(void* at, std::uint32_t packets, std::uint32_t data_bytes) {
    shm_lane out(at);
    out.number_ = packets;
    out.data_ = data_bytes;
    out.taken_ = std::uint64_t{packets} << 32 | data_bytes;
    out.shared_->taken.store(out.taken_, std::memory_order_relaxed);
    return out;
  }
  static void claim_head_of(const shm_lane& lane, std::uint8_t bytes) { lane.slot_of(lane.number_).what.head_bytes = bytes; }
};

namespace {

class shared_memory {
 public:
  shared_memory() : at_(mmap(nullptr, shm_lane::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~shared_memory() { munmap(at_, shm_lane::kBytes); }
  void* at() const { return at_; }

 private:
  void* at_;
};

struct parcel {
  std::size_t head_bytes, body_bytes;
  unsigned char salt;
  int outcome;
};

// Bodies are full of what the mark of some packet looks like.
void fill(std::byte* to, std::size_t bytes, unsigned salt) {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(i % 4 == 0 ? salt : 0);
}
bool is_filled(const std::byte* from, std::size_t bytes, unsigned salt) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (from[i] != static_cast<std::byte>(i % 4 == 0 ? salt : 0)) return false;
  return true;
}

bool put(shm_lane& to, const parcel& what) {
  const auto room = to.reserve(what.head_bytes, what.body_bytes);
  if (room.head == nullptr) return false;
  fill(room.head, what.head_bytes, what.salt);
  fill(room.body, what.body_bytes, what.salt + 1u);
  to.publish(what.outcome);
  return true;
}

bool is_there(shm_lane& from, const parcel& what) {
  const auto seen = from.peek();
  return seen.head != nullptr && seen.head_bytes == what.head_bytes && seen.body_bytes == what.body_bytes &&
         seen.outcome == what.outcome && is_filled(seen.head, what.head_bytes, what.salt) &&
         is_filled(seen.body, what.body_bytes, what.salt + 1u);
}

std::vector<parcel> random_parcels(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<parcel> out;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t most = random() % 50 == 0 ? shm_lane::kMostBody : random() % 4 == 0 ? 600 : 40;
    out.push_back({random() % (shm_lane::kMostHead + 1), random() % (most + 1), static_cast<unsigned char>(random()),
                   static_cast<int>(random() % 3 == 0 ? random() % 256 : 0)});
  }
  return out;
}

void carry_all(shm_lane writer, shm_lane reader, const std::vector<parcel>& all) {
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

TEST(shm_lane, random_packets_between_two_threads) {
  const shared_memory memory;
  carry_all(shm_lane(memory.at()), shm_lane(memory.at()), random_parcels(5000, 1));
}

TEST(shm_lane, numbers_wrap) {
  const shared_memory memory;
  constexpr std::uint32_t kPackets = 0u - 1500u, kData = 0u - 64u * 5000u;
  const auto writer = lane_position::behind(memory.at(), kPackets, kData);
  carry_all(writer, lane_position::behind(memory.at(), kPackets, kData), random_parcels(4000, 2));
}

TEST(shm_lane, a_full_lane_takes_no_more_until_the_oldest_is_taken) {
  const shared_memory memory;
  shm_lane writer(memory.at()), reader(memory.at());
  const parcel small{24, 8, 3, 0}, large{56, 60000, 5, 0};
  std::size_t taken = 0;
  while (put(writer, small)) ++taken;
  EXPECT_EQ(taken, shm_lane::kSlots);
  for (std::size_t i = 0; i < taken; ++i) {
    EXPECT_TRUE(is_there(reader, small));
    reader.release();
  }
  for (taken = 0; put(writer, large);) ++taken;
  EXPECT_EQ(taken, shm_lane::kDataBytes / 60032);
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

TEST(shm_lane, a_writer_that_dies_leaves_whole_packets) {
  const shared_memory memory;
  shm_lane writer(memory.at()), reader(memory.at());
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

TEST(shm_lane, a_length_that_cannot_be_ends_it) {
  const shared_memory memory;
  shm_lane writer(memory.at()), reader(memory.at());
  ASSERT_TRUE(put(writer, {24, 8, 3, 0}));
  lane_position::claim_head_of(reader, shm_lane::kMostHead + 1);
  EXPECT_EQ(reader.peek().head, nullptr);
}

TEST(shm_lane, any_failure_stays_one) {
  const shared_memory memory;
  shm_lane writer(memory.at()), reader(memory.at());
  for (const int code : {EPERM, 255, 256, 70000, -1}) {
    ASSERT_TRUE(put(writer, {24, 8, 3, code}));
    EXPECT_EQ(reader.peek().outcome, code > 0 && code < 256 ? code : EIO);
    reader.release();
  }
}

// A peer that could shrink the file of a mapping would end this process with SIGBUS.
TEST(shm_lane, nobody_can_shrink_an_outbox) {
  const auto outbox = shm_outbox::make(2);
  ASSERT_TRUE(outbox);
  const auto path = "/proc/self/fd/" + std::to_string(outbox->own_name().fd);
  EXPECT_NE(truncate(path.c_str(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  auto lane = shm_outbox::open_lane(outbox->own_name(), 1);
  ASSERT_TRUE(lane) << lane.error().message;
  EXPECT_EQ(lane->peek().head, nullptr);
  shm_outbox::close(*lane);
}

TEST(shm_lane, an_outbox_that_its_owner_could_shrink_is_refused) {
  const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  struct stat info {};
  ASSERT_EQ(ftruncate(fd, static_cast<off_t>(2 * shm_lane::kBytes)), 0);
  ASSERT_EQ(fstat(fd, &info), 0);
  EXPECT_EQ(shm_outbox::open_lane({getpid(), fd, info.st_ino}, 1).code(), EPROTO);
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  auto lane = shm_outbox::open_lane({getpid(), fd, info.st_ino}, 1);
  ASSERT_TRUE(lane);
  shm_outbox::close(*lane);
  EXPECT_EQ(shm_outbox::open_lane({getpid(), fd, info.st_ino}, 2).code(), ESTALE) << "too short for a third rank";
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
}  // namespace pl::link
