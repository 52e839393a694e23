"""Masks and resets: the same as running Flax's layer on every row's own steps."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax_cases import (
    BATCH,
    FLOAT,
    HIDDEN,
    INPUTS,
    TIME,
    assert_close,
    inputs,
    nnx_jit_once,
    scalar,
)

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from tests.family import compare_outputs

MASK = np.array([[1, 1, 0, 1, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0, 0, 0], [1] * 9], bool)
RESET = np.zeros_like(MASK)
RESET[0, 3] = RESET[0, 5] = RESET[2, 4] = RESET[1, 0] = True
SOLVER = pb.Sweep(chunk=4)


def _nnx_rnn(library=pb.nnx, kind=nnx.SimpleCell, **keywords):
    cell = kind(INPUTS, HIDDEN, dtype=FLOAT, param_dtype=FLOAT, rngs=nnx.Rngs(0))
    return library.RNN(cell, **keywords)


def _segments(row):
    """(steps, after a reset?) of the runs of a row's unmasked steps that resets leave."""
    first, current, found = False, [], []
    for t in range(TIME):
        if RESET[row, t] and t > 0:
            found.append((first, current))
            first, current = True, []
        if MASK[row, t]:
            current.append(t)
    return [*found, (first, current)]


def _by_hand(rnn, x, reverse):
    """Outputs and final carry of Flax's layer, run on each segment by itself."""
    outputs, carries = jnp.zeros((BATCH, TIME, HIDDEN), FLOAT), []
    for row in range(BATCH):
        for _, steps in _segments(row)[:: -1 if reverse else 1]:
            carry = jnp.zeros((1, HIDDEN), FLOAT)
            if steps:
                index = jnp.array(steps)
                carry, y = rnn(
                    x[row : row + 1, index], return_carry=True, reverse=reverse, keep_order=True
                )
                outputs = outputs.at[row, index].set(y[0])
        carries.append(carry[0])
    return jnp.stack(carries), outputs


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("time_major", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_masked_steps_are_left_out_and_resets_start_afresh(reverse, time_major):
    def ours(model, x):
        x = jnp.where(MASK[..., None], x, jnp.nan)
        args = [jnp.swapaxes(a, 0, 1) if time_major else a for a in (x, MASK, RESET)]
        carry, y = model(
            args[0],
            mask=args[1],
            reset=args[2],
            return_carry=True,
            reverse=reverse,
            keep_order=True,
            time_major=time_major,
        )
        return carry, jnp.swapaxes(y, 0, 1) if time_major else y

    def theirs(model, x):
        return _by_hand(model, x, reverse)

    results = []
    for model, run in ((_nnx_rnn(solver=SOLVER), ours), (_nnx_rnn(nnx), theirs)):
        loss = lambda model, x: (scalar(out := run(model, x)), out)  # noqa: E731
        grad = nnx_jit_once(nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        results.append(grad(model, inputs()))
    assert_close(results[0], results[1])
    (_, (_, outputs)), (_, by_x) = results[0]
    assert not np.asarray(outputs)[~MASK].any() and not np.asarray(by_x)[~MASK].any()


LENGTHS = np.array([5, 7, 4])


@pytest.mark.parametrize("reverse", [False, True])
def test_with_lengths_each_row_is_its_first_steps(reverse):
    """Among which masked ones do nothing; what stands in the padding does not matter."""
    how = {"return_carry": True, "reverse": reverse, "keep_order": True}
    reset = RESET | (np.arange(TIME) >= LENGTHS[:, None])
    first = jnp.linspace(-1, 1, BATCH * HIDDEN, dtype=FLOAT).reshape(BATCH, HIDDEN)

    @nnx_jit_once
    def run(model, x):
        together = model(x, mask=MASK, reset=reset, seq_lengths=LENGTHS, initial_carry=first, **how)
        alone = []
        for k, length in enumerate(LENGTHS):
            row = (slice(k, k + 1), slice(0, int(length)))
            alone.append(
                model(x[row], mask=MASK[row], reset=reset[row], initial_carry=first[k:][:1], **how)
            )
        return together, alone

    (carry, out), alone = run(_nnx_rnn(), inputs())
    for k, (own_carry, own) in enumerate(alone):
        np.testing.assert_allclose(out[k, : LENGTHS[k]], own[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(carry[k], own_carry[0], rtol=1e-5, atol=1e-6)


def test_linen_and_both_directions_agree_whatever_the_padding_holds():
    cell = nn.SimpleCell(HIDDEN, param_dtype=FLOAT)
    layer = pb.linen.Bidirectional(*(pb.linen.RNN(cell, solver=SOLVER) for _ in range(2)))
    variables = jax.jit(layer.init)(jax.random.key(0), inputs())

    def run(params, x, mask, reset):
        out = layer.apply({"params": params}, x, mask=mask, reset=reset, return_carry=True)
        return scalar(out)

    grad = jax.jit(jax.value_and_grad(run, (0, 1)))
    clean, *dirty = (
        grad(variables["params"], jnp.where(MASK[..., None], inputs(), garbage), MASK, RESET)
        for garbage in (0, jnp.nan, jnp.inf, 1e30)
    )
    for got in dirty:
        assert all(np.isfinite(a).all() for a in jax.tree.leaves(got))
        compare_outputs(got, clean)
    every = grad(variables["params"], inputs(), np.ones_like(MASK), np.zeros_like(MASK))
    plain = grad(variables["params"], inputs(), None, None)
    assert_close(every, plain)


def test_a_cell_outside_its_domain_at_zero_stays_finite_where_masked():
    class Log(nnx.RNNCellBase):
        num_feature_axes = 1

        def __call__(self, carry, x):
            h = 0.5 * carry + jnp.log(x).sum(-1, keepdims=True) / jnp.linalg.norm(carry + x)
            return h, h

    def loss(x):
        rnn = pb.nnx.RNN(Log(), solver=SOLVER)
        return scalar(rnn(x, mask=MASK, initial_carry=jnp.ones((BATCH, 1), FLOAT)))

    x = jnp.where(MASK[..., None], jnp.abs(inputs()) + 1, 0)
    value, grad = jax.jit(jax.value_and_grad(loss))(x)
    assert np.isfinite(value) and np.isfinite(grad).all()


def test_masks_that_do_not_fit_are_refused():
    rnn, x = _nnx_rnn(), inputs()
    with pytest.raises(ValueError, match=r"mask: got bool\[9, 3\]; bool\[3, 9\] is wanted"):
        rnn(x, mask=MASK.T)
    with pytest.raises(ValueError, match=r"reset: got int\d+\[3, 9\]; bool\[3, 9\] is wanted"):
        rnn(x, reset=jnp.ones((3, 9), int))
    with pytest.raises(ValueError, match=r"mask: a value of shape \[\] in the carry"):
        _nnx_rnn(kind=nnx.LSTMCell)(x, mask=MASK, initial_carry=(jnp.zeros((3, 4)), jnp.zeros(())))
    theirs = nnx.Bidirectional(_nnx_rnn(nnx), _nnx_rnn(nnx))
    layer = pb.nnx.Bidirectional(theirs.forward_rnn, theirs.backward_rnn)
    with pytest.raises(
        TypeError, match=r"forward_rnn: got a .*; for a mask or resets a parscan_bp"
    ):
        layer(x, mask=MASK)
