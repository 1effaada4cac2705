# SPDX-License-Identifier: Apache-2.0
"""What calls of the package raise. Wrong types and shapes are TypeError, ValueError and IndexError as everywhere."""


__all__ = ["Error", "StaleMapping", "Timeout"]


class Error(OSError):
    """A call failed: `errno` is the number, `strerror` says which object, why, and what to do next."""


class Timeout(Error, TimeoutError):
    """The time that a call was given is over; what it waited for goes on."""


class StaleMapping(Error):
    """The memory of a mapping was freed, or other memory was mapped at its address: `errno` is ESTALE. Map what is there now."""
