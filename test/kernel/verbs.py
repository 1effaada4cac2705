# SPDX-License-Identifier: Apache-2.0
"""Messages over real verbs in guests: the kernel's soft-RoCE (rdma_rxe), rdma-core's provider for it, and UCX's rc_verbs.

rxe keeps the verbs' rules (queue pairs, memory registration, RC's acknowledgements) and moves the bytes in UDP. It has no way to
GPU memory: GPU buffers travel through pinned chunks, as on a machine without GPUDirect RDMA.
"""

import base64
import gzip
import os
import re
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import guest

# rxe's checksums come from a module that it does not name as a dependency.
RXE = ("crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe")
CARD = {"one": ("dummy",), "store": ("dummy",), "two": ("virtio_pci", "virtio_net")}
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
# What is opened by name at run time, and so is in no closure by itself: UCX, its transports, rxe's verbs.
OPENED = ("libucp.so.0", "libuct.so.0", "ucx/libuct_ib.so.0", "ucx/libuct_rdmacm.so.0", "libibverbs/librxe-rdmav34.so")
DRIVER_LIST = Path("/etc/libibverbs.d/rxe.driver")
RDMA = shutil.which("rdma", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


# ---- What is there -----------------------------------------------------------------------------------------------------


def missing_packages(kernel):
    """Why the kernel, with the packages of this machine, gives a guest no verbs; empty if all is there."""
    missing = []
    if RDMA is None:
        missing.append("iproute2")
    if not (LIBRARIES / "ucx/libuct_ib.so.0").exists():
        missing.append("libucx0")
    if not (DRIVER_LIST.exists() and (LIBRARIES / "libibverbs/librxe-rdmav34.so").exists()):
        missing.append("ibverbs-providers")
    if not any(path.name.startswith("rdma_rxe.ko") for path in module_paths(kernel)):
        missing.append(f"linux-image of {kernel.release} with rdma_rxe")
    return missing


def module_folder(kernel):
    return Path("/lib/modules") / kernel.release


def module_paths(kernel):
    """{module: those that it needs}, from the kernel's own list; empty if there is none."""
    listed = module_folder(kernel) / "modules.dep"
    lines = listed.read_text().splitlines() if listed.exists() else []
    pairs = (line.split(":") for line in lines)
    return {Path(name): [Path(one) for one in needs.split()] for name, needs in pairs}


def stem(path):
    return path.name.split(".")[0].replace("-", "_")


def modules_in_order(kernel, names):
    """Paths below the kernel's module folder, each behind what it needs. What is built in is left out."""
    needs = module_paths(kernel)
    by_name = {stem(path): path for path in needs}
    found = []
    for name in names:
        path = by_name.get(name)
        if path is not None:
            found += [one for one in [*reversed(needs[path]), path] if one not in found]
    return found


def unpacked_module(kernel, path, cache):
    source = module_folder(kernel) / path
    unpack = {".xz": guest.unpack_xz, ".zst": guest.unpack_zstd}.get(source.suffix)  # Debian's and Ubuntu's
    if unpack is None:
        return source
    out = cache / kernel.release / "distribution" / source.stem
    if not out.exists() or out.stat().st_mtime < source.stat().st_mtime:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_suffix(f".partial{os.getpid()}")
        partial.write_bytes(unpack(source.read_bytes()))
        partial.rename(out)
    return out


# ---- A guest with verbs ------------------------------------------------------------------------------------------------


def guest_files(kernel, guests, cache, programs, simulator):
    """({path in the guest: path here}, the lines that load the modules). `programs` lie where they lie here."""
    libraries = [LIBRARIES / name for name in OPENED]
    plain = [*programs, simulator, *libraries]
    files = {str(path): path for path in plain}
    files |= guest.library_closure([*plain, RDMA])
    files |= {"/bin/rdma": RDMA, str(DRIVER_LIST): DRIVER_LIST}
    load = []
    for path in modules_in_order(kernel, (*RXE, *CARD[guests])):
        name = f"/modules/{stem(path)}.ko"
        files[name] = unpacked_module(kernel, path, cache)
        load.append(f"insmod {name}" + (" numdummies=2" if stem(path) == "dummy" else ""))
    return files, "\n".join(load)


# UD, by which UCX 1.13 makes its RC connections, looks at an address in the packets' headers that rxe does not fill in.
SETTINGS = """
export UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=rxe0:1 UCX_UD_VERBS_ETH_DGID_CHECK=n PEERLANE_SIM_LOG=off
echo 'the secret of an emulated job' >/secret; chmod 600 /secret; export PEERLANE_LINK_SECRET_FILE=/secret
packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
# over_verbs NAME COMMAND...: two tests, that it succeeds and that what it sent went through rxe.
over_verbs() { name=$1; shift; before=$(packets); step $name "$@"; step $name.through_rxe [ $(packets) -gt $((before + 20)) ]; }
"""
# Each message's bytes are compared (-c). Eager ones, and such as go by UCX's rendezvous or our chunks of 256 KiB.
SMALL = "-m 8192:16384 -i 2 -x 1 -u 1 -c"
LARGE = "-m 524288:524288 -i 1 -x 1 -u 1 -W 2 -c"
CARD_OF = {
    "one": "ifconfig dummy0 10.0.0.1 up\nstep verbs rdma link add rxe0 type rxe netdev dummy0\nexport PEERLANE_LINK_PATH=network\n",
    "store": "ifconfig dummy0 10.0.0.1 up\nstep verbs rdma link add rxe0 type rxe netdev dummy0\n",
    "two": "ifconfig eth0 10.0.0.{host} up\nstep verbs rdma link add rxe0 type rxe netdev eth0\n",
}
# On one machine: as if its two processes were on two.
ONE = """
over_verbs host {peerlane} p2p latency H H {small} --show-plan
over_verbs gpu {peerlane} p2p latency D D {small}
over_verbs beside_ucx {peerlane} p2p latency H H {small} --via ours,ucx
over_verbs gpu_beside_ucx {peerlane} p2p latency D D {small} --via ours,ucx --stage
over_verbs host_windows {peerlane} p2p bw H H {large}
over_verbs gpu_windows {peerlane} p2p bibw D D {large}
over_verbs deaths {link_test} --gtest_color=no --gtest_filter='every_way/death.ends_what_waits/network:every_way/death.leaves_the_others_alone/network:every_way/death.at_any_moment/host_network'
over_verbs random_traffic {link_test} --gtest_color=no --gtest_filter='seeds/traffic.network/0'
over_verbs flood {link_test} --gtest_color=no --gtest_filter='flood.over_the_network'
ifconfig dummy1 10.0.1.1 up
step second_verbs rdma link add rxe1 type rxe netdev dummy1
export PEERLANE_LINK_RAILS=rxe0:1,rxe1:1 PEERLANE_LINK_RAIL_FAILOVER=on PEERLANE_LOG=warn
packets_of_second() {{ cat /sys/class/infiniband/rxe1/ports/1/hw_counters/sent_pkts; }}
over_verbs rails {peerlane} p2p bw H H {large}
step rails.through_second [ $(packets_of_second) -gt 200 ]
before=$(packets_of_second)
{peerlane} p2p bw H H -m 262144:262144 -i 15 -x 1 -u 1 -W 8 -c &
while [ $(packets_of_second) -lt $((before + 500)) ]; do sleep 0.1; done
ifconfig dummy1 down
over_verbs rail_cut wait $!
"""
# Two machines: rank 0 on the first. Last, the second one's process is killed while messages go on.
TWO_FIRST = """
over_verbs host {peerlane} p2p latency H H {small} --listen 10.0.0.1:18515
over_verbs gpu {peerlane} p2p latency D D {small} --listen 10.0.0.1:18516
over_verbs beside_ucx {peerlane} p2p latency H H {small} --via ours,ucx --listen 10.0.0.1:18517
over_verbs gpu_windows {peerlane} p2p bw D D {large} --listen 10.0.0.1:18518
ends_with_an_error() {{ timeout 300 {peerlane} p2p latency D D -m 8:8 -i 100000000 --listen 10.0.0.1:18519; code=$?; [ $code != 0 ] && [ $code != 143 ]; }}
over_verbs peer_killed ends_with_an_error
"""
TWO_SECOND = """
step host {peerlane} p2p latency H H {small} --peer 10.0.0.1:18515
step gpu {peerlane} p2p latency D D {small} --peer 10.0.0.1:18516
step beside_ucx {peerlane} p2p latency H H {small} --via ours,ucx --peer 10.0.0.1:18517
step gpu_windows {peerlane} p2p bw D D {large} --peer 10.0.0.1:18518
{peerlane} p2p latency D D -m 8:8 -i 100000000 --peer 10.0.0.1:18519 &
before=$(packets)
while [ $(packets) -lt $((before + 200)) ]; do sleep 0.1; done
kill -9 $!
"""
# The store and a client of it, as if on two machines: neither is forced, so the UCX transport is there because RDMA is.
STORE = """
export PEERLANE_STORE=10.0.0.1:18530
{peerlane} store serve --data /store --listen 10.0.0.1:18530 --insecure --admins uid:0,tcp --arena 128M --chunk 4M --log-level debug >/serve.log 2>&1 &
for i in $(seq 600); do grep -q 'TCP 10' /serve.log && break; sleep 0.1; done
head -c 5000001 /dev/urandom >/value
over_verbs store_put {peerlane} store put --make-pool p k /value --durability volatile --require-path ucx
over_verbs store_get {peerlane} store get p k /back --require-path ucx
step store_bytes cmp /value /back
step store_names_the_transport grep -q '"event":"ucx_joined".*rc_verbs/rxe0:1' /serve.log
step store_refused_nothing sh -c '{peerlane} store stats | grep -q "ucx_refused_total 0"'
head -c 60000000 /dev/zero >/large
{peerlane} store put p large /large --durability volatile --require-path ucx &
before=$(packets)
while [ $(packets) -lt $((before + 500)) ]; do sleep 0.1; done
kill -9 $!
room_is_back() {{ for i in $(seq 300); do {peerlane} store stats | grep -q '^peerlane_store_grants 0' && return; sleep 0.1; done; false; }}
step store_room_of_the_killed room_is_back
over_verbs store_goes_on {peerlane} store get p k /again --require-path ucx
step store_bytes_again cmp /value /again
cat /serve.log
"""


# Ours beside UCX alone, in turns. An emulated CPU runs a tenth as fast and may be taken away in any exchange: low percentiles.
FIGURES = {
    "small_latency": "latency H H -m 8:8192 -i 500 -x 50 --via ours,ucx --pct 1,10,50",
    "large_latency": "latency H H -m 16384:4194304 -i 30 -x 3 --via ours,ucx --pct 1,10,50",
    "windows": "bw H H -m 65536:1048576 -i 2 -x 1 -W 16 --via ours,ucx",
    "staged_latency": "latency D D -m 65536:1048576 -i 10 -x 2 --via ours,ucx --stage --pct 1,10,50",
}
# A file of the guest on its console, which has no other way out.
SEND_FILE = "step {name} {peerlane} p2p {options} --json /tmp/{name}.json\necho FILE {name}.json; gzip -c /tmp/{name}.json | base64; echo FILE-END\n"


def figures_script(load, peerlane):
    card = CARD_OF["one"].format(host=1)
    parts = (SEND_FILE.format(name=name, peerlane=peerlane, options=options) for name, options in FIGURES.items())
    return load + "\n" + card + SETTINGS + f"{peerlane} p2p latency H H -m 8:8 -i 2 -x 1 --show-plan\n" + "".join(parts)


def files_said(console):
    """{name: bytes} of the files that the guest has written to its console. The kernel's own lines may stand among theirs."""
    said = re.findall(r"^FILE (\S+)\n(.*?)^FILE-END$", console, re.MULTILINE | re.DOTALL)
    return {name: gzip.decompress(base64.b64decode("".join(re.findall(r"^[A-Za-z0-9+/=]+$", text, re.MULTILINE)))) for name, text in said}


def script_of(guests, host, load, peerlane, link_test, verbs_events):
    """What guest number `host` (1 or 2) of so many runs."""
    body = {"one": ONE, "store": STORE, "two": TWO_FIRST if host == 1 else TWO_SECOND}[guests]
    card = CARD_OF[guests].format(host=host)
    preload = f"export LD_PRELOAD={verbs_events}\n"
    return load + "\n" + card + SETTINGS + preload + body.format(peerlane=peerlane, link_test=link_test, small=SMALL, large=LARGE)


def boot(kernel, files, scripts, cache, logs):
    """A guest for each script, at the same time; the network cards of two are the ends of a socket. Each process that polls has
    a CPU, and the kernel's half of rxe another: without, each packet waits for the end of a time slice."""
    ends = socket.socketpair()

    def boot_host(number):
        end = ends[number].fileno()
        card = ("-netdev", f"socket,id=wire,fd={end}", "-device", f"virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:00:00:0{number + 1}")
        return guest.boot(kernel, files, scripts[number], cache, logs[number], bar_mib=0, memory_mib=1024, cpus=4 // len(scripts),
                          timeout_s=900, devices=card, descriptors=(end,))

    with ends[0], ends[1], ThreadPoolExecutor(len(scripts)) as all_hosts:
        return list(all_hosts.map(boot_host, range(len(scripts))))
