// SPDX-License-Identifier: Apache-2.0
// What the shared library does at its first use under a given environment: log lines with GDRCopy's switches and prefixes,
// PEERLANE_BACKEND, a machine without libcuda. Method: a small C program (probe_program.c) run with exactly that
// environment.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace {

struct outcome {
  std::string out, err;
};

std::string read_all(std::FILE* file) {
  std::string text;
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, got);
  return text;
}

std::string run(const std::string& variables, const std::string& arguments, const char* redirection) {
  const std::string command = "env -i " + variables + " " PL_PROBE " " + arguments + " " + redirection;
  std::FILE* pipe = popen(command.c_str(), "r");
  const std::string text = read_all(pipe);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

outcome probe(const std::string& variables, const std::string& arguments = "") {
  return {run(variables, arguments, "2>/dev/null"), run(variables, arguments, "2>&1 >/dev/null")};
}

const std::string kSim = "LD_LIBRARY_PATH=" PL_SIM_FOLDER " PEERLANE_SIM_LOG=off ";

bool has(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

TEST(probe, WithTheSimulatorItOpens) {
  const outcome seen = probe(kSim);
  EXPECT_TRUE(has(seen.out, "open 1\n")) << seen.out;
  EXPECT_EQ(seen.err, "") << "silent unless asked";
}

// The build machine may have a real driver; then there is nothing to see here.
TEST(probe, WithoutLibcuda) {
  const outcome seen = probe("");
  if (has(seen.out, "open 1")) GTEST_SKIP() << "this machine has a working NVIDIA driver";
  EXPECT_TRUE(has(seen.out, "open 0\n")) << seen.out;
  for (const char* words : {"libcuda.so.1 cannot be opened", "install the NVIDIA driver", "/dev/gdrdrv", "/dev/nvidiactl",
                            "`peerlane doctor` says what to do"})
    EXPECT_TRUE(has(seen.out, words)) << words << " is not in: " << seen.out;
}

TEST(probe, BackendFromTheEnvironment) {
  const outcome nonsense = probe(kSim + "PEERLANE_BACKEND=nonsense");
  EXPECT_TRUE(has(nonsense.out, "open 1")) << "the default is used";
  EXPECT_TRUE(has(nonsense.err, "ERR:  PEERLANE_BACKEND=nonsense is not valid: expected one of auto|gdrdrv|dmabuf|rm"))
      << nonsense.err;
  EXPECT_TRUE(has(probe(kSim + "PEERLANE_BACKEND=dmabuf").out, "open 1"));
  const outcome gdrdrv = probe(kSim + "PEERLANE_BACKEND=gdrdrv GDRCOPY_USE_DMABUF_MMAP=1");
  EXPECT_TRUE(has(gdrdrv.out, "open 0"));
  EXPECT_TRUE(has(gdrdrv.out, "switched off by GDRCOPY_USE_DMABUF_MMAP=1")) << gdrdrv.out;
}

TEST(probe, AnOldDriverIsRefusedByTheDmabufBackend) {
  const outcome seen = probe(kSim + "PEERLANE_BACKEND=dmabuf PEERLANE_SIM_DRIVER_VERSION=13000");
  EXPECT_TRUE(has(seen.out, "open 0"));
  EXPECT_TRUE(has(seen.out, "the driver offers CUDA 13.0; mapping a dma-buf needs 13.3 or newer")) << seen.out;
}

// Lines that begin as none of GDRCopy's, or with a prefix below `lowest` ("DBG:  ", "INFO: ", "WARN: ", "ERR:  ").
void expect_prefixes(const std::string& text, int lowest) {
  const char* const prefixes[] = {"DBG:  ", "INFO: ", "WARN: ", "ERR:  "};
  std::size_t position = 0;
  while (position < text.size()) {
    const auto end = text.find('\n', position);
    ASSERT_NE(end, std::string::npos) << "an unfinished line";
    bool known = false;
    for (int level = lowest; level <= 4; ++level) known |= text.compare(position, 6, prefixes[level - 1]) == 0;
    EXPECT_TRUE(known) << text.substr(position, end - position);
    position = end + 1;
  }
}

TEST(probe, LoggingSwitches) {
  EXPECT_EQ(probe(kSim, "refuse").err, "") << "off by default";
  EXPECT_EQ(probe(kSim + "GDRCOPY_LOG_LEVEL=1", "refuse").err, "") << "the level alone switches nothing on";
  const std::string errors = probe(kSim + "GDRCOPY_ENABLE_LOGGING=", "refuse").err;
  EXPECT_TRUE(has(errors, "ERR:  the device address is 0\n")) << "set to anything, also nothing; level 4: " << errors;
  expect_prefixes(errors, 4);
  const std::string info = probe(kSim + "GDRCOPY_ENABLE_LOGGING=1 GDRCOPY_LOG_LEVEL=2", "refuse").err;
  EXPECT_TRUE(has(info, "INFO: mapping backend: dmabuf\n")) << info;
  EXPECT_TRUE(has(info, "INFO: backend gdrdrv is not usable: /dev/gdrdrv cannot be opened")) << info;
  EXPECT_TRUE(has(info, "ERR:  the device address is 0\n")) << info;
  expect_prefixes(info, 2);
  expect_prefixes(probe(kSim + "GDRCOPY_ENABLE_LOGGING=1 GDRCOPY_LOG_LEVEL=1", "refuse").err, 1);
  EXPECT_FALSE(has(probe(kSim + "GDRCOPY_ENABLE_LOGGING=1 GDRCOPY_LOG_LEVEL=3", "refuse").err, "INFO: "));
  EXPECT_EQ(probe(kSim + "GDRCOPY_ENABLE_LOGGING=1 PEERLANE_LOG=off", "refuse").err, "") << "ours wins";
  EXPECT_TRUE(has(probe(kSim + "PEERLANE_LOG=info").err, "INFO: mapping backend: dmabuf\n"));
}

}  // namespace
