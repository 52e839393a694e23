"""Compile time and program size against the length of the sequence, for every solver.

The program is value_and_grad of an Elman cell's loss. Nothing runs, so no memory is needed for
the numbers themselves. A uniform system should compile in a time that does not grow with T;
trees unroll their levels and grow with log T.
"""

import collections
import dataclasses
import re
import statistics
from typing import Any

import jax

from bench.grids import workloads
from bench.shared import candidates, programs, tables, timing
from bench.shared.bench import Bench, Listed, Option, Options, Result

LAX = "lax.scan"
SUBJECTS = (LAX, *candidates.SOLVERS)
# `%name = f32[4,4]{1,0} dot(...)`, `%name = (s32[], f32[4]) while(...)`: the operation is the
# word in front of the first parenthesis that follows the type.
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([\w\-]+)\(", re.MULTILINE)


def count_operations(hlo: str) -> collections.Counter[str]:
    """How often each operation occurs in the text of a compiled program, fusions included."""
    return collections.Counter(_INSTRUCTION.findall(hlo))


def points(options: Options) -> dict[str, tuple[workloads.Size, str]]:
    """Every solver at every length."""
    sizes = [workloads.Size("elman", options.H, options.B, length) for length in options.T]
    return {f"{who}, T={s.length}": (s, who) for s in sizes for who in options.solvers}


def measure(task: tuple[workloads.Size, str], options: Options) -> Result:
    """What compiling took, or why a tree is not compiled."""
    size, subject = task
    entry = {"length": size.length, "subject": subject}
    limit = options.memory_limit
    needed = candidates.jacobian_bytes(subject, size.length, size.batch, size.hidden)
    if needed > limit:
        reason = f"Jacobians of about {tables.size(needed)} exceed {tables.size(limit)}"
        return {**entry, "skipped": reason}
    try:
        return {**entry, **_compile(size, subject, options.repeats)}
    except candidates.REFUSALS as refusal:
        if subject in (LAX, candidates.AUTO):
            raise
        return {**entry, "skipped": f"{type(refusal).__name__}: {refusal}"}


def _compile(size: workloads.Size, subject: str, repeats: int) -> Result:
    """Seconds are medians over the repeats."""
    scan = candidates.baseline() if subject == LAX else candidates.candidate(subject)
    work = jax.eval_shape(lambda: _arguments(size))
    loss = workloads.make(dataclasses.replace(size, length=1), seed=0).loss(scan)
    lowerings, compilations = [], []
    for _ in range(repeats):
        # Traced functions are cached by identity; a user's first call finds an empty cache.
        jax.clear_caches()
        clock = timing.Stopwatch()
        lowered = jax.jit(programs.derivatives(loss)[timing.VALUE_AND_GRAD]).lower(*work)
        lowerings.append(clock.lap())
        compiled = lowered.compile()
        compilations.append(clock.lap())
    operations = count_operations(compiled.as_text())
    return {
        "lower_seconds": statistics.median(lowerings),
        "compile_seconds": statistics.median(compilations),
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "stablehlo_lines": lowered.as_text().count("\n"),
        "hlo_instructions": operations.total(),
        "while_loops": operations["while"],
        "dots": operations["dot"],
    }


def _arguments(size: workloads.Size) -> tuple[Any, Any, Any]:
    work = workloads.make(size, seed=0)
    return work.point, work.point, work.data


def text(result: Result) -> str:
    """A line for each program."""
    header = ["program", "T", "lower", "compile", "temp", "StableHLO", "HLO", "while", "dot"]
    lines = []
    for row in result["programs"]:
        if "skipped" in row:
            name = f"{row['subject']}: {row['skipped']}"
            lines.append([name, str(row["length"]), *[""] * (len(header) - 2)])
            continue
        seconds = (tables.seconds(row[name]) for name in ("lower_seconds", "compile_seconds"))
        counts = ("stablehlo_lines", "hlo_instructions", "while_loops", "dots")
        numbers = [tables.size(row["temp_bytes"]), *(str(row[name]) for name in counts)]
        lines.append([row["subject"], str(row["length"]), *seconds, *numbers])
    return tables.table(header, lines)


BENCH = Bench(
    "compile",
    __doc__,
    baseline="jax.lax.scan, the first row",
    points=points,
    measure=measure,
    rows=Listed("programs", lambda row: f"{row['subject']}, T={row['length']}"),
    text=text,
    options=(
        *(Option("T", [2**10, 2**14, 2**18]), Option("H", 20), Option("B", 1)),
        Option("solvers", list(SUBJECTS), choices=SUBJECTS),
        Option("repeats", 3),
        Option("memory-limit", 2e9, "bytes of Jacobians a tree may ask for"),
    ),
    quick={"T": [8], "H": 2, "repeats": 1},
)
