// SPDX-License-Identifier: Apache-2.0
// env: the registry of environment variables with what is in force now, by area. Exit code 1 if a value is refused.
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>

#include "base/env.hpp"
#include "base/text.hpp"
#include "tools/common/report.hpp"
#include "tools/common/subcommand.hpp"
#include "tools/common/terminal.hpp"

namespace pl::tools {
namespace {

constexpr const char* kGeneral = "general";

// The first line that matches the beginning of a name gives its area, so the order counts.
struct name_group {
  const char *beginning, *area;
};
constexpr name_group kGroups[] = {
    {"PEERLANE_GDRAPI_", "copy"},
    {"PEERLANE_COPY_", "copy"},
    {"PEERLANE_DMA_", "copy"},
    {"PEERLANE_BACKEND", "mapping"},
    {"PEERLANE_RM_", "mapping"},
    {"GDRCOPY_", "mapping"},
    {"PEERLANE_STORE", "store"},
    {"PEERLANE_STREAM_", "streams"},
    {"CUDA_LAUNCH_BLOCKING", "streams"},
    {"PEERLANE_SIM_", "simulator"},
    {"CUDA_", "simulator"},
    {"OMPI_COMM_", "launchers"},
    {"MV2_COMM_", "launchers"},
    {"PMI", "launchers"},
    {"MPI_", "launchers"},
    {"SLURM_", "launchers"},
    {"PEERLANE_LINK_", "messages"},
    {"PEERLANE_UCX_", "messages"},
    {"PEERLANE_MPI_", "messages"},
    {"PEERLANE_NCCL_", "messages"},
    {"MV2_", "messages"},
    {"OMPI_", "messages"},
    {"UCX_", "messages"},
};
constexpr std::array kAreas = {kGeneral, "mapping", "copy", "messages", "streams", "store", "simulator", "launchers"};

const char* area_of(std::string_view name) {
  for (const auto& one : kGroups)
    if (name.starts_with(one.beginning)) return one.area;
  return kGeneral;
}

const char* type_name(env_type type) {
  switch (type) {
    case env_type::text:
      return "text";
    case env_type::integer:
      return "integer";
    case env_type::size_bytes:
      return "size";
    case env_type::boolean:
      return "boolean";
    case env_type::presence:
      return "presence";
    case env_type::choice:
      return "choice";
  }
  return "text";
}

bool is_area(const std::string& word) { return std::find(kAreas.begin(), kAreas.end(), word) != kAreas.end(); }

std::string upper(std::string text) {
  for (char& letter : text) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return text;
}

// An area's name selects the area; any other word selects names that contain it. No words select everything.
bool is_asked_for(const env_variable& variable, const std::vector<std::string>& words) {
  return words.empty() || std::any_of(words.begin(), words.end(), [&](const std::string& word) {
           return is_area(word) ? word == area_of(variable.name)
                                : std::string_view(variable.name).find(upper(word)) != std::string_view::npos;
         });
}

void print(const env_variable& variable, const env_value& value) {
  const bool refused = !value.problem.empty();
  const std::string source = refused ? "default (refused)" : value.is_set ? "environment" : "default";
  std::string line = format("%-34s %-12s %s", variable.name, value.text.empty() ? "-" : value.text.c_str(), source.c_str());
  if (value.is_set && variable.default_value[0] != '\0') line += format(" (default %s)", variable.default_value);
  const std::string takes = variable.choices[0] != '\0' ? variable.choices : type_name(variable.type);
  const colour shown = refused ? colour::bad : value.is_set ? colour::good : colour::none;
  std::printf("%s\n    %s\n", paint(shown, line).c_str(),
              wrap(std::string("[") + takes + "] " + variable.meaning, 4, text_width()).c_str());
}

void add_row(const env_variable& variable, const env_value& value, result_file& file) {
  file.add_row({{"variable", variable.name},
                {"area", area_of(variable.name)},
                {"type", type_name(variable.type)},
                {"unit", variable.unit},
                {"default", variable.default_value},
                {"choices", variable.choices},
                {"meaning", variable.meaning},
                {"value", value.text},
                {"is_set", value.is_set},
                {"problem", value.problem}});
}

void print_unknown(result_file& file) {
  const auto unknown = env_unknown_names();
  if (unknown.empty()) return;
  std::printf("%s\n", paint(colour::title, "set, but no variable of Peerlane:").c_str());
  for (const auto& one : unknown) {
    std::printf("%s%s\n", one.name.c_str(), one.nearest.empty() ? "" : ("  did you mean " + one.nearest + "?").c_str());
    file.add_row({{"variable", one.name}, {"area", "unknown"}, {"nearest", one.nearest}});
  }
}

std::string areas() {
  std::string out;
  for (const char* one : kAreas) out += (out.empty() ? "" : ", ") + std::string(one);
  return out;
}

void refuse_words(const std::vector<std::string>& words) {
  const std::vector<std::string> known(kAreas.begin(), kAreas.end());
  throw tool_failure(format("no variable's name contains \"%s\"%s (areas: %s)", words.front().c_str(),
                            did_you_mean(words.front(), known).c_str(), areas().c_str()));
}

}  // namespace

int run_env(const invocation& call) {
  common_options options;
  std::vector<std::string> words;
  command_parser parser(call, "Shows the environment variables that Peerlane reads: current value, default, meaning");
  parser.words("WHICH", "general|mapping|copy|messages|streams|store|simulator|launchers", words,
               "Only show these: an area (" + areas() + ") or part of a name");
  parser.common(options, false);
  if (const auto code = parser.parse()) return *code;
  report out(call, options, "env");
  bool good = true;
  std::size_t shown = 0;
  for (const char* area : kAreas) {
    bool is_first = true;
    for (const auto& variable : env_registry()) {
      if (std::string_view(area_of(variable.name)) != area || !is_asked_for(variable, words)) continue;
      if (is_first) std::printf("%s%s:\n", shown == 0 ? "" : "\n", paint(colour::title, area).c_str());
      is_first = false;
      ++shown;
      const env_value value = env_read(variable.name);
      good = good && value.problem.empty();
      print(variable, value);
      add_row(variable, value, out.file());
    }
  }
  if (shown == 0) refuse_words(words);
  if (words.empty()) std::printf("\n"), print_unknown(out.file());
  out.file().set_pass(good);
  out.write();
  return good ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
