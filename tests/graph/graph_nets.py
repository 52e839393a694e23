"""Three networks that are graphs, of any width: their nodes, and the same nets in plain JAX."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import parscan_bp as pb
from parscan_bp.layers import (
    Add,
    AveragePool,
    BatchNorm,
    Concatenate,
    Conv,
    ConvTranspose,
    Flatten,
    Linear,
    MaxPool,
    as_layer,
)
from parscan_bp.planner import FLOPS


@dataclasses.dataclass
class Net:
    """Nodes that are added one after the other, each reading the last one if nothing is said."""

    nodes: dict[str, Any] = dataclasses.field(default_factory=dict)
    last: str = "x"

    def add(self, layer: Any, *reads: str) -> str:
        kind = getattr(layer, "__name__", type(layer).__name__)
        name = f"{len(self.nodes)}_{kind}"
        self.nodes[name] = pb.Node(layer, *(reads or (self.last,)))
        self.last = name
        return name


def resnet18(width: int = 64, side: int = 32, classes: int = 10) -> dict[str, Any]:
    """He et al., 2016, table 1, with a stem for small images, of ``side`` times as many pixels."""
    net = Net()
    for layer in (Conv(width, (3, 3), bias=False), BatchNorm(), jax.nn.relu):
        net.add(layer)
    for stage in range(4):
        for block in range(2):
            channels, stride = width * 2**stage, 2 if stage and not block else 1
            skip = net.last
            net.add(Conv(channels, (3, 3), stride, bias=False), skip)
            for layer in (BatchNorm(), jax.nn.relu, Conv(channels, (3, 3), bias=False)):
                net.add(layer)
            branch = net.add(BatchNorm())
            if stride > 1:
                net.add(Conv(channels, (1, 1), stride, bias=False), skip)
                skip = net.add(BatchNorm())
            net.add(Add(), branch, skip)
            net.add(jax.nn.relu)
    for layer in (AveragePool((side // 8,) * 2), Flatten(), Linear(classes)):
        net.add(layer)
    return net.nodes


def densenet_block(growth: int = 12, depth: int = 6) -> dict[str, Any]:
    """A block of DenseNet-BC with the transition after it: Huang et al., 2017, section 3."""
    net = Net()
    for _ in range(depth):
        before = net.last
        net.add(BatchNorm(), before)
        for layer in (
            *(jax.nn.relu, Conv(4 * growth, (1, 1), bias=False)),
            *(BatchNorm(), jax.nn.relu, Conv(growth, (3, 3), bias=False)),
        ):
            net.add(layer)
        net.add(Concatenate(), before, net.last)
    for layer in (BatchNorm(), jax.nn.relu, Conv(3 * growth, (1, 1)), AveragePool((2, 2))):
        net.add(layer)
    return net.nodes


def unet(width: int = 16, levels: int = 2, classes: int = 2) -> dict[str, Any]:
    """Ronneberger et al., 2015, figure 1, with padded convolutions."""
    net, skips = Net(), []
    for level in range(levels + 1):
        for _ in range(2):
            net.add(Conv(width * 2**level, (3, 3)))
            net.add(jax.nn.relu)
        if level < levels:
            skips.append(net.last)
            net.add(MaxPool((2, 2)))
    for level in reversed(range(levels)):
        up = net.add(ConvTranspose(width * 2**level, (2, 2), 2))
        net.add(Concatenate(), skips[level], up)
        for _ in range(2):
            net.add(Conv(width * 2**level, (3, 3)))
            net.add(jax.nn.relu)
    net.add(Conv(classes, (1, 1)))
    return net.nodes


@dataclasses.dataclass(frozen=True)
class Size:
    """A net at a size: its nodes, and the shape of one image."""

    nodes: Mapping[str, Any]
    image: tuple[int, ...]

    @property
    def output(self) -> str:
        return list(self.nodes)[-1]

    def draw(self, batch: int, seed: int = 0) -> tuple[Any, dict[str, jax.Array]]:
        """Parameters and inputs, by NumPy: nothing is compiled for them."""
        rng = np.random.default_rng(seed)
        shapes = jax.eval_shape(
            lambda key: pb.init_graph(self.nodes, key, {"x": self.image}), jax.random.key(0)
        )

        def numbers(path, a):
            if len(a.shape) > 1:
                spread = (2 / math.prod(a.shape[:-1])) ** 0.5
                return jnp.asarray(spread * rng.normal(size=a.shape), a.dtype)
            middle = 1.0 if path[-1].key in ("scale", "var") else 0.0
            return jnp.asarray(middle + 0.1 * rng.random(a.shape), a.dtype)

        params = jax.tree_util.tree_map_with_path(numbers, shapes)
        return params, {"x": jnp.asarray(rng.normal(size=(batch, *self.image)), float)}

    def plain(self, params: Any, inputs: Mapping[str, jax.Array]) -> jax.Array:
        """The output by JAX's own operations, node by node."""
        values = dict(inputs)
        for name, node in self.nodes.items():
            run = _plain(node.layer)
            values[name] = run(params.get(name), *(values[read] for read in node.inputs))
        return values[self.output]

    def graph(self, params: Any, inputs: Mapping[str, jax.Array], **how: Any) -> jax.Array:
        return pb.graph(self.nodes, params, inputs, outputs=self.output, **how)


def _plain(layer: Any) -> Callable[..., jax.Array]:
    if isinstance(layer, Add):
        return lambda _, *xs: sum(xs[1:], xs[0])
    if isinstance(layer, Concatenate):
        return lambda _, *xs: jnp.concatenate(xs, -1)
    return as_layer(layer).apply


FULL = {
    "ResNet-18": Size(resnet18(), (32, 32, 3)),
    "DenseNet-BC block": Size(densenet_block(), (32, 32, 24)),
    "U-Net": Size(unet(), (64, 64, 3)),
}
SMALL = {
    "ResNet-18": Size(resnet18(2, 8, 3), (8, 8, 1)),
    "DenseNet-BC block": Size(densenet_block(1, 3), (4, 4, 2)),
    "U-Net": Size(unet(2, 2), (4, 4, 1)),
}


def table(batch: int = 32) -> str:
    """What the nets take, as the page in the docs has it: counted from shapes, not timed."""
    lines = [
        "| net, images | nodes | longest path | levels of `Blelloch()` | its flops to those of "
        "back-propagation | values, each once | all live sets | largest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, size in [(name, sizes[name]) for name in FULL for sizes in (FULL, SMALL)]:
        params = jax.eval_shape(
            lambda key, size=size: pb.init_graph(size.nodes, key, {"x": size.image}, jnp.float32),
            jax.random.key(0),
        )
        inputs = {"x": jax.ShapeDtypeStruct((batch, *size.image), jnp.float32)}
        found = pb.explain_graph(size.nodes, params, inputs, solver=pb.Planned(machine=FLOPS))
        whole, plain = (found.plan.baselines[k] for k in ("Blelloch()", "BP"))
        sizes = (found.live.bytes_of_values, found.stored, found.largest)
        cells = [
            f"{name}, {'x'.join(map(str, size.image))}",
            *map(str, (found.steps, found.live.longest_path, found.levels)),
            f"{whole.flops / plain.flops:.0e}",
            *(f"{n / 2**20:.3g} MiB" for n in sizes),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
