// SPDX-License-Identifier: Apache-2.0
// env: the registry of environment variables with what is in force now. Exit code 1 if a value is refused.
#include <cstdio>

#include "env.hpp"
#include "report.hpp"
#include "table.hpp"
#include "text.hpp"

namespace pl::tools {
namespace {

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

}  // namespace

int run_env(const invocation& call) {
  common_options options;
  command_parser parser(call, "Environment variables that Peerlane reads: value in force, default, meaning");
  parser.common(options, false);
  if (const auto code = parser.parse()) return *code;
  report out(call, options, "env");
  text_table table({{"variable", text_table::align::left},
                    {"value", text_table::align::left},
                    {"from", text_table::align::left},
                    {"default", text_table::align::left},
                    {"choices", text_table::align::left},
                    {"meaning", text_table::align::left}});
  bool good = true;
  for (const auto& variable : env_registry()) {
    const env_value value = env_read(variable.name);
    const bool refused = !value.problem.empty();
    good = good && !refused;
    const std::string choices = variable.choices[0] != '\0' ? variable.choices : type_name(variable.type);
    table.add_row({variable.name, value.text.empty() ? "-" : value.text,
                   refused        ? "default (refused)"
                   : value.is_set ? "environment"
                                  : "default",
                   variable.default_value[0] != '\0' ? variable.default_value : "-", choices, variable.meaning});
    out.file().add_row({{"variable", variable.name},
                        {"type", type_name(variable.type)},
                        {"unit", variable.unit},
                        {"default", variable.default_value},
                        {"choices", variable.choices},
                        {"meaning", variable.meaning},
                        {"value", value.text},
                        {"is_set", value.is_set},
                        {"problem", value.problem}});
  }
  std::fputs(table.render().c_str(), stdout);
  out.file().set_pass(good);
  out.write();
  return good ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
