// SPDX-License-Identifier: Apache-2.0
// Command lines: CLI11 with the conventions of the stock tools (exit code 1, sizes in hex or with K/M/G).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/command_facts.hpp"
#include "tools/common/tool.hpp"

namespace CLI {
class App;  // <CLI/CLI.hpp> costs every file 4 s of CPU time to compile: only those that call app() include it
}

namespace pl::tools {

enum class alloc_kind { cu_mem_alloc, cu_mem_create };
const char* to_string(alloc_kind kind);

// Options that every tool with a GPU understands; `-a` and `-M` only after add_mapping_options.
struct common_options {
  int gpu = 0;
  std::string json_path;     // empty: no result file; "-": standard output, with the text on stderr
  std::string cpu = "auto";  // auto: CPUs near the GPU; none: leave the thread alone; else a list
  alloc_kind alloc = alloc_kind::cu_mem_alloc;
  int map_flag = 0;  // gdr_map_flags_t
};

enum class presence { optional, required };

// A parser with `-h` and the program's name. Use parse() below, not its own.
class command_parser {
 public:
  command_parser(const invocation& call, const std::string& description);
  ~command_parser();

  CLI::App& app() { return *app_; }
  void size(const std::string& names, std::uint64_t& value, const std::string& help);
  void integer(const std::string& names, std::int64_t& value, std::int64_t lowest, std::int64_t highest,
               const std::string& help);
  // The same for what is more than a number. `kind` says what the value is: its unit in capitals, SECONDS, or its words,
  // "0|1".
  void integer(const std::string& names, const std::string& kind, std::int64_t& value, std::int64_t lowest,
               std::int64_t highest, const std::string& help);
  void flag(const std::string& names, bool& value, const std::string& help);
  // `kind`: FILE, DIR, HOST:PORT, NAME ... for a value of the reader's; "auto|off|on" for words, which completion offers.
  // LIST stands for words with commas between them, "N,..." for several of a kind.
  void text(const std::string& names, const std::string& kind, std::string& value, const std::string& help);
  // Words with commas between them.
  void list(const std::string& names, std::vector<std::string>& values, const std::string& help);
  // May be given several times, one value each.
  void repeated(const std::string& names, const std::string& kind, std::vector<std::string>& values,
                const std::string& help);
  // The option of this name stays out of -h and of completion.
  void hide(const std::string& name);
  // A word without dashes. Its name is what -h calls it, and says what it is: POOL, KEY, FILE.
  void positional(const std::string& name, presence wanted, std::string& value, const std::string& help);
  void positional(const std::string& name, presence wanted, std::vector<std::string>& values, const std::string& help);
  // Several of them, each one of `kind`, "general|copy".
  void words(const std::string& name, const std::string& kind, std::vector<std::string>& values, const std::string& help);
  // An option or a word without dashes that takes one of these words.
  void choice(const std::string& names, presence wanted, std::string& value, const std::vector<std::string>& words,
              const std::string& help);
  void common(common_options& options, bool with_gpu = true);
  void mapping(common_options& options);

  // Returns nothing to continue. Otherwise the tool ends with this exit code (help was requested, or an error was
  // printed).
  std::optional<int> parse();

  // After parse(): whether the user gave this option.
  bool is_given(const std::string& name) const;

  // For commands with their own parser, after it: what is wrong with the first option that names a file, an address or the
  // like and was given an empty value; empty: nothing.
  std::string empty_place() const;
  // For commands with their own parser. Fills the caller's facts and returns true if the caller asked only for them.
  bool print_facts();
  // "unknown option --sise; did you mean --size?" for the first argument that looks like an option but is not one;
  // otherwise `message`.
  std::string complaint(const std::string& message) const;

 private:
  const invocation& call_;
  std::unique_ptr<CLI::App> app_;
};

// Smaller defaults where the GPU is simulated: a kernel's threads take turns on the CPU there, and the full run would take
// minutes for numbers that mean nothing. What the user gave stays.
class smaller_run {
 public:
  // May choose the GPU (gpu_choice.hpp). Does nothing on a real one.
  explicit smaller_run(const command_parser& parser);
  ~smaller_run();  // says on stderr what is smaller
  smaller_run(const smaller_run&) = delete;
  smaller_run& operator=(const smaller_run&) = delete;

  void number(const char* option, std::int64_t& value, std::int64_t smaller);
  void size(const char* option, std::uint64_t& value, std::uint64_t smaller);
  void text(const char* option, std::string& value, const std::string& smaller);

 private:
  bool applies_to(const char* option, const std::string& shown);
  const command_parser& parser_;
  bool is_simulated_;
  std::string adjustments_;
};

}  // namespace pl::tools
