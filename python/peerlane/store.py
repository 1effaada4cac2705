# SPDX-License-Identifier: Apache-2.0
"""Values of the persistent store, directly from and to GPU tensors (or NumPy arrays); `peerlane store serve` is the server.

    with peerlane.store.open("/run/peerlane/store.sock") as store:
        pool = store.create_pool("checkpoints")
        pool.put("layer0", tensor)
        pool.get("layer0", tensor)
        reply = await pool.get_async("layer0", tensor)
        pool.multi_put({"layer1": tensor, "layer2": other}, atomic=True)
        for found in pool.scan("layer"):
            print(found.key, found.value_bytes)

Through one server of a cluster, you use all of them (docs/store-cluster.md). Durability levels: include/peerlane/store.h. Any thread may make calls; other Python threads can run during a call.
"""

import asyncio
import errno
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from . import _gpu, _core  # _gpu first: it is what the others run on
from . import _html
from ._arguments import number, seconds, text, truth
from ._errors import Error, Timeout
from ._operation import Operation
from ._types import After, AnyArray, ChangeKind, Condition, Durability, Eviction

try:
    from . import _store
except ImportError as error:
    raise Error(errno.ENOSYS, f"{error}: the package was built without the store (Debian: libssl-dev)") from None

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CONDITIONS", "DURABILITIES", "Change", "FoundKey", "Pool", "Reply", "Store", "Watch"]  # open() would hide Python's: import it by name

DURABILITIES: dict[str | None, int] = {None: 0, "volatile": 1, "logged": 2, "durable": 3}
CONDITIONS: dict[str | None, int] = {None: 0, "absent": 1, "present": 2}
EVICTIONS: dict[str | None, int] = {"s3-fifo": 0, "lru": 1}
_IF_VERSION = 3
_PATHS = {0: "", 1: "shared memory", 3: "unix", 4: "tcp", 5: "tls", 6: "ucx"}
_READS = 8  # attempts to read a value while other clients change its length
_CLOSINGS = 500  # attempts to close a store beside threads that open watches
_PAGE = 1000  # keys that a scan asks for at a time
_PUT, _GET, _ERASE, _EXISTS = 1, 2, 3, 4
_NOTHING = (0, 0, None)  # memory of a request that moves no bytes
_WHY = {errno.ENOENT: "there is no such key", errno.ENXIO: "there is no such pool any more", errno.EEXIST: "it is there already",
        errno.ESTALE: "another version is there: read it and decide again", errno.EACCES: "not allowed: the pool's access list says who may",
        errno.ENOSPC: "the store is full: erase values, or give it more room", errno.EDQUOT: "the quota of the pool, or yours, is used up",
        errno.EROFS: "the store is read-only: its log says why", errno.EBADMSG: "the bytes are not those that were put",
        errno.ECANCELED: "another item of the atomic batch failed, or the store was closed",
        errno.ETIMEDOUT: "no answer in time: not known whether it was done", errno.ECONNRESET: "no connection: not known whether it was done"}

_T = TypeVar("_T")
# Argument of multi_put() and multi_get(): a dictionary by key, or pairs (key, value).
ByKey: TypeAlias = Mapping[str, _T] | Mapping[bytes, _T] | Mapping[str | bytes, _T] | Iterable[tuple[str | bytes, _T]]
Versions: TypeAlias = Mapping[str, int] | Mapping[bytes, int] | Mapping[str | bytes, int]


@dataclass(frozen=True)
class Reply:
    """Outcome of an operation: version and length of the whole value, bytes moved, and the path that they took."""

    version: int
    value_bytes: int
    moved_bytes: int
    path: str
    durability: str | None

    def _repr_html_(self) -> str:
        return _html.rows("peerlane.store.Reply", vars(self))


@dataclass(frozen=True)
class FoundKey:
    """A key that a scan found, with the length and version of its value."""

    key: bytes
    value_bytes: int
    version: int


@dataclass(frozen=True)
class Change:
    """A change of a key. `kind`: "put"; "erased"; "evicted" and "expired" in a cache; or "lost": earlier changes are no longer known
    (`lost` of them; 0: unknown number), so read the keys again. `version`: the new version after a put, otherwise the version that
    was removed."""

    kind: ChangeKind
    key: bytes
    version: int
    value_bytes: int
    lost: int = 0


class _Connected:
    """Base of objects that share a connection. Python would name an inner object where they are pickled, as for a process of
    multiprocessing."""

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(f"{type(self).__name__}: a connection to a store is neither copied nor pickled; open another one, in the process that uses it")


class Watch(_Connected):
    """The changes of a pool's keys, in order for each key; from Pool.watch(). Iterate over it with `for` or `async for`: it waits for
    the next change, and ends when it is closed. It survives a lost connection and a restart of the server, and then reports a
    change "lost". One thread or task may wait at a time. Usable as a context manager, with `with` or `async with`."""

    _KINDS: dict[int, ChangeKind] = {1: "put", 2: "erased", 3: "evicted", 4: "expired", 16: "lost"}
    _SLICE = 0.5  # seconds for which the thread of `async for` waits before the task checks whether the watch is still open

    def __init__(self, watch: _store.Watch):
        self._watch = watch
        self._ready: deque[Change] = deque()  # a thread may add to it after its task was cancelled
        self._thread: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<peerlane.store.Watch {'open' if self._watch.is_open else 'closed'}>"

    def next(self, timeout: float = -1) -> Change:
        """Returns the next change. `timeout` is in seconds, negative: no limit. Timeout: there was no change; the watch continues.
        Error with ENXIO: the pool was deleted; ECONNRESET: the server could not be reached within the store's timeout, call again;
        ECANCELED: the watch is closed."""
        if not self._ready:
            self._fetch(_milliseconds("timeout", timeout))
        return self._ready.popleft()

    def close(self) -> None:
        """Ends the watch and notifies a waiting thread or task. You may call it repeatedly."""
        self._watch.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def _fetch(self, timeout_ms: int) -> None:
        for kind, key, version, size, lost in self._watch.next(timeout_ms):
            self._ready.append(Change(self._KINDS.get(kind, "lost"), key, version, size, lost))

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        try:
            return self.next()
        except Error:
            if self._watch.is_open:
                raise
            raise StopIteration from None

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        while not self._ready:
            if not self._watch.is_open:
                raise StopAsyncIteration
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "peerlane-watch")
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._fetch, int(self._SLICE * 1e3))
            except Timeout:
                pass
            except Error:
                if self._watch.is_open:
                    raise
                raise StopAsyncIteration from None
        return self._ready.popleft()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _reply_of(version: int, value_bytes: int, moved_bytes: int, path: int, durability: int) -> Reply:
    word = next((name for name, number in DURABILITIES.items() if number == durability), None)
    return Reply(version, value_bytes, moved_bytes, _PATHS.get(path, ""), word)


async def _reply(operation: Operation) -> Reply:
    try:
        await operation
    finally:
        info = operation.info()
    assert info is not None
    return _reply_of(info["version"], info["size_bytes"], info["moved_bytes"], info["path"], info["durability"])


def _key(key: str | bytes, role: str = "key") -> bytes:
    if not isinstance(key, (str, bytes, bytearray, memoryview)):  # bytes(5) would be five zeros
        raise TypeError(f"{role}: expected str or bytes, got {type(key).__name__}")
    return key.encode() if isinstance(key, str) else bytes(key)


def _milliseconds(role: str, given: float) -> int:
    return int(seconds(role, given) * 1e3)


def _ttl(given: float) -> int:
    """Returns milliseconds, rounded up so that a short limit does not become 0, which means no limit."""
    if seconds("ttl", given) < 0:
        raise ValueError(f"ttl: {given} s is negative; pass a number of seconds, or 0 for no limit")
    return math.ceil(given * 1e3)


def _number_of(word: str | None, words: dict[str | None, int], role: str) -> int:
    try:
        return words[word]
    except (KeyError, TypeError):
        raise ValueError(f"{role}: {word!r} is not one of {', '.join(repr(each) for each in words)}") from None


def _condition(condition: Condition | None, version: int | None) -> tuple[int, int]:
    if version is None:
        return _number_of(condition, CONDITIONS, "condition"), 0
    if condition is not None:
        raise ValueError("condition and version: pass only one of them, because a version already requires that the value exists")
    return _IF_VERSION, number("version", version, 0, (1 << 64) - 1)


def _failed(code: int, key: bytes) -> Error:
    kind = Timeout if code == errno.ETIMEDOUT else Error
    return kind(code, f"key {key!r}: {_WHY.get(code) or os.strerror(code)}")


def _pairs(given: ByKey[_T]) -> list[tuple[bytes, _T]]:
    pairs = list(given.items() if isinstance(given, Mapping) else given)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"keys and values: expected a dictionary or pairs (key, value), got {type(pair).__name__}")
    return [(_key(key), value) for key, value in pairs]


def _keys(given: Iterable[str | bytes]) -> list[bytes]:
    if isinstance(given, (str, bytes, bytearray, memoryview)):  # its elements would count as keys
        raise TypeError(f"keys: expected several keys, got one {type(given).__name__}; put it into a list")
    return [_key(key) for key in given]


async def _on_a_thread(call: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


class Pool(_Connected):
    """Values of one pool, by key (str or bytes); from Store.create_pool() or open_pool()."""

    def __init__(self, store: "Store", pool_number: int):
        self._store, self._number = store, pool_number

    def __repr__(self) -> str:
        return f"<peerlane.store.Pool {self._number}>"

    def put(self, key: str | bytes, x: AnyArray, *, durability: Durability | None = None, condition: Condition | None = None,
            version: int | None = None, after: After = "auto", ttl: float = 0) -> Reply:
        """Stores the bytes of `x`: a contiguous tensor, array or bytes. `durability`: "volatile", "logged", "durable"; None: the
        pool's setting. `condition`: "absent" or "present", otherwise Error with EEXIST or ENOENT. `version`: put only if the value
        still has this version, otherwise Error with ESTALE. `after`: as for peerlane.copy(). `ttl`: in a cache, seconds after which
        the value expires; 0: the pool's setting."""
        options = (_number_of(durability, DURABILITIES, "durability"), *_condition(condition, version), _ttl(ttl))
        name = _key(key)
        return _reply_of(*self._store._connection.put(self._number, name, _core.one_run(x, False, after), *options))

    def begin_put(self, key: str | bytes, x: AnyArray, *, durability: Durability | None = None, condition: Condition | None = None,
                  version: int | None = None, after: After = "auto", ttl: float = 0) -> Operation:
        """Begins a put(), for peerlane.wait_all() and wait_any(). Operation.info() has the fields of a Reply."""
        options = (_number_of(durability, DURABILITIES, "durability"), *_condition(condition, version), _ttl(ttl))
        name = _key(key)
        return self._store._connection.begin_put(self._number, name, _core.one_run(x, False, after), *options)

    def put_async(self, key: str | bytes, x: AnyArray, *, durability: Durability | None = None, condition: Condition | None = None,
                  version: int | None = None, after: After = "auto", ttl: float = 0) -> Coroutine[Any, Any, Reply]:
        """put() for `await`: it begins before the call returns. You cannot cancel it; if the task is cancelled, the put continues to
        its end."""
        return _reply(self.begin_put(key, x, durability=durability, condition=condition, version=version, after=after, ttl=ttl))

    def get(self, key: str | bytes, x: AnyArray, *, offset: int = 0, verify: bool = False, after: After = "auto") -> Reply:
        """Writes the value, from byte `offset` on, to `x`: as many bytes as exist and fit (moved_bytes)."""
        return _reply_of(*self._store._connection.get(self._number, _key(key), _core.one_run(x, True, after), offset, truth("verify", verify)))

    def begin_get(self, key: str | bytes, x: AnyArray, *, offset: int = 0, verify: bool = False, after: After = "auto") -> Operation:
        """Begins a get(), for peerlane.wait_all() and wait_any(). Operation.info() has the fields of a Reply."""
        return self._store._connection.begin_get(self._number, _key(key), _core.one_run(x, True, after), offset, truth("verify", verify))

    def get_async(self, key: str | bytes, x: AnyArray, *, offset: int = 0, verify: bool = False,
                  after: After = "auto") -> Coroutine[Any, Any, Reply]:
        """get() for `await`: it begins before the call returns. You cannot cancel it; if the task is cancelled, the get continues to
        its end."""
        return _reply(self.begin_get(key, x, offset=offset, verify=verify, after=after))

    def read(self, key: str | bytes, *, verify: bool = False) -> memoryview:
        """Returns the whole value in new host memory. It asks for the length first, and again if another put intervenes."""
        size = self.stat(key).value_bytes
        for _ in range(_READS):
            out = bytearray(size)
            reply = self.get(key, out, verify=verify, after=None) if size else self.stat(key)
            if reply.value_bytes == size:
                return memoryview(out)
            size = reply.value_bytes
        raise Error(errno.EAGAIN, f"read: others changed the length of {key!r} {_READS} times meanwhile: call again")

    def erase(self, key: str | bytes, *, version: int | None = None) -> None:
        """Erases a key. Error with ENOENT: no such key; ESTALE: the value does not have this `version`."""
        self._store._connection.erase(self._number, _key(key), *_condition(None, version))

    def stat(self, key: str | bytes) -> Reply:
        """Returns version and length of a value, without the value."""
        return _reply_of(*self._store._connection.stat(self._number, _key(key)))

    def exists(self, key: str | bytes) -> bool:
        """Whether there is a value."""
        return self.multi_exists([key])[0]

    def keys(self, prefix: str | bytes | None = None, *, regex: str | None = None) -> list[bytes]:
        """Returns the keys in order. Keys that exist during the whole call appear exactly once. `regex`: POSIX extended. scan()
        fetches one page at a time."""
        return [found.key for found in self._page(prefix, regex, b"", 0)]

    def scan(self, prefix: str | bytes | None = None, *, regex: str | None = None, after: str | bytes | None = None,
             limit: int = 0) -> Iterator[FoundKey]:
        """Iterates over keys in order, one page at a time, with the lengths and versions of their values: keys with this `prefix`, in
        which `regex` (POSIX extended) matches, after the key `after`, at most `limit` (0: all). Keys that exist during the whole
        scan appear exactly once."""
        page = self._pages(prefix, regex, after, limit)
        while found := page():
            yield from found

    async def scan_async(self, prefix: str | bytes | None = None, *, regex: str | None = None, after: str | bytes | None = None,
                         limit: int = 0) -> AsyncIterator[FoundKey]:
        """scan() for `async for`: a thread of the event loop's executor fetches the pages."""
        page = self._pages(prefix, regex, after, limit)
        while found := await _on_a_thread(page):
            for one in found:
                yield one

    def erase_prefix(self, prefix: str | bytes) -> int:
        """Erases the keys with this `prefix` (at least one byte), and returns their number. Keys that are put in the meantime may
        remain."""
        return self._store._connection.erase_prefix(self._number, _key(prefix, "prefix"))

    async def erase_prefix_async(self, prefix: str | bytes) -> int:
        """erase_prefix() on a thread of the event loop's executor."""
        return await _on_a_thread(lambda: self.erase_prefix(prefix))

    def multi_put(self, values: ByKey[AnyArray], *,
                  durability: Durability | None = None, condition: Condition | None = None,
                  versions: Versions | None = None, atomic: bool = False, after: After = "auto",
                  ttl: float = 0) -> list[Reply | Error]:
        """Puts many values in one call; short values in host memory share frames. Returns a list in the order of the values: a Reply,
        or the Error of that value. `versions`: keys that are put only if the value still has this version (ESTALE); `condition`
        applies to the others. `atomic`: all values or none, as one record of the log: at most 4096 values and 4 MiB, in host
        memory, not volatile, not in a cluster. If one fails, its Error is raised and nothing has changed. The other arguments are
        those of put()."""
        return self._puts(values, durability, condition, versions, atomic, after, ttl)()

    def multi_get(self, arrays: ByKey[AnyArray], *,
                  after: After = "auto") -> list[Reply | Error]:
        """Writes many values to arrays in one call, each like get(). Returns a list in the order of the arrays: a Reply, or the Error
        of that value (ENOENT: no such key)."""
        return self._gets(arrays, after)()

    def multi_read(self, keys: Iterable[str | bytes]) -> list[memoryview | Error]:
        """Returns the whole values as views of one new buffer in host memory, in the order of the keys, or the Error of a key."""
        names = _keys(keys)
        replies = self.multi_stat(names)
        out: list[memoryview | Error] = [each if isinstance(each, Error) else memoryview(b"") for each in replies]
        # If another client changed the length of a value after multi_stat(), it is read again.
        wanted = {i: each.value_bytes for i, each in enumerate(replies) if isinstance(each, Reply)}
        for _ in range(_READS):
            if not wanted:
                return out
            room, begin, views = memoryview(bytearray(sum(wanted.values()))), 0, {}
            for i, size in wanted.items():
                views[i], begin = room[begin:begin + size], begin + size
            # An empty view has no address, so empty values get a byte of their own.
            got = self.multi_get([(names[i], view or bytearray(1)) for i, view in views.items()], after=None)
            longer = {}
            for (i, view), reply in zip(views.items(), got):
                if isinstance(reply, Error):
                    out[i] = reply
                elif reply.value_bytes == len(view):
                    out[i] = view
                else:
                    longer[i] = reply.value_bytes
            wanted = longer
        for i in wanted:
            out[i] = Error(errno.EAGAIN, f"multi_read: others changed the length of {names[i]!r} {_READS} times meanwhile: call again")
        return out

    def multi_stat(self, keys: Iterable[str | bytes]) -> list[Reply | Error]:
        """Returns version and length of many values, or the Error of a key (ENOENT: no such key)."""
        return self._batch(_EXISTS, _keys(keys))()

    def multi_exists(self, keys: Iterable[str | bytes]) -> list[bool]:
        """Returns which keys have values. It raises other errors (EACCES, ETIMEDOUT)."""
        replies = self.multi_stat(keys)
        for reply in replies:
            if isinstance(reply, Error) and reply.errno != errno.ENOENT:
                raise reply
        return [isinstance(reply, Reply) for reply in replies]

    def multi_erase(self, keys: Iterable[str | bytes], *, versions: Versions | None = None,
                    atomic: bool = False) -> list[Reply | Error]:
        """Erases many keys in one call. Returns a list in the order of the keys: a Reply, or the Error of that key (ENOENT: no such
        key). `versions`, `atomic`: as for multi_put()."""
        return self._batch(_ERASE, _keys(keys), versions=versions, is_atomic=atomic)()

    async def multi_put_async(self, values: ByKey[AnyArray], *,
                              durability: Durability | None = None, condition: Condition | None = None,
                              versions: Versions | None = None, atomic: bool = False, after: After = "auto",
                              ttl: float = 0) -> list[Reply | Error]:
        """multi_put() on a thread of the event loop's executor. If the task is cancelled, the call continues to its end."""
        return await _on_a_thread(self._puts(values, durability, condition, versions, atomic, after, ttl))

    async def multi_get_async(self, arrays: ByKey[AnyArray], *,
                              after: After = "auto") -> list[Reply | Error]:
        """multi_get() on a thread of the event loop's executor. If the task is cancelled, the call continues to its end."""
        return await _on_a_thread(self._gets(arrays, after))

    async def multi_read_async(self, keys: Iterable[str | bytes]) -> list[memoryview | Error]:
        """multi_read() on a thread of the event loop's executor."""
        names = _keys(keys)
        return await _on_a_thread(lambda: self.multi_read(names))

    async def multi_exists_async(self, keys: Iterable[str | bytes]) -> list[bool]:
        """multi_exists() on a thread of the event loop's executor."""
        names = _keys(keys)
        return await _on_a_thread(lambda: self.multi_exists(names))

    async def multi_erase_async(self, keys: Iterable[str | bytes], *, versions: Versions | None = None,
                                atomic: bool = False) -> list[Reply | Error]:
        """multi_erase() on a thread of the event loop's executor. If the task is cancelled, the call continues to its end."""
        return await _on_a_thread(self._batch(_ERASE, _keys(keys), versions=versions, is_atomic=atomic))

    # These check the arguments on the calling thread, whose current streams may matter. The returned function does the work on any thread.
    def _puts(self, values: ByKey[AnyArray], durability: Durability | None, condition: Condition | None, versions: Versions | None,
              atomic: bool, after: After, ttl: float) -> Callable[[], list[Reply | Error]]:
        pairs = _pairs(values)
        level = _number_of(durability, DURABILITIES, "durability")
        runs = [_core.one_run(x, False, after) for _, x in pairs]
        return self._batch(_PUT, [key for key, _ in pairs], runs, level, condition, versions, _ttl(ttl), atomic)

    def _gets(self, arrays: ByKey[AnyArray], after: After) -> Callable[[], list[Reply | Error]]:
        pairs = _pairs(arrays)
        return self._batch(_GET, [key for key, _ in pairs], [_core.one_run(x, True, after) for _, x in pairs])

    def _batch(self, request: int, keys: list[bytes], runs: list[tuple[int, int, object]] | None = None, level: int = 0,
               condition: Condition | None = None, versions: Versions | None = None, ttl_ms: int = 0,
               is_atomic: bool = False) -> Callable[[], list[Reply | Error]]:
        terms = {_key(key): _condition(None, version) for key, version in (versions or {}).items()}
        if unknown := terms.keys() - set(keys):
            raise ValueError(f"versions: {sorted(unknown)[0]!r} is not one of the keys of this call")
        others = _condition(condition, None)
        items = [(key, run, *terms.get(key, others)) for key, run in zip(keys, runs or [_NOTHING] * len(keys))]
        is_whole = truth("atomic", is_atomic)

        def run_all() -> list[Reply | Error]:
            answers = self._store._connection.batch(request, self._number, items, level, ttl_ms, is_whole)
            out: list[Reply | Error] = [_failed(code, key) if code else _reply_of(*reply) for key, (code, reply) in zip(keys, answers)]
            failures = [each for each in out if isinstance(each, Error)]
            if is_whole and failures:  # the other items report ECANCELED
                raise next((each for each in failures if each.errno != errno.ECANCELED), failures[0])
            return out

        return run_all

    def _page(self, prefix: str | bytes | None, regex: str | None, after: bytes, limit: int) -> list[FoundKey]:
        pattern = None if regex is None else text("regex", regex)
        begin = _key(prefix, "prefix") if prefix else b""
        return [FoundKey(*found) for found in self._store._connection.scan(self._number, begin, pattern, after, limit)]

    def _pages(self, prefix: str | bytes | None, regex: str | None, after: str | bytes | None,
               limit: int) -> Callable[[], list[FoundKey]]:
        """Returns a function that fetches the next page of keys at each call. An empty page is the last one."""
        last, left = _key(after, "after") if after else b"", number("limit", limit)
        has_ended = False

        def page() -> list[FoundKey]:
            nonlocal last, left, has_ended
            if has_ended:
                return []
            wanted = min(left, _PAGE) if limit else _PAGE
            found = self._page(prefix, regex, last, wanted)
            left -= len(found)
            has_ended = len(found) < wanted or (limit != 0 and left == 0)
            last = found[-1].key if found else last
            return found

        return page

    def watch(self, prefix: str | bytes | None = None, *, key: str | bytes | None = None) -> Watch:
        """Watches the changes, from now on, of the keys with this `prefix` (None: all keys), or of one `key`. Earlier changes are not
        reported: call scan() after watch() to get the current keys. Error with EMFILE: the server's limit of watches is reached;
        ENOTSUP: a cluster."""
        if prefix is not None and key is not None:
            raise ValueError("prefix and key: a watch covers either one key or all keys with a prefix; pass only one of them")
        begin = b"" if prefix is None else _key(prefix, "prefix")
        made = Watch(self._store._connection.watch(self._number, begin if key is None else _key(key), key is not None))
        self._store._keep(made)
        return made

    def sync(self) -> None:
        """Returns when all acknowledged values of the pool are durable."""
        self._store._connection.sync(self._number)


class Store(_Connected):
    """A connection; from open(). Usable as a context manager."""

    def __init__(self, connection: _store.Connection):
        self._connection = connection
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._lock = threading.Lock()  # of the watches: a thread may open one while another one closes the store

    def __repr__(self) -> str:
        return f"<peerlane.store.Store {'connected' if self._connection.is_open else 'closed'}>"

    def create_pool(self, name: str, *, durability: Durability | None = None, quota_bytes: int = 0, copies: int = 1, cache: bool = False,
                    cache_memory_bytes: int = 0, cache_disk_bytes: int = 0, ttl: float = 0, eviction: Eviction = "s3-fifo") -> Pool:
        """Creates a pool. `durability`: for puts that give none; None: durable. `copies`: number of servers of a cluster that store
        each value, 1 to 3. `cache`: values are volatile, and are evicted when the pool's share is full or other pools need the
        memory. For caches: shares of memory (`cache_memory_bytes`; 0: three quarters) and of the disk (`cache_disk_bytes`; 0: none),
        seconds after which a value expires (`ttl`; 0: never), and the policy of `eviction`."""
        cached = (truth("cache", cache), cache_memory_bytes, cache_disk_bytes, _ttl(ttl),
                  _number_of(eviction, EVICTIONS, "eviction"))
        level = _number_of(durability, DURABILITIES, "durability")
        return Pool(self, self._connection.create_pool(text("name", name), level, quota_bytes, copies, *cached))

    def open_pool(self, name: str) -> Pool:
        """Opens a pool. Error with ENXIO: no pool has this name."""
        return Pool(self, self._connection.open_pool(text("name", name)))

    def delete_pool(self, name: str) -> None:
        """Deletes a pool with all its values."""
        self._connection.delete_pool(text("name", name))

    def close(self) -> None:
        """Closes the connection. Operations in progress end with ECANCELED, and watches end. You may call it repeatedly."""
        for tries in range(_CLOSINGS):
            with self._lock:
                watches = list(self._watches)
            for watch in watches:
                watch.close()
            try:
                return self._connection.close()
            except Error as error:  # another thread has just opened a watch, and will give it to us
                if error.errno != errno.EBUSY or tries == _CLOSINGS - 1:
                    raise
                time.sleep(0.01)

    def _keep(self, watch: Watch) -> None:
        with self._lock:
            self._watches.add(watch)
        if not self._connection.is_open:  # it was closed meanwhile
            watch.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(
    where: str | os.PathLike[str] | None = None,  # lint:allow(names): public since 0.2
    *, timeout: float = 30, tls: tuple[str, str, str] | None = None) -> Store:
    """Connects to a unix socket (a path) or "host:port"; None: the address in PEERLANE_STORE. `timeout`: seconds for one operation.
    `tls`: files of the certificate, its key and the CA."""
    place = None if where is None else text("where", os.fspath(where))
    is_path = place is not None and ("/" in place or not isinstance(where, str))
    if tls is not None and not (isinstance(tls, tuple) and len(tls) == 3):
        raise TypeError("tls: expected three file names: certificate, private key and certificate authority")
    files = None if tls is None else (text("tls", tls[0]), text("tls", tls[1]), text("tls", tls[2]))
    return Store(_store.Connection(place if is_path else None, None if is_path else place, files, _milliseconds("timeout", timeout)))
