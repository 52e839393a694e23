"""`Sweep(recompute=False)`: the linearised steps kept by the forward pass."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.operators import Dense

KEEP = pb.Sweep(recompute=False)
T, B, INPUTS, H = 11, 3, 2, 5
CELLS = {
    "Elman": pb.cells.Elman(),
    "GRU": pb.cells.GRU(),
    "LSTM": pb.cells.LSTM(),
    "MinGRU": pb.cells.MinGRU(),
}


def _arguments(cell, length=T, hidden=H):
    params = cell.init(jax.random.key(0), INPUTS, hidden)
    xs = jax.random.normal(jax.random.key(1), (length, B, INPUTS))
    return params, cell.initial_carry((B,), hidden), xs


def _loss(cell, form, scan, **options):
    def loss(params, carry, xs):
        step = functools.partial(cell, params)
        if form == "closure":
            step = lambda c, x: cell(params, c, x)  # noqa: E731
        outputs = scan(step, carry, xs, **options)
        return sum(jnp.sum(jnp.sin(v)) for v in jax.tree.leaves(outputs))

    return loss


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", ["cell", "closure"])
@pytest.mark.parametrize("name", CELLS)
def test_values_are_bitwise_and_gradients_close_to_those_of_lax_scan(name, form, reverse):
    cell = CELLS[name]
    at = _arguments(cell)

    def value_and_grad(scan, **options):
        loss = _loss(cell, form, scan, reverse=reverse, **options)
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*at)

    (value, got), (expected, want) = value_and_grad(pb.scan, solver=KEEP), value_and_grad(lax.scan)
    assert value == expected
    eps = jnp.finfo(value.dtype).eps
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.abs(a - b).max() <= 100 * eps * jnp.abs(b).max()


def _functions_of(solver, form):
    """How often the pullback of an LSTM's loss evaluates tanh or exp, as compiled."""
    cell = CELLS["LSTM"]
    pullback = jax.vjp(_loss(cell, form, pb.scan, solver=solver), *_arguments(cell))[1]
    text = jax.jit(lambda pull, ct: pull(ct)).lower(pullback, 1.0).compile().as_text()
    return sum(text.count(f" {name}(") for name in ("tanh", "exponential"))


@pytest.mark.parametrize("form", ["cell", "closure"])
def test_a_kept_step_is_not_evaluated_again(form):
    assert _functions_of(KEEP, form) == 0
    assert _functions_of(pb.Sweep(), form) > 0


@pytest.mark.parametrize("form", ["cell", "closure"])
def test_arithmetic_on_the_carries_is_not_kept(form):
    elman, at = CELLS["Elman"], _arguments(CELLS["Elman"])
    sizes = []
    for solver in (KEEP, pb.Sweep()):
        pullback = jax.vjp(_loss(elman, form, pb.scan, solver=solver), *at)[1]
        sizes.append(sum(v.size for v in jax.tree.leaves(pullback)))
    assert sizes[0] == sizes[1]


def test_keeping_takes_memory_between_recomputing_and_lax_scan():
    cell, sizes = CELLS["LSTM"], {}
    at = _arguments(cell, length=1000, hidden=32)
    for name, scan in {
        "lax.scan": lax.scan,
        "kept": functools.partial(pb.scan, solver=KEEP),
        "recomputed": functools.partial(pb.scan, solver=pb.Sweep()),
    }.items():
        gradient = jax.jit(jax.grad(_loss(cell, "cell", scan))).lower(*at).compile()
        sizes[name] = gradient.memory_analysis().temp_size_in_bytes
    assert 1.5 * sizes["recomputed"] < sizes["kept"] < 0.8 * sizes["lax.scan"]


def test_derivatives_of_the_gradient_make_the_steps_again():
    cell = CELLS["LSTM"]
    at = _arguments(cell)

    def hvp(scan, **options):
        gradient = jax.grad(_loss(cell, "cell", scan, **options), (0, 1, 2))
        return jax.jit(lambda *at: jax.jvp(gradient, at, jax.tree.map(jnp.cos, at))[1])(*at)

    got, want = hvp(pb.scan, solver=KEEP), hvp(lax.scan)
    eps = jnp.finfo(at[2].dtype).eps
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.abs(a - b).max() <= 1000 * eps * jnp.abs(b).max()


@pytest.mark.parametrize(
    "options", [{"jacobian": "dense"}, {"jacobian": lambda *_: Dense(jnp.eye(3))}]
)
def test_a_named_or_given_jacobian_cannot_be_kept(options):
    with pytest.raises(NotImplementedError, match=r"recompute=False.*jacobian='auto'"):
        pb.scan(
            lambda h, x: (jnp.sin(h) * x, h), jnp.ones(3), jnp.ones((4, 3)), solver=KEEP, **options
        )


def test_what_has_no_forward_pass_cannot_keep():
    system = pb.Ragged([Dense(jnp.ones((3, 2)))], [jnp.zeros(3), jnp.ones(2)])
    with pytest.raises(NotImplementedError, match=r"recompute=False.*no forward pass"):
        pb.solve(system, KEEP)
    with pytest.raises(NotImplementedError, match=r"recompute=False.*no forward pass"):
        pb.chain([jnp.tanh], [None], jnp.ones((2, 3)), solver=KEEP)
