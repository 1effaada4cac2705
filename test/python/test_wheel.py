# SPDX-License-Identifier: Apache-2.0
"""The wheel made from this build: what it holds, and the quick start from it, in a process that sees nothing else of ours."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import peerlane
import pytest
from peerlane import _native

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("scikit_build_core", reason="pip install scikit-build-core")
    folder = tmp_path_factory.mktemp("wheel")
    in_checkout = set(ROOT.glob("build/wheel-*"))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", folder,
         f"--config-settings=cmake.define.PEERLANE_PREBUILT={_native.FOLDER}"],
        cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(ROOT.glob("build/wheel-*")) == in_checkout, "pip builds in a folder of its own: the checkout may be another user's"
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """A fresh virtual environment with the wheel, and NumPy as a link, since there need not be a network."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True,
                               text=True).stdout.strip())
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q", wheel], check=True)
    for part in Path(np.__file__).parents[1].glob("numpy*"):
        (site / part.name).symlink_to(part)
    return folder / "bin"


def run(*command, **environment):
    """In a process that sees nothing else of ours."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    return subprocess.run([str(word) for word in command], env={**plain, **environment}, cwd="/", capture_output=True, text=True, check=False,
                          timeout=200)


def test_contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        sizes = sum(each.file_size for each in archive.infolist())
        about = f"peerlane-{peerlane.__version__}.dist-info"
        metadata = archive.read(f"{about}/METADATA").decode()
    native = {name.removeprefix("peerlane/native/") for name in names if name.startswith("peerlane/native/")}
    assert native >= {"libpeerlane.so.0", "libpeerlane_store.so.0", "libgdrapi.so.2", "libgdsync.so.1", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1",
                      "peerlane"}
    assert {"peerlane/py.typed", "peerlane/_core.pyi", "peerlane/_version.py", f"{about}/licenses/LICENSE"} <= names
    sources = {f"peerlane/{path.relative_to(ROOT / 'python' / 'peerlane')}"
               for path in (ROOT / "python" / "peerlane").rglob("*.py")}
    assert sources <= names and not [name for name in names if "__pycache__" in name or "/src/" in name]
    for module in ("_core", "_store"):
        assert [name for name in names if name.startswith(f"peerlane/{module}.") and name.endswith(".so")]
    assert "Requires-Python: >=3.10" in metadata and f"Version: {peerlane.__version__}" in metadata
    assert sizes < 80e6, "are the libraries stripped? (34 MB, else above 200)"


def test_quick_start(fresh):
    text = (ROOT / "docs" / "python.md").read_text()
    code = text.split("```python\n", 1)[1].split("```", 1)[0]
    done = run(fresh / "python", "-c", code, PEERLANE_GPU="sim")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == text.split("prints:\n\n", 1)[1].split("\n\n")[0].split()


def test_command(fresh):
    for name in ("peerlane", "gdrcopy_copybw"):
        done = run(fresh / name, "-h")
        assert done.returncode == 0 and name in done.stdout, done.stderr
    done = run(fresh / "peerlane", "doctor", PEERLANE_GPU="sim")
    assert done.returncode == 0 and "this is the simulated GPU" in done.stdout, done.stdout + done.stderr


def test_machine(fresh):
    code = "import peerlane as p; print(p.info()['machine']['simulated'], {f['level'] for f in p.doctor()} <= {'ok', 'note'})"
    assert run(fresh / "python", "-c", code, PEERLANE_GPU="sim").stdout == "True True\n"


def test_one_version():
    text = (ROOT / "CMakeLists.txt").read_text()
    assert f"project(peerlane VERSION {peerlane.__version__} " in text


def test_names():
    """Everything that the package promises is there, and loading it loads neither NumPy nor the compiled module."""
    code = "import sys, peerlane; assert not {'numpy', 'peerlane._core'} & set(sys.modules); [getattr(peerlane, n) for n in peerlane.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        peerlane.nothing
