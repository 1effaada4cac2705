// SPDX-License-Identifier: Apache-2.0
// Failure sweep: let system call number k of a whole life (open, pin, map, copy, unmap, unpin, close) fail, for k = 0, 1, 2
// ... until one passes without reaching k. After every failure the state must be as before: nothing open, nothing mapped,
// and the same life must succeed right afterwards.
#include "test/conformance/backends.hpp"

namespace pl::test {
namespace {

class sweep : public backend_test {
 protected:
  // True if every step worked; on the way out everything that was made is released.
  bool whole_life(std::uint64_t pointer, std::size_t bytes) {
    auto opened = open_session({io_.get(), &simulated_cuda()}, GetParam().backend);
    if (!opened) {
      EXPECT_NE(opened.code(), 0);
      return false;
    }
    bool ok = true;
    auto pinned = pin_region(*opened, exactly(pointer, bytes));
    if (pinned) {
      auto mapped = map_region_exactly(*opened, *pinned);
      ok = mapped.ok();
      if (mapped) {
        char* data = (*pinned)->data.load();
        EXPECT_EQ(region_write(*pinned, data, "life", 4, true), 0);
      } else {
        EXPECT_EQ((*pinned)->state.load(), region_state::pinned) << "a failed map must leave the pin as it was";
        EXPECT_FALSE(mapped.error().message.empty());
      }
      EXPECT_TRUE(unpin_region(*opened, *pinned));
    } else {
      ok = false;
      EXPECT_FALSE(pinned.error().message.empty());
    }
    EXPECT_TRUE(close_session(*opened));
    return ok;
  }

  void sweep_all(std::uint64_t pointer, std::size_t bytes, int code) {
    constexpr int kMaxSteps = 200;
    int step = 0;
    for (; step < kMaxSteps; ++step) {
      io_->fail_at(step, code);
      const bool ok = whole_life(pointer, bytes);
      const bool fired = io_->fired();
      io_->fail_at(-1, 0);
      EXPECT_EQ(io_->open_descriptors(), 0) << "after step " << step;
      EXPECT_EQ(io_->mapped_bytes(), 0u) << "after step " << step;
      if (auto* rm = dynamic_cast<fake_rm*>(kernel_.get())) {
        EXPECT_EQ(rm->live_objects() + rm->live_mappings() + rm->live_clients(), 0) << "after step " << step;
      }
      if (!fired) {
        EXPECT_TRUE(ok);
        break;
      }
      ASSERT_TRUE(whole_life(pointer, bytes)) << "not usable after step " << step << " had failed";
    }
    EXPECT_GT(step, 0) << "no call was ever made through the injected kernel";
    EXPECT_LT(step, kMaxSteps);
  }
};

class joining_sweep : public sweep {};

TEST_P(sweep, EveryCallOfOneObjectsLife) {
  const device_buffer buffer(1 << 20);
  sweep_all(buffer.pointer(), 4096, EIO);
}

TEST_P(joining_sweep, EveryCallOfSeveralPiecesLife) {
  const vmm_buffer buffer({2 << 20, 2 << 20, 2 << 20});
  sweep_all(buffer.pointer(), buffer.bytes(), ENOMEM);
}

INSTANTIATE_TEST_SUITE_P(backends, joining_sweep, testing::ValuesIn(joining_backends()), label_of);
INSTANTIATE_TEST_SUITE_P(backends, sweep, testing::ValuesIn(all_backends()), label_of);

}  // namespace
}  // namespace pl::test
