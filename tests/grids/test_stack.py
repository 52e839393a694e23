"""Stacks divided by grids: values, gradients, what goes wrong."""

import jax
import jax.numpy as jnp
import pytest

import parscan_bp as pb
from parscan_bp.layers import Conv, Dropout, Flatten, Function, Linear, MaxPool
from parscan_bp.parallel import Grid, divide
from parscan_bp.parallel.grids.grid import layout_of, mesh_axes

SETTING = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from parscan_bp.layers import (
    AveragePool, Conv, ConvTranspose, Flatten, LayerNorm, Linear, MaxPool, activations, as_layer,
)
from parscan_bp.parallel import Grid, SyncBatchNorm, divide

def check(layers, features, grids, batch=8, tolerance=2e-5, **how):
    whole = tuple(map(as_layer, layers))
    each = [grids] if isinstance(grids, Grid) else grids
    devices = jax.devices()[: each[0].processes]
    stack = divide(layers, features, grids, devices=devices)
    params = pb.layers.init(layers, jax.random.key(0), features, jnp.float32)
    x = jax.random.normal(jax.random.key(1), (batch, *features), jnp.float32)
    plain = lambda params, x: activations(whole, params, x)[-1]
    ct = jax.random.normal(jax.random.key(2), jax.eval_shape(plain, params, x).shape, jnp.float32)

    def all_of(f, params, x):
        y, pull = jax.vjp(f, params, x)
        return y, *pull(ct)

    want = jax.jit(functools.partial(all_of, plain))(params, x)
    ours = functools.partial(all_of, functools.partial(stack, **how))
    got = jax.jit(ours)(stack.place(params), x)
    got = (got[0], stack.collect(got[1]), got[2])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        scale = tolerance * float(jnp.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=scale, err_msg=f"{grids} {how}")
    return stack
"""

GRIDS = (
    SETTING
    + """
mlp = [Linear(12), jnp.tanh, Linear(10), jax.nn.relu, Linear(5)]  # 10 and 5 are no multiples
for grid in (Grid(data=2, model=3), Grid(model=8), Grid()):
    check(mlp, (7,), grid)

# Convolutions by channels, groups of them on a device and a group on devices; then by rows.
net = [
    Conv(8, (3, 3), groups=2), jax.nn.relu, Conv(8, (3, 3), strides=2, groups=4), MaxPool((2, 2)),
    ConvTranspose(3, (2, 2), 2), LayerNorm(), Flatten(), Linear(6),
]
check(net, (9, 7, 4), Grid(data=2, model=4))
tall, wide, head = Grid(data=2, height=4), Grid(data=2, height=2, width=2), Grid(data=2, model=4)
check(net, (9, 7, 4), [tall] * 3 + [wide] * 3 + [head] * 2)
# Batch to domain and back all to all; to the model by a gather, back by a cut.
batch = Grid(data=8)
order = [batch, tall, tall, batch, batch, Grid(data=4, model=2), head, batch]
stack = check(net, (9, 7, 4), order)
moves = [p.layer for p in stack.places if p.origin is None]
assert [move.exchanges for move in moves] == [(0,), (0,), (), (), ()], moves
"""
)

BATCH_NORM = (
    SETTING
    + """
average = AveragePool((3, 3), 1, "SAME")
net = [Conv(4, (3, 3), bias=False), SyncBatchNorm(), jax.nn.relu, average, Flatten()]
for grid in (Grid(data=2, height=4), Grid(data=2, height=2, width=2)):
    last = Grid(data=grid.data, model=8 // grid.data)
    check(net, (7, 5, 2), [grid] * 4 + [last], tolerance=1e-4)
"""
)

SOLVERS = (
    SETTING
    + """
net = [Conv(4, (3, 3)), jax.nn.relu, MaxPool((2, 2)), Conv(3, (2, 2)), Flatten(), Linear(6)]
grids = [Grid(data=2, height=2)] * 2 + [Grid(data=2, model=2)] * 4
check(net, (6, 5, 2), grids, batch=4, solver=pb.Sweep())
check([Linear(8), jnp.tanh, Linear(3)], (5,), Grid(data=2, model=2), solver=pb.Planned())
"""
)

MODES = """
import functools
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from parscan_bp.layers import Conv, Flatten, Linear, activations, as_layer
from parscan_bp.parallel import Grid, divide

layers, features = [Conv(3, (3, 2)), jnp.tanh, Flatten(), Linear(5)], (5, 4, 2)
grids = [Grid(data=2, height=2)] * 2 + [Grid(data=2, model=2)] * 2
stack, whole = divide(layers, features, grids), tuple(map(as_layer, layers))
plain = lambda params, x: activations(whole, params, x)[-1]

def modes(forward, params, x, scale):
    loss = lambda params, x: ((forward(params, x) * scale) ** 2).sum()
    grad = jax.grad(loss)
    directions = jax.tree.map(jnp.cos, params)
    return {{
        "jvp": jax.jvp(loss, (params, x), (directions, x))[1],
        "hessian product": jax.jvp(lambda p: grad(p, x), (params,), (directions,))[1],
        "gradient of a gradient": jax.grad(
            lambda p: sum((leaf**2).sum() for leaf in jax.tree.leaves(grad(p, x)))
        )(params),
        "checkpoint": jax.grad(lambda p: jax.checkpoint(loss)(p, x))(params),
        "vmap": jax.vmap(lambda x: loss(params, x))(jnp.stack([x, 2 * x])),
    }}

def check(dtype, tolerance):
    params = stack.init(jax.random.key(0), dtype)
    x = jax.random.normal(jax.random.key(1), (4, *features), dtype)
    scale = jnp.arange(1, 6, dtype=dtype)
    want = jax.jit(functools.partial(modes, plain))(stack.collect(params), x, scale)
    got = jax.jit(functools.partial(modes, stack))(params, x, scale)
    for name in want:
        own = got[name] if name in ("jvp", "vmap") else stack.collect(got[name])
        for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(want[name]), strict=True):
            assert a.dtype == b.dtype
            a, b = np.asarray(a, float), np.asarray(b, float)
            np.testing.assert_allclose(
                a, b, rtol=tolerance, atol=tolerance * np.abs(b).max(), err_msg=name
            )

with jax.enable_x64({x64}):
    check(jnp.{dtype}, {tolerance})
"""

PADDING = """
import jax, jax.numpy as jnp
import numpy as np
import parscan_bp as pb
from parscan_bp.layers import Linear, MaxPool, activations, as_layer
from parscan_bp.parallel import Grid, divide

layers = [Linear(5), jnp.tanh, Linear(3)]
stack, whole = divide(layers, (4,), Grid(data=2, model=2)), tuple(map(as_layer, layers))
params = pb.layers.init(layers, jax.random.key(0), (4,), jnp.float32)
x = jax.random.normal(jax.random.key(1), (4, 4), jnp.float32)
placed = stack.place(params)
poisoned = [
    p if p is None else jax.tree.map(lambda a, c=layer.channels: a.at[..., c:].set(jnp.nan), p)
    for p, layer in zip(placed, whole)
]
assert any(bool(jnp.isnan(leaf).any()) for leaf in jax.tree.leaves(poisoned))
loss = lambda f, params, x: (f(params, x) ** 2).sum()
plain = lambda params, x: activations(whole, params, x)[-1]
want = jax.jit(jax.grad(lambda params, x: loss(plain, params, x), (0, 1)))
got = jax.jit(jax.grad(lambda params, x: loss(stack, params, x), (0, 1)))(poisoned, x)
assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(got))
pairs = zip(jax.tree.leaves((stack.collect(got[0]), got[1])), jax.tree.leaves(want(params, x)))
for a, b in pairs:
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

# What is placed may be donated.
spend = jax.jit(lambda p: jax.tree.map(lambda a: a + 1, p), donate_argnums=0)
replicated = divide(layers, (4,), Grid(data=4)).place(params)
spend(replicated)
assert all(leaf.is_deleted() for leaf in jax.tree.leaves(replicated))
assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))

pool = divide([MaxPool((3, 3), 1, "SAME")], (5, 4, 2), Grid(height=4))
pixels = np.arange(80, dtype=np.int32).reshape(2, 5, 4, 2) % 7 - 3
np.testing.assert_array_equal(
    jax.jit(pool)([None], pixels), MaxPool((3, 3), 1, "SAME").apply(None, jnp.asarray(pixels))
)
"""

UNTYPED = """
import jax, jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
from parscan_bp.layers import Conv, Linear
from parscan_bp.parallel import DomainParallel, Layout, ModelParallel, Split

mesh, split = Mesh(jax.devices(), "a"), Split(("a",), (2,))
layers = [
    (ModelParallel(Linear(4), Layout(model=split)), (3,)),
    (DomainParallel(Conv(4, (3,)), Layout(domain=(split,)), (8,)), (4, 3)),
]
for layer, features in layers:
    params = layer.init(jax.random.key(0), features)
    run = lambda x: layer.apply(params, x)
    how = {"mesh": mesh, "in_specs": P(), "out_specs": P(), "check_vma": False}
    try:
        jax.shard_map(run, **how)(jnp.ones((2, *features)))
    except NotImplementedError as error:
        assert "use jax.shard_map with check_vma=True" in str(error)
    else:
        raise AssertionError(layer)
"""


def test_a_batch_is_normalised_over_all_its_parts(run_on_devices):
    grid = "Grid(data=2, height=2)"
    run_on_devices(f"{SETTING}\ncheck([SyncBatchNorm()], (5, 2), {grid}, batch=4)", 4)


@pytest.mark.parametrize("program", [GRIDS, BATCH_NORM, SOLVERS], ids=["grids", "norm", "solvers"])
def test_values_and_gradients_are_those_of_one_device(program, run_on_devices):
    run_on_devices(program, 8)


@pytest.mark.parametrize(
    "dtype, tolerance",
    [
        ("float32", 1e-4),
        pytest.param("float64", 1e-12, marks=pytest.mark.slow),
        pytest.param("bfloat16", 0.1, marks=pytest.mark.slow),
    ],
)
def test_derivatives_of_every_mode_and_dtype(dtype, tolerance, run_on_devices):
    x64 = dtype == "float64"
    run_on_devices(MODES.format(dtype=dtype, tolerance=tolerance, x64=x64), 4)


def test_what_is_in_the_padding_of_channels_reaches_nothing(run_on_devices):
    run_on_devices(PADDING, 4)


def test_without_types_that_vary_a_layer_raises(run_on_devices):
    run_on_devices(UNTYPED, 2)


def test_grids_live_on_one_mesh():
    grids = [Grid(data=8), Grid(data=2, height=2, width=2), Grid(data=4, model=2)]
    axes = mesh_axes(grids)
    assert axes == {"data": 2, "data_height": 2, "data_width_model": 2}
    spec = layout_of(grids[1], axes).spec(4)
    assert spec == jax.P("data", "data_height", "data_width_model")
    assert layout_of(grids[2], axes).spec(4) == jax.P(("data", "data_height"), None, None)


CONV = [Conv(4, (3, 3)), Flatten(), Linear(6)]
WRONG = [
    (CONV, Grid(data=3), ValueError, r"grids of 3 processes for 1 devices; a grid has one process"),
    (CONV, [Grid(data=2), Grid(data=4), Grid(data=2)], ValueError, r"grids of \[2, 4\] processes"),
    (
        CONV,
        [Grid(data=6), Grid(data=2, model=3), Grid(data=3, model=2)],
        ValueError,
        r"divide the processes after 2 and after 3; one has to be a multiple of the other",
    ),
    (CONV, [Grid()], ValueError, r"grids: got 1 for 3 layers"),
    (CONV, 4, TypeError, r"grids: got 4, of type int; a Grid, or a sequence of one for each"),
    (
        [Conv(4, (11, 11))],
        Grid(height=2),
        ValueError,
        r"layers\[0\] on the grid height 2 x data 1: layout: the halo of Conv\(.*\) on \(8, 8\) "
        r"reaches further than the 2 blocks of 4",
    ),
    (
        [Function(lambda _, x: x)],
        Grid(height=2),
        NotImplementedError,
        r"layers\[0\] on the grid height 2 x data 1: layer: Function.* has no domain-parallel form",
    ),
    (
        [Conv(4, (3,))],
        Grid(height=2),
        ValueError,
        r"features: got \(8, 8, 3\).*layers\[0\], Conv.*1 spatial axes wants 3 axes: batch",
    ),
    (
        [Dropout(0.5)],
        Grid(),
        ValueError,
        r"mask: got None.*Parameters are what each layer's init makes",
    ),
    ([Flatten()], Grid(width=2), NotImplementedError, r"Flatten\(\) has no domain-parallel form"),
    (
        [Flatten(), Linear(4)],
        [Grid(data=2), Grid(height=2)],
        ValueError,
        r"layers\[1\].*got 1 divided axes for an input of spatial sizes \(\)",
    ),
    (
        [Conv(6, (3, 3), groups=3)],
        Grid(model=2),
        NotImplementedError,
        r"over 2 devices: groups=3 of its 6 channels would be cut across",
    ),
]


@pytest.mark.parametrize("layers, grids, kind, message", WRONG)
def test_what_cannot_be_divided_is_named(layers, grids, kind, message):
    with pytest.raises(kind, match=message):
        divide(layers, (8, 8, 3), grids, devices=jax.devices()[:1])


@pytest.mark.parametrize(
    ("features", "kind", "message"),
    [
        (8, TypeError, "features: got 8, of type int; the shape of one input"),
        ("8", TypeError, "features: got '8', of type str"),
        ((8, 8.0, 3), TypeError, r"features\[1\]: got 8.0"),
        ((0, 8, 3), ValueError, r"features\[0\]: got 0"),
        (
            (16, 8, 8, 3),
            ValueError,
            r"features: got \(16, 8, 8, 3\), .* the shape of one input, without the batch; layers",
        ),
    ],
)
def test_features_that_are_no_shape_are_named(features, kind, message):
    with pytest.raises(kind, match=message):
        divide(CONV, features, Grid(), devices=jax.devices()[:1])
    with pytest.raises(kind, match=message):
        pb.parallel.best_grid(CONV, features, 4, 8)


def test_devices_and_layers_that_are_none_are_named():
    with pytest.raises(TypeError, match=r"devices: got 8, of type int; a sequence of jax\.Device"):
        divide(CONV, (8, 8, 3), Grid(), devices=8)
    with pytest.raises(ValueError, match="devices: got one of them twice"):
        divide(CONV, (8, 8, 3), Grid(data=2), devices=jax.devices()[:1] * 2)
    for make in (divide, lambda *args: pb.parallel.best_grid(*args[:2], 4, 8)):
        with pytest.raises(ValueError, match="layers: got none; at least one is wanted"):
            make([], (8, 8, 3), Grid())


def test_a_grid_divides_the_model_or_the_domain():
    with pytest.raises(NotImplementedError, match="divides either the model or the domain"):
        Grid(model=2, height=2)
    with pytest.raises(ValueError, match="data: got 0"):
        Grid(data=0)


def test_inputs_that_do_not_fit_are_named():
    stack = divide([MaxPool((2, 2))], (4, 4, 3), Grid(), devices=jax.devices()[:1])
    with pytest.raises(ValueError, match=r"x: got shape \(2, 4, 4\); \(batch, 4, 4, 3\) is wanted"):
        stack([None], jnp.ones((2, 4, 4)))
    for take in (lambda params: stack(params, jnp.ones((2, 4, 4, 3))), stack.place, stack.collect):
        with pytest.raises(ValueError, match="params: got 2 entries for 1 layers"):
            take([None, None])
    with pytest.raises(TypeError, match="x: got a ShapeDtypeStruct; an array is wanted"):
        stack([None], jax.ShapeDtypeStruct((2, 4, 4, 3), jnp.float32))
    with pytest.raises(ValueError, match="batch: got 3 entries for 2 devices along"):
        pb.parallel.explain_grid([MaxPool((2, 2))], (4, 4, 3), Grid(data=2), 3)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_statistics_of_halves_are_summed_in_float32(dtype):
    """The sums are beyond the range of float16."""
    layer = pb.parallel.SyncBatchNorm()
    x = 3 + jax.random.normal(jax.random.key(0), (8, 128, 128, 2), jnp.float32)
    params = layer.init(jax.random.key(1), (2,), jnp.float32)
    want = layer.apply(params, x)
    got = layer.apply(jax.tree.map(lambda a: a.astype(dtype), params), x.astype(dtype))
    assert got.dtype == dtype and jnp.allclose(got.astype(jnp.float32), want, atol=0.05)
    assert layer.apply(params, x.astype(dtype)).dtype == jnp.float32
