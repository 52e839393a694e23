"""Batches as they enter: in memory of their own, and like the first one."""

import itertools

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from alike import line
from networks import placed, same_bits

from parscan_bp import pipeline

SCHEDULES = (pipeline.DSP((1, 0), (2, 0)), pipeline.GPipe(2))
BATCHES = 14


def block(w, x):
    """x + tanh(x W)."""
    return x + jnp.tanh(x @ w)


def error(y, labels):
    """Mean square."""
    return jnp.mean((y - labels) ** 2)


def given(schedule, batches):
    """The arguments of executors."""
    params = placed([jnp.eye(4, dtype=jnp.float32) / 2] * 2)
    return [block] * 2, schedule, networks.sgd(0.01, momentum=0.9), error, params, batches


def fed(schedule):
    """A `Pipeline` of the same."""
    functions, _, optimiser, loss, params, _ = given(schedule, [])
    own = {"schedule": schedule, "optimiser": optimiser, "loss": loss}
    return pipeline.Pipeline(functions, params, split=(1, 1), **own)


def batches_of_numpy():
    """Noise with labels."""
    rng = np.random.default_rng(0)
    new = lambda: rng.normal(size=(4, 4)).astype(np.float32)  # noqa: E731
    return [(new(), new()) for _ in range(BATCHES)]


class Refilled:
    """A sequence of batches that all lie in the same memory."""

    def __init__(self):
        self._batches = batches_of_numpy()
        self._buffer = tuple(np.empty_like(a) for a in self._batches[0])

    def __len__(self):
        return len(self._batches)

    def __getitem__(self, n):
        for buffer, new in zip(self._buffer, self._batches[n], strict=True):
            buffer[...] = new
        return self._buffer


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_who_refills_one_buffer_gets_the_same(schedule):
    wanted = pipeline.run(*given(schedule, batches_of_numpy()))
    assert same_bits(pipeline.run(*given(schedule, Refilled())), wanted)
    assert same_bits(
        pipeline.run(*given(schedule, Refilled()), executor=pipeline.Threads()), wanted
    )
    own, batches = fed(schedule), Refilled()
    losses = own.fit(batches[n] for n in range(BATCHES))
    assert same_bits(losses, wanted.losses) and same_bits(own.params, wanted.params)
    own.close()


def test_one_program_for_all_stages_gets_the_same_of_one_buffer():
    def run(batches):
        functions, schedule, optimiser, loss, params, batches = given(SCHEDULES[1], batches)
        return pipeline.run(
            functions[:1],
            schedule,
            optimiser,
            loss,
            params[:1],
            batches,
            executor=pipeline.Spmd(mesh=line(1)),
        )

    assert same_bits(run(Refilled()), run(batches_of_numpy()))


def test_the_rows_are_not_divided_over_the_stages():
    functions, schedule, optimiser, loss, params, batches = given(SCHEDULES[1], batches_of_numpy())
    rest = (functions[0], schedule, optimiser, loss, params[:1], batches)
    with pytest.raises(ValueError, match="data: got 'stage', which is the axis of the stages"):
        pipeline.run(*rest, executor=pipeline.Spmd(mesh=line(1), data="stage"))
    with pytest.raises(ValueError, match="data: got 'rows'; the mesh has the axes"):
        pipeline.run(*rest, executor=pipeline.Spmd(mesh=line(1), data="rows"))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_batch_unlike_the_first_one_does_not_enter(schedule, tmp_path):
    own, batches = fed(schedule), batches_of_numpy()
    x, labels = batches[0]
    with pytest.raises(ValueError, match=r"blocks\[0\]: it does not take the data"):
        own.step((x[:, :3], labels))
    losses = [own.step(batch) for batch in batches[:7]]
    wrong = [(x[:2], labels[:2]), (x.astype(np.int32), labels), ((x,), labels), (x, labels[:2])]
    for batch, repeat in itertools.product(wrong, range(2)):
        del repeat
        with pytest.raises(ValueError, match=r"batch.* got"):
            own.step(batch)
    own.save(tmp_path / "flight")
    again = fed(schedule)
    again.restore(tmp_path / "flight")
    with pytest.raises(
        ValueError,
        match=r"labels\): got \(float32\[1,4\], .*\[2,4\]\) is wanted|"
        r"got \(float32\[2,4\], .*\[4,4\]\) is wanted",
    ):
        again.step((x[:2], labels[:2]))
    wanted = pipeline.run(*given(schedule, batches))
    for each in (own, again):
        each.fit(batches[7:])
        assert same_bits(each.params, wanted.params)
        each.close()
    assert len(losses) == 7


def test_numbers_that_a_device_holds_alike_are_alike():
    own, batches = fed(SCHEDULES[0]), batches_of_numpy()
    own.step(jax.tree.map(lambda a: a.astype(np.float64), batches[0]))
    if not jax.config.jax_enable_x64:
        own.step(batches[1])
    own.close()


def dropout(params, state, x, key):
    """Half of x W."""
    return (x @ params) * jax.random.bernoulli(key, 0.5, x.shape), state


def in_pairs(params, state, x, key):
    """Two layers, as a block of a `Pipeline` has them."""
    for own, key_of_layer in zip(params, jax.random.split(key, 2), strict=True):
        x, _ = dropout(own, (), x, key_of_layer)
    return x, state


# Of parts, keys are what the next test is about.
@pytest.mark.parametrize(
    "schedule", [SCHEDULES[0], pytest.param(SCHEDULES[1], marks=pytest.mark.slow)], ids=str
)
def test_random_keys_are_the_simulators(schedule):
    batches, params = placed(batches_of_numpy()), given(schedule, [])[4]
    rest = {"schedule": schedule, "optimiser": networks.sgd(0.01), "loss": error}
    key = placed(jax.random.key(3))
    layer = pipeline.Block(dropout)
    own = pipeline.Pipeline([layer] * 2, params, split=(1, 1), key=key, **rest)
    losses = own.fit(batches)
    wanted = pipeline.run([layer] * 2, params=params, batches=batches, key=key, **rest)
    assert same_bits(losses, wanted.losses) and same_bits(own.params, wanted.params)
    own.close()


def test_several_layers_in_a_block_split_its_key():
    batches, w = placed((batches_of_numpy(), jnp.eye(4, dtype=jnp.float32) / 2))
    rest = {"schedule": pipeline.GPipe(2), "optimiser": networks.sgd(0.01), "loss": error}
    own = pipeline.Pipeline([pipeline.Block(dropout)] * 4, [w] * 4, split=(2, 2), **rest)
    losses = own.fit(batches)
    pairs = [pipeline.Block(in_pairs)] * 2
    wanted = pipeline.run(pairs, params=[[w, w]] * 2, batches=batches, **rest)
    assert same_bits(losses, wanted.losses)
    own.close()
