"""Starts a program in several processes of this machine, and ends them all if one fails.

Collectives wait for all processes: of one that died, stalls or raised, the others know nothing, or
late (jax.distributed's own limits are minutes). So the parent owns the time: it watches exit codes,
ends the rest soon after the first that failed, and everything after ``timeout`` seconds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from parscan_bp.arguments import as_int, check_number, described

GRACE = 3.0
"""Seconds that the others have to end after the first process that failed."""


class LaunchError(RuntimeError):
    """A run of several processes that was ended; says which of them failed, and how."""


@dataclasses.dataclass
class _Process:
    """One of the processes.

    Attributes:
      index: which.
      popen: the process itself.
      folder: where its result, the time and text of its failure, and its output are.
    """

    index: int
    popen: subprocess.Popen
    folder: pathlib.Path

    @property
    def code(self) -> int | None:
        return self.popen.poll()

    @property
    def failed(self) -> bool:
        return self.code not in (None, 0)

    def read(self, kind: str) -> str:
        path = self.folder / f"{self.index}.{kind}"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def rank(self) -> tuple[int, float]:
        """How near to the cause its failure is: killed, raised by its own, ended by others."""
        raised = self.raised
        if raised is not None:
            return 1, raised["time"]
        return (2 if self.is_left else 0), 0.0

    @property
    def raised(self) -> dict[str, Any] | None:
        """When it raised, and what."""
        return json.loads(self.read("failure") or "null")

    @property
    def is_left(self) -> bool:
        """Whether it runs, or jax.distributed aborted it because of another one."""
        return self.code is None or (self.code == -6 and self.raised is None)

    @property
    def told(self) -> str:
        """Its end in a few lines."""
        if self.is_left:
            return f"process {self.index} had not ended: it stalls, or waits for another"
        raised = self.raised
        if raised is not None:
            return f"process {self.index} raised:\n{raised['text']}"
        code = self.popen.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"process {self.index} ended with {how}; its last lines:\n{self.read('log')[-800:]}"


def launch(
    target: str,
    processes: int,
    *,
    arguments: Sequence[str] = (),
    timeout: float = 120,
    stall: int = 20,
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """Calls a function in so many processes of this machine, one CPU device each.

    Each process has the others' devices in `jax.devices`; the function may put them into a mesh.

    Args:
      target: "module:function", which can be imported from the current folder. It is called with
        ``arguments`` and returns what JSON can say.
      processes: how many.
      arguments: strings for the function.
      timeout: seconds until the whole run is ended.
      stall: seconds that a collective waits for the others, an int.
      environment: variables of the processes beside those of this one.

    Returns:
      What the function returned in each process.

    Raises:
      TypeError, ValueError: if an argument is none such.
      LaunchError: if a process died, stalls or raised; names it, with the traceback or the last
        lines of its output. No process is left.

    Example:
      >>> import parscan_bp as pb
      >>> try:
      ...     pb.parallel.launch("math:factorial", 2, arguments=["x"])
      ... except pb.parallel.LaunchError as error:
      ...     print("TypeError: 'str' object cannot be interpreted as an integer" in str(error))
      True
    """
    if not isinstance(target, str) or target.count(":") != 1:
        raise ValueError(f"target: got {described(target)}; 'module:function' is wanted")
    count = as_int("processes", processes)
    check_number("timeout", timeout)
    if isinstance(arguments, str) or not all(isinstance(a, str) for a in arguments):
        raise TypeError(f"arguments: got {described(arguments)}; a sequence of strings is wanted")
    variables = dict(environment or {})
    if not all(isinstance(a, str) for pair in variables.items() for a in pair):
        raise TypeError(f"environment: got {variables}; strings by strings are wanted")
    with tempfile.TemporaryDirectory(prefix="parscan_bp_") as folder:
        place = pathlib.Path(folder)
        base = _environment(count, as_int("stall", stall), variables)
        started = [_start(k, place, target, arguments, base) for k in range(count)]
        try:
            _wait(started, timeout)
            return [json.loads(process.read("result")) for process in started]
        finally:
            for process in started:
                if process.code is None:
                    process.popen.kill()
                process.popen.wait()


def _environment(count: int, stall: int, more: dict[str, str]) -> dict[str, str]:
    """Without what would make JAX take this run for one of a cluster's, or go through a proxy."""
    foreign = ("JAX_", "XLA_", "SLURM_", "OMPI_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign) and not name.lower().endswith("_proxy")
    }
    path = [os.getcwd(), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "XLA_FLAGS": f"--xla_cpu_collective_timeout_seconds={stall}",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path),
        "PARSCAN_BP_COORDINATOR": f"127.0.0.1:{_free_port()}",
        "PARSCAN_BP_PROCESSES": str(count),
        **more,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _start(index: int, folder: pathlib.Path, target, arguments, base) -> _Process:
    own = {"PARSCAN_BP_PROCESS": str(index), "PARSCAN_BP_FOLDER": str(folder)}
    command = [sys.executable, "-m", "parscan_bp.parallel.worker", target, *arguments]
    with (folder / f"{index}.log").open("wb") as log:
        how: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
        popen = subprocess.Popen(command, env={**base, **own}, start_new_session=True, **how)
    return _Process(index, popen, folder)


def _wait(processes: Sequence[_Process], timeout: float) -> None:
    """Returns when all have ended well; else raises, `GRACE` seconds after the first failure."""
    start, first = time.monotonic(), None
    for now in _ticks(lambda: any(process.code is None for process in processes)):
        if first is None and any(process.failed for process in processes):
            first = now
        if first is not None and now - first > GRACE:
            break
        if now - start > timeout:
            late = "; ".join(process.told for process in processes if process.code is None)
            raise LaunchError(f"the run took longer than {timeout} s: {late}")
    failed = sorted((process for process in processes if process.failed), key=lambda p: p.rank)
    if failed:
        others = [process for process in processes if process.is_left and process is not failed[0]]
        raise LaunchError("; ".join(process.told for process in (failed[0], *others)))


def _ticks(going: Callable[[], bool]) -> Iterator[float]:
    while going():
        yield time.monotonic()
        time.sleep(0.05)
