// SPDX-License-Identifier: Apache-2.0
// explain-copy: the method that the planner would choose for a copy, its expected cost, and the reasons against the others.
// Without a GPU it explains the built-in costs.
#include <cmath>

#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "copy/calibration.hpp"
#include "copy/explain.hpp"
#include "measure/text_table.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/report.hpp"
#include "tools/copy/cost_view.hpp"

namespace pl::tools {
namespace {

struct explain_options {
  common_options common;
  std::uint64_t bytes = 64u << 10;
  bool to_device = false, to_host = false, on_device = false, peer = false;
  bool pageable = false;
  bool cold = false;
  std::string executor = "dma";
  std::string costs_path;
};

std::optional<int> parse(const invocation& call, explain_options& options) {
  command_parser parser(call, "Shows which method the planner chooses for a copy, and why");
  parser.size("-s,--size", options.bytes, "Size of the copy");
  parser.flag("--h2d", options.to_device, "Copy from host to GPU memory");
  parser.flag("--d2h", options.to_host, "Copy from GPU to host memory (the default)");
  parser.flag("--d2d", options.on_device, "Within one GPU");
  parser.flag("--p2p", options.peer, "Copy from one GPU to another");
  parser.flag("--pageable", options.pageable, "The host memory is not page-locked");
  parser.text("--executor", "dma|kernel|none", options.executor,
              "What copies GPU memory without CUDA: dma (channels), kernel (the resident copy kernel), none");
  parser.flag("--cold", options.cold, "The same as --executor none");
  parser.text("--costs", "FILE", options.costs_path, "Use this calibration file instead of the current one");
  parser.common(options.common, false);
  if (const auto code = parser.parse()) return code;
  if (options.to_device + options.to_host + options.on_device + options.peer > 1)
    throw tool_failure("one of --h2d, --d2h, --d2d, --p2p");
  if (options.pageable && (options.on_device || options.peer))
    throw tool_failure("--pageable is about host memory: not with --d2d or --p2p");
  if (options.executor != "dma" && options.executor != "kernel" && options.executor != "none")
    throw tool_failure(format("--executor %s: expected dma, kernel or none", options.executor.c_str()));
  if (options.bytes == 0) throw tool_failure("--size 0: a copy of no bytes uses no method");
  return std::nullopt;
}

copy_case case_of(const explain_options& options) {
  using copy::direction;
  using copy::other_side;
  if (options.on_device) return {direction::on_device, other_side::same_gpu};
  if (options.peer) return {direction::on_device, other_side::peer_gpu};
  return {options.to_device ? direction::to_device : direction::to_host,
          options.pageable ? other_side::pageable : other_side::pinned};
}

copy::found_costs no_gpu() { return {copy::cost_table::built_in(), "built in (there is no GPU here)"}; }

copy::found_costs costs_in_force(const explain_options& options, report& out) {
  if (!options.costs_path.empty()) {
    const auto text = read_whole_file(options.costs_path, copy::kMaxCalibrationBytes);
    if (!text)
      throw tool_failure(format("--costs: %s cannot be read: %s; peerlane calibrate --print prints such a file",
                                options.costs_path.c_str(), text.error().message.c_str()));
    auto parsed = copy::cost_table::parse(*text);
    if (!parsed) throw tool_failure(format("--costs: %s: %s", options.costs_path.c_str(), parsed.error().message.c_str()));
    return {*std::move(parsed), options.costs_path};
  }
  // Every step may fail without a GPU; then the built-in costs are explained.
  if (!choose_gpu()) return no_gpu();
  print_header_if_simulated();
  auto cuda = cu::driver();
  if (!cuda || !cu::initialize(**cuda)) return no_gpu();
  auto facts = out.machine();
  describe_gpu(facts, **cuda, 0);
  out.file().set_machine(facts);
  auto found = copy::find_costs(**cuda, "");
  return found ? *std::move(found) : no_gpu();
}

}  // namespace

int run_explain_copy(const invocation& call) {
  explain_options options;
  if (const auto code = parse(call, options)) return *code;
  report out(call, options.common, "explain-copy");
  auto& file = out.file();
  const copy_case test_case = case_of(options);
  const auto costs = costs_in_force(options, out);
  const auto present = options.cold || options.executor == "none" ? copy::executor::none
                       : options.executor == "kernel"             ? copy::executor::kernel
                                                                  : copy::executor::channel;
  const auto all = copy::alternatives(costs.table, test_case.way, test_case.side, present, options.bytes);
  file.set_parameter("size_bytes", options.bytes);
  file.set_parameter("costs", costs.origin);

  std::printf("%s, %s memory, %s, executor: %s\n", direction_label(test_case), memory_label(test_case),
              format_size(options.bytes).c_str(), copy::name_of(present));
  std::printf("costs: %s\n\n", costs.origin.c_str());
  const auto bandwidth = [&](double ns) { return static_cast<double>(options.bytes) / ns; };
  for (const auto& one : all)
    if (one.is_taken && std::isinf(one.expected_ns)) std::printf("goes by %s\n\n", copy::to_text(one.option).c_str());
    else if (one.is_taken)
      std::printf("goes by %s: about %s, %s GB/s\n\n", copy::to_text(one.option).c_str(),
                  format_duration_ns(one.expected_ns).c_str(), short_number(bandwidth(one.expected_ns)).c_str());
  if (const auto remark = copy::no_query_remark(costs.table, test_case.way, test_case.side, present, options.bytes);
      !remark.empty())
    std::printf("%s\n", remark.c_str());
  text_table table({{"way", text_table::align::left}, {"expected us"}, {"GB/s"}, {"", text_table::align::left}});
  for (const auto& one : all) {
    const bool known = !std::isinf(one.expected_ns);
    table.add_row({copy::to_text(one.option), known ? short_number(one.expected_ns / 1e3) : "-",
                   known ? short_number(bandwidth(one.expected_ns)) : "-", one.reason});
    nlohmann::json row{{"kind", "way"},
                       {"direction", direction_label(test_case)},
                       {"memory", memory_label(test_case)},
                       {"executor", copy::name_of(present)},
                       {"engine_hot", present == copy::executor::kernel},
                       {"method", copy::to_text(one.option)},
                       {"size_bytes", options.bytes},
                       {"taken", one.is_taken},
                       {"why", one.reason}};
    row["expected_ns"] = known ? one.expected_ns : -1.0;
    file.add_row(std::move(row));
  }
  std::printf("%s\n", table.render().c_str());
  report_crossovers(costs.table, test_case, "", file);
  out.write();
  return kExitOk;
}

}  // namespace pl::tools
