# SPDX-License-Identifier: Apache-2.0
"""What test_kv_stores.py runs in the place of PyTorch, SGLang and LMCache: SGLang's and LMCache's own interface files where SGLANG_FILES
and LMCACHE_FILES name folders with unpacked wheels, else base classes with the same methods."""

import abc
import contextlib
import dataclasses
import enum
import importlib
import os
import struct
import sys
import types
from unittest import mock

import numpy as np

SGLANG_FILES, LMCACHE_FILES = os.environ.get("SGLANG_FILES", ""), os.environ.get("LMCACHE_FILES", "")


class _Torch(types.ModuleType):
    """Names of PyTorch's as far as the files use them at import: types, and plain marks for everything else."""

    class Tensor(np.ndarray):
        pass

    class Size(tuple):
        __slots__ = ()

    def __init__(self):
        super().__init__("torch")
        self.arange = np.arange
        self.__path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__.setdefault(name, mock.MagicMock(name=f"torch.{name}"))


class HiCacheStorage(abc.ABC):
    """SGLang 0.5.23's, by its methods."""

    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    @abc.abstractmethod
    def get(self, key, target_location=None, target_sizes=None): ...

    @abc.abstractmethod
    def batch_get(self, keys, target_locations=None, target_sizes=None): ...

    @abc.abstractmethod
    def set(self, key, value=None, target_location=None, target_sizes=None): ...

    @abc.abstractmethod
    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None): ...

    @abc.abstractmethod
    def exists(self, key): ...


@dataclasses.dataclass
class RemoteMetadata:
    """LMCache 0.5.6's, for one group."""

    length: int
    shapes: list
    dtypes: list
    fmt: object

    def serialize(self):
        return struct.pack("<2i4q", self.length, self.fmt.value, *self.shapes[0])

    @staticmethod
    def deserialize(given):
        length, fmt, *shape = struct.unpack_from("<2i4q", given)
        return RemoteMetadata(length, [tuple(shape)], [np.float16], Format(fmt))


class RemoteConnector(metaclass=abc.ABCMeta):
    """LMCache 0.5.6's, by its methods."""

    def __init__(self, config, metadata):
        self.save_chunk_meta = (config.extra_config or {}).get("save_chunk_meta", True)
        self.meta_shapes, self.meta_dtypes, self.meta_fmt = metadata.get_shapes(), metadata.get_dtypes(), 1
        self.full_chunk_size_bytes = int(np.prod(self.meta_shapes[0])) * 2
        self.single_token_size = self.full_chunk_size_bytes // metadata.chunk_size
        self.remote_metadata_bytes = 40

    def reshape_partial_chunk(self, memory_obj, bytes_read):
        if bytes_read == 0 or bytes_read % self.single_token_size or bytes_read > self.full_chunk_size_bytes:
            raise ValueError(f"bytes_read: {bytes_read} is illegal")
        memory_obj.raw_data = memory_obj.raw_data[:bytes_read]
        return memory_obj

    @abc.abstractmethod
    async def exists(self, key): ...

    @abc.abstractmethod
    def exists_sync(self, key): ...

    @abc.abstractmethod
    async def get(self, key): ...

    @abc.abstractmethod
    async def put(self, key, memory_obj): ...

    @abc.abstractmethod
    async def list(self): ...

    @abc.abstractmethod
    async def close(self): ...


class Format(enum.Enum):
    """LMCache's MemoryFormat, as far as it is used."""

    UNDEFINED = 0
    KV_2LTD = 1
    BINARY = 4
    BINARY_BUFFER = 5
    KV_MLA_FMT = 6


def _module(name, **contents):
    made = types.ModuleType(name)
    made.__path__ = []
    made.__dict__.update(contents)
    return made


def _packages(folder, *names):
    """Empty packages over that folder: their files are found, their __init__ (which wants all of PyTorch) is not run."""
    made = {}
    for name in names:
        made[name] = types.ModuleType(name)
        made[name].__path__ = [os.path.join(folder, *name.split("."))]
    return made


def _sglang():
    if SGLANG_FILES:
        return _packages(SGLANG_FILES, "sglang", "sglang.srt", "sglang.srt.mem_cache")
    return {"sglang": _module("sglang"), "sglang.srt": _module("sglang.srt"), "sglang.srt.mem_cache": _module("sglang.srt.mem_cache"),
            "sglang.srt.mem_cache.hicache_storage": _module("hicache_storage", HiCacheStorage=HiCacheStorage)}


def _lmcache():
    names = ("lmcache", "lmcache.v1", "lmcache.v1.storage_backend", "lmcache.v1.storage_backend.connector")
    if LMCACHE_FILES:
        logging = _module("lmcache.logging", init_logger=lambda _: mock.MagicMock())
        sizes = _module("utils", get_size_bytes=lambda shapes, _: sum(int(np.prod(shape)) * 2 for shape in shapes))
        memory = _module("memory_management", MemoryFormat=Format, MemoryObj=object)
        keys = _module("utils", CacheEngineKey=object, LayerCacheEngineKey=object, __getattr__=lambda _: mock.MagicMock())
        return {**_packages(LMCACHE_FILES, *names), "lmcache.logging": logging, "lmcache.utils": keys, "lmcache.integration": _module("lmcache.integration"),
                "lmcache.integration.vllm": _module("lmcache.integration.vllm"), "lmcache.integration.vllm.utils": sizes,
                "lmcache.v1.memory_management": memory}
    base = _module("base_connector", RemoteConnector=RemoteConnector)
    return {**{name: _module(name) for name in names}, "lmcache.v1.protocol": _module("protocol", RemoteMetadata=RemoteMetadata),
            "lmcache.v1.storage_backend.connector.base_connector": base}


@contextlib.contextmanager
def installed(name):
    """peerlane.integrations.<name>, with the framework around it that its imports find."""
    framework = {"torch": _Torch(), **{"sglang": _sglang, "lmcache": _lmcache}[name]()}
    before = set(sys.modules)
    sys.modules.update(framework)
    try:
        yield importlib.import_module(f"peerlane.integrations.{name}")
    finally:  # only what came for this: a second copy of the package's own modules would have other classes
        for each in set(sys.modules) - before:
            if each.partition(".")[0] in ("torch", "sglang", "lmcache") or each == f"peerlane.integrations.{name}":
                del sys.modules[each]
