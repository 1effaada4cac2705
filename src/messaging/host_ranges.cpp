// SPDX-License-Identifier: Apache-2.0
#include "messaging/host_ranges.hpp"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "os/device_io.hpp"

namespace pl::messaging {
namespace {

// "start_brk" of /proc/self/stat (proc(5)): field 47. The name before field 3 may hold spaces.
std::uint64_t start_of_heap() {
  constexpr int kFieldsBehindName = 47 - 3;
  const auto text = real_device_io().read_text("/proc/self/stat");
  if (!text) return ~0ull;
  auto position = text->rfind(')');
  for (int i = 0; i <= kFieldsBehindName && position != std::string::npos; ++i) position = text->find(' ', position + 1);
  const std::uint64_t begin = position == std::string::npos ? 0 : std::strtoull(text->c_str() + position, nullptr, 10);
  return begin == 0 ? ~0ull : begin;  // 0 if the kernel hides it
}

}  // namespace

host_ranges::host_ranges() : heap_begin_(start_of_heap()) {}

bool host_ranges::contains(std::uint64_t address, std::size_t bytes) noexcept {
  if (address >= heap_begin_) {
    const auto heap_end = reinterpret_cast<std::uint64_t>(sbrk(0));  // libc caches it: no system call
    if (address < heap_end && bytes <= heap_end - address) return true;
  }
  // Only the range between this frame and the end of the stack counts: it is mapped now, and a thread on another stack
  // (a reused one, or a fiber's) has its frame elsewhere.
  const auto frame = reinterpret_cast<std::uint64_t>(__builtin_frame_address(0));
  if (address < frame || address - frame > std::uint64_t{1} << 30) return false;
  const stack* const mine = stack_of_this_thread();
  return mine != nullptr && frame >= mine->begin && address < mine->end && bytes <= mine->end - address;
}

const host_ranges::stack* host_ranges::stack_of_this_thread() noexcept {
  const pthread_t self = pthread_self();
  for (std::size_t i = 0; i < stack_count_; ++i)
    if (pthread_equal(stacks_[i].thread, self)) return &stacks_[i];
  if (stack_count_ == stacks_.size()) return nullptr;
  pthread_attr_t attributes;
  if (pthread_getattr_np(self, &attributes) != 0) return nullptr;
  void* begin = nullptr;
  std::size_t bytes = 0;
  const bool is_known = pthread_attr_getstack(&attributes, &begin, &bytes) == 0;
  pthread_attr_destroy(&attributes);
  if (!is_known) return nullptr;
  const auto first = reinterpret_cast<std::uint64_t>(begin);
  stacks_[stack_count_] = {self, first, first + bytes};
  return &stacks_[stack_count_++];
}

}  // namespace pl::messaging
