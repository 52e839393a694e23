"""The solver that runs the GPU kernels: what it refuses, and its derivatives, simulated."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import parscan_bp as pb
from parscan_bp import kernels
from parscan_bp.operators import Dense, MatrixFree, Scaled

pytestmark = pytest.mark.usefixtures("one_multiprocessor")
needs_kernels = pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))
SOLVER = pb.Pallas(mode="chunked", chunk=4, interpret=True)
B, H, T = 3, 12, 10
CELL = pb.cells.Elman()
PARAMS = CELL.init(jax.random.key(0), 2, H, jnp.float32)
XS = jax.random.normal(jax.random.key(1), (T, B, 2), jnp.float32)
H0 = jnp.full((B, H), 0.1, jnp.float32)


def _loss(scan, params, h0, xs):
    h, ys = scan(functools.partial(CELL, params), h0, xs)
    return jnp.sum(h**2) + jnp.sum(jnp.sin(ys))


def _same(transform):
    want, got = (
        jax.tree.leaves(transform(functools.partial(_loss, scan)))
        for scan in (lax.scan, functools.partial(pb.scan, solver=SOLVER))
    )
    for a, b in zip(got, want, strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=1e-5)


@needs_kernels
def test_gradients_are_those_of_lax_scan():
    _same(lambda loss: jax.jit(jax.grad(loss, (0, 1, 2)))(PARAMS, H0, XS))


@needs_kernels
@pytest.mark.parametrize(
    ("cell", "mode"),
    [
        (pb.cells.LSTM(), "chunked"),
        (pb.cells.GRU(), "sequential"),
        pytest.param(pb.cells.GRU(), "chunked", marks=pytest.mark.slow),
        pytest.param(pb.cells.LSTM(), "sequential", marks=pytest.mark.slow),
    ],
)
def test_gradients_of_gated_cells(cell, mode):
    solver = pb.Pallas(mode=mode, chunk=4 if mode == "chunked" else None, interpret=True)
    units = H if mode == "sequential" else 6  # the more there are, the slower the simulation
    params = cell.init(jax.random.key(0), 2, units, jnp.float32)
    carry = cell.initial_carry((B,), units, jnp.float32)

    def loss(scan, params):
        return jnp.sum(jnp.sin(scan(functools.partial(cell, params), carry, XS)[1]))

    ours = functools.partial(loss, functools.partial(pb.scan, solver=solver))
    got, want = jax.jit(jax.grad(ours))(params), jax.grad(functools.partial(loss, lax.scan))(params)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.abs(b).max()))


@needs_kernels
@pytest.mark.parametrize("cell", [pb.cells.GRU(), pb.cells.LSTM()], ids=["gru", "lstm"])
def test_no_jacobian_of_a_gated_cell_is_in_memory(cell):
    params = cell.init(jax.random.key(0), 2, H, jnp.float32)
    carries = jax.tree.map(
        lambda c: jnp.ones((T, *c.shape), c.dtype), cell.initial_carry((B,), H, jnp.float32)
    )
    operator = cell.jacobian(params, carries, XS, carries)
    order = operator.shape[0]
    solve = lambda a, g: pb.solve(pb.Uniform(a, g), SOLVER)  # noqa: E731
    traced = jax.make_jaxpr(solve)(operator, jnp.ones((T + 1, B, order), jnp.float32))
    (eqn,) = (eqn for eqn in traced.jaxpr.eqns if eqn.primitive.name == "linear_solve")
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    program = str(jax.make_jaxpr(eqn.params["solve"])(*types))
    # The maps of the three chunks are; those of the steps, as they are or padded, are not.
    assert f"[3,{B},{order},{order}]" in program
    assert not any(f"[{n},{B},{order},{order}]" in program for n in (T, 12))


@needs_kernels
def test_second_derivatives():
    def curvature(loss):
        return jax.grad(lambda h: jnp.sum(jax.grad(loss, 1)(PARAMS, h, XS) ** 2))(H0)

    _same(curvature)


@needs_kernels
def test_vmap():
    _same(
        lambda loss: jax.vmap(jax.grad(loss, (0, 1, 2)), (None, 0, None))(
            PARAMS, jnp.stack([H0, -H0]), XS
        )
    )


def test_options_are_checked():
    with pytest.raises(ValueError, match="mode"):
        pb.Pallas(mode="fast")
    with pytest.raises(ValueError, match="chunk"):
        pb.Pallas(chunk=4)
    with pytest.raises(ValueError, match="scaled"):
        pb.Pallas(scaled=True)
    with pytest.raises(ValueError, match="otherwise"):
        pb.Pallas(otherwise="ignore")


def _solve(solver, size=4, dtype=jnp.float32):
    system = pb.Uniform(Dense(jnp.ones((3, size, size), dtype)), jnp.ones((4, size), dtype))
    return pb.solve(system, solver)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_what_cannot_run_is_refused():
    with pytest.raises(NotImplementedError, match=r"needs? a CUDA GPU|jax >= 0.11"):
        _solve(pb.Pallas())
    for kind in (Scaled, MatrixFree):
        with pytest.raises(NotImplementedError, match=f"Pallas cannot take .* {kind.__name__}"):
            pb.Pallas().check(kind)


@needs_kernels
def test_orders_and_dtypes_that_no_kernel_takes():
    with pytest.raises(NotImplementedError, match="129"):
        _solve(SOLVER, 129)
    with pytest.raises(NotImplementedError, match="float16"):
        _solve(SOLVER, 4, jnp.float16)


@pytest.mark.parametrize("interpret", [False, True])
def test_what_no_kernel_takes_may_be_swept(interpret):
    """Anything, where there is no GPU; and matrices, which only products with a vector need."""
    solver = pb.Pallas(interpret=interpret, otherwise="sweep")
    for size, dtype in [(129, jnp.float32), (4, jnp.float16), (20, jnp.float32)]:
        got, want = (_solve(s, size, dtype) for s in (solver, pb.Sweep()))
        np.testing.assert_array_equal(got, want)


@needs_kernels
@pytest.mark.parametrize(("platform", "launches"), [("cuda", 1), ("cpu", 0)])
def test_a_program_for_another_device_has_no_kernel(platform, launches, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    scan = functools.partial(pb.scan, solver=pb.Pallas(mode="sequential", otherwise="sweep"))
    gradient = jax.jit(jax.grad(functools.partial(_loss, scan), (0, 1, 2)))
    lowered = gradient.trace(PARAMS, H0, XS).lower(lowering_platforms=(platform,))
    assert lowered.as_text().count("custom_call @mosaic_gpu_v2") == launches
    if platform == "cpu":
        got, want = gradient(PARAMS, H0, XS), jax.grad(_loss, (1, 2, 3))(lax.scan, PARAMS, H0, XS)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.abs(b).max()))


@needs_kernels
def test_shard_map():
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("rows",))
    rows, steps = PartitionSpec("rows"), PartitionSpec(None, "rows")

    def gradient(loss):
        inside = jax.grad(functools.partial(loss, PARAMS), (0, 1))
        mapped = jax.shard_map(inside, mesh=mesh, in_specs=(rows, steps), out_specs=(rows, steps))
        return jax.jit(mapped)(H0, XS)

    _same(gradient)
