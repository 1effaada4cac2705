// SPDX-License-Identifier: Apache-2.0
#include "tools/common/command_facts.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::tools {
namespace {

constexpr exit_status kExitStatuses[] = {
    {"0", "success"},
    {"1", "failure, or a wrong command line; the last line on standard error says what to do"},
    {"2", "bandwidth: wrong data, or a testcase failed; gate: unfit"},
    {"3", "bandwidth: a link is slow; gate: unknown"},
    {"4", "bandwidth, soak: interrupted; gate: in use (--refuse-in-use)"},
    {"5", "bandwidth: every testcase was waived"},
    {"6", "bandwidth: too unsteady for a verdict"},
};

const command_facts* find_command(const command_facts& parent, const std::string& name) {
  const auto found =
      std::find_if(parent.commands.begin(), parent.commands.end(), [&](const auto& one) { return one.name == name; });
  return found == parent.commands.end() ? nullptr : &*found;
}

const option_facts* find_option(const command_facts& parent, const std::string& name) {
  for (const auto& one : parent.options)
    if (!one.is_positional && std::find(one.names.begin(), one.names.end(), name) != one.names.end()) return &one;
  return nullptr;
}

// Escapes a backslash and a dot at the start of a line, which man interprets.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else if (c == '\n') out += "\n.br\n";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) (out += "\\&") += c;
    else out += c;
  }
  return out;
}

std::string tagged(const std::string& tag, const std::string& text) { return ".TP\n" + tag + "\n" + roff(text) + "\n"; }

std::string option_tag(const option_facts& one) {
  std::string tag;
  for (const auto& name : one.names) tag += (tag.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  if (!one.value.empty() && !one.is_positional) tag += " \\fI" + roff(one.value) + "\\fR";
  return tag;
}

void add_options(const command_facts& command, std::string& out) {
  for (const auto& one : command.options)
    if (one.names[0] != "-h" && one.names[0] != "--version") out += tagged(option_tag(one), one.help);
}

void add_command(const command_facts& one, const std::string& path, std::string& out) {
  out += ".SS " + roff(path) + "\n" + roff(one.description.empty() ? one.help : one.description) + "\n";
  if (!one.drop_in.empty()) out += ".PP\nAlso under the name \\fB" + roff(one.drop_in) + "\\fR.\n";
  add_options(one, out);
  for (const auto& inner : one.commands) add_command(inner, path + " " + inner.name, out);
}

void add_environment(std::string& out) {
  out += ".SH ENVIRONMENT\n\\fBpeerlane env\\fR prints each variable with the value in force.\n";
  for (const auto& one : env_registry()) {
    const std::string_view name(one.name);
    if (name.starts_with("PEERLANE_") || name.starts_with("GDRCOPY_"))
      out += tagged("\\fB" + roff(one.name) + "\\fR" + (one.choices[0] != '\0' ? " (" + roff(one.choices) + ")" : ""),
                    one.meaning);
  }
}

}  // namespace

std::span<const exit_status> exit_statuses() { return kExitStatuses; }

std::vector<std::string> literal_words(const std::string& value) {
  std::vector<std::string> out;
  if (value.find('|') == std::string::npos) return out;
  for (std::size_t begin = 0; begin <= value.size();) {
    const auto end = std::min(value.find('|', begin), value.size());
    const std::string word = value.substr(begin, end - begin);
    if (std::any_of(word.begin(), word.end(), [](unsigned char c) { return std::islower(c) != 0; })) out.push_back(word);
    begin = end + 1;
  }
  return out;
}

std::vector<std::string> complete(const command_facts& program, std::span<const std::string> words) {
  std::vector<std::string> out;
  if (words.empty()) return out;
  const std::string& begun = words.back();
  const command_facts* current = &program;
  const option_facts* waiting = nullptr;
  for (const auto& word : words.first(words.size() - 1)) {
    if (waiting != nullptr) waiting = nullptr;  // this word is its value
    else if (const auto* inner = find_command(*current, word)) current = inner;
    else if (const auto* option = find_option(*current, word); option != nullptr && !option->value.empty()) waiting = option;
  }
  const auto offer = [&](const std::string& word, const std::string& help) {
    if (word.starts_with(begun)) out.push_back(word + "\t" + help.substr(0, help.find('\n')));
  };
  if (waiting != nullptr) {
    for (const auto& word : waiting->words) offer(word, "");
    return out;
  }
  for (const auto& one : current->commands) offer(one.name, one.help);
  for (const auto& one : current->options) {
    if (one.is_positional)
      for (const auto& word : one.words) offer(word, one.help);
    else if (begun.starts_with("-"))
      for (const auto& name : one.names)
        if (name.starts_with("--") || begun.size() < 2) offer(name, one.help);
  }
  return out;
}

std::string manual_page(const command_facts& program, const std::string& version) {
  std::string out = ".TH PEERLANE 1 \"\" \"peerlane " + version + "\" \"User Commands\"\n.SH NAME\npeerlane \\- " +
                    roff(program.help) +
                    "\n.SH SYNOPSIS\n.B peerlane\n.I COMMAND\n.RI [ options ]\n.br\n.B peerlane help\n.RI [ COMMAND ]\n.br\n"
                    ".B peerlane\n.RB [ \\-\\-help | \\-\\-version ]\n.SH DESCRIPTION\n" +
                    roff(program.description) + "\n.SH COMMANDS\n";
  for (const auto& one : program.commands) out += tagged("\\fBpeerlane " + roff(one.name) + "\\fR", one.help);
  out +=
      ".PP\nEvery command has \\fB\\-h\\fR, \\fB\\-\\-help\\fR and \\fB\\-\\-version\\fR. Those with \\fB\\-\\-json\\fR "
      "take "
      "\\fB\\-\\fR for standard output; the text then goes to standard error.\n.SH OPTIONS OF THE COMMANDS\n";
  for (const auto& one : program.commands) add_command(one, "peerlane " + one.name, out);
  add_environment(out);
  out += ".SH EXIT STATUS\n";
  for (const auto& one : kExitStatuses) out += tagged(std::string("\\fB") + one.code + "\\fR", one.meaning);
  out += ".PP\nUnder the names of other programs the status is theirs: 0, or 1 for a failure.\n";
  return out;
}

}  // namespace pl::tools
