"""No false claim about random compositions of primitives."""

from __future__ import annotations

import jax
from dense_jacobian import Question, assert_claims_hold, jacobian_supports, random_like
from hypothesis import given, settings
from hypothesis import strategies as st
from random_steps import BINARY, CARRIES, UNARY, build
from zoo_case import array

from parscan_bp.jaxprs.dependence import dependencies
from parscan_bp.structure import find_structure

NUMBERS = st.integers(0, 7)
INSTRUCTION = st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), NUMBERS, NUMBERS, NUMBERS)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from(CARRIES),
    st.lists(INSTRUCTION, min_size=1, max_size=6),
    st.lists(NUMBERS, min_size=2, max_size=2),
)
def test_claims_hold_for_random_steps(shapes, program, picks):
    carry, x = tuple(array(*shape) for shape in shapes), array(2, 3)
    body = jax.make_jaxpr(build(shapes, program, picks))(carry, x)
    structure = find_structure(body, 0, len(shapes))
    points = [random_like((carry, x), seed) for seed in (0, 1)]
    (support,) = jacobian_supports([Question(body, structure.float_carry, points)])
    assert_claims_hold(structure, support)
    # A dependence of the derivative is a dependence of the value.
    values = dependencies(body)
    assert all(
        values[o, i] or not may
        for o, row in enumerate(structure.depends)
        for i, may in enumerate(row)
    )
