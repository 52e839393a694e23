"""Many cases of a test in one program: of small ones, the number is most of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from parscan_bp.conformance.compile import jit_once

MOST = 16
"""Cases of one program."""
_MADE = pytest.StashKey[dict[Any, dict[str, Any]]]()


def together(
    request: pytest.FixtureRequest, prepare: Callable[..., tuple[Callable[..., Any], Sequence[Any]]]
) -> Any:
    """What the program of this case makes, found by one program with its neighbours'.

    These are the cases of the same test that run in this session: one alone where one is named.

    Args:
      request: the test's.
      prepare: the parameters of a case, by name, to its program and the program's arguments.

    Returns:
      ``program(*arguments)``.
    """
    test = request.node.path, request.node.originalname
    alike = [i for i in request.session.items if (i.path, getattr(i, "originalname", "")) == test]
    first = alike.index(request.node) // MOST * MOST
    made = request.config.stash.setdefault(_MADE, {})
    if request.node.nodeid not in made.get(test, ()):
        group = alike[first : first + MOST]
        cases = [prepare(**item.callspec.params) for item in group]
        run = jit_once(lambda args: [f(*own) for (f, _), own in zip(cases, args, strict=True)])
        results = run([list(args) for _, args in cases])
        made[test] = dict(zip((item.nodeid for item in group), results, strict=True))
    return made[test][request.node.nodeid]
