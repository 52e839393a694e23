"""`python -m bench` lists the measurements, `python -m bench NAME [options]` runs one."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from bench import compile, flax_rnn, gpu, gru, rnn, scaled, scan

# A new measurement is one file with `main(argv)` and one row here; its docstring's first
# line is what the list shows.
BENCHES: dict[str, ModuleType] = {
    "rnn": rnn,
    "scan": scan,
    "compile": compile,
    "scaled": scaled,
    "gpu": gpu,
    "flax": flax_rnn,
    "gru": gru,
}


def listing() -> str:
    """One line for each measurement."""
    width = max(map(len, BENCHES))
    lines = [f"  {name:<{width}}  {_summary(module)}" for name, module in BENCHES.items()]
    return "\n".join(["usage: python -m bench NAME [options]", "", *lines])


def main(argv: Sequence[str]) -> None:
    """Runs the measurement that `argv[0]` names with the options that follow it."""
    if not argv:
        print(listing())
        return
    name, *options = argv
    if name not in BENCHES:
        raise SystemExit(f"unknown measurement {name!r}\n\n{listing()}")
    run: Callable[[Sequence[str]], None] = BENCHES[name].main
    run(options)


def _summary(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().splitlines()[0]


if __name__ == "__main__":
    main(sys.argv[1:])
