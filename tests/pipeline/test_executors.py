"""`run`: one entry point for all executors, those written outside among them."""

import dataclasses

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from alike import line
from networks import cross_entropy, data, net
from schedule_cases import CASES

from parscan_bp import pipeline


@dataclasses.dataclass(frozen=True)
class Dispatched(pipeline.Executor):
    """Block k on device k mod D, no thread: JAX's own asynchronous calls are what overlaps."""

    devices: tuple

    def run(self, job):
        runs, post = job.block_runs(), _Post({}, self.devices)
        for own in runs:
            own.place(self.devices[own.number % len(self.devices)])
        for n in range(job.table.batches):
            for part, (x, labels) in enumerate(job.pairs(n)):
                post.put("output", (-1, n, part), x)
                post.put("labels", (len(runs) - 1, n, part), labels)
        for task, unread in job.due():
            runs[task.block].run(task, post, unread)
        parts = range(job.table.parts)
        losses = [
            jnp.mean(jnp.stack([post.take("loss", (len(runs) - 1, n, part)) for part in parts]))
            for n in range(job.table.batches)
        ]
        assert not post.held
        return pipeline.Trained.of(runs, jnp.stack(losses))


@dataclasses.dataclass(frozen=True)
class _Post:
    held: dict
    devices: tuple

    def put(self, what, where, value):
        reader = {"output": where[0] + 1, "gradient": 0}.get(what, where[0])
        device = self.devices[reader % len(self.devices)]
        self.held[what, where] = jax.device_put(value, device)

    def take(self, what, where):
        return self.held.pop((what, where))


def given_of(case):
    functions, params = net(case.blocks)
    batches = data(case.schedule.on_the_way(case.blocks) + 4)
    return functions, case.schedule, networks.sgd(0.1, 0.9), cross_entropy, params, batches


@pytest.mark.parametrize("case", ["DSP(1,1,0;4,2,0)", "GPipe"])
def test_one_of_ones_own_has_the_simulators_bits(case):
    given = given_of(CASES[case])
    made = pipeline.run(*given, executor=Dispatched(tuple(jax.devices())))
    assert networks.same_bits(made, pipeline.run(*given))


def test_one_of_ones_own_puts_blocks_where_it_likes(run_on_devices):
    run_on_devices(check_placed, 4, optimised=True)


def check_placed():
    functions, params = net(2)
    how = (pipeline.DSP((1, 0), (2, 0)), networks.sgd(0.1, 0.9), cross_entropy)
    given = (functions, *how, params, data(6))
    made = pipeline.run(*given, executor=Dispatched(tuple(jax.devices())))
    assert [jax.tree.leaves(own)[0].device.id for own in made.params] == [0, 1]
    assert networks.same_bits(made, pipeline.run(*given))


@dataclasses.dataclass(frozen=True)
class Clockwork(pipeline.Schedule):
    """A batch a tick: block k has it in tick n + k, and its gradient in tick n + 2 K - 1 - k.

    Both passes read the weights that the forward pass found.
    """

    def tasks(self, blocks, batches):
        made = []
        for k in range(blocks):
            for n in range(batches):
                # Updates of block k before tick n + k.
                found = max(0, n - 2 * (blocks - 1 - k) - 1)
                back = n + 2 * blocks - 1 - k
                made.append(pipeline.Task("forward", n + k, k, n, version=found))
                made.append(pipeline.Task("backward", back, k, n, version=found))
                made.append(pipeline.Task("update", back, k, n, version=n))
        kinds = ["forward", "backward", "update"]
        down = lambda task: task.block if task.kind == "forward" else -task.block  # noqa: E731
        return sorted(made, key=lambda task: (task.tick, kinds.index(task.kind), down(task)))

    def on_the_way(self, blocks):
        return 2 * blocks - 1


def test_a_schedule_of_ones_own_is_run_by_all():
    functions, params = net(3)
    given = (functions, Clockwork(), networks.sgd(0.1, 0.9), cross_entropy, params, data(10))
    wanted = pipeline.run(*given)
    late = [(each.forward, each.backward) for each in Clockwork().staleness(3)]
    assert late == [(5, 5), (3, 3), (1, 1)]
    for executor in (pipeline.Threads(), Dispatched(tuple(jax.devices()))):
        assert networks.same_bits(pipeline.run(*given, executor=executor), wanted)
    fed = pipeline.Pipeline(
        functions,
        params,
        split=(1, 1, 1),
        schedule=Clockwork(),
        optimiser=given[2],
        loss=cross_entropy,
    )
    np.testing.assert_array_equal(fed.fit(data(10)), wanted.losses)
    fed.close()


class Empty(pipeline.Executor):
    """It forgets what it is for."""

    def run(self, job):
        return job.params


@pytest.mark.parametrize(
    ("executor", "words"),
    [
        (pipeline.Threads, "executor: got <class"),
        ("threads", "executor: got 'threads'"),
        (Empty(), "executor: .*Empty.* returns .*; a Trained is wanted"),
    ],
    ids=["class", "name", "empty"],
)
def test_what_is_no_executor_is_told(executor, words):
    with pytest.raises(TypeError, match=words):
        pipeline.run(*given_of(CASES["GPipe"]), executor=executor)


def test_an_executor_needs_its_one_method():
    assert pipeline.Executor.__abstractmethods__ == {"run"}
    for kind in (pipeline.Simulated, pipeline.Threads, pipeline.Spmd, pipeline.Processes):
        assert issubclass(kind, pipeline.Executor)


def test_spmd_wants_one_block_for_all_stages(run_on_devices):
    run_on_devices(check_other_blocks, 4)


def check_other_blocks():
    blocks = [lambda w, x: w * x, lambda w, x: w + x]
    rest = (pipeline.GPipe(1), networks.sgd(0.1), lambda y, labels: y.mean())
    with pytest.raises(ValueError, match=r"blocks\[1\]: got another block than blocks\[0\]"):
        params = [jnp.ones(())] * 2
        pipeline.run(blocks, *rest, params, data(3), executor=pipeline.Spmd(line(2)))


@pytest.mark.parametrize("executor", ["Simulated", "Spmd"])
def test_params_of_weak_types_are_of_their_dtype_from_the_start(executor):
    """Batches of half precision would else be of another dtype before the first update."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("stage",))
    batch = np.ones(4, np.float32), np.full(4, 2.0, np.float32)
    made = pipeline.run(
        [lambda w, x: w * x],
        pipeline.PipeDream(),
        networks.sgd(0.1),
        lambda y, labels: jnp.mean((y - labels) ** 2),
        [jnp.asarray(1.0) if executor == "Spmd" else 1.0],
        [batch] * 3,
        executor=pipeline.Spmd(mesh) if executor == "Spmd" else pipeline.Simulated(),
    )
    (param,) = made.params
    np.testing.assert_allclose(param, 2 - 0.8**3, rtol=1e-6)
    assert param.dtype == jnp.zeros(()).dtype and not jax.typeof(param).weak_type
