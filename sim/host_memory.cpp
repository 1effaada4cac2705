// SPDX-License-Identifier: Apache-2.0
#include "sim/host_memory.hpp"

#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace pl::sim {
namespace {

class host_memory final : public channel_memory {
 public:
  host_memory(std::byte* bytes, std::uint64_t size_bytes, std::byte* view)
      : channel_memory(bytes, size_bytes, -1, view), view_(view) {}
  ~host_memory() override {
    if (view_ != nullptr) munmap(view_, size_bytes());
  }

 private:
  std::byte* const view_;
};

// Whether one mapping of shared anonymous memory holds the whole range. A file could be truncated under its mappings.
bool is_shared_anonymous(std::uint64_t begin, std::uint64_t end) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t first = 0, last = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s", &first, &last, rights) != 3) return false;
    if (begin < first || begin >= last) continue;
    return end <= last && std::strcmp(rights, "rw-s") == 0 && line.find(" /dev/zero (deleted)") != std::string::npos;
  }
  return false;
}

// Another mapping of the same pages, which no child inherits; null where there can be none.
std::byte* map_again(std::byte* bytes, std::uint64_t size_bytes) {
  void* const view = mremap(bytes, 0, size_bytes, MREMAP_MAYMOVE);  // EINVAL: the memory is private
  if (view == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uint64_t>(bytes);
  if (is_shared_anonymous(begin, begin + size_bytes) && madvise(view, size_bytes, MADV_DONTFORK) == 0)
    return static_cast<std::byte*>(view);
  munmap(view, size_bytes);
  return nullptr;
}

}  // namespace

channel_memory_ref pin_host_memory(std::byte* bytes, std::uint64_t size_bytes) {
  return std::make_shared<host_memory>(bytes, size_bytes, map_again(bytes, size_bytes));
}

}  // namespace pl::sim
