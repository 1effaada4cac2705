// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/bandwidth_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "tools/bandwidth/compat_text.hpp"
#include "tools/common/options.hpp"
#include "tools/common/terminal.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kSmallest = 4;
constexpr std::uint64_t kLargest = 1ull << 40;

bool is_digits(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

// Filled by the parser, then converted to options.
struct raw_options {
  std::string buffer_size, sweep, host_memory = "pinned", threshold;
  std::int64_t samples = 0, loop_count = 0, numa_node = -1, sm_count = 0, threads = 0, timeout_s = 30, seed = 1;
  std::int64_t nodes = 0, rank = -1;
  std::string output_format;
  bool use_huge_pages = false, version = false;
  bool skip_verification = false, compat = false, compat_bugs = false, no_judge = false, json_flag = false;
};

class command_line {
 public:
  command_line(const tools::invocation& call, bandwidth_options& options)
      : call_(call),
        options_(options),
        parser_(call,
                "Measures bandwidth and latency between host and GPU memory, by copy engine, kernel, BAR1 and DMA channel") {
    add_original();
    add_ours();
    add_output();
  }

  std::optional<int> parse() {
    if (parser_.print_facts()) return tools::kExitOk;
    auto arguments = whole_names();
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the end
    try {
      parser_.app().parse(arguments);
      if (raw_.version) {
        std::fputs(compat_version_lines("").c_str(), stdout);
        return tools::kExitOk;
      }
      if (const auto fault = parser_.empty_place(); !fault.empty()) return refuse(fault);
      finish();
      return std::nullopt;
    } catch (const CLI::CallForHelp&) {
      if (call_.drop_in) std::fputs(compat_version_lines("").c_str(), stdout);
      std::fputs(parser_.app().help().c_str(), stdout);
      return tools::kExitOk;
    } catch (const CLI::ExtrasError& error) {
      return refuse(call_.drop_in ? error.what() : parser_.complaint(error.what()));
    } catch (const CLI::ParseError& error) { return refuse(error.what()); }
  }

 private:
  CLI::Option* hidden(CLI::Option* option) { return option->group(""); }

  void add_original() {
    auto& app = parser_.app();
    app.add_option("-b,--bufferSize", raw_.buffer_size, "Size of one copy: a number of MiB, or with K, M, G [512]")
        ->type_name("SIZE");
    parser_.flag("-l,--list", options_.list, "List the testcases and exit");
    app.add_option("-t,--testcase", options_.testcases, "Run these testcases, by name or number, in this order")
        ->type_name("NAME");
    app.add_option("-p,--testcasePrefixes", options_.prefixes, "Run all testcases with one of these prefixes")
        ->type_name("PREFIX");
    parser_.flag("-v,--verbose", options_.verbose, "Print each sample");
    parser_.flag("-s,--skipVerification", raw_.skip_verification, "Do not verify the copied data");
    parser_.flag("-d,--disableAffinity", options_.test.disable_affinity, "Do not place host memory near the GPU");
    const auto samples = call_.drop_in ? "Samples of each cell [3]" : "Samples of each cell [5]";
    app.add_option_function<std::int64_t>(
           "-i,--testSamples,--samples", [this](std::int64_t n) { set_samples(n); }, samples)
        ->type_name("N");
    parser_.flag("-m,--useMean", options_.test.use_mean, "Report the mean of the samples, not the median");
    app.add_option("-P,--targetNumPairs", options_.pairs_wanted,
                   "Number of pairs to measure, chosen so that every GPU takes part; -1: all [-1]")
        ->type_name("N")
        ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 40).description(""));
    parser_.flag("-H,--useHugePages", raw_.use_huge_pages, "Host memory on huge pages, as --host-memory huge");
    app.add_option("-F,--format", raw_.output_format, "Output format, as the original prints it: text, json or perf [text]")
        ->type_name("text|json|perf");
    app.add_option("--pair", options_.pair, "Testcases between two GPUs measure only these two")
        ->type_name("UUID")
        ->expected(2);
    if (call_.drop_in) parser_.flag("--version", raw_.version, "Print the version and exit");
    hidden(app.add_option("--loopCount", raw_.loop_count, "Number of copies in a sample"));
    hidden(app.add_flag("--perfFormatter", options_.perf_formatter, "Print PERF lines instead of SUM"));
  }

  void set_samples(std::int64_t n) {
    if (n < 1 || n > 100'000) throw CLI::ValidationError("-i", "from 1 to 100000 samples");
    raw_.samples = n;
  }

  void add_ours() {
    auto& app = parser_.app();
    app.add_option("--size-sweep", raw_.sweep,
                   "Measure several sizes instead of one: FROM, doubled until TO, such as 4K:256M")
        ->type_name("FROM:TO");
    app.add_option("--transfer", options_.transfers,
                   "Transfers that run together: \"H0 -> [ce] -> G0, G0 -> [sm:16] -> H0\"")
        ->type_name("LINE")
        ->expected(1)
        ->take_all();
    app.add_option("--host-memory", raw_.host_memory, "Kind of host memory [pinned]")->type_name("pinned|pageable|huge");
    parser_.integer("--numa-node", raw_.numa_node, -1, 1023, "NUMA node of host memory; -1: near the GPU");
    parser_.integer("--sm-count", raw_.sm_count, 0, 1024, "Multiprocessors of one GPU for copy kernels; 0: all");
    parser_.integer("--threads", raw_.threads, 0, 1024, "CPU threads of a transfer through BAR1; 0: one");
    parser_.integer("--timeout", "SECONDS", raw_.timeout_s, 1, 3600,
                    "Time limit of one sample; of a process that does not answer: this, but at least 60 s");
    parser_.integer("--seed", raw_.seed, 0, INT64_MAX, "Seed of the data and of pointer chases");
    parser_.integer("--nodes", raw_.nodes, 0, 4096, "Number of processes of a multi-node run; 0: as the launcher says");
    parser_.integer("--rank", raw_.rank, -1, 4095, "Rank of this process; -1: as the launcher says");
    app.add_option("--rendezvous", options_.ranks.rendezvous, "Address at which process 0 listens")->type_name("HOST:PORT");
    parser_.flag("--multicast", options_.test.allow_multicast, "Let testcases 54 and 55 create multicast objects");
  }

  void add_output() {
    auto& app = parser_.app();
    if (call_.drop_in) {
      // A flag like the original's; with a file name it is our extension.
      app.add_option("-j,--json", options_.json_path, "Print the results as JSON; with FILE: write the result file")
          ->expected(0, 1)
          ->type_name("[FILE]")
          ->each([](const std::string&) {});
    } else {
      parser_.flag("-j", options_.json_to_stdout, "The same as --json - (with --compat: the original's object)");
      app.add_option("--json", options_.json_path, "Write the result file (docs/results.md); - is standard output")
          ->type_name("FILE");
      parser_.flag("--compat", raw_.compat, "Text and -j as the original prints them");
    }
    app.add_option("--jsonl", options_.jsonl_path, "Write a line to FILE for each finished cell")->type_name("FILE");
    app.add_option("--csv", options_.csv_path, "Write all cells to FILE as a table")->type_name("FILE");
    parser_.flag("--compat-bugs", raw_.compat_bugs, "Measure and name things as the original does, mistakes included");
    app.add_option("--baseline", options_.baseline_path, "Compare with the result file of an earlier run")
        ->type_name("FILE");
    app.add_option("--threshold", raw_.threshold,
                   "A rate is slow if it is this much below the baseline [5], or without one, below the expectation [15]")
        ->type_name("PERCENT");
    parser_.flag("--no-judge", raw_.no_judge, "Do not compare with expectations; print no verdicts");
  }

  // Flags that follow -j in one word, -jv or -jb64, are options of their own in the original: its -j never has a value.
  static void split_json_flag(std::vector<std::string>& arguments) {
    constexpr std::string_view kFlags = "hlvsdmH";
    for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
      const std::size_t first = arguments[i].find_first_not_of(kFlags, 1);
      if (arguments[i].size() < 2 || arguments[i][0] != '-' || first == std::string::npos || arguments[i][first] != 'j' ||
          first + 1 == arguments[i].size())
        continue;
      const std::string rest = "-" + arguments[i].substr(first + 1);
      arguments[i].resize(first + 1);
      arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, rest);
    }
  }

  static std::vector<std::string> beginning_with(const std::string& given, const std::vector<std::string>& names) {
    std::vector<std::string> out;
    for (const std::string& name : names)
      if (name.starts_with(given)) out.push_back(name);
    return out;
  }

  // The original takes any beginning of a long name that fits one option only. Its own options come first: --js is --json,
  // though there is a --jsonl here.
  std::vector<std::string> whole_names() const {
    static const std::vector<std::string> kOriginals = {
        "--help",    "--bufferSize",       "--list",      "--testcase",       "--testcasePrefixes",
        "--verbose", "--skipVerification", "--loopCount", "--testSamples",    "--disableAffinity",
        "--useMean", "--perfFormatter",    "--json",      "--targetNumPairs", "--useHugePages",
        "--format"};
    std::vector<std::string> names;
    for (const CLI::Option* each : parser_app().get_options())
      for (const std::string& name : each->get_lnames())
        if (name != "version") names.push_back("--" + name);  // --ver is --verbose, as before there was a --version
    std::vector<std::string> out = call_.arguments;
    if (call_.drop_in) split_json_flag(out);
    for (std::string& each : out) {
      if (!each.starts_with("--") || each.size() < 3) continue;
      const std::size_t equals = std::min(each.find('='), each.size());
      const std::string given = each.substr(0, equals);
      auto fitting = beginning_with(given, names);
      if (std::find(fitting.begin(), fitting.end(), given) != fitting.end()) continue;
      if (call_.drop_in && fitting.size() > 1) fitting = beginning_with(given, kOriginals);
      if (fitting.size() == 1) each = fitting[0] + each.substr(equals);
    }
    return out;
  }
  const CLI::App& parser_app() const { return const_cast<tools::command_parser&>(parser_).app(); }

  void finish() {
    finish_sizes();
    finish_memory();
    finish_method();
    finish_output();
    finish_judging();
    options_.ranks.nodes = static_cast<int>(raw_.nodes);
    options_.ranks.rank = static_cast<int>(raw_.rank);
    options_.ranks.timeout_s = static_cast<unsigned>(std::max<std::int64_t>(raw_.timeout_s, 60));
    if (!options_.testcases.empty() && !options_.prefixes.empty())
      throw CLI::ValidationError("-t", "-t and -p exclude each other");
  }

  void finish_sizes() {
    if (!raw_.buffer_size.empty()) {
      const auto bytes = parse_buffer_size(raw_.buffer_size);
      if (!bytes)
        throw CLI::ValidationError("-b", format("\"%s\" is not a size: write 64 (MiB), 64K, 512M or 1G; 4 bytes at least",
                                                raw_.buffer_size.c_str()));
      options_.test.bytes = *bytes;
    }
    options_.sizes = {options_.test.bytes};
    options_.has_size = !raw_.buffer_size.empty() || !raw_.sweep.empty();
    if (raw_.sweep.empty()) return;
    options_.sizes = parse_sweep(raw_.sweep);
    options_.sweep = true;
    if (options_.sizes.empty())
      throw CLI::ValidationError("--size-sweep", format("\"%s\" is not FROM:TO, such as 4K:256M", raw_.sweep.c_str()));
  }

  void finish_memory() {
    static const std::map<std::string, host_kind> kKinds = {
        {"pinned", host_kind::pinned}, {"pageable", host_kind::pageable}, {"huge", host_kind::huge}};
    const auto kind = kKinds.find(raw_.host_memory);
    if (kind == kKinds.end())
      throw CLI::ValidationError("--host-memory",
                                 format("\"%s\" is not one of pinned, pageable, huge", raw_.host_memory.c_str()));
    options_.test.host = raw_.use_huge_pages ? host_kind::huge : kind->second;
    options_.test.numa_node = static_cast<int>(raw_.numa_node);
    options_.test.sm_count = static_cast<unsigned>(raw_.sm_count);
    options_.test.threads = static_cast<unsigned>(raw_.threads);
  }

  void finish_method() {
    method& settings = options_.test.settings;
    settings.samples = static_cast<unsigned>(raw_.samples > 0 ? raw_.samples : call_.drop_in ? 3 : 5);
    options_.has_samples = raw_.samples > 0;
    settings.verify = !raw_.skip_verification;
    settings.seed = static_cast<std::uint64_t>(raw_.seed);
    settings.timeout_s = static_cast<unsigned>(raw_.timeout_s);
    if (raw_.loop_count < 0 || raw_.loop_count > 1'000'000)
      throw CLI::ValidationError("--loopCount", "from 1 to 1000000 copies");
    if (raw_.loop_count > 0) {
      settings.copies = static_cast<unsigned>(raw_.loop_count);
      settings.min_sample_ns = 0;
    }
    if (!raw_.compat_bugs) return;
    options_.test.original_mistakes = true;
    settings.balance = false;
    settings.whole_microseconds = true;
    settings.min_sample_ns = 0;
  }

  void finish_format() {
    if (raw_.output_format.empty()) return;
    if (raw_.output_format == "json") options_.json_to_stdout = true;
    else if (raw_.output_format == "perf") options_.perf_formatter = true;
    else if (raw_.output_format != "text")
      throw CLI::ValidationError("--format", format("\"%s\" is not one of text, json, perf", raw_.output_format.c_str()));
  }

  void finish_output() {
    options_.compat = call_.drop_in || raw_.compat || raw_.compat_bugs || !raw_.output_format.empty();
    finish_format();
    options_.exit_as_original = call_.drop_in;
    options_.test.mean_latency = options_.compat;
    // The original's flag has no value: a lone --json or -j prints.
    if (call_.drop_in && parser_.app().count("--json") > 0 && options_.json_path.empty()) options_.json_to_stdout = true;
    if (options_.json_path == "-") {
      options_.json_path.clear();
      options_.json_to_stdout = true;
    }
    for (const auto& [option, path] : {std::pair{"--csv", &options_.csv_path}, {"--jsonl", &options_.jsonl_path}})
      if (*path == "-")
        throw CLI::ValidationError(option,
                                   "\"-\": standard output has the text or --json; name a file, or a pipe such as "
                                   ">(command)");
  }

  void finish_judging() {
    const bool asked = !options_.baseline_path.empty() || !raw_.threshold.empty();
    options_.test.judge = !raw_.no_judge && (!call_.drop_in || asked);
    if (asked) options_.exit_as_original = false;
    if (raw_.threshold.empty()) return;
    char* end = nullptr;
    const double percent = std::strtod(raw_.threshold.c_str(), &end);
    if (end == raw_.threshold.c_str() || *end != '\0' || !(percent >= 0 && percent < 100))
      throw CLI::ValidationError("--threshold", format("\"%s\" is not a percentage from 0 to 100", raw_.threshold.c_str()));
    options_.threshold_percent = percent;
    if (!options_.baseline_path.empty()) return;
    options_.test.limits.good = 1 - percent / 100;
    options_.test.limits.suspicious = std::min(options_.test.limits.suspicious, options_.test.limits.good);
  }

  int refuse(const std::string& reason) {
    if (!call_.drop_in) {
      std::fprintf(stderr, "%s: %s; %s -h lists the options\n", call_.program.c_str(),
                   tools::without_controls(reason).c_str(), call_.program.c_str());
      return tools::kExitFailed;
    }
    std::fputs(compat_version_lines("").c_str(), stdout);
    std::printf("ERROR: Invalid Arguments: %s\n", tools::without_controls(reason).c_str());
    for (const std::string& each : call_.command_line) std::printf("%s ", tools::without_controls(each).c_str());
    std::printf("\n\n%s", parser_.app().help().c_str());
    return tools::kExitFailed;
  }

  const tools::invocation& call_;
  bandwidth_options& options_;
  tools::command_parser parser_;
  raw_options raw_;
};

}  // namespace

std::optional<std::uint64_t> parse_buffer_size(const std::string& text) {
  if (is_digits(text)) {
    const auto mib = parse_size(text);
    if (!mib || *mib == 0 || *mib > (kLargest >> 20)) return std::nullopt;
    return *mib << 20;
  }
  const bool in_bytes =
      text.size() > 1 && (text.back() == 'B' || text.back() == 'b') && is_digits(text.substr(0, text.size() - 1));
  const auto bytes = parse_size(in_bytes ? text.substr(0, text.size() - 1) : text);
  if (!bytes || *bytes < kSmallest || *bytes > kLargest) return std::nullopt;
  return bytes;
}

std::vector<std::uint64_t> parse_sweep(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return {};
  const auto smallest = parse_size(text.substr(0, colon));
  const auto largest = parse_size(text.substr(colon + 1));
  if (!smallest || !largest || *smallest < kSmallest || *smallest > *largest || *largest > kLargest) return {};
  std::vector<std::uint64_t> out;
  for (std::uint64_t bytes = *smallest; bytes < *largest; bytes *= 2) out.push_back(bytes);
  out.push_back(*largest);
  return out;
}

std::optional<int> parse_options(const tools::invocation& call, bandwidth_options& options) {
  return command_line(call, options).parse();
}

}  // namespace pl::bandwidth
