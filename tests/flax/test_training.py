"""Training loops as they are written with Flax; checkpoints; half precision; a missing Flax."""

import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from flax_cases import FLOAT, HIDDEN, INPUTS, assert_close, inputs, nnx_jit_once

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from tests.family import compare_outputs

SOLVER = pb.Sweep(chunk=4)
LOOSE = {"float64": 1e-8, "float32": 1e-3}[str(FLOAT)]  # Adam divides small gradients


def _cell(kind=nnx.GRUCell, seed=0, dtype=FLOAT):
    # The default, an orthogonal matrix, does not exist in half precision.
    how = {"recurrent_kernel_init": nnx.initializers.lecun_normal(), "dtype": dtype}
    return kind(INPUTS, HIDDEN, param_dtype=dtype, rngs=nnx.Rngs(seed), **how)


def _train_nnx(library, **keywords):
    model = nnx.Sequential(
        library.RNN(_cell(nnx.SimpleCell), **keywords),
        nnx.Linear(HIDDEN, 1, param_dtype=FLOAT, rngs=nnx.Rngs(1)),
    )
    rule = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2))
    optimizer = nnx.Optimizer(model, rule, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    losses = [step(model, optimizer, inputs()) for _ in range(4)]
    return jnp.stack(losses), nnx.state(model, nnx.Param)


def test_training_with_an_nnx_optimizer_follows_flax():
    got, want = _train_nnx(pb.nnx, solver=SOLVER), _train_nnx(nnx)
    assert_close(got, want, LOOSE)
    assert got[0][-1] < got[0][0]


def _train_linen(library, **keywords):
    model = library.RNN(nn.OptimizedLSTMCell(HIDDEN, param_dtype=FLOAT), **keywords)
    rule = optax.MultiSteps(
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.5)), every_k_schedule=2
    )
    params = model.init(jax.random.key(0), inputs())["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=rule)

    @jax.jit
    def step(state, x):
        @jax.checkpoint
        def loss(params):
            return jnp.mean((state.apply_fn({"params": params}, x) - 1) ** 2)

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    losses = []
    for _ in range(6):
        state, value = step(state, inputs())
        losses.append(value)
    return jnp.stack(losses), state.params


def test_training_with_a_train_state_follows_flax():
    got, want = _train_linen(pb.linen, solver=SOLVER), _train_linen(nn)
    assert_close(got, want, LOOSE)
    assert got[0][-1] < got[0][0]


@pytest.mark.parametrize("written", ["flax", "ours"])
def test_a_checkpoint_of_one_loads_into_the_other(tmp_path, written):
    theirs, ours = nnx.RNN(_cell(seed=1)), pb.nnx.RNN(_cell(seed=2), solver=SOLVER)
    source, target = (theirs, ours) if written == "flax" else (ours, theirs)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(source, nnx.Param))
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", nnx.state(target, nnx.Param))
    assert not np.array_equal(target.cell.dense_h.kernel[...], source.cell.dense_h.kernel[...])
    nnx.update(target, restored)
    compare_outputs(target(inputs()), source(inputs()))


# Relative to the largest entry of the float32 derivative at the same, rounded, parameters.
HALF = {"bfloat16": 4e-2, "float16": 5e-3}


HALVES = [
    (nnx.GRUCell, "bfloat16"),
    (nnx.LSTMCell, "float16"),
    pytest.param(nnx.GRUCell, "float16", marks=pytest.mark.slow),
    pytest.param(nnx.LSTMCell, "bfloat16", marks=pytest.mark.slow),
    pytest.param(nnx.OptimizedLSTMCell, "bfloat16", marks=pytest.mark.slow),
    pytest.param(nnx.OptimizedLSTMCell, "float16", marks=pytest.mark.slow),
    pytest.param(nnx.SimpleCell, "bfloat16", marks=pytest.mark.slow),
    pytest.param(nnx.SimpleCell, "float16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "name"), HALVES)
def test_half_precision(kind, name):
    dtype = jnp.dtype(name)
    x = inputs().astype(dtype)
    narrow = pb.nnx.RNN(_cell(kind, dtype=dtype), solver=SOLVER)
    theirs = nnx.RNN(_cell(kind, dtype=dtype))
    compare_outputs(narrow(x), theirs(x))
    wide = nnx.RNN(_cell(kind, dtype=jnp.float32))
    state = nnx.state(narrow, nnx.Param)
    nnx.update(wide, jax.tree.map(lambda a: a.astype(jnp.float32), state))
    grad = nnx.grad(lambda m, x: jnp.sum(m(x).astype(jnp.float32) ** 2))
    got, want = grad(narrow, x), nnx_jit_once(grad)(wide, x.astype(jnp.float32))
    assert all(a.dtype == dtype for a in jax.tree.leaves(got))
    assert_close(jax.tree.map(lambda a: a.astype(jnp.float32), got), want, HALF[name])


@pytest.mark.parametrize("part", ["nnx", "linen"])
def test_without_flax_the_error_names_the_extra(part):
    code = (
        "import sys; sys.modules['flax'] = None\n"
        "import parscan_bp\n"
        f"try: import parscan_bp.{part}\n"
        "except ImportError as e: assert 'parscan_bp[flax]' in str(e), e\n"
        "else: raise AssertionError('imported')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
