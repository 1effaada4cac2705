# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the package. Wrong types and shapes raise TypeError, ValueError and IndexError as usual."""


__all__ = ["Error", "StaleMapping", "Timeout"]


class Error(OSError):
    """A call failed: `errno` is the number; `strerror` names the object, the cause and the next step."""


class Timeout(Error, TimeoutError):
    """The time limit of a call has passed. The operation that it waited for continues."""


class StaleMapping(Error):
    """The memory of a mapping was freed, or other memory was mapped at its address: `errno` is ESTALE. Map the memory again."""
