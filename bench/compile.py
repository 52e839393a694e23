"""Compile time and program size against the length of the sequence, for every solver.

The program is value_and_grad of an Elman cell's loss. Nothing runs, so no memory is needed for
the numbers themselves. A uniform system should compile in a time that does not grow with T;
trees unroll their levels and grow with log T.
"""

import argparse
import collections
import dataclasses
import re
import statistics
from collections.abc import Sequence
from typing import Any

import jax
from tqdm import tqdm

from bench import candidates, programs, record, tables, timing, workloads

Result = dict[str, Any]

LAX = "lax.scan"
SUBJECTS = (LAX, *candidates.SOLVERS)
# `%name = f32[4,4]{1,0} dot(...)`, `%name = (s32[], f32[4]) while(...)`: the operation is the
# word in front of the first parenthesis that follows the type.
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([\w\-]+)\(", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Compilation:
    """What compiling one program gave; seconds are medians over the repeats."""

    lower_seconds: float
    compile_seconds: float
    temp_bytes: int
    stablehlo_lines: int
    hlo_instructions: int
    while_loops: int
    dots: int


def main(argv: Sequence[str]) -> None:
    """Compiles every solver at every length, prints the table, writes JSON."""
    options = _parser().parse_args(argv)
    run = record.environment(argv)
    sizes = [workloads.Size("elman", options.H, options.B, length) for length in options.T]
    tasks = [(size, subject) for size in sizes for subject in options.solvers]
    rows = []
    for size, subject in tqdm(tasks, desc="programs"):
        made = _compile_or_reason(size, subject, options.repeats, int(options.memory_limit))
        rows.append({"length": size.length, "subject": subject, **made})
    result = {
        "runs": [{**run, "load_end": record.load_average()}],
        "settings": {"H": options.H, "B": options.B, "repeats": options.repeats},
        "programs": rows,
    }
    record.write(record.result_path(options), result)
    print(_table(rows))


def count_operations(hlo: str) -> collections.Counter[str]:
    """How often each operation occurs in the text of a compiled program, fusions included."""
    return collections.Counter(_INSTRUCTION.findall(hlo))


def _parser() -> argparse.ArgumentParser:
    shared = record.output_options("compile")
    parser = argparse.ArgumentParser("python -m bench compile", parents=[shared])
    parser.add_argument("--T", nargs="+", type=int, default=[2**10, 2**14, 2**18])
    parser.add_argument("--H", type=int, default=20)
    parser.add_argument("--B", type=int, default=1)
    parser.add_argument("--solvers", nargs="+", choices=SUBJECTS, default=SUBJECTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--memory-limit", type=float, default=2e9, help="bytes of Jacobians a tree may ask for"
    )
    return parser


def _compile_or_reason(
    size: workloads.Size, subject: str, repeats: int, limit: int
) -> dict[str, Any]:
    needed = candidates.jacobian_bytes(subject, size.length, size.batch, size.hidden)
    if needed > limit:
        return {"skipped": f"Jacobians of about {tables.size(needed)} exceed {tables.size(limit)}"}
    try:
        return dataclasses.asdict(_compile(size, subject, repeats))
    except candidates.REFUSALS as refusal:
        if subject in (LAX, candidates.AUTO):
            raise
        return {"skipped": f"{type(refusal).__name__}: {refusal}"}


def _compile(size: workloads.Size, subject: str, repeats: int) -> Compilation:
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
    return Compilation(
        lower_seconds=statistics.median(lowerings),
        compile_seconds=statistics.median(compilations),
        temp_bytes=compiled.memory_analysis().temp_size_in_bytes,
        stablehlo_lines=lowered.as_text().count("\n"),
        hlo_instructions=operations.total(),
        while_loops=operations["while"],
        dots=operations["dot"],
    )


def _arguments(size: workloads.Size) -> tuple[Any, Any, Any]:
    work = workloads.make(size, seed=0)
    return work.point, work.point, work.data


def _table(rows: Sequence[Result]) -> str:
    header = ["program", "T", "lower", "compile", "temp", "StableHLO", "HLO", "while", "dot"]
    lines = []
    for row in rows:
        if "skipped" in row:
            name = f"{row['subject']}: {row['skipped']}"
            lines.append([name, str(row["length"]), *[""] * (len(header) - 2)])
            continue
        seconds = (tables.seconds(row[name]) for name in ("lower_seconds", "compile_seconds"))
        counts = ("stablehlo_lines", "hlo_instructions", "while_loops", "dots")
        lines.append(
            [
                row["subject"],
                str(row["length"]),
                *seconds,
                tables.size(row["temp_bytes"]),
                *(str(row[name]) for name in counts),
            ]
        )
    return tables.table(header, lines)
