"""What the author of a gated cell states is checked where it is relied on, and named."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from minimal_gated import MinimalGated

import parscan_bp as pb
from parscan_bp import kernels
from parscan_bp.cells.elementwise import check_elementwise
from parscan_bp.cells.fused import FusedCell
from tests.family import assert_derivatives_close

T, B, H, INPUTS = 5, 2, 4, 3
FUSED = pytest.param(
    {"forward": pb.Fused(interpret=True)},
    marks=pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing())),
    id="fused",
)
SWEEP, BLELLOCH, CHUNKED = (
    pytest.param({"solver": solver}, id=str(solver))
    for solver in (pb.Sweep(), pb.Blelloch(), pb.Chunked(chunks=2))
)


def _case(batch=(B,)):
    params = MinimalGated().init(jax.random.key(0), INPUTS, H, jnp.float32)
    carry = jax.random.normal(jax.random.key(1), (*batch, H), jnp.float32)
    return params, carry, jax.random.normal(jax.random.key(2), (T, *batch, INPUTS), jnp.float32)


def _loss(cell, scan=pb.scan, **options):
    def loss(params, carry, xs):
        last, ys = scan(functools.partial(cell, params), carry, xs, **options)
        return jnp.sum(last**2) + jnp.sum(jnp.sin(ys))

    return loss


class SM(MinimalGated):
    """One of its functions has its first result changed."""

    def __init__(self, method, change):
        self.method, self.change = method, change

    def _of(self, method, value):
        return [self.change(value[0]), *value[1:]] if method == self.method else value

    def activate(self, a):
        return self._of("activate", super().activate(a))

    def update(self, gates, past):
        return self._of("update", super().update(gates, past))

    def pull(self, gates, past, new, cts):
        u, direct = super().pull(gates, past, new, cts)
        return self._of("pull", u), direct


MIXING = {
    "reduce_max": functools.partial(jax.nn.softmax, axis=-1),
    "reduce_sum": lambda v: v - v.mean(-1, keepdims=True),
    "cumsum": lambda v: jnp.cumsum(v, -1),
    "rev": lambda v: v[..., ::-1],
    "slice": lambda v: jnp.roll(v, 1, -1),
    "reshape": lambda v: v.reshape(*v.shape[:-1], 2, 2).reshape(v.shape),
    "split": lambda v: jnp.concatenate(jnp.split(v, 2, -1)[::-1], -1),
    "concatenate": lambda v: jnp.concatenate([v, v], -1)[..., :H],
    "dot_general": lambda v: v @ jnp.ones((H, H), v.dtype),
    "sort": lambda v: jnp.sort(v, -1),
}


@pytest.mark.parametrize("options", [SWEEP, BLELLOCH, CHUNKED, FUSED])
@pytest.mark.parametrize("method", ["activate", "update", "pull"])
def test_a_function_that_mixes_units_is_named(method, options):
    cell = SM(method, jax.jit(MIXING["reduce_max"]))
    message = f"SM.{method}: reduce_max mixes units; functions of one unit alone are wanted"
    with pytest.raises(ValueError, match=message):
        jax.grad(_loss(cell, **options))(*_case())


@pytest.mark.parametrize("batch", [(), (B,), (H,)], ids=str)
@pytest.mark.parametrize("primitive", MIXING)
def test_primitives_that_mix_units(primitive, batch):
    args = jnp.ones((*batch, H))
    with pytest.raises(ValueError, match=f"f: {primitive} mixes (units|samples);"):
        check_elementwise("f", MIXING[primitive], args)


@pytest.mark.parametrize(
    ("function", "primitive"),
    [
        (lambda v: v - v.mean(0), "reduce_sum mixes samples"),
        (lambda v: v.T, "transpose mixes units"),
        (lambda v: v + v.T, "add mixes units"),
        (lambda v: v * v[:, :, None].sum(1), "reduce_sum mixes units"),
        (lambda v: lax.scan(lambda c, x: (c + x, c), jnp.zeros(H), v)[1], "scan mixes samples"),
        (lambda v: lax.cond(v[0, 0] > 0, jnp.sin, jnp.cos, v), "slice mixes"),
        (lambda v: lax.fori_loop(0, 2, lambda _, u: u[:, ::-1], v), "rev mixes units"),
        (lambda v: jnp.where(v > v.max(1, keepdims=True), v, 0), "reduce_max mixes units"),
        (lambda v: jnp.array([1.0, 2.0])[jnp.argmax(v, 1)][:, None] * v, "argmax mixes"),
    ],
)
def test_mixing_by_other_axes_and_in_control_flow(function, primitive):
    with pytest.raises(ValueError, match=f"f: {primitive}"):
        check_elementwise("f", function, jnp.ones((H, H)))


@pytest.mark.parametrize(
    "function",
    [
        jax.nn.relu,
        jax.nn.gelu,
        jax.nn.softplus,
        jax.jit(jax.nn.sigmoid),
        jax.checkpoint(jnp.tanh),
        lambda v: jnp.where((v > 0) & jnp.isfinite(v), jnp.floor(v), -v),
        lambda v: jnp.clip(v, -1, 1) * jnp.arange(H) + jnp.linspace(0.0, 1.0, B)[:, None],
        lambda v: jnp.stack([v, 2 * v], -1)[..., 1],
        lambda v: jnp.stack([v, 2 * v]).sum(0),
        lambda v: lax.fori_loop(0, 3, lambda k, u: jnp.sin(u) + k, v),
        lambda v: lax.cond(jnp.ones(()) > 0, jnp.sin, jnp.cos, v),
        lambda v: lax.scan(lambda c, x: (c * x, None), v, jnp.arange(3.0))[0],
        lambda v: jnp.ones_like(v),
        lambda v: jax.vmap(jnp.sin)(v),
    ],
)
def test_functions_of_each_number(function):
    assert check_elementwise("f", function, jnp.ones((B, H))).shape == (B, H)


@pytest.mark.parametrize("options", [SWEEP, BLELLOCH])
def test_a_parameter_per_unit_is_elementwise(options):
    scale = jnp.linspace(0.5, 1.5, H, dtype=jnp.float32)

    class Scaled(MinimalGated):
        def activate(self, a):
            z, n = super().activate(a)
            return [z, n * scale]

        def pull(self, gates, past, new, cts):
            (z, n), (h,), (ct,) = gates, past, cts
            un = ct * z * (1 - (n / scale) ** 2) * scale
            return [(ct * n - ct * h) * z * (1 - z), un], [(1 - z) * ct]

    got = jax.grad(_loss(Scaled(), **options), (0, 1, 2))(*_case())
    want = jax.grad(_loss(Scaled(), lax.scan), (0, 1, 2))(*_case())
    assert_derivatives_close(got, want, 2e-5)


@pytest.mark.parametrize("options", [FUSED])
@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (lambda v: v * np.linspace(0.5, 1.5, H, dtype=np.float32), "an array of shape .4,. beside"),
        (lambda v: v * jnp.arange(H), "an array of shape .4,. beside"),
        (lambda v: v * jnp.arange(v.shape[-1]), "got tuple index out of range of single numbers"),
    ],
)
def test_the_kernels_take_no_array_per_unit(change, shape, options):
    message = f"SM.update: .*{shape}.*; the fused kernels want .* forward='exact' takes others"
    with pytest.raises(NotImplementedError, match=message):
        _loss(SM("update", change), **options)(*_case())


@pytest.mark.parametrize("options", [SWEEP, BLELLOCH, FUSED])
@pytest.mark.parametrize("value", [lambda v: 0.0, lambda v: v[..., None]], ids=["scalar", "rank"])
def test_cotangents_of_other_shapes_are_named(value, options):
    with pytest.raises(ValueError, match=r"SM.pull: got results of shapes .*, 4\) of each is"):
        jax.grad(_loss(SM("pull", value), **options))(*_case())


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("parts", 2.0, "got 2.0, of type float; an int of at least 1"),
        ("parts", True, "got True, of type bool; an int of at least 1"),
        ("parts", 0, "got 0; at least 1"),
        ("parts", None, "got None; an int of at least 1"),
        ("input_parts", -1, "got -1; at least 0"),
        ("state_parts", "1", "got '1', of type str; an int of at least 0"),
        ("states", 0, "got 0; at least 1"),
        ("past", 0, "got 0, of type int; a tuple of distinct leaves of the carry"),
        ("past", [0], r"got \[0\], of type list; a tuple of distinct"),
        ("past", (0, 0), r"got \(0, 0\); a tuple of distinct"),
        ("past", (1,), r"got \(1,\); a tuple of distinct"),
        ("past", (0.0,), "leaf: got 0.0, of type float; an int of at least 0"),
        ("biases", "b", "got 'b', of type str; a tuple of two distinct names"),
        ("biases", ("b", "b"), r"got \('b', 'b'\); a tuple of two distinct"),
        ("biases", ("b",), r"got \('b',\); a tuple of two distinct"),
        ("biases", ("wh", None), r"got \('wh', None\); a tuple of two distinct"),
        ("biases", (None, "b"), r"got \(None, 'b'\), of type tuple; a tuple of two distinct"),
    ],
)
@pytest.mark.parametrize("use", ["init", "call", "gradient"])
def test_attributes_are_checked_at_the_first_use(attribute, value, message, use):
    cell = type("SM", (MinimalGated,), {attribute: value})()
    params, carry, xs = _case()
    uses = {
        "init": lambda: cell.init(jax.random.key(0), INPUTS, H),
        "call": lambda: cell(params, carry, xs[0]),
        "gradient": lambda: jax.grad(_loss(cell))(params, carry, xs),
    }
    with pytest.raises((TypeError, ValueError), match=f"^SM.{attribute}: {message}"):
        uses[use]()


def test_a_cell_is_checked_once():
    calls = []

    class Counting(MinimalGated):
        def pull(self, *args):
            calls.append(args)
            return super().pull(*args)

    cell, (params, carry, xs) = Counting(), _case()
    new, _ = cell(params, carry, xs[0])
    assert not calls
    counts = []
    for _ in range(3):
        cell.jacobian(params, carry, xs[0], new)
        counts.append(len(calls))
    assert counts == [2, 3, 4]


@pytest.mark.parametrize(
    "cell",
    [
        pb.cells.Elman(),
        pb.cells.Elman("relu"),
        pb.cells.GRU(),
        pb.cells.GRU(False),
        pb.cells.LSTM(),
    ],
    ids=repr,
)
def test_the_cells_of_the_package_pass(cell):
    cell.check(jnp.ones((B, H)))
    FusedCell(cell).check(jax.ShapeDtypeStruct((B, H), jnp.bfloat16))
