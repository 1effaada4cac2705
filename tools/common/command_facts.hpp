// SPDX-License-Identifier: Apache-2.0
// What a command takes, as data: completions and the manual are made from the same tables that parse the command line.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace pl::tools {

struct option_facts {
  std::vector<std::string> names;  // "-s", "--size"; a positional argument has its one name without dashes
  std::string value;               // "SIZE", "auto|none|LIST"; empty: a flag
  std::string help;
  std::vector<std::string> words;  // of `value`, those to be typed as they are
  bool is_positional = false;
};

struct command_facts {
  std::string name, help;  // "copybw", one line
  std::string drop_in;     // names under which it is another program's drop-in, comma-separated; empty: none
  std::string description;
  std::vector<option_facts> options;
  std::vector<command_facts> commands;  // subcommands
};

// The words of "auto|none|LIST" that are meant literally: those not in capitals.
std::vector<std::string> literal_words(const std::string& value);

// Completions of the last of `words`, one "word<TAB>help" per line. `words` are those after the program's name.
std::vector<std::string> complete(const command_facts& program, std::span<const std::string> words);

// The manual page in man(7) form.
std::string manual_page(const command_facts& program, const std::string& version);

// One table for `peerlane help` and the manual.
struct exit_status {
  const char *code, *meaning;
};
std::span<const exit_status> exit_statuses();

}  // namespace pl::tools
