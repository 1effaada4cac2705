// SPDX-License-Identifier: Apache-2.0
// Executor M against an adapter in software: a thread that polls a fake doorbell page and executes the requests. It reads
// them field by field as the manual defines them, not with the code that wrote them.
#include "triggered/mlx5_executor.hpp"

#include <endian.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "copy/pinned_buffer.hpp"
#include "test/support/sim_fixture.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::triggered {
namespace {

const cu::driver_table& cuda() { return test::simulated_cuda(); }

constexpr std::uint32_t kBlocks = 16, kNumber = 0x4711;

// The page that both look at: send ring, doorbell record, doorbell register.
struct fake_page {
  alignas(64) std::byte ring[kBlocks * 64];
  alignas(64) std::uint32_t record;
  alignas(64) std::uint64_t doorbell;
};

class soft_adapter {
 public:
  // Keys name where memory begins; addresses are device addresses.
  soft_adapter(fake_page& page, std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> regions)
      : page_(page), regions_(std::move(regions)), thread_([this] { run(); }) {}
  ~soft_adapter() {
    is_over_ = true;
    thread_.join();
  }
  std::uint64_t done() const { return done_; }
  std::string reason() const { return reason_; }
  std::atomic<bool> may_work{true};

 private:
  void run() {
    const test::current_device device;
    cu::stream_t stream = nullptr;
    if (cuda().cuStreamCreate(&stream, cu::stream_flag::non_blocking) != 0) abort();
    while (!is_over_) {
      const auto doorbell = __atomic_load_n(&page_.doorbell, __ATOMIC_ACQUIRE);
      const auto posted = be32toh(__atomic_load_n(&page_.record, __ATOMIC_ACQUIRE));
      if (may_work && doorbell != 0 && (done_ & 0xffff) != posted) carry_out(stream);
      else std::this_thread::yield();
    }
    static_cast<void>(cuda().cuStreamDestroy_v2(stream));
  }

  template <class T>
  T field(std::size_t offset) const {
    T out;
    std::memcpy(&out, page_.ring + done_ % kBlocks * 64 + offset, sizeof out);
    return out;
  }

  bool is_inside(std::uint32_t key, std::uint64_t address, std::uint64_t bytes) const {
    const auto found = regions_.find(key);
    return found != regions_.end() && address >= found->second.first &&
           address + bytes <= found->second.first + found->second.second;
  }

  // Control 0..15, remote address 16..31, data 32..47.
  void carry_out(cu::stream_t stream) {
    const auto code = be32toh(field<std::uint32_t>(0)), shape = be32toh(field<std::uint32_t>(4));
    if ((code & 0xff) != 0x08 || code >> 8 != (done_ & 0xffff)) return fail("not a write, or not the next one");
    if (shape >> 8 != kNumber || (shape & 0x3f) != 3) return fail("of another queue pair, or of another length");
    const auto target = be64toh(field<std::uint64_t>(16));
    const auto key = be32toh(field<std::uint32_t>(24));
    const auto head = be32toh(field<std::uint32_t>(32));
    const std::uint64_t bytes = head & 0x7fffffff;
    if (!is_inside(key, target, bytes)) return fail("a remote address outside its region");
    int rc = 0;
    std::uint64_t word = field<std::uint64_t>(36);
    if ((head & 0x80000000u) != 0) {
      rc = cuda().cuMemcpyHtoDAsync_v2(target, &word, bytes, stream);
    } else {
      const auto origin = be64toh(field<std::uint64_t>(40));
      if (!is_inside(be32toh(field<std::uint32_t>(36)), origin, bytes)) return fail("a local address outside its region");
      rc = cuda().cuMemcpyDtoDAsync_v2(target, origin, bytes, stream);
    }
    if (rc != 0 || cuda().cuStreamSynchronize(stream) != 0) return fail("the copy failed");
    ++done_;
  }

  void fail(const char* reason) {
    reason_ = reason;
    is_over_ = true;
  }

  fake_page& page_;
  const std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> regions_;
  std::atomic<bool> is_over_{false};
  std::atomic<std::uint64_t> done_{0};
  std::string reason_;
  std::thread thread_;
};

constexpr std::size_t kBytes = 64 << 10;
constexpr std::uint32_t kLocalKey = 11, kRemoteKey = 22, kWordsKey = 33;

struct executor_fixture {
  const test::current_device device;
  copy::gpu_context gpu = *copy::find_context(cuda(), 0, nullptr);
  copy::pinned_buffer page_memory = std::move(copy::pinned_buffer::make(gpu, sizeof(fake_page))).value();
  fake_page& page = *reinterpret_cast<fake_page*>(page_memory.data());
  test::device_buffer source{kBytes}, window{kBytes}, words{4096};
  cu::stream_t stream = nullptr;
  soft_adapter adapter{page,
                       {{kLocalKey, {source.pointer(), kBytes}},
                        {kRemoteKey, {window.pointer(), kBytes}},
                        {kWordsKey, {words.pointer(), 4096}}}};
  std::unique_ptr<executor> unit;
  remote_window peer_window{1, 1, kBytes, 0};

  executor_fixture() {
    test::set_device_bytes(words.pointer(), std::vector<unsigned char>(4096, 0));
    if (cuda().cuStreamCreate(&stream, cu::stream_flag::non_blocking) != 0) abort();
    mlx5_parts parts;
    parts.gpu = &gpu;
    parts.queue = {page.ring, kBlocks, &page.record, &page.doorbell, kNumber};
    parts.record = page_memory.device_address() + offsetof(fake_page, record);
    parts.doorbell = page_memory.device_address() + offsetof(fake_page, doorbell);
    parts.signal = {words.pointer(), kWordsKey};
    parts.ack = {words.pointer() + 64, kWordsKey};
    parts.our_ack = words.pointer() + 128;
    parts.sent = words.pointer() + 192;
    parts.remote = [this](const remote_window&, std::uint64_t offset) {
      return mlx5_memory{window.pointer() + offset, kRemoteKey};
    };
    parts.local = [](cu::device_ptr origin, std::size_t) { return mlx5_memory{origin, kLocalKey}; };
    parts.completed = [this] { return adapter.done(); };
    unit = make_mlx5_executor(parts);
  }
  ~executor_fixture() {
    static_cast<void>(cuda().cuStreamSynchronize(stream));
    static_cast<void>(cuda().cuStreamDestroy_v2(stream));
  }

  status put(std::uint64_t sequence, std::size_t offset, std::size_t bytes, std::uint64_t released = 0) {
    return unit->put(stream, {source.pointer() + offset, bytes, &peer_window, offset, sequence, released});
  }
  std::uint64_t word(std::size_t offset) const {
    const auto bytes = test::device_bytes(words.pointer() + offset, 8);
    std::uint64_t out = 0;
    std::memcpy(&out, bytes.data(), 8);
    return out;
  }
};

// More than the ring holds: blocks are used again, and the request counter is what the adapter expects.
TEST(mlx5_executor, puts_arrive_in_order_and_the_ring_goes_round) {
  executor_fixture session;
  const auto all = test::random_bytes(kBytes, 1);
  test::set_device_bytes(session.source.pointer(), all);
  constexpr std::uint64_t kPuts = 3 * kBlocks;
  const std::size_t each = kBytes / kPuts / 8 * 8;
  for (std::uint64_t i = 1; i <= kPuts; ++i) {
    auto done = session.put(i, (i - 1) * each, each);
    while (done.code() == EAGAIN) {
      std::this_thread::yield();
      done = session.put(i, (i - 1) * each, each);
    }
    ASSERT_TRUE(done.ok());
  }
  // A stream that waits for the last signal sees all bytes behind it.
  ASSERT_TRUE(mem_ops(cuda(), session.stream).wait64(session.words.pointer(), kPuts).submit().ok());
  ASSERT_EQ(cuda().cuStreamSynchronize(session.stream), 0);
  const auto received = test::device_bytes(session.window.pointer(), kPuts * each);
  EXPECT_TRUE(std::equal(received.begin(), received.end(), all.begin()));
  EXPECT_EQ(session.word(192), kPuts);
  EXPECT_EQ(session.adapter.reason(), "");
}

TEST(mlx5_executor, nothing_leaves_before_the_stream_rings) {
  executor_fixture session;
  ASSERT_TRUE(mem_ops(cuda(), session.stream).wait64(session.words.pointer() + 256, 1).submit().ok());
  ASSERT_TRUE(session.put(1, 0, 64).ok());
  for (int i = 0; i < 100; ++i) std::this_thread::yield();
  EXPECT_EQ(session.adapter.done(), 0u);
  test::set_device_bytes(session.words.pointer() + 256, std::vector<unsigned char>{1, 0, 0, 0, 0, 0, 0, 0});
  ASSERT_EQ(cuda().cuStreamSynchronize(session.stream), 0);
  while (session.adapter.done() != 2) std::this_thread::yield();
  EXPECT_EQ(session.word(0), 1u);
}

TEST(mlx5_executor, a_full_ring_answers_eagain_and_takes_nothing) {
  executor_fixture session;
  session.adapter.may_work = false;
  for (std::uint64_t i = 1; i <= kBlocks / 2; ++i) ASSERT_TRUE(session.put(i, 0, 8).ok());
  EXPECT_EQ(session.put(kBlocks / 2 + 1, 0, 8).code(), EAGAIN);
  EXPECT_EQ(session.unit->acknowledge(session.stream, 1).code(), EAGAIN);
  session.adapter.may_work = true;
  while (session.adapter.done() != kBlocks) std::this_thread::yield();
  EXPECT_EQ(session.word(0), kBlocks / 2);
  // Half of a put that did not fit was taken back.
  ASSERT_TRUE(session.unit->acknowledge(session.stream, 5).ok());
  while (session.adapter.done() != kBlocks + 1) std::this_thread::yield();
  EXPECT_EQ(session.word(64), 5u);
  EXPECT_EQ(session.adapter.reason(), "");
}

TEST(mlx5_executor, a_put_waits_for_the_release_that_it_needs) {
  executor_fixture session;
  ASSERT_TRUE(session.put(1, 0, 8, 1).ok());
  EXPECT_EQ(session.adapter.done(), 0u);
  test::set_device_bytes(session.words.pointer() + 128, std::vector<unsigned char>{1, 0, 0, 0, 0, 0, 0, 0});
  while (session.adapter.done() != 2) std::this_thread::yield();
}

TEST(mlx5_executor, memory_without_a_key_and_writes_too_large_are_refused) {
  executor_fixture session;
  mlx5_queue queue({session.page.ring, kBlocks, &session.page.record, &session.page.doorbell, kNumber});
  EXPECT_EQ(queue.write({0, 1}, 0, {0, 1}).code(), EINVAL);
  EXPECT_EQ(queue.write({0, 1}, mlx5_queue::kMaxBytes + 1, {0, 1}).code(), EINVAL);
  EXPECT_EQ(queue.written(), 0u);
}

}  // namespace
}  // namespace pl::triggered
