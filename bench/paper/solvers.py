"""Every solver of the bi-diagonal system over its length, size and batch, beside Naumov's rules.

Section 4.1 of "Parallel complexity of forward and backward propagation" has cyclic reduction pay
where r >= H or n / log2(n) >= H, for n layers of H units and a mini-batch of r; section 4.2 has an
iteration pay where it takes fewer rounds than n. The rules count what unlimited workers wait for.
The paper's (43) makes the products of a level once for the batch. That holds where all samples have
the same maps ("shared"); with a slope of each sample between the weights, as in its (19), every
product is made r times ("own"). Systems are random and contract: row sums of the maps are 0.8 at
most. Solutions are compared with the sweep's before anything is timed.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import parscan_bp as pb
from bench.shared import figures, programs, tables, timing
from bench.shared.bench import Bench, Named, Option, Options, Result, effort, racing
from parscan_bp.operators import Dense
from parscan_bp.solvers import Solver

SWEEP, SOLVE = "Sweep()", "solve"
TOL = 1e-5
SOLVERS: Mapping[str, Solver] = {
    str(solver): solver
    for solver in (
        *(pb.Associative(), pb.Blelloch(), pb.Chunked(8), pb.CyclicReduction()),
        *(pb.Jacobi(tol=TOL), pb.Richardson(0.9, tol=TOL), pb.BiCGStab(tol=TOL)),
    )
}
DIRECT = [name for name, solver in SOLVERS.items() if solver.needs == "operators"]


@dataclasses.dataclass(frozen=True)
class Size:
    """n steps of H units, r right-hand sides, and whether they have the same maps."""

    n: int
    h: int
    r: int
    maps: str

    @property
    def rules(self) -> dict[str, bool]:
        """The paper's rules for direct solvers, and whether one of them holds."""
        batch, length = self.r >= self.h, self.n / max(math.log2(self.n), 1) >= self.h
        return {"r >= H": batch, "n/log n >= H": length, "either": batch or length}

    def work(self, solver: Solver) -> int:
        """Multiplications by all workers, equations (42), (43) and (46)."""
        made = solver.complexity(self.n)
        products = self.h**3 * (1 if self.maps == "shared" else self.r)
        return made.matrix_products * products + made.vector_products * self.h**2 * self.r


def points(options: Options) -> dict[str, Size]:
    """All sizes whose maps fit the limit, by all kinds of maps; of one sample there is one kind."""
    sizes = itertools.product(options.n, options.hidden, options.batch, options.maps)
    found = [Size(*size) for size in sizes]
    if "shared" in options.maps:
        found = [s for s in found if s.maps == "shared" or s.r > 1]
    fit = [s for s in found if 4 * s.n * s.h**2 * (s.r if s.maps == "own" else 1) <= options.limit]
    return {f"n={s.n} H={s.h} r={s.r} {s.maps}": s for s in fit}


def draw_system(size: Size, seed: int) -> tuple[jax.Array, jax.Array]:
    """Maps whose largest row sum is 0.8, and right-hand sides."""
    rng = np.random.default_rng(seed)
    own = (size.r if size.maps == "own" else 1,)
    a = rng.standard_normal((size.n, *own, size.h, size.h), np.float32)
    a *= 0.8 / np.abs(a).sum(-1).max()
    g = rng.standard_normal((size.n + 1, size.r, size.h), np.float32)
    return jnp.asarray(a), jnp.asarray(g)


def measure(size: Size, options: Options) -> Result:
    """Compares all solutions with the sweep's, counts what was done, and races the solvers.

    Raises:
        FloatingPointError: a solution is wrong.
    """
    a, g = draw_system(size, options.seed)
    chosen = {name: SOLVERS[name] for name in options.solvers}
    made = {name: _program(solver, a, g) for name, solver in {SWEEP: pb.Sweep(), **chosen}.items()}
    reference = made[SWEEP].call()
    entry: Result = {"size": dataclasses.asdict(size), "rules": size.rules, "solvers": {}}
    sides = {name: {SOLVE: program.call} for name, program in made.items()}
    for name, solver in chosen.items():
        allowed = 1e-4 if solver.needs == "operators" else 10 * TOL
        error = programs.check_equal(reference, made[name].call(), allowed, f"{name}, ")
        rounds = _rounds(solver, a, g) if solver.rounds_vary else 1
        entry["solvers"][name] = {
            "error": error,
            "rounds": rounds,
            "complexity": dataclasses.asdict(solver.complexity(size.n)),
            "work": size.work(solver),
            "temp_bytes": made[name].temp_bytes,
        }
    outcome = timing.race(sides[SWEEP], {n: sides[n] for n in chosen}, **effort(options))
    for name in chosen:
        entry["solvers"][name]["comparison"] = outcome.compare(name, SOLVE).to_json()
    return {**entry, "sweep_work": size.work(pb.Sweep())}


def _program(solver: Solver, a: jax.Array, g: jax.Array) -> programs.Program:
    return programs.build(lambda a, g: pb.solve(pb.Uniform(Dense(a), g), solver), a, g)


def _rounds(solver: Solver, a: jax.Array, g: jax.Array) -> int:
    run = jax.jit(lambda a, g: pb.solve(pb.Uniform(Dense(a), g), solver, report=True)[1])
    return int(run(a, g).iterations)


def draw(result: Result) -> dict[str, Figure]:
    """The speedup of the fastest solver of either kind at every size, over where rules have it pay.

    Direct solvers above, iterations below; a column for each batch and kind of maps. A rule for
    direct ones is a region of n and H, that of iterations is about each size by itself: a frame.
    """
    entries = list(result["points"].values())
    columns = sorted({(e["size"]["r"], e["size"]["maps"]) for e in entries})
    rows = {
        "direct": [k for k in DIRECT if k in result["settings"]["solvers"]],
        "iterative": [k for k in result["settings"]["solvers"] if k not in DIRECT],
    }
    figure = figures.new(2.8 * len(columns) + 1, 5.6)
    grid = figure.subplots(2, len(columns), sharex=True, sharey=True, squeeze=False)
    for axes_of_kind, (kind, names) in zip(grid, rows.items(), strict=True):
        for axes, (r, maps) in zip(axes_of_kind, columns, strict=True):
            shown = [e for e in entries if (e["size"]["r"], e["size"]["maps"]) == (r, maps)]
            axes.set_title(f"{kind}, r = {r}, {maps} maps", fontsize=8)
            _dress(axes, entries)
            if kind == "direct":
                _draw_rules(axes, r)
            for entry in shown if names else ():
                _draw_entry(axes, entry, names)
    for axes in grid[:, 0]:
        axes.set_ylabel("H")
    for axes in grid[1]:
        axes.set_xlabel("n")
    title = (
        "Speedup of the fastest solver over the sweep: blue is faster, red slower.\n"
        "Above, green: r >= H; grey: n / log2 n >= H, where direct solvers should pay.\n"
        "Below, framed: fewer rounds than n, where iterations should."
    )
    figure.suptitle(title, fontsize=8)
    return {"": figure}


def _dress(axes: Axes, entries: Sequence[Result]) -> None:
    """Logarithmic axes around all sizes, the same in every panel."""
    for scale, limits, key in (
        (axes.set_xscale, axes.set_xlim, "n"),
        (axes.set_yscale, axes.set_ylim, "h"),
    ):
        scale("log", base=2)
        sizes = [e["size"][key] for e in entries]
        limits(min(sizes) / 2, max(sizes) * 2)


def _draw_rules(axes: Axes, r: int) -> None:
    """The two regions of n and H."""
    lengths = np.geomspace(max(axes.get_xlim()[0], 2), axes.get_xlim()[1], 100)
    lowest = axes.get_ylim()[0]
    axes.fill_between(lengths, lowest, lengths / np.log2(lengths), color="grey", alpha=0.25, lw=0)
    axes.axhspan(lowest, max(r, lowest), color="green", alpha=0.15, lw=0)


def _draw_entry(axes: Axes, entry: Result, names: Sequence[str]) -> None:
    """One size: the fastest of these solvers."""
    size = entry["size"]
    best = max(_speedup(entry, name) for name in names)
    fewer = min(entry["solvers"][name]["rounds"] for name in names) < size["n"]
    framed = fewer and not set(names) & set(DIRECT)
    how = {"cmap": "RdBu", "vmin": -4, "vmax": 4, "edgecolors": "black" if framed else "none"}
    axes.scatter([size["n"]], [size["h"]], s=500, c=[math.log2(best)], linewidths=1.5, **how)
    color = "white" if abs(math.log2(best)) > 2.5 else "black"
    place = (size["n"], size["h"])
    axes.annotate(f"{best:.2g}", place, fontsize=7, ha="center", va="center", color=color)


def _speedup(entry: Mapping[str, Any], name: str) -> float:
    return entry["solvers"][name]["comparison"]["speedup"]


def text(result: Result) -> str:
    """A line for each size, how often the rules are right here, and deep recurrent networks."""
    names = result["settings"]["solvers"]
    header = ["size", "rule", *(f"{name}" for name in names), "rounds", "work / sweep's"]
    rows = []
    for name, entry in result["points"].items():
        rounds = [str(entry["solvers"][k]["rounds"]) for k in names if k not in DIRECT]
        work = [f"{entry['solvers'][k]['work'] / entry['sweep_work']:.2g}" for k in names]
        ratios = [f"{_speedup(entry, k):.2g}" for k in names]
        pays = "yes" if entry["rules"]["either"] else "no"
        rows.append([name, pays, *ratios, "/".join(rounds), "/".join(work)])
    title = "speedup over the sweep; rounds of the iterations, and the most work they are allowed"
    return "\n".join([title, tables.table(header, rows), *_verdict(result), "", deep_table()])


def _verdict(result: Result) -> list[str]:
    """How often what a rule says is what was measured, of the fastest solver of its kind."""
    lines = []
    for rule in ("r >= H", "n/log n >= H", "either"):
        right, told = 0, 0
        for entry in result["points"].values():
            direct = [_speedup(entry, k) for k in DIRECT if k in entry["solvers"]]
            if direct:
                told += 1
                right += (max(direct) > 1) == entry["rules"][rule]
        lines.append(f"{rule}: as measured at {right} of {told} sizes")
    return lines


def eliminated(layers: int) -> int:
    """Products of blocks that `deep_rnn` makes of the layers of one step."""
    made = (layers - 1) ** 2
    for gap in range(3, layers):
        reach = 2 ** ((gap - 1).bit_length() - 1)
        made += (layers - gap) * (1 + (gap - reach > 1))
    return made


def deep_table(layers: int = 4, steps: int = 1000, hidden: int = 32) -> str:
    """Products of a deep recurrent network: k layers of n units over tau steps, counted."""
    tree = pb.Blelloch().complexity(steps)
    k, n3 = layers, hidden**3
    levels = math.ceil(math.log2(k))
    triangular = tree.matrix_products * k * (k + 1) * (k + 2) // 6 + steps * eliminated(k)
    rows = [
        ["joint carry, dense", str(tree.steps), f"{tree.matrix_products * k**3 * n3:.2e}"],
        ["joint carry, block-triangular", str(tree.steps + 2 * levels), f"{triangular * n3:.2e}"],
        [
            "k scans, one after the other",
            str(k * tree.steps),
            f"{k * tree.matrix_products * n3:.2e}",
        ],
        ["sweep, joint or k of them", str(k * steps), "0"],
    ]
    header = ["deep RNN", "levels", "multiplications in products"]
    title = f"k = {k} layers of {hidden} units, {steps} steps, by the modified Blelloch scan"
    return "\n".join([title, tables.table(header, rows)])


BENCH = Bench(
    "solvers",
    __doc__,
    baseline="the sweep, compiled",
    points=points,
    measure=measure,
    rows=Named("points"),
    text=text,
    options=(
        Option("n", [16, 128, 1024], "steps"),
        Option("hidden", [2, 8, 32], "units of a step"),
        Option("batch", [1, 32], "right-hand sides"),
        Option("maps", ["shared", "own"], "of all samples, or of each", ("shared", "own")),
        Option("solvers", list(SOLVERS), choices=list(SOLVERS)),
        Option("limit", 2**25, "bytes of maps; larger sizes are left out"),
        Option("seed", 0),
        *racing(9, 3, 2.0),
    ),
    quick={
        **{"n": [5], "hidden": [2], "batch": [3], "maps": ["own"]},
        "solvers": [str(pb.CyclicReduction()), str(pb.Jacobi(tol=TOL))],
    },
    draw=draw,
    fixed=("seed",),
)
