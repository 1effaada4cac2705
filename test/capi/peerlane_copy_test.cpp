// SPDX-License-Identifier: Apache-2.0
// The copies' C interface and the C++ layer over it: handles, ownership, error values, and that data arrives.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <peerlane/copy.hpp>
#include <string>
#include <vector>

#include "test/capi/capi_fixture.hpp"

namespace pl::test {
namespace {

class peerlane_copy : public capi_test {
 protected:
  void SetUp() override {
    capi_test::SetUp();
    ASSERT_EQ(peerlane_copier_open(nullptr, &copier_), 0) << peerlane_last_error();
  }
  void TearDown() override {
    EXPECT_EQ(peerlane_copier_close(copier_), 0) << peerlane_last_error();
    // The simulator's threads let go of a kernel's memory a moment after its stream is idle.
    for (int i = 0; i < 1000 && mapping_count("peerlane-sim") != mapped_; ++i) usleep(1000);
    capi_test::TearDown();
  }
  peerlane_copier_t copier_ = nullptr;
};

TEST_F(peerlane_copy, DataArrivesBothWaysAndOnTheDevice) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{1000}, std::size_t{30'000}}) {
    const auto data = random_bytes(bytes, bytes);
    ASSERT_EQ(peerlane_copy_to_device(copier_, device_ + 3, data.data(), bytes), 0) << peerlane_last_error();
    EXPECT_EQ(device_bytes(device_ + 3, bytes), data);
    std::vector<unsigned char> got(bytes);
    ASSERT_EQ(peerlane_copy_to_host(copier_, got.data(), device_ + 3, bytes), 0) << peerlane_last_error();
    EXPECT_EQ(got, data);
    ASSERT_EQ(peerlane_copy_on_device(copier_, device_ + 32'000, device_ + 3, bytes), 0) << peerlane_last_error();
    EXPECT_EQ(device_bytes(device_ + 32'000, bytes), data);
    ASSERT_EQ(peerlane_copy_fill(copier_, device_ + 3, 0x1A5, bytes), 0);
    EXPECT_EQ(device_bytes(device_ + 3, bytes), std::vector<unsigned char>(bytes, 0xA5));
  }
}

TEST_F(peerlane_copy, RowsAndLists) {
  const auto data = random_bytes(10'000, 1);
  set_device_bytes(device_, data);
  std::vector<unsigned char> got(2000);
  peerlane_transfer rows{reinterpret_cast<std::uint64_t>(got.data()), device_, 10, 5, 20, 100, PEERLANE_TO_HOST, 0};
  ASSERT_EQ(peerlane_copy_2d(copier_, &rows), 0) << peerlane_last_error();
  for (std::size_t row = 0; row < 5; ++row) EXPECT_EQ(std::memcmp(&got[row * 20], &data[row * 100], 10), 0);
  peerlane_transfer list[2] = {rows, rows};
  list[0].rows = list[1].rows = 1;
  list[1].dst += 500;
  list[1].src += 1000;
  ASSERT_EQ(peerlane_copy_list(copier_, list, 2), 0);
  EXPECT_EQ(std::memcmp(&got[500], &data[1000], 10), 0);
  EXPECT_EQ(peerlane_copy_list(copier_, nullptr, 0), 0);
  list[1].direction = 3;
  EXPECT_EQ(peerlane_copy_list(copier_, list, 2), EINVAL);
  EXPECT_EQ(peerlane_copy_list(copier_, nullptr, 1), EINVAL);
  EXPECT_EQ(peerlane_copy_2d(copier_, nullptr), EINVAL);
}

TEST_F(peerlane_copy, ErrorsSayWhatIsWrong) {
  char byte = 0;
  EXPECT_EQ(peerlane_copy_to_device(copier_, reinterpret_cast<std::uint64_t>(&byte), &byte, 1), EINVAL);
  EXPECT_NE(std::string(peerlane_last_error()).find("destination"), std::string::npos);
  EXPECT_EQ(peerlane_copy_to_host(copier_, nullptr, device_, 1), EINVAL);
  EXPECT_EQ(peerlane_copy_to_host(copier_, &byte, device_, std::size_t{1} << 40), EINVAL);
  EXPECT_NE(std::string(peerlane_last_error()).find("allocation"), std::string::npos);
  EXPECT_EQ(peerlane_copy_to_host(copier_, nullptr, 0, 0), 0) << "nothing to copy";
}

TEST_F(peerlane_copy, CompletionsHoldsAndRegistrationsKeepTheCopierOpen) {
  std::vector<unsigned char> got(20'000);
  const auto data = random_bytes(got.size(), 8);
  set_device_bytes(device_, data);
  const peerlane_transfer one{
      reinterpret_cast<std::uint64_t>(got.data()), device_, got.size(), 1, 0, 0, PEERLANE_TO_HOST, 0};
  peerlane_completion_t later = nullptr;
  EXPECT_EQ(peerlane_copy_begin(copier_, &one, 1, 8, nullptr, &later), EINVAL);
  ASSERT_EQ(peerlane_copy_begin(copier_, &one, 1, PEERLANE_BEGIN_DEFAULT, nullptr, &later), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_copier_close(copier_), EBUSY);
  ASSERT_EQ(peerlane_completion_wait(later), 0);
  int done = 0;
  ASSERT_EQ(peerlane_completion_test(later, &done), 0);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(got, data);
  EXPECT_EQ(peerlane_completion_make_wait(later, nullptr), 0);
  EXPECT_EQ(peerlane_completion_free(later), 0);
  EXPECT_EQ(peerlane_completion_free(later), EINVAL);
  EXPECT_EQ(peerlane_completion_wait(later), EINVAL);

  peerlane_registration_t kept = nullptr;
  ASSERT_EQ(peerlane_copier_register(copier_, device_, 4096, &kept), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_copier_close(copier_), EBUSY);
  EXPECT_EQ(peerlane_copy_to_host(copier_, got.data(), device_ + 100, 64), 0);
  EXPECT_EQ(std::memcmp(got.data(), data.data() + 100, 64), 0);
  EXPECT_EQ(peerlane_copier_unregister(kept), 0);
  EXPECT_EQ(peerlane_copier_unregister(kept), EINVAL);

  peerlane_registration_t host = nullptr;
  EXPECT_EQ(peerlane_copier_register_host(copier_, nullptr, 1, 0, &host), EINVAL);
  ASSERT_EQ(peerlane_copier_register_host(copier_, got.data(), got.size(), 0, &host), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_copier_close(copier_), EBUSY);
  std::fill(got.begin(), got.end(), 0);
  EXPECT_EQ(peerlane_copy_to_host(copier_, got.data(), device_, got.size()), 0) << peerlane_last_error();
  EXPECT_EQ(got, data);
  EXPECT_EQ(peerlane_copier_unregister(host), 0);

  peerlane_hold_t hold = nullptr;
  ASSERT_EQ(peerlane_copier_keep_hot(copier_, 0, &hold), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_copier_close(copier_), EBUSY);
  EXPECT_EQ(peerlane_copier_let_go(hold), 0);
  EXPECT_EQ(peerlane_copier_let_go(hold), EINVAL);
  EXPECT_EQ(peerlane_copier_prepare(copier_, 0), 0);
  EXPECT_EQ(peerlane_copier_trim(copier_), 0);
}

TEST_F(peerlane_copy, HandlesThatAreNone) {
  char byte = 0;
  for (auto* const bogus : {reinterpret_cast<peerlane_copier_t>(0x10), static_cast<peerlane_copier_t>(nullptr),
                            reinterpret_cast<peerlane_copier_t>(reinterpret_cast<char*>(copier_) + 1)}) {
    EXPECT_EQ(peerlane_copy_to_host(bogus, &byte, device_, 1), EINVAL);
    EXPECT_EQ(peerlane_copier_close(bogus), EINVAL);
  }
  EXPECT_EQ(peerlane_completion_wait(reinterpret_cast<peerlane_completion_t>(0x20)), EINVAL);
  EXPECT_EQ(peerlane_copier_open(nullptr, nullptr), EINVAL);
  peerlane_copier_options wrong{};
  peerlane_copier_t none = nullptr;
  EXPECT_EQ(peerlane_copier_open(&wrong, &none), EINVAL) << "struct_bytes is 0";
}

TEST_F(peerlane_copy, AForkedChildIsRefused) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte = 0;
    _exit(peerlane_copy_to_host(copier_, &byte, device_, 1) == EACCES && peerlane_copier_close(copier_) == EACCES ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0);
}

TEST_F(peerlane_copy, ExplainsItself) {
  std::size_t needed = 0;
  char text[16];
  ASSERT_EQ(peerlane_copier_explain(copier_, PEERLANE_TO_HOST, 0, 4096, text, sizeof text, &needed), 0);
  EXPECT_GT(needed, sizeof text);
  EXPECT_EQ(std::strlen(text), sizeof text - 1);
  EXPECT_EQ(peerlane_copier_explain(copier_, 7, 0, 4096, text, sizeof text, &needed), EINVAL);
}

TEST_F(peerlane_copy, TheCppLayerOwns) {
  auto copier = peerlane::copier::open();
  ASSERT_TRUE(copier) << copier.error().message;
  const auto data = random_bytes(100, 4);
  ASSERT_TRUE(copier->to_device(device_, data.data(), data.size()));
  std::vector<unsigned char> got(100);
  {
    auto later = copier->begin({{reinterpret_cast<std::uint64_t>(got.data()), device_, 100, 1, 0, 0, PEERLANE_TO_HOST, 0}});
    ASSERT_TRUE(later) << later.error().message;
    auto registered = copier->register_memory(device_, 100);
    ASSERT_TRUE(registered);
    auto hot = copier->keep_hot(0);
    ASSERT_TRUE(hot);
    ASSERT_TRUE(later->wait());
  }
  EXPECT_EQ(got, data);
  auto reason = copier->explain(PEERLANE_TO_DEVICE, true, 1 << 20);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("pageable"), std::string::npos);
}

}  // namespace
}  // namespace pl::test
