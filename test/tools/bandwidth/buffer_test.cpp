// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/buffer.hpp"

#include <sys/resource.h>

#include <cstdio>
#include <fstream>

#include "test/tools/bandwidth/bandwidth_fixture.hpp"
#include "tools/bandwidth/numa.hpp"

namespace pl::bandwidth::test {
namespace {

TEST(buffer, the_same_arguments_give_the_same_memory) {
  machine m;
  const auto first = must(m.pool.get(host_place(), 1000, 0, 0));
  EXPECT_EQ(must(m.pool.get(host_place(), 1000, 0, 0)).address, first.address);
  EXPECT_NE(must(m.pool.get(host_place(), 1000, 1, 0)).address, first.address);
  const auto device = must(m.pool.get(gpu_place(1), 1000, 0, 0));
  EXPECT_EQ(must(m.pool.get(gpu_place(1), 1000, 0, 1)).address, device.address);
  EXPECT_EQ(device.host, nullptr);
}

TEST(buffer, a_bigger_request_replaces_the_buffer) {
  machine m;
  EXPECT_LT(must(m.pool.get(gpu_place(0), 1 << 20, 0, 0)).bytes, 8u << 20);
  EXPECT_GE(must(m.pool.get(gpu_place(0), 8 << 20, 0, 0)).bytes, 8u << 20);
}

TEST(buffer, host_memory_lies_where_it_was_asked_for) {
  machine m;
  const int node = numa::nodes().front();
  for (const host_kind kind : {host_kind::pinned, host_kind::pageable}) {
    const auto asked = m.pool.get(host_place(kind, node), 3 << 20, 0, 0);
    if (!asked && (asked.code() == EPERM || asked.code() == ENOSYS)) GTEST_SKIP() << asked.error().message;
    const auto view = must(m.pool.get(host_place(kind, node), 3 << 20, 0, 0));
    EXPECT_EQ(view.gpu_reachable, kind == host_kind::pinned);
    const int found = m.pool.node_of(view);
    EXPECT_TRUE(found == node || found < 0) << found;
  }
  EXPECT_EQ(m.pool.node_of(must(m.pool.get(gpu_place(0), 4096, 0, 0))), -1);
}

// What the machine says that it offers, and what the pages of a range really are.
std::uint64_t meminfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;)
    if (std::uint64_t value = 0; word == name + ":" && file >> value) return value;
  return 0;
}

bool offers_transparent_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;
  std::getline(file, modes);
  return modes.find("[always]") != std::string::npos || modes.find("[madvise]") != std::string::npos;
}

// Bytes of the mapping that begins at `base`, or contains it, on pages of 2 MiB.
std::uint64_t huge_bytes_at(const void* base) {
  std::ifstream file("/proc/self/smaps");
  bool is_inside = false;
  std::uint64_t size_kib = 0, out_kib = 0;
  for (std::string line; std::getline(file, line);) {
    unsigned long long begin = 0, end = 0, value = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      const auto address = reinterpret_cast<unsigned long long>(base);
      is_inside = begin <= address && address < end;
      if (is_inside) size_kib = (end - begin) / 1024;
    }
    if (!is_inside) continue;
    if (std::sscanf(line.c_str(), "KernelPageSize: %llu kB", &value) == 1 && value == 2048) out_kib = size_kib;
    if (std::sscanf(line.c_str(), "AnonHugePages: %llu kB", &value) == 1) out_kib = std::max<std::uint64_t>(out_kib, value);
  }
  return out_kib * 1024;
}

TEST(buffer, huge_pages_are_really_huge_and_carry_a_transfer_or_are_refused_with_the_fix) {
  constexpr std::uint64_t kBytes = 4u << 20;
  machine m;
  const bool is_offered = meminfo("HugePages_Free") * 2048 >= kBytes / 1024 || offers_transparent_huge_pages();
  const auto view = m.pool.get(host_place(host_kind::huge), kBytes, 0, 0);
  if (!view) {
    EXPECT_EQ(view.code(), ENOMEM);
    EXPECT_NE(view.error().message.find("vm.nr_hugepages"), std::string::npos);
    if (is_offered) GTEST_SKIP() << "this machine offers huge pages and has none left: " << view.error().message;
    return;
  }
  EXPECT_TRUE(is_offered);
  EXPECT_EQ(view->address % (2 << 20), 0u);
  EXPECT_TRUE(view->gpu_reachable);
  EXPECT_GE(huge_bytes_at(view->host), kBytes / 2) << "some pages may be small where memory is fragmented, not most";
  for (const auto kind : {executor_kind::ce, executor_kind::sm}) {
    const auto transfer = m.transfer(host_place(host_kind::huge), gpu_place(0), {kind, 0, 0}, 1 << 20);
    EXPECT_EQ(must(m.run.run({&transfer, 1}, quick())).each[0].wrong.bytes, 0u);
  }
}

TEST(buffer, what_there_is_not_is_refused_by_name) {
  machine m;
  const auto node = m.pool.get(host_place(host_kind::pinned, 777), 4096, 0, 0);
  EXPECT_EQ(node.code(), EINVAL);
  EXPECT_NE(node.error().message.find("this machine has 0"), std::string::npos);
  EXPECT_EQ(m.pool.get(gpu_place(5), 4096, 0, 0).code(), EINVAL);
  EXPECT_EQ(m.pool.get(gpu_place(0), 0, 0, 0).code(), EINVAL);
  const auto too_much = m.pool.get(gpu_place(0), 1ull << 50, 0, 0);
  EXPECT_EQ(too_much.code(), ENOMEM);
  EXPECT_NE(too_much.error().message.find("smaller -b"), std::string::npos);
  EXPECT_EQ(m.pool.get(host_place(), UINT64_MAX, 0, 0).code(), EINVAL);
}

TEST(buffer, a_limit_of_locked_memory_is_named) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > (64 << 20)) GTEST_SKIP() << "no limit here";
  cu::driver_table table = pl::test::simulated_cuda();
  table.cuMemHostRegister_v2 = [](void*, std::size_t, unsigned) -> cu::result_t { return cu::error_code::out_of_memory; };
  machine m(table);
  const auto refused = m.pool.get(host_place(), 128 << 20, 0, 0);
  EXPECT_EQ(refused.code(), ENOMEM);
  EXPECT_NE(refused.error().message.find("ulimit -l"), std::string::npos);
}

}  // namespace
}  // namespace pl::bandwidth::test
