# SPDX-License-Identifier: Apache-2.0
"""The types that the package promises: the compiled module's stub is its own words, what users import is strictly typed, and a user's
type checker sees it."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from peerlane import _native

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(_native.__file__).parent
SOURCES = ROOT / "python" / "peerlane"
USERS_PROGRAM = """
import asyncio
import numpy as np
import peerlane
from peerlane import testing
Maybe = peerlane.AnyArray | None
async def use(x: peerlane.DeviceArray, host: np.ndarray, own: testing.DeviceArray) -> None:
    with peerlane.map(x) as m:
        reveal_type(m)
        reveal_type(m.shape)
        reveal_type(m.array.astype)
        reveal_type(m.info()["backend"])
    await peerlane.copy_async(x, host)
    reveal_type(peerlane.copy_async(x, x))
    reveal_type(asyncio.create_task(peerlane.copy_async(own, host)))
    with peerlane.communicator.open() as job:
        reveal_type(job.recv(0, x))
    with peerlane.store.open() as store:
        reveal_type(store.open_pool("p").get("k", x).version)
        reveal_type(await store.open_pool("p").get_async("k", x))
        reveal_type(peerlane.wait_any([store.open_pool("p").begin_put("k", host)]))
    reveal_type(peerlane.doctor()[0]["level"])
    peerlane.copy(m, b"four")
    peerlane.copy((1 << 40, 4), own, after=testing.Stream())
    peerlane.copy(x)
    peerlane.copy(1, "x")
    peerlane.copy(x, host, after="now")
    peerlane.map("text")
    peerlane.fill(x, "one")
    peerlane.explain("sideways", 1)
    store.create_pool("p", durability="always")
    job.send(0, 5)
    m.nothing()
    misspelt = peerlane.copy_asinc
"""
SAID = ["peerlane._mapping.Mapping", "tuple[int, ...]", "Any", "Literal['gdrdrv']", "peerlane._core.Operation", "Task[tuple[int, int, int]]",
        "tuple[int, int, int]", "int", "peerlane.store.Reply", "int", "Literal['BLOCKER']"]
WRONG = ['Missing positional argument "src"', 'Argument 1 to "copy" has incompatible type "int"', 'Argument 2 to "copy" has incompatible type "str"',
         'Argument "after" to "copy" has incompatible type', 'Argument 1 to "map" has incompatible type "str"', 'Argument 2 to "fill"',
         'Argument 1 to "explain" has incompatible type', 'Argument "durability" to "create_pool"', 'Argument 2 to "send"',
         'has no attribute "nothing"', 'Module has no attribute "copy_asinc"']


def run(*command, code=0, **options):
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, timeout=250, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """Runs mypy, with the built package as the one that is installed. (Its stubtest knows nothing of nanobind's classes and functions.)"""
    pytest.importorskip("mypy", reason="pip install mypy")
    cache = tmp_path_factory.mktemp("mypy")
    environment = {**os.environ, "MYPYPATH": str(PACKAGE.parent)}
    return lambda *arguments, code=0: run("-m", "mypy", "--config-file", ROOT / "pyproject.toml", *arguments, code=code, cwd=cache,
                                          env=environment)


def words_of(text):
    """A stub without its layout: imports, names, signatures and the words of docstrings. Python 3.12 shows buffers as methods, which
    older ones do not have."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.body = [each for each in node.body if getattr(each, "name", "") not in ("__buffer__", "__release_buffer__")]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = inspect.cleandoc(node.value)
    return ast.unparse(tree)


@pytest.mark.parametrize("name", ["_core", "_store"])
def test_stub_is_what_the_module_says(name, tmp_path):
    pytest.importorskip("nanobind", reason="pip install nanobind")
    module = importlib.import_module(f"peerlane.{name}")
    made, stub = tmp_path / f"{name}.pyi", SOURCES / f"{name}.pyi"
    command = ("-m", "nanobind.stubgen", "-q", "-m", f"peerlane.{name}", "-P", "-p", ROOT / "python" / "stub.pat", "-o")
    run(*command, made)
    assert module.__file__ and words_of(made.read_text()) == words_of(stub.read_text()), \
        f"renew it: PYTHONPATH=build/release/out/python python3 {' '.join(map(str, command))} {stub.relative_to(ROOT)}"


def test_package(mypy):
    assert "no issues found" in mypy()


def test_users_see_types(mypy, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(USERS_PROGRAM)
    lines = mypy("--strict", program, code=1).splitlines()
    revealed = [line.split('Revealed type is "')[1] for line in lines if "Revealed type" in line]
    errors = [line for line in lines if ": error: " in line]
    assert len(revealed) == len(SAID) and all(word in line for word, line in zip(SAID, revealed)), revealed
    assert len(errors) == len(WRONG) and all(word in line for word, line in zip(WRONG, errors)), errors


def test_names_of_types_are_there_when_a_program_runs():
    """In annotations that are evaluated, and in unions."""
    program = "import peerlane as p; x = p.AnyArray | None, p.DeviceArray | None, p.Stream | str, p.After | str, p.Direction"
    run("-c", program)
