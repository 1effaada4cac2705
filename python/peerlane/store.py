# SPDX-License-Identifier: Apache-2.0
"""Values of the persistent store, straight from and into GPU tensors (or NumPy arrays); `peerlane store serve` is the server.

    with peerlane.store.open("/run/peerlane/store.sock") as store:
        pool = store.create_pool("checkpoints")
        pool.put("layer0", tensor)
        pool.get("layer0", tensor)
        reply = await pool.get_async("layer0", tensor)

A server of a cluster leads to all of them (docs/store-cluster.md). What each durability promises: include/peerlane/store.h. Calls may come from any thread, and let other Python threads run.
"""

import errno
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _gpu, _core  # _gpu first: it is what the others run on
from . import _html
from ._arguments import number, seconds, text, truth
from ._errors import Error
from ._operation import Operation
from ._types import After, AnyArray, Condition, Durability, Eviction

try:
    from . import _store
except ImportError as why:
    raise Error(errno.ENOSYS, f"{why}: the package was built without the store (Debian: libssl-dev)") from None

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CONDITIONS", "DURABILITIES", "Pool", "Reply", "Store"]  # open() would hide Python's: import it by name

DURABILITIES: dict[str | None, int] = {None: 0, "volatile": 1, "logged": 2, "durable": 3}
CONDITIONS: dict[str | None, int] = {None: 0, "absent": 1, "present": 2}
EVICTIONS: dict[str | None, int] = {"s3-fifo": 0, "lru": 1}
_IF_VERSION = 3
_PATHS = {0: "", 1: "shared memory", 3: "unix", 4: "tcp", 5: "tls", 6: "ucx"}
_READS = 8  # of one value whose length others change meanwhile


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


def _told(version: int, value_bytes: int, moved_bytes: int, path: int, durability: int) -> Reply:
    word = next((name for name, number in DURABILITIES.items() if number == durability), None)
    return Reply(version, value_bytes, moved_bytes, _PATHS.get(path, ""), word)


async def _reply(operation: Operation) -> Reply:
    try:
        await operation
    finally:
        info = operation.info()
    assert info is not None
    return _told(info["version"], info["size_bytes"], info["moved_bytes"], info["path"], info["durability"])


def _key(key: str | bytes, role: str = "key") -> bytes:
    if not isinstance(key, (str, bytes, bytearray, memoryview)):  # bytes(5) would be five zeros
        raise TypeError(f"{role}: {type(key).__name__} is given, str or bytes is wanted")
    return key.encode() if isinstance(key, str) else bytes(key)


def _milliseconds(role: str, given: float) -> int:
    return int(seconds(role, given) * 1e3)


def _number_of(word: str | None, words: dict[str | None, int], role: str) -> int:
    try:
        return words[word]
    except (KeyError, TypeError):
        raise ValueError(f"{role}: {word!r} is none of {', '.join(repr(each) for each in words)}") from None


def _condition(condition: Condition | None, version: int | None) -> tuple[int, int]:
    if version is None:
        return _number_of(condition, CONDITIONS, "condition"), 0
    if condition is not None:
        raise ValueError("condition and version: a version says already that the value is there; give one of them")
    return _IF_VERSION, number("version", version, 0, (1 << 64) - 1)


class Pool:
    """Values by key (str or bytes), of one pool; from Store.create_pool() or open_pool()."""

    def __init__(self, store: "Store", pool_number: int):
        self._store, self._number = store, pool_number

    def __repr__(self) -> str:
        return f"<peerlane.store.Pool {self._number}>"

    def put(self, key: str | bytes, x: AnyArray, *, durability: Durability | None = None, condition: Condition | None = None,
            version: int | None = None, after: After = "auto", ttl: float = 0) -> Reply:
        """Stores the bytes of `x`: a contiguous tensor, array or bytes. `durability`: "volatile", "logged", "durable"; None: the
        pool's. `condition`: "absent" or "present", else Error with EEXIST or ENOENT. `version`: only where the value is still that
        one, else Error with ESTALE. `after`: as for peerlane.copy(). `ttl`: in a pool that is a cache, seconds after which the value is
        gone; 0: as the pool says."""
        options = (_number_of(durability, DURABILITIES, "durability"), *_condition(condition, version), _milliseconds("ttl", ttl))
        name = _key(key)
        return _told(*self._store._connection.put(self._number, name, _core.one_run(x, False, after), *options))

    def begin_put(self, key: str | bytes, x: AnyArray, *, durability: Durability | None = None, condition: Condition | None = None,
                  version: int | None = None, after: After = "auto", ttl: float = 0) -> Operation:
        """put() that goes on after the call, for peerlane.wait_all() and wait_any(); Operation.info() has what a Reply has."""
        options = (_number_of(durability, DURABILITIES, "durability"), *_condition(condition, version), _milliseconds("ttl", ttl))
        name = _key(key)
        return self._store._connection.begin_put(self._number, name, _core.one_run(x, False, after), *options)

    def put_async(self, key: str | bytes, x: AnyArray, *, durability: Durability | None = None, condition: Condition | None = None,
                  version: int | None = None, after: After = "auto", ttl: float = 0) -> Coroutine[Any, Any, Reply]:
        """put() to be awaited: it has begun when the call returns. It cannot be called off; a cancelled task leaves it to its end."""
        return _reply(self.begin_put(key, x, durability=durability, condition=condition, version=version, after=after, ttl=ttl))

    def get(self, key: str | bytes, x: AnyArray, *, offset: int = 0, verify: bool = False, after: After = "auto") -> Reply:
        """Writes the value, from byte `offset` on, into `x`: as many bytes as there are and as fit (moved_bytes)."""
        return _told(*self._store._connection.get(self._number, _key(key), _core.one_run(x, True, after), offset, truth("verify", verify)))

    def begin_get(self, key: str | bytes, x: AnyArray, *, offset: int = 0, verify: bool = False, after: After = "auto") -> Operation:
        """get() that goes on after the call, for peerlane.wait_all() and wait_any(); Operation.info() has what a Reply has."""
        return self._store._connection.begin_get(self._number, _key(key), _core.one_run(x, True, after), offset, truth("verify", verify))

    def get_async(self, key: str | bytes, x: AnyArray, *, offset: int = 0, verify: bool = False,
                  after: After = "auto") -> Coroutine[Any, Any, Reply]:
        """get() to be awaited: it has begun when the call returns. It cannot be called off; a cancelled task leaves it to its end."""
        return _reply(self.begin_get(key, x, offset=offset, verify=verify, after=after))

    def read(self, key: str | bytes, *, verify: bool = False) -> memoryview:
        """The whole value in new host memory: its length is asked for first, and again where another put comes between."""
        size = self.stat(key).value_bytes
        for _ in range(_READS):
            out = bytearray(size)
            reply = self.get(key, out, verify=verify, after=None) if size else self.stat(key)
            if reply.value_bytes == size:
                return memoryview(out)
            size = reply.value_bytes
        raise Error(errno.EAGAIN, f"read: others changed the length of {key!r} {_READS} times meanwhile: call again")

    def erase(self, key: str | bytes, *, version: int | None = None) -> None:
        """Error with ENOENT where nothing is, with ESTALE where it is not that `version`."""
        self._store._connection.erase(self._number, _key(key), *_condition(None, version))

    def stat(self, key: str | bytes) -> Reply:
        """Version and length of a value; nothing is moved."""
        return _told(*self._store._connection.stat(self._number, _key(key)))

    def keys(self, prefix: str | bytes | None = None, *, regex: str | None = None) -> list[bytes]:
        """In order; those that were there all the time, exactly once. `regex`: POSIX extended."""
        begin = _key(prefix, "prefix") if prefix else None
        pattern = None if regex is None else text("regex", regex)
        return [key for key, _ in self._store._connection.find(self._number, begin, pattern)]

    def sync(self) -> None:
        """Returns when everything that was acknowledged for the pool is durable."""
        self._store._connection.sync(self._number)


class Store:
    """A connection; from open(). Usable as a context manager."""

    def __init__(self, connection: _store.Connection):
        self._connection = connection

    def __repr__(self) -> str:
        return f"<peerlane.store.Store {'connected' if self._connection.is_open else 'closed'}>"

    def create_pool(self, name: str, *, durability: Durability | None = None, quota_bytes: int = 0, copies: int = 1, cache: bool = False,
                    cache_memory_bytes: int = 0, cache_disk_bytes: int = 0, ttl: float = 0, eviction: Eviction = "s3-fifo") -> Pool:
        """`durability`: of puts that ask for none; None: durable. `copies`: servers of a cluster that have each value, 1 to 3.
        `cache`: values are volatile, and leave when the pool's share is full or others need the room. Its share of memory (0: three
        quarters) and of the disk (0: none), seconds that a value lives (0: for ever), and which one leaves first."""
        cached = (truth("cache", cache), cache_memory_bytes, cache_disk_bytes, _milliseconds("ttl", ttl),
                  _number_of(eviction, EVICTIONS, "eviction"))
        level = _number_of(durability, DURABILITIES, "durability")
        return Pool(self, self._connection.create_pool(text("name", name), level, quota_bytes, copies, *cached))

    def open_pool(self, name: str) -> Pool:
        """Error with ENXIO where there is none of that name."""
        return Pool(self, self._connection.open_pool(text("name", name)))

    def delete_pool(self, name: str) -> None:
        """With all its values."""
        self._connection.delete_pool(text("name", name))

    def close(self) -> None:
        """What is under way ends with ECANCELED. Any number of times."""
        self._connection.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(where: str | os.PathLike[str] | None = None, *, timeout: float = 30, tls: tuple[str, str, str] | None = None) -> Store:
    """Connects to a unix socket (a path) or "host:port"; None: the variable PEERLANE_STORE. `timeout`: seconds, of operations.
    `tls`: files of the certificate, its key and the authority."""
    place = None if where is None else text("where", os.fspath(where))
    is_path = place is not None and ("/" in place or not isinstance(where, str))
    if tls is not None and not (isinstance(tls, tuple) and len(tls) == 3):
        raise TypeError("tls: three names of files are wanted: the certificate's, its key's and the authority's")
    files = None if tls is None else (text("tls", tls[0]), text("tls", tls[1]), text("tls", tls[2]))
    return Store(_store.Connection(place if is_path else None, None if is_path else place, files, _milliseconds("timeout", timeout)))
