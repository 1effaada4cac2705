// SPDX-License-Identifier: Apache-2.0
#include "tools/common/subcommand.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>

#include "base/spelling.hpp"
#include "tools/common/command_facts.hpp"
#include "tools/common/terminal.hpp"

namespace pl::tools {

namespace {

int print_facts(const invocation& call, std::span<const subcommand> all) {
  for (const auto& one : all) {
    command_facts& inner = call.facts->commands.emplace_back();
    inner.name = one.name;
    inner.help = one.help;
    invocation asked = call;
    asked.program += std::string(" ") + one.name;
    asked.arguments.clear();
    asked.facts = &inner;
    one.run(asked);
  }
  return kExitOk;
}

}  // namespace

std::string did_you_mean(const std::string& word, std::span<const std::string> known) {
  const std::string nearest = nearest_word(word, known);
  return nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?";
}

int run_subcommand(const invocation& call, const char* noun, std::span<const subcommand> all) {
  if (call.facts != nullptr) return print_facts(call, all);
  const std::string word = call.arguments.empty() ? "-h" : call.arguments[0];
  std::size_t widest = 0;
  for (const auto& one : all) {
    widest = std::max(widest, std::strlen(one.name));
    if (word != one.name) continue;
    invocation inner = call;
    inner.program += std::string(" ") + one.name;
    inner.arguments.erase(inner.arguments.begin());
    return one.run(inner);
  }
  const bool is_help = word == "-h" || word == "--help";
  if (!is_help) {
    std::vector<std::string> names;
    for (const auto& one : all) names.emplace_back(one.name);
    std::fprintf(stderr, "%s: unknown %s \"%s\"%s; %s -h lists them\n", call.program.c_str(), noun,
                 without_controls(word).c_str(), did_you_mean(word, names).c_str(), call.program.c_str());
    return kExitFailed;
  }
  std::FILE* const stream = call.arguments.empty() ? stderr : stdout;
  std::string capitals = noun;
  for (char& letter : capitals) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  std::fprintf(stream, "usage: %s %s [options]\n\n%ss:\n", call.program.c_str(), capitals.c_str(), noun);
  for (const auto& one : all) std::fprintf(stream, "  %-*s  %s\n", static_cast<int>(widest + 2), one.name, one.help);
  return call.arguments.empty() ? kExitFailed : kExitOk;
}

}  // namespace pl::tools
