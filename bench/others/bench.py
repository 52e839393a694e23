"""Other people's programs: value and gradient as they are, and by `parscan_bp.replace_scans`.

Each of `programs/` is a small loss around a public package. In float64 its value, gradient,
derivative along a tangent and product with the Hessian are compared with the program's own, where
it has them; then value and gradient are raced, with `solver=None` and with a named `Sweep`. A
package that is not installed leaves its programs out, and the record says so.
"""

import dataclasses
import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from bench.shared import programs, record, sides, tables, timing
from bench.shared.bench import Bench, Named, Option, Options, Result, racing

OWN, NONE, SWEEP = "as it is", "solver=None", "Sweep()"
SOLVERS = {NONE: None, SWEEP: pb.Sweep()}

PROGRAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "balls on springs": ("physics_balls", {}),
    "bellman-filter-dfsv": ("bellman", {}),
    "blackjax, HMC": ("blackjax_hmc", {}),
    "crn-jax": ("crn", {}),
    "cuthbert, Kalman": ("cuthbert_kalman", {}),
    "cuthbert, Kalman, parallel": ("cuthbert_kalman", {"parallel": True}),
    "diffrax, DirectAdjoint": ("diffrax_steps", {}),
    "diffrax, default adjoint": ("diffrax_steps", {"adjoint": "RecursiveCheckpointAdjoint"}),
    "diffrax, ForwardMode": ("diffrax_steps", {"adjoint": "ForwardMode"}),
    "diffrax, interpolation": ("diffrax_interpolation", {}),
    "distrax, HMM": ("distrax_hmm", {}),
    "dynamax, EKF": ("dynamax_ekf", {}),
    "dynamax, HMM": ("dynamax_hmm", {}),
    "dynamax, LGSSM": ("dynamax_lgssm", {}),
    "dynamiqs, Expm": ("dynamiqs_qubit", {}),
    "dynamiqs, Tsit5": ("dynamiqs_qubit", {"method": "Tsit5"}),
    "equinox, GRU": ("equinox_gru", {}),
    "exponax": ("exponax_burgers", {}),
    "freq-statespace": ("freq_statespace_model", {}),
    "jax-cfd": ("jax_cfd_flow", {}),
    "jax-progress": ("jax_progress_bar", {}),
    "jax-tqdm": ("jax_tqdm_bar", {}),
    "jaxdiffmodal": ("jaxdiffmodal_string", {}),
    "jaxley": ("jaxley_cell", {}),
    "jaxley, two levels": ("jaxley_cell", {"levels": [15, 14]}),
    "jaxpole": ("jaxpole_filter", {}),
    "jaxpole, without its rule": ("jaxpole_filter", {"name": "batched_all_pole_direct_form_I"}),
    "jwave": ("jwave_pulse", {}),
    "numpyro, AR(2)": ("numpyro_ar2", {}),
    "numpyro, walk": ("numpyro_walk", {}),
    "tfp, LGSSM": ("tfp_lgssm", {}),
}

ITERATES = ("bellman-filter-dfsv",)
"""Programs that iterate to a tolerance of their own, within which their derivatives differ."""


FIRST_ORDER = ("diffrax, DirectAdjoint", "bellman-filter-dfsv")
"""Programs of which a product with the Hessian takes more than a quarter of an hour to compile by a
named `Sweep`: loops in conditions in loops."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program of others."""

    name: str
    module: str
    options: dict[str, Any]

    def make(self) -> tuple[Callable, tuple]:
        """Its loss and arguments."""
        module = importlib.import_module(f"bench.others.programs.{self.module}")
        loss, args = module.program(**self.options)
        return loss, jax.tree.map(jnp.asarray, args)


def points(options: Options) -> dict[str, Case]:
    """The programs whose packages are there."""
    jax.config.update("jax_enable_x64", True)
    cases = {name: Case(name, *where) for name, where in PROGRAMS.items()}
    return {name: case for name, case in cases.items() if _missing(case) is None}


def _missing(case: Case) -> str | None:
    try:
        importlib.import_module(f"bench.others.programs.{case.module}")
    except Exception as error:  # another version of JAX than the package wants fails in many ways
        return record.reason_of(error)
    return None


def facts(options: Options) -> Result:
    """What is left out, and why."""
    missing = {name: _missing(Case(name, *where)) for name, where in PROGRAMS.items()}
    return {"left_out": {name: why for name, why in missing.items() if why is not None}}


def measure(case: Case, options: Options) -> Result:
    """Compares all derivatives, then times value and gradient.

    Raises:
        FloatingPointError: if one differs.
    """
    loss, args = case.make()
    ways = {OWN: loss}
    ways |= {name: pb.replace_scans(loss, solver=solver) for name, solver in SOLVERS.items()}
    allowed = 1e-4 if case.name in ITERATES else options.allowed
    differences = {}
    most = 3 if case.name in FIRST_ORDER else options.modes
    modes, without = _modes_of(loss, args, MODES[:most], options.patience)
    for mode in modes:
        want, *others = (_result(_in_mode(f, mode), args) for f in ways.values())
        for name, got in zip(SOLVERS, others, strict=True):
            error = _difference(got, want)
            differences.setdefault(name, {})[mode] = error
            if not error <= allowed:
                raise FloatingPointError(f"{case.name} by {name}: {mode} differs by {error:.1e}")
    told = pb.explain_within(loss, *args)
    made = {name: _compiled(f, args, mode=_raced(differences)) for name, f in ways.items()}
    return {
        "scans": len(told.scans),
        "taken": sum(scan.replaced for scan in told.scans),
        "buffers": sum(map(bool, (scan.buffers for scan in told.scans))),
        "explained": str(told),
        "differences": differences,
        "without": without,
        "sides": sides.raced(made, OWN, options),
    }


MODES = ("value", "gradient", "tangent", "hessian product")


def _in_mode(f: Callable, mode: str) -> Callable:
    def run(*args):
        every = tuple(range(len(args)))
        along = jax.tree.map(
            lambda v: jnp.cos(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape), args
        )
        if mode == "value":
            return f(*args)
        if mode == "tangent":
            return jax.jvp(f, args, along)[1]
        slopes = jax.grad(f, every)
        return slopes(*args) if mode == "gradient" else jax.jvp(slopes, args, along)[1]

    return run


def _modes_of(
    loss: Callable, args: tuple, modes: Sequence[str], patience: float
) -> tuple[list[str], dict[str, str]]:
    """Those that the program has and that compile in time, and why it is without the others."""
    found, without = [], {}
    for mode in modes:
        begun = time.monotonic()
        try:
            _result(_in_mode(loss, mode), args)
        except Exception as error:  # such as no reverse mode of a dynamic loop
            without[mode] = record.reason_of(error)
            continue
        if time.monotonic() - begun < patience:
            found.append(mode)
        else:
            without[mode] = f"it takes more than {patience:g} s to compile"
    return found, without


def _raced(differences: dict[str, dict[str, float]]) -> str:
    return "gradient" if "gradient" in differences[NONE] else "tangent"


def _result(f: Callable, args: tuple) -> Any:
    """Compiled without optimisations, which takes less time."""
    quickly = {"xla_backend_optimization_level": 0}
    return jax.block_until_ready(jax.jit(f, compiler_options=quickly)(*args))


def _compiled(f: Callable, args: tuple, *, mode: str) -> programs.Program:
    run = jax.value_and_grad(f, tuple(range(len(args))))
    return programs.build(run if mode == "gradient" else _in_mode(f, mode), *args)


def _difference(got: Any, want: Any) -> float:
    """The largest, over the largest entry of each array; infinite where NaN is elsewhere."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            return float("inf")
        scale = np.nanmax(np.abs(b), initial=0) or 1.0
        worst = max(worst, float(np.nanmax(np.abs(a - b), initial=0) / scale))
    return timing.rounded(worst)


def text(result: Result) -> str:
    """One row for each program."""
    header = ["", "scans", "taken", "as it is", "None [95 %]", "Sweep [95 %]", "memory", "compile"]
    rows = []
    for name, entry in sorted(result["points"].items()):
        sides = entry["sides"]
        speeds = [tables.speedup(sides[side]["comparison"]) for side in SOLVERS]
        own = sides[NONE]["comparison"]["baseline"]["median"]
        ratios = [_ratio(sides, key) for key in ("temp_bytes", "compile_seconds")]
        counts = [str(entry[key]) for key in ("scans", "taken")]
        rows.append([name, *counts, tables.seconds(own), *speeds, *ratios])
    left = [f"{name}: {why}" for name, why in result.get("left_out", {}).items()]
    return "\n".join([tables.table(header, rows), *(["left out:", *left] if left else [])])


def _ratio(sides: Result, key: str) -> str:
    """Of `solver=None` over the program as it is."""
    return f"{sides[NONE][key] / max(sides[OWN][key], 1e-9):.2f}"


BENCH = Bench(
    "others",
    __doc__,
    baseline="the program as it is",
    points=points,
    measure=measure,
    facts=facts,
    rows=Named("points"),
    text=text,
    options=(
        Option("modes", len(MODES), f"how many are compared, of {', '.join(MODES)}"),
        Option("patience", 120.0, "seconds that a program's own mode may take to compile and run"),
        Option("allowed", 1e-9, "difference over the largest entry, in float64"),
        *racing(15, 5, 6.0),
    ),
    quick={"modes": 2, "patience": 30.0},
    fixed=(),
)
