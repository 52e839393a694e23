"""Classes of carry axes that must share an index: union-find with a death mark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class AxisClasses:
    """Labels 0, 1, ... for axes, merged into classes of one size that live or are dead.

    `killers` lists the names given to `kill` and `meet` where a living class died.
    """

    def __init__(self) -> None:
        self.killers: dict[str, None] = {}
        self._parent: list[int] = []
        self._size: list[int] = []
        self._dead: list[bool] = []

    def new(self, size: int) -> int:
        """A new class of one axis."""
        self._parent.append(len(self._parent))
        self._size.append(size)
        self._dead.append(False)
        return len(self._parent) - 1

    def find(self, label: int) -> int:
        """The class of a label."""
        while self._parent[label] != label:
            self._parent[label] = self._parent[self._parent[label]]
            label = self._parent[label]
        return label

    def kill(self, labels: Iterable[int | None], name: str) -> None:
        """Marks the classes of the labels dead."""
        for label in labels:
            if label is not None and not self._dead[self.find(label)]:
                self._dead[self.find(label)] = True
                self.killers[name] = None

    def meet(self, labels: Iterable[int | None], name: str) -> int | None:
        """The label of an axis on which operands with these labels meet elementwise.

        They become one class; if one has no label there, the others lose theirs.
        """
        labels = list(labels)
        known = [label for label in labels if label is not None]
        if len(known) < len(labels):
            self.kill(known, name)
            return None
        first = self.find(known[0])
        for label in known[1:]:
            other = self.find(label)
            assert self._size[other] == self._size[first], "axes of different sizes met"
            self._parent[other] = first
            self._dead[first] |= self._dead[other]
        return known[0]

    def kill_repeated(self, leaf: Sequence[int], name: str) -> None:
        """Kills the classes with two axes of one leaf: no index can be shared by both."""
        roots = [self.find(label) for label in leaf]
        self.kill([root for root in roots if roots.count(root) > 1], name)

    def covers(self, leaf: Sequence[int]) -> bool:
        """Is every axis of this leaf alive, those of size one apart?"""
        return not any(self._dead[self.find(label)] for label in leaf if self._size[label] != 1)

    def batch_axes(
        self, leaves: Sequence[tuple[int, ...]], depends: Sequence[Sequence[bool]]
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """The axes of each leaf that all leaves share, and their sizes.

        Leaves with no dependence between them never meet, so that nothing unites their axes; then
        any two living classes of equal size may be paired, as the Jacobian between them is zero.

        Args:
          leaves: the labels of each leaf's axes.
          depends: the dependence between the leaves, in either direction.

        Returns:
          For each leaf as many axes as there are batch axes, and the sizes of these.
        """
        columns: list[list[int]] = [[] for _ in leaves]
        sizes: list[int] = []
        groups = _groups(depends)
        pools = [self._shared([leaves[i] for i in group]) for group in groups]
        for wanted in pools[0] if pools else []:
            size = self._size[leaves[0][wanted[0]]]
            chosen = [wanted]
            for group, pool in zip(groups[1:], pools[1:], strict=True):
                fitting = [axes for axes in pool if self._size[leaves[group[0]][axes[0]]] == size]
                # The same place in the leaf is the likelier partner.
                fitting.sort(key=lambda axes: axes[0] != wanted[0])
                chosen += fitting[:1]
            if len(chosen) < len(groups):
                continue
            sizes.append(size)
            for pool, axes in zip(pools[1:], chosen[1:], strict=True):
                pool.remove(axes)
            for group, axes in zip(groups, chosen, strict=True):
                for leaf, axis in zip(group, axes, strict=True):
                    columns[leaf].append(axis)
        return tuple(map(tuple, columns)), tuple(sizes)

    def _shared(self, leaves: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The living classes with exactly one axis in each of the leaves, as these axes."""
        found = []
        for root in dict.fromkeys(self.find(label) for label in leaves[0]):
            axes = [[a for a, l in enumerate(leaf) if self.find(l) == root] for leaf in leaves]
            if not self._dead[root] and all(len(a) == 1 for a in axes):
                found.append(tuple(a[0] for a in axes))
        return found


def _groups(depends: Sequence[Sequence[bool]]) -> list[list[int]]:
    """The leaves in groups with no dependence between them, in order of their first leaf."""
    n = len(depends)
    group = list(range(n))
    for o in range(n):
        for i in range(n):
            if depends[o][i] and group[o] != group[i]:
                old, new = sorted((group[o], group[i]))[::-1]
                group = [new if g == old else g for g in group]
    return [[i for i in range(n) if group[i] == g] for g in sorted(set(group))]
