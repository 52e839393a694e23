"""Naumov: parallel complexity of forward and backward propagation (2017)."""

from bench.paper.claims.claim import Claim, Record

DIRECT = ("Associative()", "Blelloch()", "Chunked(chunks=8)", "CyclicReduction()")
ITERATIVE = ("Jacobi(tol=1e-05)", "Richardson(omega=0.9, tol=1e-05)", "BiCGStab(tol=1e-05)")


def _said(record: Record, rule: str) -> list[Record]:
    return [point for point in record["points"].values() if point["rules"][rule]]


def _wins(points: list[Record], solvers: tuple[str, ...]) -> list[Record]:
    """Points at which one of the solvers is faster than the sweep, by its whole interval."""
    return [
        point
        for point in points
        if any(
            (point["solvers"].get(name) or {}).get("comparison", {}).get("low", 0) > 1
            for name in solvers
        )
    ]


def _pays(record: Record, rule: str) -> str:
    said = _said(record, rule)
    return f"faster than the sweep at {len(_wins(said, DIRECT))} of {len(said)} sizes"


def _holds(record: Record, rule: str) -> bool:
    """At more than half of the sizes where the rule says so."""
    said = _said(record, rule)
    return 2 * len(_wins(said, DIRECT)) > len(said)


def _temporary(record: Record) -> float:
    """Most temporary memory of cyclic reduction over that of the maps and right-hand sides."""
    worst = 0.0
    for point in record["points"].values():
        own, size = point["solvers"].get("CyclicReduction()"), point["size"]
        if own and own.get("temp_bytes"):
            maps = size["n"] * size["h"] ** 2 * (1 if size["maps"] == "shared" else size["r"])
            worst = max(worst, own["temp_bytes"] / (4 * (maps + size["n"] * size["h"] * size["r"])))
    return worst


def _rounds(record: Record) -> str:
    most = max(
        (point["solvers"].get(name) or {}).get("rounds", 0)
        for point in record["points"].values()
        for name in ITERATIVE
    )
    wins = _wins(list(record["points"].values()), ITERATIVE)
    steps = max(point["size"]["n"] for point in record["points"].values())
    return f"{most} rounds at most, for up to {steps} steps; faster at {len(wins)} sizes"


CLAIMS = (
    Claim(
        "section 4.1",
        "a direct solver pays where the batch has r >= n units",
        "",
        "solvers",
        lambda r: _pays(r, "r >= H"),
        lambda r: _holds(r, "r >= H"),
        because="the rule counts unlimited workers, and products that all samples share; after "
        "one level of cyclic reduction a sample's slopes make them its own",
    ),
    Claim(
        "section 4.1",
        "a direct solver pays where l / log l >= n",
        "",
        "solvers",
        lambda r: _pays(r, "n/log n >= H"),
        lambda r: _holds(r, "n/log n >= H"),
        because="the rule counts unlimited workers, there are two",
    ),
    Claim(
        "section 4.2",
        "an iterative solver pays where its rounds are fewer than the layers",
        "eta < l",
        "solvers",
        _rounds,
        lambda r: len(_wins(list(r["points"].values()), ITERATIVE)) > 0,
        because="a round multiplies as much as the whole sweep",
    ),
    Claim(
        "section 4.1",
        "cyclic reduction takes no more than double the memory",
        "2",
        "solvers",
        lambda r: f"to {_temporary(r):.1f} times the maps and right-hand sides, as compiled",
        lambda r: _temporary(r) <= 2,
        because="levels are kept until they are expanded",
    ),
    Claim(
        "section 3.4",
        "hybrid methods: a direct one inside, an iterative one outside",
        because="`ChunkedCorrections`, and `deep_rnn` with `Jacobi()`, are two (docs/choose.md); "
        "not timed",
    ),
    Claim(
        "section 2",
        "an arbitrary graph is a system of other sparsity",
        because="`parscan_bp.graph` makes it a chain of its live sets (docs/graphs.md); not timed",
    ),
    Claim(
        "eqs. 13, 18",
        "the forward pass as a solve with activations of the last one",
        because="for scans, `FrozenActivations`; not for layers",
    ),
)
