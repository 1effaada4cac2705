// SPDX-License-Identifier: Apache-2.0
// What dma::channel never does, and the interpreter must still do as the hardware: commands that change after the doorbell,
// malformed ones, and the record of a fault.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "dma/address_space.hpp"
#include "dma/commands.hpp"
#include "test/dma/fake_engine.hpp"

namespace {

using namespace pl;
using dma::command_writer;
using test::fake_engine;

constexpr std::uint64_t kMemoryBytes = 2u << 20, kUserWords = 0x10000, kCommands = 0x20000, kStep = 0x1000;
constexpr std::uint32_t kEntries = 64;
constexpr std::size_t kHostBytes = 1u << 20;

struct error_record {  // the driver's NvNotification
  std::uint64_t time_ns;
  std::uint32_t info;
  std::uint16_t info16, status;
};
static_assert(sizeof(error_record) == 16);

// A channel whose ring the test writes by itself. The host memory's first bytes are its error notifier.
struct raw_channel {
  explicit raw_channel(fake_engine& engine) {
    client = std::move(*rm::client::open(engine));
    gpu = *client->find_gpu({0, 6, 0});
    space = *dma::address_space::open(*client, *gpu, "580.159.04");
    host = static_cast<std::byte*>(mmap(nullptr, kHostBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    auto& objects = space->objects();
    host_memory = *objects.make_host_memory(host, kHostBytes);
    const auto range = *objects.make_virtual_memory(space->handle());
    host_address = *objects.map_dma(range, host_memory, 0, kHostBytes, rm::channel_objects::memory_kind::host);
    ring = std::move(*space->make_device_memory(kMemoryBytes));
    view = *client->map(*gpu, ring.memory, 0, kMemoryBytes, nullptr);
    doorbell = *space->map_doorbell();
    rm::channel_objects::channel_request request;
    request.address_space = space->handle();
    request.engine = 2;
    request.ring_address = ring.bound.address();
    request.ring_entries = kEntries;
    request.user_words_memory = ring.memory;
    request.user_words_offset = kUserWords;
    engine.set_error_object(host_memory);
    handles = *objects.make_channel(request);
  }
  ~raw_channel() {
    space->objects().release(handles.group);
    client->unmap(doorbell, rm::unmap_policy::hole);
    client->unmap(view, rm::unmap_policy::hole);
    munmap(host, kHostBytes);
  }

  std::uint32_t* commands(std::uint32_t slot) const { return word_at(kCommands + slot * kStep); }
  std::uint32_t* word_at(std::uint64_t offset) const {
    return reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(view.address) + offset);
  }
  std::uint32_t* host_word(std::size_t offset) const { return reinterpret_cast<std::uint32_t*>(host + offset); }
  const error_record& error() const { return *reinterpret_cast<const error_record*>(host); }
  // Queues the commands of a slot and rings.
  void submit(std::uint32_t slot, std::size_t words, bool is_fenced = false) {
    const std::uint64_t entry =
        dma::ring_entry(ring.bound.address() + kCommands + slot * kStep, static_cast<std::uint32_t>(words), is_fenced);
    std::memcpy(static_cast<std::byte*>(view.address) + put * 8, &entry, sizeof entry);
    put = (put + 1) % kEntries;
    __atomic_store_n(word_at(kUserWords + rm::kPutOffset), put, __ATOMIC_RELEASE);
    __atomic_store_n(static_cast<std::uint32_t*>(doorbell.address) + rm::kDoorbellOffset / 4, handles.token,
                     __ATOMIC_RELEASE);
  }
  template <class Build>
  std::size_t write(std::uint32_t slot, Build build) {
    command_writer writer({commands(slot), kStep / 4});
    build(writer);
    return writer.words();
  }
  // Writes `value` to the host's word at `offset` when it is executed.
  std::size_t write_release(std::uint32_t slot, std::size_t offset, std::uint32_t value) {
    return write(slot, [&](command_writer& out) {
      out.completion(host_address + offset, value);
      out.launch(dma::launch::kReleaseWord);
    });
  }
  std::size_t write_acquire(std::uint32_t slot, std::size_t offset, std::uint32_t value) {
    return write(slot, [&](command_writer& out) { out.acquire(host_address + offset, value); });
  }

  std::unique_ptr<rm::client> client;
  const rm::gpu* gpu = nullptr;
  std::shared_ptr<dma::address_space> space;
  std::byte* host = nullptr;
  rm::handle host_memory = 0;
  std::uint64_t host_address = 0;
  dma::address_space::own_memory ring;
  rm::cpu_mapping view, doorbell;
  rm::channel_objects::channel_handles handles;
  std::uint32_t put = 0;
};

template <class Condition>
bool comes_true(Condition condition) {
  for (int i = 0; i < 10'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void let_it_fetch() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

// Commands behind a semaphore change before it opens.
std::uint32_t executed_after_change(bool is_fenced) {
  fake_engine engine;
  raw_channel channel(engine);
  const std::size_t gate = channel.write_acquire(0, 64, 1);
  const std::size_t words = channel.write_release(1, 128, 0x0);
  channel.submit(0, gate);
  channel.submit(1, words, is_fenced);
  let_it_fetch();
  channel.write_release(1, 128, 0x2);
  const std::size_t last = channel.write_release(2, 192, 0x3);
  channel.submit(2, last);
  __atomic_store_n(channel.host_word(64), 1, __ATOMIC_RELEASE);
  EXPECT_TRUE(comes_true([&] { return __atomic_load_n(channel.host_word(192), __ATOMIC_ACQUIRE) == 3; }));
  EXPECT_EQ(engine.protocol_errors(), 0);
  return *channel.host_word(128);
}

TEST(raw_channel, WithoutSyncStaleCommandsAreExecuted) {
  // Where the engine's thread gets no CPU for the time that it is given, it fetches late and sees the change.
  std::uint32_t executed = 2;
  for (int i = 0; i < 100 && executed == 2; ++i) executed = executed_after_change(false);
  EXPECT_EQ(executed, 0u);
}
TEST(raw_channel, WithSyncCommandsAreFetchedWhenAllBeforeIsDone) { EXPECT_EQ(executed_after_change(true), 2u); }

TEST(raw_channel, AFaultIsRecordedInTheErrorNotifier) {
  fake_engine engine;
  raw_channel channel(engine);
  const std::size_t words = channel.write(0, [&](command_writer& out) {
    out.copy(channel.host_address + 4096, 0x7f00'0000'0000, 64, dma::launch::kNotPipelined);
    out.completion(channel.host_address + 128, 1);
    out.launch(dma::launch::kReleaseWord);
  });
  EXPECT_EQ(channel.error().status, 0);
  channel.submit(0, words);
  ASSERT_TRUE(comes_true([&] { return __atomic_load_n(&channel.error().status, __ATOMIC_ACQUIRE) != 0; }));
  EXPECT_EQ(channel.error().status, 0xffff);
  EXPECT_EQ(channel.error().info, 31u);  // MMU fault
  EXPECT_NE(channel.error().time_ns, 0u);
  EXPECT_EQ(*channel.host_word(128), 0u);
}

// Each of these ends the channel: the interpreter does not guess.
TEST(raw_channel, MalformedCommandsEndIt) {
  const std::vector<std::vector<std::uint32_t>> kMalformed = {
      {7u << 29 | 1u << 16},                                                               // no packet
      {dma::method_header(dma::method::kCopySubchannel, dma::method::kSourceHigh, 2), 0},  // values are missing
      {dma::method_header(dma::method::kCopySubchannel, 0x7f0, 1), 0},                     // no such method
      {dma::method_header(3, dma::method::kLaunch, 1), 0},                                 // no such subchannel
      {dma::method_header(dma::method::kCopySubchannel, dma::method::kSetObject, 1), 0xa0b5},
      {dma::immediate(dma::method::kCopySubchannel, dma::method::kLaunch, 3)},  // no such transfer
      {dma::immediate(dma::method::kCopySubchannel, dma::method::kLaunch, 1)},  // block-linear
  };
  for (const auto& words : kMalformed) {
    SCOPED_TRACE(words[0]);
    fake_engine engine;
    raw_channel channel(engine);
    std::memcpy(channel.commands(0), words.data(), words.size() * 4);
    channel.submit(0, words.size());
    ASSERT_TRUE(comes_true([&] { return __atomic_load_n(&channel.error().status, __ATOMIC_ACQUIRE) != 0; }));
    EXPECT_EQ(channel.error().info, 32u);
  }
}

// A pipelined copy reads before the copy in front of it has written.
TEST(raw_channel, APipelinedCopyReadsOldBytes) {
  for (const bool is_pipelined : {true, false}) {
    fake_engine engine;
    raw_channel channel(engine);
    const std::uint64_t base = channel.host_address;
    std::memset(channel.host + 4096, 1, 64);
    const std::size_t words = channel.write(0, [&](command_writer& out) {
      out.copy(base + 8192, base + 4096, 64, dma::launch::kNotPipelined);
      out.copy(base + 12288, base + 8192, 64, is_pipelined ? dma::launch::kPipelined : dma::launch::kNotPipelined);
      out.completion(base + 128, 1);
      out.launch(dma::launch::kReleaseWord);
    });
    channel.submit(0, words);
    ASSERT_TRUE(comes_true([&] { return __atomic_load_n(channel.host_word(128), __ATOMIC_ACQUIRE) == 1; }));
    EXPECT_EQ(std::to_integer<int>(channel.host[8192]), 1);
    EXPECT_EQ(std::to_integer<int>(channel.host[12288]), is_pipelined ? 0 : 1);
  }
}

// A completion word may come before the bytes it tells of, unless a flush stands before it.
TEST(raw_channel, AWordOvertakesBytesThatAreNotFlushed) {
  for (const std::uint32_t flush : {0u, dma::launch::kFlush}) {
    fake_engine::options options;
    options.seed = 3;
    fake_engine engine(options);
    raw_channel channel(engine);
    const std::uint64_t base = channel.host_address;
    unsigned late = 0;
    // A reader that the scheduler takes away misses the moment: it looks until it has seen one.
    for (std::uint32_t round = 1; round <= 300 || (flush == 0 && late == 0 && round < 100'000); ++round) {
      std::memset(channel.host + 4096, static_cast<int>(round & 0xff), 64);
      const std::size_t words = channel.write(0, [&](command_writer& out) {
        out.completion(base + 128, round);
        out.copy(base + 8192, base + 4096, 64, dma::launch::kNotPipelined | dma::launch::kReleaseWord | flush);
      });
      channel.submit(0, words);
      while (__atomic_load_n(channel.host_word(128), __ATOMIC_ACQUIRE) != round) {}
      const auto* const arrived = reinterpret_cast<const volatile std::uint8_t*>(channel.host + 8192);
      late += *arrived != (round & 0xff) ? 1 : 0;
      ASSERT_TRUE(comes_true([&] { return *arrived == (round & 0xff); }));
    }
    EXPECT_EQ(late > 0, flush == 0) << late;
  }
}

// Host pages that are gone are a fault and no crash.
TEST(raw_channel, UnmappedHostMemoryIsAFault) {
  fake_engine engine;
  raw_channel channel(engine);
  munmap(channel.host + 0x80000, 4096);
  const std::size_t words = channel.write(0, [&](command_writer& out) {
    out.copy(channel.host_address + 4096, channel.host_address + 0x80000, 64, dma::launch::kNotPipelined);
    out.launch(dma::launch::kFlush);
  });
  channel.submit(0, words);
  ASSERT_TRUE(comes_true([&] { return __atomic_load_n(&channel.error().status, __ATOMIC_ACQUIRE) != 0; }));
  EXPECT_EQ(channel.error().info, 31u);
}

TEST(raw_channel, TheEngineEndsWithItsLastChannel) {
  fake_engine engine;
  EXPECT_FALSE(engine.is_engine_running());
  for (int round = 0; round < 3; ++round) {
    {
      raw_channel channel(engine);
      EXPECT_TRUE(engine.is_engine_running());
    }
    EXPECT_TRUE(comes_true([&] { return !engine.is_engine_running(); }));
  }
}

}  // namespace
