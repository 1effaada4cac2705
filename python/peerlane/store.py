# SPDX-License-Identifier: Apache-2.0
"""Values of the persistent store, straight from and into GPU tensors (or NumPy arrays); `peerlane store serve` is the server.

    with peerlane.store.open("/run/peerlane/store.sock") as store:
        pool = store.create_pool("checkpoints")
        pool.put("layer0", tensor)
        pool.get("layer0", tensor)

A server of a cluster leads to all of them (docs/store-cluster.md). What each durability promises: include/peerlane/store.h. Calls may come from any thread, and let other Python threads run.
"""

import ctypes
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from . import _gpu, _core, _native  # _gpu first: it is what the others run on
from . import _html
from ._errors import Error, Timeout
from ._types import After, AnyArray, Condition, Durability, Eviction

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CONDITIONS", "DURABILITIES", "EVICTIONS", "Pool", "Reply", "Store"]  # open() would hide Python's: import it by name

DURABILITIES: dict[str | None, int] = {None: 0, "volatile": 1, "logged": 2, "durable": 3}
CONDITIONS: dict[str | None, int] = {None: 0, "absent": 1, "present": 2}
EVICTIONS: dict[str | None, int] = {"s3-fifo": 0, "lru": 1}
_PATHS = {0: "", 1: "shared memory", 3: "unix", 4: "tcp", 5: "tls", 6: "ucx"}
_size, _u32, _u64, _i32, _i64, _text, _pointer = (ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64,
                                                  ctypes.c_char_p, ctypes.c_void_p)


class _Options(ctypes.Structure):
    _fields_ = [("struct_bytes", _size), ("socket", _text), ("endpoint", _text), ("tls_certificate", _text), ("tls_key", _text),
                ("tls_authority", _text), ("timeout_ms", _i64), ("require_path", _u32), ("flags", _u32)]


class _PoolOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", _size), ("quota_bytes", _u64), ("quota_keys", _u64), ("durability", _u32), ("no_shm", _u32),
                ("access", _text), ("copies", _u32), ("reserved", _u32), ("cache_memory_bytes", _u64), ("cache_disk_bytes", _u64),
                ("cache_ttl_ms", _u64), ("is_cache", _u32), ("cache_eviction", _u32)]


class _PutOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", _size), ("durability", _u32), ("condition", _u32), ("expected_version", _u64),
                ("user_flags", _u32), ("is_part", _u32), ("offset_bytes", _u64), ("timeout_ms", _i64), ("on_stream", _u32),
                ("reserved", _u32), ("stream", _pointer), ("ttl_ms", _u64)]


class _GetOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", _size), ("offset_bytes", _u64), ("timeout_ms", _i64), ("verify", _u32), ("on_stream", _u32),
                ("stream", _pointer)]


class _Info(ctypes.Structure):
    _fields_ = [("error", _i32), ("source", _i32), ("tag", _u64), ("size_bytes", _u64), ("moved_bytes", _u64), ("version", _u64),
                ("server_ns", _u64), ("path", _u32), ("durability", _u32), ("crc32c", _u32), ("user_flags", _u32), ("repeated", _u32),
                ("reserved", _u32)]


class _Buffer(ctypes.Structure):
    _fields_ = [("address", _u64), ("size_bytes", _size), ("memory", _u32), ("reserved", _u32)]


_EACH = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer, _size, _u64)
try:
    _library = ctypes.CDLL(str(_native.FOLDER / "libpeerlane_store.so.0"))
except OSError as why:
    raise Error(errno.ENOSYS, f"{why}: the package was built without the store (Debian: libssl-dev)") from None
_library.peerlane_store_last_error.restype = _text


@dataclass(frozen=True)
class Reply:
    """What became of an operation: the version and length of the whole value, bytes moved, and the way they took."""

    version: int
    value_bytes: int
    moved_bytes: int
    path: str
    durability: str | None

    def _repr_html_(self) -> str:
        return _html.rows("peerlane.store.Reply", vars(self))


def _told(reply: _Info) -> Reply:
    durability = next((name for name, number in DURABILITIES.items() if number == reply.durability), None)
    return Reply(reply.version, reply.size_bytes, reply.moved_bytes, _PATHS.get(reply.path, ""), durability)


def _call(name: str, *arguments: object) -> None:
    code = getattr(_library, name)(*arguments)
    if code != 0:
        raise (Timeout if code == errno.ETIMEDOUT else Error)(code, _library.peerlane_store_last_error().decode())


_Struct = TypeVar("_Struct", bound=ctypes.Structure)


def _filled(kind: type[_Struct], **fields: Any) -> _Struct:
    return kind(struct_bytes=ctypes.sizeof(kind), **fields)


def _key(key: str | bytes, role: str = "key") -> tuple[bytes, ctypes.c_size_t]:
    if not isinstance(key, (str, bytes, bytearray, memoryview)):  # bytes(5) would be five zeros
        raise TypeError(f"{role}: {type(key).__name__} is given, str or bytes is wanted")
    plain = key.encode() if isinstance(key, str) else bytes(key)
    return plain, _size(len(plain))


def _number_of(word: str | None, words: dict[str | None, int], role: str) -> int:
    try:
        return words[word]
    except (KeyError, TypeError):
        raise ValueError(f"{role}: {word!r} is none of {', '.join(repr(each) for each in words)}") from None


class Pool:
    """Values by key (str or bytes), of one pool; from Store.create_pool() or open_pool()."""

    def __init__(self, store: "Store", number: int):
        self._store, self._number = store, _u32(number)

    def _at(self, key: str | bytes) -> tuple[object, ...]:
        return (self._store._open(), self._number, *_key(key))

    def __repr__(self) -> str:
        return f"<peerlane.store.Pool {self._number.value}>"

    def put(self, key: str | bytes, x: AnyArray, *, durability: Durability | None = None, condition: Condition | None = None,
            after: After = "auto", ttl: float = 0) -> Reply:
        """Stores the bytes of `x`: a contiguous tensor, array or bytes. `durability`: "volatile", "logged", "durable"; None: the
        pool's. `condition`: "absent" or "present", else Error with EEXIST or ENOENT. `after`: as for peerlane.copy(). `ttl`:
        in a pool that is a cache, seconds after which the value is gone; 0: as the pool says."""
        options = _filled(_PutOptions, durability=_number_of(durability, DURABILITIES, "durability"),
                          condition=_number_of(condition, CONDITIONS, "condition"), ttl_ms=int(ttl * 1e3))
        address, size = _core.one_run(x, False, after)
        reply = _Info()
        _call("peerlane_store_put", *self._at(key), _Buffer(address, size), ctypes.byref(options), ctypes.byref(reply))
        return _told(reply)

    def get(self, key: str | bytes, x: AnyArray, *, offset: int = 0, verify: bool = False, after: After = "auto") -> Reply:
        """Writes the value, from byte `offset` on, into `x`: as many bytes as there are and as fit (moved_bytes)."""
        options = _filled(_GetOptions, offset_bytes=offset, verify=int(verify))
        address, size = _core.one_run(x, True, after)
        reply = _Info()
        _call("peerlane_store_get", *self._at(key), _Buffer(address, size), ctypes.byref(options), ctypes.byref(reply))
        return _told(reply)

    def erase(self, key: str | bytes) -> None:
        """Error with ENOENT where nothing is."""
        _call("peerlane_store_erase", *self._at(key), None, None)

    def stat(self, key: str | bytes) -> Reply:
        """Version and length of a value; nothing is moved."""
        reply = _Info()
        _call("peerlane_store_stat", *self._at(key), ctypes.byref(reply))
        return _told(reply)

    def keys(self, prefix: str | bytes | None = None) -> list[bytes]:
        """In order; those that were there all the time, exactly once."""
        found: list[bytes] = []

        def keep(_: object, key: int, size: int, _bytes: int) -> int:
            found.append(ctypes.string_at(key, size))
            return 0

        each = _EACH(keep)
        _call("peerlane_store_find", self._store._open(), self._number, _key(prefix, "prefix")[0] if prefix else None, None, each, None)
        return found

    def sync(self) -> None:
        """Returns when everything that was acknowledged for the pool is durable."""
        _call("peerlane_store_sync", self._store._open(), self._number)


class Store:
    """A connection; from open(). Usable as a context manager."""

    def __init__(self, options: _Options):
        self._handle = _pointer()
        _call("peerlane_store_open", ctypes.byref(options), ctypes.byref(self._handle))

    def __repr__(self) -> str:
        return f"<peerlane.store.Store {'connected' if self._handle else 'closed'}>"

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("the store is closed")
        return self._handle

    def _pool(self, call: str, name: str, *more: object) -> Pool:
        number = _u32()
        _call(call, self._open(), name.encode(), *more, ctypes.byref(number))
        return Pool(self, number.value)

    def create_pool(self, name: str, *, durability: Durability | None = None, quota_bytes: int = 0, copies: int = 1, cache: bool = False,
                    cache_memory_bytes: int = 0, cache_disk_bytes: int = 0, ttl: float = 0, eviction: Eviction = "s3-fifo") -> Pool:
        """`durability`: of puts that ask for none; None: durable. `copies`: servers of a cluster that have each value, 1 to 3.
        `cache`: values are volatile, and leave when the pool's share is full or others need the room. Its share of memory (0: three
        quarters) and of the disk (0: none), seconds that a value lives (0: for ever), and which one leaves first."""
        options = _filled(_PoolOptions, durability=_number_of(durability, DURABILITIES, "durability"), quota_bytes=quota_bytes, copies=copies,
                          is_cache=int(cache), cache_memory_bytes=cache_memory_bytes, cache_disk_bytes=cache_disk_bytes,
                          cache_ttl_ms=int(ttl * 1e3), cache_eviction=_number_of(eviction, EVICTIONS, "eviction"))
        return self._pool("peerlane_store_create_pool", name, ctypes.byref(options))

    def open_pool(self, name: str) -> Pool:
        """Error with ENXIO where there is none of that name."""
        return self._pool("peerlane_store_open_pool", name)

    def delete_pool(self, name: str) -> None:
        """With all its values."""
        _call("peerlane_store_delete_pool", self._open(), name.encode())

    def close(self) -> None:
        """What is under way ends with ECANCELED. Any number of times."""
        handle, self._handle = self._handle, _pointer()
        if handle:
            _call("peerlane_store_close", handle)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            _library.peerlane_store_close(self._handle)


def open(where: str | os.PathLike[str] | None = None, *, timeout: float = 30) -> Store:
    """Connects to a unix socket (a path) or "host:port"; None: the variable PEERLANE_STORE. `timeout`: seconds, of operations."""
    options = _filled(_Options, timeout_ms=int(timeout * 1e3))
    if where is not None:
        text = os.fspath(where)
        setattr(options, "socket" if "/" in text or not isinstance(where, str) else "endpoint", text.encode())
    return Store(options)
