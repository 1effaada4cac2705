// SPDX-License-Identifier: Apache-2.0
#include "os/topology.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "test/messaging/refused_call.hpp"

namespace pl {
namespace {

namespace fs = std::filesystem;

// A sysfs of our own with one PCI device.
class fake_sysfs {
 public:
  fake_sysfs() {
    char pattern[] = "/tmp/peerlane_sysfs_XXXXXX";
    root_ = mkdtemp(pattern);
  }
  ~fake_sysfs() { fs::remove_all(root_); }
  fake_sysfs(const fake_sysfs&) = delete;
  fake_sysfs& operator=(const fake_sysfs&) = delete;

  void add(const std::string& bus_id, const std::string& cpus, const std::string& node) const {
    const fs::path folder = root_ / "bus/pci/devices" / bus_id;
    fs::create_directories(folder);
    std::ofstream(folder / "local_cpulist") << cpus << "\n";
    std::ofstream(folder / "numa_node") << node << "\n";
  }
  std::string path() const { return root_.string(); }

 private:
  fs::path root_;
};

// hwloc would ask for ever.
TEST(topology_under_a_filter, is_an_error_where_affinity_is_not_told) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    if (!messaging::refuse_call(SYS_sched_getaffinity, EPERM)) _exit(2);
    const auto found = topology::load();
    _exit(found.code() == EPERM && found.error().message.find("--cpu none") != std::string::npos ? 0 : 1);
  }
  int state = -1;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0);
}

TEST(cpu_list, formats_runs_and_singles) {
  EXPECT_EQ(format_cpu_list(cpu_numbers{}), "none");
  EXPECT_EQ(format_cpu_list(cpu_numbers{7}), "7");
  EXPECT_EQ(format_cpu_list(cpu_numbers{0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

TEST(cpu_list, parses_what_it_formats) {
  for (const char* text : {"0", "0-3,8", "5,7,9", "0-15,32-47"}) {
    const auto parsed = parse_cpu_list(text);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(format_cpu_list(*parsed), text);
  }
}

TEST(cpu_list, sorts_and_removes_duplicates) {
  const auto parsed = parse_cpu_list("9,1-3,2");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(*parsed, (cpu_numbers{1, 2, 3, 9}));
}

TEST(cpu_list, refuses_malformed_text_and_names_the_part) {
  for (const char* text : {"", ",", "1,", "a", "3-1", "-1", "1-", "0-4000000000", "1 2"}) {
    const auto parsed = parse_cpu_list(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.code(), EINVAL) << text;
  }
  EXPECT_NE(parse_cpu_list("0,x7").error().message.find("\"x7\""), std::string::npos);
}

TEST(topology, lists_cpus_of_this_process) {
  const auto machine = topology::load();
  ASSERT_TRUE(machine) << machine.error().message;
  EXPECT_EQ(machine->allowed_cpus(), cpus_of_this_thread());
  EXPECT_GE(machine->numa_node_count(), 1);
}

TEST(topology, unknown_device_gets_every_cpu_and_a_remark) {
  const fake_sysfs sysfs;
  const auto machine = topology::load(sysfs.path());
  ASSERT_TRUE(machine);
  const auto near = machine->near_pci_device("0000:fe:00.0");
  EXPECT_FALSE(near.known);
  EXPECT_EQ(near.numa_node, -1);
  EXPECT_EQ(near.cpus, machine->allowed_cpus());
  EXPECT_FALSE(near.remark.empty());
}

TEST(topology, known_device_in_any_spelling) {
  const fake_sysfs sysfs;
  const unsigned first = cpus_of_this_thread().front();
  sysfs.add("0000:fe:00.0", std::to_string(first), "0");
  const auto machine = topology::load(sysfs.path());
  ASSERT_TRUE(machine);
  for (const char* spelling : {"0000:fe:00.0", "0000:FE:00.0", "00000000:FE:00.0"}) {
    const auto near = machine->near_pci_device(spelling);
    EXPECT_TRUE(near.known) << spelling;
    EXPECT_EQ(near.numa_node, 0);
    EXPECT_EQ(near.cpus, cpu_numbers{first});
    EXPECT_TRUE(near.remark.empty()) << near.remark;
  }
}

TEST(topology, device_whose_cpus_are_closed_falls_back_and_says_so) {
  const fake_sysfs sysfs;
  sysfs.add("0000:01:00.0", "60000-60003", "3");
  const auto machine = topology::load(sysfs.path());
  ASSERT_TRUE(machine);
  const auto near = machine->near_pci_device("0000:01:00.0");
  EXPECT_TRUE(near.known);
  EXPECT_EQ(near.numa_node, 3);
  EXPECT_EQ(near.cpus, machine->allowed_cpus());
  EXPECT_NE(near.remark.find("60000-60003"), std::string::npos);
}

TEST(topology, node_number_minus_one_is_found_from_the_cpus) {
  const fake_sysfs sysfs;
  sysfs.add("0000:01:00.0", std::to_string(cpus_of_this_thread().front()), "-1");
  const auto machine = topology::load(sysfs.path());
  ASSERT_TRUE(machine);
  EXPECT_GE(machine->near_pci_device("0000:01:00.0").numa_node, 0);
}

TEST(pinning, moves_only_the_calling_thread) {
  const auto before = cpus_of_this_thread();
  const unsigned last = before.back();
  cpu_numbers seen;
  std::thread([&] {
    const auto pinned = pin_this_thread(cpu_numbers{last});
    ASSERT_TRUE(pinned) << pinned.error().message;
    seen = cpus_of_this_thread();
  }).join();
  EXPECT_EQ(seen, cpu_numbers{last});
  EXPECT_EQ(cpus_of_this_thread(), before);
}

TEST(pinning, refuses_nothing_and_absent_cpus) {
  EXPECT_EQ(pin_this_thread(cpu_numbers{}).code(), EINVAL);
  EXPECT_EQ(pin_this_thread(cpu_numbers{60000}).code(), EINVAL);
  EXPECT_EQ(pin_this_thread(cpu_numbers{4000000000u}).code(), EINVAL);
}

}  // namespace
}  // namespace pl
