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
    env_variable{"PEERLANE_GPU", env_type::choice, "", "auto", "auto|real|sim",
                 "GPU for all programs; auto: the real one if it works, otherwise the simulated one. Unset: auto in "
                 "`peerlane`, real in programs that use the libraries"},
    env_variable{"PEERLANE_BACKEND", env_type::choice, "", "auto", "auto|gdrdrv|dmabuf|rm",
                 "use this mapping backend only; auto: try gdrdrv, dmabuf, rm in this order"},
    env_variable{"PEERLANE_RM_FORCE", env_type::boolean, "", "0", "",
                 "1: use the rm backend with an unknown driver version, and verify each mapping"},
    env_variable{
        "PEERLANE_RM_VERIFY", env_type::boolean, "", "0", "",
        "1: verify each new rm mapping: write a random number on one side, read it on the other, restore the memory"},
    env_variable{"PEERLANE_COPY_ISA", env_type::choice, "", "auto", "auto|portable|sse2|sse41|avx2|avx512|movdir64b|neon",
                 "highest instruction set that CPU copies use"},
    env_variable{"PEERLANE_COPY_ENGINE", env_type::choice, "", "auto", "auto|dma|kernel|off|1|0",
                 "what copies GPU memory without CUDA: DMA channels, or the resident copy kernel; auto (1): channels on "
                 "real GPUs, the kernel if channels are not available; off (0): neither"},
    env_variable{"PEERLANE_DEVICE_RINGS", env_type::choice, "", "auto", "auto|dma|proxy",
                 "what executes transfers that kernels start: a DMA channel, or a proxy thread with CUDA's copies; auto: "
                 "the channel if available"},
    env_variable{"PEERLANE_DEVICE_TIMESLICE_US", env_type::integer, "microseconds", "2", "",
                 "time slice of a kernel's ring: how long a waiting ring keeps its copy engine from other channels; 0: the "
                 "driver's time slice, one to two milliseconds"},
    env_variable{"PEERLANE_DEVICE_WAKEUPS", env_type::choice, "", "auto", "auto|on|off",
                 "on: the thread that refills kernels' rings sleeps until the copy engine's interrupt; off: it sleeps for "
                 "fixed times; auto: on"},
    env_variable{"PEERLANE_DMA_RINGS", env_type::choice, "", "auto", "auto|on|off",
                 "copy pageable memory with DMA channels, through rings of pinned memory, where that is fastest; auto: on"},
    env_variable{"PEERLANE_DMA_BULK_ENGINES", env_type::integer, "engines", "1", "1..2",
                 "number of copy engines for a list of more than 1 MiB"},
    env_variable{"PEERLANE_DMA_STREAM_ORDER", env_type::choice, "", "auto", "auto|on|off",
                 "DMA channels wait for CUDA streams, and streams for channels, without CUDA's copies; auto: on for the "
                 "simulated GPU only, because a single round was slower than with CUDA"},
    env_variable{"PEERLANE_COPY_LEASE_US", env_type::integer, "microseconds", "200", "20..1000000",
                 "longest time that the resident copy kernel stays on the GPU"},
    env_variable{"PEERLANE_COPY_PEER_ACCESS", env_type::boolean, "", "1", "",
                 "0: do not enable CUDA's peer access for copies between two GPUs; they then go through host memory"},
    env_variable{
        "PEERLANE_COPY_THREADS", env_type::integer, "threads", "0", "0..64",
        "CPU threads for one copy, including the caller; 0: 8, or half the CPUs if that is less. Messages and windows "
        "use at most 6; 0: the rank's share of the CPUs"},
    env_variable{"PEERLANE_GDRAPI_PLANNER", env_type::boolean, "", "0", "",
                 "1: gdr_copy_to_mapping and gdr_copy_from_mapping use the copy planner from 4 KiB on"},
    env_variable{
        "PEERLANE_STORE", env_type::text, "", "", "",
        "address of the store for `peerlane store` and for clients that give none: path of its socket, or HOST:PORT"},
    env_variable{"PEERLANE_STORE_RINGS", env_type::boolean, "", "1", "",
                 "0: clients on the store's unix socket use system calls instead of rings in shared memory"},
    env_variable{"PEERLANE_STORE_UCX", env_type::choice, "", "auto", "auto|off|on",
                 "clients use UCX for values; auto: if RDMA connects client and store; on: over any transport of UCX"},
    env_variable{"PEERLANE_STORE_GPU_DIRECT", env_type::choice, "", "auto", "auto|off|on",
                 "the store on this host copies this client's GPU memory itself; auto: if the store runs as this user or as "
                 "root, because it can then access the whole allocation; on: whoever runs it"},
    env_variable{
        "PEERLANE_STORE_GPU_CHECKSUM", env_type::choice, "", "auto", "auto|off|on",
        "the GPU computes the checksum of large puts from GPU memory; auto: on real GPUs; off: CPU threads compute it"},
    env_variable{"PEERLANE_NIXL_FORCE", env_type::boolean, "", "0", "",
                 "1: load the NIXL backend into versions of NIXL with which it was not compared"},
    env_variable{"PEERLANE_MPI_POOL", env_type::size_bytes, "bytes", "256M", "",
                 "MPI shim: pinned host memory that it keeps between messages"},
    env_variable{"PEERLANE_MPI_PIPELINE", env_type::size_bytes, "bytes", "0", "",
                 "MPI shim: shared memory of a process for large messages from GPU memory to processes on its host, for "
                 "example 256M; 0: MPI carries them in one piece"},
    env_variable{"PEERLANE_MPI_PIPELINE_FROM", env_type::size_bytes, "bytes", "128K", "",
                 "MPI shim: smallest message from GPU memory that is pipelined (at least 4096)"},
    env_variable{"PEERLANE_MPI_PIPELINE_RING", env_type::size_bytes, "bytes", "32M", "",
                 "MPI shim: shared memory for one message; it gets more only if its receiver does not read"},
    env_variable{
        "PEERLANE_MPI_WINDOWS", env_type::choice, "", "auto", "auto|copied",
        "MPI shim: copied: windows of GPU memory use copies in host memory, even if ranks could map each other's memory"},
    env_variable{"PEERLANE_NCCL_LIBRARY", env_type::text, "", "", "",
                 "path of libnccl.so.2 for `peerlane p2p --via nccl`; empty: the loader finds it"},
    env_variable{"PEERLANE_UCX_LIBRARY", env_type::text, "", "", "",
                 "path of libucp.so.0 for messages; empty: the loader finds it"},
    env_variable{"PEERLANE_LINK_PATH", env_type::choice, "", "auto", "auto|network",
                 "network: treat every peer as if it ran on another host"},
    env_variable{"PEERLANE_LINK_IPC", env_type::boolean, "", "1", "", "0: no CUDA IPC between processes of a node"},
    env_variable{"PEERLANE_LINK_PULL", env_type::boolean, "", "1", "",
                 "0: processes of a node do not access each other's host memory (CMA); messages go through shared memory"},
    env_variable{"PEERLANE_LINK_CHANNELS", env_type::boolean, "", "1", "",
                 "0: no DMA channels for messages and windows of GPU memory; puts and gets then need the window's process"},
    env_variable{"PEERLANE_LINK_UCX_RENDEZVOUS", env_type::choice, "", "auto", "auto|never|always",
                 "use UCX's rendezvous for large messages from host memory; auto: if UCX has RDMA to the peer"},
    env_variable{"PEERLANE_LINK_GPU_LANES", env_type::boolean, "", "1", "",
                 "0: never pass GPU pointers to UCX, even if it has RDMA lanes for them"},
    env_variable{"PEERLANE_LINK_EAGER_LIMIT", env_type::size_bytes, "bytes", "0", "",
                 "largest eager message, at most 32K; 0: chosen by peer and memory"},
    env_variable{"PEERLANE_LINK_GDR_SEND_LIMIT", env_type::size_bytes, "bytes", "0", "",
                 "largest eager message from GPU memory, which the CPU reads; 0: chosen from measured costs"},
    env_variable{"PEERLANE_LINK_GDR_RECEIVE_LIMIT", env_type::size_bytes, "bytes", "0", "",
                 "largest eager message that the CPU stores to GPU memory; 0: chosen by the copy planner"},
    env_variable{"PEERLANE_LINK_IPC_THRESHOLD", env_type::size_bytes, "bytes", "0", "",
                 "smallest message by CUDA IPC between processes of a node; 0: chosen by the two memories"},
    env_variable{"PEERLANE_LINK_CHUNK", env_type::size_bytes, "bytes", "0", "",
                 "chunk size of the rings of pinned memory; 0: 1M on one node, 256K between nodes"},
    env_variable{"PEERLANE_LINK_UNEXPECTED", env_type::size_bytes, "bytes", "0", "",
                 "bytes that one peer may send without a posted receive, after which its sends wait; at least 128K; 0: 4M"},
    env_variable{"PEERLANE_COLLECTIVES_TABLE", env_type::text, "", "", "",
                 "file of rules that choose the algorithm of a collective, read by rank 0 (docs/collectives.md#algorithms); "
                 "empty: built-in rules"},
    env_variable{"PEERLANE_LINK_RAILS", env_type::text, "", "", "",
                 "UCX net devices for messages, for example mlx5_0:1,mlx5_1:1; empty: all"},
    env_variable{"PEERLANE_LINK_FIXED_RAIL", env_type::boolean, "", "0", "",
                 "1: each process uses one of PEERLANE_LINK_RAILS, by its rank on the node"},
    env_variable{"PEERLANE_LINK_RAIL_FAILOVER", env_type::choice, "", "auto", "auto|off|on",
                 "the other rails replace one that fails; auto: on if all rails are network interfaces without RDMA"},
    env_variable{"PEERLANE_LINK_STRIPE_THRESHOLD", env_type::size_bytes, "bytes", "0", "",
                 "smallest part of a message for a second rail; 0: 32K, over RDMA UCX's default"},
    env_variable{"PEERLANE_LINK_PEER_TIMEOUT_MS", env_type::integer, "ms", "0", "",
                 "UCX's keep-alive interval for silent peers on other hosts; 0: UCX's default"},
    env_variable{"PEERLANE_LINK_RENDEZVOUS", env_type::text, "", "", "",
                 "where the processes of a job meet: HOST:PORT of rank 0, or file:FOLDER; empty: as the launcher arranges"},
    env_variable{"PEERLANE_LINK_SECRET_FILE", env_type::text, "", "", "",
                 "file (mode 0600) with the secret of the job; required to meet at HOST:PORT beyond one machine"},
    env_variable{"PEERLANE_LINK_ELASTIC", env_type::boolean, "", "0", "",
                 "1: ranks may leave and come back as new processes; set it for all ranks or none"},
    env_variable{"PEERLANE_LINK_RANK", env_type::integer, "", "-1", "", "this process's rank; -1: from the launcher"},
    env_variable{"PEERLANE_LINK_SIZE", env_type::integer, "", "0", "",
                 "number of processes in the job; 0: from the launcher"},
    env_variable{"PEERLANE_LINK_CPU", env_type::text, "", "", "",
                 "CPUs for a rank's thread: none (no binding), near (the GPU's CPUs), bunch, scatter, 0-3,8, or 0-3:8-11 by "
                 "rank on the node; empty: none, but near for processes that p2p starts"},
    env_variable{"PEERLANE_LINK_PROGRESS_THREAD", env_type::boolean, "", "0", "",
                 "1: a thread makes progress, and calls that wait sleep"},
    env_variable{"PEERLANE_LINK_CALIBRATE", env_type::boolean, "", "0", "",
                 "1: measure the cost of a packet and a handshake when a job opens (once for each machine)"},
    env_variable{"MV2_ENABLE_AFFINITY", env_type::boolean, "", "1", "",
                 "0: same as PEERLANE_LINK_CPU=none (MVAPICH2's name)"},
    env_variable{"MV2_CPU_MAPPING", env_type::text, "", "", "", "same as PEERLANE_LINK_CPU=0-3:8-11 (MVAPICH2's name)"},
    env_variable{"MV2_CPU_BINDING_POLICY", env_type::text, "", "", "",
                 "bunch, scatter or hybrid (near): same as PEERLANE_LINK_CPU (MVAPICH2's name)"},
    env_variable{"UCX_TLS", env_type::text, "", "", "",
                 "UCX's variable: its transports; if set, messages leave this choice to UCX"},
    env_variable{"UCX_PROTO_ENABLE", env_type::text, "", "", "",
                 "UCX's variable: its newer protocols; if not set, they are off in UCX 1.16 to 1.21"},
    env_variable{
        "UCX_RNDV_THRESH", env_type::text, "", "", "",
        "UCX's variable: its limit for eager sends; if set, it applies to messages between hosts without RDMA, too"},
    env_variable{"UCX_ZCOPY_THRESH", env_type::text, "", "", "", "UCX's variable: smallest send without a copy in UCX"},
    env_variable{"UCX_TCP_TX_SEG_SIZE", env_type::text, "", "", "", "UCX's variable: size of the TCP packets that it sends"},
    env_variable{"UCX_TCP_RX_SEG_SIZE", env_type::text, "", "", "",
                 "UCX's variable: size of the TCP packets that it receives"},
    env_variable{"MV2_CUDA_IPC", env_type::boolean, "", "1", "", "same as PEERLANE_LINK_IPC (MVAPICH2's name)"},
    env_variable{"MV2_CUDA_IPC_THRESHOLD", env_type::size_bytes, "bytes", "0", "",
                 "same as PEERLANE_LINK_IPC_THRESHOLD (MVAPICH2's name)"},
    env_variable{"MV2_SMP_USE_CMA", env_type::boolean, "", "1", "", "same as PEERLANE_LINK_PULL (MVAPICH2's name)"},
    env_variable{"MV2_CUDA_BLOCK_SIZE", env_type::size_bytes, "bytes", "0", "",
                 "same as PEERLANE_LINK_CHUNK (MVAPICH2's name)"},
    env_variable{"MV2_GDRCOPY_LIMIT", env_type::size_bytes, "bytes", "0", "",
                 "same as PEERLANE_LINK_GDR_SEND_LIMIT (MVAPICH2's name)"},
    env_variable{"MV2_USE_GPUDIRECT_GDRCOPY_LIMIT", env_type::size_bytes, "bytes", "0", "",
                 "same as PEERLANE_LINK_GDR_SEND_LIMIT (MVAPICH2's older name)"},
    env_variable{"MV2_USE_GPUDIRECT_RDMA", env_type::boolean, "", "1", "",
                 "same as PEERLANE_LINK_GPU_LANES (MVAPICH2's name)"},
    env_variable{"MV2_PROCESS_TO_RAIL_MAPPING", env_type::text, "", "", "",
                 "mlx5_0:mlx5_3: same as PEERLANE_LINK_RAILS with PEERLANE_LINK_FIXED_RAIL=1 (MVAPICH2's name)"},
    env_variable{"MV2_GPUDIRECT_LIMIT", env_type::text, "", "", "",
                 "no effect, and `peerlane p2p` says so: UCX chooses by size itself (MVAPICH2)"},
    env_variable{"UCX_IB_GPU_DIRECT_RDMA", env_type::text, "", "", "",
                 "UCX's variable; n: same as PEERLANE_LINK_GPU_LANES=0"},
    env_variable{"MV2_IBA_HCA", env_type::text, "", "", "", "mlx5_0:mlx5_1: same as PEERLANE_LINK_RAILS (MVAPICH2's name)"},
    env_variable{"MV2_RAIL_SHARING_POLICY", env_type::text, "", "", "",
                 "FIXED_MAPPING: same as PEERLANE_LINK_FIXED_RAIL=1; USE_FIRST: no effect (MVAPICH2's name)"},
    env_variable{"MV2_NUM_HCAS", env_type::text, "", "", "", "no effect, and `peerlane p2p` says so (MVAPICH2)"},
    env_variable{"MV2_NUM_PORTS", env_type::text, "", "", "", "no effect, and `peerlane p2p` says so (MVAPICH2)"},
    env_variable{"MV2_SM_SCHEDULING", env_type::text, "", "", "", "no effect, and `peerlane p2p` says so (MVAPICH2)"},
    env_variable{"MV2_RAIL_SHARING_LARGE_MSG_THRESHOLD", env_type::size_bytes, "bytes", "0", "",
                 "same as PEERLANE_LINK_STRIPE_THRESHOLD (MVAPICH2's name)"},
    env_variable{"OMPI_MCA_btl_smcuda_use_cuda_ipc", env_type::boolean, "", "1", "",
                 "same as PEERLANE_LINK_IPC (Open MPI's name)"},
    env_variable{"OMPI_MCA_btl_openib_want_cuda_gdr", env_type::boolean, "", "1", "",
                 "same as PEERLANE_LINK_GPU_LANES (Open MPI's name)"},
    env_variable{"OMPI_MCA_btl_openib_if_include", env_type::text, "", "", "",
                 "mlx5_0:1,mlx5_1: same as PEERLANE_LINK_RAILS (Open MPI's name)"},
    env_variable{"OMPI_MCA_btl_openib_if_exclude", env_type::text, "", "", "",
                 "no effect, and `peerlane p2p` says so (Open MPI)"},
    env_variable{"OMPI_MCA_btl_tcp_if_include", env_type::text, "", "", "",
                 "no effect, and `peerlane p2p` says so: it is for Open MPI's own TCP"},
    env_variable{"OMPI_MCA_btl_tcp_if_exclude", env_type::text, "", "", "",
                 "no effect, and `peerlane p2p` says so: it is for Open MPI's own TCP"},
    env_variable{
        "PEERLANE_STREAM_WRITER", env_type::choice, "", "auto", "auto|direct|copied|kernel",
        "how signals between streams are written to a peer GPU's memory; auto: the first method that passes a test"},
    env_variable{"PEERLANE_STREAM_CHUNK", env_type::size_bytes, "bytes", "64K", "",
                 "chunk size of large puts that the proxy thread executes for a stream, 4K to 128K"},
    env_variable{"PEERLANE_STREAM_SPREAD", env_type::size_bytes, "bytes", "256K", "",
                 "largest put by the proxy thread that one kernel hands over, in chunks of 16K; larger puts use the copy "
                 "engine; at most 256K, 0: no kernel"},
    env_variable{"PEERLANE_STREAM_RECEIVE", env_type::choice, "", "auto", "auto|on|off",
                 "a copy engine moves large puts from other hosts into a stream's window; auto: on for the simulated GPU "
                 "only, because it was slower on two H100 (256 KiB: 1.11 times the normal time)"},
    env_variable{"PEERLANE_LOG", env_type::choice, "", "off", "debug|info|warn|error|off",
                 "lowest level that is written to stderr"},
    env_variable{"PEERLANE_NAMES_CHECKED", env_type::boolean, "", "0", "",
                 "1: no warnings about misspelt variable names; `peerlane` sets it for the processes that it starts"},
    env_variable{"PEERLANE_STATISTICS", env_type::boolean, "", "0", "",
                 "1: publish statistics of this process for `peerlane top`"},
    env_variable{"PEERLANE_STATISTICS_FOLDER", env_type::text, "", "/dev/shm", "",
                 "folder of these statistics, for tests and unusual containers"},
    env_variable{"PEERLANE_SIM_DEVICES", env_type::integer, "devices", "2", "1..16", "simulated GPU: number of devices"},
    env_variable{"PEERLANE_SIM_MEMORY", env_type::size_bytes, "bytes", "2G", "",
                 "simulated GPU: memory of each device (committed only when touched)"},
    env_variable{"PEERLANE_SIM_BOARD_FILE", env_type::text, "", "", "",
                 "simulated GPU: device file that provides its memory (sim/board_file.h; for tests of the kernel driver)"},
    env_variable{"PEERLANE_SIM_SEED", env_type::integer, "", "0", "",
                 "simulated GPU: seed of delays and legal reorderings; 0: none"},
    env_variable{
        "PEERLANE_SIM_DELAY", env_type::integer, "us", "0", "",
        "simulated GPU: approximate delay of stores to other devices and the host, so that they arrive in another order"},
    env_variable{"PEERLANE_SIM_QUEUE", env_type::integer, "operations", "1024", "",
                 "simulated GPU: operations of a stream that may be outstanding before the next call blocks; 0: no limit"},
    env_variable{"PEERLANE_SIM_QUEUES", env_type::integer, "", "0", "",
                 "simulated GPU: hardware queues of a context, which its streams share; 0: one for each stream"},
    env_variable{"PEERLANE_SIM_FABRIC", env_type::choice, "", "off", "off|on|no_imex",
                 "simulated GPU: fabric handles of memory; no_imex: as on a machine without the IMEX service"},
    env_variable{"PEERLANE_SIM_MODE", env_type::choice, "", "plain", "plain|mig|confidential|mps|no_peers",
                 "simulated GPU: mig, confidential, mps: there are no DMA channels; no_peers: no GPU can access another "
                 "GPU's memory"},
    env_variable{"PEERLANE_SIM_MULTICAST", env_type::boolean, "", "1", "",
                 "simulated GPU: the switch between its devices supports multicast (cuMulticast*)"},
    env_variable{"PEERLANE_SIM_LOG", env_type::choice, "", "error", "debug|info|warn|error|off",
                 "simulated GPU: lowest level that is written to stderr"},
    env_variable{"PEERLANE_SIM_DRIVER_VERSION", env_type::integer, "", "13030", "",
                 "simulated GPU: version that cuDriverGetVersion reports (13030 = CUDA 13.3)"},
    env_variable{"PEERLANE_SIM_LINKS", env_type::text, "", "", "",
                 "simulated GPU: links and state that NVML reports, e.g. pcie=3x8/5x16,nvlink=4x18,hbm=5120@2619,numa=0; "
                 "per device 0:pcie=3x8;1:numa=1; also switch, sm, throttle, replays, ecc, processes, bar1"},
    env_variable{"PEERLANE_SIM_RATES", env_type::text, "GB/s", "", "",
                 "simulated GPU: maximum rates of its copy engines, e.g. h2d=2,d2h=2,p2p=4,local=8; far=0.5 is the factor "
                 "for host memory on another NUMA node"},
    env_variable{"CUDA_VISIBLE_DEVICES", env_type::text, "", "", "",
                 "simulated GPU: visible devices in this order, by ordinal or GPU-uuid (as CUDA)"},
    env_variable{"CUDA_DEVICE_MAX_CONNECTIONS", env_type::integer, "", "0", "",
                 "simulated GPU: replaces the number in PEERLANE_SIM_QUEUES, if both are not 0"},
    env_variable{"CUDA_LAUNCH_BLOCKING", env_type::integer, "", "0", "",
                 "not 0: disables triggered streams and the copy kernel, which cannot work with it; the peerlane program "
                 "ignores it (as CUDA)"},
    env_variable{"GDRCOPY_ENABLE_LOGGING", env_type::presence, "", "", "", "set to anything: log to stderr (as GDRCopy)"},
    env_variable{"GDRCOPY_LOG_LEVEL", env_type::integer, "", "4", "", "1 debug, 2 info, 3 warn, 4 error (as GDRCopy)"},
    env_variable{"GDRCOPY_USE_DMABUF_MMAP", env_type::text, "", "0", "", "exactly \"1\": do not try gdrdrv (as GDRCopy)"},
    env_variable{"RANK", env_type::text, "", "", "", "this process's rank (set by torchrun, with the next five)"},
    env_variable{"WORLD_SIZE", env_type::text, "", "", "", "number of ranks (torchrun)"},
    env_variable{"LOCAL_RANK", env_type::text, "", "", "", "rank among the ranks of this host (torchrun)"},
    env_variable{"LOCAL_WORLD_SIZE", env_type::text, "", "", "", "ranks on this host (torchrun)"},
    env_variable{"MASTER_ADDR", env_type::text, "", "", "", "host of rank 0 (torchrun)"},
    env_variable{"MASTER_PORT", env_type::text, "", "", "",
                 "port of torch.distributed on that host; Peerlane uses the next one (torchrun)"},
    env_variable{"TORCHELASTIC_RUN_ID", env_type::text, "", "", "",
                 "name of the job (torchrun); if set, torchrun's variables take precedence over those of other launchers"},
    env_variable{"TORCHELASTIC_RESTART_COUNT", env_type::text, "", "", "", "number of restarts of the job (torchrun)"},
    env_variable{"OMPI_COMM_WORLD_RANK", env_type::text, "", "", "", "this process's rank (set by Open MPI's mpirun)"},
    env_variable{"OMPI_COMM_WORLD_SIZE", env_type::text, "", "", "", "number of ranks (Open MPI)"},
    env_variable{"OMPI_COMM_WORLD_LOCAL_SIZE", env_type::text, "", "", "", "ranks on this host (Open MPI)"},
    env_variable{"OMPI_COMM_WORLD_LOCAL_RANK", env_type::text, "", "", "", "rank among the ranks of this host (Open MPI)"},
    env_variable{"MV2_COMM_WORLD_RANK", env_type::text, "", "", "", "this process's rank (set by MVAPICH2's mpirun_rsh)"},
    env_variable{"MV2_COMM_WORLD_SIZE", env_type::text, "", "", "", "number of ranks (MVAPICH2)"},
    env_variable{"MV2_COMM_WORLD_LOCAL_SIZE", env_type::text, "", "", "", "ranks on this host (MVAPICH2)"},
    env_variable{"MV2_COMM_WORLD_LOCAL_RANK", env_type::text, "", "", "", "rank among the ranks of this host (MVAPICH2)"},
    env_variable{"PMIX_NAMESPACE", env_type::text, "", "", "", "job of the ranks (PMIx launchers)"},
    env_variable{"PMIX_SERVER_TMPDIR", env_type::text, "", "", "",
                 "folder of the PMIx server of this host (PMIx launchers)"},
    env_variable{"OMPI_MCA_orte_precondition_transports", env_type::text, "", "", "", "number of this job (Open MPI 4)"},
    env_variable{"PMI_FD", env_type::text, "", "", "",
                 "the launcher's socket for PMI (set by MPICH's mpiexec, and srun --mpi=pmi2)"},
    env_variable{"PMI_JOBID", env_type::text, "", "", "", "job of the ranks (srun --mpi=pmi2)"},
    env_variable{"PMI_PORT", env_type::text, "", "", "",
                 "address at which the launcher listens for PMI (set by MPICH's mpiexec -pmi-port)"},
    env_variable{"PMI_RANK", env_type::text, "", "", "", "this process's rank (set by MPICH's mpiexec)"},
    env_variable{"PMI_SIZE", env_type::text, "", "", "", "number of ranks (MPICH)"},
    env_variable{"MPI_LOCALNRANKS", env_type::text, "", "", "", "ranks on this host (MPICH)"},
    env_variable{"MPI_LOCALRANKID", env_type::text, "", "", "", "rank among the ranks of this host (MPICH)"},
    env_variable{"SLURM_PROCID", env_type::text, "", "", "", "this process's rank (set by srun)"},
    env_variable{"SLURM_STEP_NUM_TASKS", env_type::text, "", "", "", "number of ranks (srun)"},
    env_variable{"SLURM_STEP_NUM_NODES", env_type::text, "", "", "", "number of hosts (srun)"},
    env_variable{"SLURM_STEP_NODELIST", env_type::text, "", "", "", "names of these hosts (srun)"},
    env_variable{"SLURM_LOCALID", env_type::text, "", "", "", "rank among the ranks of this host (srun)"},
    env_variable{"SLURM_JOB_ID", env_type::text, "", "", "", "job of the ranks (Slurm)"},
    env_variable{"SLURM_STEP_ID", env_type::text, "", "", "", "job step of the ranks (Slurm)"},
    env_variable{"NOTIFY_SOCKET", env_type::text, "", "", "",
                 "socket on which `peerlane store serve` reports that it is ready (systemd)"},
    env_variable{"NO_COLOR", env_type::text, "", "", "", "set to anything: `peerlane` prints without colours"},
    env_variable{"TERM", env_type::text, "", "", "", "dumb: `peerlane` prints without colours and progress"},
    env_variable{"COLUMNS", env_type::text, "", "", "", "width at which `peerlane env` wraps; empty: the terminal's"},
    env_variable{"HOME", env_type::text, "", "", "", "home folder, which contains .cache"},
    env_variable{"XDG_CACHE_HOME", env_type::text, "", "", "", "folder for calibration results (default ~/.cache)"},
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

// Choices of an integer are "LOWEST..HIGHEST", or "" for any.
bool is_in_range(const env_variable& variable, std::int64_t value) {
  const std::string_view range = variable.choices;
  const auto dots = range.find("..");
  if (dots == std::string_view::npos) return true;
  const auto low = parse_integer(range.substr(0, dots)), high = parse_integer(range.substr(dots + 2));
  return low && high && *low <= value && value <= *high;
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
      if (const auto value = parse_integer(text); value && is_in_range(variable, *value)) return out = *value, true;
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
      return variable.choices[0] != '\0' ? format("an integer, %s", variable.choices) : "an integer";
    case env_type::size_bytes:
      return "a size such as 65536, 64K or 2G";
    default:
      return "text";
  }
}

// Launchers' variables are not included: they name sockets, whose other end has no additional rights.
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
  // The simulated GPU is a separate library in the same process: one of the two is enough to warn.
  const bool is_simulator = std::strncmp(name, "PEERLANE_SIM_", 13) == 0 || std::strncmp(name, "CUDA_", 5) == 0;
  // PEERLANE_GPU is read while libraries are loaded, before the program can announce its own check for misspelt names.
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
  value.problem = format("%s=%s is not valid: expected %s; using the default %s", name, given, wanted(*variable).c_str(),
                         variable->default_value);
  // Written directly, because the log level itself may be malformed.
  log_line(log_level::error, "%s", value.problem.c_str());
  return value;
}

}  // namespace pl
