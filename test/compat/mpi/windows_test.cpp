// SPDX-License-Identifier: Apache-2.0
// What windows of device memory are made of, without MPI: locks whose holders die, the public copy, and rows put in pairs.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "compat/mpi/public_copy.hpp"
#include "compat/mpi/row_pairs.hpp"
#include "compat/mpi/window_locks.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::mpi {
namespace {

// Shared with forked processes.
class shared_bytes {
 public:
  explicit shared_bytes(std::size_t bytes)
      : bytes_(bytes), data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~shared_bytes() { munmap(data_, bytes_); }
  shared_bytes(const shared_bytes&) = delete;
  shared_bytes& operator=(const shared_bytes&) = delete;
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

// A process that does `work`, says so, and then does nothing until it is killed.
class holder {
 public:
  template <class Work>
  explicit holder(Work work) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    process_ = fork();
    if (process_ == 0) {
      alarm(60);
      work([&] {
        if (write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
      });
    }
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]), close(ends[1]);
  }
  ~holder() { end(); }
  holder(const holder&) = delete;
  holder& operator=(const holder&) = delete;
  void end() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(std::exchange(process_, -1), nullptr, 0);
  }

 private:
  pid_t process_ = -1;
};

constexpr int kRanks = 3;

TEST(window_locks, exclude_as_mpi_says) {
  const shared_bytes memory(window_locks::bytes_for(kRanks));
  window_locks::format(memory.data(), kRanks);
  window_locks first(memory.data(), kRanks, 0), second(memory.data(), kRanks, 1), third(memory.data(), kRanks, 2);
  EXPECT_TRUE(first.try_lock(2, false));
  EXPECT_TRUE(second.try_lock(2, false));
  EXPECT_FALSE(third.try_lock(2, true));
  EXPECT_TRUE(third.try_lock(1, true));  // another target
  first.unlock(2);
  EXPECT_FALSE(third.try_lock(2, true));
  second.unlock(2);
  EXPECT_TRUE(third.try_lock(2, true));
  EXPECT_FALSE(first.try_lock(2, false));
  EXPECT_FALSE(first.try_lock(2, true));
  third.unlock(2);
  EXPECT_TRUE(first.try_lock(2, false));
}

TEST(window_locks, a_dead_holder_holds_nothing) {
  const shared_bytes memory(window_locks::bytes_for(kRanks));
  window_locks::format(memory.data(), kRanks);
  window_locks own(memory.data(), kRanks, 0);
  holder other([&](auto stay) {
    window_locks theirs(memory.data(), kRanks, 1);
    if (!theirs.try_lock(0, true) || !theirs.try_lock(2, false)) _exit(1);
    stay();
  });
  EXPECT_FALSE(own.try_lock(0, true));
  EXPECT_TRUE(own.try_lock(2, false));
  own.unlock(2);
  EXPECT_FALSE(own.try_lock(2, true));
  other.end();
  EXPECT_TRUE(own.try_lock(0, true));
  EXPECT_TRUE(own.try_lock(2, true));
}

TEST(window_locks, an_accumulate_goes_on_behind_a_dead_one) {
  const shared_bytes memory(window_locks::bytes_for(kRanks));
  window_locks::format(memory.data(), kRanks);
  window_locks own(memory.data(), kRanks, 0);
  holder other([&](auto stay) {
    window_locks theirs(memory.data(), kRanks, 1);
    const window_locks::element_lock held(theirs, 2);
    stay();
  });
  other.end();
  for (int i = 0; i < 2; ++i) const window_locks::element_lock held(own, 2);
}

TEST(window_locks, accumulates_of_all_processes_are_one_after_another) {
  constexpr int kTurns = 20'000;
  const shared_bytes memory(window_locks::bytes_for(kRanks) + 64);
  window_locks::format(memory.data(), kRanks);
  volatile int* const total =
      reinterpret_cast<int*>(static_cast<std::byte*>(memory.data()) + window_locks::bytes_for(kRanks));
  pid_t processes[kRanks];
  for (int rank = 0; rank < kRanks; ++rank)
    if ((processes[rank] = fork()) == 0) {
      window_locks own(memory.data(), kRanks, rank);
      for (int i = 0; i < kTurns; ++i) {
        const window_locks::element_lock held(own, 1);
        *total = *total + 1;
      }
      _exit(0);
    }
  for (const pid_t process : processes) {
    int ended = -1;
    EXPECT_EQ(waitpid(process, &ended, 0), process);
    EXPECT_EQ(ended, 0);
  }
  EXPECT_EQ(*total, kRanks * kTurns);
}

TEST(public_copy, neither_side_undoes_the_other) {
  test::simulated_cuda();
  const test::current_device device;
  constexpr std::size_t kBytes = (2u << 20) + 777;
  const test::device_buffer memory(kBytes);
  auto data = test::random_bytes(kBytes, 1);
  test::set_device_bytes(memory.pointer(), data);
  auto made = public_copy::make(memory.pointer(), kBytes);
  ASSERT_TRUE(made) << made.error().message;
  auto& copy = **made;
  EXPECT_EQ(std::memcmp(copy.data(), data.data(), kBytes), 0);

  // The owner changes some bytes, others change some of the public copy, in every chunk and at the very end.
  for (std::size_t i = 100; i < kBytes; i += 333'333) data[i] ^= 0x55;
  test::set_device_bytes(memory.pointer(), data);
  for (std::size_t i = 5; i < kBytes; i += 100'001) copy.data()[i] ^= std::byte{0x33}, data[i] ^= 0x33;
  copy.data()[kBytes - 1] ^= std::byte{0x11}, data[kBytes - 1] ^= 0x11;
  ASSERT_TRUE(copy.publish());
  EXPECT_EQ(std::memcmp(copy.data(), data.data(), kBytes), 0);
  ASSERT_TRUE(copy.adopt());
  EXPECT_EQ(test::device_bytes(memory.pointer(), kBytes), data);

  // Again, with nothing and with everything changed.
  ASSERT_TRUE(copy.publish());
  ASSERT_TRUE(copy.adopt());
  EXPECT_EQ(test::device_bytes(memory.pointer(), kBytes), data);
  data = test::random_bytes(kBytes, 2);
  std::memcpy(copy.data(), data.data(), kBytes);
  ASSERT_TRUE(copy.adopt());
  EXPECT_EQ(test::device_bytes(memory.pointer(), kBytes), data);
}

TEST(public_copy, refuses_what_leaves_its_allocation) {
  test::simulated_cuda();
  const test::current_device device;
  const test::device_buffer memory(4096);
  const auto made = public_copy::make(memory.pointer(), std::size_t{1} << 30);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, EINVAL);
}

// Each byte of one side with its place on the other.
std::vector<std::pair<std::uint64_t, std::uint64_t>> bytes_of(const std::vector<copy::transfer>& list) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
  for (const auto& one : list)
    for (std::size_t row = 0; row < one.rows; ++row)
      for (std::size_t i = 0; i < one.row_bytes; ++i)
        out.emplace_back(one.dst + row * one.dst_pitch + i, one.src + row * one.src_pitch + i);
  return out;
}

std::vector<std::uint64_t> bytes_of(const pieces& rows) {
  std::vector<std::uint64_t> out;
  for (const auto& one : rows)
    for (std::size_t row = 0; row < one.rows; ++row)
      for (std::size_t i = 0; i < one.row_bytes; ++i)
        out.push_back(static_cast<std::uint64_t>(one.offset) + row * one.pitch + i);
  return out;
}

TEST(pair_rows, keeps_the_order_of_bytes) {
  const std::vector<pieces> layouts = {
      {{1000, 120, 1, 120}},
      {{1000, 5, 24, 9}},
      {{1000, 12, 10, 12}},
      {{1000, 8, 5, 20}, {5000, 1, 1, 1}, {7000, 3, 13, 4}, {9000, 40, 1, 40}},
      {{4000, 7, 17, 8}, {1000, 1, 1, 1}},
  };
  for (const auto& destination : layouts)
    for (const auto& source : layouts) {
      const auto targets = bytes_of(destination), sources = bytes_of(source);
      const auto found = bytes_of(pair_rows(destination, source, copy::direction::to_device));
      ASSERT_EQ(found.size(), std::min(targets.size(), sources.size()));
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], std::make_pair(targets[i], sources[i]));
    }
}

TEST(pair_rows, makes_one_copy_of_rows) {
  const pieces matrix = {{0, 64, 100, 256}}, dense = {{0, 6400, 1, 6400}}, other = {{0, 64, 100, 80}};
  for (const auto& [destination, source] : {std::pair(matrix, dense), {dense, matrix}, {matrix, other}, {dense, dense}})
    EXPECT_EQ(pair_rows(destination, source, copy::direction::to_host).size(), 1u);
}

}  // namespace
}  // namespace pl::mpi
