// SPDX-License-Identifier: Apache-2.0
#include "test/tools/machine/laid_out_machine.hpp"

namespace pl::tools::topo {
namespace {

std::string line_of(const std::vector<ready_line>& lines, const std::string& stack, int rank) {
  for (const auto& one : lines)
    if (one.stack == stack && one.rank == rank) return one.text;
  return "absent";
}

std::vector<ready_line> lines_for(const machine& all, int ranks) { return ready_lines(all, advise(all), ranks); }

std::string sentence(const machine& all, std::size_t index) { return explain(all, advise(all))[index]; }

TEST(advice, each_gpu_of_a_dgx_h100_takes_the_adapter_of_its_switch) {
  const auto& one = machine_named("dgx_h100");
  const auto lines = lines_for(one.all, 8);
  EXPECT_EQ(line_of(lines, "UCX", 1), "UCX_NET_DEVICES=mlx5_3:1 UCX_MAX_RNDV_RAILS=1 UCX_MAX_EAGER_RAILS=1");
  EXPECT_EQ(line_of(lines, "MVAPICH2", -1),
            "MV2_PROCESS_TO_RAIL_MAPPING=mlx5_0:mlx5_3:mlx5_4:mlx5_5:mlx5_6:mlx5_9:mlx5_10:mlx5_11 "
            "MV2_RAIL_SHARING_POLICY=FIXED_MAPPING MV2_RAIL_SHARING_LARGE_MSG_THRESHOLD=1G");
  EXPECT_EQ(line_of(lines, "NCCL", -1),
            "NCCL_IB_HCA==mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1");
  EXPECT_EQ(line_of(lines, "Open MPI", -1), "mpirun -np 8 --map-by ppr:4:numa --bind-to numa");
  EXPECT_EQ(line_of(lines, "rankfile", 7), "rank 7=+n0 slot=56-111,168-223");
}

TEST(advice, gpus_at_one_distance_from_the_same_adapters_divide_them) {
  const auto& one = machine_named("dgx_a100");
  const auto advice = advise(one.all);
  EXPECT_EQ(advice[0].nearest, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(advice[0].assigned, std::vector<std::size_t>{0});
  EXPECT_EQ(advice[1].assigned, std::vector<std::size_t>{1});
  EXPECT_EQ(advice[0].verdict, gpudirect::good);
  // NUMA nodes 3, 1, 7, 5: no --map-by gives that order.
  EXPECT_EQ(line_of(lines_for(one.all, 8), "Open MPI", -1), "mpirun -np 8 --rankfile FILE --mca rmaps_rank_file_physical 1");
}

TEST(advice, a_gpu_on_another_socket_is_warned_and_staged) {
  const auto& one = machine_named("two_socket_one_hca");
  const auto advice = advise(one.all);
  EXPECT_EQ(advice[0].verdict, gpudirect::usable);
  EXPECT_EQ(advice[1].verdict, gpudirect::stage);
  EXPECT_EQ(advice[3].verdict, gpudirect::stage);
  EXPECT_EQ(advice[0].nearest, std::vector<std::size_t>{0});  // mlx5_1 is as near, but its port is down
  EXPECT_NE(sentence(one.all, 1).find("WARNING not the same root complex"), std::string::npos);
  EXPECT_NE(sentence(one.all, 2).find("WARNING on another NUMA node"), std::string::npos);
  EXPECT_EQ(line_of(lines_for(one.all, 4), "UCX", 3),
            "UCX_NET_DEVICES=mlx5_0:1 UCX_MAX_RNDV_RAILS=1 UCX_MAX_EAGER_RAILS=1 UCX_IB_GPU_DIRECT_RDMA=n");
}

TEST(advice, without_adapters_only_binding_is_told) {
  const auto& one = machine_named("epyc_workstation");
  const auto lines = lines_for(one.all, 4);
  EXPECT_EQ(line_of(lines, "UCX", 0), "absent");
  EXPECT_EQ(line_of(lines, "Open MPI", -1), "mpirun -np 4 --map-by core --bind-to core");
  EXPECT_EQ(line_of(lines, "shell", 2), "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2 taskset -c 0-63");
  EXPECT_EQ(sentence(one.all, 0),
            "GPU0: no RDMA adapter: messages to other machines go through host memory; bind its process to CPUs 0-63");
}

TEST(advice, distances_of_a_virtual_machine_are_not_believed) {
  const auto& one = machine_named("cloud_vm");
  EXPECT_EQ(advise(one.all)[0].verdict, gpudirect::measure);
  EXPECT_NE(sentence(one.all, 0).find("hides the real bridges"), std::string::npos);
}

TEST(advice, node_is_as_near_as_can_be_where_each_port_has_a_host_bridge) {
  const auto& one = machine_named("grace_hopper");
  EXPECT_TRUE(has_bridge_per_device(one.all));
  const auto advice = advise(one.all);
  EXPECT_EQ(advice[0].verdict, gpudirect::measure);
  EXPECT_EQ(advice[0].nearest, std::vector<std::size_t>{0});  // the faster of two at the same distance
}

TEST(advice, one_gpu_with_two_equal_adapters_stripes) {
  auto text = text_of(machine_file("grace_hopper"));
  for (auto found = text.find("200 Gb/sec (2X NDR)"); found != std::string::npos; found = text.find("200 Gb/sec (2X NDR)"))
    text.replace(found, 19, "400 Gb/sec (4X NDR)");
  const laid_out_machine one(text);
  const auto lines = lines_for(one.all, 1);
  EXPECT_EQ(line_of(lines, "UCX", 0),
            "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1 UCX_MAX_RNDV_RAILS=2 UCX_MAX_EAGER_RAILS=1 UCX_MIN_RNDV_CHUNK_SIZE=16k");
}

TEST(advice, more_ranks_than_gpus_go_round) {
  const auto& one = machine_named("dgx_a100");
  const auto lines = lines_for(one.all, 9);
  EXPECT_EQ(line_of(lines, "UCX", 8), line_of(lines, "UCX", 0));
}

}  // namespace
}  // namespace pl::tools::topo
