"""What can be a block: functions, layers of `chain`, modules of Flax."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from flax import nnx
from networks import cross_entropy, data

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from parscan_bp import pipeline

# Of DSP the last block keeps its linearisation, the others are linearised again.
EACH = pytest.mark.parametrize(
    "schedule",
    [
        pipeline.DSP((1, 1, 0), (4, 2, 0)),
        pytest.param(pipeline.BackPropagation(), marks=pytest.mark.slow),
        pytest.param(pipeline.ZeroBubble(2), marks=pytest.mark.slow),
    ],
    ids=str,
)


def _run(blocks, schedule, params, states=None, observe=None):
    optimiser = networks.sgd(0.1, momentum=0.9)
    return pipeline.run(
        blocks,
        schedule,
        optimiser,
        cross_entropy,
        networks.placed(list(params)),
        data(12),
        states=networks.placed(states),
        executor=pipeline.Simulated(observe=observe),
    )


@EACH
def test_layers_of_chain_are_a_block(schedule):
    layers = [
        [pb.layers.Linear(5), jnp.tanh],
        [pb.layers.Linear(6), jnp.tanh],
        [pb.layers.Linear(3)],
    ]
    _, params = networks.net(3)
    ours = _run(layers, schedule, [[params[0], None], [params[1], None], [params[2]]])
    plain = _run(networks.net(3)[0], schedule, params)
    np.testing.assert_allclose(ours.losses, plain.losses, atol=1e-5)
    for own, (theirs, *_) in zip(plain.params, ours.params, strict=True):
        assert networks.largest_difference(own, theirs) < 1e-5


@EACH
def test_modules_of_linen_are_blocks(schedule):
    modules = [nn.Sequential([nn.Dense(5), jnp.tanh]), nn.Sequential([nn.Dense(6), jnp.tanh])]
    modules.append(nn.Dense(3))
    x, made = np.asarray(data(1)[0][0]), []
    for k, module in enumerate(modules):
        variables = module.init(jax.random.key(k), x)
        made.append(parscan_bp.linen.as_block(module, variables))
        x = module.apply(variables, x)
    blocks, params, states = zip(*made, strict=True)
    ours = _run(blocks, schedule, params, states)
    dense = [own.get("layers_0", own) for own in params]
    plain = _run(networks.net(3)[0], schedule, dense)
    np.testing.assert_allclose(ours.losses, plain.losses, atol=1e-6)


class Normalised(nn.Module):
    """Batch norm and dropout."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(5)(x))
        return nn.Dropout(0.5, deterministic=not train)(x)


def test_linens_statistics_and_random_streams():
    x = np.asarray(data(1)[0][0])
    variables = Normalised().init(jax.random.key(0), x, train=False)
    block, params, state = parscan_bp.linen.as_block(Normalised(), variables, train=True)
    y, moved = block.apply(params, state, x, jax.random.key(1))
    again, _ = block.apply(params, state, x, jax.random.key(1))
    other, _ = block.apply(params, state, x, jax.random.key(2))
    np.testing.assert_array_equal(y, again)
    assert not np.array_equal(y, other) and list(moved) == ["batch_stats"]
    assert networks.largest_difference(moved, state) > 1e-3
    head = networks.net(3)[1][2]["kernel"][:5]
    made = _run(
        [block, lambda w, x: x @ w], pipeline.DSP((1, 0), (3, 0)), [params, head], [state, ()]
    )
    assert networks.largest_difference(made.states[0], state) > 1e-2
    with pytest.raises(ValueError, match="variables: got"):
        parscan_bp.linen.as_block(Normalised(), {})


class Noisy(nnx.Module):
    """A linear layer, batch norm and dropout."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(self.linear(x)))


@EACH
def test_modules_of_nnx_are_blocks(schedule):
    modules = [nnx.Linear(4, 5, rngs=nnx.Rngs(0)), nnx.Linear(5, 6, rngs=nnx.Rngs(1))]
    modules.append(nnx.Linear(6, 3, rngs=nnx.Rngs(2)))
    blocks, params, states = zip(*map(parscan_bp.nnx.as_block, modules), strict=True)
    ours = _run(blocks, schedule, params, states)
    plain = _run(
        [networks.head] * 3,
        schedule,
        [{"kernel": m.kernel[...], "bias": m.bias[...]} for m in modules],
    )
    np.testing.assert_allclose(ours.losses, plain.losses, atol=1e-6)
    nnx.update(modules[0], ours.params[0], ours.states[0])
    np.testing.assert_allclose(modules[0].kernel[...], plain.params[0]["kernel"], atol=1e-6)


def test_nnxs_streams_are_replayed_and_move_once_a_batch():
    module = Noisy(nnx.Rngs(0))
    module.train()
    block, params, state = parscan_bp.nnx.as_block(module)
    count = lambda state: [  # noqa: E731
        int(leaf) for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.integer)
    ]
    replay = functools.partial(block.apply, params, x=np.asarray(data(1)[0][0]), key=None)
    y, moved = replay(state)
    np.testing.assert_array_equal(y, replay(state)[0])
    assert not np.array_equal(y, replay(moved)[0])
    head = networks.net(3)[1][2]["kernel"][:5]
    made = _run(
        [block, lambda w, x: x @ w], pipeline.DSP((1, 0), (3, 0)), [params, head], [state, ()]
    )
    assert [b - a for a, b in zip(count(state), count(made.states[0]), strict=True)].count(12) == 1


@dataclasses.dataclass
class _Unhashable:
    def __call__(self, params, x):
        return x


def test_what_is_no_block():
    for thing in (3, "relu", pb.layers.Linear, pb.layers.Linear(3)):
        with pytest.raises(TypeError, match="block: got"):
            pipeline.as_block(thing)
    with pytest.raises(TypeError, match="layer"):
        pipeline.as_block([3])
    with pytest.raises(TypeError, match=r"block: got .*, which has no hash"):
        pipeline.as_block(_Unhashable())
    with pytest.raises(TypeError, match="apply: got 3"):
        pipeline.Block(3)
    assert pipeline.as_block(networks.head) is pipeline.as_block(networks.head)
    made = parscan_bp.nnx.as_block(nnx.Linear(4, 3, rngs=nnx.Rngs(0)))
    with pytest.raises(TypeError, match=r"block: got .* with a Block in it; that Block alone"):
        pipeline.as_block(made)


@pytest.mark.parametrize(
    ("module", "kind"), [(nn.Dense(3), "linen"), (nnx.Linear(4, 3, rngs=nnx.Rngs(0)), "nnx")]
)
def test_modules_of_flax_are_no_blocks_but_make_them(module, kind):
    words = f"block: got .*of a module of Flax .* parscan_bp.{kind}.as_block returns"
    with pytest.raises(TypeError, match=words):
        pipeline.as_block(module)
    for other in (nn.Dense(3), nnx.Linear(4, 3, rngs=nnx.Rngs(0)), networks.head, 3):
        if type(other) is not type(module):
            own, args = (
                (parscan_bp.nnx, ()) if kind == "nnx" else (parscan_bp.linen, ({"params": {}},))
            )
            with pytest.raises(TypeError, match=f"module: got .*; a flax.{kind}.Module is wanted"):
                own.as_block(other, *args)


def test_streams_of_linen_are_a_sequence():
    with pytest.raises(TypeError, match="rngs: got 'dropout', of type str; a sequence of names"):
        parscan_bp.linen.as_block(nn.Dense(3), {"params": {}}, rngs="dropout")
