"""Steps of every kind: nothing is at fault, and cotangents are those of `lax.scan`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import parscan_bp as pb
from tests.family import STEPS, float_leaves, jit_once, step_cases

CASES = [case for case in step_cases(len(STEPS)) if case.length < 10]
EVERY_TENTH = [
    pytest.param(case, id=case.name, marks=() if k % 10 == 0 else pytest.mark.slow)
    for k, case in enumerate(CASES)
]
SAID = {"while": "cotangents were not looked at", "custom_vjp": "Jacobians were not looked at"}


@pytest.mark.parametrize("case", EVERY_TENTH)
def test_a_step_of_the_family(case):
    problem = case.make()
    step = functools.partial(problem.f, problem.params)
    how = {name: value for name, value in problem.kwargs.items() if name != "unroll"}
    found = pb.diagnose(step, problem.init, problem.xs, **how)
    assert found.faults == (), str(found)
    said = {words for flag, words in SAID.items() if flag in case.flags}
    assert {r.split(":")[0] for r in found.remarks} == said
    # An integer of init that a step promotes has a cotangent in the loop, and no gradient.
    if "while" in case.flags or "weak_promoted" in case.features:
        return

    def total(floats):
        last, _ = problem.with_floats({**problem.floats(), "init": floats}).run(lax.scan)
        return sum(jnp.sum(jnp.real(v)).astype(float) for v in float_leaves(last))

    grads = jit_once(jax.grad(total))([jnp.asarray(v) for v in problem.floats()["init"]])
    want = np.linalg.norm([np.linalg.norm(np.asarray(g, complex)) for g in grads] or [0])
    tolerance = 1e-1 if "bfloat16" in case.flags else 1e-3
    np.testing.assert_allclose(found.norms[0], want, rtol=tolerance, atol=1e-6)
