"""Every structure against NumPy's matrices in double precision, under every transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from operator_examples import BATCH, DTYPES, EXAMPLES, LENGTH, STACKS, Draw, Example, assert_close
from operator_references import reference, transposed, wide

from parscan_bp.operators import (
    Cost,
    Diagonal,
    Operator,
    Product,
)
from tests.family import together

pytestmark = pytest.mark.parametrize("example", EXAMPLES, ids=repr)


def apply(matrices, v) -> np.ndarray:
    """Matrices times vectors, both in double precision."""
    return np.einsum("...ij,...j->...i", matrices, wide(v))


def make(example: Example, dtype: str = "float32", stack=(LENGTH,), seed: int = 0) -> Operator:
    return example.make(Draw(seed, dtype), stack)


def everything(op, v, w):
    """All that an operator computes, as one program: matrices, products, cotangents."""

    def by_matrix(op):
        return jnp.einsum("...ij,...j->...i", op.as_dense(), v, precision="highest")

    back = op.transpose()
    forward, pull = jax.vjp(lambda op, v: op.matvec(v), op, v)
    op_bar, v_bar = pull(w)
    (want_bar,) = jax.vjp(by_matrix, op)[1](w)
    return (op.as_dense(), back.as_dense(), forward, back.matvec(w), v_bar), op_bar, want_bar


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("dtype", "stack"),
    [("float32", ()), ("bfloat16", (LENGTH,)), ("complex64", (LENGTH, BATCH))]
    + [(dtype, (LENGTH,)) for dtype in DTYPES[3:]],
    ids=str,
)
def test_against_matrices(example, dtype, stack, request):
    """Cotangents too: A^T w for the vector, for the leaves that of w^T dense(op) v."""

    def case(example, dtype, stack):
        draw = Draw(0, dtype)
        op = example.make(draw, stack)
        v, w = (draw(3, *op.stack_shape, size) for size in op.shape[::-1])
        return everything, (op, v, w)

    op, v, w = case(example, dtype, stack)[1]
    results, op_bar, want_bar = together(request, case)
    want = reference(op)
    assert op.stack_shape == want.shape[:-2]
    assert op.shape == want.shape[-2:]
    assert op.dtype == jnp.dtype(dtype)
    assert all(a.dtype == jnp.dtype(dtype) for a in results)
    dense, dense_t, forward, backward, v_bar = results
    assert_close(dense, want, dtype, terms=6)
    assert_close(dense_t, transposed(want), dtype, terms=6)
    assert_close(forward, apply(want, v), dtype, terms=6)
    assert_close(backward, apply(transposed(want), w), dtype, terms=6)
    assert_close(v_bar, apply(transposed(want), w), dtype, terms=6)
    for got, want in zip(jax.tree.leaves(op_bar), jax.tree.leaves(want_bar), strict=True):
        if got.dtype != jax.dtypes.float0:
            assert_close(got, wide(want), dtype, terms=60)


@pytest.mark.sampled
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_parts_of_the_stack(example, stack, request):
    op = make(example, stack=stack)

    def parts(op, k):
        leaves, rebuild = op.unstack()
        rebuilt = rebuild([leaf[k] for leaf in leaves])
        assert op.slice(1, 0).length in (0, None)
        return op.take(k), op.take(-2), rebuilt, op.slice(k, 2), op.broadcast(LENGTH)

    case = lambda example, stack: (parts, (make(example, stack=stack), 1))  # noqa: E731
    one, last, rebuilt, cut, full = together(request, case)
    assert jax.tree.structure(one) == jax.tree.structure(op)
    for leaf, ndim in full.leaves():
        assert leaf.shape[: leaf.ndim - ndim] == (LENGTH, *op.stack_shape[1:])
    want = reference(op)
    assert_close(reference(full), np.broadcast_to(want, full.stack_shape + op.shape), "float32")
    if not op.stack_shape:
        assert op.length is None
        wanted = [(one, want), (last, want), (rebuilt, want), (cut, want)]
    else:
        assert op.length == LENGTH
        wanted = [(one, want[1]), (last, want[-2]), (rebuilt, want[1]), (cut, want[1:3])]
        with pytest.raises(ValueError, match="length: got 4; the stack has 5 maps"):
            op.broadcast(4)
    for part, want in wanted:
        assert_close(reference(part), want, "float32")


def test_slice_leaves_shared_leaves_untouched(example):
    op = make(example)

    def cut(op):
        for (leaf, ndim), (cut, _) in zip(op.leaves(), op.slice(1, 2).leaves(), strict=True):
            assert cut is leaf if leaf.ndim == ndim else cut.shape == (2, *leaf.shape[1:])

    jax.eval_shape(cut, op)


def test_indices_outside_the_stack_raise(example):
    op = make(example)
    if op.length is None:
        assert op.take(LENGTH) == op  # shared by a stack of any length
        return
    for index in (LENGTH, -LENGTH - 1):
        with pytest.raises(ValueError, match=f"index: got {index}; the stack has {LENGTH} maps"):
            op.take(index)
    with pytest.raises(ValueError, match="start: got"):
        op.slice(LENGTH - 1, 2)
    with pytest.raises(ValueError, match="size: got"):
        op.slice(0, LENGTH + 1)


def test_an_axis_of_size_one_stands_for_the_whole_stack(example, request):
    def parts(op):
        leaves, rebuild = op.unstack()
        rebuilt = rebuild([leaf[4] for leaf in leaves])
        return op.take(3), op.slice(2, 2), op.broadcast(LENGTH), rebuilt

    def case(example):
        draw = Draw(2, "float32")
        one = example.make(draw, (1, BATCH))
        return parts, [Product((one, Diagonal(draw(LENGTH, BATCH, one.shape[1]))))]

    (more,) = case(example)[1]
    assert more.length == LENGTH
    want, made = reference(more), together(request, case)
    for part, index in zip(made, (3, slice(2, 4), slice(None), 4), strict=True):
        assert_close(reference(part), want[index], "float32")


def test_unstack_in_a_loop(example, request):
    def loop(op, v):
        leaves, rebuild = op.unstack()
        assert all(leaf.shape[0] == LENGTH for leaf in leaves)
        step = lambda carry, leaves: (carry, rebuild(leaves).matvec(v))  # noqa: E731
        return jax.lax.scan(step, None, leaves, length=LENGTH)[1]

    def case(example):
        op = make(example)
        return loop, (op, Draw(3, "float32")(BATCH, op.shape[1]))

    op, v = case(example)[1]
    want = apply(reference(op)[..., None, :, :], v)
    want = np.broadcast_to(want, (LENGTH, BATCH, op.shape[0]))
    assert_close(together(request, case), want, "float32", terms=6)


def test_vmap_over_the_stack_and_back(example, request):
    """All leaves mapped, and, with an operator of axes, all but the shared ones."""

    def one(op, v):
        assert op.stack_shape == ()
        return op, op.transpose(), op.matvec(v)

    def over_both(op, v, u):
        axes = op.map_leaves(lambda leaf, ndim: 0 if leaf.ndim > ndim else None)
        full = jax.vmap(one)(op.broadcast(LENGTH), v)
        shared = jax.vmap(lambda op, v: op.matvec(v), in_axes=(axes, 0))(op, v)
        return full, shared, op.matvec(u)

    def case(example):
        draw = Draw(5, "float32")
        op = example.make(draw, (LENGTH,))
        return over_both, (op, draw(LENGTH, op.shape[1]), draw(op.shape[1]))

    op, v, u = case(example)[1]
    (same, back, out), shared, of_one = together(request, case)
    want = np.broadcast_to(reference(op), (LENGTH, *op.shape))
    assert_close(out, apply(want, v), "float32", terms=6)
    assert_close(shared, apply(want, v), "float32", terms=6)
    # Without vmap, one vector for the whole stack.
    assert_close(of_one, apply(reference(op), u), "float32", terms=6)
    # The identity has no arrays that an axis could be added to.
    assert_close(np.broadcast_to(reference(same), want.shape), want, "float32")
    got = np.broadcast_to(reference(back), (LENGTH, *op.shape[::-1]))
    assert_close(got, transposed(want), "float32")


def test_tree_map_over_leaves(example):
    """Pytree tools rebuild operators with placeholders, reductions and larger leaves."""
    op = make(example)
    for f in (lambda leaf: np.sum(np.abs(leaf)), lambda leaf: object(), np.shape):
        jax.tree.map(f, op)
    larger = jax.eval_shape(
        jax.jacfwd(lambda s: op.map_leaves(lambda leaf, ndim: s.sum() * leaf)), jnp.ones(4)
    )
    assert type(larger) is type(op)


def test_cost_and_bytes(example):
    op = make(example)
    assert op.nbytes == sum(leaf.nbytes for leaf, _ in op.leaves())
    cost, one = op.cost(), jax.eval_shape(lambda op: op.take(0), op).cost()
    if not op.leaves():
        assert cost == Cost(0, 0)
        return
    assert cost.flops == LENGTH * one.flops > 0
    assert cost.bytes >= op.nbytes + 4 * LENGTH * sum(op.shape)
    abstract = jax.eval_shape(lambda op: op, op)
    assert (abstract.cost(), abstract.shape, abstract.length) == (cost, op.shape, op.length)


def test_wrong_vectors_raise(example):
    op = make(example)
    with pytest.raises(ValueError, match="v: got"):
        op.matvec(jnp.ones(op.shape[1] + 1, op.dtype))
    with pytest.raises(ValueError, match="v: got"):
        op.matvec(jnp.ones((), op.dtype))
    if op.length is not None:
        with pytest.raises(ValueError, match=r"v: got.*stack"):
            op.matvec(jnp.ones((LENGTH + 2, op.shape[1]), op.dtype))
