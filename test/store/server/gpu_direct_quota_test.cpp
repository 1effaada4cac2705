// SPDX-License-Identifier: Apache-2.0
// Quotas of principals for values that the server fetches from device memory itself: one by one, and many by one call.
#include <unistd.h>

#include <deque>

#include "test/store/server/gpu_direct_rig.hpp"

namespace pl::store_test {
namespace {

class store_gpu_direct_quota : public store_gpu_direct {
 protected:
  void SetUp() override {
    rig_.config.quotas = {"*"};
    start_and_open();
  }
  void limit(std::uint64_t bytes, std::uint64_t keys) { rig_.server().engine().set_quotas({{me_, bytes, keys}}); }
  std::pair<std::uint64_t, std::uint64_t> held() {
    for (const auto& one : rig_.server().engine().list_owners())
      if (one.name == me_) return {one.keys, one.bytes};
    return {};
  }
  const std::string me_ = "uid:" + std::to_string(geteuid());
};

using held_t = std::pair<std::uint64_t, std::uint64_t>;

TEST_F(store_gpu_direct_quota, PutsCountAndAreRefused) {
  constexpr std::size_t kBytes = 1u << 20;
  const test::device_buffer source(kBytes);
  limit(2 * kBytes, 0);
  for (const auto level : {durability::durable, durability::volatile_}) {
    for (const char* key : {"1", "2", "2"}) {
      const auto done = put_device(key, source.pointer(), kBytes, at_level(level));
      ASSERT_EQ(done.status, 0) << done.text;
      ASSERT_EQ(done.result.way, path::gpu_direct);
    }
    EXPECT_EQ(held(), held_t(2, 2 * kBytes));
    const auto refused = put_device("3", source.pointer(), kBytes, at_level(level));
    EXPECT_EQ(refused.status, EDQUOT) << refused.text;
    EXPECT_NE(refused.text.find(me_), std::string::npos) << refused.text;
    EXPECT_EQ(held(), held_t(2, 2 * kBytes));
    EXPECT_EQ(rig_.server().engine().stats().grants, 0u);
  }
}

TEST_F(store_gpu_direct_quota, ALimitInTheMiddleOfABatch) {
  constexpr std::size_t kBytes = 16'384, kCount = 100;
  const test::device_buffer source(kCount * kBytes);
  std::deque<std::string> keys;
  std::vector<store_client::batch_entry> entries(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    entries[i].key = keys.emplace_back("k" + std::to_string(i));
    entries[i].level = durability::volatile_;
    entries[i].buffer = device(source.pointer() + i * kBytes, kBytes);
  }
  for (const held_t& most : {held_t(60, 0), held_t(0, 70 * kBytes)}) {
    limit(most.second, most.first);
    const std::size_t fits = most.first != 0 ? most.first : most.second / kBytes;
    std::size_t done = 0, refused = 0;
    for (const auto& one : store_->run_batch(opcode::batch_put, pool_, entries)) {
      done += one.status == 0 && one.result.way == path::gpu_direct;
      refused += one.status == EDQUOT;
    }
    EXPECT_EQ(done, fits);
    EXPECT_EQ(refused, kCount - fits);
    EXPECT_EQ(held(), held_t(fits, fits * kBytes));
  }
}

}  // namespace
}  // namespace pl::store_test
