# SPDX-License-Identifier: Apache-2.0
"""Peerlane's store as the tier behind host memory in SGLang's HiCache. Command-line options of SGLang select it:

    --enable-hierarchical-cache --hicache-mem-layout page_first --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "peerlane", "module_path": "peerlane.integrations.sglang",
        "class_name": "PeerlaneHiCache", "interface_v1": 1, "peerlane_store": "/run/peerlane/store.sock"}'

SGLang still makes all decisions about pages. Each page is copied once, between SGLang's host memory and the store's shared memory; many
pages are copied concurrently. A page consists of one or more pieces (keys of the store). Its last piece is put after the others and
marks the page as complete, so a page that was written only in part is never found.
"""

import ctypes
import errno
import logging
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from .. import _operation, store
from .._errors import Error
from . import _pool

_AT_ONCE = 64  # concurrent requests; more gain nothing and could exceed the server's limits for a principal
_WHOLE = "page"  # in the place of a piece's number

_logger = logging.getLogger("peerlane.sglang")


def suffix_of(config: Any) -> str:
    """Returns the suffix of all keys of this process: the model, and the rank's place in it.

    Ranks store different heads and layers of a page under SGLang's same key, so the suffix tells them apart. `config`: SGLang's
    HiCacheStorageConfig.
    """
    parts = [str(config.model_name or "").replace("/", "-")]
    if not config.is_mla_model:  # with MLA, all tensor-parallel ranks have the same bytes
        parts.append(f"tp{config.tp_rank}of{config.tp_size}")
    for name in ("pp", "attn_cp", "dcp"):
        size = getattr(config, f"{name}_size", 1) or 1
        if size > 1:
            parts.append(f"{name}{getattr(config, f'{name}_rank')}of{size}")
    return "/" + "/".join(parts)


def _memory(address: int, size: int) -> Any:
    return (ctypes.c_ubyte * size).from_address(address)


class PeerlaneHiCache(HiCacheStorage):  # type: ignore[misc]
    """HiCache's storage in a pool of the store. SGLang creates and calls it; its methods are those of HiCacheStorage. Thread-safe.

    Settings are in SGLang's extra config, with the prefix "peerlane_" (names: _pool.SETTINGS). If the store does not answer, a page
    counts as missing, and a warning is logged.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None):
        del kwargs  # SGLang passes it; not needed
        self._settings = _pool.settings_of(storage_config.extra_config or {}, "peerlane_", "sglang")
        self._store, self._pool = _pool.open_pool(self._settings)
        self._suffix = suffix_of(storage_config)
        # As SGLang decides: it calls the batch_*_v1 methods with this setting, and otherwise those for single tensors.
        self._is_by_pieces = bool((storage_config.extra_config or {}).get("interface_v1"))
        self._failures = _pool.Failures(_logger)

    # ---- Whole pages, from and to SGLang's host pool ----

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        """Stores the pages of the host pool at `host_indices`. For each key: whether the store now has the whole page."""
        pages = self._pages(keys, host_indices)
        stored = self._all_of([pieces[:-1] for pieces in pages], self._put)
        last = self._all_of([pieces[-1:] if done else [] for pieces, done in zip(pages, stored)], self._put)
        return [first and second for first, second in zip(stored, last)]

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        """Fetches pages into the host pool at `host_indices`. For each key: whether the whole page was fetched."""
        return self._all_of(self._pages(keys, host_indices), self._get)

    def _pages(self, keys: list[str], host_indices: torch.Tensor) -> list[list[tuple[str, int, int]]]:
        """Returns the pieces of each page: key in the store, host address, size in bytes."""
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        count, rest = divmod(len(addresses), len(keys)) if keys else (0, 0)
        if rest or (keys and not count):
            raise ValueError(f"{len(addresses)} pieces of memory for {len(keys)} pages: the layout of this host pool is unknown")
        return [[(self._name(key, j), int(addresses[i * count + j]), int(sizes[i * count + j])) for j in range(count)]
                for i, key in enumerate(keys)]

    def _name(self, key: str, piece: int | str) -> str:
        return f"{key}{self._suffix}/{piece}"

    def _put(self, name: str, address: int, size: int) -> Any:
        # A key determines the bytes, so a stored value already has them.
        return self._pool.begin_put(name, _memory(address, size), condition="absent", after=None)

    def _get(self, name: str, address: int, size: int) -> Any:
        return self._pool.begin_get(name, _memory(address, size), after=None)

    def _all_of(self, pages: list[list[tuple[str, int, int]]], begin: Any) -> list[bool]:
        """Begins and waits for the transfer of all pieces. For each page: whether all of its pieces were transferred."""
        done = [True] * len(pages)
        flat = [(i, *piece) for i, pieces in enumerate(pages) for piece in pieces]
        for first in range(0, len(flat), _AT_ONCE):
            begun = []
            for i, name, address, size in flat[first:first + _AT_ONCE]:
                try:
                    begun.append((i, size, begin(name, address, size)))
                except Error as error:
                    done[i] = self._is_there("moving pages", error) and done[i]
            for i, size, operation in begun:
                try:
                    operation.wait()
                    info = operation.info()
                    done[i] = done[i] and info["size_bytes"] == info["moved_bytes"] == size
                except Error as error:
                    done[i] = self._is_there("moving pages", error) and done[i]
        return done

    def _is_there(self, action: str, error: Error) -> bool:
        """Handles a failed request: logs it unless it is a miss. True: the value already exists, which is no failure."""
        if error.errno not in (errno.EEXIST, errno.ENOENT):
            self._failures.tell(action, error)
        return error.errno == errno.EEXIST

    # ---- Which pages the store has ----

    def exists(self, key: str) -> bool:
        return self._has(self._mark(key))

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Returns how many pages at the beginning of `keys` the store has."""
        return next((i for i, key in enumerate(keys) if not self._has(self._mark(key))), len(keys))

    def _mark(self, key: str) -> str:
        """Returns the name of the value that is there if the page is: its last piece, or the whole page as one tensor."""
        return self._name(key, self._last_piece() if self._is_by_pieces else _WHOLE)

    def _has(self, name: str) -> bool:
        try:
            self._pool.stat(name)
        except Error as error:
            return self._is_there("looking for a page", error)
        return True

    def _last_piece(self) -> int:
        """Returns the index of the piece that is put last. Without a registered host pool, a page has one piece."""
        pool = getattr(self, "mem_pool_host", None)
        size = getattr(pool, "page_size", 0)
        if pool is None or not size:
            return 0
        if not hasattr(self, "_last"):
            self._last: int = len(pool.get_page_buffer_meta(torch.arange(size))[0]) - 1
        return self._last

    # ---- Single tensors, for configurations without "interface_v1" ----

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        try:
            self._pool.put(self._name(key, _WHOLE), value.contiguous(), condition="absent", after=None)
        except Error as error:
            return self._is_there("storing a page", error)
        return True

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        try:
            reply = self._pool.get(self._name(key, _WHOLE), target_location, after=None)
        except Error as error:
            self._is_there("fetching a page", error)
            return None
        return target_location if reply.moved_bytes == reply.value_bytes == target_location.nbytes else None

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        return all([self.set(key, value) for key, value in zip(keys, values)])

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        return [self.get(key, location) for key, location in zip(keys, target_locations)]

    def clear(self) -> None:
        """Erases every value of the pool, also those of other ranks and models."""
        for name in self._pool.keys():
            try:
                self._pool.erase(name)
            except Error as error:
                self._is_there("clearing", error)

    def close(self) -> None:
        self._store.close()


__all__ = ["PeerlaneHiCache", "suffix_of"]
