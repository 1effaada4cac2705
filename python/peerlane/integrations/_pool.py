# SPDX-License-Identifier: Apache-2.0
"""Shared by the plugins that use the store: opening a pool from settings, and rate-limited warnings."""

import contextlib
import difflib
import errno
import logging
import time
from collections.abc import Mapping
from typing import Any

from .. import store
from .._errors import Error

_PERIOD = 30.0  # seconds between two warnings
# Names of settings and their defaults. The shares of memory and disk, and `ttl`, apply only to a pool that is created here.
SETTINGS = {"store": None, "pool": None, "memory_bytes": 0, "disk_bytes": 0, "ttl": 0.0, "timeout": 5.0}


def settings_of(given: Mapping[str, Any], prefix: str, pool: str) -> dict[str, Any]:
    """Returns SETTINGS with the values that a framework's configuration gives under `prefix` + name.

    `given`: the framework's configuration; keys without the prefix belong to others and are ignored. `pool`: default name of the
    pool. ValueError for a name with the prefix that is no setting, because a misspelt setting would otherwise have no effect.
    """
    settings = {**SETTINGS, "pool": pool}
    for name, value in given.items():
        if not name.startswith(prefix):
            continue
        short = name[len(prefix):]
        if short in ("module_path", "class_name"):  # the framework reads these
            continue
        if short not in settings:
            near = difflib.get_close_matches(short, settings, 1)
            raise ValueError(f"{name}: no such setting" + (f"; {prefix}{near[0]}?" if near else "") +
                             f" There are {', '.join(prefix + each for each in settings)}")
        settings[short] = value
    return settings


def open_pool(settings: Mapping[str, Any]) -> tuple[store.Store, store.Pool]:
    """Connects to the store and opens the pool. If there is no such pool, creates it as a cache.

    `settings`: from settings_of(). The caller closes the store. Blocks for at most `timeout` seconds for each request. Error: the
    store cannot be reached or refuses the pool.
    """
    opened = store.open(settings["store"], timeout=float(settings["timeout"]))
    try:
        return opened, opened.open_pool(settings["pool"])
    except Error as error:
        if error.errno != errno.ENXIO:
            raise
    with contextlib.suppress(FileExistsError):  # another rank has just created it
        return opened, opened.create_pool(settings["pool"], cache=True, cache_memory_bytes=int(settings["memory_bytes"]),
                                          cache_disk_bytes=int(settings["disk_bytes"]), ttl=float(settings["ttl"]))
    return opened, opened.open_pool(settings["pool"])


class Failures:
    """Logs failures of the store, at most one every 30 s, with the number of those that were not logged.

    The plugins treat a store that does not answer as an empty cache, so every request could fail. Any thread may use it; two threads
    may then both log, which is harmless.
    """

    def __init__(self, logger: logging.Logger):
        self._logger, self._next, self._hidden = logger, 0.0, 0

    def tell(self, action: str, error: BaseException) -> None:
        """Logs that `action` failed, if no warning was logged in the last 30 s."""
        now = time.monotonic()
        if now < self._next:
            self._hidden += 1
            return
        more = f" (and {self._hidden} more)" if self._hidden else ""
        self._next, self._hidden = now + _PERIOD, 0
        self._logger.warning("%s: %s%s; the cache goes on without", action, error, more)
