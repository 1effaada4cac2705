// SPDX-License-Identifier: Apache-2.0
#include "tools/common/options.hpp"

#include <gdrapi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "base/spelling.hpp"
#include "base/text.hpp"
#include "os/cpu_list.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/terminal.hpp"

namespace pl::tools {
namespace {

std::vector<std::string> names_of(const CLI::Option& one) {
  std::vector<std::string> out;
  for (const auto& name : one.get_snames()) out.push_back("-" + name);
  for (const auto& name : one.get_lnames()) out.push_back("--" + name);
  return out;
}

option_facts facts_of(const CLI::Option& one) {
  option_facts out{names_of(one), one.get_items_expected_max() == 0 ? "" : one.get_type_name(), one.get_description(), {}};
  if (out.names.empty()) {
    out.names = {one.get_name(true)};
    out.is_positional = true;
  }
  out.words = literal_words(out.value);
  return out;
}

// Kinds of values that name something outside of the command. An empty one comes from a variable of a script that is not
// set: left out silently, a gate would be without its baseline.
bool is_place(const std::string& kind) {
  for (const char* word : {"FILE", "DIR", "PATH", "SOCKET", "PORT", "URL"})
    if (kind.find(word) != std::string::npos) return true;
  return false;
}

// Some texts name their default, since a number does not say it: "[three quarters]". The others get the value.
std::string with_default(const std::string& help, const std::string& unit, const std::string& value) {
  const auto named = help.ends_with(']') ? help.rfind(" [") : std::string::npos;
  return help.substr(0, named) + unit + (named == std::string::npos ? " [" + value + "]" : help.substr(named));
}

}  // namespace

const char* to_string(alloc_kind kind) { return kind == alloc_kind::cu_mem_alloc ? "cuMemAlloc" : "cuMemCreate"; }

command_parser::command_parser(const invocation& call, const std::string& description)
    : call_(call), app_(std::make_unique<CLI::App>(description, call.program)) {
  app_->set_help_flag("-h,--help", "Print this help and exit");
  // main() prints it, for every command. The original's beginnings of names (--ver) stay what they are.
  if (!call.drop_in)
    app_->add_flag_callback(
        "--version", [] {}, "Print the version and exit");
  // GDRCopy's and OSU's programs use getopt(): of two values the later one counts, so scripts add theirs to a common line.
  if (call.drop_in && call.program != "nvbandwidth")
    app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app_->get_formatter()->column_width(40);
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
          with_default(help, " (bytes; K, M, G are powers of 1024)", format_size(value)))
      ->type_name("SIZE");
}

void command_parser::integer(const std::string& names, std::int64_t& value, std::int64_t lowest, std::int64_t highest,
                             const std::string& help) {
  integer(names, "N", value, lowest, highest, help);
}

void command_parser::integer(const std::string& names, const std::string& kind, std::int64_t& value, std::int64_t lowest,
                             std::int64_t highest, const std::string& help) {
  app_->add_option_function<std::string>(
          names,
          [&value, names, lowest, highest](const std::string& given) {
            const auto parsed = parse_integer(given);
            if (!parsed || *parsed < lowest || *parsed > highest)
              throw CLI::ValidationError(names, format("\"%s\" is not a number from %lld to %lld", given.c_str(),
                                                       static_cast<long long>(lowest), static_cast<long long>(highest)));
            value = *parsed;
          },
          with_default(help, "", std::to_string(value)))
      ->type_name(kind);
}

void command_parser::flag(const std::string& names, bool& value, const std::string& help) {
  app_->add_flag(names, value, help)->disable_flag_override();  // CLI11 takes --flag=1k1 for true
}

void command_parser::text(const std::string& names, const std::string& kind, std::string& value, const std::string& help) {
  app_->add_option(names, value, value.empty() ? help : with_default(help, "", value))->type_name(kind);
}

void command_parser::list(const std::string& names, std::vector<std::string>& values, const std::string& help) {
  app_->add_option(names, values, help)->delimiter(',')->type_name("LIST");
}

void command_parser::repeated(const std::string& names, const std::string& kind, std::vector<std::string>& values,
                              const std::string& help) {
  app_->add_option(names, values, help)->type_name(kind)->take_all();
}

void command_parser::hide(const std::string& name) { app_->get_option(name)->group(""); }

void command_parser::positional(const std::string& name, presence wanted, std::string& value, const std::string& help) {
  app_->add_option(name, value, help)->required(wanted == presence::required)->type_name("");
}

void command_parser::positional(const std::string& name, presence wanted, std::vector<std::string>& values,
                                const std::string& help) {
  app_->add_option(name, values, help)->required(wanted == presence::required)->type_name("");
}

void command_parser::words(const std::string& name, const std::string& kind, std::vector<std::string>& values,
                           const std::string& help) {
  app_->add_option(name, values, help)->type_name(kind)->multi_option_policy(CLI::MultiOptionPolicy::Throw);
}

void command_parser::choice(const std::string& names, presence wanted, std::string& value,
                            const std::vector<std::string>& words, const std::string& help) {
  std::string kind;
  for (const auto& one : words) kind += (kind.empty() ? "" : "|") + one;
  app_->add_option(names, value, help)
      ->required(wanted == presence::required)
      ->type_name(kind)
      ->check(CLI::IsMember(words).description(""));  // CLI11 would print the words once more, in braces
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
                   "CPUs of the measuring thread: auto (near the GPU), none (no binding), or a list such as 0-3,8 [auto]")
      ->check([](const std::string& given) {
        const auto parsed = given == "auto" || given == "none" ? result<cpu_numbers>(cpu_numbers{}) : parse_cpu_list(given);
        return parsed ? std::string() : parsed.error().message;
      })
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
            else throw CLI::ValidationError("-M", format("\"%s\" is not one of default, wc, cache, device", given.c_str()));
          },
          "Mapping type to ask for [default]")
      ->type_name("default|wc|cache|device");
}

bool command_parser::print_facts() {
  if (call_.facts == nullptr) return false;
  call_.facts->description = app_->get_description();
  for (const CLI::Option* one : static_cast<const CLI::App&>(*app_).get_options())
    if (!one->get_group().empty()) call_.facts->options.push_back(facts_of(*one));
  return true;
}

bool command_parser::is_given(const std::string& name) const { return app_->count(name) > 0; }

std::string command_parser::complaint(const std::string& message) const {
  std::vector<std::string> known, bare;
  for (const CLI::Option* one : static_cast<const CLI::App&>(*app_).get_options())
    for (const auto& name : names_of(*one)) known.push_back(name);
  for (const auto& name : known)
    if (name.starts_with("--")) bare.push_back(name.substr(2));
  for (const auto& argument : call_.arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (name == "--") break;
    if (!name.starts_with("--") || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = nearest_word(name.substr(2), bare);
    return "unknown option " + name + (nearest.empty() ? "" : "; did you mean --" + nearest + "?");
  }
  return message;
}

std::string command_parser::empty_place() const {
  for (const CLI::Option* one : static_cast<const CLI::App&>(*app_).get_options()) {
    // An option whose value may be left out counts an absent one as empty.
    if (one->count() == 0 || one->get_items_expected_min() == 0 || !is_place(one->get_type_name())) continue;
    const auto& values = one->results();
    if (std::find(values.begin(), values.end(), "") == values.end()) continue;
    const auto names = names_of(*one);
    return (names.empty() ? one->get_name(true) : names.back()) + " was given an empty value: give one, or leave it out";
  }
  return {};
}

std::optional<int> command_parser::parse() {
  if (print_facts()) return kExitOk;
  try {
    std::vector<std::string> reversed(call_.arguments.rbegin(), call_.arguments.rend());  // CLI11 takes them from the end
    app_->parse(reversed);
    const auto fault = empty_place();
    if (fault.empty()) return std::nullopt;
    std::fprintf(stderr, "%s: %s; %s -h lists the options\n", call_.program.c_str(), fault.c_str(), call_.program.c_str());
    return kExitFailed;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app_->help().c_str(), stdout);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    // A word that is missing may have been taken for the value of an option that does not exist.
    const bool is_about_words = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) ||
                                error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
    std::string message = is_about_words ? complaint(error.what()) : error.what();
    // CLI11's words for a flag with a value, --sweep=1.
    if (const auto found = message.find(" was given a disallowed flag override"); found != std::string::npos)
      message = "--" + message.substr(0, found) + " takes no value";
    std::fprintf(stderr, "%s: %s; %s -h lists the options\n", call_.program.c_str(), without_controls(message).c_str(),
                 call_.program.c_str());
    return kExitFailed;
  }
}

smaller_run::smaller_run(const command_parser& parser) : parser_(parser) {
  const auto chosen = choose_gpu();  // no GPU at all: the command reports it better
  is_simulated_ = chosen && *chosen == gpu_kind::simulated;
}

smaller_run::~smaller_run() {
  if (!adjustments_.empty())
    std::fprintf(stderr, "note: smaller than by default, as the GPU is simulated: %s; options given are kept\n",
                 adjustments_.c_str());
}

bool smaller_run::applies_to(const char* option, const std::string& shown) {
  if (!is_simulated_ || parser_.is_given(option)) return false;
  adjustments_ += (adjustments_.empty() ? "" : ", ") + std::string(option) + " " + shown;
  return true;
}

void smaller_run::number(const char* option, std::int64_t& value, std::int64_t smaller) {
  if (smaller < value && applies_to(option, std::to_string(smaller))) value = smaller;
}

void smaller_run::size(const char* option, std::uint64_t& value, std::uint64_t smaller) {
  if (smaller < value && applies_to(option, format_size(smaller))) value = smaller;
}

void smaller_run::text(const char* option, std::string& value, const std::string& smaller) {
  if (smaller != value && applies_to(option, smaller)) value = smaller;
}

}  // namespace pl::tools
