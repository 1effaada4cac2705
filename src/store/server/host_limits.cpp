// SPDX-License-Identifier: Apache-2.0
#include "store/server/host_limits.hpp"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>

#include "base/folder_list.hpp"
#include "base/text.hpp"
#include "store/engine/store_folder.hpp"
#include "store/server/transport.hpp"

namespace pl::store_server {
namespace {

// Part of the process's descriptors that is reserved for the engine's files, rings and watched processes. Connections
// get the rest.
constexpr rlim_t kReservePart = 4, kMaxReserve = 640;
constexpr int kMaxHeaps = 2;  // heaps of the allocator, if address space is limited

}  // namespace

int raise_descriptor_limit() {
  rlimit now{};
  if (getrlimit(RLIMIT_NOFILE, &now) != 0) return std::numeric_limits<int>::max();
  const rlim_t before = now.rlim_cur;
  now.rlim_cur = now.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &now) != 0) now.rlim_cur = before;
  const rlim_t reserve = std::min(now.rlim_cur / kReservePart, kMaxReserve);
  return static_cast<int>(std::min<rlim_t>(now.rlim_cur - reserve, std::numeric_limits<int>::max()));
}

// The kernel hands out the lowest free number. A client takes up to four: its socket, its rings' memory and their two
// events.
status check_descriptors(int limit) {
  constexpr int kOfOneClient = 4;
  const int next = dup(STDERR_FILENO), code = errno;
  if (next >= 0) close(next);
  else if (code == EBADF) return {};  // a caller without standard error: clients will show it
  if (next >= 0 && next + kOfOneClient <= limit) return {};
  rlimit most{};
  (void)getrlimit(RLIMIT_NOFILE, &most);
  return failure{EMFILE, format("this process may open %llu files, of which the store's own leave no room for a client: "
                                "raise the limit (ulimit -n) to 64 or more",
                                static_cast<unsigned long long>(most.rlim_cur))};
}

// A thread that cannot be created would end the process in mid-operation, and so would memory that the index does not get,
// so it is checked here. The share of RocksDB, the allocator and the program is a safe estimate (seen: 450 MiB in all with a
// tier of 64 MiB, and under load 80 MiB more). The allocator would reserve 64 MiB for each thread, 400 MiB in all, and fail
// later.
status check_address_space(const server_config& config) {
  rlimit most{};
  if (getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return {};
  constexpr std::uint64_t kStackBytes = 8u << 20, kOtherThreads = 12, kOthersBytes = 320u << 20;
  const std::uint64_t bytes =
      2 * config.arena_bytes + (serving_threads(config) + kOtherThreads) * kStackBytes + kOthersBytes;
  void* const probe = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED)
    return failure{
        ENOMEM, format("the store needs some %s of address space more, and the limit is %s: raise it (ulimit -v), or give "
                       "a smaller --arena",
                       format_size(bytes).c_str(), format_size(most.rlim_cur).c_str())};
  munmap(probe, bytes);
  mallopt(M_ARENA_MAX, kMaxHeaps);
  return {};
}

// The memory tier is memory of the kernel that it takes as it is used: a tier that is too large ends the store, or others,
// when it has filled up.
std::string memory_warning(const server_config& config, const memory_limit& limit) {
  const std::uint64_t keys = config.key_memory_bytes != 0 ? config.key_memory_bytes : store::default_key_memory_bytes();
  if (config.arena_bytes <= limit.bytes && keys <= limit.bytes - config.arena_bytes) return {};
  return format(
      "the memory tier may grow to %s (--arena, arena_bytes) and the keys to %s (key_memory_bytes), and %s is %s: "
      "the kernel may kill the store",
      format_size(config.arena_bytes).c_str(), format_size(keys).c_str(), limit.source.c_str(),
      format_size(limit.bytes).c_str());
}

// A file that the store's user may not read is no damage, and must not be taken for missing.
status check_readable(const std::string& path) {
  const auto refused = [](const std::string& name, int code) {
    return failure{code,
                   format("data directory: %s: %s: all of it must be the store's user's (chown -R), or run the store as "
                          "the user that made it",
                          name.c_str(), errno_text(code).c_str())};
  };
  std::vector<std::string> names;
  for (const char* const one : {"/lock", "/commit.mark", "/manifest.copy", "/cluster.json"}) names.push_back(path + one);
  for (const std::string& folder : {path, path + "/index", path + "/extents"}) {
    if (access(folder.c_str(), R_OK | X_OK) != 0 && errno == EACCES) return refused(folder, EACCES);
    if (folder == path) continue;  // which may also hold a file system's lost+found
    if (const auto files = list_folder(folder))
      for (const auto& one : *files) names.push_back(one.string());
  }
  for (const std::string& name : names)
    if (access(name.c_str(), R_OK) != 0 && errno == EACCES) return refused(name, EACCES);
  return {};
}

// Makes the folder the store's own, with a mode that keeps other users out. Refuses a folder of another user.
status check_data_folder(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) {
    if (errno == ENOENT) return {};  // it will be created
    return failure{errno, format("data directory %s: %s", path.c_str(), errno_text(errno).c_str())};
  }
  if (!S_ISDIR(about.st_mode)) return failure{ENOTDIR, format("data directory %s is not a directory", path.c_str())};
  if (auto whole = store::need_finished(path); !whole) return whole;
  if (auto readable = check_readable(path); !readable) return readable;
  std::error_code error;
  if (std::filesystem::exists(path + "/index/CURRENT", error)) return {};
  if (std::filesystem::exists(path + "/commit.mark", error))
    return failure{EUCLEAN, format("data directory %s is a damaged store: %s/index/CURRENT is missing. `peerlane store "
                                   "check --data DIR` says what is damaged, `store repair` saves what is good, `store "
                                   "restore` brings a backup",
                                   path.c_str(), path.c_str())};
  bool is_empty = true;  // empty, or with leftovers of an unfinished first start
  const auto files = list_folder(path);
  if (!files) return failure{files.code(), format("data directory %s: %s", path.c_str(), files.error().message.c_str())};
  for (const auto& one : *files) {
    const std::string name = one.filename();
    is_empty =
        is_empty && (name == "index" || name == "lock" || name == "extents" || name == "lost+found" || name == "store.sock");
  }
  if (!is_empty)
    return failure{ENOTEMPTY, format("data directory %s is not a store and not empty: name a directory of the store's own",
                                     path.c_str())};
  if (about.st_uid != geteuid())
    return failure{EPERM,
                   format("data directory %s is not a store and belongs to uid %u: name a directory of the store's own",
                          path.c_str(), about.st_uid)};
  return {};
}

status check_files(const server_config& config) {
  if (auto ours = check_data_folder(config.data); !ours) return ours;
  if (config.tls.certificate.empty()) return {};
  const auto made = make_tls_context(config.tls);
  return made ? status() : status(made.error());
}

}  // namespace pl::store_server
