// SPDX-License-Identifier: Apache-2.0
// The measuring half of calibration.hpp: every way, a few sizes, as many repetitions as the time allows, the median.
#include <algorithm>
#include <cstring>
#include <optional>

#include "calibration.hpp"
#include "clock.hpp"
#include "pinned_buffer.hpp"
#include "planner.hpp"
#include "text.hpp"

namespace pl::copy {
namespace {

constexpr unsigned kLeastRepetitions = 5;
constexpr unsigned kMostRepetitions = 300;
constexpr unsigned kWarmUps = 4;                   // threads start, pages and caches are filled
constexpr std::uint64_t kPatienceNs = 20'000'000;  // for the GPU engine to start

struct device_block {
  const gpu_context context;
  cu::device_ptr pointer = 0;
  ~device_block() {
    if (pointer == 0) return;
    if (auto scope = context_use::enter(context)) context.cuda->cuMemFree_v2(pointer);
  }
  status allocate(std::size_t bytes) {
    auto scope = context_use::enter(context);
    if (!scope) return scope.error();
    const auto rc = context.cuda->cuMemAlloc_v2(&pointer, bytes);
    if (rc != cu::error_code::success)
      return cu::make_error(*context.cuda, rc, format("%zu bytes to calibrate with", bytes));
    return {};
  }
};

struct case_of_curve {
  direction way;
  other_side side;
  choice how;
};

std::vector<std::uint64_t> sizes_for(const case_of_curve& one, std::size_t most_bytes) {
  const auto limits = limits_of(one.way, one.how);
  std::vector<std::uint64_t> out;
  // Every octave where the curves bend, every second one above.
  for (std::uint64_t bytes = 64; bytes <= most_bytes; bytes *= bytes < 65536 ? 2 : 4)
    if (bytes >= limits.least && bytes <= limits.most) out.push_back(bytes);
  return out;
}

// Median of repetitions within a time; nothing if the way is not open here.
std::optional<double> measure(planner& by, const choice& how, const transfer& what, std::uint64_t budget_ns) {
  // A short store is over before its fence has drained, which the next one pays: batches tell the rate, not luck.
  const unsigned batch = how.how == method::cpu_store && what.row_bytes <= 4096 ? 16 : 1;
  std::vector<double> samples;
  for (unsigned i = 0; i < kWarmUps; ++i) (void)by.copy_by(how, what);
  const std::uint64_t begin_ns = monotonic_ns();
  while (samples.size() < kMostRepetitions) {
    const std::uint64_t taken_ns = monotonic_ns() - begin_ns;
    if (samples.size() >= kLeastRepetitions && taken_ns >= budget_ns) break;
    const std::uint64_t before = ticks_ordered();
    status done;
    for (unsigned call = 0; call < batch && done; ++call) done = by.copy_by(how, what);
    const std::uint64_t after = ticks_ordered();
    if (done) {
      samples.push_back(ticks_to_ns(after - before) / batch);
    } else if (done.code() != EAGAIN || taken_ns > budget_ns + kPatienceNs) {
      return std::nullopt;  // closed for good
    }
  }
  if (samples.size() < kLeastRepetitions) return std::nullopt;
  auto middle = samples.begin() + static_cast<long>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace

result<cost_table> calibrate(const cu::driver_table& cuda, planner& by, const calibration_options& wanted) {
  auto context = find_context(cuda, wanted.device_ordinal, nullptr);
  if (!context) return context.error();
  if (auto ready = by.prepare(wanted.device_ordinal); !ready) return ready.error();
  device_block first{*context}, second{*context};
  if (auto made = first.allocate(wanted.most_bytes); !made) return made.error();
  if (auto made = second.allocate(wanted.most_bytes); !made) return made.error();
  auto pinned = pinned_buffer::make(*context, wanted.most_bytes);
  if (!pinned) return pinned.error();
  std::vector<unsigned char> pageable(wanted.most_bytes, 1);

  std::optional<device_block> peer;
  int devices = 0;
  if (cuda.cuDeviceGetCount(&devices) == cu::error_code::success && devices > 1) {
    auto other = find_context(cuda, wanted.device_ordinal == 0 ? 1 : 0, nullptr);
    if (other) {
      peer.emplace(device_block{*other});
      if (!peer->allocate(wanted.most_bytes)) peer.reset();
    }
  }
  auto hot = by.keep_hot(wanted.device_ordinal);  // if it cannot be, its ways have no curve

  std::vector<case_of_curve> cases;
  for (const auto way : {direction::to_device, direction::to_host, direction::on_device})
    for (const auto side : {other_side::pinned, other_side::pageable, other_side::same_gpu, other_side::peer_gpu}) {
      if ((way == direction::on_device) != (side == other_side::same_gpu || side == other_side::peer_gpu)) continue;
      if (side == other_side::peer_gpu && !peer) continue;
      for (const auto& how : candidates(way, side))
        if (how.width <= by.threads() || needs_engine(how.how)) cases.push_back({way, side, how});
    }
  std::size_t all = 0;
  for (const auto& one : cases) all += sizes_for(one, wanted.most_bytes).size();

  std::vector<cost_curve> curves;
  std::size_t done = 0;
  const std::uint64_t end_ns = monotonic_ns() + std::uint64_t{wanted.budget_ms} * 1'000'000;
  for (const auto& one : cases) {
    cost_curve curve{one.way, one.side, one.how, {}};
    for (const std::uint64_t bytes : sizes_for(one, wanted.most_bytes)) {
      if (wanted.progress)
        wanted.progress(format("%s %s %s %llu B", name_of(one.way), name_of(one.side), to_text(one.how).c_str(),
                               static_cast<unsigned long long>(bytes)),
                        done, all);
      const std::uint64_t host = one.side == other_side::pinned ? address_of(pinned->data()) : address_of(pageable.data());
      transfer what{one.way, first.pointer, host, bytes};
      if (one.way == direction::to_host) what = {one.way, host, first.pointer, bytes};
      if (one.way == direction::on_device)
        what = {one.way, one.side == other_side::peer_gpu ? peer->pointer : second.pointer, first.pointer, bytes};
      const std::uint64_t now_ns = monotonic_ns();
      const std::uint64_t left_ns = end_ns > now_ns ? end_ns - now_ns : 0;
      if (const auto ns = measure(by, one.how, what, left_ns / (all - done)))
        curve.points.push_back({bytes, std::max(1.0, *ns)});
      ++done;
    }
    if (!curve.points.empty()) curves.push_back(std::move(curve));
  }
  if (curves.empty()) return failure{EIO, "no way to copy works with this device: peerlane doctor says why"};
  return cost_table(std::move(curves));
}

}  // namespace pl::copy
