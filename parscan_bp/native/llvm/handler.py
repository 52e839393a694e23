"""The frame in which XLA calls a native function (its FFI, version as the caller says).

Source: `xla/ffi/api/c_api.h`: the offsets below are those of `XLA_FFI_CallFrame` on machines with
pointers of eight bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir

from parscan_bp.native.llvm.vectors import I32, I64, POINTER

_EXTENSION, _API, _ARGS, _RESULTS = 8, 16, 72, 112
_METADATA, _VERSION_OF_API, _VERSION = 24, (32, 36), (24, 28)
_DATA = 24


def handler(module: ir.Module, name: str) -> tuple[ir.IRBuilder, Any]:
    """A function that XLA may call.

    It answers at once where XLA asks for the version that it is written for.

    Returns:
      The builder of what it does, and its frame.
    """
    function = ir.Function(module, ir.FunctionType(POINTER, [POINTER]), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    frame = function.args[0]
    asked, run = (function.append_basic_block(name) for name in ("asked", "run"))
    extension = _field(builder, frame, _EXTENSION)
    none = ir.Constant(POINTER, None)
    builder.cbranch(builder.icmp_unsigned("==", extension, none), run, asked)
    builder.position_at_end(asked)
    metadata, api = _field(builder, extension, _METADATA), _field(builder, frame, _API)
    for to, at in zip(_VERSION, _VERSION_OF_API, strict=True):
        version = _field(builder, api, at, I32)
        builder.store(version, _pointer(builder, metadata, to, I32))
    builder.ret(none)
    builder.position_at_end(run)
    return builder, frame


def buffers(builder: ir.IRBuilder, frame: Any, of: Sequence[Any], *, results: bool) -> list[Any]:
    """Pointers to the numbers of all arguments, or of all results.

    Args:
      builder: of the function.
      frame: what it was called with.
      of: LLVM's type of the numbers of each.
      results: which.
    """
    table = _field(builder, frame, _RESULTS if results else _ARGS)
    found = []
    for k, number in enumerate(of):
        data = _field(builder, _field(builder, table, 8 * k), _DATA)
        found.append(builder.bitcast(data, number.as_pointer()))
    return found


def succeed(builder: ir.IRBuilder) -> None:
    builder.ret(ir.Constant(POINTER, None))


def _pointer(builder: ir.IRBuilder, base: Any, offset: int, of: Any) -> Any:
    return builder.bitcast(builder.gep(base, [I64(offset)]), of.as_pointer())


def _field(builder: ir.IRBuilder, base: Any, offset: int, of: Any = POINTER) -> Any:
    return builder.load(_pointer(builder, base, offset, of))
