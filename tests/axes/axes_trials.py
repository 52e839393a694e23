"""Systems and scans whose operators have parts of different axes, against float64 oracles."""

from __future__ import annotations

import dataclasses
import functools
import traceback
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from parscan_bp.operators import Diagonal, Product, Sum
from tests.axes.arrays import STRUCTURES, Form, H, Made, draw_batch, draw_form, draw_made
from tests.quickly import jit_quickly

CLOSE = 1e-9
"""Of the largest number: in double precision, of products that neither vanish nor explode."""

Solvers = Callable[[int], list[pb.solvers.Solver]]


def direct(chunk: int) -> list[pb.solvers.Solver]:
    """Solvers of equal steps, those with chunks of this size among them."""
    return [
        pb.Sweep(),
        pb.Sweep(chunk=chunk),
        pb.Associative(),
        pb.Blelloch(),
        pb.Blelloch(up_levels=1),
        pb.Blelloch(scaled=True),
        pb.Chunked(chunk),
        pb.Chunked(2, inner=pb.Blelloch(0)),
        pb.ChunkedCorrections(chunk, max_rounds=3),
        pb.CyclicReduction(),
        pb.Jacobi(),
        pb.Richardson(),
    ]


LAYERED = [pb.Sweep(), pb.Blelloch(), pb.Planned(), pb.CyclicReduction(), pb.Jacobi()]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a case: in words what it was, and how it differs, or nothing."""

    text: str
    message: str


def try_case(kind: str, seed: int, index: int) -> Outcome:
    """Draws and tries one; an exception is a difference."""
    rng = np.random.default_rng((seed, index, sorted(KINDS).index(kind)))
    told: list[str] = []
    try:
        with jax.enable_x64(True):
            message = KINDS[kind](rng, told.append)
    except Exception as error:
        message = f"{type(error).__name__}: {str(error)[:300]}"
        told.append(traceback.format_exc())
    return Outcome(" | ".join(told[:1]), message)


def _differs(name: str, got, want) -> str:
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return f"{name} has shape {got.shape} for {want.shape}; "
    error = np.abs(got - want).max(initial=0)
    size = np.abs(want).max(initial=0)
    return "" if error <= CLOSE * max(size, 1e-3) else f"{name}: error {error:.2g} of {size:.2g}; "


def _at_least_one(made: Made, fits: Callable[[Form | None], bool], form: Form) -> Made:
    """The operator, one array of which has another form unless some fit."""
    if any(map(fits, made.forms)):
        return made
    forms = [f if f is None else form for f in made.forms]
    return dataclasses.replace(made, forms=tuple(forms))


def draw_stack(rng: np.random.Generator, n: int, batch: tuple[int, ...]) -> tuple[str, Made]:
    """A stack of n operators, and its name."""
    example = STRUCTURES[rng.integers(len(STRUCTURES))]
    rank = 1 + len(batch)
    made = draw_made(rng, example, (n, *batch), functools.partial(draw_form, rng, rank))
    steps = Form((True, *(False for _ in batch)), True)
    return example.name, _at_least_one(made, lambda f: f is not None and f.own[0], steps)


def substituted(a: np.ndarray, g: np.ndarray) -> np.ndarray:
    out = [g[-1]]
    for t in reversed(range(len(a))):
        out.append(g[t] + np.einsum("...ij,...j->...i", a[t], out[-1]))
    return np.stack(out[::-1])


def solve(rng: np.random.Generator, tell: Callable[[str], None]) -> str:
    """`pb.solve` of a `Uniform`: the solution, its report and its derivatives."""
    n, chunk = int(rng.choice([1, 2, 3, 4, 5, 8])), int(rng.choice([1, 2, 3, 4]))
    batch = draw_batch(rng, n, chunk)
    name, made = draw_stack(rng, n, batch)
    truncated = [pb.Truncated(chunk), pb.Truncated(chunk, sliding=True)]
    solvers = [s for s in [*direct(chunk), *truncated] if _takes(s, made)]
    solver = solvers[rng.integers(len(solvers))]
    arrays, g = made.compact(), rng.standard_normal((n + 1, *batch, H))
    by = (0, 1) if rng.random() < 0.3 else (1,)  # by the arrays, too: as of the operator in full
    tell(f"{name} n={n} batch={batch} {solver} {[a.shape for a in arrays]} by {by}")

    def run(of, solver, arrays, g):
        def loss(arrays, g):
            x, report = pb.solve(pb.Uniform(of(arrays), g), solver, report=True)
            return jnp.sum(jnp.sin(x)), (x, report)

        (_, out), slopes = jax.value_and_grad(loss, by, has_aux=True, allow_int=True)(arrays, g)
        return *out, slopes

    x, report, slopes = jit_quickly(functools.partial(run, made.of, solver))(arrays, g)
    a = made.dense()
    true, found = substituted(a, g), ""
    if solver.exact:
        found += _differs("solution", x, true)
        found += _differs("by g", slopes[-1], substituted(_t(a[::-1]), np.cos(true)[::-1])[::-1])
        if report.status != pb.Status.OK or report.residual > report.bound:
            found += f"status {report.status}, residual {report.residual}; "
    if not solver.exact or len(by) > 1:
        full = functools.partial(run, made.expanded, pb.Sweep() if solver.exact else solver)
        want_x, want_report, want = jit_quickly(full)(arrays, g)
        found += _differs("solution", x, want_x)
        for k, (got, wanted) in enumerate(zip(*map(jax.tree.leaves, (slopes, want)), strict=True)):
            if jnp.issubdtype(got.dtype, jnp.inexact):
                found += _differs(f"slope {k}", got, wanted)
    if not solver.exact:
        found += _differs("residual", report.residual, want_report.residual)
        error = np.abs(x - true).max() / max(np.abs(x).max(), 1e-300)
        if report.cut_off < error * (1 - 1e-6) - 1e-12:
            found += f"cut_off {report.cut_off} for an error of {error}; "
        if not np.isnan(want_report.cut_off):
            found += _differs("cut_off", report.cut_off, want_report.cut_off)
    if report.contraction is not None and made.like.multilinear:
        least = np.abs(made.dense()).sum(-1).max()
        if report.contraction < least * (1 - 1e-6):
            found += f"contraction {report.contraction} for {least}; "
    return found


def _t(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)


def _takes(solver, made: Made) -> bool:
    return solver.needs == "products" or made.like.composes


def layers(rng: np.random.Generator, tell: Callable[[str], None]) -> str:
    """`pb.solve` of a `Ragged`: batch axes alone, which broadcast by NumPy's rules."""
    n, batch = int(rng.integers(1, 5)), draw_batch(rng, 2, 3)
    every = [
        draw_made(
            rng,
            STRUCTURES[rng.integers(len(STRUCTURES) - 1)],
            batch,
            functools.partial(draw_form, rng, len(batch), scanned=False),
        )
        for _ in range(n)
    ]
    solver = LAYERED[rng.integers(len(LAYERED))]
    arrays = [made.compact(scanned=False) for made in every]
    full = [rng.standard_normal((*batch, H)) for _ in range(n + 1)]
    forms = [draw_form(rng, len(batch), scanned=False) for _ in full]
    forms[-1] = Form((True,) * len(batch), False)
    g = [f.compact(v, scanned=False) for f, v in zip(forms, full, strict=True)]
    tell(f"n={n} batch={batch} {solver} {[[a.shape for a in p] for p in arrays]}")

    def run(arrays, g):
        operators = [made.of(a) for made, a in zip(every, arrays, strict=True)]
        return pb.solve(pb.Ragged(operators, g), solver, report=True)

    x, report = jit_quickly(run)(arrays, g)
    want = [full[-1]]
    for made, form, v in zip(every[::-1], forms[-2::-1], full[-2::-1], strict=True):
        want.append(form.full(v, batch) + np.einsum("...ij,...j->...i", made.dense(), want[-1]))
    found = "".join(
        _differs(f"lambda {t}", np.broadcast_to(a, b.shape), b)
        for t, (a, b) in enumerate(zip(x, want[::-1], strict=True))
    )
    return found + ("" if report.status == pb.Status.OK else f"status {report.status}; ")


# A step, and the operator that is given of it, from the maps M_t^T and their operator.
STEPS = {
    "linear": (lambda pull, c, x: pull(c) + x, lambda m, c, h: m),
    "slopes first": (
        lambda pull, c, x: jnp.tanh(pull(c) + x),
        lambda m, c, h: Product((m, Diagonal(1 - h * h))),
    ),
    "slopes last": (
        lambda pull, c, x: pull(jnp.sin(c)) + x,
        lambda m, c, h: Product((Diagonal(jnp.cos(c)), m)),
    ),
    "sum": (
        lambda pull, c, x: pull(c) + jnp.sin(c) + x,
        lambda m, c, h: Sum((m, Diagonal(jnp.cos(c)))),
    ),
}


def given(rng: np.random.Generator, tell: Callable[[str], None]) -> str:
    """`pb.scan` with ``jacobian=``: values, a gradient or a tangent, as by `jax.lax.scan`."""
    n, chunk = int(rng.choice([1, 2, 3, 4, 5, 8])), int(rng.choice([1, 2, 3, 4]))
    batch = draw_batch(rng, n, chunk)
    kind = str(rng.choice(sorted(STEPS)))
    name, made = draw_stack(rng, n, batch)
    if kind == "linear":  # what is given says how many batch axes there are
        made = dataclasses.replace(made, forms=tuple(map(_with_all_axes, made.forms)))
    solvers = [s for s in direct(chunk) if _takes(s, made)]
    solver = solvers[rng.integers(len(solvers))]
    split, reverse, forwards = (bool(rng.random() < 0.3) for _ in range(3))
    # One step's arrays have batch axes alone.
    per_step = [f is not None and f.own[0] for f in made.forms]
    arrays = _single(made)
    tell(f"{kind}, {name} n={n} batch={batch} {solver} {split=} {reverse=} {forwards=} "
         f"{[(a.shape, p) for a, p in zip(arrays, per_step, strict=True)]}")  # fmt: skip
    step, own = STEPS[kind]
    dense = np.ascontiguousarray(made.dense())
    scanned = [a for a, p in zip(arrays, per_step, strict=True) if p]

    def join(c):
        return jnp.concatenate([c["b"], c["a"]], axis=-1)[..., _ORDER] if split else c

    def parted(c):
        return {"a": c[..., :2], "b": c[..., 2:]} if split else c

    def body(c, t):
        matrix, x, _ = t
        pull = lambda v: jnp.einsum("...ji,...j->...i", matrix, v)  # noqa: E731
        h = step(pull, join(c), x)
        return parted(h), h

    def jacobian(c, t, h):
        here = iter(t[2])
        parts = [next(here) if p else a for a, p in zip(arrays, per_step, strict=True)]
        return own(made.of(map(jnp.asarray, parts)), join(c), join(h))

    def run(scan, c, xs, tangents):
        def loss(c, xs):
            last, ys = scan(body, parted(c), (dense, xs, scanned), reverse=reverse)[:2]
            return jnp.sum(jnp.sin(3 * ys)) + jnp.sum(jnp.cos(join(last))), ys

        if forwards:
            return jax.jvp(lambda *at: loss(*at)[1], (c, xs), tangents)
        (_, ys), slopes = jax.value_and_grad(loss, (0, 1), has_aux=True)(c, xs)
        return ys, slopes

    draw = lambda: (rng.standard_normal((*batch, H)), rng.standard_normal((n, *batch, H)))  # noqa: E731
    (c, xs), tangents = draw(), draw()
    ours = functools.partial(pb.scan, solver=solver, jacobian=jacobian)
    got = jit_quickly(functools.partial(run, ours))(c, xs, tangents)
    want = jit_quickly(functools.partial(run, jax.lax.scan))(c, xs, tangents)
    names = ("ys", "tangent") if forwards else ("ys", "by init", "by xs")
    pairs = zip(names, jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    found = "".join(_differs(*pair) for pair in pairs)
    if rng.random() < 0.1:
        pb.scan(body, parted(c), (dense, xs, scanned), reverse=reverse, solver=solver,
                jacobian=jacobian, check_jacobian=True)  # fmt: skip
    return found


def _with_all_axes(form: Form | None) -> Form | None:
    """A form whose axes show how many there are."""
    return form and dataclasses.replace(form, short=form.short and any(form.own[1:]))


_ORDER = np.array([4, 5, 0, 1, 2, 3])


def _single(made: Made) -> list[np.ndarray]:
    """The arrays of a stack as a step has them: the scanned axis in front of those of its own."""
    out = []
    for (leaf, _), form in zip(made.like.leaves(), made.forms, strict=True):
        leaf = np.asarray(leaf)
        if form is None:
            out.append(leaf)
            continue
        batch = dataclasses.replace(form, own=form.own[1:])
        if form.own[0]:
            out.append(np.stack([batch.compact(a, scanned=False) for a in leaf]))
        else:
            out.append(batch.compact(leaf[0], scanned=False))
    return out


KINDS = {"solve": solve, "layers": layers, "given": given}
