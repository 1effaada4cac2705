// SPDX-License-Identifier: Apache-2.0
// What UCX does with addresses that it must not see is known from UCX 1.13: it reads on behind the end, passes null pointers
// to transports, or ends the process.
#include "ucx/address.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <string>

namespace pl::ucx {
namespace {

std::string header(char version_and_flags = 0x20) { return std::string(1, version_and_flags) + "worker's"; }
std::string attributes(float overhead = 5e-5f, float bandwidth = 1.2e7f, float latency = 1e-5f) {
  const float numbers[3] = {overhead, bandwidth, latency};
  std::string out(sizeof numbers + 4, '\1');
  std::memcpy(out.data(), numbers, sizeof numbers);
  return out;
}
std::string port(const std::string& described = attributes(), const std::string& address = "\x84\x8d", int flags = 0x80) {
  return "\xcf\x19" + described + static_cast<char>(flags | static_cast<int>(address.size())) + address;
}
std::string device(const std::string& bytes, const std::string& transports, int flags = 0) {
  return std::string(1, '\x20') + static_cast<char>(flags | static_cast<int>(bytes.size())) + bytes + transports;
}
constexpr int kLast = 0x80, kPaths = 0x40;

// The form of UCX 1.13 over TCP: the loopback device, then another.
std::string own() { return header() + device("eighteen bytes are", port()) + device("ipv4+2", port(), kLast); }

TEST(Address, OfUcxIsGood) {
  for (const auto& one :
       {own(), header() + "\xff", header() + device("ipv4+2", port(attributes(), "ab", 0) + port(), kLast)})
    EXPECT_TRUE(check_address(own(), one));
  const std::string short_attributes = "12345678", v2 = std::string("\x01\x02") + "worker's";
  EXPECT_TRUE(check_address(own(), v2 + device("ipv4+2", port(short_attributes), kLast)));
}

TEST(Address, ThatBreaksOffOrGoesOnIsRefused) {
  for (std::size_t bytes = 0; bytes < own().size(); ++bytes) {
    const auto seen = check_address(own(), own().substr(0, bytes));
    ASSERT_FALSE(seen) << bytes;
    EXPECT_EQ(seen.code(), EBADMSG);
  }
  EXPECT_FALSE(check_address(own(), own() + "x"));
}

TEST(Address, ThatEndsUcxIsRefused) {
  const float nan = std::nanf(""), infinite = 1e30f * 1e30f;
  for (const auto& described : {attributes(-1.0f), attributes(nan), attributes(1, 0), attributes(1, infinite),
                                attributes(1, 1, -1.0f), attributes(1, 1, nan)})
    EXPECT_FALSE(check_address(own(), header() + device("ipv4+2", port(described), kLast)));
  EXPECT_FALSE(check_address(own(), "\x22" + own().substr(1)));  // a version that is none
  EXPECT_FALSE(check_address(own(), header('\0') + own().substr(9)));
  EXPECT_FALSE(check_address(own(), header() + device("", port(), kLast)));
  EXPECT_FALSE(check_address(own(), header() + device("ipv4+2", port(attributes(), ""), kLast)));
  EXPECT_FALSE(check_address(own(), header() + device("ipv4+2", port(attributes(), "ab", 0xc0), kLast)));
  EXPECT_FALSE(check_address(own(), header() + '\x20' + static_cast<char>(kLast | kPaths | 6) + '\0' + "ipv4+2" + port()));
  std::string many;
  for (int i = 0; i < 1000; ++i) many += port(attributes(), "ab", 0);
  EXPECT_FALSE(check_address(own(), header() + device("ipv4+2", many + port(), kLast)));
}

// A later release may have another form; its peers then have that, too.
TEST(Address, NothingIsRefusedWhereTheOwnHasAnUnknownForm) { EXPECT_TRUE(check_address("\x27 unknown", "\x27 another")); }

TEST(Address, HasZerosBehindIt) {
  const auto padded = with_padding("abc");
  EXPECT_TRUE(padded.starts_with("abc"));
  ASSERT_GT(padded.size(), 3u + 4 * 255);
  EXPECT_EQ(padded.find_first_not_of('\0', 3), std::string::npos);
}

}  // namespace
}  // namespace pl::ucx
