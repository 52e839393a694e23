"""The claims of the papers: verdicts that follow the records, and the page."""

import copy
import json
import pathlib

import pytest

from bench import __main__ as command
from bench.paper import convergence, rate
from bench.paper.claims import bench as paper
from bench.paper.claims.claim import Claim, Verdict
from bench.shared import record

RESULTS = record.HERE / "results"
CLAIMS = [claim for _, claims in paper.PAPERS.values() for claim in claims]


def recorded(name):
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def the_claim(word):
    (found,) = (claim for claim in CLAIMS if word in claim.says)
    return found


def test_a_claim_names_its_record_or_says_why_there_is_none():
    for claim in CLAIMS:
        verdict, ours = claim.judge(recorded)
        reached = claim.bench and claim.holds(recorded(claim.bench)) is not None
        assert bool(reached) == (verdict is not Verdict.UNMEASURED), claim
        assert bool(ours) == bool(claim.bench)
        assert reached or claim.because
        assert verdict is not Verdict.FAILS or claim.because, claim


@pytest.mark.parametrize(
    ("median", "verdict"), [(10.0, Verdict.HOLDS), (40.0, Verdict.FAILS), (None, None)]
)
def test_figure_4_wants_a_batch_of_256(median, verdict):
    def change(record):
        *others, last = record["compute"]
        assert last["batch"] == 256
        last["iteration"]["baseline"]["median"] = median
        record["compute"] = [*others, last] if median else others

    found, _ = the_claim("batch of 256").judge(changed("grids", change))
    assert found is (verdict or Verdict.UNMEASURED)


def changed(name, change):
    """A record in which something is otherwise."""
    found = copy.deepcopy(recorded(name))
    change(found)
    return lambda asked: found if asked == name else None


@pytest.mark.parametrize(
    ("word", "name", "change"),
    [
        ("sparsity of the", "jacobians", lambda r: r["layers"]["ReLU"].update(sparsity=0.5)),
        ("RNN on bitstreams", "rnn", lambda r: r["phases"]["step"].update(low=0.9)),
        (
            "the order of the products",
            "convergence",
            lambda r: [
                side.update(products=0)
                for entry in r["networks"].values()
                for side in entry["sides"].values()
            ],
        ),
        (
            "the order of the products",
            "convergence",
            lambda r: r["networks"]["RNN"]["sides"]["Blelloch()"]["losses"].__setitem__(9, 2.0),
        ),
        (
            "the longer the queues and",
            "pipeline",
            lambda r: r["points"]["difference DSP(3,3,0;10,5,0)"].update(
                samples=r["points"]["difference DSP(1,1,0;4,2,0)"]["samples"]
            ),
        ),
        (
            "no step of the scan",
            "vgg11",
            lambda r: r["counts"]["class-blind"]["conventions"]["dynamic"]["scans"]["2"].update(
                above_bp=1
            ),
        ),
        (
            "VGG-11 loses little",
            "vgg11",
            lambda r: r["pruning"]["class-blind"]["test"].update(accuracy=0.6),
        ),
    ],
)
def test_another_record_is_another_verdict(word, name, change):
    claim = the_claim(word)
    assert claim.judge(recorded)[0] is Verdict.HOLDS
    assert claim.judge(changed(name, change))[0] is Verdict.FAILS


def test_a_claim_that_fails_may_hold_by_another_record():
    network = changed(
        "vgg11",
        lambda r: [
            own["test"].update(accuracy=share)
            for own, share in ((r["training"], 0.6), *((p, 0.58) for p in r["pruning"].values()))
        ],
    )
    claim = the_claim("pruning 97 % of each kernel")
    assert claim.judge(recorded)[0] is Verdict.FAILS and claim.judge(network)[0] is Verdict.HOLDS


@pytest.mark.parametrize("rate", ["0.01", "0.1"])
def test_stale_blocks_may_test_as_well_by_another_record(rate):
    def change(record):
        points = record["points"]
        for name, own in points.items():
            if name.endswith(f"rate {rate}"):
                own["runs"] = points[f"BP, rate {rate}"]["runs"]

    claim = the_claim(f"at a rate of {rate}")
    assert claim.judge(recorded)[0] is Verdict.FAILS
    assert claim.judge(changed("residual", change))[0] is Verdict.HOLDS


def test_a_record_of_tiny_sizes_need_not_have_all(tmp_path):
    claim = the_claim("no step of the scan")
    empty = {"runs": [{"argv": []}], "counts": {}}
    with pytest.raises(KeyError):
        claim.judge(lambda name: empty)
    tiny = {**empty, "runs": [{"argv": ["--quick"]}]}
    assert claim.judge(lambda name: tiny) == (Verdict.UNMEASURED, "")
    (tmp_path / "vgg11.json").write_text(json.dumps(tiny))
    paper.main(["bppsa", "--page", "--out", str(tmp_path)])
    assert paper.TINY in (tmp_path / "claims.md").read_text()


def test_the_page_is_of_the_records_in_a_folder(tmp_path, capsys):
    (tmp_path / "jacobians.json").write_text((RESULTS / "jacobians.json").read_text())
    paper.main(["bppsa", "--page", "--out", str(tmp_path)])
    page, shown = ((tmp_path / f"claims.{kind}").read_text() for kind in ("md", "html"))
    assert "| `jacobians` | **holds** |" in page and "| `rnn` | **not measured** |" in page
    assert "<td><code>jacobians</code></td><td><b>holds</b></td>" in shown
    assert shown.count("<tr>") == 1 + len(paper.PAPERS["bppsa"][1])
    assert "the page is" in capsys.readouterr().out


def test_what_fails_is_named_when_all_others_ran(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(paper, "_ran", lambda name, *how: ran.append(name) or name != "rnn")
    with pytest.raises(SystemExit, match="failed: rnn;"):
        paper.main(["bppsa", "--out", str(tmp_path)])
    assert {"jacobians", "rnn", "vgg11"} <= set(ran) and len(ran) == len(set(ran))


@pytest.mark.slow
def test_benches_run_in_processes_of_their_own(tmp_path):
    paper.main(["bidiagonal", "--quick", "--out", str(tmp_path)])
    found = json.loads(pathlib.Path(tmp_path / "solvers.json").read_text())
    paper.main(["bidiagonal", "--quick", "--out", str(tmp_path)])
    again = json.loads(pathlib.Path(tmp_path / "solvers.json").read_text())
    assert again["points"] == found["points"] != {}


def test_text_in_a_cell_is_escaped():
    claim = Claim("a", "b < c", "`x`", because="**no**")
    assert claim.row(lambda name: None)[-1].startswith("**not measured**")
    assert paper.as_html("| a < b | `c` |").count("a &lt; b") == 1


@pytest.mark.slow
def test_convergence_trains_by_solvers_that_multiply(tmp_path):
    command.main(["convergence", "--quick", "--networks", "RNN", "--out", str(tmp_path)])
    (entry,) = json.loads((tmp_path / "convergence.json").read_text())["networks"].values()
    trees = {side: own for side, own in entry["sides"].items() if own["products"]}
    assert set(trees) == set(convergence.TREES)
    assert all(0 <= own["apart"] < 1e-4 for own in trees.values())
    assert len(set(entry["sides"]["Blelloch()"]["losses"])) == 4


@pytest.mark.slow
def test_the_rate_is_that_of_the_runs(tmp_path):
    command.main(["rate", "--quick", "--only", "BP", "DSP(3", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "rate.json").read_text())["schedules"]
    assert all(run["squared"] > 0 for own in found.values() for run in own["runs"])
    assert found["BP"] != found["DSP(3,3,0;10,5,0)"]


def test_an_exponent_is_a_slope():
    runs = [{"steps": n, "squared": 3 / n**0.5} for n in (10, 100, 1000)]
    assert rate.exponent(runs) == pytest.approx(-0.5)
