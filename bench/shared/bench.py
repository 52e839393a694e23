"""How a bench is declared: its options, its points, how one is measured, its table and figures.

A bench is a module with a docstring, whose first line the list shows, an object `BENCH`, and a row
in `bench.__main__`:

    BENCH = Bench(
        "squares", __doc__,
        baseline="a Python loop",
        options=(Option("n", [10, 1000], "numbers"), *racing()),
        points=lambda options: {f"n={n}": n for n in options.n},
        measure=measure,           # (n, options) -> an entry; compares the results, then races
        rows=Listed("points"),
        text=text,                 # result -> what is printed
        quick={"n": [3]},
    )

All else is the same for every bench: `--quick` for tiny sizes, `--only` for some points,
`--record` for bench/results instead of bench/out, `--resume` to go on with a file, `--report` to
print and draw one again; the JSON with device, versions, date and load, written after every point;
and the figures.
"""

import argparse
import dataclasses
import json
import pathlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from bench.shared import figures, record

Options = argparse.Namespace
Result = dict[str, Any]
Points = Mapping[str, Any]

_QUICK = {"rounds": 2, "min_rounds": 1, "budget_seconds": 0.0}
_MACHINE = ("device", "cpu", "versions", "x64")


@dataclasses.dataclass(frozen=True)
class Option:
    """`--name`: of the type of its default; a list takes several values, False makes it a flag."""

    name: str
    default: Any
    help: str = ""
    choices: Sequence[str] | None = None
    kind: Callable[[str], Any] | None = None

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Makes it one of the parser's, or of a group of it."""
        several = isinstance(self.default, list)
        kind = self.kind or type(self.default[0] if several else self.default)
        how: dict[str, Any] = {"action": "store_true"}
        if kind is not bool:
            how = {"type": kind, "nargs": "+" if several else None, "choices": self.choices}
        shown = f"{self.help} (default: {self.default})".strip()
        parser.add_argument(f"--{self.name}", default=self.default, help=shown, **how)


def racing(rounds: int = 25, least: int = 15, seconds: float = 15.0) -> tuple[Option, ...]:
    """The options that `effort` reads: how long one point is timed."""
    return (
        Option("rounds", rounds, "timing rounds of a point at most"),
        Option("min-rounds", least, "and at least, whatever the budget"),
        Option("budget-seconds", seconds, "for the rounds of a point"),
    )


def effort(options: Options) -> dict[str, Any]:
    """What `timing.race` takes of the options of `racing`."""
    least = min(options.min_rounds, options.rounds)
    return {"rounds": options.rounds, "min_rounds": least, "budget": options.budget_seconds}


# Where the entries of a result lie: in one of three ways. Each puts an entry in the place of one of
# the same name, and says which there are and whether a point stands `alone` or rests on others.


@dataclasses.dataclass(frozen=True)
class Listed:
    """A list of entries; `name_of` says which point one is about."""

    key: str
    name_of: Callable[[Result], str] = lambda entry: entry["name"]
    alone = True

    def put(self, result: Result, name: str, entry: Result) -> None:
        others = [other for other in result.get(self.key, []) if self.name_of(other) != name]
        result[self.key] = [*others, {"name": name, **entry}]

    def names(self, result: Result) -> set[str]:
        return {self.name_of(entry) for entry in result.get(self.key, [])}


@dataclasses.dataclass(frozen=True)
class Named:
    """Entries by name."""

    key: str
    alone = True

    def put(self, result: Result, name: str, entry: Result) -> None:
        result.setdefault(self.key, {})[name] = entry

    def names(self, result: Result) -> set[str]:
        return set(result.get(self.key, {}))


class Whole:
    """Entries are parts of the result itself, and may rest on those before them."""

    alone = False

    def put(self, result: Result, name: str, entry: Result) -> None:
        result.update(entry)

    def names(self, result: Result) -> set[str]:
        return set(result)


@dataclasses.dataclass(frozen=True)
class Bench:
    """A measurement.

    Attributes:
        name: of the command, and of its files where `--name` says no other.
        about: its documentation.
        baseline: what a ratio is over, in words; printed beside the tables, and recorded.
        points: options to what is measured, by name, the most telling first.
        measure: (point, options) to what is recorded of it. Compares results before it times.
        text: result to what is printed; of a bench with `again` also (result, confirmation).
        rows: where entries go.
        options: beside those of every bench. All but paths are recorded as settings.
        quick: values of options that `--quick` sets.
        facts: options to what is recorded beside the points; `settings` in it join the options.
        draw: result to figures, by what follows the name in the file's.
        fixed: settings that a file which is gone on with must share.
        again: (result, options) to the points of a file that were too slow, with which `--confirm`
            measures these once more in a file of their own.
    """

    name: str
    about: str | None
    baseline: str
    points: Callable[[Options], Points]
    measure: Callable[[Any, Options], Result]
    text: Callable[..., str]
    rows: Listed | Named | Whole
    options: Sequence[Option] = ()
    quick: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    facts: Callable[[Options], Result] = lambda options: {}
    draw: Callable[[Result], Mapping[str, Figure]] = lambda result: {}
    fixed: Sequence[str] = ("seed",)
    again: Callable[[Result, Options], Points] | None = None

    def main(self, argv: Sequence[str]) -> None:
        """Measures and writes the points, prints the tables and draws the figures.

        Raises:
            FloatingPointError: two programs that are to agree do not, where later parts rest on it.
            RuntimeError: some points failed, in this or in another way; all others are measured
                and written first.
        """
        options = self.parse(argv)
        if options.report:
            options.name = options.report[0].stem
            self._show(*map(_read, options.report), path=record.result_path(options))
            return
        points = self.points(options)
        if options.confirm:
            points = self.again(_read(options.confirm), options)
            options.name = f"{options.confirm.stem}_confirm"
        path = record.result_path(options)
        result = self._begin(argv, options, path)
        points = self._chosen(points, result, options)
        if not points:
            print("nothing to measure")
            return
        self._fill(result, points, options, path)
        self._show(result, path=path)
        if failed := result.get("failed"):
            listed = (f"{name}: {reason}" for name, reason in failed.items())
            raise RuntimeError("\n".join([f"{len(failed)} points failed:", *listed]))

    def parse(self, argv: Sequence[str]) -> Options:
        """The options; those that are named win over what `--quick` sets."""
        parser = self._parser()
        options = parser.parse_args(argv)
        if options.quick:
            few = {name: value for name, value in _QUICK.items() if name in options}
            parser.set_defaults(**few, **self.quick)
            options = parser.parse_args(argv)
        if options.quick and options.record:
            parser.error("--quick measures nothing that is worth a record")
        if len(options.report or ()) > 1 + bool(self.again):
            parser.error("--report takes a file, and its confirmation where there is one")
        return options

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            f"python -m bench {self.name}",
            description=f"{self.about}\nBaseline: {self.baseline}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[record.output_options(self.name)],
        )
        parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the code")
        parser.add_argument(
            "--only", nargs="+", default=[""], help="points with one of these in the name"
        )
        file = parser.add_mutually_exclusive_group()
        file.add_argument(
            "--resume", action="store_true", help="keep what the file has but for what --only names"
        )
        file.add_argument(
            "--report", nargs="+", type=pathlib.Path, help="print and draw a file; measure nothing"
        )
        parser.set_defaults(confirm=None)
        if self.again:
            file.add_argument(
                "--confirm", type=pathlib.Path, help="measure again what was too slow in a file"
            )
        own = parser.add_argument_group("of this bench")
        for option in self.options:
            option.add_to(own)
        return parser

    def _begin(self, argv: Sequence[str], options: Options, path: pathlib.Path) -> Result:
        """A result without points, or with `--resume` the one that is there, with one more run."""
        run, facts = record.environment(argv), self.facts(options)
        names = [option.name.replace("-", "_") for option in self.options]
        values = {name: getattr(options, name) for name in names}
        kept = {k: v for k, v in values.items() if not isinstance(v, pathlib.Path | None)}
        settings = {**kept, **facts.get("settings", {})}
        fresh = {"runs": [run], **facts, "baseline": self.baseline, "settings": settings}
        if not (options.resume and path.exists()):
            return fresh
        result = _read(path)
        last = result["runs"][-1]
        for name in _MACHINE:
            if last[name] != run[name]:
                raise ValueError(
                    f"{path.name} was measured with {name} {last[name]}, this is {run[name]}: "
                    "choose another --name"
                )
        check_same(result, settings, self.fixed, path)
        result["runs"].append(run)
        return result

    def _chosen(self, points: Points, result: Result, options: Options) -> Points:
        if options.only != [""]:
            asked = {k: v for k, v in points.items() if any(part in k for part in options.only)}
            if not asked:
                raise SystemExit(f"--only: no name has {options.only}; there are {list(points)}")
            return asked
        have = self.rows.names(result)
        return {name: point for name, point in points.items() if name not in have}

    def _fill(self, result: Result, points: Points, options: Options, path: pathlib.Path) -> None:
        """Measures the points and writes the file after each."""
        failed = result.pop("failed", {})
        for name, point in tqdm(points.items(), desc=self.name, unit="point"):
            try:
                self.rows.put(result, name, self.measure(point, options))
                failed.pop(name, None)
            # One bad point must not end a long run; `main` raises when all are done.
            except Exception as problem:
                if not self.rows.alone:
                    raise
                traceback.print_exc()
                failed[name] = record.reason_of(problem)
            if failed:
                result["failed"] = failed
            result["runs"][-1]["load_end"] = record.load_average()
            record.write(path, result)

    def _show(self, *results: Result, path: pathlib.Path) -> None:
        if not self.rows.names(results[0]):
            return
        print(f"{self.text(*results)}\nbaseline: {self.baseline}")
        for suffix, figure in self.draw(results[0]).items():
            drawn = path.with_name(f"{path.stem}{suffix}.png")
            figures.save(figure, drawn)
            print(f"drew {drawn.name}")


def check_same(
    result: Result, settings: Mapping[str, Any], names: Sequence[str], path: pathlib.Path
) -> None:
    """Raises ValueError where a file was measured with other settings of these names."""
    for name in names:
        old = result.get("settings", {}).get(name, settings.get(name))
        if old != settings.get(name):
            raise ValueError(f"{path.name} has --{name} {old}, this is {settings[name]}")


def _read(path: pathlib.Path) -> Result:
    return json.loads(path.read_text())
