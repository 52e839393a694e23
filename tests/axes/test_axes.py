"""Operators whose arrays have some of the stack axes; `python -m tests.axes` tries hundreds."""

import inspect

import jax
import numpy as np
import pytest

import parscan_bp as pb
from tests.axes.arrays import STRUCTURES, Form, H, Made, draw_made
from tests.axes.axes_trials import direct, substituted, try_case
from tests.quickly import jit_quickly

SEED = 0
# Some that found faults once, and such as take little time.
FOUND = ("solve:5", "solve:7", "given:1", "layers:1")


@pytest.mark.parametrize("case", FOUND)
def test_parts_of_different_axes(case):
    kind, index = case.split(":")
    outcome = try_case(kind, SEED, int(index))
    assert not outcome.message, f"{case} | {outcome.text} | {outcome.message}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["solve", "layers", "given"])
def test_more_parts_of_different_axes(kind):
    outcomes = [try_case(kind, 1, index) for index in range(30)]
    failures = [f"{o.text} | {o.message}" for o in outcomes if o.message]
    assert not failures, "\n".join(failures)


N, CHUNK = 4, 3
BATCHES = {"none": (), "n": (N,), "chunk": (CHUNK,), "H": (H,), "one": (1,), "two": (N, N)}
FORMS = ("steps", "steps, of size 1", "batch", "each other")
EVERY = [e.name for e in STRUCTURES]


def _made(name: str, batch: tuple[int, ...], kind: str) -> Made:
    """An operator whose arrays have these forms in turn; the first changes from step to step."""
    rng, rank = np.random.default_rng(3), 1 + len(batch)
    steps, all_axes = (True, *(False for _ in batch)), (True,) * rank
    turns = {
        "steps": [Form(steps, True)],
        "steps, of size 1": [Form(steps, False)],
        "batch": [Form(steps, True), Form((False, *all_axes[1:]), False)],
        "each other": [Form(steps, True), Form(all_axes, False)],
    }[kind]
    count = iter(range(99))
    form = lambda: turns[next(count) % len(turns)]  # noqa: E731
    (example,) = [e for e in STRUCTURES if e.name == name]
    return draw_made(rng, example, (N, *batch), form)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", EVERY)
def test_every_structure_and_form_in_every_solver(name, batch, kind):
    """Of all solvers in one program, against matrices that NumPy repeats along shared axes."""
    with jax.enable_x64(True):
        made = _made(name, BATCHES[batch], kind)
        solvers = direct(CHUNK) if made.like.composes else [pb.Sweep(), pb.Jacobi()]
        g = np.random.default_rng(1).standard_normal((N + 1, *BATCHES[batch], H))

        def run(arrays, g):
            system = pb.Uniform(made.of(arrays), g)
            return [pb.solve(system, solver) for solver in solvers]

        found = jit_quickly(run)(made.compact(), g)
    want = substituted(made.dense(), g)
    for solver, got in zip(solvers, found, strict=True):
        error = np.abs(np.asarray(got) - want).max()
        assert error <= 1e-9 * np.abs(want).max(), solver


def test_all_structures_are_drawn():
    with jax.enable_x64(True):
        made = {type(_made(name, (), "steps").like) for name in EVERY}
    public = {getattr(pb.operators, name) for name in pb.operators.__all__}
    kinds = {c for c in public if isinstance(c, type) and issubclass(c, pb.operators.Operator)}
    left = {c for c in kinds - made if not inspect.isabstract(c)}
    assert left == {pb.operators.Identity, pb.operators.ChannelSlice}  # which have no arrays
