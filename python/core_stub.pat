# For nanobind.stubgen: types of what it cannot see, plain C functions and the slots of m[i].
_core.MappingBase.__getitem__:
    \from typing import Any
    def __getitem__(self, index: Any, /) -> Any: ...

_core.MappingBase.__setitem__:
    def __setitem__(self, index: Any, value: Any, /) -> None: ...

_core.MappingBase.__delitem__:

_core.copy$:
    def copy(dst: object, src: object, after: object, /) -> bool:
        \doc
