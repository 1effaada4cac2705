// SPDX-License-Identifier: Apache-2.0
// Random operations through dma::channel, against plain memory. The interpreter lets writes arrive in an order that its
// seed chooses, so an operation that relies on luck shows.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "dma/channel.hpp"
#include "test/dma/fake_engine.hpp"

namespace {

using namespace pl;
using test::fake_engine;

constexpr std::uint64_t kFuzzTimeoutNs = 60'000'000'000;
constexpr std::size_t kBytes = 1u << 20;
constexpr std::size_t kPage = 4096;
// So many go round the ring often, and round the room for commands (2 MiB) more than once.
#if defined(__SANITIZE_THREAD__)
constexpr unsigned kOperations = 600;  // which is slow, and looks for races
#else
constexpr unsigned kOperations = 4000;
#endif

// Two areas, one of the host and one of the GPU, and what must be in them.
class fuzzed_channel {
 public:
  fuzzed_channel(fake_engine& engine, std::uint64_t seed, dma::ordering order) : random_(seed) {
    client_ = std::move(*rm::client::open(engine));
    space_ = *dma::address_space::open(*client_, **client_->find_gpu({0, 6, 0}), "580.159.04");
    constexpr int kProtection = PROT_READ | PROT_WRITE, kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
    host_ = static_cast<std::byte*>(mmap(nullptr, kBytes + kPage, kProtection, kFlags, -1, 0));
    host_region_ = std::move(*space_->bind_host(host_, kBytes + kPage));
    device_ = std::move(*space_->make_device_memory(kBytes));
    view_ = *client_->map(space_->objects().device(), device_.memory, 0, kBytes, nullptr);
    queue_ = std::move(*dma::channel::open(space_, {2, order, 16}));
    for (auto& area : expected_) area.resize(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) {
      expected_[0][i] = host_[i] = static_cast<std::byte>(random_());
      expected_[1][i] = device_bytes()[i] = static_cast<std::byte>(random_());
    }
  }
  ~fuzzed_channel() {
    queue_.reset();
    client_->unmap(view_, rm::unmap_policy::hole);
    munmap(host_, kBytes + kPage);
  }

  // Whether copies that depend on each other go wrong.
  bool goes_wrong(unsigned operations) {
    for (unsigned i = 0; i < operations; ++i) {
      close_gate();
      for (int behind = 0; behind < 8; ++behind) copy();
      if (!is_done()) return false;
      if (!is_as_expected()) return true;
    }
    return false;
  }

  // Copies that do not depend on each other: a piece of the host's area to each place of the GPU's.
  void scatter() {
    constexpr std::size_t kPiece = 1000;
    for (std::size_t offset = 0; offset + kPiece <= kBytes; offset += kPiece) {
      const place source{0, below(kBytes - kPiece)}, destination{1, offset};
      remember(queue_->copy(address(destination), address(source), kPiece));
      std::memcpy(expected(destination), expected(source), kPiece);
    }
    check();
  }

  void run(unsigned operations) {
    for (unsigned i = 0; i < operations; ++i) {
      do_one();
      if (testing::Test::HasFatalFailure()) return;
      if (gate_ != opened_ && --until_opened_ == 0) open_gate();
      if (random_() % 200 == 0) check();
    }
    check();
  }

 private:
  struct place {
    unsigned area;  // 0: host
    std::size_t offset;
  };
  std::byte* device_bytes() const { return static_cast<std::byte*>(view_.address); }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  std::size_t some_size() {
    constexpr std::size_t kMaxBytes[] = {8, 200, 5000, 20'000, kBytes / 2};
    return 1 + below(kMaxBytes[std::min<std::uint64_t>(below(40), 4)]);
  }
  place some_place(std::size_t size_bytes) { return {static_cast<unsigned>(below(2)), below(kBytes - size_bytes + 1)}; }
  std::uint64_t address(place spot) const {
    return (spot.area == 0 ? host_region_.address() : device_.bound.address()) + spot.offset;
  }
  std::byte* expected(place spot) { return expected_[spot.area].data() + spot.offset; }
  static bool overlap(place a, std::size_t a_bytes, place b, std::size_t b_bytes) {
    return a.area == b.area && a.offset < b.offset + b_bytes && b.offset < a.offset + a_bytes;
  }
  // A source and a destination that have nothing in common.
  std::pair<place, place> two_places(std::size_t source_bytes, std::size_t destination_bytes) {
    for (;;) {
      const place source = some_place(source_bytes), destination = some_place(destination_bytes);
      if (!overlap(source, source_bytes, destination, destination_bytes)) return {source, destination};
    }
  }
  void remember(const result<dma::sequence>& number) {
    ASSERT_TRUE(number) << number.error().message;
    ASSERT_GE(*number, last_);
    last_ = *number;
  }

  void do_one() {
    switch (below(10)) {
      case 8:
        return fill_bytes();
      case 9:
        return add();
      case 0:
        return copy_rows();
      case 1:
        return fill();
      case 2:
        return copy_list();
      case 3:
        return release();
      case 4:
        if (gate_ == opened_) return close_gate();
        return copy();
      default:
        return copy();
    }
  }
  void copy() {
    const std::size_t size_bytes = some_size();
    const auto [source, destination] = two_places(size_bytes, size_bytes);
    remember(queue_->copy(address(destination), address(source), size_bytes));
    std::memcpy(expected(destination), expected(source), size_bytes);
  }
  void copy_rows() {
    const std::size_t row = 1 + below(300), rows = 1 + below(50);
    const std::size_t source_pitch = row + below(100), destination_pitch = row + below(100);
    const auto [source, destination] = two_places(rows * source_pitch, rows * destination_pitch);
    remember(queue_->copy_rows(address(destination), static_cast<std::uint32_t>(destination_pitch), address(source),
                               static_cast<std::uint32_t>(source_pitch), static_cast<std::uint32_t>(row),
                               static_cast<std::uint32_t>(rows)));
    for (std::size_t i = 0; i < rows; ++i)
      std::memcpy(expected(destination) + i * destination_pitch, expected(source) + i * source_pitch, row);
  }
  void fill() {
    const std::size_t size_bytes = (some_size() + 3) / 4 * 4;
    const place destination = some_place(size_bytes);
    const auto pattern = static_cast<std::uint32_t>(random_());
    remember(queue_->fill(address(destination), pattern, size_bytes));
    for (std::size_t i = 0; i < size_bytes; i += 4) std::memcpy(expected(destination) + i, &pattern, 4);
  }
  void fill_bytes() {
    const std::size_t size_bytes = some_size();
    const place destination = some_place(size_bytes);
    const auto value = static_cast<std::uint8_t>(random_());
    remember(queue_->fill_bytes(address(destination), value, size_bytes));
    std::memset(expected(destination), value, size_bytes);
  }
  void add() {
    const place word{1, below(kBytes / 4) * 4};
    const auto value = static_cast<std::uint32_t>(random_());
    remember(queue_->add(address(word), value));
    std::uint32_t sum = 0;
    std::memcpy(&sum, expected(word), sizeof sum);
    sum += value;
    std::memcpy(expected(word), &sum, sizeof sum);
  }
  // From one area into the other: blocks of a list do not see each other.
  void copy_list() {
    const std::size_t count = below(3) == 0 ? 200 + below(1000) : below(20), slot = 1 + below(800);
    const auto source_area = static_cast<unsigned>(below(2));
    std::vector<dma::block> blocks;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t size_bytes = below(3) == 0 ? 1 + below(slot) : slot;
      const place source{source_area, below(kBytes - size_bytes)}, destination{1 - source_area, i * slot};
      blocks.push_back({address(destination), address(source), static_cast<std::uint32_t>(size_bytes)});
      std::memcpy(expected(destination), expected(source), size_bytes);
    }
    std::shuffle(blocks.begin(), blocks.end(), random_);
    remember(queue_->copy_blocks(blocks));
  }
  void release() {
    const place destination{static_cast<unsigned>(below(2)), below(kBytes / 4) * 4};
    const auto value = static_cast<std::uint32_t>(random_());
    remember(queue_->release(address(destination), value));
    std::memcpy(expected(destination), &value, sizeof value);
  }
  void close_gate() {
    remember(queue_->acquire(host_region_.address() + kBytes, ++gate_));
    until_opened_ = 1 + below(8);  // the ring has room for so many behind it
  }
  void open_gate() { __atomic_store_n(reinterpret_cast<std::uint32_t*>(host_ + kBytes), opened_ = gate_, __ATOMIC_RELEASE); }

  void check() {
    ASSERT_TRUE(is_done());
    ASSERT_TRUE(is_as_expected()) << "operation " << last_;
  }
  // Behind a flush: without one the last word may come before the last bytes.
  bool is_done() {
    open_gate();
    remember(queue_->flush());
    const status done = queue_->wait(last_, kFuzzTimeoutNs);
    EXPECT_TRUE(done) << done.error().message;
    return done.ok();
  }
  bool is_as_expected() const {
    return std::memcmp(host_, expected_[0].data(), kBytes) == 0 &&
           std::memcmp(device_bytes(), expected_[1].data(), kBytes) == 0;
  }

  std::mt19937_64 random_;
  std::unique_ptr<rm::client> client_;
  std::shared_ptr<dma::address_space> space_;
  std::byte* host_ = nullptr;
  dma::region host_region_;
  dma::address_space::own_memory device_;
  rm::cpu_mapping view_;
  std::unique_ptr<dma::channel> queue_;
  std::vector<std::byte> expected_[2];
  dma::sequence last_ = 0;
  std::uint32_t gate_ = 0, opened_ = 0;
  std::uint64_t until_opened_ = 0;
};

class dma_fuzz : public testing::TestWithParam<int> {};

TEST_P(dma_fuzz, AnyOperationsMatchPlainMemory) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  constexpr dma::ordering kOrders[] = {dma::ordering::waits, dma::ordering::flush_first, dma::ordering::flush_last};
  fake_engine::options options;
  options.seed = seed;  // 0 is in order, and as late as the rules allow
  fake_engine engine(options);
  {
    fuzzed_channel channel(engine, seed + 1, kOrders[seed % 3]);
    channel.run(kOperations);
  }
  EXPECT_EQ(engine.protocol_errors(), 0);
  EXPECT_EQ(engine.live_objects(), 0);
  EXPECT_GT(engine.pipelined_copies(), 10u * kOperations);
}

TEST_P(dma_fuzz, IndependentOperationsNeedNoOrder) {
  fake_engine::options options;
  options.seed = static_cast<std::uint64_t>(GetParam());
  fake_engine engine(options);
  fuzzed_channel(engine, options.seed + 1, dma::ordering::none).scatter();
}

// Dependent ones with the order left out: the interpreter shows what the hardware showed.
TEST_P(dma_fuzz, WithoutOrderSomethingGoesWrong) {
  fake_engine::options options;
  options.seed = static_cast<std::uint64_t>(GetParam());
  fake_engine engine(options);
  fuzzed_channel channel(engine, options.seed + 1, dma::ordering::none);
  EXPECT_TRUE(channel.goes_wrong(2000));
}

INSTANTIATE_TEST_SUITE_P(Seeds, dma_fuzz, testing::Range(0, 6));

}  // namespace
