"""Parts of a batch whose rows do not all count: the gradient of the batch, or an error."""

import functools

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from alike import assert_close, assert_same
from jax.sharding import Mesh

from parscan_bp import pipeline

WIDTH, ROWS, BLOCKS = 4, 8, 2
PARTS = {
    "GPipe": pipeline.GPipe(4),
    "OneFOneB": pipeline.OneFOneB(2),
    "ZeroBubble": pipeline.ZeroBubble(4, lookahead=2),
    "PipeDream2BW": pipeline.PipeDream2BW(2),
}
VALID = np.array([[1, 0, 1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0, 1]])


def block(w, x):
    return x + jnp.tanh(x @ w)


def masked(y, labels):
    """Mean over the rows that are valid; 0 without any."""
    wanted, valid = labels
    return jnp.sum(valid * (y.sum(-1) - wanted) ** 2) / jnp.maximum(valid.sum(), 1)


def valid_rows(labels):
    return labels[1].sum()


def given(dtype=np.float32, batches=3):
    random = np.random.default_rng(0)
    params = [jnp.asarray(random.normal(size=(WIDTH, WIDTH)) / 4, dtype) for _ in range(BLOCKS)]
    rows = lambda *shape: random.normal(size=(ROWS, *shape)).astype(dtype)  # noqa: E731
    made = [(rows(WIDTH), (rows(), VALID[n].astype(dtype))) for n in range(batches)]
    return networks.placed((params, made))


@jax.jit
@jax.value_and_grad
def total(ws, batch):
    """The loss of a whole batch."""
    x, labels = batch
    for w in ws:
        x = block(w, x)
    return masked(x, labels)


def plain(params, batches, late):
    """By `jax.grad` of the loss of whole batches, ``late`` updates old."""
    versions, losses = [params], []
    for n, batch in enumerate(batches):
        loss, gradient = total(versions[max(0, n - late)], batch)
        losses.append(loss)
        versions.append([w - 0.1 * g for w, g in zip(versions[-1], gradient, strict=True)])
    return versions[-1], jnp.stack(losses)


@pytest.mark.parametrize("name", PARTS)
def test_a_weighed_gradient_is_that_of_the_batch_in_double_precision(name):
    with jax.enable_x64(True):
        params, batches = given(np.float64)
        how = (PARTS[name], networks.sgd(0.1), masked, params, batches)
        made = pipeline.run([block] * BLOCKS, *how, weight=valid_rows)
        wanted, losses = plain(params, batches, late=name == "PipeDream2BW")
        assert made.losses.dtype == jnp.float64
        assert_close(made.params, wanted, 1e-14)
        np.testing.assert_allclose(made.losses, losses, rtol=1e-14)


def _fed(blocks, schedule, optimiser, loss, params, batches, **options):
    how = {"schedule": schedule, "optimiser": optimiser, "loss": loss, **options}
    own = pipeline.Pipeline(blocks, params, split=(1,) * len(blocks), **how)
    try:
        losses = own.fit(batches)
        return pipeline.Trained(own.params, [], [], losses)
    finally:
        own.close()


def _nnx(blocks, schedule, optimiser, loss, params, batches, **options):
    nnx = pytest.importorskip("flax.nnx")
    import parscan_bp.nnx

    class Residual(nnx.Module):
        def __init__(self, w):
            self.w = nnx.Param(w)

        def __call__(self, x):
            return block(self.w[...], x)

    how = {"schedule": schedule, "optimiser": optimiser, "loss": loss, **options}
    own = parscan_bp.nnx.Pipeline([Residual(w) for w in params], split=(1,) * len(params), **how)
    try:
        losses = own.fit(batches)
        made = [jax.tree.leaves(each)[0] for each in own.params]
        return pipeline.Trained(made, [], [], losses)
    finally:
        own.close()


def _spmd(data):
    def run(blocks, *how, **options):
        axes = ("stage", "data")[: 1 + (data > 1)]
        devices = np.array(jax.devices()[: BLOCKS * data]).reshape(BLOCKS, *[data] * (data > 1))
        executor = pipeline.Spmd(Mesh(devices, axes), data="data" if data > 1 else None)
        return pipeline.run([blocks[0]] * BLOCKS, *how, **options, executor=executor)

    return run


EXECUTORS = {
    "Simulated": pipeline.run,
    "Threads": functools.partial(pipeline.run, executor=pipeline.Threads()),
    "Processes": functools.partial(pipeline.run, executor=pipeline.Processes()),
    "Pipeline": _fed,
    "nnx.Pipeline": _nnx,
    "Spmd": _spmd(1),
    "Spmd, rows divided": _spmd(2),
}
SLOW = pytest.mark.slow


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize(
    "schedule", [n if n == "OneFOneB" else pytest.param(n, marks=SLOW) for n in PARTS]
)
def test_every_executor_weighs_parts_and_compares_the_first_batch(name, schedule, run_on_devices):
    if "Spmd" in name:
        run_on_devices(check, 2 * BLOCKS, (name, schedule))
    else:
        check(name, schedule)


def check(name, schedule):
    params, batches = given()
    how = ([block] * BLOCKS, PARTS[schedule], networks.sgd(0.1), masked, params, batches)
    made = EXECUTORS[name](*how, weight=valid_rows)
    wanted, losses = plain(params, batches, late=schedule == "PipeDream2BW")
    assert_close(made.params, wanted, 1e-6)
    assert_close(made.losses, losses, 1e-5)
    with pytest.raises(ValueError, match=r"loss: of the first batch it is .* give weight="):
        EXECUTORS[name](*how)


def test_rows_that_are_divided_over_devices_are_parts_too(run_on_devices):
    run_on_devices(check_divided, 2 * BLOCKS)


def check_divided():
    params, batches = given()
    how = ([block] * BLOCKS, pipeline.PipeDream(), networks.sgd(0.1), masked, params, batches)
    with pytest.raises(ValueError, match=r"of its 2 parts .* give weight="):
        _spmd(2)(*how)
    made = _spmd(2)(*how, weight=valid_rows)
    assert_close(made, pipeline.run(*how), 1e-6)


def test_weights_of_one_part_and_equal_weights_change_nothing():
    params, batches = given()
    even = [(x, (wanted, np.ones_like(valid))) for x, (wanted, valid) in batches]
    how = ([block] * BLOCKS, pipeline.GPipe(2), networks.sgd(0.1), masked, params, even)
    assert_same(pipeline.run(*how, weight=valid_rows), pipeline.run(*how))
    one = ([block] * BLOCKS, pipeline.PipeDream(), networks.sgd(0.1), masked, params, batches)
    assert_same(pipeline.run(*one, weight=valid_rows), pipeline.run(*one))


LOSSES = {
    "a sum": lambda y, labels: jnp.sum(y * labels[0][:, None]),
    "a root of a mean": lambda y, labels: jnp.sqrt(jnp.mean((y.sum(-1) - labels[0]) ** 2)),
    "of pairs of rows": lambda y, labels: jnp.mean(jnp.tanh(y @ y.T)),
    "not finite without rows": lambda y, labels: jnp.sum(labels[1] * y.sum(-1)) / labels[1].sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_no_mean_over_rows_is_named(name):
    params, batches = given()
    x, (wanted, valid) = batches[0]
    batches[0] = x, (wanted, valid * (np.arange(ROWS) < ROWS // 2))
    how = ([block] * BLOCKS, pipeline.GPipe(2), networks.sgd(0.1), LOSSES[name], params, batches)
    with pytest.raises(ValueError, match="loss: of the first batch"):
        pipeline.run(*how, weight=valid_rows)
    pipeline.run(how[0], pipeline.BackPropagation(), *how[2:])


def test_what_blocks_do_with_a_part_is_no_matter_of_the_loss():
    """Batch norm, dropout, half precision, and outputs without rows."""
    params, batches = given()

    def normal(w, state, x, key):
        y = block(w, x * jax.random.bernoulli(key, 0.5, x.shape))
        return ((y - y.mean(0)) / (y.std(0) + 0.1)).astype(jnp.bfloat16), state

    def last(w, x):
        return block(w, x), jnp.mean(x**2)

    def loss(made, labels):
        y, aux = made
        return jnp.mean((y.sum(-1) - labels[0]) ** 2) + 0.1 * aux

    blocks = [pipeline.Block(normal), last]
    how = (blocks, pipeline.OneFOneB(4), networks.sgd(0.1), loss, params, batches)
    assert jnp.isfinite(pipeline.run(*how).losses).all()


def test_mistakes_about_weights():
    params, batches = given()
    how = ([block] * BLOCKS, pipeline.GPipe(2), networks.sgd(0.1), masked, params, batches)
    with pytest.raises(TypeError, match="weight: got 3, of type int; a function of the labels"):
        pipeline.run(*how, weight=3)
    with pytest.raises(ValueError, match=r"weight: it does not take the labels of a part: .*; a f"):
        pipeline.run(*how, weight=lambda labels: labels["mask"].sum())
    with pytest.raises(ValueError, match=r"weight: of the labels of a part it makes float32\[4\]"):
        pipeline.run(*how, weight=lambda labels: labels[1])
