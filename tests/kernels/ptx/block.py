"""Executes a kernel's instructions with the 128 threads of a block, in step."""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Collection, Sequence

import numpy as np

from tests.kernels.ptx import arithmetic
from tests.kernels.ptx.copies import Copies, Descriptor
from tests.kernels.ptx.memory import START, THREADS, SharedMemory
from tests.kernels.ptx.program import Instruction, Program, split

THREAD = np.arange(THREADS)
LANE = THREAD % 32
PARAMETERS = 1 << 50
"""Where the address of the first parameter lies."""
ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]")
DESCRIBED = re.compile(r"\[\s*(%\w+)\s*,\s*\{(.*?)\}\s*\]")
"""A descriptor, and where its box begins, the last axis first."""
MOST = 10**7
"""Instructions, after which a kernel counts as one that never ends."""


class Block:
    """One block of threads; its threads have to branch alike, which is checked.

    Args:
      program: the kernel.
      pointers: the arrays that are read and written by address, in the order of the parameters.
      descriptors: of the arrays that are copied.
      index: of the block in the grid, (x, y, z).
      without: numbers of instructions that are left out.

    Attributes:
      shared: its memory, which knows of races.
      executed: how often each number of an instruction was.
    """

    def __init__(
        self,
        program: Program,
        pointers: Sequence[np.ndarray],
        descriptors: Sequence[Descriptor],
        index: tuple[int, int, int],
        without: Collection[int] = (),
    ) -> None:
        self.program, self.index, self.without = program, index, without
        self.shared = SharedMemory()
        self.copies = Copies(self.shared, pointers, descriptors)
        self.registers: dict[str, np.ndarray] = {}
        self.executed: collections.Counter[int] = collections.Counter()

    def run(self) -> None:
        """Until the kernel returns."""
        at = 0
        while self.shared.now < MOST:
            instruction = self.program.code[at]
            mask = self._mask(instruction)
            at += 1
            self.shared.now += 1
            self.shared.instruction = instruction.text
            if instruction.number in self.without:
                if "try_wait" in instruction.operation:
                    self.registers[instruction.operands[0]] = np.ones(THREADS, bool)
                continue
            self.executed[instruction.number] += 1
            if instruction.operation == "ret":
                return self.shared.end()
            if instruction.operation.startswith("bra"):
                assert mask.all() or not mask.any(), f"threads part: {instruction.text}"
                at = self.program.labels[instruction.operands[0]] if mask.any() else at
            elif mask.any():
                self._execute(instruction, mask)
        raise AssertionError(f"{MOST} instructions and no end")

    def _mask(self, instruction: Instruction) -> np.ndarray:
        if instruction.guard is None:
            return np.ones(THREADS, bool)
        predicate, wanted = instruction.guard
        return self.registers[predicate] == wanted

    def _execute(self, instruction: Instruction, mask: np.ndarray) -> None:
        name = instruction.parts[0]
        if name in arithmetic.OPERATIONS:
            self._compute(instruction, mask)
        else:
            EXECUTE[name](self, instruction, mask)

    # Registers

    def value(self, operand: str, kind: str) -> np.ndarray:
        """An operand's numbers, (128,)."""
        if operand.startswith("!"):
            return ~self.value(operand[1:], "pred")
        if operand.startswith("%tid."):
            return (THREAD if operand.endswith("x") else 0 * THREAD).astype(np.uint32)
        if operand.startswith("%ctaid."):
            return np.full(THREADS, self.index["xyz".index(operand[-1])], np.uint32)
        if operand.startswith("%"):
            return arithmetic.typed(self.registers[operand], kind)
        return arithmetic.typed(self._constant(operand, kind), kind)

    @functools.lru_cache(maxsize=4096)  # noqa: B019
    def _constant(self, operand: str, kind: str) -> np.ndarray:
        size = 8 * np.dtype(arithmetic.TYPES[kind]).itemsize
        if operand.startswith(("0f", "0d")):
            number = int(operand[2:], 16)
        elif re.fullmatch(r"-?(0x)?[0-9a-fA-F]+", operand):
            number = int(operand, 0) % (1 << size)
        elif "shmem" in operand:
            number = START
        else:
            names = [parameter.name for parameter in self.program.parameters]
            number = PARAMETERS + (names.index(operand) << 32)
        return np.full(THREADS, number, f"u{size // 8}")

    def put(self, register: str, numbers: np.ndarray, mask: np.ndarray) -> None:
        bits = arithmetic.bits(numbers)
        if register != "_":
            before = self.registers.get(register, bits)
            self.registers[register] = bits.copy() if mask.all() else np.where(mask, bits, before)

    def address(self, operand: str) -> np.ndarray:
        found = ADDRESS.fullmatch(operand)
        assert found, operand
        return self.value(found[1], "b64").astype(np.int64) + int(found[2] or 0)

    # Instructions without memory

    def _compute(self, instruction: Instruction, mask: np.ndarray) -> None:
        parts = instruction.parts
        target, *operands = instruction.operands
        kinds = [parts[-1]] * len(operands)
        if parts[0] in ("shl", "shr"):
            kinds[1] = "b32"
        elif parts[0] == "bfe":
            kinds[1:] = ["b32", "b32"]
        elif parts[0] == "mad" and "wide" in parts:
            kinds[2] = "b64"
        elif parts[0] == "selp" or (parts[0] == "setp" and len(operands) == 3):
            kinds[2] = "pred"
        values = [self.value(*pair) for pair in zip(operands, kinds, strict=True)]
        self.put(target, arithmetic.compute(parts, values), mask)

    def _move(self, instruction: Instruction, mask: np.ndarray) -> None:
        kind, (target, source) = instruction.parts[-1], instruction.operands
        half = {"b64": "b32", "b32": "b16"}.get(kind, kind)
        if target.startswith("{"):
            dtype = arithmetic.TYPES[half]
            both = self.value(source, kind).reshape(THREADS, 1).view(dtype)
            for k, register in enumerate(split(target[1:-1])):
                self.put(register, np.ascontiguousarray(both[:, k]), mask)
        elif source.startswith("{"):
            both = np.stack([self.value(part, half) for part in split(source[1:-1])], axis=1)
            self.put(target, both.view(arithmetic.TYPES[kind])[:, 0], mask)
        else:
            self.put(target, self.value(source, kind), mask)

    def _elect(self, instruction: Instruction, mask: np.ndarray) -> None:
        """One thread of each warp."""
        self.put(instruction.operands[0].split("|")[1], LANE == 0, mask)

    def _shuffle(self, instruction: Instruction, mask: np.ndarray) -> None:
        target, source, by, *_ = instruction.operands
        from_lane = {"bfly": np.bitwise_xor, "idx": lambda _, k: k % 32}[instruction.parts[2]]
        sources = THREAD - LANE + from_lane(LANE, self.value(by, "b32").astype(np.int64))
        self.put(target.split("|")[0], self.value(source, "b32")[sources], mask)

    # Order

    def _barrier(self, instruction: Instruction, mask: np.ndarray) -> None:
        assert mask.all()
        if "warp" in instruction.parts:
            assert instruction.operands == ("-1",), instruction.text  # all of its threads
            self.shared.barrier_of_warps()
        else:
            self.shared.barrier()

    def _fence(self, instruction: Instruction, mask: np.ndarray) -> None:
        if "proxy" in instruction.operation:
            self.shared.fence()

    def _mbarrier(self, instruction: Instruction, mask: np.ndarray) -> None:
        operands, does = instruction.operands, instruction.parts[1]
        at = 0 if does == "init" else 1
        (mbarrier,) = set(self.address(operands[at])[mask].tolist())
        if does == "init":
            self.copies.create(mbarrier, int(self.value(operands[1], "b32")[0]))
        elif does == "arrive":
            sizes = self.value(operands[2], "b32")[mask].astype(int)
            self.copies.arrive(mbarrier, int(mask.sum()), int(sizes.sum()))
        else:
            assert does == "try_wait"
            (parity,) = set(self.value(operands[2], "b32").tolist())
            self.copies.wait(mbarrier, parity)
            self.registers[operands[0]] = np.ones(THREADS, bool)

    def _copy(self, instruction: Instruction, mask: np.ndarray) -> None:
        operation, operands = instruction.operation, instruction.operands
        if "commit_group" in operation:
            self.copies.end_group()
        elif "wait_group" in operation:
            self.copies.wait_groups(int(operands[0]))
        else:
            (thread,) = np.flatnonzero(mask)
            assert thread == self.shared.issuer, instruction.text
            outwards = "global.shared" in operation
            if "tensor" in operation:
                self._copy_box(operands, thread, outwards)
            else:
                assert outwards, instruction.text
                memory, shared = (int(self.address(a)[thread]) for a in operands[:2])
                self.copies.run_out(memory, shared, int(self.value(operands[2], "b32")[thread]))

    def _copy_box(self, operands: Sequence[str], thread: int, outwards: bool) -> None:
        described, at = operands[:2] if outwards else operands[1::-1]
        found = DESCRIBED.fullmatch(described)
        assert found, described
        number = (int(self.value(found[1], "b64")[thread]) & 0xFFFFFFFF) // 128
        first = [int(self.value(start, "s32")[thread]) for start in split(found[2])][::-1]
        shared = int(self.address(at)[thread])
        if outwards:
            self.copies.box_out(number, first, shared)
        else:
            mbarrier = int(self.address(operands[2])[thread])
            self.copies.box_in(number, first, shared, mbarrier)

    # Memory

    def _load(self, instruction: Instruction, mask: np.ndarray) -> None:
        target, source = instruction.operands
        if instruction.parts[1].startswith("param"):
            names = [p.name for p in self.program.parameters if not p.size]
            (name, offset) = ADDRESS.fullmatch(source).groups()
            assert offset is None
            self.put(target, np.full(THREADS, self.copies.address_of(names.index(name))), mask)
            return
        registers = split(target[1:-1]) if target.startswith("{") else [target]
        dtype = np.dtype(arithmetic.TYPES[instruction.parts[-1]])
        address = np.where(mask, self.address(source), self.address(source)[mask][0])
        self._aligned(address, dtype.itemsize * len(registers))
        raw = self._bytes(address, dtype.itemsize * len(registers), mask)
        for k, column in enumerate(raw.view(dtype).T):
            self.put(registers[k], np.ascontiguousarray(column), mask)

    def _bytes(self, address: np.ndarray, count: int, mask: np.ndarray) -> np.ndarray:
        """(128, count)"""
        if not _is_shared(address):
            return self.copies.read(address, count)
        first, words = (address - START) // 4, -(-count // 4)
        at = first[:, None] + np.arange(words)
        self.shared.read(np.repeat(THREAD[mask], words), at[mask].ravel())
        raw = self.shared.words[at].view(np.uint8)
        if count >= 4:
            return raw
        return np.take_along_axis(raw, (address % 4)[:, None] + np.arange(count), axis=1)

    def _store(self, instruction: Instruction, mask: np.ndarray) -> None:
        target, source = instruction.operands
        kind = instruction.parts[-1]
        values = [self.value(r, kind) for r in (split(source[1:-1]) if "{" in source else [source])]
        address = self.address(target)[mask]
        size = values[0].itemsize
        assert size >= 4, f"two threads may write one word: {instruction.text}"
        self._aligned(address, size * len(values))
        words = np.ascontiguousarray(np.stack(values, axis=1)[mask]).view(np.uint32)
        if _is_shared(address):
            at = (address - START)[:, None] // 4 + np.arange(words.shape[1])
            threads = np.repeat(THREAD[mask], words.shape[1])
            self.shared.write(threads, at.ravel(), words.ravel())
        else:
            self.copies.write(address, words)

    def _load_matrix(self, instruction: Instruction, mask: np.ndarray) -> None:
        target, source = instruction.operands
        for register, at in zip(split(target[1:-1]), self._rows(source, target), strict=True):
            self.put(register, self.shared.read(THREAD, at), mask)

    def _store_matrix(self, instruction: Instruction, mask: np.ndarray) -> None:
        target, source = instruction.operands
        for register, at in zip(split(source[1:-1]), self._rows(target, source), strict=True):
            self.shared.write(THREAD, at, self.value(register, "b32"))

    def _rows(self, source: str, registers: str) -> list[np.ndarray]:
        """Words of 8 x 8 matrices of 16 bits: each thread's of every one.

        Threads 8 k to 8 k + 7 of a warp name the rows of matrix k; four of them share a row.
        """
        address = self.address(source)
        out = []
        for k in range(len(split(registers[1:-1]))):
            rows = address[THREAD - LANE + 8 * k + LANE // 4]
            self._aligned(rows, 16)
            out.append((rows - START) // 4 + LANE % 4)
        return out

    def _aligned(self, address: np.ndarray, size: int) -> None:
        assert (address % size == 0).all(), f"not a multiple of {size}: {self.shared.instruction}"


def _is_shared(address: np.ndarray) -> bool:
    return bool((address < 1 << 30).all())


def _nothing(block: Block, instruction: Instruction, mask: np.ndarray) -> None:
    """A hint."""


EXECUTE: dict[str, Callable[[Block, Instruction, np.ndarray], None]] = {
    "mov": Block._move,
    "cvta": Block._move,
    "elect": Block._elect,
    "shfl": Block._shuffle,
    "bar": Block._barrier,
    "fence": Block._fence,
    "mbarrier": Block._mbarrier,
    "cp": Block._copy,
    "prefetch": _nothing,
    "ld": Block._load,
    "st": Block._store,
    "ldmatrix": Block._load_matrix,
    "stmatrix": Block._store_matrix,
}
