// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/baseline.hpp"

#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "measure/result_file.hpp"
#include "tools/bandwidth/result_rows.hpp"

namespace pl::bandwidth {

result<baseline> baseline::load(const std::string& path, double threshold_percent) {
  constexpr std::size_t kMaxBytes = std::size_t{256} << 20;  // a sweep of 16 GPUs with all samples takes some MB
  const auto text = read_whole_file(path, kMaxBytes);
  if (!text)
    return failure{text.code(), format("cannot read the baseline %s: %s; give a file that `peerlane bandwidth --json FILE` "
                                       "wrote",
                                       path.c_str(), text.error().message.c_str())};
  auto out = parse(*text, threshold_percent);
  if (!out) return failure{out.error().code, path + ": " + out.error().message};
  return out;
}

result<baseline> baseline::parse(const std::string& text, double threshold_percent) {
  const auto wrong = [](const char* description) {
    return failure{EINVAL, std::string(description) + "; a baseline is a file that `peerlane bandwidth --json FILE` wrote"};
  };
  const auto file = nlohmann::json::parse(text, nullptr, false);
  if (file.is_discarded() || !file.is_object()) return wrong("not a JSON object");
  try {
    if (file.value("schema", "") != kResultSchema || file.value("tool", "") != "bandwidth" || !file.contains("rows"))
      return wrong("not a result file of `peerlane bandwidth`");
    baseline out;
    out.threshold_percent_ = threshold_percent;
    out.simulated_ = file.value("simulated", false);
    const auto machine = file.value("machine", nlohmann::json::object());
    out.machine_ = machine.value("gpu_name", "unknown") + ", driver " + machine.value("driver_version", "unknown");
    for (const auto& row : file["rows"]) {
      if (row.value("kind", "") != "cell" || row.value("state", "") != "measured" || !row.contains("series")) continue;
      out.cells_[row.at("series")] = {row.at("median"), row.at("mean"), row.at("ci95"), row.at("sample_count")};
    }
    return out;
  } catch (const nlohmann::json::exception&) { return wrong("a field is missing or of another type"); }
}

std::optional<baseline_finding> baseline::compare(const std::string& key, const matrix& grid, std::size_t row,
                                                  std::size_t column) const {
  const cell& one = grid.cells[row][column];
  const auto found = cells_.find(key + "/" + cell_id(grid, row, column));
  if (one.state != cell_state::measured || found == cells_.end()) return std::nullopt;
  const earlier& before = found->second;
  const sample_statistics now = describe(one.samples);
  if (now.median <= 0 || before.median <= 0) return std::nullopt;
  baseline_finding out;
  out.before = before.median;
  out.ratio = grid.unit == "ns" ? before.median / now.median : now.median / before.median;
  // One sample has no spread, so its difference counts as it is.
  out.significant = std::abs(now.mean - before.mean) > now.ci95_half_width + before.ci95;
  out.slow = out.significant && out.ratio < 1 - threshold_percent_ / 100;
  out.fast = out.significant && out.ratio > 1 + threshold_percent_ / 100;
  return out;
}

}  // namespace pl::bandwidth
