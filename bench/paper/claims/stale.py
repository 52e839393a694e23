"""Xu, Huo and Huang: diversely stale parameters (CVPR 2020)."""

import itertools
from collections.abc import Sequence

from bench.paper import rate
from bench.paper.claims.claim import Claim, Record
from bench.paper.pipeline import accuracy, delays, difference, remedies, residual, speed
from parscan_bp.pipeline import Costs

DSP3 = difference.SHOWN


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _best(record: Record, task: str, schedule: str) -> float:
    """Mean over the seeds of the best test accuracy."""
    return _mean(accuracy.best(record["points"][f"{task} {schedule}"]["runs"]))


def _spread(record: Record, task: str, schedule: str) -> float:
    best = accuracy.best(record["points"][f"{task} {schedule}"]["runs"])
    return max(best) - min(best)


def _told(record: Record, task: str) -> str:
    return ", ".join(f"{name} {_best(record, task, name):.1%}" for name in ("BP", *DSP3))


def _alike(record: Record, task: str) -> bool:
    """No further below back-propagation than its own seeds are apart."""
    plain, spread = _best(record, task, "BP"), _spread(record, task, "BP")
    return all(_best(record, task, name) >= plain - spread for name in DSP3)


def _learned(record: Record, rate: float) -> str:
    names = residual.SCHEDULES
    return ", ".join(f"{name} {_mean(residual.best(record, name, rate)):.1%}" for name in names)


def _as_good(record: Record, rate: float) -> bool:
    """Every queue within half a point of back-propagation, as the paper's are, or better."""
    plain = _mean(residual.best(record, "BP", rate))
    return all(_mean(residual.best(record, name, rate)) >= plain - 0.005 for name in DSP3)


def _differences(record: Record) -> list[list[float]]:
    """Of the gradient, relative, by block: the mean before the rate is divided, by queue."""
    found = []
    for name in DSP3:
        point = record["points"][f"difference {name}"]
        early = [s for s in point["samples"] if 0 < s["batch"] <= point["decay_at"]]
        each = [[d / g for d, g in zip(s["difference"], s["gradient"], strict=True)] for s in early]
        found.append([sum(column) / len(each) for column in zip(*each, strict=True)])
    return found


def _by_queue(record: Record) -> str:
    firsts = ", ".join(f"{blocks[0]:.0%}" for blocks in _differences(record))
    return f"first block {firsts}; last block {max(b[-1] for b in _differences(record)):.0%}"


def _grows(record: Record) -> bool:
    """With the queues, with the distance from the loss, and nothing at the last block."""
    found = _differences(record)
    queues = all(a[0] < b[0] for a, b in itertools.pairwise(found))
    blocks = all(blocks[0] > blocks[1] > blocks[2] == 0 for blocks in found)
    return queues and blocks


def _of_the_bound(record: Record) -> dict[str, list[float]]:
    """Differences over Lemma 1's bound, of the runs to which its constants are not fitted."""
    first, *others = ((name, record["points"][f"difference {name}"]["samples"]) for name in DSP3)
    constants = difference.constants(first[1])
    return {
        name: [q for block in difference.quotients(samples, constants) for q in block]
        for name, samples in others
    }


def _bounded(record: Record) -> str:
    told = (f"{name} {max(own):.2f} at most" for name, own in _of_the_bound(record).items())
    return f"difference over bound: {', '.join(told)}"


def _speedups(record: Record) -> dict[str, float]:
    return record["points"]["speed"]["speedups"]["K=4, transfer 0 F"]


def _slow_downs(record: Record, name: str) -> list[float]:
    return record["points"]["stragglers"]["percent"][name]


def _percent(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f} %" for value in values)


def _near(record: Record, name: str) -> bool:
    """Within a fifth of the paper's, or two points."""
    pairs = zip(_slow_downs(record, name), speed.TABLE_2[name], strict=True)
    return all(abs(own - paper) <= max(0.2 * paper, 2) for own, paper in pairs)


def _rates(record: Record) -> str:
    runs = {name: record["schedules"][name]["runs"] for name in rate.SHOWN}
    told = (f"{name} N^{rate.exponent(own):.2f}" for name, own in runs.items())
    return f"{', '.join(told)} for N = {runs['BP'][0]['steps']} to {runs['BP'][-1]['steps']}"


def _falls_alike(record: Record) -> bool:
    """As back-propagation's, at each length, and by a third of N's exponent at least."""
    plain = record["schedules"]["BP"]["runs"]
    for name in rate.SHOWN:
        runs = record["schedules"][name]["runs"]
        pairs = zip(runs, plain, strict=True)
        if rate.exponent(runs) > -1 / 3 or any(
            a["squared"] > 1.25 * b["squared"] for a, b in pairs
        ):
            return False
    return True


def _seeds(runs: Sequence[Record]) -> float:
    """Best test accuracy, mean of the seeds."""
    return _mean(accuracy.best(runs))


def _dni(record: Record) -> list[Record]:
    return [own for own in delays.of_part(record, "blocks") if own["schedule"] == "DNI"]


def _dsp(record: Record, rate: float) -> list[Record]:
    late = (own for own in delays.of_part(record, "blocks") if delays.DIVIDED in own["runs"])
    return [own for own in late if own["rate"] == rate]


def _gains(record: Record, side: str, *lrs: float) -> bool:
    """Whether a remedy is better than none in the mean of seeds, at every queue and rate."""
    entries = (own["runs"] for lr in lrs for own in _dsp(record, lr))
    return all(_seeds(runs[side]) > _seeds(runs[delays.ONE]) for runs in entries)


def _remedied(record: Record, side: str, *lrs: float) -> str:
    told = []
    for lr in lrs:
        each = (
            f"{own['schedule']} {_seeds(own['runs'][delays.ONE]):.1%} to "
            f"{_seeds(own['runs'][side]):.1%}"
            for own in _dsp(record, lr)
        )
        told.append(f"rate {lr:g}: {', '.join(each)}")
    return "; ".join(told)


def _late(record: Record, name: str) -> str:
    """Last training losses, by delay."""
    runs = record["points"][name]["runs"]
    means = {delay: remedies.mean_loss(own) for delay, own in runs.items()}
    told = (f"{d} late {'diverged' if m is None else f'{m:.2f}'}" for d, m in means.items())
    return ", ".join(told)


def _hardly(record: Record, name: str) -> bool:
    """One step late, the loss is no further from that without a delay than the seeds are apart."""
    on_time, late = (record["points"][name]["runs"][delay] for delay in ("0", "1"))
    apart = remedies.mean_loss(late) - remedies.mean_loss(on_time)
    return apart <= max(map(remedies.spread, (on_time, late)))


CLAIMS = (
    Claim(
        "Table 1",
        "DSP tests as well as back-propagation on a residual net, at a rate of 0.01",
        "within 0.5 points of 93 to 95 %",
        "residual",
        lambda r: _learned(r, 0.01),
        lambda r: _as_good(r, 0.01),
        because="of six units, in a tenth of the epochs: the longer the queues, the further "
        "behind, in training loss, too",
    ),
    Claim(
        "Table 1",
        "the same at a rate of 0.1, as for ResNet1001",
        "",
        "residual",
        lambda r: _learned(r, 0.1),
        lambda r: _as_good(r, 0.1),
        because="more is lost, in as many epochs",
    ),
    Claim(
        "Table 1",
        "the same of six epochs on 2,000 images of 8 x 8, at ten times the rate",
        "",
        "pipeline",
        lambda r: _told(r, "images rate 0.1"),
        lambda r: _alike(r, "images rate 0.1"),
        because="the longer the queues, the more is lost",
    ),
    Claim(
        "Table 1",
        "the same without shortcuts and norms, on spoken digits",
        "",
        "pipeline",
        lambda r: _told(r, "digits rate 0.002"),
        lambda r: _alike(r, "digits rate 0.002"),
        because="not a network of the paper's; staleness is not free there",
    ),
    Claim(
        "figure 4, Lemma 1",
        "the gradient differs the more, the longer the queues and the further from the loss",
        "",
        "pipeline",
        _by_queue,
        _grows,
    ),
    Claim(
        "Lemma 1",
        "the difference is at most a constant times the way that the weights above went meanwhile",
        "",
        "pipeline",
        _bounded,
        lambda r: all(quotient <= 1 for own in _of_the_bound(r).values() for quotient in own),
        "with the constants of the run with the shortest queues, for the longer ones",
        because="the constants of the run with the shortest queues are too small for others",
    ),
    Claim(
        "Table 2",
        "stragglers slow Features Replay down by this much, at 20, 50, 100, 150 %",
        _percent(speed.TABLE_2["FR"]),
        "pipeline",
        lambda r: _percent(_slow_downs(r, "FR")),
        lambda r: _near(r, "FR"),
        because="if a block takes at most 1 + s times as long, so does a batch",
    ),
    *(
        Claim(
            "Table 2",
            f"and {name}",
            _percent(speed.TABLE_2[name]),
            "pipeline",
            lambda r, name=name: _percent(_slow_downs(r, name)),
            lambda r, name=name: _near(r, name),
            "by the event model, within a fifth or two points",
        )
        for name in DSP3
    ),
    Claim(
        "Table 3",
        "four blocks are 2.7 times as fast as back-propagation, Features Replay 1.7 times",
        "2.7, 1.7 (ResNet164, GPUs)",
        "pipeline",
        lambda r: f"{_speedups(r)['DSP']:.2f}, {_speedups(r)['FR']:.2f}",
        lambda r: (
            abs(_speedups(r)["DSP"] / 2.7 - 1) < 0.25 and abs(_speedups(r)["FR"] / 1.7 - 1) < 0.25
        ),
        "by the event model, within a quarter; linearising again is part of the backward pass",
    ),
    Claim(
        "Table 3, figure 5",
        "DSP is the fastest of all",
        "up to 4.8 at K=4",
        "pipeline",
        lambda r: ", ".join(f"{name} {value:.2f}" for name, value in _speedups(r).items()),
        lambda r: _speedups(r)["DSP"] >= max(_speedups(r).values()),
        because="where linearising again overlaps the forward pass (section 3.3) a batch takes "
        f"(T_F + T_B)/K, as with PipeDream: {speed.overlapped(4, Costs()):.2f}, and "
        f"{speed.overlapped(4, Costs(transfer=0.5)):.2f} over back-propagation that waits for "
        "transfers of half a forward pass; on a device that is busy no overlap is free",
    ),
    Claim("Table 4", "ImageNet", because="not here"),
    Claim(
        "Corollary 1",
        "at a rate of c N^-1/2 the mean squared gradient falls sublinearly, whatever the staleness",
        "O(N^-1/2)",
        "rate",
        _rates,
        _falls_alike,
        "of a toy: within a quarter of back-propagation's at each length",
    ),
    Claim(
        "figure 3",
        "DNI does not converge",
        "",
        "delays",
        lambda r: ", ".join(
            f"rate {own['rate']:g}: {_seeds(own['runs'][delays.ONE]):.1%}" for own in _dni(r)
        ),
        lambda r: all(_seeds(own["runs"][delays.ONE]) < 0.5 for own in _dni(r)),
        "on spoken digits in six epochs, with linear synthesisers and momentum; back-propagation "
        "has 89 to 93 %",
        because="it learns more than half of the spoken digits",
    ),
    Claim(
        "future work",
        "rates by staleness help DSP, divided by how late a block's forward pass is: a large rate",
        "",
        "delays",
        lambda r: _remedied(r, delays.DIVIDED, 0.02),
        lambda r: _gains(r, delays.DIVIDED, 0.02),
        "at every queue, on spoken digits without shortcuts and norms; far from back-propagation",
        because="not at every queue",
    ),
    Claim(
        "future work",
        "the same of a small rate",
        "",
        "delays",
        lambda r: _remedied(r, delays.DIVIDED, 0.002),
        lambda r: _gains(r, delays.DIVIDED, 0.002),
        because="shorter queues lose: blocks whose rate is divided move too little in six epochs",
    ),
    Claim(
        "future work",
        "compensation of gradients helps DSP, of late ones by the squares of their entries",
        "",
        "delays",
        lambda r: _remedied(r, "compensation", 0.002, 0.02),
        lambda r: _gains(r, "compensation", 0.002, 0.02),
        because="it gains a point or a few at some queues and loses at others, where seeds are up "
        "to 31 points apart",
    ),
    Claim(
        "later work",
        "prediction of weights (SpecTrain) helps DSP: a small rate",
        "",
        "delays",
        lambda r: _remedied(r, "prediction", 0.002),
        lambda r: _gains(r, "prediction", 0.002),
        "at every queue, though seeds are up to 18 points apart",
        because="not at every queue",
    ),
    Claim(
        "later work",
        "Muon hardly suffers from gradients that are one step late (arXiv 2606.30634)",
        "",
        "delays",
        lambda r: "; ".join(f"{name} {_late(r, name)}" for name in delays.OPTIMISERS),
        lambda r: _hardly(r, "Muon"),
        "losses are within the seeds' spread; so are those of two steps",
        because="losses are further apart than the seeds are",
    ),
)
