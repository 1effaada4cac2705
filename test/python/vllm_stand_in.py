# SPDX-License-Identifier: Apache-2.0
"""What test_vllm.py runs in the place of PyTorch and of most of vLLM: tensors over NumPy arrays and simulated GPU memory, streams that
a test keeps busy, and vLLM's offloading files: its own where VLLM_FILES names a folder with an unpacked wheel's `vllm`, else
a handler with the same attributes."""

import collections
import contextlib
import dataclasses
import enum
import hashlib
import importlib
import importlib.machinery
import os
import sys
import types
from unittest import mock

import numpy as np

FILES = os.environ.get("VLLM_FILES", "")


class Tensor(np.ndarray):
    """A CPU tensor."""

    is_cuda = is_xpu = False
    device = types.SimpleNamespace(type="cpu")

    def numel(self):
        return self.size

    def numpy(self):
        return np.asarray(self)

    def data_ptr(self):
        return self.ctypes.data

    def stride(self, dimension):
        return self.strides[dimension] // self.itemsize


def make_tensor(shape, dtype, **_):
    return np.zeros(shape, dtype).view(Tensor)


class CudaTensor:
    """Pages of a KV cache in simulated GPU memory."""

    is_cuda, is_xpu, ndim, dtype = True, False, 2, np.dtype(np.int8)

    def __init__(self, array):
        self.array = array
        self.shape = (array.shape[0], array.nbytes // array.shape[0])

    def view(self, _):
        return self

    def data_ptr(self):
        return self.array.__cuda_array_interface__["data"][0]

    def stride(self, _):
        return self.shape[1]


class Stream:
    def __init__(self):
        self.is_idle, self.behind = True, []

    def wait_stream(self, other):
        self.behind.append(other)

    def wait_event(self, event):
        pass

    def has_passed(self):
        return self.is_idle and all(other.has_passed() for other in self.behind)


class Event:
    def __init__(self, **_):
        self.stream = None

    def record(self, stream):
        self.stream = stream

    def query(self):
        return self.stream is None or self.stream.has_passed()

    def synchronize(self):
        assert self.query()


class Platform:
    """vllm.platforms.current_platform; `model` is the stream on which the model runs."""

    model = Stream()
    Stream = Stream

    def current_stream(self):
        return self.model

    def stream(self, _):
        return contextlib.nullcontext()

    def __getattr__(self, name):  # is_cuda_alike and the like
        return lambda: False


def torch_module():
    torch = types.ModuleType("torch")
    torch.int8, torch.int64, torch.uint64 = (np.dtype(name) for name in ("int8", "int64", "uint64"))
    torch.empty = torch.zeros = make_tensor
    torch.Tensor, torch.Event = Tensor, Event
    torch.cuda = types.SimpleNamespace(Stream=Stream)
    return torch


# ---- Without vLLM's files: the parts of its interface that peerlane.integrations.vllm uses.


@dataclasses.dataclass
class TransferResult:
    job_id: int
    success: bool
    transfer_size: int | None = None
    transfer_time: float | None = None


@dataclasses.dataclass
class Transfer:
    job_id: int
    stream: Stream
    start_event: Event
    end_event: Event
    num_bytes: int
    batch_src: Tensor
    batch_dst: Tensor
    batch_sizes: Tensor


class Handler:
    def __init__(self, gpu_tensors, cpu_tensors, gpu_to_cpu):
        self.tensors = (gpu_tensors, cpu_tensors) if gpu_to_cpu else (cpu_tensors, gpu_tensors)
        self._swap_blocks_batch = mock.Mock(side_effect=AssertionError("vLLM's own copy"))
        self._transfers, self._transfer_events = collections.deque(), {}
        self._stream_pool, self._event_pool, self._buffer_pool = [], [], []

    def transfer_async(self, job_id, src_spec, dst_spec):
        addresses = [np.concatenate([tensor.data_ptr() + spec.block_ids.astype(np.int64) * tensor.stride(0) for tensor in side])
                     for side, spec in zip(self.tensors, (src_spec, dst_spec))]
        sizes = np.concatenate([np.full(len(src_spec.block_ids), tensor.shape[1], np.int64) for tensor in self.tensors[0]])
        src, dst, sizes = (numbers.view(Tensor) for numbers in (*addresses, sizes))
        stream, start, end = Stream(), Event(), Event()
        stream.wait_stream(Platform.model)
        start.record(stream)
        self._swap_blocks_batch(src, dst, sizes, is_src_access_order_any=False)
        end.record(stream)
        self._transfer_events[job_id] = end
        self._transfers.append(Transfer(job_id, stream, start, end, int(sizes.sum()), src, dst, sizes))
        return True

    def shutdown(self):
        assert not self._transfers


class Worker:
    def __init__(self, kv_caches, num_chunks):
        gpu = [one.tensor for one in kv_caches.tensors]
        cpu = [make_tensor((num_chunks, one.page_size_bytes), np.int8) for one in kv_caches.tensors]
        self._store_handler = Handler(gpu, cpu, True)
        self._load_handler, self._expedited_load_handler = Handler(gpu, cpu, False), Handler(gpu, cpu, False)

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._store_handler.transfer_async(job_id, src_spec, dst_spec)

    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        return (self._expedited_load_handler if expedited else self._load_handler).transfer_async(job_id, src_spec, dst_spec)

    def _all(self):
        return self._store_handler, self._load_handler, self._expedited_load_handler

    def get_finished(self):
        return [result for handler in self._all() for result in handler.get_finished()]

    def wait(self, job_ids):
        for handler in self._all():
            handler.wait(job_ids)

    def shutdown(self):
        for handler in self._all():
            handler.shutdown()


class Spec:
    num_chunks = 0
    blocks_per_chunk = 1

    def create_worker(self, kv_caches):
        return Worker(kv_caches, self.num_chunks)


# The same of its tiering, for peerlane.integrations.vllm_store.


class LookupResult(enum.Enum):
    MISS, HIT, HIT_PENDING, RETRY = range(1, 5)


class Medium(str, enum.Enum):
    STORAGE = "storage"


class Locality(str, enum.Enum):
    LOCAL, REMOTE = "LOCAL", "REMOTE"


class RequestOffloadingContext:
    pass


@dataclasses.dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: tuple | None = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager:
    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
        self.tier_type, self.locality = tier_type, None


class FileMapper:
    @classmethod
    def from_offloading_spec(cls, root_dir, offloading_spec, blocks_per_file, parallel_agnostic):
        made = cls()
        model = hashlib.sha256(repr((offloading_spec.config.model.name, offloading_spec.config.parallel.rank)).encode()).hexdigest()
        made.base = f"{root_dir}/{model[:12]}"
        return made

    def get_file_name(self, key):
        return f"{self.base}/{key.hex()}.bin"


class AsyncLookupManager:
    def __init__(self, tier_type):
        self._found, self._asked = {}, []

    def lookup(self, key, req_context):
        if key not in self._found:
            self._found[key] = None
            self._asked.append((key, req_context))
        return self._found[key]

    def flush(self):
        for key, context in self._asked:
            self._found[key] = next(iter(self.batch_lookup([key], context)))
        self._asked = []

    def mark_miss(self, keys):
        self._found.update(dict.fromkeys(keys, False))

    def cleanup(self, req_id):
        self._found.clear()

    def shutdown(self):
        pass


class Names(types.ModuleType):
    """A module of vLLM that the files import and these tests do not use."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper() and not name.isupper():
            return type(name, (), {})  # to be derived from
        return mock.MagicMock(name=f"{self.__name__}.{name}")


class NamesFinder:
    """Comes last: answers for what neither the files nor the stand-ins above have."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "vllm" else None

    def create_module(self, spec):
        return Names(spec.name)

    def exec_module(self, module):
        pass


def modules():
    """What goes into sys.modules."""
    out = {"torch": torch_module()}
    for name, content in {
        "vllm.platforms": {"current_platform": Platform()}, "vllm.triton_utils": {"HAS_TRITON": False, "triton": mock.MagicMock(), "tl": mock.MagicMock()},
        "vllm.utils.math_utils": {"cdiv": lambda a, b: -(-a // b), "round_up": lambda a, b: -(-a // b) * b},
        "vllm.utils.torch_utils": {"PIN_MEMORY": False},
    }.items():
        out[name] = Names(name)
        vars(out[name]).update(content)
    if not FILES:
        base = {"TransferResult": TransferResult, "LookupResult": LookupResult, "Medium": Medium, "Locality": Locality,
                "RequestOffloadingContext": RequestOffloadingContext}
        tiers = {"JobResult": JobResult, "SecondaryTierManager": SecondaryTierManager}
        for name, content in {"vllm.v1.kv_offload.base": base, "vllm.v1.kv_offload.cpu.spec": {"CPUOffloadingSpec": Spec},
                              "vllm.v1.kv_offload.file_mapper": {"FileMapper": FileMapper},
                              "vllm.v1.kv_offload.tiering.async_lookup": {"AsyncLookupManager": AsyncLookupManager},
                              "vllm.v1.kv_offload.tiering.base": tiers,
                              "vllm.v1.kv_offload.tiering.spec": {"TieringOffloadingSpec": Spec}}.items():
            out[name] = Names(name)
            vars(out[name]).update(content)
    return out


@contextlib.contextmanager
def installed(name="vllm"):
    """That module of peerlane.integrations, imported with all that in place."""
    before, path, finders = dict(sys.modules), list(sys.path), list(sys.meta_path)
    sys.modules.update(modules())
    sys.meta_path.append(NamesFinder())
    if FILES:
        sys.path.insert(0, FILES)
    try:
        with mock.patch("importlib.metadata.version", lambda _: "0.33.0"):
            module = importlib.import_module(f"peerlane.integrations.{name}")
        Platform.model = Stream()
        yield module
    finally:
        for each in set(sys.modules) - set(before):
            if each.partition(".")[0] in ("vllm", "torch") or each.startswith("peerlane.integrations"):
                del sys.modules[each]
        sys.modules.update({each: before[each] for each in before if each.partition(".")[0] in ("vllm", "torch")})
        sys.path[:], sys.meta_path[:] = path, finders
