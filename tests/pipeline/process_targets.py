"""What the processes of `test_pipeline_processes` do."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from parscan_bp import pipeline

sys.path.insert(0, "tests/pipeline")
from networks import cross_entropy, data, net
from schedule_cases import CASES


def bits(tree):
    """The numbers of all leaves, exactly."""
    return [np.asarray(leaf).astype(float).ravel().tolist() for leaf in jax.tree.leaves(tree)]


def train(name: str, ticks: str):
    """Weights and losses of the blocks here, and those of the simulator."""
    case = CASES[name]
    functions, params = net(case.blocks)
    schedule, optimiser = case.schedule, optax.sgd(0.1, momentum=0.9)
    batches = data(int(ticks))
    given = (schedule, optimiser, cross_entropy, params, batches)
    made = pipeline.run(functions, *given, executor=pipeline.Processes())
    wanted = pipeline.run(functions, *given)
    mine = pipeline.Processes().blocks_here(case.blocks)
    same = bits(made.params) == bits([wanted.params[k] for k in mine])
    losses = not len(made.losses) or bits(made.losses) == bits(wanted.losses)
    return {"blocks": list(mine), "same": same and losses, "losses": len(made.losses)}


def remedied():
    """Whether late blocks with remedies are as in the simulator, and not as without."""
    functions, params = net(3)
    given = (CASES["DSP(1,1,0;4,2,0)"].schedule, optax.sgd(0.1, momentum=0.9), cross_entropy)
    remedies = [
        pipeline.DelayCompensation(0.8, decay=0.9),
        pipeline.LearningRateByStaleness(0.5, anneal=6),
        pipeline.WeightPrediction(),
    ]
    given = (functions, *given, params, data(12))
    made = pipeline.run(*given, remedies=remedies, executor=pipeline.Processes())
    wanted = pipeline.run(*given, remedies=remedies)
    plain = pipeline.run(*given)
    mine = pipeline.Processes().blocks_here(3)
    ours, theirs, without = (
        [bits(own.params[k]) for k in which]
        for own, which in ((made, range(len(mine))), (wanted, mine), (plain, mine))
    )
    return {"same": ours == theirs, "other": ours != without}


def together():
    """Whether parts with weights, and a global norm, are as in the simulator."""

    def loss(scores, labels):
        rows = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
        return ((labels > 0) * rows).sum() / (labels > 0).sum()

    functions, params = net(3)
    optimiser = optax.chain(optax.clip_by_global_norm(0.05), optax.adam(0.1))
    given = (pipeline.ZeroBubble(2, lookahead=2), optimiser, loss, params, data(4))
    weight = lambda labels: (labels > 0).sum()  # noqa: E731
    made = pipeline.run(functions, *given, weight=weight, executor=pipeline.Processes())
    wanted = pipeline.run(functions, *given, weight=weight)
    mine = pipeline.Processes().blocks_here(3)
    states = [len(jax.tree.leaves(own)) > 0 for own in made.optimiser_states]
    return {"same": bits(made.params) == bits([wanted.params[k] for k in mine]), "states": states}


def uneven():
    """Whether data with integers, and batches of other sizes, are as in the simulator."""
    block = lambda w, x: {"h": jnp.sin(w * x["h"] + x["t"][:, None]), "t": x["t"], "on": x["on"]}  # noqa: E731
    loss = lambda y, labels: jnp.mean((jnp.where(y["on"], y["h"].sum(-1), 0) - labels) ** 2)  # noqa: E731
    rng, batches = np.random.default_rng(0), []
    for rows in (4, 4, 6, 2):
        x = rng.normal(size=(rows, 3)).astype(np.float32)
        given = {"h": x, "t": np.arange(rows, dtype=np.int32), "on": x[:, 0] > 0}
        batches.append((given, x[:, 1]))
    params = [jnp.float32(0.5 + 0.1 * k) for k in range(3)]
    given = ([block] * 3, pipeline.PipeDream(), optax.sgd(0.1), loss, params, batches)
    made = pipeline.run(*given, executor=pipeline.Processes())
    wanted = pipeline.run(*given)
    mine = pipeline.Processes().blocks_here(3)
    losses = bits(made.losses) == bits(wanted.losses[: len(made.losses)])
    return {"same": losses and bits(made.params) == bits([wanted.params[k] for k in mine])}


def resume():
    """Whether a run that goes on with the optimiser's states of another one is as in the simulator.

    Those that it starts with count: fresh ones lead elsewhere.
    """
    functions, _ = net(3)
    given = (pipeline.OneFOneB(2), optax.adam(0.1), cross_entropy)
    begun = pipeline.run(functions, *given, net(3)[1], data(4))
    later = (begun.params, data(9)[4:])
    wanted = pipeline.run(functions, *given, *later, optimiser_states=begun.optimiser_states)
    fresh = pipeline.run(functions, *given, *later)
    made = pipeline.run(
        functions,
        *given,
        *later,
        optimiser_states=begun.optimiser_states,
        executor=pipeline.Processes(),
    )
    mine = pipeline.Processes().blocks_here(3)
    of = lambda run, own: bits(  # noqa: E731
        [[run.params[k] for k in own], [run.optimiser_states[k] for k in own]]
    )
    got = of(made, range(len(mine)))
    return {"same": got == of(wanted, mine), "fresh": got == of(fresh, mine)}


def refuse():
    """The message for a schedule in lockstep."""
    functions, params = net(3)
    given = (pipeline.FeaturesReplay(), optax.sgd(0.1), cross_entropy, params, data(4))
    try:
        pipeline.run(functions, *given, executor=pipeline.Processes())
    except NotImplementedError as error:
        return str(error)
    return jnp.nan


def fail():
    """The last block, in the last process, raises in mid-flight."""
    functions, params = net(3)

    def hot(params, x):
        seen = []

        def stop(x):
            seen.append(x)
            if len(seen) > 4:
                raise ArithmeticError("too hot")
            return x

        still = jax.lax.stop_gradient(x)
        return functions[-1](params, x) + jax.pure_callback(stop, still, still)[:, :1]

    blocks = [*functions[:-1], hot]
    given = (pipeline.PipeDream(), optax.sgd(0.1), cross_entropy, params, data(20))
    pipeline.run(blocks, *given, executor=pipeline.Processes())
