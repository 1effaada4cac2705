# SPDX-License-Identifier: Apache-2.0
"""Peerlane: GPU memory in the CPU's address space.

    import peerlane, torch
    x = torch.zeros(4, 8, device="cuda")
    with peerlane.map(x) as m:
        m[3, 5] = 7.0              # a store of the CPU into GPU memory, fenced
        view = m.array             # a NumPy array in GPU memory
    peerlane.copy(host_array, x)   # the fastest method for its size

Names are loaded on first use, so that `peerlane report` needs neither NumPy nor a GPU.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # "x as x": a type checker's word for what is exported
    from . import communicator as communicator, store as store, testing as testing, triggered as triggered
    from ._blocks import (copy_block_list as copy_block_list, copy_block_list_async as copy_block_list_async, copy_blocks as copy_blocks,
                          copy_blocks_async as copy_blocks_async)
    from ._copy import copy as copy, copy_async as copy_async, explain as explain, fill as fill
    from ._errors import Error as Error, StaleMapping as StaleMapping, Timeout as Timeout
    from ._host_pool import HostPool as HostPool
    from ._machine import doctor as doctor, info as info
    from ._mapping import MappedArray as MappedArray, Mapping as Mapping, SlowReadWarning as SlowReadWarning, map as map
    from ._operation import Operation as Operation, wait_all as wait_all, wait_any as wait_any
    from ._types import After as After, AnyArray as AnyArray, DeviceArray as DeviceArray, Direction as Direction, Stream as Stream
    from ._version import __version__ as __version__

_HOMES = {
    "_blocks": ("copy_block_list", "copy_block_list_async", "copy_blocks", "copy_blocks_async"),
    "_copy": ("copy", "copy_async", "explain", "fill"),
    "_errors": ("Error", "StaleMapping", "Timeout"),
    "_host_pool": ("HostPool",),
    "_machine": ("doctor", "info"),
    "_mapping": ("MappedArray", "Mapping", "SlowReadWarning", "map"),
    "_operation": ("Operation", "wait_all", "wait_any"),
    "_types": ("After", "AnyArray", "DeviceArray", "Direction", "Stream"),
    "_version": ("__version__",),
}
_MODULES = ("communicator", "store", "testing", "triggered")
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_HIDING = ("map",)  # `from peerlane import *` must not take Python's own away
__all__ = sorted([*(name for name in _HOME_OF if not name.startswith("_") and name not in _HIDING), *_MODULES])


if not TYPE_CHECKING:  # a type checker that sees it takes every misspelt name for an object

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            value = getattr(importlib.import_module("." + _HOME_OF[name], __name__), name)
            globals()[name] = value
            return value
        if name in _MODULES:
            return importlib.import_module("." + name, __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF, *_MODULES})
