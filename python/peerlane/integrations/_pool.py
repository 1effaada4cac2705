# SPDX-License-Identifier: Apache-2.0
"""What the store's integrations share: a pool by settings, and a log that does not flood where the store is away."""

import contextlib
import difflib
import errno
import logging
import time
from collections.abc import Mapping
from typing import Any

from .. import store
from .._errors import Error

_PERIOD = 30.0  # seconds between two warnings of one kind
SETTINGS = {"store": None, "pool": None, "memory_bytes": 0, "disk_bytes": 0, "ttl": 0.0, "timeout": 5.0}


def settings_of(given: Mapping[str, Any], prefix: str, pool: str) -> dict[str, Any]:
    """The values of `prefix` + a name of SETTINGS in a framework's own configuration. ValueError for a
    name that is none of them: a misspelt one would be silent."""
    settings = {**SETTINGS, "pool": pool}
    for name, value in given.items():
        if not name.startswith(prefix):
            continue
        short = name[len(prefix):]
        if short in ("module_path", "class_name"):  # the framework's
            continue
        if short not in settings:
            near = difflib.get_close_matches(short, settings, 1)
            raise ValueError(f"{name}: no such setting" + (f"; {prefix}{near[0]}?" if near else "") +
                             f" There are {', '.join(prefix + each for each in settings)}")
        settings[short] = value
    return settings


def open_pool(settings: Mapping[str, Any]) -> tuple[store.Store, store.Pool]:
    """Connects, and opens the pool; makes it, as a cache, where there is none. Error says what is wrong with the address."""
    opened = store.open(settings["store"], timeout=float(settings["timeout"]))
    try:
        return opened, opened.open_pool(settings["pool"])
    except Error as error:
        if error.errno != errno.ENXIO:
            raise
    with contextlib.suppress(FileExistsError):  # another rank was first
        return opened, opened.create_pool(settings["pool"], cache=True, cache_memory_bytes=int(settings["memory_bytes"]),
                                          cache_disk_bytes=int(settings["disk_bytes"]), ttl=float(settings["ttl"]))
    return opened, opened.open_pool(settings["pool"])


class Failures:
    """Warnings of failures, one in 30 s with the count of those that were left out."""

    def __init__(self, logger: logging.Logger):
        self._logger, self._next, self._hidden = logger, 0.0, 0

    def tell(self, action: str, error: BaseException) -> None:
        now = time.monotonic()
        if now < self._next:
            self._hidden += 1
            return
        more = f" (and {self._hidden} more)" if self._hidden else ""
        self._next, self._hidden = now + _PERIOD, 0
        self._logger.warning("%s: %s%s; the cache goes on without", action, error, more)
