// SPDX-License-Identifier: Apache-2.0
// Host pools' C interface and the C++ layer over it.
#include <cerrno>
#include <cstring>
#include <peerlane/host_pool.hpp>

#include "test/capi/capi_fixture.hpp"

namespace pl::test {
namespace {

class peerlane_host_pools : public capi_test {
 protected:
  static peerlane_host_pool_options options(std::size_t size_bytes) {
    peerlane_host_pool_options out{};
    out.struct_bytes = sizeof out;
    out.size_bytes = size_bytes;
    out.piece_size_bytes = 1u << 20;
    return out;
  }
};

TEST_F(peerlane_host_pools, AreMemoryUntilTheyAreClosed) {
  const auto given = options(3u << 20);
  peerlane_host_pool_t pool = nullptr;
  ASSERT_EQ(peerlane_host_pool_open(&given, &pool), 0) << peerlane_last_error();
  peerlane_host_pool_info info{};
  ASSERT_EQ(peerlane_host_pool_get_info(pool, &info), 0);
  EXPECT_EQ(info.size_bytes, 3u << 20);
  std::memset(info.data, 5, info.size_bytes);
  ASSERT_EQ(peerlane_host_pool_wait(pool, INT64_MAX), 0) << peerlane_last_error();
  ASSERT_EQ(peerlane_host_pool_get_info(pool, &info), 0);
  EXPECT_EQ(info.pinned_bytes, 3u << 20);
  EXPECT_EQ(info.pinning, 0);
  EXPECT_EQ(static_cast<unsigned char*>(info.data)[(3u << 20) - 1], 5);
  EXPECT_EQ(peerlane_host_pool_close(pool), 0);
  EXPECT_EQ(peerlane_host_pool_close(pool), EINVAL);
  EXPECT_EQ(peerlane_host_pool_get_info(pool, &info), EINVAL);
  EXPECT_EQ(peerlane_host_pool_wait(pool, 0), EINVAL);
}

TEST_F(peerlane_host_pools, MistakesAreNamed) {
  peerlane_host_pool_t pool = nullptr;
  auto given = options(0);
  EXPECT_EQ(peerlane_host_pool_open(&given, &pool), EINVAL);
  given = options(1u << 20);
  EXPECT_EQ(peerlane_host_pool_open(nullptr, &pool), EINVAL);
  EXPECT_EQ(peerlane_host_pool_open(&given, nullptr), EINVAL);
  given.struct_bytes = 3;
  EXPECT_EQ(peerlane_host_pool_open(&given, &pool), EINVAL);
  EXPECT_NE(std::string(peerlane_last_error()).find("struct_bytes"), std::string::npos);
  given.struct_bytes = sizeof given;
  given.reserved = 1;
  EXPECT_EQ(peerlane_host_pool_open(&given, &pool), EINVAL);
  given = options(std::size_t{1} << 50);
  EXPECT_EQ(peerlane_host_pool_open(&given, &pool), ENOMEM);
  EXPECT_NE(std::string(peerlane_last_error()).find("ask for less"), std::string::npos) << peerlane_last_error();
  EXPECT_EQ(pool, nullptr);
  EXPECT_EQ(peerlane_host_pool_close(nullptr), EINVAL);
}

TEST_F(peerlane_host_pools, CppEndsThem) {
  auto pool = peerlane::host_pool::open(2u << 20, 0, 1u << 20);
  ASSERT_TRUE(pool) << pool.error().message;
  ASSERT_NE(pool->data(), nullptr);
  std::memset(pool->data(), 1, 2u << 20);
  ASSERT_TRUE(pool->wait());
  EXPECT_EQ(pool->info()->pinned_bytes, 2u << 20);
  pool->reset();
  EXPECT_EQ(pool->data(), nullptr);
  EXPECT_EQ(peerlane::host_pool::open(0).code(), EINVAL);
}

// A pool with a copier binds itself to its channels, and keeps it open.
TEST_F(peerlane_host_pools, HoldTheirCopier) {
  peerlane_copier_t copier = nullptr;
  ASSERT_EQ(peerlane_copier_open(nullptr, &copier), 0) << peerlane_last_error();
  {
    auto pool = peerlane::host_pool::open(2u << 20, 0, 1u << 20, copier);
    ASSERT_TRUE(pool) << pool.error().message;
    ASSERT_TRUE(pool->wait());
    EXPECT_EQ(peerlane_copier_close(copier), EBUSY);
  }
  EXPECT_EQ(peerlane_copier_close(copier), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane::host_pool::open(2u << 20, 0, 1u << 20, copier).code(), EINVAL) << "it is closed";
  auto older = options(1u << 20);  // a program that was built when the struct was shorter
  older.struct_bytes = offsetof(peerlane_host_pool_options, copier);
  older.copier = copier;
  peerlane_host_pool_t pool = nullptr;
  EXPECT_EQ(peerlane_host_pool_open(&older, &pool), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_host_pool_close(pool), 0);
}

}  // namespace
}  // namespace pl::test
