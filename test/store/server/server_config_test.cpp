// SPDX-License-Identifier: Apache-2.0
// The settings file: its parser and its schema know the same fields with the same ranges, and docs/schema has that schema.
// What a validator makes of the schema is in test/tools/store/store_e2e.py.
#include "store/server/server_config.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "store/server/host_limits.hpp"

namespace pl::store_test {
namespace {

using nlohmann::json;

TEST(store_config, FieldsHaveRangesAndUnknownOnesAreRefused) {
  struct {
    const char *text, *problem;  // "": fine
  } const cases[] = {
      {"{}", ""},
      {R"({"data": "d", "threads": 2, "insecure": true, "mappers": ["uid:1"]})", ""},
      {"[]", "not a JSON object"},
      {"{", "not a JSON object: at line 1, column 2"},
      {R"({"treads": 2})", "\"treads\""},
      {R"({"threads": 65})", "from 0 to 64"},
      {R"({"threads": -1})", "from 0 to 64"},
      {R"({"threads": 1.5})", "whole number"},
      {R"({"threads": "2"})", "whole number"},
      {R"({"insecure": 1})", "true or false"},
      {R"({"admins": "uid:1"})", "list of texts"},
      {R"({"admins": [1]})", "list of texts"},
      {R"({"data": 5})", "a text"},
  };
  for (const auto& one : cases) {
    store_server::server_config parsed;
    const auto done = store_server::read_config(one.text, parsed);
    if (*one.problem == '\0') {
      EXPECT_TRUE(done) << one.text;
    } else {
      EXPECT_NE(done.ok() ? std::string::npos : done.error().message.find(one.problem), std::string::npos) << one.text;
    }
  }
}

TEST(store_config, RemoteListeningNeedsTlsOrAnExplicitOption) {
  store_server::server_config config;
  config.data = "d";
  EXPECT_EQ(config.listen, "none") << "no TCP unless asked for";
  EXPECT_TRUE(store_server::check(config));
  config.listen = "0.0.0.0:1";
  EXPECT_EQ(store_server::check(config).code(), EACCES);
  config.insecure = true;
  EXPECT_TRUE(store_server::check(config));
  config.insecure = false;
  config.tls = {"c", "k", ""};
  EXPECT_EQ(store_server::check(config).code(), EINVAL);
  config.tls.client_authority = "a";
  EXPECT_TRUE(store_server::check(config));
  config.metrics = "0.0.0.0:2";
  EXPECT_EQ(store_server::check(config).code(), EACCES);
}

// They go into the cluster's map, which is JSON.
TEST(store_config, NamesInAClusterAreText) {
  store_server::server_config config;
  config.data = "d";
  for (std::string* const field : {&config.name, &config.cluster_name, &config.advertise}) {
    const std::string before = *field;
    for (const char* text : {"\xff", "a\nb", "\xc3", "\xed\xa0\x80"}) {
      *field = text;
      EXPECT_EQ(store_server::check(config).code(), EINVAL) << text;
    }
    *field = "k\xc3\xb6ln";
    EXPECT_TRUE(store_server::check(config));
    *field = before;
  }
}

TEST(store_config, LoopbackIsAnAddressNotAText) {
  for (const char* is : {"127.0.0.1:1", "127.8.9.10:1", "[::1]:1", "localhost:1"})
    EXPECT_TRUE(store_server::is_loopback(is)) << is;
  for (const char* other : {"127.0.0.1.example.com:1", "127.evil.com:1", "localhost:evil.com:1", "localhost.evil.com:1",
                            "0.0.0.0:1", ":1", "[::]:1", "[::1].evil.com:1", "128.0.0.1:1", "127.0.0.1"})
    EXPECT_FALSE(store_server::is_loopback(other)) << other;
}

TEST(store_config, AClusterNeedsAuthenticationUnlessTheOperatorDisablesIt) {
  store_server::server_config config;
  config.data = "d";
  config.name = "n";
  config.cluster = {"http://127.0.0.1:2379"};
  config.listen = "127.0.0.1:1";
  EXPECT_EQ(store_server::check(config).code(), EACCES);
  config.admins = {"uid:0", "tcp"};
  EXPECT_TRUE(store_server::check(config));
  config.admins.clear();
  config.tls = {"c", "k", "a"};
  EXPECT_TRUE(store_server::check(config));
}

// Set to one value, everything else as it is by default.
status one_field(const std::string& name, const json& value) {
  store_server::server_config parsed;
  parsed.data = "d";
  if (auto read = store_server::read_config(json{{name, value}}.dump(), parsed); !read) return read;
  if (name == "cluster") {
    parsed.name = "n";
    parsed.listen = "127.0.0.1:1";
    parsed.admins = {"tcp"};
  }
  if (name.starts_with("tls_")) parsed.tls = {"c", "k", "a"};
  if (name.starts_with("cluster_tls_")) parsed.cluster_tls = {"a", "c", "k"};
  return store_server::check(parsed);
}

// Values that the field's rules allow, and values that they do not.
void values_for(const json& rules, std::vector<json>& good, std::vector<json>& bad) {
  const std::string type = rules["type"];
  for (const json& other : {json(nullptr), json(1.5), json(true), json("x"), json::array({1}), json::object()}) {
    const bool fits = (type == "boolean" && other.is_boolean()) || (type == "string" && other.is_string());
    if (!fits) bad.push_back(other);
  }
  if (type == "boolean") good = {true, false};
  const std::string pattern = type == "array" ? rules["items"].value("pattern", "") : "";
  if (type == "array") good = {json::array(), json::array({"http://a:1", "x"})};
  if (!pattern.empty()) {
    good = {json::array(), json::array({"uid:1", "*", "cn:A B", "cert:x://y=z"})};
    for (const char* text : {"x", "", "uid:", "uid:x", "uid:01", "cn:"}) bad.push_back(json::array({text}));
  }
  if (pattern.find("bytes") != std::string::npos) {
    good = {json::array(), json::array({"uid:1 bytes=10G keys=1M", "* keys=5", "cn:A B", "cert:x://y=z bytes=1"})};
    for (const char* text :
         {"x", "uid:1 bytes=x", "uid:1 keys=-1", "bytes=5", "uid:1 keys=30000000000G", "uid:1 keys=0", ""})
      bad.push_back(json::array({text}));
    bad.push_back(json::array({"tcp keys=1", "tcp keys=2"}));
  }
  if (type == "string") good = {rules.contains("enum") ? rules["enum"][1] : json("none")};
  if (type == "string" && rules.contains("enum")) bad.push_back("x");
  if (type != "integer") return;
  const std::uint64_t lowest = rules["minimum"], highest = rules["maximum"];
  good = {lowest};
  if (rules.contains("enum")) good.insert(good.end(), rules["enum"].begin(), rules["enum"].end());
  else good.push_back(highest / rules.value("multipleOf", 1u) * rules.value("multipleOf", 1u));
  bad.insert(bad.end(), {json(-1), json(highest + 1), json(std::to_string(lowest))});
  if (lowest > 0) bad.push_back(lowest - 1);
  if (rules.contains("enum") || rules.contains("multipleOf")) bad.push_back(lowest + 1);
}

TEST(store_config, AFieldThatIsThereTwiceIsRefused) {
  store_server::server_config parsed;
  const auto twice = store_server::read_config(R"({"admins": ["uid:1"], "threads": 2, "admins": ["uid:2"]})", parsed);
  ASSERT_EQ(twice.code(), EINVAL);
  EXPECT_NE(twice.error().message.find("admins"), std::string::npos) << twice.error().message;
  EXPECT_TRUE(store_server::read_config(R"({"admins": ["uid:1", "uid:1"], "threads": 2})", parsed));
}

TEST(store_config, ZeroBytesAndNumbersBeyondADoubleAreRefused) {
  for (const char* text :
       {R"({"data": "/a\u0000b"})", R"({"admins": ["uid:1", "uid:2\u0000"]})", R"({"tls_key": "\u0000"})"}) {
    store_server::server_config parsed;
    const auto done = store_server::read_config(text, parsed);
    ASSERT_EQ(done.code(), EINVAL) << text;
    EXPECT_NE(done.error().message.find("zero byte"), std::string::npos) << done.error().message;
  }
  store_server::server_config parsed;
  const auto large = store_server::read_config(R"({"threads": 1e400})", parsed);
  ASSERT_EQ(large.code(), EINVAL);
  EXPECT_EQ(large.error().message.find("json.exception"), std::string::npos) << large.error().message;
}

TEST(store_config, FileThatCannotBeReadIsNamed) {
  const std::string path = testing::TempDir() + "peerlane_config_test.json";
  const auto message_for = [&](const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
    store_server::server_config parsed;
    const auto done = store_server::read_config_file(path, parsed);
    return done ? std::string() : done.error().message;
  };
  EXPECT_EQ(message_for("{}"), "");
  for (const std::string& text :
       {std::string(), std::string("{"), std::string(R"({"nonsense": 1})"), std::string((1 << 20) + 1, ' ')})
    EXPECT_NE(message_for(text).find(path), std::string::npos) << message_for(text);
  EXPECT_NE(message_for("").find("empty"), std::string::npos);
  EXPECT_NE(message_for(std::string((1 << 20) + 1, ' ')).find("longer than 1 MiB"), std::string::npos);
  std::remove(path.c_str());
  store_server::server_config parsed;
  EXPECT_EQ(store_server::read_config_file(path, parsed).code(), ENOENT);
}

TEST(store_config, AnEndpointThatIsNoneIsNamed) {
  for (const auto endpoint : {&store_server::server_config::listen, &store_server::server_config::metrics})
    for (const char* text : {"127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1"}) {
      store_server::server_config config;
      config.data = "/d";
      config.*endpoint = text;
      const auto done = store_server::check(config);
      EXPECT_EQ(done.code(), EINVAL) << text;
      EXPECT_NE(done.error().message.find(text), std::string::npos) << done.error().message;
    }
}

TEST(store_config, SchemaAndParserAgreeOnEachField) {
  const auto schema = json::parse(store_server::config_schema());
  EXPECT_GE(schema["properties"].size(), 33u);
  for (const auto& [name, rules] : schema["properties"].items()) {
    EXPECT_FALSE(rules.value("description", "").empty()) << name;
    std::vector<json> good, bad;
    values_for(rules, good, bad);
    ASSERT_FALSE(good.empty() || bad.empty()) << name;
    if (rules.contains("default")) good.push_back(rules["default"]);
    for (const json& value : good) {
      const auto done = one_field(name, value);
      EXPECT_TRUE(done) << name << " = " << value << ": " << done.error().message;
    }
    for (const json& value : bad) {
      const auto done = one_field(name, value);
      ASSERT_FALSE(done) << name << " = " << value;
      EXPECT_EQ(done.code(), EINVAL) << name << " = " << value;
      const std::string subject = name == "log_level" && value.is_string() ? "log level" : name;
      EXPECT_NE(done.error().message.find(subject), std::string::npos) << done.error().message;
    }
  }
}

TEST(store_config, SchemaNamesNoFixedDefaultThatDependsOnTheMachine) {
  EXPECT_EQ(store_server::default_spin_us(1), 0u);
  EXPECT_EQ(store_server::default_spin_us(4), 0u);
  EXPECT_EQ(store_server::default_spin_us(5), 50u);
  const auto spin = json::parse(store_server::config_schema())["properties"]["spin_us"];
  EXPECT_FALSE(spin.contains("default")) << spin;
  EXPECT_NE(spin["description"].get<std::string>().find("default: 50 on hosts with more than 4 CPUs"), std::string::npos);
}

TEST(store_config, DocumentedSchemaIsThePrograms) {
  std::ifstream file(PL_SCHEMA_FILE);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), store_server::config_schema())
      << "write it anew: peerlane store serve --print-schema > docs/schema/store-config.json";
}

// A name that no client can have would be an administrator whom nobody can be, without a word.
TEST(store_config, ListsNamePrincipalsThatCanBe) {
  const auto outcome_of = [](const std::string& text) {
    store_server::server_config config;
    config.data = "d";
    EXPECT_TRUE(store_server::read_config(text, config)) << text;
    const auto done = store_server::check(config);
    return done ? std::string() : done.error().message;
  };
  EXPECT_EQ(outcome_of(R"({"admins": ["uid:0", "uid:4294967294", "cert:spiffe://a/b", "cn:a b", "tcp"], "mappers": ["*"]})"),
            "");
  for (const char* const field : {"admins", "mappers", "map_readers"})
    for (const char* const name :
         {"", "root", "uid:", "uid:root", "uid:-1", "uid:01", "uid:0x0", "uid:4294967295", "cert:", "cn:"}) {
      const std::string said = outcome_of(std::string("{\"") + field + "\": [\"" + name + "\"]}");
      EXPECT_NE(said.find(std::string("\"") + field + "\": \"" + name + "\" is no principal"), std::string::npos) << said;
    }
  EXPECT_NE(outcome_of(R"({"quotas": ["uid:root bytes=1"]})"), "");
  EXPECT_NE(outcome_of(R"({"quotas": ["* bytes=1 bytes=2"]})"), "");
  EXPECT_NE(outcome_of(R"({"quotas": ["uid:1000 bytes=0"]})"), "") << "no limit would be set";
}

TEST(store_config, ATierThatTheGroupDoesNotGiveIsNamedWithBothFigures) {
  store_server::server_config config;
  config.arena_bytes = std::uint64_t{1} << 30;
  config.key_memory_bytes = std::uint64_t{256} << 20;
  EXPECT_EQ(store_server::memory_warning(config, {std::uint64_t{1280} << 20, "/group/memory.max"}), "");
  const std::string said = store_server::memory_warning(config, {std::uint64_t{1279} << 20, "/group/memory.max"});
  for (const char* const part : {"1 GiB (--arena", "256 MiB (key_memory_bytes)", "/group/memory.max is 1279 MiB"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
  EXPECT_NE(store_server::memory_warning(config, {std::uint64_t{512} << 20, "the machine's memory"}), "");
}

}  // namespace
}  // namespace pl::store_test
