"""A model of nnx trained by a pipeline: its own training loop's numbers, its states, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import parscan_bp.nnx
from parscan_bp import pipeline


def _model(seed=0):
    rngs = nnx.Rngs(seed)
    return nnx.Sequential(
        nnx.Conv(1, 3, (3, 3), rngs=rngs),
        nnx.BatchNorm(3, rngs=rngs),
        nnx.relu,
        lambda x: x.reshape(x.shape[0], -1),
        nnx.Dropout(0.25, rngs=rngs),
        nnx.Linear(48, 2, rngs=rngs),
    )


def _loss(scores, labels):
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def _batches(count):
    rng = np.random.default_rng(0)
    image = lambda: rng.normal(size=(8, 4, 4, 1)).astype(np.float32)  # noqa: E731
    return [(image(), rng.integers(2, size=8)) for _ in range(count)]


@pytest.mark.slow
def test_without_staleness_it_is_the_plain_training_of_the_model():
    """Of a model with batch norm and no dropout, whose streams are copies in each layer."""
    model = _model()
    model.layers[4].deterministic = True
    own = parscan_bp.nnx.Pipeline(
        model, split=(2, 4), schedule=pipeline.GPipe(1), optimiser=optax.sgd(0.1), loss=_loss
    )
    losses = own.fit(_batches(5))

    optimiser = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    wanted = []
    for x, labels in _batches(5):
        value, grads = nnx.value_and_grad(lambda m, x=x, y=labels: _loss(m(x), y))(model)
        optimiser.update(model, grads)
        wanted.append(value)
    np.testing.assert_allclose(losses, jnp.stack(wanted), rtol=1e-5)
    ours, theirs = nnx.state(own.model()), nnx.state(model)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if jnp.issubdtype(a.dtype, jnp.floating):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_it_is_resumed_with_random_streams_and_statistics(tmp_path):
    def start():
        return parscan_bp.nnx.Pipeline(
            _model(),
            split=(1, 3, 2),
            schedule=pipeline.DSP((1, 1, 0), (4, 2, 0)),
            optimiser=optax.adam(1e-3),
            loss=_loss,
        )

    batches, whole, first, second = _batches(12), start(), start(), start()
    whole.fit(batches)
    for batch in batches[:8]:
        first.step(batch)
    first.save(tmp_path / "flight")
    second.restore(tmp_path / "flight")
    second.fit(batches[8:])
    bits = lambda model: [  # noqa: E731
        np.asarray(jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a)
        for a in jax.tree.leaves(nnx.state(model.model()))
    ]
    for a, b in zip(bits(whole), bits(second), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(bits(whole)[0], bits(start())[0])


def test_what_is_refused():
    options = {"schedule": pipeline.GPipe(1), "optimiser": optax.sgd(0.1), "loss": _loss}
    with pytest.raises(TypeError, match=r"model: got .*; a flax\.nnx\.Sequential"):
        parscan_bp.nnx.Pipeline(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), **options)
    with pytest.raises(TypeError, match="as layer 0; a module is wanted"):
        parscan_bp.nnx.Pipeline([3], **options)
    shared = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"layers 0 and 2 share .*one module of .*layers\[0:3"):
        parscan_bp.nnx.Pipeline([shared, nnx.relu, shared], **options)


class _Head(nnx.Module):
    def __init__(self, embed):
        self.embed = embed

    def __call__(self, x):
        return self.embed.attend(x)


def test_layers_that_share_a_parameter_train_as_one_module():
    """What the error of layers apart says is to be done, against plain descent."""
    rngs = nnx.Rngs(0)
    embed = nnx.Embed(5, 6, rngs=rngs)
    tied = nnx.Sequential(embed, nnx.Linear(6, 6, rngs=rngs), _Head(embed))
    rows = np.arange(8) % 5
    own = parscan_bp.nnx.Pipeline(
        [tied], schedule=pipeline.GPipe(2), optimiser=optax.sgd(0.1), loss=_loss
    )
    losses = own.fit([(rows, rows)] * 3)

    graph, params = nnx.split(tied)
    loss = lambda params: _loss(nnx.merge(graph, params)(rows), rows)  # noqa: E731
    both = jax.jit(jax.value_and_grad(loss))
    for got in losses:
        want, slopes = both(params)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        params = jax.tree.map(lambda p, slope: p - 0.1 * slope, params, slopes)
