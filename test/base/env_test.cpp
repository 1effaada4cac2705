// SPDX-License-Identifier: Apache-2.0
#include "base/env.hpp"

#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/env_places.hpp"

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

TEST(Env, IntegersOutOfRangeLeaveTheDefault) {
  for (const char* value : {"0", "17", "-1"}) {
    setenv("PEERLANE_SIM_DEVICES", value, 1);
    const auto refused = env_read("PEERLANE_SIM_DEVICES");
    EXPECT_EQ(refused.integer, 2) << value;
    EXPECT_NE(refused.problem.find("expected an integer, 1..16"), std::string::npos) << refused.problem;
  }
  for (const char* value : {"1", "16"}) {
    setenv("PEERLANE_SIM_DEVICES", value, 1);
    EXPECT_TRUE(env_read("PEERLANE_SIM_DEVICES").is_set) << value;
  }
  unsetenv("PEERLANE_SIM_DEVICES");
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

std::string nearest_of(const char* name) {
  const scoped_env set(name, "1");
  for (const auto& one : env_unknown_names())
    if (one.name == name) return one.nearest.empty() ? "none" : one.nearest;
  return "not ours";
}

TEST(Env, MisspeltNamesAreKnownByTheNearest) {
  EXPECT_EQ(nearest_of("PEERLANE_"
                       "BACKEN"),
            "PEERLANE_BACKEND");
  EXPECT_EQ(nearest_of("PEERLANE_COPY_"
                       "THREAD"),
            "PEERLANE_COPY_THREADS");
  EXPECT_EQ(nearest_of("PEERLANE_"
                       "GPUS"),
            "PEERLANE_GPU");
  EXPECT_EQ(nearest_of("PERLANE_GPU"), "PEERLANE_GPU");
  EXPECT_EQ(nearest_of("peerlane_log"), "PEERLANE_LOG");
  EXPECT_EQ(nearest_of("GDRCOPY_"
                       "LOGLEVEL"),
            "GDRCOPY_LOG_LEVEL");
  EXPECT_EQ(nearest_of("GDRCOPY_ENABLE_"
                       "LOGGIN"),
            "GDRCOPY_ENABLE_LOGGING");
}

TEST(Env, OtherNamesAreNotOurs) {
  EXPECT_EQ(nearest_of("PEERLANE_CLEAN_ROOM"), "none");
  EXPECT_EQ(nearest_of("GDRCOPY_ENABLED"), "none");  // of the device plug-in of Kubernetes
  EXPECT_EQ(nearest_of("PEERLANE_BACKEND"), "not ours");
  EXPECT_EQ(nearest_of("PEERLANE"), "not ours");
  EXPECT_EQ(nearest_of("PEERLINE_ADDRESS"), "not ours");
  EXPECT_EQ(nearest_of("GCOPY_LOG"), "not ours");
}

// Part of the test below: a program that has more rights than who started it.
TEST(Env, DISABLED_OfAProgramWithMoreRights) {
  EXPECT_EQ(getauxval(AT_SECURE), 1u);
  EXPECT_EQ(env_read("PEERLANE_UCX_LIBRARY").text, "");
  EXPECT_FALSE(env_read("PEERLANE_STATISTICS_FOLDER").is_set);
  EXPECT_EQ(env_read("XDG_CACHE_HOME").text, "");
  EXPECT_EQ(env_read("PEERLANE_COPY_THREADS").integer, 3);
}

TEST(Env, PathsAreIgnoredInPrivilegedPrograms) {
  constexpr uid_t kNobody = 65534;
  if (geteuid() != 0) GTEST_SKIP() << "only root can start a program with another user's real id";
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const pid_t child = fork();
  if (child == 0) {
    for (const char* name : {"PEERLANE_UCX_LIBRARY", "PEERLANE_STATISTICS_FOLDER", "XDG_CACHE_HOME"})
      setenv(name, "/tmp", 1);
    setenv("PEERLANE_COPY_THREADS", "3", 1);
    if (setresuid(kNobody, 0, 0) != 0) _exit(126);
    execl(self.c_str(), self.c_str(), "--gtest_filter=Env.DISABLED_OfAProgramWithMoreRights",
          "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int state = -1;
  waitpid(child, &state, 0);
  EXPECT_EQ(state, 0);
  for (const auto& one : env_registry()) {
    const std::string_view name = one.name;
    const bool is_named_so = name.ends_with("_LIBRARY") || name.ends_with("_FILE") || name.ends_with("_FOLDER");
    EXPECT_TRUE(!is_named_so || env_names_a_place(one.name)) << name;
  }
}

std::string warning_of(const char* name, const char* checked) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    setenv(name, "1", 1);
    setenv("PEERLANE_NAMES_CHECKED", checked, 1);
    dup2(ends[1], STDERR_FILENO);
    env_warn_of_unknown_names();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  for (char letter; read(ends[0], &letter, 1) == 1;) text += letter;
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return text;
}

TEST(Env, AMisspeltNameIsTold) {
  EXPECT_EQ(warning_of("PEERLANE_COPY_"
                       "THREAD",
                       "0"),
            "WARN: PEERLANE_COPY_"
            "THREAD is not a variable of Peerlane and has no effect; did you mean PEERLANE_COPY_THREADS? "
            "(peerlane env lists them)\n");
  EXPECT_EQ(warning_of("PEERLANE_CLEAN_ROOM", "0"), "");
  EXPECT_EQ(warning_of("PEERLANE_COPY_"
                       "THREAD",
                       "1"),
            "");
}

}  // namespace
}  // namespace pl
