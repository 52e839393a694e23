"""Native functions by LLVM; what makes them is loaded when the first one is wanted."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parscan_bp.native.llvm.compiled import target_of as target_of
    from parscan_bp.native.llvm.compiled import text_of as text_of

__all__ = ["target_of", "text_of"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.compiled"), name)
