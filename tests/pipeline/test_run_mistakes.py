"""What blocks, data and loss do not fit one another is named before anything runs."""

import jax.numpy as jnp
import networks
import optax
import pytest
from networks import cross_entropy, data, net
from schedule_cases import PAPER

from parscan_bp import pipeline


def _spoiled(**new):
    """A run with one argument replaced."""
    functions, params = net(3)
    given = {
        "blocks": functions,
        "schedule": pipeline.FeaturesReplay(),
        "optimiser": networks.sgd(0.1),
        "loss": cross_entropy,
        "params": params,
        "batches": data(8),
    }
    return pipeline.run(**{**given, **new})


@pytest.mark.parametrize(
    ("new", "error", "words"),
    [
        ({"blocks": net(4)[0]}, ValueError, "params: got 3 for 4 blocks"),
        (
            {"params": net(3)[1][::-1]},
            ValueError,
            r"blocks\[0\]: it does not take the data, float\d+\[8,4\]",
        ),
        (
            {"params": [net(3)[1][k] for k in (0, 2, 1)]},
            ValueError,
            r"blocks\[1\]: it does not take what blocks\[0\] makes, float\d+\[8,5\]",
        ),
        ({"blocks": [3, *net(3)[0][1:]]}, TypeError, r"blocks\[0\]: block: got 3"),
        ({"schedule": "GPipe"}, TypeError, "schedule: got 'GPipe'"),
        ({"schedule": PAPER["DSP(1,1,1,0;6,4,2,0)"]}, ValueError, "blocks: got 3; DSP.* for 4"),
        ({"batches": data(2)}, ValueError, "batches: got 2; FeaturesReplay.* at least 3"),
        ({"batches": [data(1)[0][0]] * 8}, TypeError, r"batches\[0\]: got .*a pair"),
        (
            {"schedule": pipeline.GPipe(3)},
            ValueError,
            r"batches\[0\]: got leading axes of \[\(8,\)\]; GPipe\(microbatches=3\)",
        ),
        ({"loss": lambda y, labels: y}, ValueError, r"loss: makes float\d+\[8,3\]; a real scalar"),
        (
            {"loss": lambda y, labels: jnp.int32(3)},
            ValueError,
            r"loss: makes int32\[\]; a real scalar",
        ),
        (
            {"loss": lambda y, labels, weights: y},
            ValueError,
            r"loss: it does not take what the last block makes, float\d+\[8,3\], and the labels, "
            r"int..\[8\]: .*'weights'; a function \(output, labels\) -> scalar is wanted",
        ),
        ({"states": [(), ()]}, ValueError, "states: got 2 for 3 blocks"),
        ({"params": {"a": 1}}, TypeError, "params: got"),
        (
            {"optimiser": optax.chain(optax.clip_by_global_norm(1.0), networks.sgd(0.1))},
            NotImplementedError,
            "the update of stage 0 depends on the gradient of stage 1.*global norm",
        ),
    ],
)
def test_mistakes_have_their_own_messages(new, error, words):
    with pytest.raises(error, match=words):
        _spoiled(**new)


def test_a_state_that_changes_its_shape_is_refused():
    grows = pipeline.Block(lambda w, s, x, key: (x * w, jnp.concatenate([s, s])))
    with pytest.raises(
        ValueError, match=r"blocks\[0\]: its state float\d+\[2\] becomes float\d+\[4\]"
    ):
        pipeline.run(
            [grows],
            pipeline.BackPropagation(),
            networks.sgd(0.1),
            lambda y, l: y.sum(),
            [jnp.ones(())],
            data(2),
            states=[jnp.ones(2)],
        )
