"""Runs other people's programs against `lax.scan` in double precision, and prints what differs.

    JAX_ENABLE_X64=1 python -m tests.conformance [--patched] [--only NAME]

With ``--patched``, `jax.lax.scan` itself is replaced, as by a user who cannot change a program.
"""

import argparse
import functools
import sys

import jax

import parscan_bp as pb
from parscan_bp.conformance import python_loop
from tests.conformance.other_peoples import PROGRAMS
from tests.conformance.trials import SOLVERS, differences, results

ORIGINAL = jax.lax.scan
WRONG_BY_SCAN = ("spiking_neurons",)
"""Programs whose second derivatives are wrong by `lax.scan`, see `python_loop`."""


def _patched(*args, **kwargs):
    """Looked up when it is called, as by a program that says ``lax.scan``."""
    return jax.lax.scan(*args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--patched", action="store_true")
    parser.add_argument("--only", choices=PROGRAMS)
    args = parser.parse_args()
    failures = count = 0
    for name in [args.only] if args.only else PROGRAMS:
        by_scan = results(PROGRAMS[name](ORIGINAL))
        by_loop = results(PROGRAMS[name](python_loop)) if name in WRONG_BY_SCAN else by_scan
        for label, solver in SOLVERS.items():
            want = by_scan if solver is None else by_loop  # so small ones are left to it
            scan = functools.partial(pb.scan, solver=solver)
            if args.patched:
                jax.lax.scan, scan = scan, _patched
            try:
                found = differences(lambda: results(PROGRAMS[name](scan)), want)
            finally:
                jax.lax.scan = ORIGINAL
            count, failures = count + 1, failures + bool(found)
            print(f"{name} by {label}: {found or 'alike'}", flush=True)
    print(f"{count} trials, {failures} failures")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
