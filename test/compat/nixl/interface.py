# SPDX-License-Identifier: Apache-2.0
"""Our description of NIXL's interface (src/compat/nixl/nixl_abi.hpp) beside the wheel that is installed: the order of the
virtual functions, and the places of the base class's fields in the wheel's machine code. And what NIXL sees of the plug-in."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import nixl_agents
from nixl_agents import main, make_agent

SITE = Path(nixl_agents.nixl.__file__).parent.parent
LIBRARIES = next(SITE.glob(f".{Path(nixl_agents.nixl.__file__).parent.name}.mesonpy.libs"))
OURS = Path(os.environ["PL_PLUGIN"])


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def plain(name):
    """registerMem and register_mem alike."""
    return name.replace("_", "").lower()


def functions_of(library, table, dynamic):
    """Names of a class's virtual functions in their order, from a library's symbols and relocations."""
    symbols, place = {}, None
    for line in output("readelf", "-W", "--dyn-syms" if dynamic else "--syms", "-C", str(library)).splitlines():
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[0].rstrip(":").isdigit():
            name = fields[7].split("@")[0]
            if name == f"vtable for {table}":
                place = int(fields[1], 16), int(fields[2], 0)
            elif "(" in name and not re.search(r"\[clone|^guard", name):
                symbols[int(fields[1], 16)] = name
    assert place, f"{library} has no table of {table}"
    entries = {}
    for line in output("readelf", "-W", "-r", str(library)).splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2].endswith("_RELATIVE"):
            entries[int(fields[0], 16)] = symbols.get(int(fields[3], 16), "?")
        elif len(fields) >= 5 and fields[2] in ("R_X86_64_64", "R_AARCH64_ABS64"):
            entries[int(fields[0], 16)] = output("c++filt", fields[4].split("@")[0]).strip()
    begin, size = place
    whole = [entries.get(at, "?") for at in range(begin + 16, begin + size, 8)]
    return [re.sub(r"\(.*", "", one).split("::")[-1] for one in whole]


def virtual_functions_stand_in_the_wheels_order():
    theirs = functions_of(LIBRARIES / "plugins" / "libplugin_UCX.so", "nixlUcxEngine", True)
    ours = functions_of(OURS, "pl::nixl::backend", False)
    assert len(ours) == 27, ours
    for place, (one, other) in enumerate(zip(ours, theirs)):
        if one.startswith("~"):
            assert other.startswith("~"), (place, one, other)
        else:
            assert plain(one) == plain(other), (place, one, other)
    # The base's own table ends where ours does: nothing is called behind it.
    assert len(functions_of(LIBRARIES / "plugins" / "libplugin_UCX.so", "nixlBackendEngine", True)) == len(ours)


def fields_stand_where_the_wheels_code_has_them():
    if platform.machine() != "x86_64":
        print("NOT CHECKED: NIXL: the places of the engine's fields are read from x86-64 machine code")
        return
    code = output("objdump", "-dC", "--no-show-raw-insn", str(LIBRARIES / "plugins" / "libplugin_POSIX.so"))
    parts = re.split(r"\n[0-9a-f]+ <", code)
    end = next(part for part in parts if part.startswith("nixlBackendEngine::~nixlBackendEngine()>:"))
    # As nixl_abi.hpp asserts them: the agent's name, the events, the parameters, the type.
    for place in ("0xa8", "0x60", "0x28", "0x8"):
        assert re.search(rf"[ ,]{place}\(%r\w+\)", end), (place, end)
    core = output("objdump", "-dC", "--no-show-raw-insn", str(LIBRARIES / "libnixl.so"))
    create = next(part for part in re.split(r"\n[0-9a-f]+ <", core) if part.startswith("nixlAgent::createBackend(") and "clone" not in part.split("\n")[0])
    assert re.search(r"cmpb   \$0x0,0xa0\(%r\w+\)", create), "the constructor's outcome is read elsewhere"


def the_plugin_exports_two_functions():
    names = [line.split()[-1] for line in output("nm", "-D", "--defined-only", str(OURS)).splitlines()]
    assert sorted(names) == ["nixl_plugin_fini", "nixl_plugin_init"], names
    needed = re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-d", str(OURS)))
    assert not [one for one in needed if not re.match(r"(libc|libm|ld-linux-x86-64|libpthread|libdl)\.so", one)], needed


def nixl_sees_the_plugin():
    agent = make_agent("viewer")
    assert "PEERLANE" in agent.get_plugin_list()
    kinds = agent.get_plugin_mem_types("PEERLANE")
    assert sorted(kinds) == ["DRAM_SEG", "VRAM_SEG"], kinds
    assert "PEERLANE" in agent.backends


def another_version_is_refused_with_a_line():
    """A copy of the wheel's packages under another version's name, by links."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for one in SITE.iterdir():
            name = re.sub(r"^(nixl_cu13)-[0-9.]+\.dist-info$", r"\1-1.77.0.dist-info", one.name)
            if name.startswith(("nixl", ".nixl")) and name != LIBRARIES.name:
                Path(folder, name).symlink_to(one)
        copied = Path(folder, LIBRARIES.name)  # the loader follows links, so the library itself is copied
        copied.mkdir()
        for one in LIBRARIES.iterdir():
            if one.is_file() and one.suffix == ".so":
                (copied / one.name).write_bytes(one.read_bytes())
            else:
                (copied / one.name).symlink_to(one)
        package = Path(folder, "nixl_cu13")
        package.unlink()
        package.mkdir()
        for one in (SITE / "nixl_cu13").iterdir():
            if one.is_file():
                (package / one.name).write_bytes(one.read_bytes())
        program = "import nixl_cu13 as n; a = n.nixl_agent('x', n.nixl_agent_config(backends=[])); a.create_backend('PEERLANE')"

        def run(**more):
            numpy = str(Path(nixl_agents.np.__file__).parent.parent)
            return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": f"{folder}:{numpy}", **more})

        refused = run()
        assert refused.returncode != 0
        assert "NIXL 1.77.0" in refused.stderr and "is refused: this plug-in knows the interface of versions 1.0 to 1.5" in refused.stderr, refused.stderr
        forced = run(PEERLANE_NIXL_FORCE="1")
        assert forced.returncode == 0, forced.stderr


HOST_ONLY = """
import ctypes, os
import nixl_cu13 as n, numpy as np
a = n.nixl_agent('x', n.nixl_agent_config(backends=[]))
a.create_backend('PEERLANE')
one, two = np.arange(4096, dtype=np.uint8), np.zeros(4096, np.uint8)
for each in (one, two):
    a.register_memory(a.get_reg_descs([(each.ctypes.data, 4096, 0, '')], 'DRAM'), backends=['PEERLANE'])
sides = [a.get_xfer_descs([(each.ctypes.data, 4096, 0)], 'DRAM') for each in (one, two)]
h = a.initialize_xfer('WRITE', *sides, 'x', b'', backends=['PEERLANE'])
assert a.transfer(h) == 'DONE' and (one == two).all()
try:
    loaded = ctypes.CDLL('libcuda.so.1', mode=os.RTLD_NOLOAD)
    print('simulated' if hasattr(loaded, 'peerlaneSimVersion') else 'real')
except OSError:
    print('none')
"""


def agents_of_host_memory_need_no_gpu():
    environment = {**os.environ, "LD_LIBRARY_PATH": ""}
    environment.pop("PEERLANE_GPU")
    plain_run = subprocess.run([sys.executable, "-c", HOST_ONLY], capture_output=True, text=True, check=False, env=environment)
    assert plain_run.returncode == 0, plain_run.stderr
    # Asked for the simulated GPU, the plug-in finds it by its own place: the program has loaded none.
    simulated = subprocess.run([sys.executable, "-c", HOST_ONLY], capture_output=True, text=True, check=False, env={**environment, "PEERLANE_GPU": "sim"})
    assert simulated.returncode == 0 and "simulated" in simulated.stdout, simulated.stdout + simulated.stderr


if __name__ == "__main__":
    main({name: value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == "__main__" and name not in ("output", "plain", "functions_of")})
