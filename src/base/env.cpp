// SPDX-License-Identifier: Apache-2.0
#include "base/env.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstdlib>
#include <cstring>

#include "base/env_places.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace pl {
namespace {

constexpr std::array kVariables = {
    env_variable{
        "PEERLANE_GPU", env_type::choice, "", "auto", "auto|real|sim",
        "which GPU, in every program: a real one, the simulated one, or the real one if it answers (auto). Unset: auto in "
        "`peerlane`, real in programs that use the libraries"},
    env_variable{"PEERLANE_BACKEND", env_type::choice, "", "auto", "auto|gdrdrv|dmabuf|rm",
                 "forces one mapping backend; auto tries gdrdrv, dmabuf, rm in this order"},
    env_variable{"PEERLANE_RM_FORCE", env_type::boolean, "", "0", "",
                 "1: use the rm backend with a driver version whose ABI is not known; every mapping is then verified"},
    env_variable{"PEERLANE_RM_VERIFY", env_type::boolean, "", "0", "",
                 "1: prove every new rm mapping by a nonce written on one side and read on the other, then restored"},
    env_variable{"PEERLANE_COPY_ISA", env_type::choice, "", "auto", "auto|portable|sse2|sse41|avx2|avx512|movdir64b|neon",
                 "highest instruction set the CPU copies may use"},
    env_variable{
        "PEERLANE_COPY_ENGINE", env_type::choice, "", "auto", "auto|dma|kernel|off|1|0",
        "what moves data on the GPU without CUDA: DMA channels, or the resident copy kernel; auto (1): channels on real "
        "GPUs, the kernel where they cannot be had; off (0): neither"},
    env_variable{"PEERLANE_DEVICE_RINGS", env_type::choice, "", "auto", "auto|dma|proxy",
                 "what carries out the transfers that kernels start: a DMA channel, or a thread of the host by CUDA's "
                 "copies; auto: the channel where it can be had"},
    env_variable{
        "PEERLANE_DEVICE_TIMESLICE_US", env_type::integer, "microseconds", "2", "",
        "how long a ring of kernels that waits keeps its copy engine from other channels; 0: as the driver has it, a "
        "millisecond or two"},
    env_variable{"PEERLANE_DEVICE_WAKEUPS", env_type::choice, "", "auto", "auto|on|off",
                 "the thread that refills the rings of kernels sleeps until the copy engine's interrupt, not for a fixed "
                 "time; auto: on"},
    env_variable{"PEERLANE_DMA_RINGS", env_type::choice, "", "auto", "auto|on|off",
                 "DMA channels carry pageable memory through rings of pinned memory where that is quickest; auto: on"},
    env_variable{"PEERLANE_DMA_BULK_ENGINES", env_type::integer, "engines", "1", "",
                 "copy engines that carry a list of more than 1 MiB: 1 or 2"},
    env_variable{
        "PEERLANE_DMA_STREAM_ORDER", env_type::choice, "", "auto", "auto|on|off",
        "DMA channels wait for CUDA streams, and streams for channels, without CUDA's copies; auto: on the simulated "
        "GPU only: a single round was slower than CUDA's"},
    env_variable{"PEERLANE_COPY_LEASE_US", env_type::integer, "microseconds", "200", "",
                 "how long the GPU engine's kernel stays at most, 20..1000000"},
    env_variable{"PEERLANE_COPY_PEER_ACCESS", env_type::boolean, "", "1", "",
                 "0: copies between two GPUs do not enable CUDA's peer access (they then go through host memory)"},
    env_variable{"PEERLANE_COPY_THREADS", env_type::integer, "threads", "0", "",
                 "CPU threads of one copy, the caller included; 0: 8, or half the CPUs if that is less"},
    env_variable{"PEERLANE_GDRAPI_PLANNER", env_type::boolean, "", "0", "",
                 "1: gdr_copy_to_mapping and gdr_copy_from_mapping of 4 KiB and more go through the copy planner"},
    env_variable{"PEERLANE_STORE", env_type::text, "", "", "",
                 "the store that `peerlane store` and clients without an address use: path of its socket, or HOST:PORT"},
    env_variable{"PEERLANE_STORE_RINGS", env_type::boolean, "", "1", "",
                 "0: a client of the store's unix socket sends and receives by system calls, not through shared memory"},
    env_variable{
        "PEERLANE_STORE_UCX", env_type::choice, "", "auto", "auto|off|on",
        "values between a store and its clients by UCX: auto where RDMA joins them; on: also over what else UCX finds"},
    env_variable{
        "PEERLANE_STORE_GPU_DIRECT", env_type::choice, "", "auto", "auto|off|on",
        "a store on this host moves GPU memory itself: auto, if it runs as this user or as root, since it then reaches the "
        "whole allocation; on: whoever runs it"},
    env_variable{
        "PEERLANE_STORE_GPU_CHECKSUM", env_type::choice, "", "auto", "auto|off|on",
        "the checksum of large puts from GPU memory by the GPU itself; auto: not on the simulated one; off: by CPU threads"},
    env_variable{"PEERLANE_NIXL_FORCE", env_type::boolean, "", "0", "",
                 "1: the NIXL backend also loads into versions of NIXL whose interface it was not compared with"},
    env_variable{"PEERLANE_MPI_POOL", env_type::size_bytes, "bytes", "256M", "",
                 "MPI shim: pinned host memory that it keeps between messages"},
    env_variable{
        "PEERLANE_MPI_PIPELINE", env_type::size_bytes, "bytes", "0", "",
        "MPI shim: shared memory of a process for large messages of device memory to other processes of its host (256M, "
        "say); 0: MPI carries them in one piece"},
    env_variable{"PEERLANE_MPI_PIPELINE_FROM", env_type::size_bytes, "bytes", "128K", "",
                 "MPI shim: the smallest message of device memory that is pipelined (at least 4096)"},
    env_variable{"PEERLANE_MPI_PIPELINE_RING", env_type::size_bytes, "bytes", "32M", "",
                 "MPI shim: shared memory that one message gets; more only if its receiver keeps it waiting"},
    env_variable{"PEERLANE_MPI_WINDOWS", env_type::choice, "", "auto", "auto|copied",
                 "MPI shim: copied: windows of device memory as if no rank could map another's, by copies in host memory"},
    env_variable{"PEERLANE_NCCL_LIBRARY", env_type::text, "", "", "",
                 "path of the libnccl.so.2 for `peerlane p2p --via nccl`; empty: the loader finds it by name"},
    env_variable{"PEERLANE_UCX_LIBRARY", env_type::text, "", "", "",
                 "path of the libucp.so.0 that messages use; empty: the loader finds it by name"},
    env_variable{"PEERLANE_LINK_PATH", env_type::choice, "", "auto", "auto|network",
                 "network: messages to processes of this node go as if it were another one"},
    env_variable{"PEERLANE_LINK_IPC", env_type::boolean, "", "1", "", "0: no CUDA IPC between processes of a node"},
    env_variable{"PEERLANE_LINK_PULL", env_type::boolean, "", "1", "",
                 "0: processes of a node do not read each other's host memory; messages pass through shared memory"},
    env_variable{"PEERLANE_LINK_CHANNELS", env_type::boolean, "", "1", "",
                 "0: no DMA channels for windows of GPU memory; puts and gets need the window's process"},
    env_variable{"PEERLANE_LINK_UCX_RENDEZVOUS", env_type::choice, "", "auto", "auto|never|always",
                 "large messages from host memory by UCX's own rendezvous; auto: where UCX has RDMA to the peer"},
    env_variable{"PEERLANE_LINK_GPU_LANES", env_type::boolean, "", "1", "",
                 "0: UCX is never given GPU pointers, also where it has RDMA lanes for them"},
    env_variable{"PEERLANE_LINK_EAGER_LIMIT", env_type::size_bytes, "bytes", "0", "",
                 "messages up to here carry their data with them, at most 32K; 0: as planned"},
    env_variable{"PEERLANE_LINK_GDR_SEND_LIMIT", env_type::size_bytes, "bytes", "0", "",
                 "the same for messages from GPU memory, which the CPU reads for them; 0: as planned"},
    env_variable{"PEERLANE_LINK_GDR_RECEIVE_LIMIT", env_type::size_bytes, "bytes", "0", "",
                 "such messages are stored to GPU memory by the CPU up to here; 0: as the copy planner thinks"},
    env_variable{"PEERLANE_LINK_IPC_THRESHOLD", env_type::size_bytes, "bytes", "0", "",
                 "CUDA IPC between processes of a node from here up; 0: as planned"},
    env_variable{"PEERLANE_LINK_CHUNK", env_type::size_bytes, "bytes", "0", "",
                 "chunk of the rings of pinned memory; 0: 256K"},
    env_variable{"PEERLANE_LINK_UNEXPECTED", env_type::size_bytes, "bytes", "0", "",
                 "what one peer may have sent without a receive for it (its further sends wait); 0: 4M, at least 128K"},
    env_variable{"PEERLANE_COLLECTIVES_TABLE", env_type::text, "", "", "",
                 "rank 0: file of rules that say which algorithm a collective takes (docs/collectives.md); empty: built in"},
    env_variable{"PEERLANE_LINK_RAILS", env_type::text, "", "", "",
                 "UCX's net devices for messages: mlx5_0:1,mlx5_1:1; empty: all"},
    env_variable{"PEERLANE_LINK_FIXED_RAIL", env_type::boolean, "", "0", "",
                 "1: each process uses one of PEERLANE_LINK_RAILS, by its rank on the node"},
    env_variable{"PEERLANE_LINK_RAIL_FAILOVER", env_type::choice, "", "auto", "auto|off|on",
                 "messages go on by the other rails where one fails; auto: where all are network interfaces, without RDMA"},
    env_variable{"PEERLANE_LINK_STRIPE_THRESHOLD", env_type::size_bytes, "bytes", "0", "",
                 "messages are spread over rails in parts of at least this; 0: UCX's own"},
    env_variable{"PEERLANE_LINK_PEER_TIMEOUT_MS", env_type::integer, "ms", "0", "",
                 "how often UCX looks whether a silent peer on another host lives; 0: UCX's own"},
    env_variable{"PEERLANE_LINK_RENDEZVOUS", env_type::text, "", "", "",
                 "where the processes of a job meet: HOST:PORT of rank 0, or file:FOLDER; empty: as the launcher says"},
    env_variable{"PEERLANE_LINK_SECRET_FILE", env_type::text, "", "", "",
                 "file (mode 0600) with the secret of the job, for meeting at HOST:PORT; needed beyond one machine"},
    env_variable{"PEERLANE_LINK_ELASTIC", env_type::boolean, "", "0", "",
                 "ranks of a job may leave and come back as new processes; the same for all ranks"},
    env_variable{"PEERLANE_LINK_RANK", env_type::integer, "", "-1", "", "this process's rank; -1: the launcher's"},
    env_variable{"PEERLANE_LINK_SIZE", env_type::integer, "", "0", "", "number of processes of the job; 0: the launcher's"},
    env_variable{
        "PEERLANE_LINK_CPU", env_type::text, "", "", "",
        "where a rank's thread runs: none, near (the GPU's CPUs), bunch, scatter, 0-3,8, or 0-3:8-11 by rank of the node; "
        "empty: none, and near for p2p's own processes"},
    env_variable{"PEERLANE_LINK_PROGRESS_THREAD", env_type::boolean, "", "0", "",
                 "a thread makes progress of messages, and calls that wait sleep"},
    env_variable{"PEERLANE_LINK_CALIBRATE", env_type::boolean, "", "0", "",
                 "1: measure what a packet and a handshake cost when a job opens (once for a machine)"},
    env_variable{"MV2_ENABLE_AFFINITY", env_type::boolean, "", "1", "", "0: PEERLANE_LINK_CPU=none under MVAPICH2's name"},
    env_variable{"MV2_CPU_MAPPING", env_type::text, "", "", "", "PEERLANE_LINK_CPU=0-3:8-11 under MVAPICH2's name"},
    env_variable{"MV2_CPU_BINDING_POLICY", env_type::text, "", "", "",
                 "bunch, scatter or hybrid (near): PEERLANE_LINK_CPU under MVAPICH2's name"},
    env_variable{"UCX_TLS", env_type::text, "", "", "", "UCX's transports; set: messages leave the choice to it (as UCX)"},
    env_variable{"UCX_PROTO_ENABLE", env_type::text, "", "", "",
                 "UCX's newer protocols; set: it stays, else they are off in UCX 1.16 to 1.21 (as UCX)"},
    env_variable{"UCX_RNDV_THRESH", env_type::text, "", "", "",
                 "UCX's limit of eager sends; set: also for messages over hosts without RDMA (as UCX)"},
    env_variable{"UCX_ZCOPY_THRESH", env_type::text, "", "", "", "UCX's least send without a copy of its own (as UCX)"},
    env_variable{"UCX_TCP_TX_SEG_SIZE", env_type::text, "", "", "", "UCX's packets over TCP, sent (as UCX)"},
    env_variable{"UCX_TCP_RX_SEG_SIZE", env_type::text, "", "", "", "UCX's packets over TCP, received (as UCX)"},
    env_variable{"MV2_CUDA_IPC", env_type::boolean, "", "1", "", "PEERLANE_LINK_IPC under MVAPICH2's name"},
    env_variable{"MV2_CUDA_IPC_THRESHOLD", env_type::size_bytes, "bytes", "0", "",
                 "PEERLANE_LINK_IPC_THRESHOLD under MVAPICH2's name"},
    env_variable{"MV2_SMP_USE_CMA", env_type::boolean, "", "1", "", "PEERLANE_LINK_PULL under MVAPICH2's name"},
    env_variable{"MV2_CUDA_BLOCK_SIZE", env_type::size_bytes, "bytes", "0", "", "PEERLANE_LINK_CHUNK under MVAPICH2's name"},
    env_variable{"MV2_GDRCOPY_LIMIT", env_type::size_bytes, "bytes", "0", "",
                 "PEERLANE_LINK_GDR_SEND_LIMIT under MVAPICH2's name"},
    env_variable{"MV2_USE_GPUDIRECT_GDRCOPY_LIMIT", env_type::size_bytes, "bytes", "0", "",
                 "PEERLANE_LINK_GDR_SEND_LIMIT under MVAPICH2's older name"},
    env_variable{"MV2_USE_GPUDIRECT_RDMA", env_type::boolean, "", "1", "", "PEERLANE_LINK_GPU_LANES under MVAPICH2's name"},
    env_variable{"MV2_PROCESS_TO_RAIL_MAPPING", env_type::text, "", "", "",
                 "mlx5_0:mlx5_3: PEERLANE_LINK_RAILS and PEERLANE_LINK_FIXED_RAIL under MVAPICH2's name"},
    env_variable{"MV2_GPUDIRECT_LIMIT", env_type::text, "", "", "",
                 "not used, and `peerlane p2p` says so: UCX chooses by size itself (MVAPICH2)"},
    env_variable{"UCX_IB_GPU_DIRECT_RDMA", env_type::text, "", "", "",
                 "n: PEERLANE_LINK_GPU_LANES=0 under UCX's name (as UCX)"},
    env_variable{"MV2_IBA_HCA", env_type::text, "", "", "", "mlx5_0:mlx5_1: PEERLANE_LINK_RAILS under MVAPICH2's name"},
    env_variable{"MV2_RAIL_SHARING_POLICY", env_type::text, "", "", "",
                 "FIXED_MAPPING: PEERLANE_LINK_FIXED_RAIL under MVAPICH2's name; USE_FIRST: as it is without"},
    env_variable{"MV2_NUM_HCAS", env_type::text, "", "", "", "not used, and `peerlane p2p` says so (MVAPICH2)"},
    env_variable{"MV2_NUM_PORTS", env_type::text, "", "", "", "not used, and `peerlane p2p` says so (MVAPICH2)"},
    env_variable{"MV2_SM_SCHEDULING", env_type::text, "", "", "", "not used, and `peerlane p2p` says so (MVAPICH2)"},
    env_variable{"MV2_RAIL_SHARING_LARGE_MSG_THRESHOLD", env_type::size_bytes, "bytes", "0", "",
                 "PEERLANE_LINK_STRIPE_THRESHOLD under MVAPICH2's name"},
    env_variable{"OMPI_MCA_btl_smcuda_use_cuda_ipc", env_type::boolean, "", "1", "",
                 "PEERLANE_LINK_IPC under Open MPI's name"},
    env_variable{"OMPI_MCA_btl_openib_want_cuda_gdr", env_type::boolean, "", "1", "",
                 "PEERLANE_LINK_GPU_LANES under Open MPI's name"},
    env_variable{"OMPI_MCA_btl_openib_if_include", env_type::text, "", "", "",
                 "mlx5_0:1,mlx5_1: PEERLANE_LINK_RAILS under Open MPI's name"},
    env_variable{"OMPI_MCA_btl_openib_if_exclude", env_type::text, "", "", "",
                 "not used, and `peerlane p2p` says so (Open MPI)"},
    env_variable{"OMPI_MCA_btl_tcp_if_include", env_type::text, "", "", "",
                 "not used, and `peerlane p2p` says so: it is for Open MPI's own TCP"},
    env_variable{"OMPI_MCA_btl_tcp_if_exclude", env_type::text, "", "", "",
                 "not used, and `peerlane p2p` says so: it is for Open MPI's own TCP"},
    env_variable{"PEERLANE_STREAM_WRITER", env_type::choice, "", "auto", "auto|direct|copied|kernel",
                 "how signals between streams get into a peer GPU's memory; auto: the first way that passes a trial"},
    env_variable{"PEERLANE_STREAM_CHUNK", env_type::size_bytes, "bytes", "64K", "",
                 "a stream's large puts by the CPU go in pieces of this size, 4K to 128K"},
    env_variable{
        "PEERLANE_STREAM_SPREAD", env_type::size_bytes, "bytes", "256K", "",
        "a stream's puts by the CPU up to this size are left by one kernel in pieces of 16K; 256K at most, 0: none"},
    env_variable{"PEERLANE_STREAM_RECEIVE", env_type::choice, "", "auto", "auto|on|off",
                 "a copy engine moves what comes from another host into a stream's window, if it is large; auto: on the "
                 "simulated GPU only: on two H100 it was slower (256 KiB: 1.11 of the normal flow's time)"},
    env_variable{"PEERLANE_LOG", env_type::choice, "", "off", "debug|info|warn|error|off", "lowest level written to stderr"},
    env_variable{"PEERLANE_NAMES_CHECKED", env_type::boolean, "", "0", "",
                 "1: nobody warns of misspelt names of variables; `peerlane` sets it for the processes that it starts"},
    env_variable{"PEERLANE_STATISTICS", env_type::boolean, "", "0", "",
                 "1: numbers of this process are there for `peerlane top`"},
    env_variable{"PEERLANE_STATISTICS_FOLDER", env_type::text, "", "/dev/shm", "",
                 "where those numbers lie; for tests and unusual containers"},
    env_variable{"PEERLANE_SIM_DEVICES", env_type::integer, "devices", "2", "", "simulated GPU: number of devices, 1..16"},
    env_variable{"PEERLANE_SIM_MEMORY", env_type::size_bytes, "bytes", "2G", "",
                 "simulated GPU: memory of each device (committed only when touched)"},
    env_variable{"PEERLANE_SIM_BOARD_FILE", env_type::text, "", "", "",
                 "simulated GPU: device file that its memory comes from (sim/board_file.h; tests of the kernel driver)"},
    env_variable{"PEERLANE_SIM_SEED", env_type::integer, "", "0", "",
                 "simulated GPU: seed of delays and legal reorderings; 0 adds none"},
    env_variable{
        "PEERLANE_SIM_DELAY", env_type::integer, "us", "0", "",
        "simulated GPU: how long stores to other devices and the host are held back, about, to arrive in another order"},
    env_variable{
        "PEERLANE_SIM_QUEUE", env_type::integer, "operations", "1024", "",
        "simulated GPU: how many operations of a stream may be outstanding before the next call blocks; 0: any number"},
    env_variable{"PEERLANE_SIM_QUEUES", env_type::integer, "", "0", "",
                 "simulated GPU: hardware queues of a context, which its streams share in turn; 0: one for every stream"},
    env_variable{"PEERLANE_SIM_FABRIC", env_type::choice, "", "off", "off|on|no_imex",
                 "simulated GPU: fabric handles of memory; no_imex: as on a machine without the IMEX service"},
    env_variable{"PEERLANE_SIM_MODE", env_type::choice, "", "plain", "plain|mig|confidential|mps|no_peers",
                 "simulated GPU: a mode in which DMA channels cannot be had"},
    env_variable{"PEERLANE_SIM_MULTICAST", env_type::boolean, "", "1", "",
                 "simulated GPU: the switch between its devices multicasts (cuMulticast*)"},
    env_variable{"PEERLANE_SIM_LOG", env_type::choice, "", "error", "debug|info|warn|error|off",
                 "simulated GPU: lowest level written to stderr"},
    env_variable{"PEERLANE_SIM_DRIVER_VERSION", env_type::integer, "", "13030", "",
                 "simulated GPU: what cuDriverGetVersion reports (13030 = CUDA 13.3)"},
    env_variable{
        "PEERLANE_SIM_LINKS", env_type::text, "", "", "",
        "simulated GPU: its links and state as NVML tells them, e.g. pcie=3x8/5x16,nvlink=4x18,hbm=5120@2619,numa=0; "
        "per device 0:pcie=3x8;1:numa=1; also switch, sm, throttle, replays, ecc, processes, bar1"},
    env_variable{
        "PEERLANE_SIM_RATES", env_type::text, "GB/s", "", "",
        "simulated GPU: how fast its copy engines are at most, e.g. h2d=2,d2h=2,p2p=4,local=8; far=0.5 is the factor for "
        "host memory on another NUMA node"},
    env_variable{"CUDA_VISIBLE_DEVICES", env_type::text, "", "", "",
                 "simulated GPU: which devices exist and in which order, by ordinal or GPU-uuid (as CUDA)"},
    env_variable{"CUDA_DEVICE_MAX_CONNECTIONS", env_type::integer, "", "0", "",
                 "simulated GPU: used instead of PEERLANE_SIM_QUEUES where that is not 0 (as CUDA)"},
    env_variable{"CUDA_LAUNCH_BLOCKING", env_type::integer, "", "0", "",
                 "not 0: no triggered streams and no copy kernel, which cannot work so; the peerlane program goes without "
                 "it (as CUDA)"},
    env_variable{"GDRCOPY_ENABLE_LOGGING", env_type::presence, "", "", "", "set to anything: log to stderr (as GDRCopy)"},
    env_variable{"GDRCOPY_LOG_LEVEL", env_type::integer, "", "4", "", "1 debug, 2 info, 3 warn, 4 error (as GDRCopy)"},
    env_variable{"GDRCOPY_USE_DMABUF_MMAP", env_type::text, "", "0", "", "exactly \"1\": do not try gdrdrv (as GDRCopy)"},
    env_variable{"RANK", env_type::text, "", "", "", "this process's rank (set by torchrun, with the next five)"},
    env_variable{"WORLD_SIZE", env_type::text, "", "", "", "number of ranks (torchrun)"},
    env_variable{"LOCAL_RANK", env_type::text, "", "", "", "place among the ranks of this host (torchrun)"},
    env_variable{"LOCAL_WORLD_SIZE", env_type::text, "", "", "", "ranks on this host (torchrun)"},
    env_variable{"MASTER_ADDR", env_type::text, "", "", "", "rank 0's host (torchrun)"},
    env_variable{"MASTER_PORT", env_type::text, "", "", "",
                 "torch.distributed's port there; the next one is used (torchrun)"},
    env_variable{"TORCHELASTIC_RUN_ID", env_type::text, "", "", "",
                 "the job (torchrun); if set, torchrun's variables come before those of another launcher"},
    env_variable{"TORCHELASTIC_RESTART_COUNT", env_type::text, "", "", "", "how often the job was started anew (torchrun)"},
    env_variable{"OMPI_COMM_WORLD_RANK", env_type::text, "", "", "", "this process's rank (set by Open MPI's mpirun)"},
    env_variable{"OMPI_COMM_WORLD_SIZE", env_type::text, "", "", "", "number of ranks (Open MPI)"},
    env_variable{"OMPI_COMM_WORLD_LOCAL_SIZE", env_type::text, "", "", "", "ranks on this host (Open MPI)"},
    env_variable{"OMPI_COMM_WORLD_LOCAL_RANK", env_type::text, "", "", "", "place among the ranks of this host (Open MPI)"},
    env_variable{"MV2_COMM_WORLD_RANK", env_type::text, "", "", "", "this process's rank (set by MVAPICH2's mpirun_rsh)"},
    env_variable{"MV2_COMM_WORLD_SIZE", env_type::text, "", "", "", "number of ranks (MVAPICH2)"},
    env_variable{"MV2_COMM_WORLD_LOCAL_SIZE", env_type::text, "", "", "", "ranks on this host (MVAPICH2)"},
    env_variable{"MV2_COMM_WORLD_LOCAL_RANK", env_type::text, "", "", "", "place among the ranks of this host (MVAPICH2)"},
    env_variable{"PMIX_NAMESPACE", env_type::text, "", "", "", "the job that the ranks belong to (PMIx launchers)"},
    env_variable{"PMIX_SERVER_TMPDIR", env_type::text, "", "", "",
                 "folder of the PMIx server of this host (PMIx launchers)"},
    env_variable{"OMPI_MCA_orte_precondition_transports", env_type::text, "", "", "", "a number of this job (Open MPI 4)"},
    env_variable{"PMI_FD", env_type::text, "", "", "",
                 "the launcher's socket for PMI (set by MPICH's mpiexec, and srun --mpi=pmi2)"},
    env_variable{"PMI_JOBID", env_type::text, "", "", "", "the job that the ranks belong to (srun --mpi=pmi2)"},
    env_variable{"PMI_PORT", env_type::text, "", "", "",
                 "where the launcher listens for PMI (set by MPICH's mpiexec -pmi-port)"},
    env_variable{"PMI_RANK", env_type::text, "", "", "", "this process's rank (set by MPICH's mpiexec)"},
    env_variable{"PMI_SIZE", env_type::text, "", "", "", "number of ranks (MPICH)"},
    env_variable{"MPI_LOCALNRANKS", env_type::text, "", "", "", "ranks on this host (MPICH)"},
    env_variable{"MPI_LOCALRANKID", env_type::text, "", "", "", "place among the ranks of this host (MPICH)"},
    env_variable{"SLURM_PROCID", env_type::text, "", "", "", "this process's rank (set by srun)"},
    env_variable{"SLURM_STEP_NUM_TASKS", env_type::text, "", "", "", "number of ranks (srun)"},
    env_variable{"SLURM_STEP_NUM_NODES", env_type::text, "", "", "", "hosts of the ranks (srun)"},
    env_variable{"SLURM_STEP_NODELIST", env_type::text, "", "", "", "names of those hosts (srun)"},
    env_variable{"SLURM_LOCALID", env_type::text, "", "", "", "place among the ranks of this host (srun)"},
    env_variable{"SLURM_JOB_ID", env_type::text, "", "", "", "the job that the ranks belong to (Slurm)"},
    env_variable{"SLURM_STEP_ID", env_type::text, "", "", "", "the job step that the ranks belong to (Slurm)"},
    env_variable{"NOTIFY_SOCKET", env_type::text, "", "", "", "where `peerlane store serve` tells that it serves (systemd)"},
    env_variable{"NO_COLOR", env_type::text, "", "", "", "set to anything: `peerlane` prints without colours"},
    env_variable{"TERM", env_type::text, "", "", "", "dumb: `peerlane` prints without colours and progress"},
    env_variable{"COLUMNS", env_type::text, "", "", "", "width at which `peerlane env` wraps; empty: the terminal's"},
    env_variable{"HOME", env_type::text, "", "", "", "where ~/.cache is"},
    env_variable{"XDG_CACHE_HOME", env_type::text, "", "", "", "where calibration results are kept (default ~/.cache)"},
};

bool parse_choice(const env_variable& variable, const std::string& text, std::int64_t& out) {
  std::string_view rest = variable.choices;
  for (std::int64_t index = 0; !rest.empty(); ++index) {
    const auto bar = rest.find('|');
    if (rest.substr(0, bar) == text) {
      out = std::strcmp(variable.choices, "debug|info|warn|error|off") == 0 ? index + 1 : index;
      return true;
    }
    rest = bar == std::string_view::npos ? std::string_view{} : rest.substr(bar + 1);
  }
  return false;
}

bool parse_boolean(const std::string& text, std::int64_t& out) {
  for (const char* word : {"1", "yes", "true", "on"})
    if (text == word) return out = 1, true;
  for (const char* word : {"0", "no", "false", "off", ""})
    if (text == word) return out = 0, true;
  return false;
}

bool parse(const env_variable& variable, const std::string& text, std::int64_t& out) {
  switch (variable.type) {
    case env_type::text:
      return true;
    case env_type::presence:
      return out = 1, true;
    case env_type::boolean:
      return parse_boolean(text, out);
    case env_type::choice:
      return parse_choice(variable, text, out);
    case env_type::integer:
      if (const auto value = parse_integer(text)) return out = *value, true;
      return false;
    case env_type::size_bytes:
      if (const auto value = parse_size(text); value && *value <= INT64_MAX)
        return out = static_cast<std::int64_t>(*value), true;
      return false;
  }
  return false;
}

std::string wanted(const env_variable& variable) {
  switch (variable.type) {
    case env_type::choice:
      return format("one of %s", variable.choices);
    case env_type::boolean:
      return "0 or 1";
    case env_type::integer:
      return "an integer";
    case env_type::size_bytes:
      return "a size such as 65536, 64K or 2G";
    default:
      return "text";
  }
}

// Not those of launchers: they name sockets, whose other end has no more rights than before.
constexpr std::array kPlaces = {"PEERLANE_NCCL_LIBRARY",
                                "PEERLANE_UCX_LIBRARY",
                                "PEERLANE_COLLECTIVES_TABLE",
                                "PEERLANE_STORE",
                                "PEERLANE_STATISTICS_FOLDER",
                                "PEERLANE_LINK_RENDEZVOUS",
                                "PEERLANE_LINK_SECRET_FILE",
                                "PEERLANE_SIM_BOARD_FILE",
                                "NOTIFY_SOCKET",
                                "HOME",
                                "XDG_CACHE_HOME"};

}  // namespace

std::span<const env_variable> env_registry() { return kVariables; }

bool env_names_a_place(const char* name) noexcept {
  return std::any_of(kPlaces.begin(), kPlaces.end(), [&](const char* one) { return std::strcmp(one, name) == 0; });
}

env_value env_read(const char* name) {
  // The simulated GPU is a library of its own in the same process: one of the two is enough to warn.
  const bool is_simulator = std::strncmp(name, "PEERLANE_SIM_", 13) == 0 || std::strncmp(name, "CUDA_", 5) == 0;
  // PEERLANE_GPU is read while libraries are loaded: before the program can announce its own check for misspelt names.
  const bool is_too_early = std::strcmp(name, "PEERLANE_NAMES_CHECKED") == 0 || std::strcmp(name, "PEERLANE_GPU") == 0;
  static std::atomic<bool> has_warned{false};
  if (!is_simulator && !is_too_early && !has_warned.load(std::memory_order_relaxed) && !has_warned.exchange(true))
    env_warn_of_unknown_names();
  const env_variable* variable = nullptr;
  for (const auto& candidate : kVariables)
    if (std::strcmp(candidate.name, name) == 0) variable = &candidate;
  assert(variable != nullptr && "environment variable is missing in the registry (env.cpp)");
  env_value value;
  if (variable == nullptr) return value;
  value.text = variable->default_value;
  if (variable->type != env_type::presence) parse(*variable, value.text, value.integer);
  const char* given = env_names_a_place(name) ? secure_getenv(name) : std::getenv(name);
  if (given == nullptr) return value;
  std::int64_t parsed = 0;
  if (parse(*variable, given, parsed)) {
    value.is_set = true;
    value.text = given;
    value.integer = parsed;
    return value;
  }
  value.problem = format("%s=%s is not understood: give %s; the default %s is used", name, given, wanted(*variable).c_str(),
                         variable->default_value);
  // Written directly: the level of the log itself may be what is malformed.
  log_line(log_level::error, "%s", value.problem.c_str());
  return value;
}

}  // namespace pl
