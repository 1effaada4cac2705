# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu/blocks_triton.py without a GPU: how it finds and loads vLLM's file. With VLLM_FILES (vllm_stand_in.py) it is vLLM's own."""

import importlib.util
import os
import sys
import types
from pathlib import Path
from unittest import mock

import pytest

FILE = """
import torch
from vllm import _custom_ops as ops
from vllm.triton_utils import tl, triton
MIN_N = 16

@triton.jit
def _kernel(jobs: tl.constexpr):
    pass

def swap_blocks_batch(src, dst, sizes, is_src_access_order_any=False, *, bytes_per_chunk):
    if len(src) < MIN_N:
        ops.swap_blocks_batch(src, dst, sizes, is_src_access_order_any=is_src_access_order_any)
"""


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).parents[2] / "scripts" / "gpu" / "blocks_triton.py"
    described = importlib.util.spec_from_file_location("blocks_triton", path)
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def test_the_file_is_loaded_as_it_is(script, tmp_path):
    path = tmp_path / "swap_blocks_triton.py"
    path.write_text(FILE)
    if "VLLM_FILES" in os.environ:
        path = Path(os.environ["VLLM_FILES"]) / "vllm" / "v1" / "kv_offload" / "cpu" / "swap_blocks_triton.py"
    triton = types.SimpleNamespace(jit=lambda kernel: kernel)
    language = types.SimpleNamespace(constexpr=int)
    torch = types.ModuleType("torch")
    torch.Tensor = list
    with mock.patch.dict(sys.modules, {"torch": torch}):
        loaded = script.load(str(path), triton, language)
        assert loaded.MIN_N == 16
        few = mock.MagicMock(spec=["numel", "__len__"])
        few.numel.return_value = few.__len__.return_value = 3
        with pytest.raises(RuntimeError, match="too short for the Triton kernel"):
            loaded.swap_blocks_batch(few, few, few, bytes_per_chunk=4096)
        sys.modules.pop("swap_blocks_triton")
    assert "vllm" not in sys.modules and "vllm.triton_utils" not in sys.modules


def test_what_is_missing_is_named(script, tmp_path):
    assert script.number_of("4K") == 4096 and script.number_of("512") == 512
    assert script.find_file("given.py") == "given.py"
    if importlib.util.find_spec("vllm") is None:
        with pytest.raises(SystemExit, match="--triton-file"):
            script.find_file(None)
    with pytest.raises(FileNotFoundError):
        script.load(str(tmp_path / "none.py"), None, None)
    with mock.patch.dict(sys.modules, {"torch": None}), mock.patch.object(sys, "argv", ["blocks_triton.py"]):
        with pytest.raises(SystemExit, match="needs PyTorch and Triton"):
            script.main()
