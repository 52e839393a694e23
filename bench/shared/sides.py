"""Value and gradient of several programs side by side: memory, compilation, time."""

from collections.abc import Mapping

from bench.shared import timing
from bench.shared.bench import Options, Result, effort
from bench.shared.programs import Program


def raced(made: Mapping[str, Program], baseline: str, options: Options) -> dict[str, Result]:
    """What each takes, and all but the baseline beside it in time."""
    sides = {name: {timing.VALUE_AND_GRAD: program.call} for name, program in made.items()}
    others = {name: side for name, side in sides.items() if name != baseline}
    race = timing.race(sides[baseline], others, **effort(options))
    compared = {name: race.compare(name, timing.VALUE_AND_GRAD).to_json() for name in others}
    return {
        name: {
            "temp_bytes": program.temp_bytes,
            "compile_seconds": timing.rounded(program.compile_seconds),
            "comparison": compared.get(name),
        }
        for name, program in made.items()
    }
