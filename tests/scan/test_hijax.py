"""`HiPrim` and `HiType` of jax 0.12: in a step, as what JAX is to make by default, as a carry."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import parscan_bp as pb
from parscan_bp.jaxprs.decisions import compares, decides
from parscan_bp.jaxprs.hijax import kind_of
from parscan_bp.jaxprs.read import walk
from parscan_bp.structure import find_structure, unsupported
from tests.family import assert_derivatives_close

hijax = pytest.importorskip("jax.experimental.hijax", reason="this jax has no hijax")
if not hasattr(hijax, "HiPrim"):
    pytest.skip("this jax has no HiPrim", allow_module_level=True)

W, H0, XS = (
    np.random.default_rng(seed).normal(size=size).astype(np.float32) / 2
    for seed, size in enumerate([(3, 3), (2, 3), (9, 2, 3)])
)
GRID = np.linspace(-2, 2, 7, dtype=np.float32)


@contextlib.contextmanager
def made_by_hijax(*names):
    """JAX's own calls as `HiPrim`, as they are to be by default."""
    flags = [f"jax_{name}3" for name in names]
    before = [getattr(jax.config, flag, None) for flag in flags]
    if None in before:
        pytest.skip(f"this jax has not all of {flags}")
    try:
        for flag in flags:
            jax.config.update(flag, True)
        yield
    finally:
        for flag, value in zip(flags, before, strict=True):
            jax.config.update(flag, value)


def derivatives(scan, step):
    """Value and gradients by parameters, first carry and inputs; a tangent; one of the gradient."""

    def loss(w, h, xs):
        carry, ys = scan(step(w), h, xs)
        return jnp.sum(carry**2) + jnp.sum(jnp.sin(ys))

    gradient = jax.value_and_grad(loss, (0, 1, 2))
    args = (W, H0, XS)

    @jax.jit
    def run(args):
        tangent = jax.jvp(loss, args, args)[1]
        return gradient(*args), tangent, jax.jvp(lambda w: jax.grad(loss)(w, H0, XS), (W,), (W,))[1]

    return run(args)


def check(step, *solvers):
    want = derivatives(lax.scan, step)
    for solver in solvers:
        got = derivatives(functools.partial(pb.scan, solver=solver), step)
        assert_derivatives_close(got, want, 1e-4, mode=str(solver))


@jax.custom_jvp
def _sine(x):
    return jnp.sin(x)


_sine.defjvp(lambda primals, tangents: (_sine(*primals), jnp.cos(*primals) * tangents[0]))


@jax.custom_vjp
def _cosine(x):
    return jnp.cos(x)


_cosine.defvjp(lambda x: (jnp.cos(x), x), lambda x, ct: (-ct * jnp.sin(x),))


def test_a_program_is_read_alike_however_its_calls_are_made():
    def f(best, x):
        now = jax.checkpoint(lambda v: jnp.minimum(best, jax.nn.relu(v)))(x)
        return checkpoint_name(_cosine(now), "value"), _sine(best)

    def read(jaxpr):
        eqns = [[kind_of(eqn), decides(eqn), compares(eqn)] for eqn in walk(jaxpr)]
        return eqns, find_structure(jaxpr, 0, 1), unsupported(jaxpr)

    want = read(jax.make_jaxpr(f)(1.0, 2.0))
    with made_by_hijax("custom_jvp", "custom_vjp", "remat"):
        jaxpr = jax.make_jaxpr(lambda *values: f(*values))(1.0, 2.0)
        assert "call_hi_primitive" in [eqn.primitive.name for eqn in jaxpr.eqns]
        assert read(jaxpr) == want


@pytest.mark.parametrize("f, solver", [(jax.nn.relu, pb.Blelloch()), (_sine, pb.Sweep())])
def test_custom_jvp3(f, solver):
    with made_by_hijax("custom_jvp"):
        step = lambda w: lambda h, x: (f(h @ w + x), h)  # noqa: E731
        check(step, solver)
        explained = pb.explain(step(W), H0, XS, solver=solver)
    assert explained.choice == str(solver) and explained.batch_axes == ((0,),)


_NAMED = jax.checkpoint_policies.save_only_these_names("product")


@pytest.mark.parametrize("policy, recompute", [(None, True), (_NAMED, False)])
def test_remat3(policy, recompute):
    def step(w):
        f = lambda h, x: (jnp.tanh(checkpoint_name(h @ w, "product") + x), h)  # noqa: E731
        return jax.checkpoint(f, policy=policy)

    with made_by_hijax("remat"):
        check(step, pb.Sweep(recompute=recompute))


def test_a_checkpoint_around_the_scan_by_remat3():
    def loss(scan, w):
        return jnp.sum(scan(lambda h, x: (jnp.tanh(h @ w + x), h), H0, XS)[1] ** 2)

    with made_by_hijax("remat", "custom_jvp", "custom_vjp"):
        want = jax.grad(functools.partial(loss, lax.scan))(W)
        ours = jax.checkpoint(
            functools.partial(loss, functools.partial(pb.scan, solver=pb.Sweep()))
        )
        np.testing.assert_allclose(jax.jit(jax.grad(ours))(W), want, rtol=1e-4, atol=1e-5)


def test_custom_vjp3_is_left_or_refused():
    step = lambda w: lambda h, x: (_cosine(h @ w + x), h)  # noqa: E731
    gradient = lambda scan: jax.grad(lambda w: jnp.sum(scan(step(w), H0, XS)[1]))(W)  # noqa: E731
    with made_by_hijax("custom_vjp"):
        want = gradient(lax.scan)
        for solver in (None, pb.Sweep(otherwise="lax")):
            got = gradient(functools.partial(pb.scan, solver=solver))
            np.testing.assert_array_equal(got, want)
            assert "custom_vjp_call" in pb.explain(step(W), H0, XS, solver=solver).reason
        with pytest.raises(NotImplementedError, match=r"solver=Sweep.*custom_vjp_call"):
            pb.scan(step(W), H0, XS, solver=pb.Sweep())


def test_custom_vjp3_with_a_jacobian():
    """The Jacobian that is given stands for that of the rule, also where JAX holds the rule so."""
    step = lambda h, x: (_cosine(h) * x, h)  # noqa: E731
    given = lambda h, x, new: pb.operators.Diagonal(-jnp.sin(h) * x)  # noqa: E731
    loss = lambda scan: lambda h: jnp.sum(scan(step, h, XS)[1])  # noqa: E731
    ours = functools.partial(pb.scan, jacobian=given, solver=pb.Sweep())
    with made_by_hijax("custom_vjp"):
        want = jax.grad(loss(lax.scan))(H0)
        np.testing.assert_allclose(jax.grad(loss(ours))(H0), want, rtol=1e-5, atol=1e-6)


STEPS = {
    "interp": lambda w: lambda h, x: (jnp.interp(jnp.tanh(h @ w + x), GRID, jnp.sin(GRID)), h),
    "frexp": lambda w: lambda h, x: (jnp.tanh(jnp.frexp(h @ w)[0] + jnp.ldexp(x, -1)), h),
    "custom_root": lambda w: lambda h, x: (_cube_root(h @ w + x), h),
}


def _cube_root(y):
    def newton(f, z):
        return lax.fori_loop(0, 30, lambda _, z: z - f(z) / (1 + 3 * z * z), z)

    solve = lambda g, b: b / g(jnp.ones_like(b))  # noqa: E731
    return lax.custom_root(lambda z: z + z**3 - y, jnp.zeros_like(y), newton, solve)


@pytest.mark.parametrize("name", STEPS)
def test_operations_of_jax_that_are_hi_primitives(name):
    check(STEPS[name], pb.Sweep())


def test_a_loop_that_is_a_hi_primitive_is_left_or_refused():
    step = lambda h, x: (jnp.tanh(h + x), h)  # noqa: E731
    want = lax.scan(step, H0, XS)[1]
    with made_by_hijax("scan"):
        for solver in (None, pb.Sweep(otherwise="lax")):
            np.testing.assert_array_equal(pb.scan(step, H0, XS, solver=solver)[1], want)
        with pytest.raises(NotImplementedError, match="no loop"):
            pb.scan(step, H0, XS, solver=pb.Sweep())


class _Square(hijax.HiPrim):
    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return x * x

    def jvp(self, primals, tangents):
        return self(*primals), 2 * primals[0] * tangents[0]

    vjp_fwd, vjp_bwd_retval = hijax.vjp_from_jvp
    lin, linearized = hijax.linearize_from_jvp


def test_an_operation_that_is_not_of_jax_is_left_or_refused():
    step = lambda w: lambda h, x: (jnp.tanh(_Square(jax.typeof(h))(h) @ w + x), h)  # noqa: E731
    gradient = lambda scan: jax.grad(lambda w: jnp.sum(scan(step(w), H0, XS)[1]))(W)  # noqa: E731
    want = gradient(lax.scan)
    for solver in (None, pb.Sweep(otherwise="lax")):
        np.testing.assert_array_equal(gradient(functools.partial(pb.scan, solver=solver)), want)
        assert "_Square" in pb.explain(step(W), H0, XS, solver=solver).reason
    for checkpointed in (False, True):  # a checkpoint hides nothing
        inner = jax.checkpoint(step(W)) if checkpointed else step(W)
        with made_by_hijax("remat"), pytest.raises(NotImplementedError, match=r"solver=.*_Square"):
            pb.scan(inner, H0, XS, solver=pb.Sweep())


@dataclasses.dataclass
class _Pair:
    a: object
    b: object


@dataclasses.dataclass(frozen=True)
class _PairType(hijax.HiType):
    part: object

    def __hash__(self):
        return hash(("pair", self.part))

    def __eq__(self, other):
        return isinstance(other, _PairType) and self.part == other.part

    def lo_ty(self):
        return [self.part, self.part]

    def lower_val(self, pair):
        return [pair.a, pair.b]

    def raise_val(self, a, b):
        return _Pair(a, b)


class _Make(hijax.HiPrim):
    def __init__(self, part):
        self.in_avals, self.out_aval, self.params = (part, part), _PairType(part), {}
        super().__init__()

    def expand(self, a, b):
        return _Pair(a, b)


class _Get(hijax.HiPrim):
    def __init__(self, pair):
        self.in_avals, self.out_aval, self.params = (pair,), (pair.part, pair.part), {}
        super().__init__()

    def expand(self, pair):
        return pair.a, pair.b


def test_a_carry_of_a_hi_type_is_left_or_refused():
    hijax.register_hitype(_Pair, lambda pair: _PairType(jax.typeof(pair.a)))

    def step(pair, x):
        a, b = _Get(jax.typeof(pair))(pair)
        a = jnp.tanh(a + x * b)
        return _Make(jax.typeof(a))(a, b), a

    first = _Pair(jnp.ones((2, 3)), jnp.ones((2, 3)) / 2)
    want = lax.scan(step, first, XS)
    for solver in (None, pb.Sweep(otherwise="lax")):
        carry, ys, report = pb.scan(step, first, XS, solver=solver, report=True)
        np.testing.assert_array_equal(ys, want[1])
        np.testing.assert_array_equal(carry.a, want[0].a)
        assert report.status == pb.Status.OK and report.fell_back == (solver is not None)
        assert "_PairType" in pb.explain(step, first, XS, solver=solver).reason
    for name, option in (("solver=", pb.Sweep()), ("forward=", "chunks")):
        with pytest.raises(NotImplementedError, match=f"^{name}.*_PairType"):
            pb.scan(step, first, XS, **{name[:-1]: option})
