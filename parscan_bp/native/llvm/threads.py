"""Parts of a function in threads of their own.

A batch's rows are recurrences that never meet, so each thread takes all steps of some of them.
"""

from __future__ import annotations

import os
from typing import Any

import llvmlite.ir as ir

from parscan_bp.measured import measured
from parscan_bp.native.llvm.vectors import I32, I64, POINTER
from parscan_bp.native.program import Program


def threads_for(program: Program) -> int:
    """Threads that are worth their start: equal numbers of rows for each, as many as may run."""
    rows, operations = program.batch, program.operations
    if rows is None or os.name != "posix":
        return 1
    most = min(rows, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    least = measured("cpu")["native"]["operations"]
    most = min(most, max(operations // least, 1))
    return max(n for n in range(1, most + 1) if rows % n == 0)


def part(module: ir.Module, name: str) -> tuple[ir.IRBuilder, Any, Any]:
    """The function of one part, as a thread begins it.

    Returns:
      The builder of what it does, the frame of XLA's call, and the number of the part.
    """
    function = ir.Function(module, ir.FunctionType(POINTER, [POINTER]), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    given = builder.bitcast(function.args[0], I64.as_pointer())
    frame, number = (builder.load(builder.gep(given, [I64(k)])) for k in range(2))
    return builder, builder.inttoptr(frame, POINTER), number


def run(builder: ir.IRBuilder, function: ir.Function, frame: Any, count: int) -> None:
    """Runs all parts, the first one here, and waits for the others.

    A thread that cannot be started leaves its part to this one.
    """
    module = builder.module
    entry = function.type.pointee
    create = ir.FunctionType(I32, [I64.as_pointer(), POINTER, entry.as_pointer(), POINTER])
    create = ir.Function(module, create, "pthread_create")
    join = ir.Function(module, ir.FunctionType(I32, [I64, POINTER]), "pthread_join")
    none = ir.Constant(POINTER, None)
    with builder.goto_entry_block():
        given = builder.alloca(I64, 2 * count)
        threads = builder.alloca(I64, count)
        failed = builder.alloca(I32, count)

    def at(array: Any, k: int) -> Any:
        return builder.gep(array, [I64(k)])

    for k in range(count):
        builder.store(builder.ptrtoint(frame, I64), at(given, 2 * k))
        builder.store(I64(k), at(given, 2 * k + 1))
    argument = [builder.bitcast(at(given, 2 * k), POINTER) for k in range(count)]
    for k in range(1, count):
        made = builder.call(create, [at(threads, k), none, function, argument[k]])
        builder.store(made, at(failed, k))
    builder.call(function, [argument[0]])
    for k in range(1, count):
        started = builder.icmp_signed("==", builder.load(at(failed, k)), I32(0))
        with builder.if_else(started) as (yes, no):
            with yes:
                builder.call(join, [builder.load(at(threads, k)), none])
            with no:
                builder.call(function, [argument[k]])
