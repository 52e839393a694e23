"""In which order nodes are worked on, and which values are live between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parscan_bp.graph.node import NamedNode


def check_no_cycle(named: Mapping[str, NamedNode]) -> None:
    """Raises `ValueError`, naming its nodes, if a node reads itself by way of others."""
    done: set[str] = set()
    for start in named:
        path = [start]  # each reads the next
        left = {start: list(named[start].reads)}
        while path:
            if not left[path[-1]]:
                done.add(path.pop())
                continue
            read = left[path[-1]].pop(0)
            if read in path:
                cycle = [*path[path.index(read) :], read]
                raise ValueError(
                    f"nodes: a cycle, {' reads '.join(map(repr, cycle))}; an order in which each "
                    "node comes after what it reads is wanted"
                )
            if read in named and read not in done:
                path.append(read)
                left[read] = list(named[read].reads)


def needed_for(named: Mapping[str, NamedNode], outputs: Sequence[str]) -> dict[str, NamedNode]:
    """The nodes that outputs depend on, each after those that it reads; else as they were given."""
    needed, left = set(outputs), [name for name in outputs if name in named]
    while left:
        new = set(named[left.pop()].reads) - needed
        needed |= new
        left += [name for name in new if name in named]
    remaining = [node for node in named.values() if node.name in needed]
    found: dict[str, NamedNode] = {}
    while remaining:
        ready = next(v for v in remaining if all(r in found or r not in named for r in v.reads))
        found[ready.name] = ready
        remaining.remove(ready)
    return found


def in_small_live_sets(
    named: Mapping[str, NamedNode],
    inputs: Sequence[str],
    outputs: Sequence[str],
    nbytes: Mapping[str, int],
) -> list[NamedNode]:
    """An order of few bytes live: of the nodes that are ready, the one after which least is.

    Of several the first is taken, in the order given. A constant is made just before it is read.
    Where all live sets together are smaller in the order given, that is kept.

    Args:
      named: nodes, each after those that it reads.
      inputs: names of the inputs.
      outputs: names that are live at the end.
      nbytes: bytes of each value.
    """
    left, order = [v for v in named.values() if v.reads], []
    made = {*inputs, *(name for name, node in named.items() if not node.reads)}
    # Who still reads a value; an output is read at the end, by no node.
    readers: dict[str, set[str | None]] = {
        name: {v.name for v in left if name in v.reads} for name in nbytes
    }
    for name in outputs:
        readers[name].add(None)

    def grows(node: NamedNode) -> int:
        freed = {read for read in node.reads if readers[read] == {node.name}}
        return nbytes[node.name] - sum(nbytes[read] for read in freed)

    while left:
        chosen = min((v for v in left if made.issuperset(v.reads)), key=grows)
        order.append(chosen)
        left.remove(chosen)
        made.add(chosen.name)
        for read in chosen.reads:
            readers[read].discard(chosen.name)
    candidates = [_with_constants(kept, named) for kept in (list(named.values()), order)]
    total = lambda order: sum(  # noqa: E731
        nbytes[name] for live in live_sets(order, inputs, outputs) for name in live
    )
    return min(candidates, key=total)


def _with_constants(order: Sequence[NamedNode], named: Mapping[str, NamedNode]) -> list[NamedNode]:
    """An order with each constant just before the first node that reads it."""
    found: dict[str, NamedNode] = {}
    for node in order:
        if node.reads:
            for name in node.reads:
                if name in named and not named[name].reads:
                    found.setdefault(name, named[name])
            found[node.name] = node
    # A constant that no node reads is an output.
    return list({**found, **{v.name: v for v in named.values()}}.values())


def live_sets(
    order: Sequence[NamedNode], inputs: Sequence[str], outputs: Sequence[str]
) -> list[tuple[str, ...]]:
    """The names that are live before the first node and after each: read later, or outputs.

    Example:
      >>> import jax
      >>> from parscan_bp.graph.node import as_named_nodes
      >>> from parscan_bp.graph.order import live_sets
      >>> from parscan_bp.layers import Add, Linear
      >>> nodes = {"h": (Linear(3), "x"), "y": (Add(), "x", "h"), "z": (jax.nn.relu, "y")}
      >>> live_sets(list(as_named_nodes(nodes, {"x": None}).values()), ["x"], ["z"])
      [('x',), ('x', 'h'), ('y',), ('z',)]
    """
    last = {read: k for k, node in enumerate(order) for read in node.reads}
    last |= dict.fromkeys(outputs, len(order))
    live = [name for name in inputs if name in last]
    found = [tuple(live)]
    for k, node in enumerate(order):
        live = [*(name for name in live if last[name] > k), node.name]
        found.append(tuple(live))
    return found


def longest_path(order: Sequence[NamedNode]) -> int:
    """Nodes on the longest path: the steps of back-propagation with a worker for each node."""
    depth: dict[str, int] = {}
    for node in order:
        before = max((depth.get(read, 0) for read in node.reads), default=0)
        depth[node.name] = before + bool(node.reads)
    return max(depth.values(), default=0)
