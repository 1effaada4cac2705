# SPDX-License-Identifier: Apache-2.0
"""Peerlane's store as LMCache's remote storage. LMCache's configuration selects it:

    remote_storage_plugins: ["peerlane"]
    extra_config:
      remote_storage_plugin.peerlane.module_path: peerlane.integrations.lmcache
      remote_storage_plugin.peerlane.class_name: PeerlaneConnector
      remote_storage_plugin.peerlane.store: /run/peerlane/store.sock

Each chunk is copied once, between LMCache's host memory and the store's shared memory. The chunks of a call are copied concurrently.
"""

import asyncio
import errno
import logging
from typing import Any

from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from .. import store
from .._errors import Error
from . import _pool

_PREFIX = "remote_storage_plugin.peerlane."
_SHAPE = "/shape"  # suffix of the key of LMCache's description of a chunk, which is put after the chunk

_logger = logging.getLogger("peerlane.lmcache")


async def _end_of(task: "asyncio.Task[Any]") -> Any:
    """Waits for the task's result. If the caller is cancelled, waits all the same, because the store uses LMCache's memory until then."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # otherwise asyncio reports that nobody asked for it
        raise cancelled
    return task.result()


def _release(fetched: "list[asyncio.Task[Any]]") -> None:
    """Gives the memory of chunks back to LMCache that nobody will receive. The tasks have ended."""
    for task in fetched:
        if not task.cancelled() and task.exception() is None and task.result() is not None:
            task.result().ref_count_down()


class PeerlaneConnector(RemoteConnector):  # type: ignore[misc]
    """LMCache's connector to a pool of the store. LMCache creates and calls it; its methods are those of RemoteConnector.

    Settings are in `extra_config`, with the prefix "remote_storage_plugin.peerlane." (names: _pool.SETTINGS). If the store does not
    answer, lookups and gets report a miss, and a warning is logged.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, local_cpu_backend: Any, config: Any):
        super().__init__(local_cpu_backend.config, local_cpu_backend.metadata)
        extra = (config.extra_config if config is not None else None) or {}
        self._settings = _pool.settings_of(extra, _PREFIX, "lmcache")
        self._store, self._pool = _pool.open_pool(self._settings)
        self._loop, self._memory = loop, local_cpu_backend
        self._failures = _pool.Failures(_logger)

    def _has(self, key: Any) -> bool:
        name = key.to_string()
        try:
            self._pool.stat(name + _SHAPE if self.save_chunk_meta else name)
        except Error as error:
            self._log_failure("looking for a chunk", error)
            return False
        return True

    def _log_failure(self, action: str, error: Error) -> None:
        if error.errno not in (errno.ENOENT, errno.EEXIST):
            self._failures.tell(action, error)

    async def exists(self, key: Any) -> bool:
        return await asyncio.to_thread(self._has, key)

    def exists_sync(self, key: Any) -> bool:
        return self._has(key)

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: list[Any]) -> int:
        return next((i for i, key in enumerate(keys) if not self._has(key)), len(keys))

    # ---- Chunks ----

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Stores a chunk. Raises Error if the store refuses it, which LMCache logs. Does not change the reference count of
        `memory_obj`, and does not use it any more when it returns, also if it is cancelled."""
        await _end_of(asyncio.ensure_future(self._put_chunk(key, memory_obj)))

    async def _put_chunk(self, key: Any, memory_obj: Any) -> None:
        name, chunk = key.to_string(), memory_obj.byte_array
        await self._put_once(name, chunk)
        if self.save_chunk_meta:
            shape = RemoteMetadata(len(chunk), memory_obj.get_shapes(), memory_obj.get_dtypes(), memory_obj.get_memory_format())
            await self._put_once(name + _SHAPE, shape.serialize())

    async def _put_once(self, name: str, data: Any) -> None:
        try:
            await self._pool.put_async(name, data, condition="absent", after=None)
        except Error as error:
            if error.errno != errno.EEXIST:  # a key determines the bytes, so the stored ones are the same
                raise

    async def get(self, key: Any) -> Any:
        """Returns the chunk in new memory of LMCache, which the caller releases; None: a miss, a failure, or no memory left. If it is
        cancelled, it releases the memory itself."""
        fetched = asyncio.ensure_future(self._fetch(key))
        try:
            return await _end_of(fetched)
        except asyncio.CancelledError:
            _release([fetched])
            raise

    async def _fetch(self, key: Any) -> Any:
        name = key.to_string()
        memory = None
        try:
            if self.save_chunk_meta:
                head = bytearray(self.remote_metadata_bytes)
                await self._pool.get_async(name + _SHAPE, head, after=None)
                shape = RemoteMetadata.deserialize(head)
                memory = self._memory.allocate(shape.shapes, shape.dtypes, shape.fmt)
            else:
                memory = self._memory.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt)
            if memory is None:  # LMCache has no memory left
                return None
            reply = await self._pool.get_async(name, memory.byte_array, after=None)
            if self.save_chunk_meta and reply.moved_bytes != shape.length:
                raise Error(errno.EBADMSG, f"{name}: {reply.value_bytes} bytes are stored, expected {shape.length}")
            return memory if self.save_chunk_meta else self.reshape_partial_chunk(memory, reply.moved_bytes)
        except Exception as error:  # also of LMCache's own functions, for a description that another release has stored
            if isinstance(error, Error):
                self._log_failure("fetching a chunk", error)
            else:
                self._failures.tell("fetching a chunk", error)
            if memory is not None:
                memory.ref_count_down()
            return None

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: list[Any], memory_objs: list[Any]) -> None:
        puts = [self.put(key, memory) for key, memory in zip(keys, memory_objs, strict=True)]
        # All of them end before the first error is raised, because LMCache then reuses the memory of each.
        for error in await asyncio.gather(*puts, return_exceptions=True):
            if error is not None:
                raise error

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: list[Any]) -> list[Any]:
        fetched = [asyncio.ensure_future(self.get(key)) for key in keys]
        try:
            return list(await asyncio.gather(*fetched))
        except asyncio.CancelledError:  # raised when all have ended
            _release(fetched)
            raise

    # ---- The rest ----

    def remove_sync(self, key: Any) -> bool:
        """Removes a chunk and its description; False: there was none. The description goes first, because a chunk is found by it."""
        name = key.to_string()
        found = False
        for each in ([name + _SHAPE] if self.save_chunk_meta else []) + [name]:
            try:
                self._pool.erase(each)
                found = True
            except Error as error:
                self._log_failure("removing a chunk", error)
        return found

    async def list(self) -> list[str]:
        names = await asyncio.to_thread(self._pool.keys)
        return [name.decode() for name in names if not name.endswith(_SHAPE.encode())]

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        try:
            await asyncio.to_thread(self._store.open_pool, self._settings["pool"])
        except Error as error:
            return error.errno or errno.EIO
        return 0

    async def close(self) -> None:
        self._store.close()


__all__ = ["PeerlaneConnector"]
