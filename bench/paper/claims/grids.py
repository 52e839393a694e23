"""Gholami, Azad, Jin, Keutzer and Buluc: integrated parallelism (SPAA 2018)."""

from bench.paper.claims.claim import Claim, Record
from bench.paper.grids import report, simulate
from bench.paper.grids.machine import EQUATIONS
from bench.paper.grids.simulate import Bar
from bench.paper.grids.weights import weight_layers
from parscan_bp.layers import Conv

STATED = "16 x 32"
"""P_r x P_c of the speedups in the text."""


def _bars(record: Record, figure: str, processes: int) -> list[Bar]:
    curve = report.curve(dict(record))
    return [b for b in simulate.bars(curve) if (b.figure, b.processes) == (figure, processes)]


def _best(record: Record, figure: str, processes: int) -> Bar:
    return min(_bars(record, figure, processes), key=lambda bar: bar.equation)


def _speedup(record: Record, figure: str, grid: str | None = None) -> float:
    """Of communication over a 1 x P grid, at P = 512; of the best grid, or a named one."""
    own = _bars(record, figure, 512)
    named = [bar.equation for bar in own if grid in (None, bar.grid)]
    return own[0].equation / min(named)


def _grids(record: Record) -> str:
    return ", ".join(f"P={p} {_best(record, 'figure 6', p).grid}" for p in simulate.SCALING)


def _mixed(record: Record) -> bool:
    best = {p: _best(record, "figure 6", p).grid for p in simulate.SCALING}
    return best[8] == "1 x 8" and all(not best[p].startswith("1 x") for p in (128, 512))


def _limit() -> float:
    return EQUATIONS.batch_limit(weight_layers([Conv(384, (3, 3))], (13, 13, 384))[0])


def _beyond(domain: bool) -> list[float]:
    kind = simulate.DOMAIN if domain else simulate.SAME
    grids = [(p // simulate.LIMIT, simulate.LIMIT) for p in simulate.BEYOND[1:]]
    return [simulate.equation(kind, simulate.LIMIT, *grid).total for grid in grids]


def _milliseconds(values: list[float]) -> str:
    return ", ".join(f"{1e3 * value:.1f}" for value in values)


def _least_at(record: Record, batch: int) -> bool | None:
    """``None`` if that batch was not measured."""
    return _fastest(record) == batch if batch in _each(record) else None


def _each(record: Record) -> dict[int, float]:
    """By batch the time of an entry, of those that were measured."""
    return {
        p["batch"]: p["iteration"]["baseline"]["median"] / p["batch"] for p in record["compute"]
    }


def _fastest(record: Record) -> int:
    each = _each(record)
    return min(each, key=lambda batch: each[batch])


def _as_fast(record: Record, within: float = 0.05) -> str:
    """The batches whose entries take as long as the fastest, or hardly longer."""
    each = _each(record)
    most = (1 + within) * min(each.values())
    return ", ".join(str(batch) for batch, seconds in each.items() if seconds <= most)


CLAIMS = (
    Claim(
        "figure 4",
        "an entry takes least at a batch of 256",
        "256",
        "grids",
        lambda r: f"{_fastest(r)}; within 5 % of it {_as_fast(r)}",
        lambda r: _least_at(r, 256),
        because="two cores have enough to do with fewer: an entry's time is flat from there on",
    ),
    Claim(
        "figure 6",
        "pure batch parallelism is best at P=8, a mixed grid from P=128 on",
        "",
        "grids",
        _grids,
        _mixed,
        "by eq. 8 for the paper's machine",
    ),
    Claim(
        "figure 6",
        f"speedup of communication at P=512 on a {STATED} grid",
        "5.0",
        "grids",
        lambda r: f"{_speedup(r, 'figure 6', STATED):.2f}; best grid {_speedup(r, 'figure 6'):.2f}",
        lambda r: abs(_speedup(r, "figure 6", STATED) - 5.0) < 0.5,
        because="it does not follow from eq. 8, whatever the bytes of a number",
    ),
    Claim(
        "figure 7",
        "with convolutions on the batch alone",
        "9.7",
        "grids",
        lambda r: f"{_speedup(r, 'figure 7', STATED):.2f}; best grid {_speedup(r, 'figure 7'):.2f}",
        lambda r: abs(_speedup(r, "figure 7", STATED) - 9.7) < 0.97,
        because="eq. 9 gives less; no default is tuned to hit the number",
    ),
    Claim(
        "figure 7",
        "mixed grids gain more than one grid for all layers",
        "",
        "grids",
        lambda r: f"{_speedup(r, 'figure 7'):.2f} over {_speedup(r, 'figure 6'):.2f} at P=512",
        lambda r: _speedup(r, "figure 7") > _speedup(r, "figure 6"),
    ),
    Claim(
        "section 2.2",
        "model parallelism sends less below a batch of 12 for 3x3 on 13x13x384",
        "12",
        "grids",
        lambda r: f"{_limit():.1f}",
        lambda r: abs(_limit() - 12) < 0.5,
        because="by eq. 5 as it is printed",
    ),
    Claim(
        "figure 10",
        "beyond the batch, P = 1024, 2048, 4096 and B = 512: domain parallelism, as the model's "
        "communication is sub-optimal",
        "domain is best",
        "grids",
        lambda r: (
            f"domain {_milliseconds(_beyond(True))} ms, model {_milliseconds(_beyond(False))}"
        ),
        lambda r: all(a < b for a, b in zip(_beyond(True), _beyond(False), strict=True)),
        because="by eqs. 8 and 9 domain all-reduces the convolutions' whole weights over P; halos "
        "overlap and 1 x 1 convolutions have none, which the equations do not count",
    ),
    Claim(
        "section 4",
        "memory of a linear combination; SUMMA in 2D",
        because="memory is in `best_grid(memory_limit=)`, without a table; SUMMA is not here",
    ),
)
