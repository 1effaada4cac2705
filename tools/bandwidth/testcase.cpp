// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/testcase.hpp"

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "tools/bandwidth/case_plan.hpp"

namespace pl::bandwidth {
namespace {

// Kernels, CPU mappings and channels of our own between host and GPU: with confidential computing host memory that a GPU
// reaches is a copy the driver keeps, or cannot be had, so no link would be measured. Copy engines go through it by design.
bool needs_plain_host_memory(int plan) {
  const bool by_kernel = (plan >= 16 && plan <= 19) || (plan >= 24 && plan <= 27);
  const bool by_mapping_or_channel = (plan >= 48 && plan <= 51) || (plan >= 56 && plan <= 58) || (plan >= 62 && plan <= 70);
  return by_kernel || by_mapping_or_channel || plan == 32 || plan == 61;
}

test_outcome run_single(const testcase& self, test_context& context) {
  case_plan plan = plan_of(self.plan, shape_of(context.gpus), context.options);
  if (!context.options.confidential.empty() && plan.waived.empty() && needs_plain_host_memory(self.plan))
    plan.waived = context.options.confidential + ": GPU and CPU share no plain host memory";
  return execute(self, context, std::move(plan));
}

using kind = testcase::kind;
constexpr testcase single(int plan, const char* key, const char* description, bool has_size = true) {
  return {0, plan, key, description, kind::single_node, has_size, run_single};
}
constexpr testcase multi(int plan, const char* key, const char* description) {
  return {0, plan, key, description, kind::multi_node, true, run_multinode};
}
constexpr testcase ours(int plan, const char* key, const char* description, bool has_size = true) {
  return {0, plan, key, description, kind::ours, has_size, run_single};
}

constexpr std::array kInOrder = {
    single(0, "host_to_device_memcpy_ce", "Host to device by copy engine, one GPU at a time"),
    single(1, "device_to_host_memcpy_ce", "Device to host by copy engine, one GPU at a time"),
    single(2, "host_to_device_bidirectional_memcpy_ce",
           "Host to device by copy engine while the same GPU copies to the host.\nBoth directions and their total are "
           "measured"),
    single(3, "device_to_host_bidirectional_memcpy_ce",
           "Device to host by copy engine while the same GPU copies from the host.\nBoth directions and their total are "
           "measured"),
    single(4, "device_to_device_memcpy_read_ce", "Each pair of peers: the row GPU pulls from the column GPU"),
    single(5, "device_to_device_memcpy_write_ce", "Each pair of peers: the row GPU pushes to the column GPU"),
    single(
        6, "device_to_device_bidirectional_memcpy_read_ce",
        "Each pair of peers pulls from each other at once.\nread1: the row GPU pulls; read2: the column GPU pulls; total"),
    single(7, "device_to_device_bidirectional_memcpy_write_ce",
           "Each pair of peers pushes to each other at once.\nwrite1: the row GPU pushes; write2: the column GPU pushes; "
           "total"),
    single(8, "all_to_host_memcpy_ce", "Every GPU copies to the host at once; each one's rate"),
    single(9, "all_to_host_bidirectional_memcpy_ce",
           "Every GPU copies to and from the host at once; each one's rate to the host"),
    single(10, "host_to_all_memcpy_ce", "Every GPU copies from the host at once; each one's rate"),
    single(11, "host_to_all_bidirectional_memcpy_ce",
           "Every GPU copies from and to the host at once; each one's rate from the host"),
    single(12, "all_to_one_write_ce", "All peers push to one GPU at once; total into the column GPU"),
    single(13, "all_to_one_read_ce", "All peers pull from one GPU at once; total out of the column GPU"),
    single(14, "one_to_all_write_ce", "One GPU pushes to all its peers at once; total out of the column GPU"),
    single(15, "one_to_all_read_ce", "One GPU pulls from all its peers at once; total into the column GPU"),
    single(16, "host_to_device_memcpy_sm", "Host to device by a kernel that reads host memory"),
    single(17, "device_to_host_memcpy_sm", "Device to host by a kernel that writes host memory"),
    single(18, "host_to_device_bidirectional_memcpy_sm",
           "Two kernels on the whole GPU, one a direction; host to device is the main result"),
    single(19, "device_to_host_bidirectional_memcpy_sm",
           "Two kernels on the whole GPU, one a direction; device to host is the main result"),
    single(20, "device_to_device_memcpy_read_sm", "Each pair of peers: a kernel on the row GPU reads from the column GPU"),
    single(21, "device_to_device_memcpy_write_sm", "Each pair of peers: a kernel on the row GPU writes to the column GPU"),
    single(
        22, "device_to_device_bidirectional_memcpy_read_sm",
        "Each pair of peers reads from each other at once, by kernels.\nread1: the row GPU; read2: the column GPU; total"),
    single(
        23, "device_to_device_bidirectional_memcpy_write_sm",
        "Each pair of peers writes to each other at once, by kernels.\nwrite1: the row GPU; write2: the column GPU; total"),
    single(24, "all_to_host_memcpy_sm", "Kernels on every GPU write to the host at once; each one's rate"),
    single(25, "all_to_host_bidirectional_memcpy_sm",
           "Kernels on every GPU write to and read from the host at once; each one's rate to the host"),
    single(26, "host_to_all_memcpy_sm", "Kernels on every GPU read from the host at once; each one's rate"),
    single(27, "host_to_all_bidirectional_memcpy_sm",
           "Kernels on every GPU read from and write to the host at once; each one's rate from the host"),
    single(28, "all_to_one_write_sm", "Kernels on all peers write to one GPU at once; total into the column GPU"),
    single(29, "all_to_one_read_sm", "Kernels on all peers read from one GPU at once; total out of the column GPU"),
    single(30, "one_to_all_write_sm",
           "Kernels on one GPU, each on its share of multiprocessors, write to all its peers at once; total"),
    single(31, "one_to_all_read_sm",
           "Kernels on one GPU, each on its share of multiprocessors, read from all its peers at once; total"),
    single(32, "host_device_latency_sm", "Latency of a load from host memory: pointer chase of 2 MiB by one thread", false),
    single(33, "device_to_device_latency_sm",
           "Latency of a load by the row GPU from the column GPU: pointer chase of 2 MiB by one thread", false),
    single(71, "device_to_device_memcpy_read_tma",
           "Each pair of peers: a kernel on the row GPU reads from the column GPU by bulk copies (TMA)"),
    single(72, "device_to_device_memcpy_write_tma",
           "Each pair of peers: a kernel on the row GPU writes to the column GPU by bulk copies (TMA)"),
    single(73, "device_to_device_bidirectional_memcpy_read_tma",
           "Each pair of peers reads from each other at once, by bulk copies (TMA).\nread1: the row GPU; read2: the column "
           "GPU; total"),
    single(74, "device_to_device_bidirectional_memcpy_write_tma",
           "Each pair of peers writes to each other at once, by bulk copies (TMA).\nwrite1: the row GPU; write2: the column "
           "GPU; total"),
    single(34, "device_local_copy", "Copy within one GPU's memory by copy engine; bytes counted once"),
    single(52, "device_local_copy_sm", "Copy within one GPU's memory by a kernel; bytes counted once"),
    single(75, "device_local_read_sm", "A kernel reads one GPU's memory and keeps digests of it"),
    single(76, "device_local_write_sm", "A kernel writes one GPU's memory"),
    single(77, "device_to_device_latency_tma",
           "Latency of a bulk copy (TMA) of 16 bytes by the row GPU from the column GPU: pointer chase of 2 MiB", false),
    single(78, "device_local_copy_tma", "Copy within one GPU's memory by bulk copies (TMA); bytes counted once"),
    multi(35, "multinode_device_to_device_memcpy_read_ce", "Each pair of processes: the row GPU pulls from the column GPU"),
    multi(36, "multinode_device_to_device_memcpy_write_ce", "Each pair of processes: the row GPU pushes to the column GPU"),
    multi(37, "multinode_device_to_device_bidirectional_memcpy_read_ce",
          "Each pair of processes pulls from each other at once"),
    multi(38, "multinode_device_to_device_bidirectional_memcpy_write_ce",
          "Each pair of processes pushes to each other at once"),
    multi(39, "multinode_device_to_device_memcpy_read_sm",
          "Each pair of processes: a kernel of the row reads from the column"),
    multi(40, "multinode_device_to_device_memcpy_write_sm",
          "Each pair of processes: a kernel of the row writes to the column"),
    multi(41, "multinode_device_to_device_bidirectional_memcpy_read_sm",
          "Each pair of processes reads from each other at once, by kernels"),
    multi(42, "multinode_device_to_device_bidirectional_memcpy_write_sm",
          "Each pair of processes writes to each other at once, by kernels"),
    multi(43, "multinode_device_to_device_all_to_one_write_sm",
          "Kernels of all processes write to the column GPU at once; sum"),
    multi(44, "multinode_device_to_device_all_from_one_read_sm",
          "Kernels of all processes read from the column GPU at once; sum"),
    multi(45, "multinode_device_to_device_broadcast_one_to_all_sm",
          "The column GPU stores into a multicast object of all GPUs; bytes counted once"),
    multi(46, "multinode_device_to_device_broadcast_all_to_all_sm",
          "All GPUs store into a multicast object each, at once; bytes counted once; sum"),
    multi(47, "multinode_bisect_write_ce", "Every process A pushes to process (A + N/2) mod N, all at once"),
    ours(48, "host_to_device_bar", "Host to device by CPU stores through BAR1 (at most 64 MiB)"),
    ours(49, "device_to_host_bar", "Device to host by CPU loads through BAR1 (at most 4 MiB: loads wait for each other)"),
    ours(50, "host_to_device_engine", "Host to device by the resident copy kernel (at most 16 MiB)"),
    ours(51, "device_to_host_engine", "Device to host by the resident copy kernel (at most 16 MiB)"),
    ours(53, "device_to_device_staged_ce",
         "Each pair of GPUs without peer access: the driver stages the copy in host memory"),
    ours(54, "all_to_all_write_ce",
         "Every GPU pushes to every peer at once, by copy engine; each pair's rate and the total"),
    ours(55, "all_to_all_write_sm", "Every GPU writes to every peer at once, by kernels; each pair's rate and the total"),
    ours(56, "bar_load_latency", "Latency of one CPU load from GPU memory through BAR1", false),
    ours(57, "bar_store_latency", "Time for which one CPU store to GPU memory through BAR1 and its flush hold the CPU",
         false),
    ours(58, "bar_round_trip_latency", "CPU store to GPU memory, seen by a kernel, answered into host memory: whole trip",
         false),
    ours(59, "device_local_l2_latency_sm", "Latency of a load from the GPU's L2: pointer chase of 2 MiB", false),
    ours(60, "device_local_memory_latency_sm", "Latency of a load from GPU memory: pointer chase of 256 MiB", false),
    ours(61, "host_device_latency", "Latency of a load from host memory beyond caches and TLBs: pointer chase of 64 MiB",
         false),
    ours(62, "host_to_device_dma", "Host to device by one of Peerlane's DMA channels"),
    ours(63, "device_to_host_dma", "Device to host by one of Peerlane's DMA channels"),
    ours(64, "host_to_device_bidirectional_dma",
         "Host to device by a DMA channel while another channel of the same GPU copies to the host.\nBoth directions and "
         "their total are measured"),
    ours(65, "host_to_device_scattered_4k_dma",
         "Host to device by DMA channel, a list of blocks of 4 KiB in scattered order"),
    ours(66, "host_to_device_scattered_16k_dma", "The same in blocks of 16 KiB"),
    ours(67, "host_to_device_scattered_64k_dma", "The same in blocks of 64 KiB"),
    ours(68, "device_to_host_scattered_4k_dma",
         "Device to host by DMA channel, a list of blocks of 4 KiB in scattered order"),
    ours(69, "device_to_host_scattered_16k_dma", "The same in blocks of 16 KiB"),
    ours(70, "device_to_host_scattered_64k_dma", "The same in blocks of 64 KiB"),
};

constexpr auto numbered_by_position() {
  auto out = kInOrder;
  for (std::size_t i = 0; i < out.size(); ++i) out[i].index = static_cast<int>(i);
  return out;
}
constexpr auto kTestcases = numbered_by_position();

}  // namespace

std::span<const testcase> all_testcases() { return kTestcases; }

std::span<const testcase> original_testcases() {
  const auto first_of_ours = std::find_if(kTestcases.begin(), kTestcases.end(),
                                          [](const testcase& one) { return one.group == testcase::kind::ours; });
  return {kTestcases.begin(), first_of_ours};
}

const testcase* find_testcase(const std::string& key_or_index) {
  for (const testcase& one : kTestcases)
    if (key_or_index == one.key) return &one;
  const auto index = parse_integer(key_or_index);
  if (!index || *index < 0 || *index >= static_cast<std::int64_t>(kTestcases.size())) return nullptr;
  return &kTestcases[static_cast<std::size_t>(*index)];
}

}  // namespace pl::bandwidth
