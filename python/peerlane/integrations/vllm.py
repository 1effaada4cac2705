# SPDX-License-Identifier: Apache-2.0
"""Moves vLLM's KV cache between GPU and host memory with Peerlane: a spec for vLLM's OffloadingConnector. An option of vLLM selects it:

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "PeerlaneOffloadingSpec", "spec_module_path": "peerlane.integrations.vllm", "cpu_bytes_to_use": 34359738368}}'

vLLM still makes all decisions: which blocks are moved, where they are in host memory, and when they may be read. Its CPU worker computes
the addresses, and records a CUDA event after which a list may begin. DMA channels then move the list without using an SM.
"""

import collections
import importlib.metadata
import logging
import queue
import threading
import time
from typing import Any

from .. import _blocks

KNOWN_RELEASES = ("0.26", "0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33")  # the releases that the tests were run with

_logger = logging.getLogger("peerlane.vllm")


def check_release(version: str) -> None:
    """Raises ImportError if this module was not tested with this release of vLLM, whose offloading interface changes."""
    if ".".join(version.split(".")[:2]) not in KNOWN_RELEASES:
        raise ImportError(f"peerlane.integrations.vllm supports vLLM {', '.join(KNOWN_RELEASES)}, not {version}, because the interface of offloading "
                          "specs changes between releases: use one of these, or take \"spec_name\" and \"spec_module_path\" out of "
                          "kv_connector_extra_config, which gives vLLM's own CPUOffloadingSpec")


def release() -> str:
    """Returns the version of the installed vLLM."""
    return importlib.metadata.version("vllm")


check_release(release())

from vllm.v1.kv_offload.base import TransferResult  # noqa: E402
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec  # noqa: E402

# The handlers of vLLM's CPU worker, and whether their lists are urgent. The last one exists since 0.33.
_HANDLERS = (("_store_handler", False), ("_load_handler", False), ("_expedited_load_handler", True))


class _Job:
    """One list of blocks: vLLM's record of it, the (destination, source, size) arrays, and the outcome."""

    def __init__(self, transfer: Any, addresses: Any) -> None:
        self.transfer, self.addresses = transfer, addresses
        self.done = threading.Event()
        self.succeeded, self.seconds = False, 0.0


class _Direction:
    """Replaces one of vLLM's handlers (GPU to host, or host to GPU). Addresses and order are vLLM's, the copies are Peerlane's.

    vLLM's handler makes a stream wait for the model's stream, calls `_swap_blocks_batch` to queue a list of addresses on it, and
    records an event. This class replaces `_swap_blocks_batch` by a function that queues nothing. The event therefore means that the
    list may begin. A thread waits for the event and moves one list after the other. So the scheduler never blocks, and no block is
    read while the model still writes it. vLLM calls all methods from one thread.
    """

    def __init__(self, handler: Any, urgent: bool) -> None:
        for needed in ("_swap_blocks_batch", "_transfers", "_transfer_events", "_stream_pool", "_event_pool", "_buffer_pool"):
            if not hasattr(handler, needed):
                raise ImportError(f"vLLM's {type(handler).__name__} has no {needed}: peerlane.integrations.vllm does not support this vLLM")
        handler._swap_blocks_batch = self._take
        self._handler, self._urgent = handler, urgent
        self._taken: Any = None
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ended: collections.deque[_Job] = collections.deque()
        self._open: dict[int, _Job] = {}
        self._thread = threading.Thread(target=self._run, name="peerlane-vllm", daemon=True)
        self._thread.start()

    def _take(self, src: Any, dst: Any, sizes: Any, **_: Any) -> None:
        self._taken = (dst.numpy(), src.numpy(), sizes.numpy())

    def transfer_async(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Begins a list; does not block. False: vLLM's handler refused it."""
        self._taken = None
        if not self._handler.transfer_async(job_id, src_spec, dst_spec):
            return False
        transfer = self._handler._transfers.pop()
        self._handler._transfer_events.pop(job_id, None)
        job = _Job(transfer, self._taken)
        self._open[job_id] = job
        self._waiting.put(job)
        return True

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            try:
                self._move(job)
                job.succeeded = True
            except Exception:
                _logger.exception("a list of blocks was not moved: job %d", job.transfer.job_id)
            self._ended.append(job)
            job.done.set()

    def _move(self, job: _Job) -> None:
        while not job.transfer.end_event.query():
            time.sleep(50e-6)
        begin = time.perf_counter()
        if job.addresses is not None:
            dst, src, sizes = job.addresses
            _blocks.copy_block_list(dst, src, sizes, urgent=self._urgent)
        job.seconds = time.perf_counter() - begin

    def get_finished(self) -> list[Any]:
        """Returns the results of lists that have ended since the last call, and gives their stream, events and buffers back to vLLM."""
        results = []
        while self._ended:
            job = self._ended.popleft()
            transfer = job.transfer
            del self._open[transfer.job_id]
            results.append(TransferResult(job_id=transfer.job_id, success=job.succeeded, transfer_size=transfer.num_bytes,
                                          transfer_time=job.seconds))
            self._handler._stream_pool.append(transfer.stream)
            self._handler._event_pool.extend((transfer.end_event, transfer.start_event))
            self._handler._buffer_pool.append((transfer.batch_src, transfer.batch_dst, transfer.batch_sizes))
        return results

    def wait(self, job_ids: set[int]) -> None:
        """Blocks until these lists have ended. get_finished() still reports them."""
        for job_id in job_ids:
            if (job := self._open.get(job_id)) is not None:
                job.done.wait()

    def shutdown(self) -> None:
        """Waits until all lists have ended, then shuts down vLLM's handler."""
        self._waiting.put(None)
        self._thread.join()
        self._handler.shutdown()


def by_channel(worker: Any) -> Any:
    """Makes vLLM's CPU worker copy with Peerlane from now on, and returns the worker. ImportError if this vLLM does not fit."""
    for name, urgent in _HANDLERS:
        if name == "_expedited_load_handler" and not hasattr(worker, name):
            continue
        setattr(worker, name, _Direction(getattr(worker, name), urgent))
    return worker


class PeerlaneOffloadingSpec(CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's CPU offloading with Peerlane's copies; takes the same kv_connector_extra_config. For a tier on disk behind host
    memory, see peerlane.integrations.vllm_store."""

    def create_worker(self, kv_caches: Any) -> Any:
        return by_channel(super().create_worker(kv_caches))
