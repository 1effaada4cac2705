// SPDX-License-Identifier: Apache-2.0
// Result files: JSON with the schema "peerlane-result/1" (docs/results.md).
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/statistics.hpp"
#include "base/status.hpp"
#include "measure/machine.hpp"

namespace pl {

inline constexpr const char* kResultSchema = "peerlane-result/1";

// Raw samples kept per series. More are thinned evenly, and the series says so: a 10 000-round copylat over 25 sizes and
// four contenders would otherwise be a 20 MB file that no diff or reader likes.
inline constexpr std::size_t kMaxSamplesPerSeries = 500;

// Collects what one run of one tool found, then writes it whole. Used by one thread.
class result_file {
 public:
  result_file(std::string tool, std::vector<std::string> command_line);

  void set_machine(const machine_facts& facts);
  void set_parameter(const std::string& name, nlohmann::json value);
  // Unit of a field of the rows; fields whose names end in their unit (_ns, _bytes) need none.
  void set_unit(const std::string& field, const std::string& unit);
  void set_pass(bool passed) { passed_ = passed; }
  void add_note(const std::string& note) { notes_.push_back(note); }

  // One measurement or finding: flat, scalars only.
  void add_row(nlohmann::json row) { rows_.push_back(std::move(row)); }
  // Raw samples of a row, matched to it by `series`, which the row repeats in its field "series".
  // They are stored as "samples_<unit>".
  void add_samples(const std::string& series, std::span<const double> samples, const std::string& unit = "ns");

  nlohmann::json to_json() const;
  // As it is written to files; bytes that are not UTF-8 (names of devices come from outside) are replaced.
  std::string text() const;
  // Writes `path` by way of a temporary file beside it: never half a result.
  status write(const std::string& path) const;

 private:
  std::string tool_;
  std::vector<std::string> command_line_;
  nlohmann::json machine_ = nlohmann::json::object();
  nlohmann::json parameters_ = nlohmann::json::object();
  nlohmann::json units_ = nlohmann::json::object();
  nlohmann::json rows_ = nlohmann::json::array();
  nlohmann::json samples_ = nlohmann::json::array();
  std::vector<std::string> notes_;
  bool simulated_ = false;
  bool passed_ = true;
};

nlohmann::json to_json(const machine_facts& facts);

// latency_ns_p50, _p90, _p99, _min, _max, _mean, _stddev and sample_count of `samples_ns`, for a row.
nlohmann::json latency_fields(std::span<const double> samples_ns);

}  // namespace pl
