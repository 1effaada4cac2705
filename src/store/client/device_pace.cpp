// SPDX-License-Identifier: Apache-2.0
#include "store/client/device_pace.hpp"

#include <algorithm>

namespace pl::store_client {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr unsigned kFewCpus = 4, kDeviceSpinUs = 500;
// A sleep ends late by the system's timer slack (50 us) and the wakeup (60 us in a virtual machine).
constexpr auto kEarlier = microseconds(200);
constexpr double kEarlierPart = 0.05, kLaterPart = 0.25;  // transfers of the same size differ by that much

bool is_long(const operation& one) {
  const bool is_value = one.method == operation::kind::put_device || one.method == operation::kind::get_device;
  return is_value && one.mine.bytes >= device_pace::kLongBytes;
}

}  // namespace

device_pace::device_pace(unsigned cpus) : has_few_cpus_(cpus <= kFewCpus) {}

microseconds device_pace::spin(unsigned usual_us) const {
  return microseconds(has_few_cpus_ || usual_us == 0 ? usual_us : std::max(usual_us, kDeviceSpinUs));
}

void device_pace::begins(operation& one, unsigned usual_us) {
  one.expected = {};
  if (!is_long(one) || has_few_cpus_ || usual_us == 0) return;
  one.expected.asked_at = clock::now();
  const double ns = ns_per_byte(one) * static_cast<double>(one.mine.bytes);
  if (ns == 0) return;
  const auto after = [&](double part) { return one.expected.asked_at + nanoseconds(static_cast<std::int64_t>(ns * part)); };
  one.expected.sleep_until = after(1 - kEarlierPart) - kEarlier;
  one.expected.poll_until = after(1 + kLaterPart);
}

void device_pace::ended(const operation& one) {
  if (one.expected.asked_at == clock::time_point()) return;
  const auto took = std::chrono::duration<double, std::nano>(clock::now() - one.expected.asked_at);
  ns_per_byte(one) = took.count() / static_cast<double>(one.mine.bytes);
}

}  // namespace pl::store_client
