// SPDX-License-Identifier: Apache-2.0
// Many values of device memory by one call, which the server moves by one list of copies a frame: each item's outcome, what
// goes another way, what is refused, and broken connections.
#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include "arch/crc32c.hpp"
#include "store/protocol/batch.hpp"
#include "test/store/server/gpu_direct_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::batch_entry;
using store_client::reply;
using store_protocol::batch_item;
using store_protocol::batch_memory;
using store_protocol::condition;

// With one thread that sums, the connection's thread begins and commits; with several, they do (session::beside()).
class store_gpu_direct_batch : public store_gpu_direct, public testing::WithParamInterface<unsigned> {
 protected:
  store_gpu_direct_batch() { rig_.config.checksum_threads = GetParam(); }
  // Entries of `count` values of that many bytes each, one behind the other from `pointer` on.
  std::vector<batch_entry> entries(std::size_t count, std::uint64_t pointer, std::size_t bytes,
                                   const std::string& prefix = "k") {
    std::vector<batch_entry> out(count);
    for (std::size_t i = 0; i < count; ++i) {
      keys_.push_back(prefix + std::to_string(i));
      out[i].key = keys_.back();
      out[i].level = durability::volatile_;
      out[i].buffer = device(pointer + i * bytes, bytes);
    }
    return out;
  }
  void expect_all(const std::vector<reply>& answers, path way, std::size_t bytes) {
    for (const reply& one : answers) {
      ASSERT_EQ(one.status, 0) << one.text;
      ASSERT_EQ(one.result.way, way);
      ASSERT_EQ(one.moved_bytes, bytes);
      ASSERT_EQ(one.result.value_bytes, bytes);
    }
  }
  std::vector<reply> put_all(std::span<const batch_entry> list) { return store_->run_batch(opcode::batch_put, pool_, list); }
  std::vector<reply> get_all(std::span<const batch_entry> list) { return store_->run_batch(opcode::batch_get, pool_, list); }
  std::deque<std::string> keys_;  // what entries name
  bytes_t host_room_ = bytes_t(8192);
};

INSTANTIATE_TEST_SUITE_P(checksum_threads, store_gpu_direct_batch, testing::Values(1u, 5u),
                         testing::PrintToStringParamName());

TEST_P(store_gpu_direct_batch, EverySizeComesBack) {
  rig_.config.arena_bytes = 256u << 20;
  start_and_open();
  const auto before = rig_.server().engine().stats().puts;
  for (const std::size_t bytes : {1u, 64u, 2047u, 4096u, 17'000u, 262'145u, 1u << 20}) {
    const std::size_t count = bytes < 65'536 ? 1500 : 40;
    const test::device_buffer source(count * bytes), destination(count * bytes);
    const auto values = test::random_bytes(count * bytes, bytes);
    test::set_device_bytes(source.pointer(), values);
    expect_all(put_all(entries(count, source.pointer(), bytes)), path::gpu_direct, bytes);
    expect_all(get_all(entries(count, destination.pointer(), bytes)), path::gpu_direct, bytes);
    EXPECT_EQ(test::device_bytes(destination.pointer(), count * bytes), values) << bytes;
    for (const std::size_t i :
         {std::size_t{0}, count / 2, count - 1}) {  // as the CPU sees them, checksums held against them
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(i * bytes);
      bytes_t room(bytes);
      store_client::get_request verified;
      verified.verify = true;
      const auto got = store_->run(store_->make_get(pool_, "k" + std::to_string(i), memory_of(room), verified));
      ASSERT_EQ(got.status, 0) << got.text;
      EXPECT_TRUE(std::equal(room.begin(), room.end(), first)) << bytes << ", value " << i;
    }
    for (const auto& one : store_->run_batch(opcode::batch_erase, pool_, entries(count, source.pointer(), bytes)))
      ASSERT_EQ(one.status, 0) << one.text;
  }
  EXPECT_EQ(rig_.server().engine().stats().puts, before + 5 * 1500 + 2 * 40);
  EXPECT_EQ(rig_.server().engine().stats().grants + rig_.server().engine().stats().pins, 0u);
}

TEST_P(store_gpu_direct_batch, EachItemHasItsOutcome) {
  start_and_open();
  constexpr std::size_t kBytes = 8192, kCount = 600;
  const test::device_buffer source(kCount * kBytes), destination(kCount * kBytes);
  const auto values = test::random_bytes(kCount * kBytes, 3);
  test::set_device_bytes(source.pointer(), values);
  test::set_device_bytes(destination.pointer(), bytes_t(kCount * kBytes, 0xcc));
  ASSERT_EQ(put(*store_, pool_, "k7", random_value(100, 1)).status, 0);
  auto puts = entries(kCount, source.pointer(), kBytes);
  puts[7].only = store_protocol::precondition{condition::if_absent, 0};
  puts[8].only = store_protocol::precondition{condition::if_absent, 0};
  puts[9].key = "";
  puts[10].level = durability::durable;
  puts[11].user_flags = 77;
  puts[12].key = puts[11].key;  // the later one is what stays
  const auto put_answers = put_all(puts);
  for (std::size_t i = 0; i < kCount; ++i)
    ASSERT_EQ(put_answers[i].status, i == 7 ? EEXIST : i == 9 ? EINVAL : 0) << i << put_answers[i].text;
  EXPECT_EQ(put_answers[10].result.reached, durability::durable);
  EXPECT_EQ(put_answers[11].result.reached, durability::volatile_);

  auto gets = entries(kCount, destination.pointer(), kBytes);
  gets[9].key = "none";
  gets[20].buffer.bytes = 100;  // less than the value
  gets[21].buffer = memory_of(host_room_);
  const auto got = get_all(gets);
  auto expected = values;
  const auto keep = [&](std::size_t i, std::size_t first, std::size_t end) {
    std::fill(expected.begin() + static_cast<std::ptrdiff_t>(i * kBytes + first),
              expected.begin() + static_cast<std::ptrdiff_t>(i * kBytes + end), 0xcc);
  };
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(got[i].status, i == 9 || i == 12 ? ENOENT : 0) << i << got[i].text;
  EXPECT_EQ(got[7].result.value_bytes, 100u);
  EXPECT_EQ(got[7].moved_bytes, 100u);
  const auto old = random_value(100, 1);
  std::copy(old.begin(), old.end(), expected.begin() + 7 * kBytes);
  keep(7, 100, kBytes);
  keep(9, 0, kBytes);
  keep(12, 0, kBytes);
  std::copy_n(values.begin() + 12 * kBytes, kBytes, expected.begin() + 11 * kBytes);
  EXPECT_EQ(got[20].moved_bytes, 100u);
  EXPECT_EQ(got[20].result.value_bytes, kBytes);
  keep(20, 100, kBytes);
  keep(21, 0, kBytes);
  EXPECT_TRUE(std::equal(host_room_.begin(), host_room_.end(), values.begin() + 21 * kBytes))
      << "host memory in the same call";
  EXPECT_EQ(test::device_bytes(destination.pointer(), kCount * kBytes), expected);
  EXPECT_EQ(got[8].result.way, path::gpu_direct);
}

TEST_P(store_gpu_direct_batch, BuffersOfSeveralAllocationsGoTogether) {
  start_and_open(path::gpu_direct);
  constexpr std::size_t kBytes = 4u << 20, kItem = 32u << 10;
  const test::device_buffer one(kBytes), two(kBytes), three(kBytes);
  const test::device_buffer* const buffers[] = {&one, &two, &three};
  std::vector<batch_entry> list;
  for (std::size_t i = 0; i < 3 * kBytes / kItem; ++i) {  // in turns
    keys_.push_back("k" + std::to_string(i));
    list.emplace_back().key = keys_.back();
    list.back().level = durability::volatile_;
    list.back().buffer = device(buffers[i % 3]->pointer() + i / 3 * kItem, kItem);
  }
  for (unsigned i = 0; i < 3; ++i) test::set_device_bytes(buffers[i]->pointer(), test::random_bytes(kBytes, i));
  expect_all(put_all(list), path::gpu_direct, kItem);
  for (const auto* buffer : buffers) test::set_device_bytes(buffer->pointer(), bytes_t(kBytes, 0));
  expect_all(get_all(list), path::gpu_direct, kItem);
  for (unsigned i = 0; i < 3; ++i)
    EXPECT_EQ(test::device_bytes(buffers[i]->pointer(), kBytes), test::random_bytes(kBytes, i));
}

// Values that memory does not hold come by themselves, and puts wait for room.
TEST_P(store_gpu_direct_batch, MoreThanTheMemoryTier) {
  rig_.config.arena_bytes = 32u << 20;
  start_and_open();
  constexpr std::size_t kBytes = 256u << 10, kCount = 256;
  const test::device_buffer source(kCount * kBytes), destination(kCount * kBytes);
  const auto values = test::random_bytes(kCount * kBytes, 3);
  test::set_device_bytes(source.pointer(), values);
  auto list = entries(kCount, source.pointer(), kBytes);
  for (auto& one : list) one.level = durability::durable;
  for (const reply& one : put_all(list)) ASSERT_EQ(one.status, 0) << one.text;
  for (std::size_t i = 0; i < kCount; ++i) list[i].buffer = device(destination.pointer() + i * kBytes, kBytes);
  for (const reply& one : get_all(list)) ASSERT_EQ(one.status, 0) << one.text;
  EXPECT_EQ(test::device_bytes(destination.pointer(), kCount * kBytes), values);
}

TEST_P(store_gpu_direct_batch, PoolsOfTheServersOwnMemoryGoByTheSocket) {
  start_and_open();
  constexpr std::size_t kBytes = 8192, kCount = 300;
  const test::device_buffer source(kCount * kBytes), destination(kCount * kBytes);
  const auto values = test::random_bytes(kCount * kBytes, 4);
  test::set_device_bytes(source.pointer(), values);
  store_protocol::pool_settings apart;
  apart.allow_shm = false;
  pool_ = make_pool(*store_, "apart", apart);
  expect_all(put_all(entries(kCount, source.pointer(), kBytes)), path::unix_socket, kBytes);
  expect_all(get_all(entries(kCount, destination.pointer(), kBytes)), path::unix_socket, kBytes);
  EXPECT_EQ(test::device_bytes(destination.pointer(), kCount * kBytes), values);
}

TEST_P(store_gpu_direct_batch, LimitsSendItemsAnotherWay) {
  rig_.config.max_request_bytes = 1u << 20;
  start_and_open();
  constexpr std::size_t kBytes = 16u << 10, kCount = 256;  // a frame is 4 MiB
  const test::device_buffer buffer(kCount * kBytes), other(kCount * kBytes);
  const auto values = test::random_bytes(kCount * kBytes, 4);
  test::set_device_bytes(buffer.pointer(), values);
  for (const reply& one : put_all(entries(kCount, buffer.pointer(), kBytes))) ASSERT_EQ(one.status, 0) << one.text;
  for (const reply& one : get_all(entries(kCount, other.pointer(), kBytes))) ASSERT_EQ(one.status, 0) << one.text;
  EXPECT_EQ(test::device_bytes(other.pointer(), kCount * kBytes), values);
}

// A put of a frame that was sent, and perhaps done, is not done again under another number: "if absent" would find itself.
TEST_P(store_gpu_direct_batch, ABrokenConnectionRepeatsNothing) {
  rig_.config.arena_bytes = 256u << 20;
  start_and_open();
  constexpr std::size_t kBytes = 16u << 10, kCount = 1000;
  const test::device_buffer source(kCount * kBytes), destination(kCount * kBytes);
  for (unsigned round = 0; round < 8; ++round) {
    const auto values = test::random_bytes(kCount * kBytes, round);
    test::set_device_bytes(source.pointer(), values);
    auto puts = entries(kCount, source.pointer(), kBytes, "r" + std::to_string(round) + "/");
    for (auto& one : puts) one.only = store_protocol::precondition{condition::if_absent, 0};
    std::atomic<bool> is_over{false};
    std::thread breaker([&] {
      for (unsigned i = 0; i < 3 && !is_over; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1 + round));
        store_->break_connection();
      }
    });
    const auto done = put_all(puts);
    is_over = true;
    breaker.join();
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(done[i].status, 0) << i << done[i].text;
    for (const reply& one : get_all(entries(kCount, destination.pointer(), kBytes, "r" + std::to_string(round) + "/")))
      ASSERT_EQ(one.status, 0) << one.text;
    ASSERT_EQ(test::device_bytes(destination.pointer(), kCount * kBytes), values);
  }
  EXPECT_GE(store_->reconnects(), 8u);
  EXPECT_TRUE(soon([&] {
    const auto now = rig_.server().engine().stats();
    return now.grants + now.pins == 0;
  }));
}

TEST_P(store_gpu_direct_batch, AnEarlierServerGetsThemOneByOne) {
  start_and_open();
  EXPECT_NE(store_->server_capabilities() & store_protocol::capability::device_batches, 0u);
  auto refusing = options();
  refusing.gpu_direct = false;
  store_ = store_rig::open(refusing);
  pool_ = *store_->open_pool("p");
  constexpr std::size_t kBytes = 8192, kCount = 100;
  const test::device_buffer source(kCount * kBytes);
  for (const reply& one : put_all(entries(kCount, source.pointer(), kBytes))) {
    ASSERT_EQ(one.status, 0) << one.text;
    EXPECT_NE(one.result.way, path::gpu_direct);
  }
}

// ---- By hand

class store_gpu_direct_batch_raw : public store_gpu_direct_raw {
 protected:
  int ask_batch(opcode op, const std::vector<batch_item>& items, const std::optional<device_part>& part,
                std::uint16_t more_flags = 0, std::uint64_t value_bytes = 0, bool has_offsets = true) {
    auto header = make_head(op, value_bytes, more_flags);
    std::string body;
    for (const batch_item& one : items) append(body, one, has_offsets ? batch_memory::device : batch_memory::host);
    header.body_bytes = static_cast<std::uint32_t>(body.size());
    header.body_crc = arch::crc32c(body.data(), body.size());
    store_protocol::tail fields;
    fields.device = part;
    std::string bytes;
    EXPECT_TRUE(store_protocol::encode(header, "", fields, bytes));
    peer_->send(bytes + body);
    const auto got = peer_->answer();
    return got ? got->status : -1;
  }
  device_part part_of(std::uint32_t memory, std::uint64_t offset = 0) {
    auto out = *link_->take_slot();
    out.memory = memory;
    out.offset = offset;
    return out;
  }
  static batch_item item(std::string_view key, std::uint64_t offset, std::uint64_t bytes) {
    batch_item out;
    out.key = key;
    out.offset = offset;
    out.room = bytes;
    return out;
  }
};

TEST_F(store_gpu_direct_batch_raw, MemoryAndBoundsAreChecked) {
  const auto number = link_->import(region());
  ASSERT_TRUE(number) << number.error().message;
  const std::uint64_t size = buffer_.bytes(), bytes = 32 << 10;
  for (const auto op : {opcode::batch_put, opcode::batch_get}) {
    const std::string_view key = op == opcode::batch_put ? "new" : "value";
    EXPECT_EQ(ask_batch(op, {item(key, 0, bytes)}, device_part{1 + *number, 0, 1, 0}), ENOTSUP) << "no such memory";
    EXPECT_EQ(ask_batch(op, {item(key, 0, bytes)}, std::nullopt), EPROTO);
    EXPECT_EQ(ask_batch(op, {}, part_of(*number)), EINVAL);
    EXPECT_EQ(ask_batch(op, {item(key, size - bytes + 1, bytes)}, part_of(*number)), EINVAL);
    EXPECT_EQ(ask_batch(op, {item(key, size - bytes, bytes)}, part_of(*number, 1)), EINVAL) << "both offsets count";
    EXPECT_EQ(ask_batch(op, {item(key, UINT64_MAX - 4095, bytes)}, part_of(*number)), EINVAL);
    EXPECT_EQ(ask_batch(op, {item(key, 4096, UINT64_MAX - 4095)}, part_of(*number)), EINVAL);
    EXPECT_EQ(ask_batch(op, {item(key, 0, bytes)}, part_of(*number, size + 1)), EINVAL);
    EXPECT_EQ(ask_batch(op, {item(key, 0, bytes), item(key, size, 1)}, part_of(*number)), EINVAL) << "all or none";
    EXPECT_EQ(ask_batch(op, {item(key, 0, bytes)}, part_of(*number), 0, bytes), EPROTO);
    EXPECT_EQ(ask_batch(op, {item(key, 0, bytes)}, part_of(*number), 0, 0, false), EPROTO) << "cut off";
    auto slotless = part_of(*number);
    slotless.slot = store_protocol::kDeviceSlots;
    EXPECT_EQ(ask_batch(op, {item(key, 0, bytes)}, slotless), EINVAL);
  }
  const std::vector<batch_item> many(store_protocol::kMaxBatchChanges + 1, item("new", 0, 16));
  EXPECT_EQ(ask_batch(opcode::batch_put, many, part_of(*number)), EMSGSIZE);
  EXPECT_EQ(ask_batch(opcode::batch_put, {item("new", 0, bytes)}, part_of(*number), store_protocol::flag::atomic), EPROTO);
  EXPECT_EQ(ask_batch(opcode::batch_erase, {item("value", 0, 0)}, part_of(*number)), EPROTO);
  auto with_bytes = item("new", 0, 16);
  with_bytes.value = "bytes of host memory";
  EXPECT_EQ(ask_batch(opcode::batch_put, {with_bytes}, part_of(*number)), EPROTO);
  EXPECT_FALSE(is_there("new"));
  EXPECT_TRUE(is_there("value"));
  EXPECT_EQ(ask_batch(opcode::batch_put, {item("new", size - bytes, bytes)}, part_of(*number)), 0);
  EXPECT_EQ(ask_batch(opcode::batch_get, {item("new", size - bytes, bytes)}, part_of(*number)), 0);
  EXPECT_TRUE(is_there("new"));
}

TEST_F(store_gpu_direct_batch_raw, MemoryThatWasTakenBackIsNotTouched) {
  const auto number = link_->import(region());
  ASSERT_TRUE(number);
  test::set_device_bytes(buffer_.pointer(), bytes_t(buffer_.bytes(), 0xcc));
  for (const auto op : {opcode::batch_put, opcode::batch_get}) {
    const auto part = part_of(*number);
    ASSERT_TRUE(link_->settle(part)) << "the server does not know of it yet";
    EXPECT_EQ(ask_batch(op, {item(op == opcode::batch_put ? "late" : "value", 0, 4096)}, part), ECANCELED);
  }
  EXPECT_FALSE(is_there("late"));
  EXPECT_EQ(test::device_bytes(buffer_.pointer(), buffer_.bytes()), bytes_t(buffer_.bytes(), 0xcc));
  const auto now = rig_.server().engine().stats();
  EXPECT_EQ(now.grants + now.pins, 0u);
}

class store_gpu_direct_batch_share : public store_gpu_direct_batch_raw {
 protected:
  store_gpu_direct_batch_share() { rig_.config.max_principal_memory_percent = 20; }
  std::uint64_t share() { return rig_.server().engine().arena().size_bytes / 5; }
};

// A pin is of the whole value: items that ask for a byte each hold no more of the memory tier together than their principal
// may.
TEST_F(store_gpu_direct_batch_share, ItemsWithLittleRoomHoldWhatTheyPin) {
  const auto number = link_->import(region());
  ASSERT_TRUE(number);
  constexpr std::size_t kCount = 24;
  std::vector<std::string> keys;
  std::vector<batch_item> items;
  for (std::size_t i = 0; i < kCount; ++i) keys.push_back("long" + std::to_string(i));
  const auto value = random_value(1u << 20, 1);
  for (const std::string& key : keys) {
    ASSERT_EQ(put(*store_, pool_, key, value).status, 0);
    items.push_back(item(key, 0, 1));
  }
  ASSERT_LT(share(), kCount * value.size());
  ASSERT_EQ(ask_batch(opcode::batch_get, items, part_of(*number)), 0);
  const auto outcomes = store_protocol::decode_outcomes(peer_->body());
  ASSERT_TRUE(outcomes && outcomes->size() == kCount);
  const auto pinned = std::count_if(outcomes->begin(), outcomes->end(), [](const auto& one) { return one.status == 0; });
  EXPECT_LE(static_cast<std::uint64_t>(pinned) * value.size(), share());
  EXPECT_GT(pinned, 0);
  for (const auto& one : *outcomes)
    EXPECT_TRUE(one.status == 0 || one.status == ENOSPC || one.status == EMSGSIZE) << one.status;
  EXPECT_EQ(rig_.server().engine().stats().pins, 0u);
  EXPECT_EQ(ask_batch(opcode::batch_get, items, part_of(*number)), 0) << "and they are let go again";
}

TEST_F(store_gpu_direct_batch_share, AFrameHoldsNoMoreThanItsPrincipalMay) {
  const auto number = link_->import(region());
  ASSERT_TRUE(number);
  std::vector<batch_item> items;  // all of the same bytes
  for (std::uint64_t bytes = 0; bytes <= share(); bytes += buffer_.bytes()) items.push_back(item("new", 0, buffer_.bytes()));
  for (const auto op : {opcode::batch_put, opcode::batch_get})
    EXPECT_EQ(ask_batch(op, items, part_of(*number)), ENOTSUP) << "nothing else is held";
  EXPECT_FALSE(is_there("new"));
}

TEST_F(store_gpu_direct_batch_raw, APoolThatIsKeptApartIsNotReached) {
  const auto number = link_->import(region());
  ASSERT_TRUE(number);
  store_protocol::pool_settings apart;
  apart.allow_shm = false;
  const auto own = make_pool(*store_, "apart", apart);
  store_protocol::head open;
  open.op = opcode::pool_open;
  open.request_id = ++last_request_;
  peer_->ask(open, "apart");
  ASSERT_EQ(peer_->answer()->status, 0);
  pool_ = own;
  for (const auto op : {opcode::batch_put, opcode::batch_get})
    EXPECT_EQ(ask_batch(op, {item("k", 0, 4096)}, part_of(*number)), ENOTSUP) << "not in memory that is shared";
}

}  // namespace
}  // namespace pl::store_test
