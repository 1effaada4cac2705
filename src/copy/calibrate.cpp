// SPDX-License-Identifier: Apache-2.0
// The measurements of calibration.hpp: every method at several sizes, repeated as time allows; the median counts.
#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "copy/calibration.hpp"
#include "copy/host_memory.hpp"
#include "copy/pinned_buffer.hpp"
#include "copy/planner.hpp"

namespace pl::copy {
namespace {

constexpr unsigned kPasses = 2;
constexpr unsigned kMinRepetitions = 3;
constexpr unsigned kMaxRepetitions = 300;
constexpr unsigned kMaxWarmUps = 100;  // wakes threads, fills pages and caches
constexpr std::uint64_t kWarmUpNs = 120'000;
constexpr std::uint64_t kBendsBelow = 1u << 20;
constexpr std::uint64_t kThreadsPayFrom = 16u << 10;
constexpr std::uint64_t kTimeoutNs = 20'000'000;  // for the GPU engine to start

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
  choice option;
};

std::vector<std::uint64_t> sizes_for(const case_of_curve& one, std::size_t most_bytes) {
  const auto limits = limits_of(one.way, one.option);
  std::vector<std::uint64_t> out;
  const auto add = [&](std::uint64_t bytes) {
    if (bytes >= limits.least && bytes <= std::min<std::uint64_t>(limits.most, most_bytes)) out.push_back(bytes);
  };
  // Every octave where the curves bend, every second one above.
  for (std::uint64_t bytes = 64; bytes <= most_bytes; bytes *= bytes < kBendsBelow ? 2 : 4) {
    add(bytes);
    // Where threads begin to pay, their curves cross between two octaves, and whole parts make the curves uneven.
    if (one.option.kind == method::cpu_store && bytes >= kThreadsPayFrom && bytes < kThreadsPayFrom * 8) add(bytes * 5 / 4);
  }
  return out;
}

// Median of the repetitions within a time limit; nothing if the method is not available.
std::optional<double> measure(planner& planner, const choice& option, const transfer& transfer, std::uint64_t budget_ns) {
  // A short store returns before its fence has drained, which the next one then waits for. So the rate of batches is
  // measured.
  const unsigned batch = option.kind == method::cpu_store && transfer.row_bytes <= 4096 ? 16 : 1;
  std::vector<double> samples;
  std::uint64_t begin_ns = monotonic_ns();
  for (unsigned i = 0; i == 0 || (i < kMaxWarmUps && monotonic_ns() - begin_ns < kWarmUpNs); ++i)
    (void)planner.copy_by(option, transfer);
  begin_ns = monotonic_ns();
  while (samples.size() < kMaxRepetitions) {
    const std::uint64_t taken_ns = monotonic_ns() - begin_ns;
    if (samples.size() >= kMinRepetitions && taken_ns >= budget_ns) break;
    const std::uint64_t before = ticks_ordered();
    status done;
    for (unsigned call = 0; call < batch && done; ++call) done = planner.copy_by(option, transfer);
    const std::uint64_t after = ticks_ordered();
    if (done) {
      samples.push_back(ticks_to_ns(after - before) / batch);
    } else if (done.code() != EAGAIN || taken_ns > budget_ns + kTimeoutNs) {
      return std::nullopt;  // permanently unavailable
    }
  }
  if (samples.size() < kMinRepetitions) return std::nullopt;
  auto middle = samples.begin() + static_cast<long>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

// Duration of the driver call that reports whether host memory is pinned.
double measure_driver_query(const cu::driver_table& cuda, const void* pinned, const void* pageable) {
  constexpr unsigned kQuestions = 200, kAtOnce = 8;
  std::vector<double> samples;
  for (unsigned i = 0; i < kQuestions; ++i) {
    const void* const memory = i % 2 == 0 ? pinned : pageable;
    const std::uint64_t before = ticks_ordered();
    for (unsigned call = 0; call < kAtOnce; ++call) (void)inspect_host(cuda, memory, 64);
    samples.push_back(ticks_to_ns(ticks_ordered() - before) / kAtOnce);
  }
  auto middle = samples.begin() + kQuestions / 2;
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

// The buffers that the copies are measured with.
struct scene {
  device_block first, second;
  std::optional<device_block> peer;
  pinned_buffer pinned;
  std::vector<unsigned char> pageable;

  explicit scene(const gpu_context& context) : first{context}, second{context} {}

  status fill(const cu::driver_table& cuda, const calibration_options& wanted) {
    if (auto made = first.allocate(wanted.most_bytes); !made) return made;
    if (auto made = second.allocate(wanted.most_bytes); !made) return made;
    auto buffer = pinned_buffer::make(first.context, wanted.most_bytes);
    if (!buffer) return buffer.error();
    pinned = *std::move(buffer);
    pageable.assign(wanted.most_bytes, 1);
    int devices = 0;
    if (cuda.cuDeviceGetCount(&devices) != cu::error_code::success || devices < 2) return {};
    auto other = find_context(cuda, wanted.device_ordinal == 0 ? 1 : 0, nullptr);
    if (!other) return {};
    peer.emplace(device_block{*other});
    if (!peer->allocate(wanted.most_bytes)) peer.reset();
    return {};
  }

  transfer transfer_for(const case_of_curve& one, std::uint64_t bytes) const {
    const std::uint64_t host = one.side == other_side::pinned ? address_of(pinned.data()) : address_of(pageable.data());
    if (one.way == direction::to_device) return {one.way, first.pointer, host, bytes};
    if (one.way == direction::to_host) return {one.way, host, first.pointer, bytes};
    return {one.way, one.side == other_side::peer_gpu ? peer->pointer : second.pointer, first.pointer, bytes};
  }
};

std::vector<case_of_curve> cases_for(const planner& planner, bool has_peer) {
  std::vector<case_of_curve> cases;
  for (const auto way : {direction::to_device, direction::to_host, direction::on_device})
    for (const auto side : {other_side::pinned, other_side::pageable, other_side::same_gpu, other_side::peer_gpu}) {
      if ((way == direction::on_device) != (side == other_side::same_gpu || side == other_side::peer_gpu)) continue;
      if (side == other_side::peer_gpu && !has_peer) continue;
      for (const auto& option : candidates(way, side)) {
        const bool is_ring = option.kind == method::dma_ring;
        if (is_ring && !planner.has_channel_rings()) continue;
        const bool is_by_threads = is_ring || needed_executor(option.kind) == executor::none;
        if (!is_by_threads || option.width <= planner.threads()) cases.push_back({way, side, option});
      }
    }
  return cases;
}

// One point of one curve: measured once in each pass.
struct point_to_measure {
  std::size_t curve;
  std::uint64_t bytes;
  double best_ns = 0;  // 0: not measured
};

// Measures every point in several passes, each in another order, and keeps its best median. A short disturbance (clocks
// that have not settled, a burst of another tenant) then does not shift a whole curve, and with it a crossover.
void measure_in_passes(planner& planner, const calibration_options& wanted, const scene& setup,
                       const std::vector<case_of_curve>& cases, std::vector<point_to_measure>& points) {
  const std::uint64_t end_ns = monotonic_ns() + std::uint64_t{wanted.budget_ms} * 1'000'000;
  std::minstd_rand random(1);
  std::size_t done = 0;
  for (unsigned pass = 0; pass < kPasses; ++pass) {
    std::shuffle(points.begin(), points.end(), random);
    for (auto& point : points) {
      const auto& one = cases[point.curve];
      const std::size_t all = points.size() * kPasses;
      if (wanted.progress)
        wanted.progress(format("%s %s %s %llu B", name_of(one.way), name_of(one.side), to_text(one.option).c_str(),
                               static_cast<unsigned long long>(point.bytes)),
                        done, all);
      const std::uint64_t now_ns = monotonic_ns();
      const std::uint64_t left_ns = end_ns > now_ns ? end_ns - now_ns : 0;
      if (const auto ns = measure(planner, one.option, setup.transfer_for(one, point.bytes), left_ns / (all - done)))
        point.best_ns = point.best_ns == 0 ? std::max(1.0, *ns) : std::max(1.0, std::min(point.best_ns, *ns));
      ++done;
    }
  }
}

}  // namespace

result<cost_table> calibrate(const cu::driver_table& cuda, planner& planner, const calibration_options& wanted) {
  auto context = find_context(cuda, wanted.device_ordinal, nullptr);
  if (!context) return context.error();
  if (auto ready = planner.prepare(wanted.device_ordinal); !ready) return ready.error();
  scene setup(*context);
  if (auto made = setup.fill(cuda, wanted); !made) return made.error();
  auto hot = planner.keep_hot(wanted.device_ordinal);  // if it cannot be held, its methods have no curve

  const auto cases = cases_for(planner, setup.peer.has_value());
  std::vector<point_to_measure> points;
  for (std::size_t curve = 0; curve < cases.size(); ++curve)
    for (const std::uint64_t bytes : sizes_for(cases[curve], wanted.most_bytes)) points.push_back({curve, bytes});
  measure_in_passes(planner, wanted, setup, cases, points);

  std::sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  std::vector<cost_curve> curves;
  for (std::size_t index = 0; index < cases.size(); ++index) {
    cost_curve curve{cases[index].way, cases[index].side, cases[index].option, {}};
    for (const auto& point : points)
      if (point.curve == index && point.best_ns != 0) curve.points.push_back({point.bytes, point.best_ns});
    if (!curve.points.empty()) curves.push_back(std::move(curve));
  }
  if (curves.empty()) return failure{EIO, "no copy method works with this device: peerlane doctor says why"};
  return cost_table(std::move(curves), measure_driver_query(cuda, setup.pinned.data(), setup.pageable.data()));
}

}  // namespace pl::copy
