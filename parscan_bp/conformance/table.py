"""What differs, as text: steps by modes, and then one by one."""

from __future__ import annotations

from collections.abc import Sequence

from parscan_bp.conformance.trial import FAILURES, Outcome, Result

_SHORT = {
    "value_and_grad": "grad",
    "jit_grad": "jit",
    "vmap_grad": "vmap",
    "grad_vmap": "of vmap",
    "hvp_fwd_over_rev": "hvp",
    "hvp_rev_over_fwd": "rev fwd",
    "rev_over_rev": "rev rev",
    "linearize_and_transpose": "linear",
}
LEGEND = (
    ". alike   D differs   E raises   n refuses, by a NotImplementedError\n"
    "(blank: jax.lax.scan has no such derivative of the step)"
)
_WORST = (Outcome.DIFFERS, Outcome.RAISES, Outcome.REFUSED, Outcome.ALIKE)


def table(results: Sequence[Result]) -> str:
    """Rows are steps, columns modes; of several cases of one step the worst outcome is shown.

    Example:
      >>> from parscan_bp.conformance import step_cases
      >>> case = step_cases(1)[0]
      >>> print(table([Result(case, "value", Outcome.ALIKE), Result(case, "vjp", Outcome.RAISES)]))
      step              value  vjp
      elman_batch_last  .      E
    """
    steps = list(dict.fromkeys(r.case.step for r in results))
    modes = list(dict.fromkeys(r.mode for r in results))
    found: dict[tuple[str, str], Outcome] = {}
    for r in results:
        place = (r.case.step, r.mode)
        found[place] = min(r.outcome, found.get(place, r.outcome), key=_WORST.index)
    names = [_SHORT.get(mode, mode) for mode in modes]
    widths = [len(name) for name in names]
    first = max(len(step) for step in ["step", *steps])

    def line(head: str, cells: Sequence[str]) -> str:
        padded = (f"{c:<{width}}" for c, width in zip(cells, widths, strict=True))
        return "  ".join([f"{head:<{first}}", *padded]).rstrip()

    rows = [line(s, [str(found.get((s, mode), " ")) for mode in modes]) for s in steps]
    return "\n".join([line("step", names), *rows])


def details(results: Sequence[Result]) -> str:
    """What differs or raises, a line each; of the same words of one case the first mode."""
    told: dict[tuple[str, str], list[str]] = {}
    for r in results:
        if r.outcome is not Outcome.ALIKE:
            told.setdefault((r.case.name, r.detail), []).append(r.mode)
    return "\n".join(f"{name}, {', '.join(m)}: {detail}" for (name, detail), m in told.items())


def summary(results: Sequence[Result]) -> str:
    """Counts, in a line."""
    counts = {outcome: sum(r.outcome is outcome for r in results) for outcome in Outcome}
    words = {
        Outcome.ALIKE: "alike",
        Outcome.DIFFERS: "differ",
        Outcome.RAISES: "raise",
        Outcome.REFUSED: "refused",
    }
    told = ", ".join(f"{counts[o]} {words[o]}" for o in Outcome if counts[o])
    return f"{len({r.case.name for r in results})} steps, {len(results)} results: {told}"


def failed(results: Sequence[Result]) -> bool:
    """Whether anything differs or raises what is no refusal."""
    return any(r.outcome in FAILURES for r in results)
