# For nanobind.stubgen: types of what it cannot see, plain C functions and the slots of m[i].
peerlane._core.MappingBase.__getitem__:
    \from typing import Any
    def __getitem__(self, index: Any, /) -> Any: ...

peerlane._core.MappingBase.__setitem__:
    def __setitem__(self, index: Any, value: Any, /) -> None: ...

peerlane._core.MappingBase.__delitem__:

peerlane._core.copy$:
    \from peerlane._types import AnyArray as AnyArray, After as After
    def copy(dst: AnyArray, src: AnyArray, *, after: After = "auto") -> None:
        \doc

peerlane._core.wait_all$:
    def wait_all(operations: list[Operation], timeout: float | None) -> list[tuple[int, int, int]]: ...

peerlane._core.wait_any$:
    def wait_any(operations: list[Operation], timeout: float | None) -> int: ...
