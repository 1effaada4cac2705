// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/wire.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace pl::store_protocol {
namespace {

using namespace std::string_literals;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
result<head> head_of(const std::string& text) { return decode_head(bytes_of(text).first<kHeadBytes>()); }

// Every field once, in tails of their own and all together.
std::vector<std::pair<const char*, tail>> tails() {
  std::vector<std::pair<const char*, tail>> out(1, {"nothing", {}});
  const auto add = [&](const char* name) -> tail& { return out.emplace_back(name, tail{}).second; };
  add("sequence").request_number = {0x1122334455667788, 7};
  add("condition").only = {condition::if_version, 99};
  add("durability").level = durability::durable;
  add("outcome").result = {17, 0xabcdef01, true, path::shm_direct, durability::logged, 12345, 9, 1ull << 36, -5, true, 3};
  add("text").text = "E: what, why, what next";
  add("empty text").text = "";
  add("token").token = 0;
  add("extents").extents = {{4096, 10}, {1ull << 40, 1}};
  add("unpin").unpin = {1, 2, 3};
  add("crc").crc = 0;
  add("user flags").user_flags = 0xffffffff;
  add("settings").settings = {1ull << 33, 5, durability::volatile_, true, false, "uid:0=rwa", 2};
  add("hello").handshake = {1, 3, capability::shm, 42, 43, "peerlane 0.1.0"};
  add("find").prefix = "a\0b"s;
  add("regex").regex = ".*";
  add("after").after = "last";
  add("arena").memory = {1ull << 34, 1ull << 30, true};
  add("epoch").epoch = 1ull << 40;
  add("copy").copy = {7, 1ull << 63, 1ull << 44, 3};
  add("lane").ucx = {1, 13, {1ull << 63, 5}, true, "a\0dress"s, "rc_verbs/mlx5_0:1,tcp/eth0"};
  add("lane name").ucx_transports = "rc_verbs/mlx5_0:1";
  add("owner").owner = "uid:1000";
  add("listed").listed = std::string(32, '\x81');
  add("cache").cache = {1ull << 33, 5, 3'600'000, 1};
  add("is a cache").cache_is = {1, 2, 3, 0};
  add("statistics").statistics = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1ull << 63};
  add("time to live").ttl_ms = 1ull << 40;
  add("device part").device = device_part{3, 1023, 1ull << 60, 1ull << 39};
  tail& all = add("all");
  all.request_number = {1, 2};
  all.only = {condition::if_absent, 0};
  all.level = durability::logged;
  all.result = outcome{};
  all.text = "t";
  all.extents = {{0, 1}};
  all.unpin = {8};
  all.handshake = hello{};
  all.memory = arena{};
  return out;
}

TEST(store_protocol, EveryFieldComesBackAsItWas) {
  for (const auto& [name, fields] : tails()) {
    head sent{opcode::put, flag::streamed, 7, 8, 0, 0, 1ull << 35, 3, 5, 6, 1000, -0, 77};
    std::string frame;
    ASSERT_TRUE(encode(sent, "key", fields, frame)) << name;
    const auto got = head_of(frame);
    ASSERT_TRUE(got) << name << ": " << got.error().message;
    sent.key_bytes = got->key_bytes, sent.tail_bytes = got->tail_bytes;
    EXPECT_EQ(*got, sent) << name;
    ASSERT_EQ(frame.size(), kHeadBytes + 3 + got->tail_bytes) << name;
    const auto rest = decode_rest(*got, bytes_of(frame));
    ASSERT_TRUE(rest) << name << ": " << rest.error().message;
    EXPECT_EQ(rest->key, "key") << name;
    EXPECT_EQ(rest->fields, fields) << name;
  }
}

// The layout is a contract with other releases: it changes with kVersion only.
TEST(store_protocol, LayoutOfTheHead) {
  std::string frame;
  ASSERT_TRUE(encode({opcode::get, flag::warm, 0x0102030405060708, 0x090a0b0c, 0, 0, 0x1112131415161718, 0x191a1b1c1d1e1f20,
                      0x00222324, 0x25262728, 0x292a2b2c, 0x2d2e2f30, 0x31323334},
                     "", {}, frame));
  const unsigned char expected[60] = {
      'P',  'L',  'S',  'T', 1,    9,    8,    0,    8,    7,    6,    5,    4,    3,    2,    1,    0x0c, 0x0b, 0x0a, 9,
      0,    0,    0,    0,   0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x20, 0x1f, 0x1e, 0x1d, 0x1c, 0x1b, 0x1a, 0x19,
      0x24, 0x23, 0x22, 0,   0x28, 0x27, 0x26, 0x25, 0x2c, 0x2b, 0x2a, 0x29, 0x30, 0x2f, 0x2e, 0x2d, 0x34, 0x33, 0x32, 0x31};
  ASSERT_EQ(frame.size(), kHeadBytes);
  EXPECT_EQ(std::memcmp(frame.data(), expected, sizeof expected), 0);
}

TEST(store_protocol, EveryFlippedBitIsSeen) {
  std::string frame;
  tail fields;
  fields.request_number = {1, 2};
  ASSERT_TRUE(encode({opcode::erase, 0, 1, 2}, "some key", fields, frame));
  for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
    std::string damaged = frame;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const auto got = head_of(damaged);
    if (!got) continue;
    // A length may have changed: then the frame does not end where it should, or the checksum differs.
    damaged.resize(kHeadBytes + got->key_bytes + got->tail_bytes);
    EXPECT_FALSE(decode_rest(*got, bytes_of(damaged))) << "bit " << bit;
  }
}

TEST(store_protocol, RefusesWhatItDoesNotKnow) {
  struct {
    const char* name;
    std::size_t offset;
    unsigned char value;
  } const heads[] = {{"magic", 0, 'X'},  {"version", 4, 2},        {"operation 0", 5, 0}, {"operation 200", 5, 200},
                     {"flags", 7, 0x80}, {"key length", 21, 0x20}, {"tail", 23, 0x80},    {"body length", 43, 1}};
  for (const auto& one : heads) {
    std::string frame;
    ASSERT_TRUE(encode({}, "", {}, frame));
    frame[one.offset] = static_cast<char>(one.value);
    EXPECT_EQ(head_of(frame).code(), EPROTO) << one.name;
  }
  struct {
    const char* name;
    std::string tail_bytes;
    int code;
  } const fields[] = {
      {"optional field of the future", "\x99\x01\x02\x00zz"s, 0},
      {"mandatory field of the future", "\x99\x81\x02\x00zz"s, EPROTO},
      {"cut in the field's head", "\x99\x01\x02"s, EPROTO},
      {"cut in the field", "\x99\x01\x03\x00zz"s, EPROTO},
      {"token too short", "\x03\x00\x04\x00zzzz"s, EPROTO},
      {"token longer than known", "\x03\x00\x09\x00zzzzzzzzz"s, 0},
      {"half an extent",
       "\x04\x00\x0c\x00"
       "123456789012"s,
       EPROTO},
      {"durability 9", "\x08\x80\x01\x00\x09"s, EPROTO},
      {"condition 9", "\x07\x80\x09\x00\x09zzzzzzzz"s, EPROTO},
  };
  for (const auto& one : fields) {
    std::string frame;
    ASSERT_TRUE(encode_raw({}, "", one.tail_bytes, frame));
    const auto rest = decode_rest(*head_of(frame), bytes_of(frame));
    EXPECT_EQ(rest.code(), one.code) << one.name;
  }
}

TEST(store_protocol, KeysAndTailsHaveLimits) {
  std::string out;
  EXPECT_TRUE(encode({}, std::string(kMaxKeyBytes, 'k'), {}, out));
  EXPECT_EQ(encode({}, std::string(kMaxKeyBytes + 1, 'k'), {}, out).code(), EMSGSIZE);
  for (const opcode op : {opcode::pool_create, opcode::pool_open, opcode::pool_delete}) {
    head request;
    request.op = op;
    const auto refused = encode(request, std::string(70000, 'p'), {}, out);
    EXPECT_EQ(refused.code(), EINVAL);
    EXPECT_NE(refused.error().message.find("a pool's name of 70000 bytes"), std::string::npos);
  }
  tail fields;
  fields.text = std::string(kMaxTailBytes, 't');
  EXPECT_EQ(encode({}, "", fields, out).code(), EMSGSIZE);
}

TEST(store_protocol, ListsOfKeysAndPools) {
  const std::vector<key_entry> keys = {{"a", 1, 2}, {std::string(4096, 'k'), 1ull << 36, 3}, {"\0"s, 0, 4}};
  std::string body;
  for (const auto& one : keys) append(body, one);
  EXPECT_EQ(*decode_keys(body), keys);
  for (std::size_t cut = 1; cut < 19; ++cut) EXPECT_EQ(decode_keys(body.substr(0, body.size() - cut)).code(), EPROTO) << cut;

  const std::vector<pool_entry> pools = {{"p", 1, 2, {3, 4, durability::durable, false, true, "x=r"}}, {"q", 0, 0, {}}};
  body.clear();
  for (const auto& one : pools) append(body, one);
  EXPECT_EQ(*decode_pools(body), pools);
  EXPECT_EQ(decode_pools(body.substr(0, body.size() - 1)).code(), EPROTO);
}

TEST(store_protocol, NamesGoBothWays) {
  for (const auto transport :
       {path::shm_direct, path::shm_staged, path::unix_socket, path::tcp, path::tls, path::ucx, path::gpu_direct})
    EXPECT_EQ(path_of(name_of(transport)), transport);
  for (const auto level : {durability::volatile_, durability::logged, durability::durable})
    EXPECT_EQ(store::durability_named(name_of(level)), level);
  EXPECT_FALSE(path_of("rdma"));
  EXPECT_FALSE(store::durability_named(""));
  EXPECT_STREQ(name_of(opcode::pool_set), "pool_set");
  EXPECT_STREQ(name_of(opcode::sync_requests), "sync_requests");
}

}  // namespace
}  // namespace pl::store_protocol
