"""`Sweep(recompute=False)`: the linearised steps kept by the forward pass."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.operators import Dense
from tests.family import assert_derivatives_close, together

KEEP = pb.Sweep(recompute=False)
ROUNDING = 1e-10 if jnp.result_type(float) == jnp.float64 else 1e-4
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


@functools.cache
def _plain(name, reverse):
    """The value of `lax.scan`, alone and with its gradient."""
    at = _arguments(CELLS[name])
    plain = _loss(CELLS[name], "cell", lax.scan, reverse=reverse)
    return jax.jit(plain)(*at), jax.jit(jax.value_and_grad(plain, (0, 1, 2)))(*at)


@pytest.mark.sampled
@pytest.mark.parametrize("form", ["cell", "closure"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_values_are_bitwise_and_gradients_close_to_those_of_lax_scan(name, reverse, form):
    kept = _loss(CELLS[name], form, pb.scan, reverse=reverse, solver=KEEP)
    value, got = jax.jit(jax.value_and_grad(kept, (0, 1, 2)))(*_arguments(CELLS[name]))
    # On some CPUs XLA rounds lax.scan itself differently where the loop stores residuals, too.
    alone, (expected, want) = _plain(name, reverse)
    assert value in (expected, alone)
    eps = jnp.finfo(value.dtype).eps
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.abs(a - b).max() <= 100 * eps * jnp.abs(b).max()


def _functions_of(solver, form):
    """How often the pullback of an LSTM's loss evaluates tanh or exp, as compiled."""
    cell = CELLS["LSTM"]
    loss = _loss(cell, form, pb.scan, solver=solver)
    pullback = jax.eval_shape(lambda: jax.vjp(loss, *_arguments(cell, hidden=20))[1])
    text = jax.jit(lambda pull, ct: pull(ct)).lower(pullback, 1.0).compile().as_text()
    return sum(text.count(f" {name}(") for name in ("tanh", "exponential"))


def _kept_numbers(f, *at, chunk=None):
    """How many numbers the pullback of ``f(scan)`` holds of kept steps, beside the carries."""
    kept = pb.Sweep(chunk, recompute=False)

    def held(solver):
        scan = functools.partial(pb.scan, solver=solver)
        pullback = jax.eval_shape(lambda: jax.vjp(f(scan), *at)[1])
        return sum(v.size for v in jax.tree.leaves(pullback))

    return held(kept) - held(pb.Sweep())


@pytest.mark.reads_compiled
@pytest.mark.parametrize("form", ["cell", "closure"])
def test_a_kept_step_is_not_evaluated_again(form):
    assert _functions_of(KEEP, form) == 0
    assert _functions_of(pb.Sweep(), form) > 0


@pytest.mark.parametrize("form", ["cell", "closure"])
def test_arithmetic_on_the_carries_is_not_kept(form):
    elman = CELLS["Elman"]
    assert _kept_numbers(functools.partial(_loss, elman, form), *_arguments(elman)) == 0


@pytest.mark.reads_compiled
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


def _hvp(loss, at):
    direction = jax.tree.map(jnp.cos, at)
    return jax.jvp(jax.grad(loss, tuple(range(len(at)))), at, direction)[1]


def _mixed(loss, at):
    """Slopes by each argument, differentiated by the next one, in reverse mode twice."""

    def slope(k, *at):
        slopes = jax.tree.leaves(jax.grad(loss, k)(*at))
        return sum(jnp.sum(jnp.cos(v) * v) for v in slopes)

    n = len(at)
    return [jax.grad(functools.partial(slope, k), (k + 1) % n)(*at) for k in range(n)]


def _two_parameters(scan, **options):
    """Cotangents of what meets the one parameter are not those of what meets the other."""

    def loss(w, u, carry, xs):
        def step(h, x):
            h = jnp.sin(w * h) + u * h + x
            return h, h

        return jnp.sum(scan(step, carry, xs, **options)[1] ** 2)

    return loss


@pytest.mark.parametrize("solver", [KEEP, None])
def test_second_derivatives_by_other_variables_than_the_first(solver):
    at = (jnp.asarray([0.2, 0.5]), jnp.asarray([0.1, 0.2]), jnp.ones(2), jnp.ones((40, 2)) / 9)
    losses = _two_parameters(pb.scan, solver=solver), _two_parameters(lax.scan)
    got, want = jax.jit(lambda *at: [_mixed(loss, at) for loss in losses])(*at)
    assert_derivatives_close(got, want, ROUNDING, mode="mixed")


@pytest.mark.parametrize("form", ["cell", "closure"])
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_second_derivatives_of_cells_by_other_variables(name, form, request):
    def case(name, form):
        cell = CELLS[name]
        losses = _loss(cell, form, pb.scan, solver=KEEP), _loss(cell, form, lax.scan)
        return lambda *at: [_mixed(loss, at) for loss in losses], _arguments(cell)

    assert_derivatives_close(*together(request, case), ROUNDING, mode="mixed")


@pytest.mark.reads_compiled
def test_products_with_the_hessian_make_no_step_again():
    cell = CELLS["LSTM"]

    def functions(solver):
        loss = _loss(cell, "cell", pb.scan, solver=solver)
        text = jax.jit(lambda *at: _hvp(loss, at)).lower(*_arguments(cell)).compile().as_text()
        return sum(text.count(f" {name}(") for name in ("tanh", "exponential"))

    assert functions(KEEP) < functions(pb.Sweep())


def _pendulum(params, carry, x):
    """Two numbers and a count; its sine is of a stored number, its friction is not."""
    angle, speed, count = carry
    friction = jnp.tanh(params * speed + x)
    speed = speed - 0.1 * jnp.sin(angle) - jnp.where(count % 3 == 0, 0.2, 0.1) * friction
    return (angle + 0.1 * speed, speed, count + 1), speed * angle


TINY = {
    "pendulum": (_pendulum, jnp.asarray(0.7), (jnp.asarray(0.3), jnp.asarray(-0.2), 0)),
    "GRU": (CELLS["GRU"], CELLS["GRU"].init(jax.random.key(0), 1, 1), 0.1 * jnp.ones((1, 1))),
    "LSTM": (CELLS["LSTM"], CELLS["LSTM"].init(jax.random.key(0), 1, 1), (jnp.ones((1, 1)),) * 2),
}
DERIVATIVES = {
    "gradient": lambda f, at: jax.grad(f, (0, 1))(*at),
    "jvp": lambda f, at: jax.jvp(f, at, jax.tree.map(jnp.sin, at)),
    "hvp": lambda f, at: _hvp(f, at),
    "gradient of gradient": lambda f, at: jax.grad(
        lambda p: sum(jnp.sum(v**2) for v in jax.tree.leaves(jax.grad(f, (0, 1))(p, at[1])))
    )(at[0]),
    "gradient of hvp": lambda f, at: jax.grad(
        lambda p: sum(jnp.sum(v**2) for v in jax.tree.leaves(_hvp(f, (p, at[1]))))
    )(at[0]),
    "third": lambda f, at: jax.jvp(lambda p, x: _hvp(f, (p, x)), at, jax.tree.map(jnp.cos, at))[1],
    "hessian by inputs": lambda f, at: jax.hessian(f, 1)(*at),
    "mapped hvp": lambda f, at: jax.vmap(lambda x: _hvp(f, (at[0], x)))(
        jnp.stack([at[1], 2 * at[1]])
    ),
    "rematerialised": lambda f, at: jax.grad(jax.checkpoint(f), (0, 1))(*at),
}


def _of_tiny_step(name, derivative, solver):
    """By a solver and by `lax.scan`: a program and its arguments."""
    step, params, carry = TINY[name]
    xs = jax.random.normal(jax.random.key(1), (5, *jnp.shape(jax.tree.leaves(carry)[0])))

    def loss(scan, params, xs):
        outputs = scan(functools.partial(step, params), carry, xs)
        return sum(jnp.sum(jnp.sin(v)) for v in jax.tree.leaves(outputs))

    scans = functools.partial(pb.scan, solver=solver), lax.scan
    losses = [functools.partial(loss, scan) for scan in scans]
    return lambda *at: [DERIVATIVES[derivative](f, at) for f in losses], (params, xs)


@pytest.mark.sampled
@pytest.mark.parametrize("solver", [KEEP, pb.Sweep(chunk=1, recompute=False)], ids=str)
@pytest.mark.parametrize(
    ("name", "derivative"),
    [
        *(("pendulum", derivative) for derivative in DERIVATIVES),
        *((cell, derivative) for cell in ("GRU", "LSTM") for derivative in ("gradient", "hvp")),
    ],
)
def test_derivatives_of_tiny_steps(name, derivative, solver, request):
    got, want = together(request, _of_tiny_step)
    assert_derivatives_close(got, want, ROUNDING, mode=derivative)


def _last(cell, carry, xs):
    """``scan -> (params -> last carry)``."""
    return lambda scan: lambda params: scan(functools.partial(cell, params), carry, xs)[0]


def test_a_tiny_step_keeps_its_gates_rather_than_slopes():
    """Three gates and the product that one of them takes; slopes follow from them in the loop."""
    cell, params, carry = TINY["GRU"]
    last = _last(cell, carry, jnp.ones((100, 1, 1)))
    assert _kept_numbers(last, params) <= 4 * 100


@pytest.mark.parametrize(
    ("length", "rows", "units", "chunk"),
    [(204, 16, 64, None), (205, 16, 64, None), (513, 1, 64, None), (100, 1, 64, 99)],
)
def test_gates_are_kept_rather_than_slopes(length, rows, units, chunk):
    """As a whole and in chunks."""
    cell = pb.cells.GRU()
    params = cell.init(jax.random.key(0), 1, units, jnp.float32)
    carry, xs = jnp.zeros((rows, units), jnp.float32), jnp.zeros((length, rows, 1), jnp.float32)
    kept = _kept_numbers(_last(cell, carry, xs), params, chunk=chunk)
    assert kept == 4 * units * rows * length


def test_nothing_leaks():
    with jax.checking_leaks():
        step, params, carry = TINY["pendulum"]
        value = lambda p, xs: pb.scan(functools.partial(step, p), carry, xs, solver=KEEP)[0][0]  # noqa: E731
        jax.jit(lambda p, xs: _hvp(value, (p, xs)))(params, jnp.ones(4))


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
