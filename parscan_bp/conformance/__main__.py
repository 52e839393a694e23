"""Tries a function with the contract of `jax.lax.scan` on generated steps, in every mode.

    python -m parscan_bp.conformance package.module:scan
    python -m parscan_bp.conformance parscan_bp:scan --solver "Chunked(chunks=3)"
    python -m parscan_bp.conformance equinox.internal:scan --with kind=checkpointed
    python -m parscan_bp.conformance package.module:scan --only 12

Prints a table of what differs from `jax.lax.scan` (or, with --against loop, from the same steps in
a Python loop: so is `jax.lax.scan` itself), and then what, one by one. Ends with 1 if anything
differs or raises. JAX_ENABLE_X64=1 makes rounding small.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

import jax
import jax.numpy as jnp

from parscan_bp.conformance.cases import STEPS, step_cases
from parscan_bp.conformance.reference import REFERENCES
from parscan_bp.conformance.table import LEGEND, details, failed, summary, table
from parscan_bp.conformance.target import target_of
from parscan_bp.conformance.trial import MODES, USUAL, try_case


def main(arguments: list[str] | None = None) -> int:
    """The command; 0 if all is alike."""
    args = _parser().parse_args(arguments)
    against = args.against or ("loop" if args.scan == "jax.lax:scan" else "lax")
    modes = args.modes.split(",") if args.modes else tuple(MODES) if args.all_modes else USUAL
    unknown = set(modes) - set(MODES)
    if unknown:
        raise SystemExit(f"--modes: got {sorted(unknown)}; of {', '.join(MODES)} some are wanted")
    try:
        target = target_of(args.scan, args.options, args.solver)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    cases = step_cases(args.count if args.only is None else args.only + 1, args.seed)
    results = []
    for case in cases if args.only is None else cases[args.only :]:
        case = case if target.reverses else dataclasses.replace(case, reverse=False)
        found = try_case(target.scan, REFERENCES[against], case, modes)
        results += found
        print(f"{case.name}: {''.join(r.outcome for r in found)}", file=sys.stderr, flush=True)
    print(f"{target.name} against {against}" + ("" if target.reverses else ", never in reverse"))
    print(f"jax {jax.__version__}, {jnp.result_type(float)}, {jax.default_backend()}\n")
    print(table(results), LEGEND, summary(results), details(results), sep="\n\n")
    return int(failed(results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m parscan_bp.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scan", help="package.module:function")
    parser.add_argument("--solver", help="for scans of parscan_bp: Sweep, Chunked(chunks=3)")
    parser.add_argument(
        *("--with",),
        dest="options",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a keyword of the function; may be given several times",
    )
    parser.add_argument("--count", type=int, default=len(STEPS), help="how many steps")
    parser.add_argument("--seed", type=int, default=0, help="of the steps")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this step of the seed alone")
    parser.add_argument("--modes", help=f"a list with commas; {', '.join(USUAL)} if left out")
    parser.add_argument("--all-modes", action="store_true", help="every way to differentiate")
    parser.add_argument("--against", choices=REFERENCES, help="lax, but for jax.lax:scan loop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
