// SPDX-License-Identifier: Apache-2.0
#include "copy/cost_table.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>

#include "base/text.hpp"

namespace pl::copy {
namespace {

constexpr const char* kMethodNames[kMethods] = {"cpu_store",   "cpu_load",      "cpu_relay",   "engine_low_latency",
                                                "engine_copy", "engine_bounce", "copy_engine", "bounce",
                                                "registered",  "dma_channel",   "dma_bounce",  "dma_ring"};
constexpr const char* kExecutorNames[kExecutors] = {"none", "copy kernel", "DMA channel", "DMA channel and copy kernel"};
constexpr const char* kSideNames[kSides] = {"pinned", "pageable", "same_gpu", "peer_gpu"};
constexpr const char* kDirectionNames[] = {"to_device", "to_host", "on_device"};
constexpr std::uint64_t kMaxNs = 1'000'000'000'000'000;
constexpr const char* kHeader = "peerlane-calibration/1";

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> out;
  for (std::size_t position = 0; position < line.size();) {
    const auto begin = line.find_first_not_of(' ', position);
    if (begin == std::string::npos) break;
    position = std::min(line.find(' ', begin), line.size());
    out.push_back(line.substr(begin, position - begin));
  }
  return out;
}

template <class T>
bool parse_number(const std::string& text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

template <std::size_t Count>
int index_of(const char* const (&names)[Count], const std::string& name) {
  for (std::size_t i = 0; i < Count; ++i)
    if (name == names[i]) return static_cast<int>(i);
  return -1;
}

// "curve to_host pinned engine_copy 4 1024:3110 4096:3115 ..."
result<cost_curve> parse_curve(const std::vector<std::string>& words) {
  const failure bad{EINVAL, "a curve line is: curve DIRECTION SIDE METHOD WIDTH BYTES:NS..., sizes rising"};
  if (words.size() < 6) return bad;
  const int way = index_of(kDirectionNames, words[1]);
  const int side = index_of(kSideNames, words[2]);
  const int kind = index_of(kMethodNames, words[3]);
  unsigned width = 0;
  if (way < 0 || side < 0 || kind < 0 || !parse_number(words[4], width) || width == 0 || width > 64) return bad;
  cost_curve curve{static_cast<direction>(way),
                   static_cast<other_side>(side),
                   {static_cast<method>(kind), static_cast<std::uint8_t>(width)},
                   {}};
  // With a method for the other direction, the CPU would read device addresses.
  const auto all = candidates(curve.way, curve.side);
  if (std::none_of(all.begin(), all.end(), [&](const choice& one) { return one.kind == curve.option.kind; }))
    return failure{EINVAL,
                   format("%s cannot copy %s with %s memory", kMethodNames[kind], words[1].c_str(), words[2].c_str())};
  for (std::size_t i = 5; i < words.size(); ++i) {
    const auto colon = words[i].find(':');
    cost_point point{};
    std::uint64_t whole_ns = 0;  // std::from_chars for floating point would add libm to the libraries
    if (colon == std::string::npos || !parse_number(words[i].substr(0, colon), point.bytes) ||
        !parse_number(words[i].substr(colon + 1), whole_ns) || whole_ns == 0 || whole_ns > kMaxNs ||
        (!curve.points.empty() && point.bytes <= curve.points.back().bytes))
      return bad;
    point.ns = static_cast<double>(whole_ns);
    curve.points.push_back(point);
  }
  return curve;
}

}  // namespace

const char* name_of(method kind) { return kMethodNames[static_cast<std::size_t>(kind)]; }
const char* name_of(executor kind) { return kExecutorNames[static_cast<std::size_t>(kind)]; }
const char* name_of(other_side side) { return kSideNames[static_cast<std::size_t>(side)]; }
const char* name_of(direction way) { return kDirectionNames[static_cast<std::size_t>(way)]; }

std::string to_text(const choice& option) {
  return option.width == 1 ? name_of(option.kind) : format("%s x%u", name_of(option.kind), option.width);
}

result<choice> parse_choice(const std::string& text) {
  const auto words = words_of(text);
  choice out;
  const int kind = words.empty() ? -1 : index_of(kMethodNames, words[0]);
  unsigned width = 1;
  const bool has_width = words.size() == 2 && words[1].size() > 1 && words[1][0] == 'x';
  if (kind < 0 || words.size() > 2 || (words.size() == 2 && (!has_width || !parse_number(words[1].substr(1), width))) ||
      width == 0 || width > 64) {
    std::string all;
    for (const char* name : kMethodNames) all += format("%s%s", all.empty() ? "" : ", ", name);
    return failure{EINVAL, format("\"%s\" is not a copy method: use one of %s, with \" xN\" for N threads or workers",
                                  text.c_str(), all.c_str())};
  }
  out.kind = static_cast<method>(kind);
  out.width = static_cast<std::uint8_t>(width);
  return out;
}

double cost_curve::cost_at(std::uint64_t bytes) const {
  const auto size = static_cast<double>(bytes);
  if (points.size() == 1 || bytes <= points.front().bytes) return points.front().ns;
  auto upper = std::lower_bound(points.begin(), points.end(), bytes,
                                [](const cost_point& point, std::uint64_t wanted) { return point.bytes < wanted; });
  const bool is_beyond = upper == points.end();
  if (is_beyond) --upper;  // the last slope continues
  const auto lower = upper - 1;
  const double slope = (upper->ns - lower->ns) / static_cast<double>(upper->bytes - lower->bytes);
  const double ns = lower->ns + slope * (size - static_cast<double>(lower->bytes));
  return is_beyond ? std::max(ns, upper->ns / 2) : ns;  // a slope that falls by noise must not reach zero
}

std::vector<choice> candidates(direction way, other_side side) {
  using enum method;
  const bool is_host = side == other_side::pinned || side == other_side::pageable;
  if ((way == direction::on_device) == is_host) return {};
  if (way == direction::on_device)
    return side == other_side::same_gpu
               ? std::vector<choice>{{cpu_relay, 1}, {engine_copy, 1}, {engine_copy, 8}, {dma_channel, 1}, {copy_engine, 1}}
               : std::vector<choice>{{cpu_relay, 1}, {dma_channel, 1}, {copy_engine, 1}};
  const bool is_pinned = side == other_side::pinned;
  std::vector<choice> all;
  if (way == direction::to_device) {
    all = {{cpu_store, 1}, {cpu_store, 2}, {cpu_store, 4}, {cpu_store, 8}};
    if (is_pinned) all.insert(all.end(), {{engine_copy, 1}, {engine_copy, 4}, {engine_copy, 8}});
  } else {
    all = {{cpu_load, 1}, {engine_low_latency, 1}};
    if (is_pinned) all.insert(all.end(), {{engine_copy, 1}, {engine_copy, 2}, {engine_copy, 4}});
    else all.insert(all.end(), {{engine_bounce, 1}, {engine_bounce, 4}});
    all.push_back({dma_bounce, 1});
  }
  if (is_pinned) {
    all.push_back({dma_channel, 1});
  } else {
    for (const method ring : {bounce, dma_ring})
      for (const std::uint8_t width : std::initializer_list<std::uint8_t>{1, 2, 4, 8}) all.push_back({ring, width});
    all.push_back({registered, 1});
  }
  all.push_back({copy_engine, 1});
  return all;
}

size_limits limits_of(direction way, const choice& option) {
  constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB;
  switch (option.kind) {
    case method::cpu_store:
      // Starting and joining a second thread costs about 0.3 us; a single thread is slower than DMA long before 16 MiB.
      // The upper limit is half of what the mapping cache keeps: longer copies evict their own mappings (1 GiB: 12
      // GB/s, 31 below the limit), and a calibration is too short to see that.
      return option.width > 1 ? size_limits{20 * kKiB, 256 * kMiB} : size_limits{1, 16 * kMiB};
    case method::cpu_load:
      return {1, 256 * kKiB};
    case method::cpu_relay:
      return {1, 64 * kKiB};
    case method::engine_low_latency:
      return {1, 32 * kKiB};
    case method::engine_copy:
      // 4 MiB for each worker.
      return {option.width > 1 ? 16 * kKiB : 1, std::min<std::uint64_t>(option.width * 4, 16) * kMiB};
    case method::engine_bounce:
      return {option.width > 1 ? 16 * kKiB : 1, kMiB};
    case method::dma_bounce:
      return {1, kMiB};
    case method::bounce:
    case method::dma_ring:
      return {64 * kKiB, UINT64_MAX};
    case method::registered:
      return {kMiB, UINT64_MAX};
    case method::dma_channel:
    case method::copy_engine:
      break;
  }
  (void)way;
  return {};
}

cost_table::cost_table(std::vector<cost_curve> curves, double query_cost_ns)
    : curves_(std::move(curves)), query_cost_ns_(query_cost_ns) {
  const auto made = std::make_shared<decisions>();
  for (std::size_t way = 0; way < made->by_side.size(); ++way)
    for (std::size_t index = 0; index < kExecutors; ++index)
      for (std::size_t cell = 0; cell < kCells; ++cell) {
        const auto bytes = std::max<std::uint64_t>(1, middle_of(cell));
        const auto direction_of = static_cast<direction>(way);
        const auto present = static_cast<executor>(index);
        for (std::size_t side = 0; side < kSides; ++side)
          made->by_side[way][side][index][cell] = cheapest(direction_of, static_cast<other_side>(side), present, bytes);
        if (direction_of != direction::on_device)
          made->without_query[way][index][cell] = cheapest_without_query(direction_of, present, bytes);
      }
  decisions_ = made;
}

cost_table cost_table::drop_method(method kind) const {
  auto rest = curves_;
  std::erase_if(rest, [kind](const cost_curve& curve) { return curve.option.kind == kind; });
  return cost_table(std::move(rest), query_cost_ns_);
}

double cost_table::cost(direction way, other_side side, const choice& option, std::uint64_t bytes) const {
  const auto limits = limits_of(way, option);
  if (bytes < limits.least || bytes > limits.most) return std::numeric_limits<double>::infinity();
  for (const auto& curve : curves_)
    if (curve.way == way && curve.side == side && curve.option == option) return curve.cost_at(bytes);
  return std::numeric_limits<double>::infinity();
}

choice cost_table::cheapest(direction way, other_side side, executor present, std::uint64_t bytes) const {
  choice best{method::copy_engine, 1};            // supports everything
  double best_ns = cost(way, side, best, bytes);  // infinite without a curve
  for (const auto& curve : curves_) {
    if (curve.way != way || curve.side != side || !is_available(curve.option.kind, present)) continue;
    const double ns = cautious_cost(way, side, curve.option, bytes);
    if (ns < best_ns) best_ns = ns, best = curve.option;
  }
  return best;
}

choice cost_table::cheapest_without_query(direction way, executor present, std::uint64_t bytes) const {
  constexpr other_side kHostSides[] = {other_side::pinned, other_side::pageable};
  choice best{method::copy_engine, 0};
  double best_loss_ns = query_cost_ns_ + 1e-3;  // a loss up to the cost of the question is still worth it
  double least_ns[std::size(kHostSides)];
  for (std::size_t i = 0; i < std::size(kHostSides); ++i)
    least_ns[i] = cautious_cost(way, kHostSides[i], cheapest(way, kHostSides[i], present, bytes), bytes);
  for (const auto& option : candidates(way, other_side::pageable)) {
    if (!is_available(option.kind, present)) continue;
    double loss_ns = 0;
    for (std::size_t i = 0; i < std::size(kHostSides); ++i) {
      const double ns = cautious_cost(way, kHostSides[i], option, bytes);
      loss_ns = std::isfinite(ns) ? std::max(loss_ns, ns - least_ns[i]) : ns;
    }
    if (loss_ns < best_loss_ns) best_loss_ns = loss_ns, best = option;
  }
  return best;
}

std::string cost_table::text() const {
  std::string out = format("%s\nquestion %.0f\n", kHeader, query_cost_ns_);
  for (const auto& curve : curves_) {
    out +=
        format("curve %s %s %s %u", name_of(curve.way), name_of(curve.side), name_of(curve.option.kind), curve.option.width);
    for (const auto& point : curve.points)
      out += format(" %llu:%.0f", static_cast<unsigned long long>(point.bytes), std::max(1.0, point.ns));  // 0 is refused
    out += "\n";
  }
  return out;
}

result<cost_table> cost_table::parse(const std::string& text) {
  std::vector<cost_curve> curves;
  double query_cost_ns = kUsualQueryNs;
  std::size_t number = 0;
  for (std::size_t position = 0; position < text.size();) {
    const auto end = std::min(text.find('\n', position), text.size());
    const std::string line = text.substr(position, end - position);
    position = end + 1;
    ++number;
    if (number == 1) {
      if (line != kHeader) return failure{EINVAL, format("the first line is not \"%s\"", kHeader)};
      continue;
    }
    const auto words = words_of(line);
    if (words.size() == 2 && words[0] == "question") {
      std::uint64_t ns = 0;
      if (!parse_number(words[1], ns) || ns > kMaxNs) return failure{EINVAL, format("line %zu: question NS", number)};
      query_cost_ns = static_cast<double>(ns);
    }
    if (words.empty() || words[0] != "curve") continue;  // what the file says of its machine
    auto curve = parse_curve(words);
    if (!curve) return failure{EINVAL, format("line %zu: %s", number, curve.error().message.c_str())};
    curves.push_back(*std::move(curve));
  }
  if (curves.empty()) return failure{EINVAL, "no curve in it"};
  return cost_table(std::move(curves), query_cost_ns);
}

}  // namespace pl::copy
