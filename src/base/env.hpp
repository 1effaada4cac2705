// SPDX-License-Identifier: Apache-2.0
// The registry of every environment variable that Peerlane reads. Nothing else calls getenv (scripts/lint checks).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pl {

enum class env_type { text, integer, size_bytes, boolean, presence, choice };

struct env_variable {
  const char* name;
  env_type type;
  const char* unit;           // "" if it has none
  const char* default_value;  // as text; returned by env_read when the variable is unset
  const char* choices;        // choice: "a|b|c"; integer: "LOWEST..HIGHEST" or ""; otherwise ""
  const char* meaning;
};

struct env_value {
  bool is_set = false;       // present in the environment and well-formed
  std::string text;          // the value, or the default
  std::int64_t integer = 0;  // integer, size_bytes; boolean and presence as 0/1; PEERLANE_LOG as a level
  std::string problem;       // why the given value was refused (the default then applies); empty if it was accepted
};

// All variables, in the order `peerlane env` prints them.
std::span<const env_variable> env_registry();

// Reads and parses one registered variable. An unregistered name is a bug (asserts). A malformed value logs one error
// line, sets `problem` and returns the default. Reads the environment at each call; callers on hot paths cache it. The
// first read of a process also warns of misspelt names (except for the simulated GPU's reads: the library beside it
// does).
env_value env_read(const char* name);

// A name in the environment that begins like ours (PEERLANE_, GDRCOPY_, or nearly so) and is not in the registry.
struct env_unknown {
  std::string name;
  std::string nearest;  // the registered name that was probably meant; empty if none is similar
};
std::vector<env_unknown> env_unknown_names();

// The warning about a name with a similar registered one.
std::string env_unknown_text(const env_unknown& one);

// Logs a line for each misspelt name, unless PEERLANE_NAMES_CHECKED is 1. env_read calls it once.
void env_warn_of_unknown_names() noexcept;

}  // namespace pl
