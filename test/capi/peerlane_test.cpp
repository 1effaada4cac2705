// SPDX-License-Identifier: Apache-2.0
// libpeerlane's C interface and the C++ layer over it: owners, views, moves, error values, handles that are none.
#include <cerrno>
#include <peerlane/peerlane.hpp>
#include <thread>
#include <type_traits>

#include "test/capi/capi_fixture.hpp"

namespace pl::test {
namespace {

class peerlane_c : public capi_test {};
class peerlane_cpp : public capi_test {};

TEST_F(peerlane_c, NullOutputsAndNullHandles) {
  EXPECT_EQ(peerlane_session_open(nullptr, nullptr), EINVAL);
  peerlane_session_t s = nullptr;
  ASSERT_EQ(peerlane_session_open(nullptr, &s), 0);
  EXPECT_STREQ(peerlane_session_backend_name(s), "dmabuf");
  peerlane_mapping_t m = reinterpret_cast<peerlane_mapping_t>(0x77);
  EXPECT_EQ(peerlane_map(s, device_, 64, 0, nullptr), EINVAL);
  EXPECT_EQ(peerlane_map(nullptr, device_, 64, 0, &m), EINVAL);
  EXPECT_EQ(peerlane_map(s, device_, 64, 1u << 9, &m), EINVAL);
  EXPECT_EQ(peerlane_map(s, device_, 0, 0, &m), EINVAL);
  const char handle[64] = {};
  EXPECT_EQ(peerlane_map_ipc(s, device_, 64, 0, nullptr, &m), EINVAL);
  EXPECT_EQ(peerlane_map_ipc(s, device_, 64, 0, handle, nullptr), EINVAL);
  EXPECT_EQ(peerlane_map_ipc(s, device_, 64, 1u << 9, handle, &m), EINVAL);
  EXPECT_EQ(m, reinterpret_cast<peerlane_mapping_t>(0x77)) << "outputs are written on success only";
  EXPECT_EQ(peerlane_unmap(nullptr), EINVAL);
  EXPECT_EQ(peerlane_mapping_data(nullptr), nullptr);
  EXPECT_EQ(peerlane_mapping_get_info(nullptr, nullptr), EINVAL);
  EXPECT_EQ(peerlane_mapping_flush(nullptr), EINVAL);
  EXPECT_EQ(peerlane_session_is_simulated(s, nullptr), EINVAL);
  EXPECT_EQ(peerlane_session_is_simulated(nullptr, nullptr), EINVAL);
  EXPECT_STREQ(peerlane_session_backend_name(nullptr), "");
  int simulated = 0;
  EXPECT_EQ(peerlane_session_is_simulated(s, &simulated), 0);
  EXPECT_EQ(simulated, 1);
  EXPECT_EQ(peerlane_session_close(s), 0);
  EXPECT_EQ(peerlane_session_close(s), EINVAL);
  peerlane_get_version(nullptr, nullptr);
}

TEST_F(peerlane_c, BackendNames) {
  peerlane_session_t s = nullptr;
  for (const char* name : {"nonsense", "", "AUTO", "dmabuf "}) {
    EXPECT_EQ(open_session_on(name, &s), EINVAL) << name;
    expect_message("use auto, gdrdrv, dmabuf or rm");
  }
  ASSERT_EQ(open_session_on("dmabuf", &s), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_session_close(s), 0);
}

TEST_F(peerlane_c, MappingsAreExact) {
  peerlane_session_t s = nullptr;
  peerlane_mapping_t m = nullptr;
  ASSERT_EQ(peerlane_session_open(nullptr, &s), 0);
  ASSERT_EQ(peerlane_map(s, device_ + 4099, 777, PEERLANE_MAP_VERIFY, &m), 0) << peerlane_last_error();
  peerlane_mapping_info info{};
  ASSERT_EQ(peerlane_mapping_get_info(m, &info), 0);
  EXPECT_EQ(info.device_ptr, device_ + 4099);
  EXPECT_EQ(info.size_bytes, 777u);
  EXPECT_EQ(info.data, peerlane_mapping_data(m));
  EXPECT_EQ(info.pinned_ptr, device_ + 4096);
  EXPECT_EQ(info.pinned_size_bytes, 4096u);
  EXPECT_EQ(info.mapping_type, std::uint32_t{PEERLANE_MAPPING_WC});
  EXPECT_EQ(info.device_ordinal, 0);
  EXPECT_STREQ(info.backend, "dmabuf");
  set_device_bytes(device_, std::vector<unsigned char>(16384, 0x5a));
  EXPECT_EQ(peerlane_mapping_fill(m, 0, 0x7f, 777), 0);
  EXPECT_EQ(peerlane_mapping_write(m, 775, "ab", 2), 0);
  EXPECT_EQ(peerlane_mapping_write_unfenced(m, 0, "c", 1), 0);
  EXPECT_EQ(peerlane_mapping_flush(m), 0);
  auto wanted = std::vector<unsigned char>(16384, 0x5a);
  std::fill_n(wanted.begin() + 4099, 777, static_cast<unsigned char>(0x7f));
  wanted[4099] = 'c', wanted[4099 + 775] = 'a', wanted[4099 + 776] = 'b';
  EXPECT_EQ(device_bytes(device_, 16384), wanted);
  char seen[4] = "";
  EXPECT_EQ(peerlane_mapping_read(m, 775, seen, 2), 0);
  EXPECT_STREQ(seen, "ab");
  // Outside: ERANGE, and nothing moves.
  for (const auto& [offset, size] : {std::pair<std::size_t, std::size_t>{0, 778},
                                     {777, 1},
                                     {778, 0},
                                     {~std::size_t{0}, 1},
                                     {1, ~std::size_t{0}},
                                     {~std::size_t{0}, ~std::size_t{0}}}) {
    EXPECT_EQ(peerlane_mapping_write(m, offset, "x", size), ERANGE) << offset << "+" << size;
    EXPECT_EQ(peerlane_mapping_write_unfenced(m, offset, "x", size), ERANGE);
    EXPECT_EQ(peerlane_mapping_read(m, offset, seen, size), ERANGE);
    EXPECT_EQ(peerlane_mapping_fill(m, offset, 1, size), ERANGE);
  }
  EXPECT_EQ(device_bytes(device_, 16384), wanted);
  EXPECT_EQ(peerlane_mapping_write(m, 777, "x", 0), 0) << "nothing, at the end";
  EXPECT_EQ(peerlane_mapping_write(m, 0, nullptr, 1), EINVAL);
  EXPECT_EQ(peerlane_mapping_read(m, 0, nullptr, 1), EINVAL);
  EXPECT_EQ(peerlane_unmap(m), 0);
  EXPECT_EQ(peerlane_unmap(m), EINVAL);
  expect_message("not live");
  EXPECT_EQ(peerlane_mapping_write(m, 0, "x", 1), EINVAL);
  EXPECT_EQ(peerlane_mapping_data(m), nullptr);
  EXPECT_EQ(peerlane_session_close(s), 0);
}

TEST_F(peerlane_c, BogusPointersAreRefused) {
  peerlane_session_t s = nullptr;
  ASSERT_EQ(peerlane_session_open(nullptr, &s), 0);
  char on_stack[512] = {};
  for (const std::uintptr_t bits : {std::uintptr_t{1}, ~std::uintptr_t{0}, reinterpret_cast<std::uintptr_t>(on_stack),
                                    reinterpret_cast<std::uintptr_t>(s), std::uintptr_t{0x7fff00000000}}) {
    auto* m = reinterpret_cast<peerlane_mapping_t>(bits);
    EXPECT_EQ(peerlane_unmap(m), EINVAL);
    EXPECT_EQ(peerlane_mapping_write(m, 0, "x", 1), EINVAL);
    EXPECT_EQ(peerlane_mapping_data(m), nullptr);
    EXPECT_EQ(peerlane_mapping_flush(m), EINVAL);
    if (bits != reinterpret_cast<std::uintptr_t>(s)) {
      EXPECT_EQ(peerlane_session_close(reinterpret_cast<peerlane_session_t>(bits)), EINVAL);
    }
  }
  EXPECT_EQ(peerlane_session_close(s), 0);
}

TEST_F(peerlane_c, SuccessLeavesErrnoAlone) {
  errno = 999;
  peerlane_session_t s = nullptr;
  peerlane_mapping_t m = nullptr;
  ASSERT_EQ(peerlane_session_open(nullptr, &s), 0);
  EXPECT_EQ(errno, 999) << "the backends that are not there were tried on the way";
  ASSERT_EQ(peerlane_map(s, device_, 64, 0, &m), 0);
  EXPECT_EQ(peerlane_unmap(m), 0);
  EXPECT_EQ(peerlane_session_close(s), 0);
  EXPECT_EQ(errno, 999);
}

static_assert(!std::is_copy_constructible_v<peerlane::mapping> && !std::is_copy_constructible_v<peerlane::session>);
static_assert(std::is_nothrow_move_constructible_v<peerlane::mapping> &&
              std::is_copy_constructible_v<peerlane::mapping_view>);

TEST_F(peerlane_cpp, OwnersMoveAndViewsDoNot) {
  auto opened = peerlane::session::open();
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_STREQ(opened->backend_name(), "dmabuf");
  auto first = opened->map(device_, 4096);
  ASSERT_TRUE(first);
  const peerlane::mapping_view view = first->view();
  peerlane::mapping moved = *std::move(first);
  EXPECT_EQ(first->get(), nullptr);
  EXPECT_EQ(first->data(), nullptr);
  EXPECT_EQ(moved.get(), view.get());
  EXPECT_TRUE(view.write(0, "viewed", 6));
  EXPECT_EQ(std::memcmp(moved.data(), "viewed", 6), 0);
  EXPECT_EQ(view.info()->size_bytes, 4096u);
  auto second = opened->map(device_ + 4096, 4096);
  ASSERT_TRUE(second);
  const peerlane::mapping_view old = moved.view();
  moved = *std::move(second);  // releases the first
  EXPECT_FALSE(old.write(0, "x", 1));
  EXPECT_TRUE(moved.fill(0, std::byte{9}, 4096));
  EXPECT_TRUE(moved.flush());
  peerlane::mapping& same = moved;
  moved = std::move(same);
  EXPECT_NE(moved.data(), nullptr) << "self move keeps it";
  EXPECT_TRUE(moved.unmap());
  EXPECT_EQ(moved.unmap().code(), EINVAL) << "nothing is owned any more";
  peerlane::session other = *std::move(opened);
  EXPECT_EQ(opened->get(), nullptr);
  EXPECT_EQ(opened->map(device_, 64).code(), EINVAL);
  EXPECT_TRUE(other.close());
}

TEST_F(peerlane_cpp, UnmappedBehindTheOwnersBack) {
  auto opened = peerlane::session::open();
  ASSERT_TRUE(opened);
  auto m = opened->map(device_, 64);
  ASSERT_TRUE(m);
  EXPECT_EQ(peerlane_unmap(m->get()), 0);
  const auto written = m->write(0, "x", 1);
  EXPECT_EQ(written.code(), EINVAL);
  EXPECT_NE(written.error().message.find("not live"), std::string::npos) << written.error().message;
  EXPECT_EQ(m->unmap().code(), EINVAL);
  auto orphan = opened->map(device_, 64);
  ASSERT_TRUE(orphan);
  EXPECT_TRUE(opened->close());
  EXPECT_EQ(orphan->write(0, "x", 1).code(), EINVAL) << "close unmapped it";
  // The destructor of `orphan` meets a dead handle: nothing happens.
}

TEST_F(peerlane_cpp, ErrorsCarryTheirSentence) {
  auto options = peerlane::session::options();
  options.backend = "nonsense";
  const auto refused = peerlane::session::open(&options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), EINVAL);
  EXPECT_NE(refused.error().message.find("nonsense"), std::string::npos);
  auto opened = peerlane::session::open();
  int host = 0;
  const auto mapped = opened->map(reinterpret_cast<std::uint64_t>(&host), 4);
  ASSERT_FALSE(mapped);
  EXPECT_NE(mapped.error().message.find("plain host memory"), std::string::npos) << mapped.error().message;
  const auto beyond = opened->map(device_, (4 << 20) + 1);
  EXPECT_NE(beyond.error().message.find("leaves its allocation"), std::string::npos) << beyond.error().message;
}

// Last: its session is the process's own and stays open.
TEST_F(peerlane_cpp, TheProcessWideSession) {
  {
    auto first = peerlane::map(device_ + 1, 3);
    ASSERT_TRUE(first) << first.error().message;
    EXPECT_TRUE(first->write(0, "abc", 3));
    EXPECT_EQ(first->write(1, "abc", 3).code(), ERANGE);
    EXPECT_EQ(device_bytes(device_ + 1, 3), (std::vector<unsigned char>{'a', 'b', 'c'}));
    std::thread([&] { EXPECT_TRUE(peerlane::map(device_, 64)); }).join();
    EXPECT_EQ(peerlane::map(0, 64).code(), EINVAL);
  }
  ++descriptors_;
}

}  // namespace
}  // namespace pl::test
