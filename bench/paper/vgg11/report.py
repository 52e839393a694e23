"""The tables of a VGG-11 run: counted flops in each convention, measured seconds, memory."""

from typing import Any

from bench.paper.vgg11 import step_counts
from bench.paper.vgg11.schedules import PRODUCT
from bench.shared import pages, tables

Result = dict[str, Any]


def text(result: Result) -> str:
    """All tables, one below the other."""
    parts = {
        "training": _training,
        "counts": _counts,
        "steps": _steps,
        "chains": _chains,
        "memory": _memory,
    }
    return "\n\n".join(write(result) for part, write in parts.items() if part in result)


def _training(result: Result) -> str:
    training, settings = result["training"], result["settings"]
    return (
        tables.table(*_stages(result)) + f"\n{training['weights']} weights, channels over "
        f"{settings['divisor']}; {settings['train_images']} {settings['images']} images, batch "
        f"{settings['batch']}, Adam {settings['lr']}"
    )


def training_page(result: Result) -> str:
    """For a page: what each stage of training and pruning came to."""
    return pages.markdown(*_stages(result))


def _stages(result: Result) -> tuple[list[str], list[list[str]]]:
    rows = [_stage("trained", result["training"])]
    for scope, own in result.get("pruning", {}).items():
        rows += [_stage(f"{scope}, {one['sparsity']:.0%} pruned", one) for one in own["stages"]]
    return ["VGG-11", "epochs", "training loss", "test loss", "test accuracy"], rows


def _stage(name: str, stage: Result) -> list[str]:
    losses, test = stage["losses"], stage["test"]
    numbers = [f"{losses[-1]:.3f}", f"{test['loss']:.3f}", f"{test['accuracy']:.1%}"]
    return [name, str(len(losses)), *numbers]


def _counts(result: Result) -> str:
    each = (_counted(scope, counts) for scope, counts in result["counts"].items())
    meaning = [f"  {name}: {what}" for name, what in step_counts.ZEROS.items()]
    return "\n".join(
        [
            *each,
            "BP is that of the unpruned net; linear is the sparse linear scan of the same "
            "convention; path: critical path, unlimited workers",
            *meaning,
        ]
    )


def _counted(scope: str, counts: Result) -> str:
    """The scans of the network that was pruned in one way."""
    bp = counts["bp"]
    header = [
        f"{scope}, flops, one image",
        *("L_m", "steps", "mm", "largest step"),
        *("steps > BP's largest", "steps > linear's largest"),
        *("path / BP", "path / linear", "2 workers / linear", "largest product"),
    ]
    rows = []
    for zeros, own in counts["conventions"].items():
        linear = own["scans"]["0"]["path"]["unlimited"]
        for levels, scan in own["scans"].items():
            steps = scan["steps"]
            products = [nnz for nnz in steps["product_nnz"] if nnz is not None]
            rows.append(
                [
                    zeros,
                    levels,
                    str(len(steps["kind"])),
                    str(steps["kind"].count(PRODUCT)),
                    f"{max(steps['flops']):.2e}",
                    str(scan["above_bp"]),
                    str(scan["above_linear"]),
                    f"{scan['path_to_bp']:.3g}",
                    f"{scan['path_to_linear']:.3g}",
                    f"{scan['path']['2'] / linear:.3g}",
                    ("" if all(steps["exact"]) else "<= ") + f"{max(products, default=0):.1e}",
                ]
            )
    end = f"BP: {bp['total']:.3g} flop, largest step {bp['largest']:.3g}"
    return f"{tables.table(header, rows)}\n{end}"


def _steps(result: Result) -> str:
    """The seconds of all steps of a scan that could be run."""
    steps = result["steps"]
    rows = [["BP, XLA's VJP of each layer", "-", *_sums(steps["bp"])]]
    for zeros, scans in steps["seconds"].items():
        rows += [[zeros, levels, *_sums(seconds)] for levels, seconds in scans.items()]
    header = ["measured alone, one image", "L_m", "steps run", "not run", "sum", "largest"]
    rate = f"{steps['product_rate'] / 1e9:.0f} Gflop/s"
    return tables.table(header, rows) + f"\na float32 product of order 1024 runs at {rate}"


def _sums(seconds: list[float | None]) -> list[str]:
    run = [s for s in seconds if s is not None]
    numbers = (tables.seconds(total) for total in (sum(run), max(run)))
    return [str(len(run)), str(len(seconds) - len(run)), *numbers]


def _chains(result: Result) -> str:
    header = ["activation-gradient chain", "batch", "schedule", "seconds", "XLA's VJP"]
    rows, left_out = [], []
    for part, batches in result["chains"].items():
        for batch, own in batches.items():
            for name, entry in own["times"].items():
                seconds = (entry[side]["median"] for side in ("candidate", "baseline"))
                ratio = tables.speedup(entry)
                line = [part, batch, name, *map(tables.seconds, seconds), ratio]
                rows.append([*line, f"{entry['again']:.2f}", f"{own['errors'][name]:.0e}"])
            left_out.append(f"{part}, batch {batch}: {', '.join(own['left_out']) or 'none'}")
    header += ["speedup [95 %]", "A/A", "difference"]
    return "\n".join([tables.table(header, rows), "scans with too large steps:", *left_out])


def _memory(result: Result) -> str:
    memory = result["memory"]
    size = {name: "-" if n is None else tables.size(n) for name, n in memory.items()}
    return (
        f"memory, unpruned, largest batch, limit {size['limit']}: planned {size['planned_bytes']} "
        f"(compiled program: {size['compiled_bytes']}); linear scan {size['linear_bytes']}, "
        f"whole scan {size['whole_scan_bytes']}"
    )
