"""What a step makes of its constants alone is made once, in front of the loop."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import parscan_bp as pb
from parscan_bp.jaxprs.hoist import Hoist
from parscan_bp.jaxprs.read import walk
from tests.family import assert_derivatives_close, compare_outputs, jit_once, together

ROUNDING = 1e-10 if jnp.result_type(float) == jnp.float64 else 1e-4
SOLVERS = {
    "sweep": pb.Sweep(),
    "kept": pb.Sweep(recompute=False),
    "associative": pb.Associative(),
}
T, H = 11, 3
W = jnp.asarray([[0.5, -0.3, 0.1], [0.2, 0.4, -0.6], [-0.1, 0.3, 0.2]])
B = jnp.asarray([0.1, -0.2, 0.3])


def _names(closed):
    return [eqn.primitive.name for eqn in closed.jaxpr.eqns]


def _hoisted(step, *consts):
    """Operations made before the loop, and those that stay, of ``step(*consts, h)``."""
    hoist = Hoist.of_step(jax.make_jaxpr(step)(*consts, B), len(consts))
    return None if hoist is None else (_names(hoist.made), _names(hoist.body))


def test_a_transpose_leaves_the_loop():
    assert _hoisted(lambda w, h: w.T @ h, W) == (["transpose"], ["dot_general"])


def test_what_reads_the_carry_stays():
    assert _hoisted(lambda w, h: (w * h).T @ h, W) is None


def test_a_call_is_looked_into():
    assert _hoisted(jax.jit(lambda w, h: w.T @ h), W) == (["transpose"], ["dot_general"])


def test_a_broadcast_is_no_larger_constant():
    assert _hoisted(lambda b, h: jnp.broadcast_to(b, (4, H)) * h, B) is None
    made, stays = _hoisted(lambda b, h: jnp.broadcast_to(jnp.exp(b), (4, H)) * h, B)
    assert (made, stays) == (["exp"], ["broadcast_in_dim", "broadcast_in_dim", "mul"])


def test_what_is_read_by_further_constants_only_is_not_handed_on():
    made, _ = _hoisted(lambda w, h: jnp.exp(w.T) @ h, W)
    hoist = Hoist.of_step(jax.make_jaxpr(lambda w, h: jnp.exp(w.T) @ h)(W, B), 1)
    assert (
        made == ["transpose", "exp"] and len(hoist.made.out_avals) == 1 and hoist.read == (False,)
    )


def test_an_effect_stays():
    def step(w, h):
        jax.debug.print("{}", w[0, 0])
        return jnp.tanh(h)

    assert "debug_print" not in (_hoisted(step, W) or ([], []))[0]


@jax.custom_vjp
def _rounded(w):
    return jnp.round(4 * w) / 4


_rounded.defvjp(lambda w: (_rounded(w), None), lambda _, ct: (ct,))


def _antisymmetric(w, b):
    matrix = w - w.T - jnp.exp(b)[:, None] * jnp.eye(H)

    def step(h, x):
        h = h + 0.1 * jnp.tanh(matrix @ h + x + b)
        return h, h

    return step


def _made_in_the_step(make):
    """The step itself makes ``make(w, b)``: the closure holds w and b only."""
    return lambda w, b: lambda h, x: make(w, b)(h, x)


def _quantised(w, b):
    return lambda h, x: (jnp.tanh(_rounded(w) @ h + x), h * b)


def _held(w, b):
    """An output, and a leaf of the carry, that are made of constants."""

    def step(carry, x):
        h, _ = carry
        return (jnp.tanh(w.T @ h + x), jnp.exp(b)), jnp.sin(b)

    return step


STEPS = {"antisymmetric": _made_in_the_step(_antisymmetric), "held": _held}


def _loss(step, scan, **options):
    def loss(w, b, h, xs):
        init = (h, h) if step is _held else h
        outputs = scan(step(w, b), init, xs, **options)
        return sum(jnp.sum(jnp.sin(v)) for v in jax.tree.leaves(outputs))

    return loss


AT = (W, B, jnp.ones(H), jnp.cos(jnp.arange(T * H, dtype=W.dtype)).reshape(T, H))


def _derivatives(loss):
    """Gradients by every argument alone and by all, tangents, and second derivatives."""

    def derivatives(*at):
        ones = jax.tree.map(jnp.ones_like, at)
        gradient = jax.grad(loss, (0, 1, 2, 3))
        apart = lambda *at: jnp.sum(jnp.cos(jax.grad(loss, 1)(*at)))  # noqa: E731
        return {
            "alone": [jax.grad(loss, k)(*at) for k in range(4)],
            "all": gradient(*at),
            "jvp": jax.jvp(loss, at, ones)[1],
            "jvp of a constant": jax.jvp(lambda w: loss(w, *at[1:]), at[:1], ones[:1])[1],
            "hvp": jax.jvp(gradient, at, ones)[1],
            "apart": jax.grad(apart, 0)(*at),
            "vmap": jax.vmap(gradient, (0, None, None, None))(
                jnp.stack([at[0], 2 * at[0]]), *at[1:]
            ),
        }

    return derivatives


@pytest.mark.parametrize(
    ("solver", "reverse"), [("sweep", True), *((name, False) for name in SOLVERS)]
)
@pytest.mark.parametrize("name", STEPS)
def test_derivatives(name, solver, reverse, request):
    def case(name, solver, reverse):
        scans = functools.partial(pb.scan, solver=SOLVERS[solver]), lax.scan
        both = [_derivatives(_loss(STEPS[name], scan, reverse=reverse)) for scan in scans]
        return lambda *at: [f(*at) for f in both], AT

    got, want = together(request, case)
    assert_derivatives_close(got, want, ROUNDING, case=name, mode=solver)


@pytest.mark.parametrize("name", STEPS)
def test_values_are_those_of_the_traced_loop(name):
    step, (_, _, h, xs) = STEPS[name](W, B), AT
    init = (h, h) if name == "held" else h
    scans = functools.partial(pb.scan, solver=pb.Sweep()), lax.scan
    got, want = jax.jit(lambda xs: [scan(step, init, xs) for scan in scans])(xs)
    compare_outputs(got, want, case=name, mode="jit")


def test_a_rule_of_constants_alone_is_no_obstacle():
    """Weights that are rounded, and whose derivative is another: no solver differentiates that."""
    scans = functools.partial(pb.scan, solver=pb.Sweep()), lax.scan
    both = [jax.grad(_loss(_quantised, scan), (0, 1, 2, 3)) for scan in scans]
    ours, theirs = jit_once(lambda *at: [f(*at) for f in both])(*AT)
    assert_derivatives_close(ours, theirs, ROUNDING, case="quantised", mode="grad")


def test_explain_says_what_is_made_once():
    step, (_, _, h, xs) = STEPS["antisymmetric"](W, B), AT
    assert "constants alone" in pb.explain(step, h, xs, solver=pb.Sweep()).stored
    assert "constants" not in pb.explain(lambda h, x: (0.5 * h, x), h, xs, solver=pb.Sweep()).stored


def test_the_debug_check_sees_all_constants():
    step, (_, _, h, xs) = STEPS["antisymmetric"](W, B), AT
    pb.scan(step, h, xs, solver=pb.Associative(), check_jacobian=True)


def _in_loops(f, *at, length):
    """Operations in the loops of so many steps that ``f`` makes."""
    scans = [e for e in walk(jax.make_jaxpr(f)(*at)) if e.primitive.name == "scan"]
    bodies = [e.params["jaxpr"] for e in scans if e.params["length"] == length]
    return {eqn.primitive.name for body in bodies for eqn in walk(body)}


def test_only_the_traced_loop_transposes_weights():
    xs = jnp.ones((100, H))

    def loss(w):
        step = lambda h, x: (jnp.tanh(w.T @ h + x),) * 2  # noqa: E731
        return jnp.sum(pb.scan(step, xs[0], xs, solver=pb.Sweep())[1])

    assert "transpose" in _in_loops(loss, W, length=100)
    of_derivative = _in_loops(jax.grad(loss), W, length=100)
    assert "dot_general" in of_derivative and "transpose" not in of_derivative


READS = {
    "compared": lambda w: jnp.where(w > 0.1, 1.0, 0.5).astype(w.dtype),
    "an index": lambda w: jnp.arange(1, 4, dtype=w.dtype)[(2 * jnp.abs(w)).astype(int)],
    "cast": lambda w: (4 * w).astype(int).astype(w.dtype),
}


def _read_only(read, scan, where):
    """A parameter that is read by ``read`` alone: before the loop, in it, from step to step."""

    def loss(w, h, xs):
        def step(carry, x):
            h, kept = carry
            const = w if where == "const" else w + 0 * lax.stop_gradient(h)
            h = jnp.tanh(0.5 * h + x[0]) * read(const) * read(kept) * read(x[1])
            return (h, 0.9 * kept), h

        # In the loop it is a leaf of the carry and an input, too.
        other = jnp.ones_like(w) if where == "const" else w
        rows = other * jnp.ones((xs.shape[0], 1), w.dtype)
        (h, _), ys = scan(step, (h, other), (xs, rows))
        return jnp.sum(jnp.sin(h)) + jnp.sum(ys**2)

    return loss


def _second_order(loss):
    """Derivatives by the parameter alone, which are zero, and with the others."""

    def derivatives(w, h, xs):
        ones = jax.tree.map(jnp.ones_like, (w, h, xs))
        alone = lambda w: loss(w, h, xs)  # noqa: E731
        return {
            "grad": jax.grad(alone)(w),
            "jvp": jax.jvp(alone, (w,), ones[:1]),
            "hvp of all": jax.jvp(jax.grad(loss, (0, 1, 2)), (w, h, xs), ones),
        }

    return derivatives


@pytest.mark.parametrize(
    ("where", "read", "solver"),
    [
        ("const", "compared", "sweep"),
        ("const", "cast", "associative"),
        ("const in the loop", "an index", "kept"),
    ],
)
def test_a_parameter_that_is_only_compared_or_cast_has_no_derivative(where, read, solver, request):
    at = B, jnp.ones(H), jnp.cos(jnp.arange(4 * H, dtype=B.dtype)).reshape(4, H)

    def case(where, read, solver):
        scans = functools.partial(pb.scan, solver=SOLVERS[solver]), lax.scan
        both = [_second_order(_read_only(READS[read], scan, where)) for scan in scans]
        return lambda *at: [f(*at) for f in both], at

    got, want = together(request, case)
    assert not got["grad"].any()
    assert_derivatives_close(got, want, ROUNDING, case=f"{where}, {read}", mode=solver)
