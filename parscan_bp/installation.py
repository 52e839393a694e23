"""Whether an installation is right: releases of JAX that compute wrongly, and checks of results.

The checks are small programs whose results are known to NumPy: those that a release of XLA got
wrong, and the smallest of this package.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np

from parscan_bp.chain import chain
from parscan_bp.layers import Linear
from parscan_bp.originals import lax_scan
from parscan_bp.scan import scan
from parscan_bp.solvers import Blelloch, Sweep

WRONG_RELEASES = {
    "0.10.2": "on a CPU, sums of small products in 16,385 rows and more are wrong (jax#39103)",
    "0.11.0": "on a CPU, compiled programs are wrong or crash (jax#38806, jax#39257)",
    "0.11.1": "the stacked outputs of a scan take a time quadratic in its length (jax#40101)",
}
"""Releases of jax and jaxlib that are not to be used, and why."""

ROWS = (2**14 - 1, 2**14 + 1, 2**15 + 1, 2**16 + 1)
"""Numbers of rows beside those at which XLA compiles another program."""


@dataclasses.dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes:
      name: of what was checked.
      fault: what is wrong; empty if nothing is.
    """

    name: str
    fault: str = ""


@dataclasses.dataclass(frozen=True)
class Installation:
    """What `check_installation` found; ``str()`` is a table, and says what to do.

    Attributes:
      versions: of Python and the packages, and the device.
      checks: what was checked.
    """

    versions: dict[str, str]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not any(check.fault for check in self.checks)

    def __str__(self):
        lines = [", ".join(f"{name} {version}" for name, version in self.versions.items())]
        lines += [f"{'WRONG' if c.fault else 'right':<6} {c.name}" for c in self.checks]
        lines += [f"{c.name}: {c.fault}" for c in self.checks if c.fault]
        if self.ok:
            lines.append("everything is right")
        else:
            lines.append(
                "Results on this installation cannot be relied on. pip install --upgrade "
                f"'jax{_wanted()}' 'jaxlib{_wanted()}', then check again; if it stays, please "
                "report this table"
            )
        return "\n".join(lines)


def _wanted() -> str:
    return ">=0.10," + ",".join(f"!={release}" for release in WRONG_RELEASES)


def check_installation() -> Installation:
    """Runs what releases of JAX are known to get wrong, and the smallest checks of this package.

    It takes some seconds, on the default device, in single precision, and in double where that is
    switched on. Put what it prints into a report of a fault.

    Returns:
      What was found: ``print`` it, or ask whether it is ``ok``. A check that raises is wrong.

    Example:
      >>> import parscan_bp as pb
      >>> print(pb.check_installation())  # doctest: +SKIP
      parscan_bp 0.1.0, jax 0.10.1, jaxlib 0.10.1, Python 3.11.7, cpu: cpu, precision single
      right  releases
      ...
      everything is right
    """
    return Installation(_versions(), tuple(_told(name, run) for name, run in _checks()))


def _versions() -> dict[str, str]:
    device = jax.devices()[0]
    precision = "double" if jax.config.jax_enable_x64 else "single"  # type: ignore[attr-defined]
    return {
        "parscan_bp": _own_version(),
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "Python": platform.python_version(),
        f"{device.platform}:": device.device_kind,
        "precision": precision,
    }


def _own_version() -> str:
    try:
        return metadata.version("parscan_bp")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _told(name: str, run: Callable[[], str]) -> Check:
    try:
        return Check(name, run())
    except Exception as error:  # whatever is broken is to be told
        return Check(name, f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """Names of checks, and what makes them: it returns the fault, or nothing."""
    yield "releases", _releases
    dtypes = ["float32", "float64"] if jax.config.jax_enable_x64 else ["float32"]  # type: ignore[attr-defined]
    for dtype in dtypes:
        yield f"jax#39103, {dtype}", functools.partial(_rows, dtype)
    yield "jax.lax.scan", functools.partial(_recurrence, lax_scan)
    for solver in (Sweep(), Blelloch()):
        ours = functools.partial(_recurrence, functools.partial(scan, solver=solver))
        yield f"scan, {solver}", ours
    yield "chain", _layers


def _releases() -> str:
    for package in ("jax", "jaxlib"):
        version = metadata.version(package)
        if version in WRONG_RELEASES:
            return f"{package} {version}: {WRONG_RELEASES[version]}"
    return ""


def _rows(dtype: str) -> str:
    """Sums over the rows of small products, for numbers of rows beside 2^14, 2^15 and 2^16."""
    matrix = np.arange(9.0).reshape(3, 3) / 9 - 0.4
    total = jax.jit(lambda x: jax.vmap(lambda row: jnp.sum((matrix.astype(dtype) @ row) ** 2))(x))
    for n in ROWS:
        x = np.linspace(0.5, 1.5, 3 * n).reshape(n, 3)
        fault = _differs(total(x.astype(dtype)), np.sum((x @ matrix.T) ** 2, axis=1))
        if fault:
            return f"{n} rows: {fault}"
    return ""


def _recurrence(run: Callable) -> str:
    """The gradient of an Elman recurrence, whose pullback is written out in NumPy."""
    random = np.random.default_rng(0)
    w, h0, xs = random.normal(size=(4, 4)) / 2, random.normal(size=(2, 4)), np.ones((40, 2, 4)) / 9

    def loss(w, h0, xs):
        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, h

        return jnp.sum(run(step, h0, xs)[1] ** 2)

    hs = [h0]
    for x in xs:
        hs.append(np.tanh(hs[-1] @ w + x))
    w_ct, ct = np.zeros_like(w), np.zeros_like(h0)
    x_cts: list[np.ndarray] = []
    for before, after in zip(hs[-2::-1], hs[:0:-1], strict=True):
        ct = (ct + 2 * after) * (1 - after**2)
        w_ct, x_cts = w_ct + before.T @ ct, [ct, *x_cts]
        ct = ct @ w.T
    wanted = (w_ct, ct, np.stack(x_cts))
    got = jax.jit(jax.grad(loss, (0, 1, 2)))(*(jnp.asarray(a, float) for a in (w, h0, xs)))
    return _first_fault(got, wanted)


def _layers() -> str:
    """The gradient of two layers and an activation."""
    random = np.random.default_rng(0)
    x, a, b = (random.normal(size=s) for s in ((5, 3), (3, 4), (4, 2)))
    layers = [Linear(4, bias=False), jnp.tanh, Linear(2, bias=False)]
    h = np.tanh(x @ a)
    ct = 2 * h @ b
    wanted = [x.T @ (ct @ b.T * (1 - h**2)), h.T @ ct]
    params = [{"kernel": jnp.asarray(a, float)}, None, {"kernel": jnp.asarray(b, float)}]
    x_ = jnp.asarray(x, float)
    got = jax.jit(jax.grad(lambda params: jnp.sum(chain(layers, params, x_) ** 2)))(params)
    return _first_fault([got[0]["kernel"], got[2]["kernel"]], wanted)


def _first_fault(got: Sequence, wanted: Sequence[np.ndarray]) -> str:
    faults = (_differs(a, b) for a, b in zip(got, wanted, strict=True))
    return next(filter(None, faults), "")


ROUNDINGS = 1e3
"""Of its largest entry, by which a result may differ from the right one."""


def _differs(got, wanted: np.ndarray) -> str:
    """How a result differs from the right one by more than rounding; empty if it does not."""
    got = np.asarray(got)
    allowed = ROUNDINGS * np.finfo(got.dtype).eps * np.max(np.abs(wanted))
    wrong = ~(np.abs(got - wanted) <= allowed)  # of NaN, too
    if not wrong.any():
        return ""
    return f"{wrong.sum()} of {wrong.size} entries are wrong, the first at {np.argwhere(wrong)[0]}"
