// SPDX-License-Identifier: Apache-2.0
#include "cuda/simulated_gpu.hpp"

#include <dlfcn.h>
#include <link.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>

#include "base/env.hpp"
#include "base/load_library.hpp"
#include "base/own_program.hpp"
#include "base/real_path.hpp"
#include "base/text.hpp"

namespace pl::cu {
namespace {

constexpr const char* kName = "libcuda.so.1";

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// The file that this code was loaded from; empty: the program's own, which has no name in the linker's list.
std::string library_of_this_code() {
  Dl_info ignored{};
  void* entry = nullptr;
  static const char mark = 0;
  if (dladdr1(&mark, &ignored, &entry, RTLD_DL_LINKMAP) == 0 || entry == nullptr) return "";
  const char* const name = static_cast<const link_map*>(entry)->l_name;
  return name != nullptr ? name : "";
}

}  // namespace

std::vector<std::string> simulated_gpu_places() {
  const std::string loaded = library_of_this_code();
  std::vector<std::string> folders;
  // Follows links first: the parts lie around the file that a link leads to. Then the link's own folder.
  for (const std::string& file : {loaded.empty() ? own_program_file() : real_path(loaded.c_str()), loaded})
    if (!file.empty()) folders.push_back(folder_of(file));
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  std::vector<std::string> places;
  for (const std::string& folder : folders)
    for (const char* below : {"/sim/", "/peerlane/sim/", "/native/sim/", "/../sim/", "/../../sim/"})
      places.push_back(folder + below + kName);
  return places;
}

std::string simulated_gpu_folder() {
  const auto places = simulated_gpu_places();
  for (const std::string& place : places)
    if (access(place.c_str(), R_OK) == 0) return folder_of(real_path(place.c_str()));
  return places.empty() ? "sim" : folder_of(places[0]);
}

result<void*> load_simulated_gpu() {
  // It lies beside this code, and a link to a setuid program may lie beside anything.
  if (getauxval(AT_SECURE) != 0)
    return failure{EPERM,
                   "the simulated GPU is not loaded into a program that has more rights than who started it (setuid, file "
                   "capabilities): start it with those rights"};
  const auto places = simulated_gpu_places();
  for (const std::string& place : places) {
    if (access(place.c_str(), R_OK) != 0) continue;
    // By its resolved path: a relative path would become wrong when the program changes its folder.
    auto library = load_library(real_path(place.c_str()).c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library) return *library;
    const int code = library.code() == ENOENT ? ENODEV : library.code();
    return failure{code, format("the simulated GPU cannot be loaded: %s", library.error().message.c_str())};
  }
  const std::string first = places.empty() ? kName : places[0];
  const std::string second = places.size() > 1 ? places[1] : first;
  return failure{
      ENODEV,
      format("the simulated GPU cannot be loaded: there is neither %s nor %s. Keep the folder sim/ where the build or "
             "the package has it (builds: -DPEERLANE_SIM=ON; packages: peerlane), or put it into LD_LIBRARY_PATH",
             first.c_str(), second.c_str())};
}

bool is_simulated_gpu(void* library) { return dlsym(library, "peerlaneSimVersion") != nullptr; }

std::string library_file(void* library, const char* symbol) {
  Dl_info info{};
  void* const address = dlsym(library, symbol);
  return address != nullptr && dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

namespace {

// With PEERLANE_GPU=sim the simulated GPU is loaded before the program's own dlopen("libcuda.so.1"), which would find
// another driver or none. The first call that needs the GPU reports a failure.
[[gnu::constructor]] void load_if_chosen() {
  if (env_read("PEERLANE_GPU").text != "sim") return;
  if (dlopen(kName, RTLD_NOW | RTLD_NOLOAD) == nullptr) (void)load_simulated_gpu();
}

}  // namespace
}  // namespace pl::cu
