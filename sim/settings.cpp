// SPDX-License-Identifier: Apache-2.0
#include "sim/settings.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/c_numbers.hpp"
#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace pl::sim {
namespace {

// "a,b,c" -> parts; an empty part is one too, so that "a,,b" is refused by whoever reads it.
std::vector<std::string_view> split(std::string_view text, char delimiter) {
  std::vector<std::string_view> out;
  while (true) {
    const auto end = text.find(delimiter);
    out.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

bool read_number(std::string_view text, unsigned low, unsigned high, unsigned& out) {
  const auto value = parse_integer(text);
  if (!value || *value < low || *value > high) return false;
  out = static_cast<unsigned>(*value);
  return true;
}

// "5x16", "4x18", "5120@2619": two numbers.
bool read_two(std::string_view text, char between, unsigned& first, unsigned high_first, unsigned& second,
              unsigned low_second, unsigned high_second) {
  const auto found = text.find(between);
  return found != std::string_view::npos && read_number(text.substr(0, found), 1, high_first, first) &&
         read_number(text.substr(found + 1), low_second, high_second, second);
}

// "now/most": `most` stays untouched when it is not given.
struct pair_text {
  std::string_view now, most;
  bool has_most;
  explicit pair_text(std::string_view text) {
    const auto slash = text.find('/');
    has_most = slash != std::string_view::npos;
    now = text.substr(0, slash);
    if (has_most) most = text.substr(slash + 1);
  }
};

bool set_pcie(std::string_view text, link_settings& out) {
  const pair_text both(text);
  if (!read_two(both.now, 'x', out.pcie_generation, 6, out.pcie_width, 1, 32)) return false;
  if (both.has_most) return read_two(both.most, 'x', out.pcie_generation_max, 6, out.pcie_width_max, 1, 32);
  const link_settings usual;
  out.pcie_generation_max = std::max(out.pcie_generation, usual.pcie_generation_max);
  out.pcie_width_max = std::max(out.pcie_width, usual.pcie_width_max);
  return true;
}

bool set_nvlink(std::string_view text, link_settings& out) {
  const pair_text both(text);
  if (both.now == "none") {
    out.nvlinks = out.nvlinks_max = 0;
    return !both.has_most;
  }
  if (!read_two(both.now, 'x', out.nvlink_version, 5, out.nvlinks, 0, 18)) return false;
  out.nvlinks_max = out.nvlinks;
  return !both.has_most || read_number(both.most, out.nvlinks, 18, out.nvlinks_max);
}

bool set_memory(std::string_view text, link_settings& out) {
  const pair_text both(text);
  if (!read_two(both.now, '@', out.memory_bits, 65536, out.memory_mhz, 1, 100'000)) return false;
  out.memory_mhz_max = out.memory_mhz;
  return !both.has_most || read_number(both.most, out.memory_mhz, 100'000, out.memory_mhz_max);
}

bool set_sm(std::string_view text, link_settings& out) {
  const pair_text both(text);
  if (!read_number(both.now, 1, 100'000, out.sm_mhz)) return false;
  out.sm_mhz_max = out.sm_mhz;
  return !both.has_most || read_number(both.most, out.sm_mhz, 100'000, out.sm_mhz_max);
}

bool set_throttle(std::string_view text, link_settings& out) {
  if (text.substr(0, 2) != "0x" || text.size() < 3 || text.size() > 18) return false;
  const std::string digits(text.substr(2));
  if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return false;
  out.throttle = std::strtoull(digits.c_str(), nullptr, 16);
  return true;
}

bool set_bar1(std::string_view text, link_settings& out) {
  const auto bytes = parse_size(text);
  if (!bytes || *bytes == 0) return false;
  out.bar1_bytes = *bytes;
  return true;
}

bool set_link(std::string_view key, std::string_view value, link_settings& out) {
  constexpr unsigned kAny = 1'000'000'000;
  unsigned number = 0;
  if (key == "pcie") return set_pcie(value, out);
  if (key == "nvlink") return set_nvlink(value, out);
  if (key == "hbm") return set_memory(value, out);
  if (key == "sm") return set_sm(value, out);
  if (key == "throttle") return set_throttle(value, out);
  if (key == "bar1") return set_bar1(value, out);
  if (key == "replays") return read_number(value, 0, kAny, out.replays);
  if (key == "ecc") return read_number(value, 0, kAny, out.ecc);
  if (key == "processes") return read_number(value, 0, 63, out.processes);
  if (key == "switch") return read_number(value, 0, 1, number) && ((out.has_switch = number == 1), true);
  if (key == "numa") return read_number(value, 0, 63, number) && ((out.numa_node = static_cast<int>(number)), true);
  return false;
}

bool set_rate(std::string_view key, double value, rate_settings& out) {
  double* const rate = key == "h2d"     ? &out.h2d
                       : key == "d2h"   ? &out.d2h
                       : key == "p2p"   ? &out.p2p
                       : key == "local" ? &out.local
                       : key == "far"   ? &out.far
                       : key == "noise" ? &out.noise
                                        : nullptr;
  if (key == "seed") out.seed = static_cast<std::uint64_t>(value);
  if (rate == nullptr) return key == "seed";
  *rate = value;
  return true;
}

bool read_positive(std::string_view text, double& out) {
  const std::string whole(text);
  if (whole.empty() || whole.find_first_not_of("0123456789.") != std::string::npos) return false;
  const c_numbers during_read;
  char* end = nullptr;
  out = std::strtod(whole.c_str(), &end);
  return *end == 0 && std::isfinite(out) && out > 0;
}

failure not_understood(const char* variable, std::string_view part) {
  return {EINVAL, format("%s: cannot parse \"%s\"", variable, std::string(part).c_str())};
}

// Once for each text: the management library reads the variable again and again.
template <class Value>
Value value_or_default(result<Value> parsed, Value otherwise, std::string& last_problem) {
  if (parsed) return *parsed;
  if (const auto& reason = parsed.error().message; reason != last_problem) {
    last_problem = reason;
    log_line(log_level::error, "sim: %s; the defaults are used (peerlane env)", reason.c_str());
  }
  return otherwise;
}

}  // namespace

result<std::vector<link_settings>> parse_links(std::string_view text, std::size_t boards) {
  std::vector<link_settings> out(boards);
  if (text.empty()) return out;
  for (const auto part : split(text, ';')) {
    std::size_t first = 0, last = boards;
    auto list = part;
    if (const auto colon = part.find(':'); colon != std::string_view::npos) {
      unsigned board = 0;
      if (!read_number(part.substr(0, colon), 0, 15, board)) return not_understood("PEERLANE_SIM_LINKS", part);
      first = std::min<std::size_t>(board, boards);  // a board that does not exist may be described
      last = std::min<std::size_t>(board + 1, boards);
      list = part.substr(colon + 1);
    }
    for (const auto item : split(list, ',')) {
      link_settings scratch;
      const auto equals = item.find('=');
      if (equals == std::string_view::npos || !set_link(item.substr(0, equals), item.substr(equals + 1), scratch))
        return not_understood("PEERLANE_SIM_LINKS", item);
      for (std::size_t i = first; i < last; ++i) set_link(item.substr(0, equals), item.substr(equals + 1), out[i]);
    }
  }
  return out;
}

result<rate_settings> parse_rates(std::string_view text) {
  rate_settings out;
  if (text.empty()) return out;
  for (const auto part : split(text, ';')) {
    const auto colon = part.find(':');
    if (colon != std::string_view::npos) {
      constexpr std::string_view kFactor = "factor=";
      double board = 0, factor = 0;
      const auto setting = part.substr(colon + 1);
      const bool is_number = part.substr(0, colon) == "0" || read_positive(part.substr(0, colon), board);
      if (!is_number || !setting.starts_with(kFactor) || !read_positive(setting.substr(kFactor.size()), factor))
        return not_understood("PEERLANE_SIM_RATES", part);
      out.board_factors[static_cast<std::size_t>(board)] = factor;
      continue;
    }
    for (const auto item : split(part, ',')) {
      const auto equals = item.find('=');
      double value = 0;
      if (equals == std::string_view::npos || !read_positive(item.substr(equals + 1), value) ||
          !set_rate(item.substr(0, equals), value, out))
        return not_understood("PEERLANE_SIM_RATES", item);
    }
  }
  return out;
}

std::vector<link_settings> read_link_settings(std::size_t boards) {
  static std::string last_problem;
  return value_or_default(parse_links(env_read("PEERLANE_SIM_LINKS").text, boards), std::vector<link_settings>(boards),
                          last_problem);
}

rate_settings read_rate_settings() {
  static std::string last_problem;
  return value_or_default(parse_rates(env_read("PEERLANE_SIM_RATES").text), rate_settings{}, last_problem);
}

queue_settings read_queue_settings() {
  constexpr std::int64_t kMaxQueues = 32;  // what CUDA takes
  const auto limited = [](const char* name, std::int64_t high) {
    return std::clamp<std::int64_t>(env_read(name).integer, 0, high);
  };
  queue_settings out;
  out.depth = static_cast<std::uint64_t>(limited("PEERLANE_SIM_QUEUE", 1 << 30));
  out.queues = static_cast<unsigned>(limited("PEERLANE_SIM_QUEUES", kMaxQueues));
  const auto cuda_limit = static_cast<unsigned>(limited("CUDA_DEVICE_MAX_CONNECTIONS", kMaxQueues));
  if (out.queues != 0 && cuda_limit != 0) out.queues = cuda_limit;
  return out;
}

std::size_t read_board_count() {
  return static_cast<std::size_t>(env_read("PEERLANE_SIM_DEVICES").integer);  // its range is in the registry
}

}  // namespace pl::sim
