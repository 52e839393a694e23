"""Programs that need devices of their own: one process for all that need the same."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from tests import compiling
from tests.optimisation import LITTLE

ROOT = pathlib.Path(__file__).parents[1]
AT_ONCE = 3
"""Processes that wait for a program; each holds some hundred MB."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a process has for good."""

    devices: int
    x64: bool
    optimised: bool

    def environment(self) -> dict[str, str]:
        xla = f"--xla_force_host_platform_device_count={self.devices}"
        xla = xla if self.optimised else f"{xla} {LITTLE}"
        own = {"XLA_FLAGS": xla, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": str(int(self.x64))}
        return {**os.environ, **own}


class Child:
    """A process that is asked to run programs; see `tests.child`."""

    def __init__(self, setting: Setting):
        self._printed = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.child"],
            env=setting.environment(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            text=True,
        )

    def run(self, program: str, cached: bool) -> str:
        """What went wrong, or nothing."""
        begun = self._printed.seek(0, os.SEEK_END)
        try:
            self._process.stdin.write(json.dumps({"program": program, "cached": cached}) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline() or "null")
        except BrokenPipeError:
            answer = None
        if answer is None:
            ended = f"the process ended with {self._process.wait()}\n"
            return ended + self._told(begun)
        compiling.compiled.update(answer["compiled"])
        return answer["failed"] and answer["failed"] + self._told(begun)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:  # a thread of a program goes on
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._printed.close()

    def _told(self, begun: int) -> str:
        self._printed.seek(begun)
        return self._printed.read().decode(errors="replace")[-2000:]


class Children:
    """At most `AT_ONCE` of them, those that were asked last."""

    def __init__(self) -> None:
        self._living: collections.OrderedDict[Setting, Child] = collections.OrderedDict()

    def run(self, program: str, setting: Setting, cached: bool) -> str:
        child = self._living.pop(setting, None) or Child(setting)
        failed = child.run(program, cached)
        if child.alive:
            self._living[setting] = child
        else:
            child.close()
        while len(self._living) > AT_ONCE:
            self._living.popitem(last=False)[1].close()
        return failed

    def close(self) -> None:
        while self._living:
            self._living.popitem()[1].close()


def run_alone(program: str, setting: Setting, cached: bool) -> str:
    """What went wrong in a process that runs nothing else, or nothing."""
    env = setting.environment() | ({} if cached else {"JAX_ENABLE_COMPILATION_CACHE": "0"})
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    return done.returncode and f"ended with {done.returncode}\n{done.stderr[-2000:]}{done.stdout}"


def call_of(function: Callable[..., None], arguments: tuple[Any, ...]) -> str:
    """The program that calls a function of a test file with arguments that Python can print."""
    folder = str(pathlib.Path(function.__code__.co_filename).parent)
    return (
        f"import sys\nif {folder!r} not in sys.path:\n    sys.path.insert(0, {folder!r})\n"
        f"from {function.__module__} import {function.__name__} as check\ncheck(*{arguments!r})\n"
    )
