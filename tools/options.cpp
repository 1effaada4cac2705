// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <gdrapi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "text.hpp"

namespace pl::tools {

const char* to_string(alloc_kind kind) { return kind == alloc_kind::cu_mem_alloc ? "cuMemAlloc" : "cuMemCreate"; }

command_parser::command_parser(const invocation& call, const std::string& description)
    : call_(call), app_(std::make_unique<CLI::App>(description, call.program)) {
  app_->set_help_flag("-h,--help", "Print this help and exit");
  app_->get_formatter()->column_width(34);
}

command_parser::~command_parser() = default;

void command_parser::size(const std::string& names, std::uint64_t& value, const std::string& help) {
  app_->add_option_function<std::string>(
          names,
          [&value, names](const std::string& given) {
            const auto parsed = parse_size(given);
            if (!parsed)
              throw CLI::ValidationError(names,
                                         format("\"%s\" is not a size: write 65536, 0x10000, 64K, 1M or 2G", given.c_str()));
            value = *parsed;
          },
          format("%s (bytes; K, M, G are powers of 1024) [%s]", help.c_str(), format_size(value).c_str()))
      ->type_name("SIZE");
}

void command_parser::integer(const std::string& names, std::int64_t& value, std::int64_t lowest, std::int64_t highest,
                             const std::string& help) {
  app_->add_option_function<std::string>(
          names,
          [&value, names, lowest, highest](const std::string& given) {
            const auto parsed = parse_integer(given);
            if (!parsed || *parsed < lowest || *parsed > highest)
              throw CLI::ValidationError(names, format("\"%s\" is not a number from %lld to %lld", given.c_str(),
                                                       static_cast<long long>(lowest), static_cast<long long>(highest)));
            value = *parsed;
          },
          format("%s [%lld]", help.c_str(), static_cast<long long>(value)))
      ->type_name("N");
}

void command_parser::flag(const std::string& names, bool& value, const std::string& help) {
  app_->add_flag(names, value, help);
}

void command_parser::text(const std::string& names, std::string& value, const std::string& help) {
  app_->add_option(names, value, help);
}

void command_parser::common(common_options& options, bool with_gpu) {
  app_->add_option("--json", options.json_path, "Write the results to FILE as JSON (docs/results.md); - is standard output")
      ->type_name("FILE");
  if (!with_gpu) return;
  app_->add_option_function<std::string>(
          "-d,--gpu",
          [&options](const std::string& given) {
            const auto parsed = parse_integer(given);
            if (!parsed || *parsed < 0 || *parsed > 1023)
              throw CLI::ValidationError("-d", format("\"%s\" is not a GPU number", given.c_str()));
            options.gpu = static_cast<int>(*parsed);
          },
          "GPU, numbered as CUDA does [0]")
      ->type_name("N");
  app_->add_option("--cpu", options.cpu,
                   "Where the measuring thread runs: auto (near the GPU), none (leave it), or a list such as 0-3,8 [auto]")
      ->type_name("auto|none|LIST");
}

void command_parser::mapping(common_options& options) {
  app_->add_option_function<std::string>(
          "-a,--alloc",
          [&options](const std::string& given) {
            if (given == "cuMemAlloc") options.alloc = alloc_kind::cu_mem_alloc;
            else if (given == "cuMemCreate") options.alloc = alloc_kind::cu_mem_create;
            else throw CLI::ValidationError("-a", format("\"%s\" is neither cuMemAlloc nor cuMemCreate", given.c_str()));
          },
          "How GPU memory is allocated [cuMemAlloc]")
      ->type_name("cuMemAlloc|cuMemCreate");
  app_->add_option_function<std::string>(
          "-M,--mapping-type",
          [&options](const std::string& given) {
            if (given == "default") options.map_flag = GDR_MAP_FLAG_DEFAULT;
            else if (given == "wc") options.map_flag = GDR_MAP_FLAG_REQ_WC_MAPPING;
            else if (given == "cache") options.map_flag = GDR_MAP_FLAG_REQ_CACHE_MAPPING;
            else if (given == "device") options.map_flag = GDR_MAP_FLAG_REQ_DEVICE_MAPPING;
            else throw CLI::ValidationError("-M", format("\"%s\" is none of default, wc, cache, device", given.c_str()));
          },
          "Mapping type to ask for [default]")
      ->type_name("default|wc|cache|device");
}

std::optional<int> command_parser::parse() {
  try {
    std::vector<std::string> reversed(call_.arguments.rbegin(), call_.arguments.rend());  // CLI11 takes them from the end
    app_->parse(reversed);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app_->help().c_str(), stdout);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s; %s -h lists the options\n", call_.program.c_str(), error.what(), call_.program.c_str());
    return kExitFailed;
  }
}

}  // namespace pl::tools
