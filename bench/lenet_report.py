"""The table and the figure of a LeNet-5 training (figure 6 of the BPPSA papers)."""

import pathlib
from typing import Any

import numpy as np

from bench import figures, tables
from bench.training import control_of

Result = dict[str, Any]

BASELINE, OURS = "jax.grad", "parscan_bp.chain"
CONTROL = control_of(BASELINE)
_STYLES = {
    CONTROL: {"color": "#999999", "lw": 1.0},
    BASELINE: {"color": "#ee7733", "lw": 2.4},
    OURS: {"color": "#0077bb", "lw": 1.4, "ls": "--"},
}


def differences(plain: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """The largest differences of two trainings: of the loss of a step, on the test images."""

    def largest(name: str) -> float:
        pairs = zip(plain["test"].values(), other["test"].values(), strict=True)
        return max(abs(a[name] - b[name]) for a, b in pairs)

    return {
        "training_loss": float(np.max(np.abs(np.subtract(plain["losses"], other["losses"])))),
        "test_loss": largest("loss"),
        "test_accuracy": largest("accuracy"),
    }


def text(result: Result) -> str:
    """What was learned by each side, and how far apart the sides are."""
    settings, sides = result["settings"], result["training"]
    last = {side: list(own["test"].values())[-1] for side, own in sides.items()}
    rows = [
        ["first training loss", *(f"{own['losses'][0]:.6f}" for own in sides.values())],
        ["last training loss", *(f"{own['losses'][-1]:.6f}" for own in sides.values())],
        ["test loss", *(f"{end['loss']:.6f}" for end in last.values())],
        ["test accuracy", *(f"{end['accuracy']:.1%}" for end in last.values())],
        ["seconds in steps", *(f"{own['seconds'][-1]:.1f}" for own in sides.values())],
    ]
    apart, check = result["differences"], result["gradient_errors"]
    compared = [
        [name.replace("_", " "), *(f"{apart[side][name]:.1e}" for side in (OURS, CONTROL))]
        for name in apart[OURS]
    ]
    errors = ", ".join(f"{name} {error:.1e}" for name, error in check["solvers"].items())
    return "\n\n".join(
        [
            f"LeNet-5 on {settings['images']} images, batch {settings['batch']}, SGD "
            f"{settings['lr']} with momentum {settings['momentum']}, solver {settings['solver']}",
            tables.table([f"{settings['steps']} iterations", *sides], rows),
            tables.table([f"largest difference from {BASELINE}", OURS, CONTROL], compared),
            f"gradients on {check['images']} images differ by at most, of a leaf's largest entry: "
            f"{errors} (allowed {check['allowed']:.1e})",
        ]
    )


def figure6(result: Result, path: pathlib.Path) -> None:
    """Training loss, test loss and test accuracy over the iterations; the curves overlap."""
    figure = figures.new(11, 3.6)
    training, test, accuracy = figure.subplots(1, 3)
    for side, style in _STYLES.items():
        own = result["training"][side]
        losses, at = own["losses"], list(own["test"])
        training.plot(np.arange(1, len(losses) + 1), losses, label=side, **style)
        for axes, name in ((test, "loss"), (accuracy, "accuracy")):
            axes.plot(at, [seen[name] for seen in own["test"].values()], label=side, **style)
    for axes, name in ((training, "training loss"), (test, "test loss"), (accuracy, "accuracy")):
        axes.set(xlabel="iteration", ylabel=name)
    apart, settings = result["differences"][OURS], result["settings"]
    training.set_title(f"(a) training: at most {apart['training_loss']:.1e} apart", size=10)
    test.set_title(f"(b) test: at most {apart['test_loss']:.1e} apart", size=10)
    accuracy.set_title("(c) test", size=10)
    accuracy.legend()
    figure.suptitle(
        f"Figure 6: LeNet-5 on {settings['images']} images, batch {settings['batch']}, "
        f"solver {settings['solver']}",
        size=11,
    )
    figures.save(figure, path)
