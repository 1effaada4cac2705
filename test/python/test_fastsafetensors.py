# SPDX-License-Identifier: Apache-2.0
"""The copier for fastsafetensors: every byte is where it belongs, files that are too short and memory that is none fail. Its own files
are used where FASTSAFETENSORS_FILES names a folder with an unpacked wheel, else stand-ins with the same names."""

import contextlib
import importlib
import json
import os
import struct
import sys
import threading
import time
import types
from unittest import mock

import numpy as np
import peerlane
import pytest
from peerlane import testing

FILES = os.environ.get("FASTSAFETENSORS_FILES", "")


class Buffer:
    def __init__(self, size):
        self.array = testing.array(np.full(max(size, 1), 0xEE, np.uint8))

    def get_base_address(self):
        return self.array.__cuda_array_interface__["data"][0]

    def bytes(self):
        return self.array.get()


class Framework:
    """Memory of the simulated GPU in the place of PyTorch's."""

    def __init__(self):
        self.freed = 0

    def alloc_tensor_memory(self, size, device):
        return Buffer(size)

    def free_tensor_memory(self, buffer, device):
        self.freed += 1


class Metadata:
    """What the copier asks of SafeTensorsMetadata."""

    def __init__(self, path):
        self.src = str(path)
        with open(path, "rb") as file:
            self.header_length = struct.unpack("<Q", file.read(8))[0] + 8
            header = json.loads(file.read(self.header_length - 8))
        self.size_bytes = self.header_length + max(one["data_offsets"][1] for one in header.values())
        self.given = None

    def get_tensors(self, gbuf, device, offset, **more):
        assert offset == self.header_length
        self.given = more
        return gbuf.bytes()


def stand_ins(version):
    """The names that the copier imports."""
    registry = {}

    def register(name, copier_class=None):
        if copier_class is not None and version.startswith("0.3"):
            raise TypeError("one argument")
        return lambda factory: registry.setdefault(name, factory)

    base = types.ModuleType("fastsafetensors.copier.base")
    base.CopierInterface = object
    base.validated_byte_ranges = lambda metadata, ranges: ranges
    modules = {"fastsafetensors": types.ModuleType("fastsafetensors"), "fastsafetensors.copier": types.ModuleType("fastsafetensors.copier"),
               "fastsafetensors.copier.base": base, "fastsafetensors.copier.registry": types.ModuleType("fastsafetensors.copier.registry"),
               "fastsafetensors.loader": types.ModuleType("fastsafetensors.loader")}
    modules["fastsafetensors.copier"].base = base
    modules["fastsafetensors.copier.registry"].register_copier_constructor = register
    modules["fastsafetensors.loader"].BaseSafeTensorsFileLoader = object
    return modules, registry


@contextlib.contextmanager
def installed(version="0.5.0"):
    name = "peerlane.integrations.fastsafetensors"
    real = importlib.metadata.version
    modules, registry = ({}, None) if FILES else stand_ins(version)
    torch = sys.modules.pop("torch", None)  # another test's stand-in, which has no streams
    sys.modules.update(modules)  # and not mock.patch.dict, which would forget what Peerlane imports meanwhile
    try:
        with mock.patch.object(sys, "path", [FILES, *sys.path] if FILES else sys.path), \
                mock.patch("importlib.metadata.version", lambda one: version if one == "fastsafetensors" and not FILES else real(one)):
            sys.modules.pop(name, None)
            module = importlib.import_module(name)
            if FILES:
                registry = importlib.import_module("fastsafetensors.copier.registry")._copier_registry
            yield module, registry
    finally:
        for one in (name, *modules):
            sys.modules.pop(one, None)
        if torch is not None:
            sys.modules["torch"] = torch


def write_file(path, sizes, seed=3):
    random = np.random.default_rng(seed)
    header, offset = {}, 0
    for i, size in enumerate(sizes):
        header[f"tensor{i}"] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    data = random.integers(0, 256, offset, np.uint8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data.tobytes())
    return data


def load(module, path, runs=None, reader=None):
    copier = module.PeerlaneCopier(Metadata(path), types.SimpleNamespace(index=0), Framework(), reader or module.Reader(3, 1 << 16))
    copier.set_byte_ranges(runs)
    buffer = copier.submit_io(False, 1 << 30)
    return copier.wait_io(buffer)


def test_every_byte_is_where_it_belongs(tmp_path):
    with installed() as (module, _):
        reader = module.Reader(3, 1 << 16)
        for seed, sizes in enumerate(([1], [65536], [100, 70_001, 3], [1 << 20, 5, 300_000])):
            data = write_file(tmp_path / "weights", sizes, seed)
            assert np.array_equal(load(module, tmp_path / "weights", reader=reader), data)


def test_only_the_bytes_that_are_wanted_are_read(tmp_path):
    data = write_file(tmp_path / "weights", [200_000, 50_000, 70_000])
    with installed() as (module, _):
        begin = Metadata(tmp_path / "weights").header_length
        got = load(module, tmp_path / "weights", [(begin + 200_000, begin + 250_000), (begin + 260_000, begin + 260_001)])
        assert np.array_equal(got[200_000:250_000], data[200_000:250_000]) and got[260_000] == data[260_000]
        assert (got[:200_000] == 0xEE).all() and (got[260_001:] == 0xEE).all()


def test_many_files_are_on_their_way_at_once(tmp_path):
    wanted = [write_file(tmp_path / f"file{i}", [90_000 + i], i) for i in range(12)]
    with installed() as (module, registry):
        construct = registry["peerlane"](types.SimpleNamespace(index=0), max_threads=4, set_numa=True)
        copiers = [construct(Metadata(tmp_path / f"file{i}"), types.SimpleNamespace(index=0), Framework()) for i in range(12)]
        buffers = [copier.submit_io(False, 1 << 30) for copier in copiers]
        for copier, buffer, data in zip(copiers, buffers, wanted):
            assert np.array_equal(copier.wait_io(buffer, owner="one"), data)
            assert copier.metadata.given == {"owner": "one"}


def test_a_file_that_fails_is_told_and_the_others_go_on(tmp_path):
    data = write_file(tmp_path / "good", [300_000])
    write_file(tmp_path / "short", [300_000])
    short = Metadata(tmp_path / "short")
    os.truncate(tmp_path / "short", 200_000)
    with installed() as (module, _):
        reader = module.Reader(2, 1 << 16)
        copier = module.PeerlaneCopier(short, types.SimpleNamespace(index=0), Framework(), reader)
        buffer = copier.submit_io(False, 1 << 30)
        with pytest.raises(OSError, match=r"short ends at byte \d+, in the middle"):
            copier.wait_io(buffer)
        assert np.array_equal(load(module, tmp_path / "good", reader=reader), data)
        framework = Framework()
        copier = module.PeerlaneCopier(Metadata(tmp_path / "good"), types.SimpleNamespace(index=0), framework, reader)
        os.unlink(tmp_path / "good")
        with pytest.raises(FileNotFoundError):
            copier.submit_io(False, 1 << 30)
        assert framework.freed == 1
        with pytest.raises(peerlane.Error):  # no GPU memory
            file = reader.submit(str(tmp_path / "short"), [(0, 1000)], 0x1000)
            file.ended.wait(10)
            raise file.failure


def test_a_chunk_on_its_way_is_not_filled_again(tmp_path, monkeypatch):
    """A piece of another file fails meanwhile. The copies here begin when they are waited for, so late bytes would be the next piece's."""
    wanted = [write_file(tmp_path / f"file{i}", [1000], i) for i in range(3)]
    os.truncate(tmp_path / "file1", 500)
    with installed() as (module, _):
        from peerlane import _blocks
        begin_copy = _blocks.copy_block_list_async

        class Late:
            def __init__(self, *arguments):
                self.wait = lambda: begin_copy(*arguments).wait()

        monkeypatch.setattr(_blocks, "copy_block_list_async", Late)
        reader = module.Reader(1, 1 << 16)
        begin = Metadata(tmp_path / "file0").header_length
        buffers = [Buffer(1000) for _ in wanted]
        with reader._work.changed:  # the thread takes all three in a row
            files = [reader.submit(str(tmp_path / f"file{i}"), [(begin, begin + 1000)], buffers[i].get_base_address()) for i in range(3)]
        assert all(file.ended.wait(10) for file in files)
        assert [file.failure is None for file in files] == [True, False, True]
        assert np.array_equal(buffers[0].bytes(), wanted[0]) and np.array_equal(buffers[2].bytes(), wanted[2])


def test_threads_end_with_their_reader():
    with installed() as (module, _):
        before = threading.active_count()
        reader = module.Reader(3, 1 << 16)
        assert threading.active_count() == before + 3
        del reader
        for _ in range(1000):
            if threading.active_count() == before:
                return
            time.sleep(0.01)
        raise AssertionError(threading.enumerate())


def test_releases_and_names(tmp_path):
    for version in ("0.3.3", "0.5.0"):
        with installed(version) as (module, registry):
            assert "peerlane" in registry
            module.use_everywhere()
            assert "gds" in registry and "nogds" in registry
            for other in ("0.2.2", "0.6.0", "1.0"):
                with pytest.raises(ImportError, match=f", not {other}"):
                    module.check_release(other)
