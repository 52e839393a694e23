"""The text of a compiled kernel as instructions."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of PTX: ``@guard operation operands``.

    Attributes:
      text: as it was written.
      operation: such as ``st.shared.b32``.
      operands: names, constants, ``[addresses]`` and ``{lists}``.
      guard: (predicate, what it has to be), or ``None``.
      number: its place in the program.
    """

    text: str
    operation: str
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None
    number: int

    @property
    def parts(self) -> list[str]:
        return self.operation.split(".")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """Of the kernel: ``size`` bytes of descriptors of copies, or 0 for a pointer."""

    name: str
    size: int


@dataclasses.dataclass(frozen=True)
class Program:
    """The only kernel of a text.

    Attributes:
      parameters: in their order.
      code: in its order.
      labels: places in ``code``.
    """

    parameters: tuple[Parameter, ...]
    code: tuple[Instruction, ...]
    labels: dict[str, int]


PARAMETER = re.compile(r"\.param[^,)]*?\s([\w$]+_param_\d+)(?:\[(\d+)\])?")
STATEMENT = re.compile(
    r"\s*(?:"
    r"(?P<debug>\.(?:loc|file|section)[^\n]*)"
    r"|(?P<label>\$?[A-Za-z_]\w*):(?!:)"
    r"|(?P<begin>\{)(?!\s*%)"
    r"|(?P<end>\})"
    r"|(?P<line>[^;{}]*(?:\{[^{}]*\}[^;{}]*)*);"
    r")"
)
GUARDED = re.compile(r"@(!?)(%?\w+)\s+(.*)")


def parse(text: str) -> Program:
    """The program; names inside of braces, of labels and predicates, are made unique."""
    head, body = text[text.index(".entry") :].split("{", 1)
    body = re.sub(r"//[^\n]*", "", body).replace("\t", " ")
    parameters = tuple(Parameter(name, int(size or 0)) for name, size in PARAMETER.findall(head))
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    scopes, opened, at = ["0"], 0, 0
    while scopes:
        found = STATEMENT.match(body, at)
        assert found, body[at : at + 80]
        at = found.end()
        if found["label"]:
            labels[_own(found["label"], scopes[-1])] = len(code)
        elif found["begin"]:
            opened += 1
            scopes.append(str(opened))
        elif found["end"]:
            scopes.pop()
        elif found["line"] and not found["line"].strip().startswith("."):
            code.append(_instruction(" ".join(found["line"].split()), scopes[-1], len(code)))
    return Program(parameters, tuple(code), labels)


def _instruction(text: str, scope: str, number: int) -> Instruction:
    guarded = GUARDED.match(text)
    guard = (_own(guarded[2], scope), not guarded[1]) if guarded else None
    operation, _, rest = (guarded[3] if guarded else text).partition(" ")
    operands = split(rest)
    if operation.startswith(("bra", "mbarrier.try_wait")):
        operands[0] = _own(operands[0], scope)
    return Instruction(text, operation, tuple(operands), guard, number)


def _own(name: str, scope: str) -> str:
    """A name that other braces may have, too: neither a register nor a label of the compiler."""
    return name if name[0] in "%$" else f"{scope}:{name}"


def split(operands: str) -> list[str]:
    """By commas outside of brackets."""
    parts, depth, now = [], 0, ""
    for character in operands:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            parts.append(now.strip())
            now = ""
        else:
            now += character
    return [*parts, now.strip()] if now.strip() else parts
