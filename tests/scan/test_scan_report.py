"""`report=True` of `scan`: how good derivatives are, a result under every transformation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import parscan_bp as pb
from parscan_bp import cells
from parscan_bp.report import Rounds, error_bound
from parscan_bp.solvers import Complexity, Solver

XS = jnp.linspace(-1.0, 1.0, 6)
REPORTED = [(pb.Sweep(), True), (pb.Sweep(recompute=False), False), (pb.Chunked(chunks=2), True)]


def pair(carry, x):
    """Two leaves that depend on each other, and an output that is neither."""
    h, m = carry
    m = jax.nn.sigmoid(h) * m + x
    return (jnp.tanh(m), m), h * m


@pytest.mark.parametrize(("solver", "reverse"), REPORTED, ids=str)
def test_results_are_those_without_a_report(solver, reverse):
    init, how = (jnp.zeros(3), jnp.ones(3)), {"solver": solver, "reverse": reverse}
    carry, ys, report = pb.scan(pair, init, XS, **how, report=True)
    results = (carry, ys), pb.scan(pair, init, XS, **how)
    for got, want in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(got, want)
    assert report.status == pb.Status.OK and report.residual < 1e-6
    assert report.iterations == 1 and not report.fell_back


@pytest.mark.parametrize("solver", [pb.Sweep(), pb.ChunkedCorrections(chunks=2), pb.Blelloch()])
def test_products_inside_of_a_step_may_be_as_exact_as_its_shortest_dtype(solver):
    def step(h, x):
        h = jnp.tanh(weight @ h.astype(jnp.bfloat16) + x).astype(h.dtype)
        return h, h

    weight = jax.random.normal(jax.random.key(0), (4, 4), jnp.bfloat16)
    xs = XS[:, None].astype(jnp.bfloat16)
    *_, report = pb.scan(step, jnp.ones(4, jnp.float32), xs, solver=solver, report=True)
    assert report.bound == error_bound(jnp.bfloat16)
    # XLA (jaxlib 0.10.1) rounds the products of a sweep on their way.
    assert report.status == pb.Status.OK and report.residual < report.bound / 2


@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Blelloch()], ids=str)
@pytest.mark.parametrize("short", [jnp.float16, jnp.complex64], ids=["float16", "complex64"])
def test_what_a_long_dtype_hands_to_a_short_one_is_no_error(solver, short):
    long = jnp.result_type(complex if short == jnp.complex64 else float)

    def step(carry, _):
        a, b = carry
        return (0.7 * a + b.astype(a.dtype), (0.3 * a).astype(b.dtype)), None

    init = jnp.ones(2, long), jnp.ones(2, short)
    *_, report = pb.scan(step, init, None, 3, solver=solver, report=True)
    assert report.status == pb.Status.OK and report.residual <= error_bound(short)


@jax.jit
def _scaled_by(a, init):
    """Of h_t = a_t h_{t-1}, by each of these solvers."""
    solvers = (pb.Sweep(), pb.Blelloch(), pb.Blelloch(scaled=True))
    return [pb.scan(lambda h, a: (a * h, None), init, a, solver=s, report=True)[2] for s in solvers]


def test_a_tree_that_overflows_is_reported_where_a_sweep_is_not():
    sweep, tree, scaled = _scaled_by(
        jnp.ones(8, jnp.float32).at[5:].set(1e15), jnp.zeros(1, jnp.float32)
    )
    assert sweep.status == scaled.status == pb.Status.OK
    assert tree.status == pb.Status.NON_FINITE and np.isnan(tree.residual)
    # Values that are not finite are told by every solver.
    for report in _scaled_by(jnp.ones(8), jnp.full(1, jnp.nan)):
        assert report.status == pb.Status.NON_FINITE and np.isnan(report.residual)


def _value(a, xs):
    step = lambda h, x: (jnp.tanh(a * h + x), h)  # noqa: E731
    h, _, report = pb.scan(step, jnp.zeros(2), xs, solver=pb.Blelloch(), report=True)
    return jnp.sum(h), report


def test_a_report_is_alive_under_every_transformation():
    xs = XS[:, None] * jnp.ones(2)

    def modes(a):
        one, again = lambda a: _value(a, xs), jax.checkpoint(_value)
        return {
            "value": one(a)[1],
            "grad": jax.grad(one, has_aux=True)(a)[1],
            "checkpoint": jax.grad(again, has_aux=True)(a, xs)[1],
            "jvp": jax.jvp(one, (a,), (1.0,))[0][1],
            "jacrev of grad": jax.jacrev(jax.grad(one, has_aux=True), has_aux=True)(a)[1],
            "slopes": jax.jvp(lambda a: one(a)[1].residual, (a,), (1.0,))[1],
            "pullback": jax.grad(lambda xs: _value(a, xs)[1].residual)(xs),
        }

    reports = jax.jit(modes)(0.5)
    assert not reports.pop("slopes").any() and not reports.pop("pullback").any()
    for mode, got in {**reports, "eager": _value(0.5, xs)[1]}.items():
        assert (got.status, got.iterations, got.fell_back) == (0, 1, False), mode
        want = reports["value"].residual
        np.testing.assert_allclose(got.residual, want, atol=1e-6, err_msg=mode)
    mapped = jax.jit(jax.vmap(_value, (None, 0)))(0.5, jnp.stack([xs, xs * jnp.nan]))[1]
    assert mapped.status.tolist() == [0, 1]


def test_it_is_a_program_of_its_own():
    def programs(**options):
        step = lambda h, x: (jnp.tanh(h + x), h)  # noqa: E731
        run = lambda h: pb.scan(step, h, XS, solver=pb.Sweep(), **options)  # noqa: E731
        return [(e.primitive.name, e.params.get("name")) for e in jax.make_jaxpr(run)(0.5).eqns]

    without, reported = programs(), programs(report=True)
    assert without == [("call_with_rule", None)]
    assert [e for e in reported if e[0] != "stop_gradient"] == [*without, ("jit", "report")]


def test_where_the_scan_is_left_to_lax_the_values_are_judged():
    step = lambda h, x: (lax.while_loop(lambda v: v < 1.0, lambda v: v + x, h), h)  # noqa: E731
    for init, status in ((0.5, pb.Status.OK), (jnp.inf, pb.Status.NON_FINITE)):
        *_, report = pb.scan(step, init, jnp.ones(3), report=True)
        assert report.status == status and report.iterations == 1 and not report.fell_back
    *_, report = pb.scan(lambda k, _: (k + 1, k), 0, length=3, report=True)
    assert report.status == pb.Status.OK


def test_a_cell_and_a_given_jacobian():
    cell, init = cells.GRU(), jnp.zeros((2, 3))
    params, xs = cell.init(jax.random.key(0), 2, 3), jax.random.normal(jax.random.key(1), (5, 2, 2))
    step = functools.partial(cell, params)
    for solver in (pb.Sweep(), pb.Blelloch()):
        assert pb.scan(step, init, xs, solver=solver, report=True)[2].status == pb.Status.OK

    def wrong(carry, x, new):
        return pb.operators.Diagonal(jnp.full(3, jnp.nan))

    plain = lambda h, x: (jnp.tanh(h + x[..., :1]), None)  # noqa: E731
    assert pb.scan(plain, init[0], xs[:, 0], jacobian=wrong, report=True)[2].status == 1


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernels need jax >= 0.11")
def test_kernels():
    cell, fused = cells.GRU(), pb.Fused(interpret=True)
    params = cell.init(jax.random.key(0), 2, 4)
    xs = jax.random.normal(jax.random.key(1), (3, 2, 2))
    step = functools.partial(cell, params)
    *_, report = pb.scan(step, jnp.zeros((2, 4)), xs, forward=fused, report=True)
    assert report.status == pb.Status.OK and report.residual > 0


def test_inside_a_mesh():
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    step = lambda h, x: (jnp.tanh(h + x), h)  # noqa: E731

    def run(xs):
        *_, report = pb.scan(step, jnp.zeros(2), xs[0], solver=pb.Blelloch(), report=True)
        return report.status[None]

    xs = jnp.ones((jax.device_count(), 5, 2))
    got = jax.shard_map(run, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)(xs)
    assert (got == 0).all()


@dataclasses.dataclass(frozen=True)
class Counting(Solver):
    """A solver of so many rounds."""

    rounds: int = 7
    uniform = pb.Sweep.uniform
    needs = "products"
    rounds_vary = True

    def run(self, system, state):
        return pb.Sweep().run(system, state)

    def run_observed(self, system, state):
        count = jnp.asarray(self.rounds, jnp.int32)
        return self.run(system, state), Rounds(count, fell_back=jnp.ones((), bool))

    def complexity(self, n):
        return Complexity(n, 0, n, 1)


def test_rounds_are_those_that_the_solver_counted():
    *_, report = pb.scan(pair, (jnp.zeros(3), jnp.ones(3)), XS, solver=Counting(), report=True)
    assert report.iterations == 7 and report.fell_back and report.status == pb.Status.OK


def test_it_is_a_bool():
    with pytest.raises(TypeError, match="report: got 1"):
        pb.scan(pair, (0.0, 1.0), XS, report=1)


@pytest.mark.parametrize("solver", [None, pb.Sweep(), pb.Blelloch()], ids=str)
def test_one_value_that_is_not_finite_is_enough(solver):
    """Of several, the others being finite: here the outputs, beside a carry."""
    step = lambda c, x: (jnp.tanh(c) * x, jnp.log(-1.0 - c**2))  # noqa: E731
    c, ys, report = pb.scan(step, jnp.ones(3), jnp.ones((4, 3)), solver=solver, report=True)
    assert jnp.isfinite(c).all() and jnp.isnan(ys).all()
    assert report.status == pb.Status.NON_FINITE


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0,)], ids=str)
@pytest.mark.parametrize("solver", [pb.Sweep(), pb.Blelloch(), pb.Associative()], ids=str)
def test_empty_batches_and_carries_of_no_features(solver, shape):
    step = lambda h, x: (jnp.tanh(h + 0.5 * h.sum(-1, keepdims=True) + x), h)  # noqa: E731
    h, xs = jnp.ones(shape), jnp.ones((4, *shape))
    assert jax.grad(lambda h: pb.scan(step, h, xs, solver=solver)[1].sum())(h).shape == shape
    assert pb.scan(step, h, xs, solver=solver, report=True)[2].status == pb.Status.OK


def test_a_report_is_printed_as_numbers():
    step = lambda c, x: (jnp.tanh(c + x), c)  # noqa: E731
    init, xs = jnp.zeros(2, jnp.float32), jnp.ones((7, 2), jnp.float32)
    run = lambda xs: pb.scan(step, init, xs, forward=pb.Newton(), report=True)[-1]  # noqa: E731
    text = str(jax.jit(run)(xs))
    assert "Array" not in text and "None" not in text
    assert text.startswith("Report(status=OK, residual=") and "fell_back=False" in text
    assert "forward=ForwardReport(status=OK, " in text and "states=float32[7, 2] of " in text
    of_three = str(jax.vmap(run)(jnp.stack([xs, xs * jnp.nan, xs])))
    assert "Report(status=[OK, NON_FINITE, OK]" in of_three
    of_nine = str(jax.jit(jax.vmap(run))(jnp.stack([xs] * 9)))
    assert "Report(status=int32[9] of OK to OK" in of_nine
    told = []
    jax.eval_shape(lambda xs: told.append(str(run(xs))), xs)
    assert "Report(status=" in told[0] and "Tracer" in told[0]
