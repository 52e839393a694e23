"""What a loop costs: evaluations that run, bytes that derivatives store."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.jaxprs.stage import Staged, trace_call
from parscan_bp.loops.costs import costs_of
from parscan_bp.loops.nest import MOST_STEPS, Nest, nest_within
from parscan_bp.scan.storage import StoredBytes

COSTS = StoredBytes(carry=64, step=256, x=0, shared=16, solving=lambda n: 0)
STRETCH = 16


# The nest


@pytest.mark.parametrize("bound", [1, 15, 16, 17, 100, 2048, 2049, 10**6, MOST_STEPS])
@pytest.mark.parametrize(("slots", "stretch"), [(4, 1), (4, 16), (128, 16), (1024, 2)])
def test_a_nest_holds_its_bound_and_little_more(bound, slots, stretch):
    nest = Nest.of(bound, slots, stretch)
    steps = 0
    for group in nest.groups:
        assert group.first == steps and 1 <= group.count <= slots
        assert all(a == b * slots for a, b in itertools.pairwise(group.sizes))
        assert group.sizes[-1] == min(stretch, bound)
        steps += group.count * group.sizes[0]
    last = nest.groups[-1]
    assert bound <= steps < bound + last.sizes[0] and steps + last.sizes[0] < 2**31
    assert len(nest.groups[0].sizes) == 1  # a short loop pays one level


@pytest.mark.parametrize("bound", [1, 100, 10**4, MOST_STEPS])
def test_every_limit_is_met_or_told(bound):
    for limit in np.geomspace(100, 1e6, 20).astype(int):
        try:
            found = nest_within(bound, COSTS, int(limit))
        except ValueError as error:
            least = int(str(error).split("bytes; ")[1].split(" ")[0].replace(",", ""))
            assert limit < least == nest_within(bound, COSTS, least).bytes(COSTS)
            continue
        assert found.bytes(COSTS) <= limit


def test_more_memory_takes_no_more_levels():
    depths = [nest_within(10**6, COSTS, limit).depth for limit in (10**4, 10**5, 10**6, 10**7)]
    assert depths == sorted(depths, reverse=True) and depths[0] > depths[-1]


# Evaluations

EVALUATED = []


def _noted(x):
    def note(x):
        EVALUATED.append(x.size // 2)
        return np.zeros_like(x)

    zero = jax.pure_callback(note, x, lax.stop_gradient(x), vmap_method="expand_dims")
    return x + zero


def _loss(w, n, **how):
    step = lambda s: (jnp.sin(_noted(s[0]) * w), s[1] + 1)  # noqa: E731
    return jnp.sum(pb.while_loop(lambda s: s[1] < n, step, (w, 0), **how)[0])


def _evaluations(f, *args):
    EVALUATED.clear()
    jax.block_until_ready(f(*args))
    return len(EVALUATED)


W = jnp.array([0.5, 0.9])


@pytest.mark.parametrize("max_steps", [10**6, pytest.param(None, marks=pytest.mark.slow)])
def test_what_runs_is_what_ran(max_steps):
    """Values, once more to store and once again for each level; rounded up to a stretch."""
    value = jax.jit(functools.partial(_loss, max_steps=max_steps))
    gradient = jax.jit(jax.value_and_grad(value))
    for n in (0, 1, 20, 100):
        assert _evaluations(value, W, n) == n
        rounded = -(-n // STRETCH) * STRETCH
        # The stretch is made again with what its derivative stores.
        assert _evaluations(gradient, W, n) == n + 2 * rounded
    n, first = 3000, (8 + 128) * STRETCH  # the first group of two levels begins
    assert _evaluations(gradient, W, n) <= n + 2 * first + 3 * (n - first + STRETCH)


def test_forward_mode_runs_the_loop_once():
    tangent = jax.jit(lambda w, n: jax.jvp(lambda w: _loss(w, n), (w,), (w,)))
    assert _evaluations(tangent, W, 20) == 20


def test_one_slow_entry_costs_what_it_costs_alone():
    run = jax.value_and_grad(functools.partial(_loss, max_steps=10**6))
    together = jax.jit(jax.vmap(run, (None, 0)))
    assert _evaluations(together, W, jnp.array([1, 100, 2])) == 100 + 2 * 112
    assert _evaluations(together, W, jnp.array([1, 2, 2])) == 2 + 2 * 16


# Bytes


def _vector(w, n):
    step = lambda s: (jnp.tanh(s[0] * w + 0.1 * jnp.roll(s[0], 1)), s[1] + 1)  # noqa: E731
    return lambda s: s[1] < n, step, (w, 0)


def _counted(w, n):
    def step(state):
        position, speed, k = state
        speed = 0.99 * speed - 0.1 * jnp.sin(w * position) + 1 / (1.0 + k)
        return position + 0.1 * speed, speed, k + 1

    return lambda s: s[2] < n, step, (w, 0 * w, 0)


def _gru(w, n):
    cell = pb.cells.GRU()
    params = cell.init(jax.random.key(0), 1, 64)
    params = jax.tree.map(lambda v: v + 0 * w[0], params)
    step = lambda s: (cell(params, s[0], jnp.ones((16, 1)))[0], s[1] + 1)  # noqa: E731
    return lambda s: s[1] < n, step, (jnp.zeros((16, 64)), 0)


def _told(program, w, max_steps, solver, limit):
    cond, body, init = program(w, 5)
    closed, tree = trace_call(functools.partial(lax.while_loop, cond, body), init)
    costs = costs_of(Staged.of(closed, tree, "while").equation, solver)
    return nest_within(max_steps or MOST_STEPS, costs, limit).bytes(costs)


PROGRAMS = {"vector": _vector, "counted": _counted, "gru": _gru}
BYTES = [
    ("counted", 10_000, None, (None,)),
    *[
        pytest.param(name, steps, solver, (None, 2.5, 0.6), marks=pytest.mark.slow)
        for name in PROGRAMS
        for steps in (10_000, None)
        for solver in (None, pb.Sweep())
    ],
]


@pytest.mark.reads_compiled
@pytest.mark.parametrize(("name", "max_steps", "solver", "parts"), BYTES, ids=str)
def test_bytes_are_told_beforehand(name, max_steps, solver, parts):
    """Never less than is used; more, of what a solver has at once and of sums of large weights."""
    program, w = PROGRAMS[name], jnp.linspace(0.5, 0.9, 256)
    few = 0.9 if solver is None and name != "gru" else 0.6
    whole = _told(program, w, max_steps, solver, None)
    for part in parts:
        limit = None if part is None else int(part * whole)
        told = _told(program, w, max_steps, solver, limit)
        how = {"max_steps": max_steps, "solver": solver, "memory_limit": limit}

        def loss(w, n, how=how):
            last = pb.while_loop(*program(w, n), **how)
            return sum(jnp.sum(v**2.0) for v in last)

        compiled = jax.jit(jax.grad(loss)).lower(w, 5).compile()
        used = compiled.memory_analysis().temp_size_in_bytes
        assert few * told <= used <= 1.05 * told, (part, told, used)
