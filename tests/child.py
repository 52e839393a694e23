"""A process that runs programs, one after the other, each in a namespace of its own.

A line of its input asks, a line of its output answers, both JSON. What programs print comes to
its error stream.
"""

from __future__ import annotations

import contextlib
import gc
import json
import linecache
import os
import sys
import traceback
import warnings

import jax

from tests import compiler_cache, compiling


def _run(program: str) -> str:
    """The traceback of its error, or nothing."""
    linecache.cache["<program>"] = len(program), None, program.splitlines(True), "<program>"
    try:
        with warnings.catch_warnings():
            exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except BaseException:
        return traceback.format_exc()
    return ""


def _restore(settings: dict) -> None:
    """What a program has set of JAX is not the next one's."""
    for name, value in settings.items():
        if jax.config.values[name] != value:
            jax.config.update(name, value)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    compiling.listen()
    settings = dict(jax.config.values)
    for line in sys.stdin:
        asked = json.loads(line)
        compiling.compiled.clear()
        with contextlib.nullcontext() if asked["cached"] else compiler_cache.switched_off():
            failed = _run(asked["program"])
        _restore(settings)
        sys.stdout.flush()
        gc.collect()
        answers.write(json.dumps({"failed": failed, "compiled": dict(compiling.compiled)}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
