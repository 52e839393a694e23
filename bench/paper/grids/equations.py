"""The communication costs of Gholami et al. (SPAA 2018), equations 3 to 9, as they are printed.

One iteration of training, all processes connected alike. The sums of eq. 4, 7 and 8 that are
printed from i = 0 run from 1: there is no layer 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

from bench.paper.grids.weights import WeightLayer
from parscan_bp.devices import Link


@dataclasses.dataclass(frozen=True)
class Seconds:
    """The terms of an equation, in seconds.

    Attributes:
      gather: all-gathers of outputs, forward.
      inputs: all-reduces of the inputs' cotangents.
      weights: all-reduces of the weights' cotangents, "batch-parallel communication".
      halo: exchanges of halos, forward and backward.
    """

    gather: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0
    halo: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(
            self.gather + other.gather,
            self.inputs + other.inputs,
            self.weights + other.weights,
            self.halo + other.halo,
        )

    @property
    def total(self) -> float:
        """All of them."""
        return self.gather + self.inputs + self.weights + self.halo

    @property
    def backward(self) -> float:
        """What can overlap with the backward pass (figure 8): the all-reduces."""
        return self.inputs + self.weights


@dataclasses.dataclass(frozen=True)
class Paper:
    """The equations for one machine.

    Args:
      alpha: latency in seconds.
      beta: seconds a byte.
      word: bytes of a number.

    Example: pure batch parallelism is the 1 x P grid.
      >>> import parscan_bp as pb
      >>> from parscan_bp.layers import Conv, Flatten, Linear
      >>> from bench.paper.grids.weights import weight_layers
      >>> rows = weight_layers([Conv(8, (3, 3)), Flatten(), Linear(10)], (8, 8, 3))
      >>> paper = Paper(2e-6, 1 / 6e9)
      >>> paper.batch(rows, 8).total == paper.integrated(rows, 64, 1, 8).total
      True
    """

    alpha: float
    beta: float
    word: int = 4

    @classmethod
    def of(cls, link: Link) -> Paper:
        """Where messages go over a link."""
        return cls(link.latency, 1 / link.bandwidth)

    def model(self, layers: Sequence[WeightLayer], batch: int, processes: int) -> Seconds:
        """Eq. 3: pure model parallelism."""
        return self.integrated(layers, batch, processes, 1)

    def batch(self, layers: Sequence[WeightLayer], processes: int) -> Seconds:
        """Eq. 4: pure batch parallelism; it does not depend on the batch."""
        return Seconds(weights=sum(2 * self._moved(processes, row.weights) for row in layers))

    @staticmethod
    def batch_limit(layer: WeightLayer) -> float:
        """Eq. 5: 2 k_h k_w X_C / (3 Y_H Y_W), the batch below which the model is sent cheaper."""
        kh, kw = layer.window
        return 2 * kh * kw * layer.inputs[2] / (3 * layer.outputs[0] * layer.outputs[1])

    def redistribution(self, numbers: int, batch: float, processes: int) -> float:
        """Eq. 6: d_i numbers of each of B inputs, from a batch-parallel to a model-parallel layer.

        Of grids that have P_c columns, before and after, it is the same of B / P_c inputs in groups
        of P processes.
        """
        return self._moved(processes, batch * numbers)

    def domain(self, layers: Sequence[WeightLayer], batch: int, processes: int) -> Seconds:
        """Eq. 7: pure domain parallelism, with Y_W Y_C in the second sum.

        A window of 1 sends nothing.
        """
        halo = 0.0
        for row in layers:
            (_, xw, xc), (_, yw, yc), (kh, kw) = row.inputs, row.outputs, row.window
            halo += self._halo(batch * xw * xc, kh) + self._halo(batch * yw * yc, kw)
        return self.batch(layers, processes) + Seconds(halo=halo)

    def integrated(
        self,
        layers: Sequence[WeightLayer],
        batch: int,
        rows: int,
        columns: int,
        *,
        domain: Collection[int] = (),
        batch_only: Collection[int] = (),
    ) -> Seconds:
        """Eq. 9 on a P_r x P_c grid; eq. 8 where all layers divide the model.

        Args:
          layers: those with weights.
          batch: B.
          rows: P_r.
          columns: P_c.
          domain: positions of the layers of L_D, whose P_r processes divide the domain; those of
            all others, L_M, divide the model.
          batch_only: positions of layers on a 1 x P grid, as the convolutions of figure 7.
        """
        total = Seconds()
        for k, row in enumerate(layers):
            if row.position in batch_only:
                total += Seconds(weights=2 * self._moved(rows * columns, row.weights))
            else:
                total += self._layer(layers, k, batch, rows, columns, row.position in domain)
        return total

    def _layer(
        self,
        layers: Sequence[WeightLayer],
        k: int,
        batch: int,
        rows: int,
        columns: int,
        domain: bool,
    ) -> Seconds:
        """What layer ``layers[k]`` adds to eq. 9, as one of L_D or else of L_M."""
        row = layers[k]
        if domain:
            halo = self._domain_halo(layers, k, batch / columns) if rows > 1 else 0.0
            return Seconds(weights=2 * self._moved(rows * columns, row.weights), halo=halo)
        # No cotangent is wanted beyond the first layer.
        inputs = 2 * self._moved(rows, batch / columns * row.d_in) if k else 0.0
        gather = self._moved(rows, batch / columns * row.d_out)
        return Seconds(gather, inputs, 2 * self._moved(columns, row.weights / rows))

    def _moved(self, processes: int, words: float) -> float:
        """alpha ceil(log2 P) + beta (P - 1) / P n: an all-gather, or half an all-reduce."""
        if processes == 1:
            return 0.0
        volume = (processes - 1) / processes * words * self.word
        return self.alpha * math.ceil(math.log2(processes)) + self.beta * volume

    def _halo(self, words: float, window: int) -> float:
        """alpha + beta n floor(k / 2)."""
        return self.alpha + self.beta * self.word * words * (window // 2) if window > 1 else 0.0

    def _domain_halo(self, layers: Sequence[WeightLayer], k: int, batch: float) -> float:
        """Of eq. 9: of the layer's input, and of the next one's in the place of its output."""
        row = layers[k]
        (_, xw, xc), (kh, kw) = row.inputs, row.window
        _, next_w, next_c = layers[k + 1].inputs if k + 1 < len(layers) else row.outputs
        return self._halo(batch * xw * xc, kh) + self._halo(batch * next_w * next_c, kw)
