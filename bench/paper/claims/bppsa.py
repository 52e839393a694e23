"""Wang, Bai and Pekhimenko: BPPSA (MLSys 2020), and its early form of 2019."""

from collections.abc import Callable

from bench.paper import convergence
from bench.paper.claims.claim import Claim, Record
from bench.paper.vgg11 import training
from bench.shared import tables
from parscan_bp.pipeline import GPipe

LAYERS = ("convolution", "ReLU", "max-pooling")
PRUNED = ("static", "selection", "dynamic")


def _sparsity(record: Record) -> str:
    return ", ".join(f"{record['layers'][name]['sparsity']:.5f}" for name in LAYERS)


def _same_sparsity(record: Record) -> bool:
    layers = [record["layers"][name] for name in LAYERS]
    return all(f"{own['sparsity']:.5f}" == own["paper"]["sparsity"] for own in layers)


def _generation(record: Record, method: str) -> list[float]:
    of = (record["layers"][name]["methods"][method] for name in LAYERS)
    return [own["ratios"]["analytic CSR"]["speedup"] for own in of]


def _many(values: list[float]) -> str:
    return ", ".join(f"{value:.2g}" for value in values)


def _close(value: float, paper: float, factor: float = 10) -> bool:
    """Within an order of magnitude, on another machine."""
    return paper / factor <= value <= paper * factor


def _csr(record: Record) -> str:
    own = record["layers"]["convolution"]
    numbers, whole = 4 * own["nnz"], 8 * own["nnz"] + 4 * (own["shape"][0] + 1)
    dense = own["dense_bytes"] / 2**20
    return f"{dense:.0f} MiB; numbers {numbers / 2**20:.2f} MiB, in CSR {whole / 2**20:.1f} MiB"


def _together(record: Record) -> str:
    """Of the tree that parts first; of the baseline from one ulp away."""
    found = []
    for name, entry in record["networks"].items():
        least = min((convergence.together(entry, side) for side in _trees(entry)), default=0)
        products = max((own["products"] for own in entry["sides"].values()), default=0)
        found.append(
            f"{name}, {products} products a step: {least} of {entry['iterations']} iterations "
            f"(one ulp apart: {convergence.together(entry, convergence.control(entry))})"
        )
    return "; ".join(found)


def _trees(entry: Record) -> list[str]:
    return [side for side, own in entry["sides"].items() if own["products"]]


def _converges_alike(record: Record) -> bool:
    """Trees that multiply part from the baseline no sooner than one ulp makes it part."""
    for entry in record["networks"].values():
        bound = 0.9 * convergence.together(entry, convergence.control(entry))
        trees = _trees(entry)
        if not trees or any(convergence.together(entry, side) < bound for side in trees):
            return False
    return True


def _phases(record: Record, *names: str) -> str:
    return ", ".join(f"{name} {tables.speedup(record['phases'][name])}" for name in names)


def _sets(record: Record, name: str) -> str:
    return ", ".join(
        f"{k} {own['phases'][name]['speedup']:.2f}" for k, own in record["sets"].items()
    )


def _accuracy(part: Record) -> float:
    return part["test"]["accuracy"]


def _accuracies(record: Record, scope: str) -> str:
    return f"{_accuracy(record['training']):.1%}, {_accuracy(record['pruning'][scope]):.1%}"


def _learns(record: Record, scope: str) -> bool:
    """At most five points lost by pruning, of a network that learned."""
    before = _accuracy(record["training"])
    return before >= 0.55 and before - _accuracy(record["pruning"][scope]) <= 0.05


def _scan(record: Record, zeros: str, levels: str = "2", scope: str = training.SCOPE) -> Record:
    return record["counts"][scope]["conventions"][zeros]["scans"][levels]


def _by_zeros(record: Record, told: Callable[[Record], str]) -> str:
    """Something of the truncated scan, by what is pruned and by which zeros are known."""
    each = {
        scope: ", ".join(f"{zeros} {told(_scan(record, zeros, scope=scope))}" for zeros in PRUNED)
        for scope in record["counts"]
    }
    return "; ".join(f"{scope}: {numbers}" for scope, numbers in each.items())


def _above(record: Record, key: str) -> str:
    return _by_zeros(record, lambda scan: f"{scan[key]} of {len(scan['steps']['kind'])}")


def _paths(record: Record) -> str:
    return _by_zeros(record, lambda scan: f"{scan['path_to_linear']:.2g}")


def _whole_scan(record: Record) -> float:
    """Its largest step over the largest of back-propagation."""
    scan = _scan(record, "dynamic", "4")
    return max(scan["steps"]["flops"]) / record["counts"][training.SCOPE]["bp"]["largest"]


def _products(record: Record) -> str:
    each = [own["speedup"] for own in record["cases"].values()]
    return f"{min(each):.2g} to {max(each):.2g} in {len(each)} cases"


def _shares(record: Record) -> dict[int, float]:
    """Bytes of a device by number of devices, over those of one; without those not to be run.

    Of none if there is no run on one.
    """
    each = {
        point["processes"]: point["methods"]["ppermute"]["bytes"]
        for point in record["points"]
        if point["methods"]["ppermute"].get("bytes")
    }
    return {p: own / each[1] for p, own in sorted(each.items()) if 1 in each}


def _stores_a_share(record: Record) -> bool | None:
    """Whether p devices store n/p each, within a factor of two; ``None`` if there were not two."""
    shares = _shares(record)
    return max(p * share for p, share in shares.items()) <= 2 if len(shares) > 1 else None


def _stored(record: Record) -> str:
    shares = _shares(record)
    ours = ", ".join(f"p={p} {share:.2f}" for p, share in shares.items())
    theirs = ", ".join(str(GPipe(p).held(p)[0].inputs) for p in shares)
    return f"bytes of a device over those of one: {ours}; GPipe's first of p blocks holds {theirs}"


CLAIMS = (
    Claim(
        "Table 1",
        "sparsity of the transposed Jacobians of VGG-11's first convolution, ReLU, max-pooling",
        "0.99157, 0.99998, 0.99994",
        "jacobians",
        _sparsity,
        _same_sparsity,
    ),
    Claim(
        "Table 1",
        "their generation in CSR, over a VJP a column as the paper's baseline makes them",
        "8.3e3, 1.2e6, 1.5e5",
        "jacobians",
        lambda r: _many(_generation(r, "column VJP, eager")),
        lambda r: all(
            _close(own, r["layers"][name]["paper"]["speedup"])
            for name, own in zip(LAYERS, _generation(r, "column VJP, eager"), strict=True)
        ),
        "within an order of magnitude, columns extrapolated from a sample",
    ),
    Claim(
        "Table 1",
        "the same, over a VJP a column that is compiled",
        "",
        "jacobians",
        lambda r: _many(_generation(r, "column VJP, jitted")),
        lambda r: min(_generation(r, "column VJP, jitted")) > 1,
    ),
    Claim(
        "section 3.3",
        "the first convolution's Jacobian takes 6.5 MB in place of 768 MB",
        "768 MB, 6.5 MB",
        "jacobians",
        _csr,
        lambda r: 8 * r["layers"]["convolution"]["nnz"] < 7 * 2**20,
        because="6.5 MB are the numbers alone; the indices of CSR are as many bytes again",
    ),
    Claim(
        "section 3.5, figure 6",
        "the order of the products does not hurt convergence",
        "curves overlap",
        "convergence",
        _together,
        _converges_alike,
        "losses are within a thousandth for as long as those of two runs that begin one ulp apart; "
        "then rounding alone parts any two",
    ),
    Claim(
        "section 5.1, figure 7",
        "the RNN on bitstreams trains faster, T=1000, B=16",
        "whole 2.73, backward 16 (RTX 2070)",
        "rnn",
        lambda r: _phases(r, "step", "backward"),
        lambda r: r["phases"]["step"]["low"] > 1,
        "on two cores of a CPU, by a sweep in chunks, which multiplies no Jacobians",
    ),
    Claim(
        "figure 8",
        "backward speedups of up to 108 over cuDNN",
        "108",
        "",
        because="7 of 24 points are recorded, and backward passes by subtraction, see `bench gpu`; "
        "the kernels wait for a GPU",
    ),
    Claim(
        "section 5.2, figure 9",
        "the GRU on audio, S, M, L of Table 3",
        "backward to 13.4, whole to 2.36 (RTX 2070)",
        "gru",
        lambda r: f"backward {_sets(r, 'backward')}; whole {_sets(r, 'value_and_grad')}",
        lambda r: all(own["phases"]["value_and_grad"]["low"] > 1 for own in r["sets"].values()),
        "on two cores of a CPU, by a sweep, with spoken digits for IRMAS",
    ),
    Claim(
        "section 4.3",
        "VGG-11 loses little by pruning 97 % of its weights, ranked together, and retraining",
        "90.1 %, 88.9 %",
        "vgg11",
        lambda r: _accuracies(r, "class-blind"),
        lambda r: _learns(r, "class-blind"),
        "of a quarter of the channels, on 10,000 images",
    ),
    Claim(
        "section 4.3",
        "the same by pruning 97 % of each kernel",
        "",
        "vgg11",
        lambda r: _accuracies(r, "class-uniform"),
        lambda r: _learns(r, "class-uniform"),
        because="of a quarter of the channels: the first convolution keeps 13 of its 432 weights",
    ),
    Claim(
        "figure 10",
        "with L_m = 2 no step of the scan takes more than the largest of back-propagation",
        "0 steps of 33",
        "vgg11",
        lambda r: _above(r, "above_bp"),
        lambda r: _scan(r, "dynamic")["above_bp"] == 0,
        "with one image's zeros, over back-propagation through the network before pruning",
    ),
    Claim(
        "figure 10",
        "the same over the sparse linear scan of the pruned network",
        "",
        "vgg11",
        lambda r: _above(r, "above_linear"),
        lambda r: all(_scan(r, zeros)["above_linear"] == 0 for zeros in PRUNED),
        because="whatever zeros are counted",
    ),
    Claim(
        "figure 10",
        "with as many workers as one likes the truncated scan is faster: its critical path over "
        "that of the sparse linear scan",
        "below 1",
        "vgg11",
        _paths,
        lambda r: any(_scan(r, zeros)["path_to_linear"] < 1 for zeros in PRUNED),
        because="products fill in, and the linear scan skips the same zeros: only L_m = 1 with "
        "one image's zeros and class-uniform pruning is below 1",
    ),
    Claim(
        "early form, figure 7c",
        "of the whole scan, one step takes more than the largest of back-propagation",
        "1 step, close to it",
        "vgg11",
        lambda r: f"{_scan(r, 'dynamic', '4')['above_bp']} steps, to {_whole_scan(r):.0f} times it",
        lambda r: _scan(r, "dynamic", "4")["above_bp"] <= 1 and _whole_scan(r) < 2,
        because="with one image's zeros; of a quarter of the channels",
    ),
    Claim(
        "early form, figure 7a",
        "planned sparse products are faster than a library's",
        "",
        "spgemm",
        _products,
        lambda r: all(own["low"] > 1 for own in r["cases"].values()),
        because="over scipy, not cuSPARSE; it loses where entries are multiplied one by one",
    ),
    Claim(
        "section 3.6",
        "a device stores max(n/p, 1) Jacobians, where GPipe stores n/p + p activations",
        "",
        "mesh",
        _stored,
        _stores_a_share,
        "within a factor of two of n/p, as compiled; GPipe's are counted in its table",
        because="a program takes more than twice n/p of what one device does",
    ),
    Claim("early form", "Monte-Carlo products, kinematic chains", because="not here"),
    Claim("appendix C", "VGG-16, PipeDream with Adam", because="not here; see stale pipelines"),
)
