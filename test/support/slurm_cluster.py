# SPDX-License-Identifier: Apache-2.0
"""Debian's munged, slurmctld and slurmd as a private cluster in a folder: own settings, own key and socket, on loopback."""

import os
import pwd
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch")


def wait_for(what, is_there, limit_s=60):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if is_there():
            return
        time.sleep(0.1)
    raise AssertionError(f"not within {limit_s} s: {what}")


RESERVED = []  # a socket for each port given, so that nobody else gets it before a daemon listens there


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
    RESERVED.extend(held)
    return [one.getsockname()[1] for one in held]


def why_not():
    """Why no cluster can be had; empty: it can."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [one for one in PROGRAMS if shutil.which(one) is None]
    if missing:
        return f"{', '.join(missing)} not installed (apt-get install slurmctld slurmd slurm-client munge)"
    return "" if os.getuid() == 0 else "slurmd starts jobs as root only"


class Cluster:
    """`nodes`: names and ports. A name that is not this host's is one that its slurmd has in a UTS namespace."""

    def __init__(self, folder, nodes, control_port, cpus, more=""):
        self.folder, self.nodes, self.children = Path(folder), nodes, []
        (self.folder / "state").mkdir()
        for node in nodes:
            for kind in ("spool", "tmp"):
                (self.folder / f"{kind}-{node}").mkdir()
        user = pwd.getpwuid(os.getuid()).pw_name
        lines = "\n".join(f"NodeName={node} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN" for node, port in nodes.items())
        (self.folder / "slurm.conf").write_text(f"""
ClusterName=peerlane
SlurmctldHost={next(iter(nodes))}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort={control_port}
{more}
{lines}
PartitionName=all Nodes=ALL Default=YES State=UP
""")
        # Nothing here needs control groups, which containers may not have; slurmd looks for them unless it is told which.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.environment = os.environ | {"SLURM_CONF": f"{folder}/slurm.conf"}

    def start(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.spawn("munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                   f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed")
        wait_for("munged's socket", (self.folder / "munge.socket").exists)
        self.spawn("slurmctld", "slurmctld", "-D", "-c")
        for node in self.nodes:
            if node == socket.gethostname().split(".")[0]:
                self.spawn(f"slurmd-{node}", "slurmd", "-D")
            else:
                self.spawn(f"slurmd-{node}", "unshare", "--uts", "sh", "-c", f"hostname {node}; exec slurmd -D -N {node}")
        wait_for("idle nodes", lambda: self.state() == "idle")

    def spawn(self, name, program, *arguments):
        with open(self.folder / f"{name}.out", "w", encoding="utf-8") as log:
            self.children.append(subprocess.Popen([shutil.which(program), *arguments], env=self.environment, stdout=log, stderr=log))

    def ask(self, *arguments):
        return subprocess.run(arguments, env=self.environment, capture_output=True, text=True, timeout=60)

    def state(self):
        return self.ask("sinfo", "-h", "-o", "%T").stdout.strip()

    def print_logs(self):
        for log in sorted(self.folder.glob("*.out")):
            print(f"---- {log.name}\n{log.read_text()[-3000:]}")

    def stop(self):
        for one in reversed(self.children):
            one.terminate()
        for one in reversed(self.children):
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
