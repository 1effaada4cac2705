#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs unmodified NCCL on Peerlane's libgdrapi: an all-reduce of two GPUs over sockets with NCCL's GDRCopy enabled.

NCCL opens libgdrapi.so when NCCL_GDRCOPY_ENABLE=1 and keeps the flags between its proxy and its kernels in GPU memory that the
CPU reaches through it. Peer access and shared memory are disabled, so that NCCL uses the network transport, the only one with
GDRCopy. Needs PyTorch and two GPUs.

    scripts/gpu/nccl_gdrcopy.py <out folder of the build>

Passes if all sums are right and NCCL's own log says that GDRCopy was opened.
"""
import os
import subprocess
import sys


def rank_main(rank: int) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://127.0.0.1:29511")
    wrong = 0
    for round_number in range(20):
        for count in (1, 1000, 1 << 20, (8 << 20) + 3):
            values = torch.full((count,), float(rank + 1 + round_number), device="cuda")
            dist.all_reduce(values)
            wrong += int((values != 2.0 * round_number + 3.0).sum().item())
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank}: {wrong} wrong values", flush=True)
    sys.exit(1 if wrong else 0)


def main() -> int:
    out = os.path.abspath(sys.argv[1])
    env = dict(os.environ, NCCL_GDRCOPY_ENABLE="1", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_DEBUG="INFO",
               NCCL_DEBUG_SUBSYS="INIT,NET,ALLOC", NCCL_NVLS_ENABLE="0", NCCL_SOCKET_IFNAME="lo", GDRCOPY_ENABLE_LOGGING="1",
               GDRCOPY_LOG_LEVEL="2", LD_LIBRARY_PATH=out + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
    ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank)], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) for rank in (0, 1)]
    texts, failed = [], False
    for rank in ranks:
        try:
            texts.append(rank.communicate(timeout=180)[0])
        except subprocess.TimeoutExpired:
            rank.kill()
            texts.append(rank.communicate()[0] + "\ntimed out after 180 s")
        failed |= rank.returncode != 0
    for text in texts:
        lines = [line for line in text.splitlines()
                 if any(word in line for word in ("GDRCOPY", "GDR ", "gdr", "backend", "wrong", "Error", "error", "via NET", "timed out"))]
        print("\n".join(lines[:40]))
    opened = all("GDRCOPY enabled" in text or "GDRCOPY library" in text for text in texts)
    print("GDRCopy opened by both ranks" if opened else "NCCL did not open GDRCopy")
    print("PASS" if opened and not failed else "FAIL")
    return 0 if opened and not failed else 1


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--rank":
        rank_main(int(sys.argv[2]))
    elif len(sys.argv) == 2:
        sys.exit(main())
    else:
        sys.exit(__doc__)
