"""Optimisers of optax and what is known of each: whether blocks can be updated one by one."""

import dataclasses

import jax
import optax
from optax import contrib

BLOCKS = 3
MASK = {"kernel": True, "bias": False}
LABELS = {"kernel": "a", "bias": "b"}


@dataclasses.dataclass(frozen=True)
class Optimiser:
    """An optimiser.

    Attributes:
      made: of optax.
      kind: "apart" if it is run by each block for itself, "all" if it wants all gradients at once,
        "refused" if no schedule takes it.
      words: of the error where it is refused.
    """

    made: optax.GradientTransformation
    kind: str
    words: str = ""


def _matrices(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _by_name(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: LABELS[path[-1].key], params)


def _remembers():
    """Divides by the global norm of the gradients of the step before: no update of its own step
    depends on another block."""
    norm = optax.tree.norm
    return optax.GradientTransformation(
        lambda params: norm(params) * 0 + 1,
        lambda g, last, params=None: (jax.tree.map(lambda a: a / last, g), norm(g)),
    )


def _weight_norm():
    """Depends on the weights of all, and on no gradient."""
    return optax.GradientTransformation(
        lambda params: optax.EmptyState(),
        lambda g, state, params=None: (
            jax.tree.map(lambda a: a / optax.tree.norm(params), g),
            state,
        ),
    )


SGD = optax.sgd(0.1, momentum=0.9)
DECAY = optax.add_decayed_weights(0.1, mask=MASK)
TWO = {"a": optax.adam(0.02), "b": optax.sgd(0.1)}
CLIPPED = {"a": optax.chain(optax.clip_by_global_norm(0.1), SGD), "b": SGD}
NO_MASK = "labels and masks for all blocks are wanted"
OPTIMISERS = {
    "sgd": Optimiser(SGD, "apart"),
    "adamw": Optimiser(optax.adamw(0.02, mask=_matrices), "apart"),
    "lamb": Optimiser(optax.lamb(0.02), "apart"),
    "lars": Optimiser(optax.lars(1.0, weight_decay_mask=_matrices), "apart"),
    "adafactor": Optimiser(optax.adafactor(0.02, min_dim_size_to_factor=4), "apart"),
    "muon": Optimiser(contrib.muon(0.02), "apart"),
    "novograd": Optimiser(optax.novograd(0.02), "apart"),
    "fromage": Optimiser(optax.fromage(0.02), "apart"),
    "clip": Optimiser(optax.chain(optax.clip(0.01), SGD), "apart"),
    "clip_by_block_rms": Optimiser(optax.chain(optax.clip_by_block_rms(0.01), SGD), "apart"),
    "adaptive_grad_clip": Optimiser(optax.chain(optax.adaptive_grad_clip(0.01), SGD), "apart"),
    "inject_hyperparams": Optimiser(
        optax.inject_hyperparams(optax.adam)(optax.cosine_decay_schedule(0.02, 9)), "apart"
    ),
    "MultiSteps": Optimiser(optax.MultiSteps(SGD, 2).gradient_transformation(), "apart"),
    "schedule_free": Optimiser(contrib.schedule_free(optax.sgd(0.1), 0.1), "apart"),
    "masked, a block": Optimiser(optax.chain(DECAY, SGD), "apart"),
    "masked, all": Optimiser(
        optax.chain(optax.masked(optax.clip(0.1), [MASK] * BLOCKS), SGD), "all"
    ),
    "multi_transform, a block": Optimiser(optax.multi_transform(TWO, LABELS), "apart"),
    "multi_transform, all": Optimiser(optax.multi_transform(TWO, [LABELS] * BLOCKS), "all"),
    "partition by name": Optimiser(optax.partition(TWO, _by_name), "apart"),
    "partition by name, clipped": Optimiser(optax.partition(CLIPPED, _by_name), "all"),
    "one block frozen": Optimiser(
        optax.multi_transform({"a": SGD, "b": optax.set_to_zero()}, ["a", "b", "a"]), "all"
    ),
    "clip_by_global_norm": Optimiser(optax.chain(optax.clip_by_global_norm(0.1), SGD), "all"),
    "clip_by_global_norm, mask for all": Optimiser(
        optax.chain(
            optax.clip_by_global_norm(0.1),
            optax.add_decayed_weights(0.1, mask=[MASK] * BLOCKS),
            SGD,
        ),
        "all",
    ),
    "clip_by_global_norm, mask for a block": Optimiser(
        optax.chain(optax.clip_by_global_norm(0.1), DECAY, SGD), "refused", NO_MASK
    ),
    "clipped labels for a block": Optimiser(
        optax.multi_transform(CLIPPED, LABELS), "refused", NO_MASK
    ),
    "apply_if_finite": Optimiser(optax.apply_if_finite(optax.adam(0.02), 9), "all"),
    "apply_if_finite, mask for a block": Optimiser(
        optax.apply_if_finite(optax.chain(DECAY, SGD), 9), "refused", NO_MASK
    ),
    "loss scaling": Optimiser(
        optax.apply_if_finite(optax.chain(optax.scale(1 / 16), SGD), 9), "all"
    ),
    "prodigy": Optimiser(contrib.prodigy(0.1, estim_lr0=0.1), "all"),
    "flatten": Optimiser(optax.flatten(optax.adam(0.02)), "all"),
    "lbfgs without line search": Optimiser(optax.lbfgs(0.1, linesearch=None), "all"),
    "a norm of the step before": Optimiser(optax.chain(_remembers(), SGD), "all"),
    "a norm of the weights": Optimiser(optax.chain(_weight_norm(), SGD), "all"),
    "lbfgs": Optimiser(
        optax.lbfgs(), "refused", "its update wants 'value', 'grad', and 'value_fn'"
    ),
    "lookahead": Optimiser(optax.lookahead(SGD, 2, 0.5), "refused", "does not take the params"),
    "labels of others": Optimiser(
        optax.multi_transform({"a": SGD}, {"c": "a"}), "refused", "does not take the params"
    ),
}
