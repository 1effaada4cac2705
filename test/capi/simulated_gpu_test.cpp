// SPDX-License-Identifier: Apache-2.0
// PEERLANE_GPU in programs that are not ours: each library finds the simulated GPU by its own place, in every layout in
// which it is installed, and says what to do where it cannot. Method: simulated_gpu_program.c, which knows nothing of
// Peerlane, run with exactly the given environment on copies of the build's output.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace {

namespace fs = std::filesystem;

const std::string kOut = PL_OUT_FOLDER;
const std::string kNoDevice = PL_NO_DEVICE_DRIVER;

class temporary_folder {
 public:
  temporary_folder() {
    char name[] = "/tmp/peerlane-layout-XXXXXX";
    if (mkdtemp(name) != nullptr) path = name;
  }
  ~temporary_folder() {
    if (!path.empty()) fs::remove_all(path);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  fs::path path;
};

std::string run(const std::string& variables, const std::string& arguments) {
  const std::string command = "env -i PEERLANE_SIM_LOG=off " + variables + " " PL_PROGRAM " " + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, got);
  EXPECT_EQ(pclose(pipe), 0) << command << "\n" << text;
  return text;
}

bool has(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

bool has_real_driver() { return !has(run("", "-"), "driver none"); }

void put(const fs::path& source, const fs::path& destination) {
  fs::create_directories(destination.parent_path());
  fs::copy(source, destination, fs::copy_options::recursive);
}

const char* const kLibraries[] = {"libgdrapi.so.2", "libpeerlane.so.0", "libgdsync.so.1", "libpeerlane_store.so.0"};

TEST(SimulatedGpuOfLibraries, EveryLibraryMakesItTheProgramsDriver) {
  for (const char* library : kLibraries) {
    if (!fs::exists(kOut + "/" + library)) continue;  // built without what it needs
    const auto text = run("PEERLANE_GPU=sim PEERLANE_SIM_DEVICES=3", kOut + "/" + library);
    EXPECT_TRUE(has(text, "driver simulated\ndevices 3\n")) << library << "\n" << text;
  }
  EXPECT_TRUE(has(run("PEERLANE_GPU=sim", kOut + "/libgdrapi.so.2"), "open 1\n"));
}

TEST(SimulatedGpuOfLibraries, PreloadedShims) {
  for (const char* library : {"libpeerlane-mpi-ompi.so", "libpeerlane-mpi-mpich.so"}) {
    if (!fs::exists(kOut + "/" + library)) continue;
    const auto text = run("PEERLANE_GPU=sim LD_PRELOAD=" + kOut + "/" + library, "-");
    EXPECT_TRUE(has(text, "driver simulated\n")) << library << "\n" << text;
  }
}

TEST(SimulatedGpuOfLibraries, EveryLayout) {
  const temporary_folder made;
  put(kOut + "/libgdrapi.so.2.6", made.path / "lib/libgdrapi.so.2.6");  // cmake --install, packages
  put(kOut + "/sim", made.path / "lib/peerlane/sim");
  fs::create_symlink("libgdrapi.so.2.6", made.path / "lib/libgdrapi.so");
  put(kOut + "/libgdrapi.so.2", made.path / "native/libgdrapi.so.2");  // a wheel
  put(kOut + "/sim", made.path / "native/sim");
  fs::create_directories(made.path / "elsewhere");  // a link of the user's own
  fs::create_symlink(made.path / "lib/libgdrapi.so", made.path / "elsewhere/libgdrapi.so");
  for (const char* library : {"lib/libgdrapi.so", "native/libgdrapi.so.2", "elsewhere/libgdrapi.so"}) {
    const auto text = run("PEERLANE_GPU=sim", (made.path / library).string());
    EXPECT_TRUE(has(text, "open 1\n") && has(text, "driver simulated\n")) << library << "\n" << text;
  }
}

TEST(SimulatedGpuOfLibraries, ALibraryWithoutItNamesThePlaces) {
  const temporary_folder made;
  put(kOut + "/libgdrapi.so.2", made.path / "libgdrapi.so.2");
  const auto text = run("PEERLANE_GPU=sim", (made.path / "libgdrapi.so.2").string());
  EXPECT_TRUE(has(text, "open 0\n")) << text;
  for (const std::string& words : {made.path.string() + "/sim/libcuda.so.1",
                                   made.path.string() + "/peerlane/sim/libcuda.so.1", std::string("LD_LIBRARY_PATH")})
    EXPECT_TRUE(has(text, words)) << words << " is not in: " << text;
}

TEST(SimulatedGpuOfLibraries, AutoTakesItWhereNoGpuAnswers) {
  if (has_real_driver()) GTEST_SKIP() << "this machine has an NVIDIA driver library";
  const auto text = run("PEERLANE_GPU=auto", kOut + "/libgdrapi.so.2");
  EXPECT_TRUE(has(text, "open 1\n") && has(text, "driver simulated\n")) << text;
}

TEST(SimulatedGpuOfLibraries, AutoPassesADriverWithoutADeviceBy) {
  const temporary_folder made;
  put(kNoDevice, made.path / "libcuda.so.1");
  const auto text = run("PEERLANE_GPU=auto LD_LIBRARY_PATH=" + made.path.string(), kOut + "/libgdrapi.so.2");
  EXPECT_TRUE(has(text, "open 1\n") && has(text, "driver simulated\n")) << text;
}

TEST(SimulatedGpuOfLibraries, UnsetTakesNoneAndSaysHow) {
  if (has_real_driver()) GTEST_SKIP() << "this machine has an NVIDIA driver library";
  const auto text = run("", kOut + "/libgdrapi.so.2");
  EXPECT_TRUE(has(text, "open 0\n") && has(text, "driver none\n")) << text;
  EXPECT_TRUE(has(text, "set PEERLANE_GPU=sim for the simulated GPU")) << text;
}

TEST(SimulatedGpuOfLibraries, RealRefusesIt) {
  const auto text = run("PEERLANE_GPU=real LD_LIBRARY_PATH=" + kOut + "/sim", kOut + "/libgdrapi.so.2");
  EXPECT_TRUE(has(text, "open 0\n")) << text;
  EXPECT_TRUE(has(text, "libcuda.so.1 is the simulated GPU (" + kOut + "/sim/libcuda.so.1)")) << text;
}

TEST(SimulatedGpuOfLibraries, ADriverThatTheProgramHasLoadedIsNotReplaced) {
  const temporary_folder made;
  put(kNoDevice, made.path / "libcuda.so.1");
  const auto text = run("PEERLANE_GPU=sim", kOut + "/libgdrapi.so.2 " + (made.path / "libcuda.so.1").string());
  EXPECT_TRUE(has(text, "open 0\n") && has(text, "driver other\n")) << text;
  EXPECT_TRUE(has(text, "has already loaded " + (made.path / "libcuda.so.1").string())) << text;
  EXPECT_TRUE(has(text, kOut + "/sim")) << "what LD_LIBRARY_PATH needs: " << text;
}

}  // namespace
