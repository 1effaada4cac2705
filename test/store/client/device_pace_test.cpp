// SPDX-License-Identifier: Apache-2.0
#include "store/client/device_pace.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace pl::store_client {
namespace {

constexpr unsigned kManyCpus = 16, kFewCpus = 2, kSpinUs = 50;

operation transfer(operation::kind method, std::uint64_t bytes) {
  operation out;
  out.method = method;
  out.mine.bytes = bytes;
  return out;
}

// As if a transfer had begun `took` ago and has ended now.
void pass(device_pace& pace, operation one, std::chrono::milliseconds took) {
  pace.begins(one, kSpinUs);
  one.expected.asked_at -= took;
  pace.ended(one);
}

TEST(DevicePace, ALongTransferIsSleptThroughOnceOneHasBeenTimed) {
  device_pace pace(kManyCpus);
  auto put = transfer(operation::kind::put_device, 2 * device_pace::kLongBytes);
  pace.begins(put, kSpinUs);
  EXPECT_FALSE(device_pace::is_sleep_due(put, clock::now()));  // nothing is known
  pass(pace, transfer(operation::kind::put_device, device_pace::kLongBytes), std::chrono::milliseconds(10));
  pace.begins(put, kSpinUs);
  const auto begin = put.expected.asked_at;
  EXPECT_TRUE(device_pace::is_sleep_due(put, begin));
  // Twice the bytes take 20 ms: asleep for most of it, awake before it, and polling for a while after it.
  EXPECT_GT(put.expected.sleep_until, begin + std::chrono::milliseconds(15));
  EXPECT_LT(put.expected.sleep_until, begin + std::chrono::milliseconds(20));
  EXPECT_FALSE(device_pace::is_sleep_due(put, put.expected.sleep_until));
  EXPECT_GT(put.expected.poll_until, begin + std::chrono::milliseconds(22));
}

TEST(DevicePace, PutsAndGetsAreTimedApart) {
  device_pace pace(kManyCpus);
  pass(pace, transfer(operation::kind::put_device, device_pace::kLongBytes), std::chrono::milliseconds(10));
  auto get = transfer(operation::kind::get_device, device_pace::kLongBytes);
  pace.begins(get, kSpinUs);
  EXPECT_FALSE(device_pace::is_sleep_due(get, get.expected.asked_at));
}

TEST(DevicePace, ShortTransfersAndBatchesAndFewCpusAreLeftAlone) {
  device_pace pace(kManyCpus), few(kFewCpus), without_polling(kManyCpus);
  for (auto* const one : {&pace, &few})
    pass(*one, transfer(operation::kind::put_device, device_pace::kLongBytes), std::chrono::milliseconds(10));
  const auto expects_nothing = [](device_pace& tested, operation one, unsigned spin_us) {
    tested.begins(one, spin_us);
    return one.expected.sleep_until == clock::time_point() && one.expected.poll_until == clock::time_point();
  };
  EXPECT_TRUE(expects_nothing(pace, transfer(operation::kind::put_device, device_pace::kLongBytes - 1), kSpinUs));
  EXPECT_TRUE(expects_nothing(pace, transfer(operation::kind::batch_device, device_pace::kLongBytes), kSpinUs));
  EXPECT_TRUE(expects_nothing(pace, transfer(operation::kind::put_device, device_pace::kLongBytes), 0));
  EXPECT_TRUE(expects_nothing(few, transfer(operation::kind::put_device, device_pace::kLongBytes), kSpinUs));
}

TEST(DevicePace, CallersPollLongerThanUsualUnlessCpusAreFew) {
  EXPECT_GT(device_pace(kManyCpus).spin(kSpinUs), std::chrono::microseconds(kSpinUs));
  EXPECT_EQ(device_pace(kFewCpus).spin(kSpinUs), std::chrono::microseconds(kSpinUs));
  EXPECT_EQ(device_pace(kManyCpus).spin(0), std::chrono::microseconds(0));
}

}  // namespace
}  // namespace pl::store_client
