"""`parscan_bp.scan` in the surroundings in which users call `jax.lax.scan`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import parscan_bp
from tests.family import Draw, assert_derivatives_close, compare_outputs, jit_once, together

SOLVERS = {
    "auto": None,
    "sweep": parscan_bp.Sweep(),
    "associative": parscan_bp.Associative(),
    "blelloch": parscan_bp.Blelloch(),
    "chunked": parscan_bp.Chunked(chunks=3),
}
SEQUENTIAL = ("auto", "sweep")
every_solver = pytest.mark.parametrize("solver", SOLVERS)
# What does not depend on how the system is solved.
any_solver = pytest.mark.sampled(of=("auto", "associative"))

ROUNDING = 1e-10 if jnp.result_type(float) == jnp.float64 else 1e-5
BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
_compilations: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _listen():
    """Counts compilations, for this module only."""

    def listener(event, duration, **kwargs):
        if event == BACKEND_COMPILE:
            _compilations.append(kwargs.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(listener)
    yield
    jax.monitoring.unregister_event_duration_listener(listener)


def _scan(solver):
    """`parscan_bp.scan` by the named solver; "lax" is `lax.scan` itself, the reference."""
    if solver == "lax":
        return lax.scan
    return functools.partial(parscan_bp.scan, solver=SOLVERS[solver])


def _step(h, x):
    """Rows (B, H) that are independent of each other, coupled in H."""
    h = jnp.tanh(h @ jnp.asarray([[0.5, -0.3], [0.2, 0.4]], h.dtype)) + 0.5 * x
    return h, h * x


def _arguments(n=5, rows=3):
    draw = Draw(n, rows)
    return jnp.asarray(draw(rows, 2)), jnp.asarray(draw(n, rows, 2))


def _loss(scan, step=_step, **kwargs):
    def loss(init, xs):
        final, ys = scan(step, init, xs, **kwargs)
        weights = jnp.arange(1.0, ys.size + 1).reshape(ys.shape) / ys.size
        return jnp.sum(jnp.sin(final)) + jnp.sum(weights * ys**2)

    return loss


def _gradient(scan, **kwargs):
    return jax.grad(_loss(scan, **kwargs), (0, 1))


# Configuration contexts.


@any_solver
@every_solver
def test_disable_jit(solver):
    outputs, gradient = _without_jit("lax")
    got, got_gradient = _without_jit(solver)
    compare_outputs(got, outputs, mode="disable_jit")
    assert_derivatives_close(got_gradient, gradient, ROUNDING, mode="disable_jit")


@functools.cache
def _without_jit(solver):
    with jax.disable_jit():
        return _scan(solver)(_step, *_arguments()), _gradient(_scan(solver))(*_arguments())


def test_disable_jit_without_steps():
    """`lax.scan` cannot know the type of ys there, and says so."""
    with jax.disable_jit():
        with pytest.raises(ValueError) as want:
            lax.scan(_step, *_arguments(0))
        with pytest.raises(ValueError) as got:
            parscan_bp.scan(_step, *_arguments(0))
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize("solver", ["sweep", "blelloch"])  # one linear, one tree: the slowest test
def test_checking_leaks(solver):
    with jax.checking_leaks():
        _gradient(_scan(solver))(*_arguments(6))
        jit_once(jax.hessian(_loss(_scan(solver))))(*_arguments(6))


@any_solver
@every_solver
def test_debug_nans(solver):
    init, xs = _arguments(7)
    broken = xs.at[3, 1, 0].set(jnp.nan)
    gradient = _gradient(_scan(solver))
    with jax.debug_nans(True):
        gradient(init, xs)
        jax.jit(gradient)(init, xs)
        with pytest.raises(FloatingPointError):
            jax.block_until_ready(gradient(init, broken))
        with pytest.raises(FloatingPointError):
            jax.block_until_ready(jax.jit(gradient)(init, broken))


# Abstract evaluation.


@every_solver
def test_eval_shape(solver):
    for function in (
        lambda scan: jax.eval_shape(functools.partial(scan, _step), *_arguments()),
        lambda scan: jax.eval_shape(_gradient(scan), *_arguments()),
        lambda scan: jax.eval_shape(jax.jacfwd(_gradient(scan)), *_arguments()),
    ):
        compare_outputs(function(_scan(solver)), function(lax.scan), mode="eval_shape")


@every_solver
def test_make_jaxpr(solver):
    for derive in (lambda scan: functools.partial(scan, _step), _gradient):
        want, got = (
            jax.make_jaxpr(derive(scan))(*_arguments()) for scan in (lax.scan, _scan(solver))
        )
        assert got.in_avals == want.in_avals
        assert got.out_avals == want.out_avals


# Arguments that are hard to get right.


@pytest.mark.sampled
@every_solver
@pytest.mark.parametrize("derive", ["grad", "jvp", "hvp"])
def test_python_numbers(solver, derive):
    """Python floats as `init` and as a closed-over weight, differentiated without a jit."""
    got, want = (_by_python_numbers(name, derive) for name in (solver, "lax"))
    assert_derivatives_close(got, want, ROUNDING, mode=derive)


@functools.cache
def _by_python_numbers(solver, derive):
    xs = _arguments()[1][:, 0, 0]

    def loss(init, weight):
        final, ys = _scan(solver)(lambda c, x: (jnp.sin(weight * c) + x, c), init, xs)
        return final + jnp.sum(ys**2)

    def along(function):
        return jax.jvp(function, (0.4, 0.9), (1.0, 2.0))

    gradient = jax.grad(loss, (0, 1))
    return {
        "grad": lambda: gradient(0.4, 0.9),
        "jvp": lambda: along(loss),
        "hvp": lambda: along(gradient),
    }[derive]()


@jax.custom_jvp
def _false_sine(x):
    return jnp.sin(x)


@_false_sine.defjvp
def _(primals, tangents):
    return _false_sine(primals[0]), 0.5 * jnp.cos(primals[0]) * tangents[0]


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "auto"])
def test_second_derivative_of_a_false_tangent(solver, request):
    """A rule that is not the derivative: as in a Python loop, from which `lax.scan` differs."""

    def loop(f, carry, xs):
        for x in xs:
            carry, _ = f(carry, x)
        return carry, None

    def hvp(scan):
        def last(carry, weight):
            xs = jnp.asarray([0.2, 0.4, 0.6])
            return scan(lambda c, x: (_false_sine(weight * c + x), None), carry, xs)[0]

        return lambda *at: jax.jvp(jax.grad(last, (0, 1)), at, (jnp.ones_like(at[0]),) * 2)

    def case(solver):
        both = hvp(_scan(solver)), hvp(loop)
        return lambda *at: [f(*at) for f in both], (jnp.asarray(0.4), jnp.asarray(0.9))

    assert_derivatives_close(*together(request, case), ROUNDING, mode="hvp")


# Surroundings.


@any_solver
@every_solver
def test_static_arguments(solver):
    for options in ({"reverse": False, "unroll": 2}, {"reverse": True, "unroll": True}):
        got, want = _by_static_arguments(solver, **options)
        assert_derivatives_close(got, want, ROUNDING, mode=f"static {options}")


def _by_static_arguments(solver, **options):
    @functools.partial(jax.jit, static_argnames=("reverse", "unroll", "length"))
    def gradients(init, xs, reverse, unroll, length):
        options = {"reverse": reverse, "unroll": unroll, "length": length}
        scans = _scan(solver), lax.scan
        return [jax.grad(_loss(scan, **options), (0, 1))(init, xs) for scan in scans]

    return gradients(*_arguments(), length=5, **options)


@any_solver
@every_solver
def test_named_scope(solver):
    def named(init, xs):
        with jax.named_scope("recurrence"):
            return [_gradient(_scan(name))(init, xs) for name in (solver, "lax")]

    got, want = jit_once(named)(*_arguments())
    assert_derivatives_close(got, want, ROUNDING, mode="scope")


@any_solver
@every_solver
def test_shard_map(solver):
    """On one device; the rows are split along a mesh axis of size one."""
    (got, *derivatives), (want, *expected) = (_on_a_mesh(name) for name in (solver, "lax"))
    compare_outputs(got, want, mode="shard_map")
    for a, b, mode in zip(derivatives, expected, ("inside shard_map", "through it"), strict=True):
        assert_derivatives_close(a, b, ROUNDING, mode=f"gradient {mode}")


@functools.cache
def _on_a_mesh(solver):
    """Outputs, the gradient inside `jax.shard_map`, and the gradient of a loss outside of it."""
    rows, steps = PartitionSpec("rows"), PartitionSpec(None, "rows")
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("rows",))
    step = functools.partial(_scan(solver), _step)

    def mapped(function):
        specs = {"in_specs": (rows, steps), "out_specs": (rows, steps)}
        return jax.shard_map(function, mesh=mesh, **specs)

    loss = lambda init, xs: jnp.sum(jnp.sin(mapped(step)(init, xs)[1]))  # noqa: E731
    each = mapped(step), mapped(_gradient(_scan(solver))), jax.grad(loss, (0, 1))
    return jax.jit(lambda *args: [f(*args) for f in each])(*_arguments())


# Compilation.


def _compiled_by(function):
    _compilations.clear()
    jax.block_until_ready(function())
    return list(_compilations)


@pytest.mark.sampled
@every_solver
@pytest.mark.parametrize("what", ["forward", "gradient", "jvp"])
def test_second_eager_call_compiles_nothing(solver, what):
    """The same step function object, new values."""

    def step(h, x):
        h = jnp.cos(h @ jnp.asarray([[0.5, 1.0], [1.0, 0.0]], h.dtype)) * x
        return h, h + x

    # Long enough, and with a product of matrices, for the automatic choice not to be lax.scan,
    # which compiles its derivative again.
    n = 300 if solver == "auto" else 4
    assert parscan_bp.explain(step, *_arguments(n), solver=SOLVERS[solver]).choice != "lax.scan"
    scan = _scan(solver)
    loss = _loss(scan, step)
    calls = {
        "forward": lambda *arguments: scan(step, *arguments),
        "gradient": jax.grad(loss, (0, 1)),
        "jvp": lambda *arguments: jax.jvp(loss, arguments, arguments),
    }
    arguments = [jax.tree.map(lambda v: v * s, _arguments(n)) for s in (1.0, 0.5)]
    assert _compiled_by(lambda: calls[what](*arguments[0])), "the count does not work"
    again = _compiled_by(lambda: calls[what](*arguments[1]))
    assert not again, f"{len(again)} programs compiled again: {again}"


# Values that are not finite.

BAD_STEP, BAD_ROW, STEPS, ROWS = 4, 1, 9, 3


def _affine(h, x):
    """Constant Jacobian: an infinite input makes no derivative infinite."""
    h = h @ jnp.asarray([[0.5, -0.3], [0.2, 0.4]], h.dtype) + x
    return h, h


def _gated(h, x):
    """The Jacobian has the input as a factor."""
    h = jnp.sin(h @ jnp.asarray([[0.5, -0.3], [0.2, 0.4]], h.dtype)) * x + 0.1 * x
    return h, h


def _poisoned():
    """`(name, init, xs, weights)` with one bad entry in one row, of the inputs or the cotangent."""
    init, xs = _arguments(STEPS, ROWS)
    weights = jnp.ones_like(xs)
    for value in (jnp.inf, -jnp.inf, jnp.nan):
        yield f"{value} in xs", init, xs.at[BAD_STEP, BAD_ROW, 0].set(value), weights
        yield f"{value} in ybar", init, xs, weights.at[BAD_STEP, BAD_ROW, 0].set(value)


@functools.cache
def _weighted(solver, step, reverse):
    """The gradient of a weighted sum of the outputs."""

    def loss(init, xs, weights):
        return jnp.sum(weights * _scan(solver)(step, init, xs, reverse=reverse)[1])

    return jax.jit(jax.grad(loss, (0, 1)))


@pytest.mark.sampled
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("step", [_affine, _gated], ids=["affine", "gated"])
@every_solver
def test_what_is_not_finite_stays_where_it_is(solver, step, reverse):
    """`Sweep` has exactly the set of `lax.scan`; a tree may spread it to earlier steps of the row.

    "Earlier" in the order in which the scan runs: the last ones of `xs` if it is reversed.
    """

    scan = _scan(solver)
    ours, theirs = (_weighted(name, step, reverse) for name in (solver, "lax"))
    later = np.arange(BAD_STEP) if reverse else np.arange(BAD_STEP + 1, STEPS)
    others = np.asarray([row for row in range(ROWS) if row != BAD_ROW])
    for name, init, xs, weights in _poisoned():
        outputs = (s(step, init, xs, reverse=reverse) for s in (scan, lax.scan))
        compare_outputs(*outputs, mode=name)
        got, want = ours(init, xs, weights), theirs(init, xs, weights)
        if solver in SEQUENTIAL:
            assert_derivatives_close(got, want, ROUNDING, mode=name)
            continue
        for where, part in (
            ("the other rows", lambda d: (d[0][others], d[1][:, others])),
            ("the later steps", lambda d: d[1][later]),
        ):
            assert_derivatives_close(part(got), part(want), ROUNDING, mode=f"{name}: {where}")
        for g, w in zip(got, want, strict=True):
            hidden = np.isfinite(g) & ~np.isfinite(w)
            assert not hidden.any(), f"{name}: finite, unlike lax.scan's: {np.argwhere(hidden)}"
