// SPDX-License-Identifier: Apache-2.0
// Settings files of random and of damaged text: the parser takes nothing that its schema would not, names what it refuses,
// and what it takes is what stands in the file. From a seeded generator in the test suite, or from libFuzzer (preset fuzz):
//   store_config_fuzz -max_total_time=600
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "store/server/server_config.hpp"
#ifdef PL_LIBFUZZER
#include "test/support/fuzz.hpp"
#endif

namespace pl::store_server {
namespace {

using nlohmann::json;

const json& properties() {
  static const json all = json::parse(config_schema())["properties"];
  return all;
}

// The error of `text` by the field's rules in the schema; empty if none.
std::string held_against(const std::string& name, const json& value) {
  if (!properties().contains(name)) return name + " was taken and is in no schema";
  const json& rules = properties()[name];
  const std::string type = rules["type"];
  const bool right = type == "integer"   ? value.is_number_integer()
                     : type == "boolean" ? value.is_boolean()
                     : type == "array"   ? value.is_array()
                                         : value.is_string();
  if (!right) return name + " was taken with a value of another type";
  if (type == "integer" && (value < rules["minimum"] || value > rules["maximum"]))
    return name + " was taken out of its range";
  if (type == "integer" && rules.contains("multipleOf") &&
      value.get<std::uint64_t>() % rules["multipleOf"].get<std::uint64_t>() != 0)
    return name + " was taken off its multiple";
  return {};
}

// The error, empty if none. `taken` counts files that were understood.
std::string replay_config(const std::string& text, int& taken) {
  server_config config;
  const auto done = read_config(text, config);
  if (!done) {
    const bool is_described = done.code() == EINVAL && done.error().message.starts_with("config");
    return is_described ? std::string() : "not told well: " + done.error().message;
  }
  ++taken;
  const json whole = json::parse(text, nullptr, false);
  if (!whole.is_object()) return "something that is no JSON object was taken";
  for (const auto& [name, value] : whole.items())
    if (const std::string problem = held_against(name, value); !problem.empty()) return problem;
  if (whole.contains("threads") && whole["threads"] != config.threads) return "threads is not what the file says";
  if (whole.contains("data") && whole["data"] != config.data) return "data is not what the file says";
  if (const auto good = check(config); !good && good.error().message.empty()) return "refused without a word";
  return {};
}

json some_value(const json& rules, std::mt19937& random) {
  switch (random() % 8) {
    case 0:
      return random() % 2 == 0;
    case 1:
      return std::string(random() % 5, 'x');
    case 2:
      return json::array({"uid:1", random() % 5});
    case 3:
      return static_cast<std::int64_t>(random()) - (std::int64_t{1} << 31);
    case 4:
      return static_cast<double>(random()) / 7;
    default:
      break;
  }
  if (rules["type"] == "integer") {
    const auto lowest = rules["minimum"].get<std::uint64_t>();
    return random() % 2 == 0 ? rules.value("default", lowest) : lowest + random() % 100;
  }
  if (rules["type"] == "boolean") return true;
  if (rules["type"] == "array") return json::array({"uid:0"});
  return "text";
}

// A file of a few fields, most of them with values that the schema allows.
std::string some_file(std::uint32_t seed) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const auto& [name, rules] : properties().items()) out.push_back(name);
    return out;
  }();
  std::mt19937 random(seed);
  json file = json::object();
  for (unsigned i = random() % 4; i > 0; --i) {
    const std::string& name = names[random() % names.size()];
    file[random() % 20 == 0 ? name + "s" : name] = some_value(properties()[name], random);
  }
  return file.dump();
}

}  // namespace
}  // namespace pl::store_server

#ifdef PL_LIBFUZZER

namespace pl::fuzz {
std::string problem_with(std::span<const std::uint8_t> input) {
  int taken = 0;
  return store_server::replay_config(std::string(reinterpret_cast<const char*>(input.data()), input.size()), taken);
}
std::string good_input(std::uint32_t seed) { return store_server::some_file(seed); }
}  // namespace pl::fuzz

#else

namespace pl::store_server {
namespace {

TEST(store_config_fuzz, SeededFiles) {
  int taken = 0;
  for (std::uint32_t seed = 1; seed <= 5000; ++seed) {
    std::mt19937 random(seed);
    std::string text = some_file(seed);
    for (unsigned damage = random() % 8; damage > 5 && !text.empty(); --damage) {
      const std::size_t position = random() % text.size();
      if (random() % 2 == 0) text[position] = static_cast<char>(random());
      else text.insert(position, random() % 2 == 0 ? "[" : "{\"");
    }
    ASSERT_EQ(replay_config(text, taken), "") << "seed " << seed << ": " << text;
  }
  EXPECT_GT(taken, 1500) << "files must get through, or nothing was tried";
}

}  // namespace
}  // namespace pl::store_server

#endif
