# SPDX-License-Identifier: Apache-2.0
"""Peerlane's store as a tier of vLLM's KV cache behind GPU and host memory. The store adds its own memory, a disk and other machines.
Peerlane also makes the copies between GPU and host memory. An option of vLLM selects it:

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "PeerlaneTieringOffloadingSpec", "spec_module_path": "peerlane.integrations.vllm_store",
        "cpu_bytes_to_use": 34359738368, "secondary_tiers": [{"type": "PeerlaneStoreTier",
            "module_path": "peerlane.integrations.vllm_store", "store": "/run/peerlane/store.sock", "disk_bytes": 1099511627776}]}}'

vLLM still makes all decisions: which chunks are stored, when they are loaded, and what a prefix is. Each chunk is one value of the
store. Its key is the file name that vLLM's own tier of files would use, which differs between models, layouts and ranks.
"""

import errno
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .._errors import Error
from . import _pool
from . import vllm as _vllm

TIER_RELEASES = ("0.30", "0.31", "0.32", "0.33")  # the releases that have this tiering interface

_PAUSE = 5.0  # seconds without requests after the store did not answer: each would last until its time-out
_AT_ONCE = 64  # concurrent requests; more gain nothing and could exceed the server's limits for a principal

_AWAY = (errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.EHOSTUNREACH)

_logger = logging.getLogger("peerlane.vllm")


def check_release(version: str) -> None:
    """Raises ImportError if this module was not tested with this release of vLLM, whose tiering interface changes."""
    if ".".join(version.split(".")[:2]) not in TIER_RELEASES:
        raise ImportError(f"peerlane.integrations.vllm_store supports vLLM {', '.join(TIER_RELEASES)}, not {version}, because the interface of tiers "
                          "changes between releases: use one of these, or \"spec_name\": \"PeerlaneOffloadingSpec\" with \"spec_module_path\": "
                          "\"peerlane.integrations.vllm\", which has no tier behind host memory")


check_release(_vllm.release())

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, RequestOffloadingContext  # noqa: E402
from vllm.v1.kv_offload.file_mapper import FileMapper  # noqa: E402
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager  # noqa: E402
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager  # noqa: E402
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec  # noqa: E402


class PeerlaneTieringOffloadingSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """vLLM's tiering with Peerlane's copies between GPU and host memory. It takes the same kv_connector_extra_config, with any tiers."""

    def create_worker(self, kv_caches: Any) -> Any:
        return _vllm.by_channel(super().create_worker(kv_caches))


class _Lookups(AsyncLookupManager):  # type: ignore[misc]
    """Asks the store on the thread of vLLM's AsyncLookupManager, so that the scheduler does not wait."""

    def __init__(self, tier: "PeerlaneStoreTier", tier_type: str) -> None:
        self._tier = tier  # first: the base class starts its thread
        super().__init__(tier_type=tier_type)

    def batch_lookup(self, keys: list[Any], req_context: Any) -> Iterable[bool]:
        return [self._tier.has(key) for key in keys]


class _Queue:
    """A thread that runs the jobs of one direction one after the other. Within a job, many chunks are transferred concurrently."""

    def __init__(self, name: str, run: Callable[[Any], Any], ended: Callable[[Any], None]) -> None:
        self._run, self._ended = run, ended
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Any) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._ended(self._run(job))

    def close(self) -> None:
        """Waits until all jobs have ended, and ends the thread."""
        self._jobs.put(None)
        self._thread.join()


class PeerlaneStoreTier(SecondaryTierManager):  # type: ignore[misc]
    """A pool of the store as vLLM's tier behind host memory. vLLM creates and calls it; its methods are those of SecondaryTierManager.

    Settings, beside "type" and "module_path": "store" (address; default: PEERLANE_STORE), "pool" (default: "vllm"), "timeout" (seconds
    for a request), and, if the pool does not exist yet, "memory_bytes", "disk_bytes" (shares of the cache) and "ttl" (seconds). If the store
    does not answer, a chunk counts as missing and the engine continues.
    """

    medium = Medium.STORAGE

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None,
                 locality: str | None = None, **settings: Any) -> None:
        more = {} if backpressure_detector is None else {"backpressure_detector": backpressure_detector}
        super().__init__(offloading_spec, primary_kv_view, tier_type, **more)
        if locality is not None:
            self.locality = Locality(locality)
        self._chunks = np.asarray(primary_kv_view)  # a row is a chunk
        self._names = FileMapper.from_offloading_spec(root_dir="vllm", offloading_spec=offloading_spec,
                                                      blocks_per_file=offloading_spec.blocks_per_chunk, parallel_agnostic=True)
        self._store, self._pool = _pool.open_pool(_pool.settings_of(settings, "", "vllm"))
        self._failures = _pool.Failures(_logger)
        self._away_until = 0.0
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._open = 0
        self._lookups = _Lookups(self, tier_type)
        self._stores = _Queue("peerlane-store", self._store_job, self._end)
        self._loads = _Queue("peerlane-load", self._load_job, self._end)

    # ---- Lookups ----

    def lookup(self, key: Any, req_context: Any) -> Any:
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def has(self, key: Any) -> bool:
        """Asks the store for a chunk; blocks. A value of a different length counts as missing."""
        if self._is_away():
            return False
        try:
            return bool(self._pool.stat(self._names.get_file_name(key)).value_bytes == self._chunks[0].nbytes)
        except Error as error:
            self._log_failure("looking for a chunk", error)
            return False

    def on_new_request(self, req_context: Any) -> Any:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    # ---- Jobs ----

    def submit_store(self, job_metadata: Any) -> None:
        self._begin(self._stores, job_metadata)

    def submit_load(self, job_metadata: Any) -> None:
        self._begin(self._loads, job_metadata)

    def _begin(self, queue_: _Queue, job: Any) -> None:
        with self._idle:
            self._open += 1
        queue_.put(job)

    def _end(self, result: Any) -> None:
        self._results.put(result)
        with self._idle:
            self._open -= 1
            self._idle.notify_all()

    def _store_job(self, job: Any) -> Any:
        # A key determines the bytes, so a stored value already has them.
        return self._move(job, lambda name, chunk: self._pool.begin_put(name, chunk, condition="absent", after=None), "storing a chunk", False)

    def _load_job(self, job: Any) -> Any:
        return self._move(job, lambda name, chunk: self._pool.begin_get(name, chunk, after=None), "fetching a chunk", True)

    def _move(self, job: Any, begin: Any, action: str, is_load: bool) -> Any:
        """Transfers the chunks of a job, at most _AT_ONCE concurrently, and returns the job's result. If a load fails in part, the
        result names the chunks that were loaded."""
        started = time.perf_counter()
        keys = list(job.keys)
        moved = []
        try:
            for first in range(0, len(keys), _AT_ONCE):
                part = [(key, self._chunks[int(chunk)]) for key, chunk in
                        zip(keys[first:first + _AT_ONCE], job.chunk_ids[first:first + _AT_ONCE], strict=True)]
                begun = [(key, chunk, self._started(begin, key, chunk, action)) for key, chunk in part]
                moved += [key for key, chunk, operation in begun if self._has_moved(operation, chunk, action)]
        except Exception:  # without a result, the engine would wait for this job for ever
            _logger.exception("%s: job %d", action, job.job_id)
        done = len(moved) == len(keys)
        if is_load and not done:
            came = set(moved)
            self._missed(job.job_id, [key for key in keys if key not in came])
        return JobResult(job_id=job.job_id, success=done, successful_keys=tuple(moved) if is_load and moved and not done else None,
                         transfer_time=time.perf_counter() - started, **self._bytes_of(len(moved)))

    def _bytes_of(self, chunks: int) -> dict[str, int]:
        fields = getattr(JobResult, "__dataclass_fields__", {})
        return {"transfer_bytes": chunks * self._chunks[0].nbytes} if "transfer_bytes" in fields else {}

    def _started(self, begin: Any, key: Any, chunk: Any, action: str) -> Any:
        """Begins a transfer. Returns the operation; True: the value already exists; None: it failed."""
        if self._is_away():
            return None
        try:
            return begin(self._names.get_file_name(key), chunk)
        except Error as error:
            return self._log_failure(action, error) or None

    def _has_moved(self, operation: Any, chunk: Any, action: str) -> bool:
        if operation is None or operation is True:
            return bool(operation)
        try:
            operation.wait()
            info = operation.info()
            return bool(info["size_bytes"] == info["moved_bytes"] == chunk.nbytes)
        except Error as error:
            return self._log_failure(action, error)

    def _log_failure(self, action: str, error: Error) -> bool:
        """Handles a failed request: logs it unless it is a miss. True: the value already exists, which is no failure."""
        if error.errno not in (errno.EEXIST, errno.ENOENT):
            self._failures.tell(action, error)
        if error.errno in _AWAY:
            self._away_until = time.monotonic() + _PAUSE
        return error.errno == errno.EEXIST

    def _is_away(self) -> bool:
        return time.monotonic() < self._away_until

    def _missed(self, job_id: int, keys: list[Any]) -> None:
        self._results.put((job_id, keys))  # queued before the job's result; get_finished_jobs() applies it on the scheduler's thread

    def get_finished_jobs(self) -> Iterable[Any]:
        results: list[Any] = []
        while True:
            try:
                one = self._results.get_nowait()
            except queue.Empty:
                return results
            if isinstance(one, tuple):
                self._lookups.mark_miss(one[1])  # otherwise the scheduler would request them again and again
            else:
                results.append(one)

    def drain_jobs(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: self._open == 0)

    def shutdown(self) -> None:
        self._lookups.shutdown()
        self._stores.close()
        self._loads.close()
        self._store.close()


__all__ = ["PeerlaneStoreTier", "PeerlaneTieringOffloadingSpec"]
