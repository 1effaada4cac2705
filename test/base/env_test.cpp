// SPDX-License-Identifier: Apache-2.0
#include "env.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace pl {
namespace {

class scoped_env {
 public:
  scoped_env(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~scoped_env() { unsetenv(name_); }
  scoped_env(const scoped_env&) = delete;
  scoped_env& operator=(const scoped_env&) = delete;

 private:
  const char* name_;
};

TEST(Env, DefaultsComeFromTheRegistry) {
  unsetenv("PEERLANE_SIM_MEMORY");
  const env_value value = env_read("PEERLANE_SIM_MEMORY");
  EXPECT_FALSE(value.is_set);
  EXPECT_EQ(value.integer, std::int64_t{2} << 30);
}

TEST(Env, ParsesStrictly) {
  {
    const scoped_env set("PEERLANE_SIM_MEMORY", "64M");
    EXPECT_EQ(env_read("PEERLANE_SIM_MEMORY").integer, 64 << 20);
  }
  {
    const scoped_env set("PEERLANE_SIM_MEMORY", "64 megs");
    const env_value value = env_read("PEERLANE_SIM_MEMORY");
    EXPECT_FALSE(value.is_set);
    EXPECT_EQ(value.integer, std::int64_t{2} << 30);
    EXPECT_NE(value.problem.find("64 megs"), std::string::npos);
  }
  {
    const scoped_env set("PEERLANE_BACKEND", "rm");
    EXPECT_EQ(env_read("PEERLANE_BACKEND").integer, 3);
  }
  {
    const scoped_env set("PEERLANE_BACKEND", "r");
    EXPECT_FALSE(env_read("PEERLANE_BACKEND").is_set);
  }
  {
    const scoped_env set("GDRCOPY_ENABLE_LOGGING", "");
    EXPECT_TRUE(env_read("GDRCOPY_ENABLE_LOGGING").is_set);
  }
}

TEST(Env, EveryVariableHasAValidDefaultAndAMeaning) {
  std::set<std::string> names;
  for (const auto& variable : env_registry()) {
    EXPECT_TRUE(names.insert(variable.name).second) << variable.name;
    EXPECT_STRNE(variable.meaning, "") << variable.name;
    if (variable.type == env_type::presence || variable.type == env_type::text) continue;
    const scoped_env set(variable.name, variable.default_value);
    EXPECT_TRUE(env_read(variable.name).is_set) << variable.name;
  }
}

}  // namespace
}  // namespace pl
