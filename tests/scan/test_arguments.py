"""What is wrong with an argument is said where it enters: its name, what came, what is wanted."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import parscan_bp as pb
import parscan_bp.linen
import parscan_bp.nnx
from parscan_bp.layers import (
    AveragePool,
    BatchNorm,
    Conv,
    Dropout,
    Elementwise,
    Function,
    LayerNorm,
    Linear,
    MaxPool,
    Residual,
)
from parscan_bp.operators import Diagonal

X, XS, C = jnp.ones((2, 3)), jnp.ones((4, 3)), jnp.zeros(3)
SYSTEM = pb.Uniform(Diagonal(jnp.ones((3, 2))), jnp.ones((4, 2)))
RAGGED = pb.Ragged([Diagonal(jnp.ones(2))], [None, jnp.ones(2)])
OWN = {"kernel": jnp.ones((3, 3)), "bias": jnp.ones(3)}
ONE, LAST = Diagonal(jnp.ones(2)), (None, jnp.ones(2))
INTEGERS = pb.Uniform(Diagonal(jnp.ones((3, 2), int)), jnp.ones((4, 2), int))


def uniform(g):
    return pb.Uniform(Diagonal(jnp.ones((3, 2))), g)


def ragged(operators, g=LAST, wanted=None):
    return pb.Ragged(operators, g, wanted)


def step(c, x):
    return jnp.tanh(c + x), c


def scan(**options):
    return pb.scan(step, C, XS, **options)


def chain(*layers, params=None, **options):
    return pb.chain(layers, params or [None] * len(layers), X, **options)


def nnx_rnn(solver):
    return pb.nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)), solver=solver)


def linen_rnn(solver):
    return pb.linen.RNN(nn.GRUCell(4), solver=solver)


# Every front end, with a solver of its kind for the other kind.
FRONT_ENDS = {
    "scan": (lambda s: scan(solver=s), pb.Planned()),
    "explain": (lambda s: pb.explain(step, C, XS, solver=s), pb.Planned()),
    "custom_vjp_scan": (lambda s: pb.custom_vjp_scan(step, C, XS, solver=s), pb.Planned()),
    "nnx.RNN": (nnx_rnn, pb.Planned()),
    "linen.RNN": (linen_rnn, pb.Planned()),
    "solve": (lambda s: pb.solve(SYSTEM, s), pb.Planned()),
    "solve ragged": (lambda s: pb.solve(RAGGED, s), pb.Chunked()),
    "chain": (lambda s: chain(jax.nn.relu, solver=s), pb.Associative()),
    "layer_cotangents": (
        lambda s: pb.layer_cotangents([jax.nn.relu], [None], X, X, solver=s),
        pb.Chunked(),
    ),
    "explain_chain": (lambda s: pb.explain_chain([jax.nn.relu], [None], X, solver=s), pb.Chunked()),
    "nnx.Sequential": (lambda s: pb.nnx.Sequential(nnx.relu, solver=s), pb.Chunked()),
    "linen.Sequential": (lambda s: pb.linen.Sequential([nn.relu], solver=s), pb.Chunked()),
}


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_what_is_no_solver_is_refused_alike_everywhere(name):
    run, other = FRONT_ENDS[name]
    for name in ("sweep", "Sweep", "cyclic_reduction"):
        with pytest.raises(TypeError, match=rf"solver: got '{name}', of type str; \w+\(\) of pars"):
            run(name)
    for wrong in ("swept", 3, jnp.tanh):
        with pytest.raises(TypeError, match=r"solver: got .*; None, .*Sweep\(\).* is wanted"):
            run(wrong)
    with pytest.raises(TypeError, match=r"solver: Sweep is a class; Sweep\(\) is wanted"):
        run(pb.Sweep)
    kind = type(other).__name__
    with pytest.raises(NotImplementedError, match=rf"solver: {kind} takes \w+ systems only"):
        run(other)


T, V = TypeError, ValueError
MISTAKES = {
    "a solver as a name": (
        lambda: scan(solver="cyclic_reduction"),
        T,
        r"solver: got 'cyclic_reduction', .*; CyclicReduction\(\) of .*, as solvers have no",
    ),
    "a solver makes no values": (
        lambda: scan(forward=pb.Sweep()),
        V,
        r"forward: got Sweep\(\), a solver, which solver= takes; 'exact', 'auto'",
    ),
    "a cell without parameters": (
        lambda: pb.scan(pb.cells.GRU(), C, XS),
        T,
        r"f: got GRU.*, a cell without its parameters; functools\.partial\(cell, params\) is",
    ),
    "a function within which": (
        lambda: pb.explain_within(XS, XS),
        T,
        r"f: got an array float.*; a function is wanted",
    ),
    "a function to diagnose": (lambda: pb.diagnose_within(3), T, "f: got 3, of type int; a funct"),
    "a method is no solver": (lambda: scan(solver=pb.Chunks()), T, r"solver: got Chunks\(.*; None"),
    "jacobian of two": (lambda: scan(jacobian=lambda c, x: c), T, r"jacobian: .*\(c, x\);.*new_ca"),
    "jacobian of a name": (lambda: scan(jacobian="full"), V, "jacobian: got 'full'; 'auto'"),
    "jacobian of a scalar": (
        lambda: pb.scan(step, 0.0, XS[:, 0], jacobian=lambda c, x, n: Diagonal(1 - n * n)),
        V,
        "jacobian: .*Diagonal: a leaf is a scalar; at least 1 axis",
    ),
    "memory limit of a float": (
        lambda: scan(memory_limit=1e9),
        T,
        "memory_limit: got 1000000000.0",
    ),
    "memory limit of a bool": (lambda: scan(memory_limit=True), T, "memory_limit: got True"),
    "memory limit of 0": (lambda: scan(memory_limit=np.int64(0)), V, "memory_limit: got 0"),
    "recompute": (lambda: pb.Sweep(recompute="no"), T, "recompute: got 'no'.*True or False"),
    "chunk": (lambda: pb.Sweep(chunk=0), V, "chunk: got 0; at least 1 is wanted"),
    "chunk of a float": (lambda: pb.Sweep(chunk=1.5), T, "chunk: got 1.5.*an int of at least 1"),
    "unroll": (lambda: pb.Sweep(unroll=True), T, "unroll: got True"),
    "scaled": (lambda: pb.Blelloch(scaled=3), T, "scaled: got 3.*True or False"),
    "up_levels": (lambda: pb.Blelloch(up_levels=1.0), T, "up_levels: got 1.0.*at least 0"),
    "chunks": (lambda: pb.Chunked(chunks="8"), T, "chunks: got '8'"),
    "collect_chunk": (lambda: pb.Associative(collect_chunk=0.5), T, "collect_chunk: got 0.5"),
    "limit of a solver": (lambda: pb.Blelloch(memory_limit=1e9), T, "memory_limit: got 1000000000"),
    "workers": (lambda: pb.Planned(workers=2.0), T, "workers: got 2.0"),
    "machine": (lambda: pb.Planned(machine="cpu"), T, "machine: got 'cpu'.*a Machine"),
    "interpret": (lambda: pb.Pallas(interpret=1), T, "interpret: got 1"),
    "system": (lambda: pb.solve(XS), T, "system: got .*; Uniform or Ragged is wanted"),
    "Diagonal of a scalar": (
        lambda: pb.Uniform(Diagonal(jnp.float32(2)), XS),
        V,
        "Diagonal: a leaf is a scalar; at least 1 axis is wanted",
    ),
    "interpret of Fused": (lambda: pb.Fused("a"), T, "interpret: got 'a'.*True or False"),
    "operators": (lambda: pb.Uniform(None, XS), T, "operators: got None; a stack of operators"),
    "class": (lambda: pb.Uniform(Diagonal, XS), T, "operators: got <class .*; a stack of op"),
    "operators of numbers": (lambda: pb.Uniform(XS, XS), T, "operators: got .*; a stack of op"),
    "no g": (lambda: uniform(None), T, r"g: got None; an array \(n \+ 1, \*batch, features\)"),
    "list as g": (lambda: uniform([[1.0, 1.0]] * 4), T, "g: got .*, of type list; an array"),
    "keys as g": (
        lambda: uniform(jax.random.split(jax.random.key(0), (4, 2))),
        T,
        "g: got an array of key<.*, of numbers",
    ),
    "shapes as g": (
        lambda: pb.solve(uniform(jax.ShapeDtypeStruct((4, 2), "float32"))),
        T,
        "system: got a ShapeDtypeStruct; an array is wanted",
    ),
    "batch of g": (
        lambda: pb.Uniform(Diagonal(jnp.ones((3, 5, 2))), jnp.ones((4, 2))),
        V,
        r"g: got batch axes \(\); the operators have \(5,\), which do not broadcast to them",
    ),
    "ragged operators": (lambda: ragged(None), T, "operators: got None; a list or tuple"),
    "ragged operator": (lambda: ragged(ONE), T, "operators: got .*Diagonal; a list or tuple"),
    "ragged class": (lambda: ragged([Diagonal]), T, r"operators\[0\]: got <class .*; an operator"),
    "ragged numbers": (lambda: ragged([XS]), T, r"operators\[0\]: got .*; an operator is wanted"),
    "ragged g": (lambda: ragged([ONE], None), T, "g: got None; a list or tuple is wanted"),
    "ragged name": (lambda: ragged([ONE], [None, "a"]), T, r"g\[1\]: got 'a', of type str; an arr"),
    "ragged list": (lambda: ragged([ONE], [[1.0], None]), T, r"g\[0\]: got \[1.0\], of type list"),
    "ragged scalar": (lambda: ragged([ONE], [None, jnp.ones(())]), V, r"g\[1\]: got a scalar"),
    "ragged batch": (
        lambda: ragged([ONE], [jnp.ones((3, 2)), jnp.ones((4, 2))]),
        V,
        r"g: the batch axes .*\(3,\), \(4,\)\], do not broadcast",
    ),
    "wanted": (lambda: ragged([ONE], wanted="a"), T, "wanted: got 'a', of type str; a sequence"),
    "wanted of an int": (lambda: ragged([ONE], wanted=0), T, "wanted: got 0, of type int; a seq"),
    "wanted of floats": (lambda: ragged([ONE], wanted=[0, 0.5]), T, r"wanted\[1\]: got 0.5"),
    "wanted below 0": (lambda: ragged([ONE], wanted=[-1]), V, r"wanted\[0\]: got -1; at least 0"),
    "wanted beyond": (lambda: ragged([ONE], wanted=[2]), V, "wanted: got 2; positions below 2"),
    "report on integers": (
        lambda: pb.solve(INTEGERS, report=True),
        T,
        "report: got a solution of int.*; only floats have rounding errors",
    ),
    "integers scaled": (
        lambda: pb.solve(INTEGERS, pb.Blelloch(scaled=True)),
        T,
        "op: got Diagonal of int.*; floats have exponents",
    ),
    "window": (lambda: MaxPool(2), T, r"window: got 2.*such as \(3, 3\)"),
    "window of a conv": (lambda: Conv(4, 3), T, "window: got 3"),
    "channels": (lambda: Conv(4.0, (3, 3)), T, "channels: got 4.0.*an int of at least 1"),
    "channels of Linear": (lambda: Linear(3.0), T, "channels: got 3.0"),
    "strides": (lambda: Conv(4, (3,), strides=1.5), T, "strides: got 1.5"),
    "padding": (lambda: Conv(4, (3,), padding=1.5), T, "padding: got 1.5"),
    "dilation": (lambda: MaxPool((2,), dilation=None), T, "dilation: got None"),
    "bias": (lambda: Linear(3, bias=3), T, "bias: got 3"),
    "count_padding": (lambda: AveragePool((2,), count_padding=2), T, "count_padding: got 2"),
    "rate": (lambda: Dropout("a"), T, "rate: got 'a'"),
    "function": (lambda: Elementwise(3), T, "function: got 3"),
    "derivative": (lambda: Elementwise(jnp.sin, 3), T, "derivative: got 3"),
    "function of Function": (lambda: Function(None), T, "function: got None"),
    "derivative of another shape": (
        lambda: pb.layer_cotangents([Elementwise(jnp.sin, lambda x, y: 1)], [None], X, X),
        V,
        "derivative: <lambda> makes 1, of type int",
    ),
    "branch": (lambda: Residual(Linear(3)), T, "branch: got Linear.*a sequence of Layers"),
    "a layer alone": (lambda: pb.chain(Linear(3), OWN, X), T, "layers: got Linear.*a sequence"),
    "a class of layers": (lambda: chain(Linear), T, r"layers\[0\]: Linear is a class"),
    "params alone": (lambda: pb.chain([Linear(3)], OWN, X), T, "params: got .*dict; a sequence"),
    "params for none": (
        lambda: chain(jax.nn.relu, params=[OWN]),
        V,
        r"params\[0\]: got .*has no parameters: None is wanted",
    ),
    "no params": (lambda: chain(Linear(3)), V, r"layers\[0\], Linear.*params: got None; Linear w"),
    "missing": (
        lambda: chain(BatchNorm(), params=[{"scale": C}]),
        V,
        r"params: got \['scale'\]; BatchNorm wants \['bias', 'mean', 'scale', 'var'\]",
    ),
    "too many": (
        lambda: chain(Linear(3, bias=False), params=[OWN]),
        V,
        r"params: got \['bias', 'kernel'\]; Linear wants \['kernel'\]",
    ),
    "norm": (lambda: chain(LayerNorm()), V, "params: got None; LayerNorm wants"),
    "residual": (
        lambda: chain(Residual((Linear(3),)), params=[{"branch": [], "shortcut": []}]),
        V,
        "branch: got 0 entries for 1 layers",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    call, kind, message = MISTAKES[name]
    with pytest.raises(kind) as caught:
        call()
    assert re.search(message, str(caught.value), re.DOTALL), caught.value


def test_integers_of_any_kind_are_integers():
    limit = np.int64(2**30)
    assert pb.Sweep(chunk=np.int32(3)) == pb.Sweep(chunk=3)
    assert repr(pb.Chunked(chunks=jnp.int32(4), memory_limit=limit)) == repr(
        pb.Chunked(chunks=4, memory_limit=2**30)
    )
    assert Conv(np.int64(4), (np.int8(3),), strides=np.int64(2)) == Conv(4, (3,), strides=2)
    scan(solver=pb.Blelloch(), memory_limit=limit)
