"""DSP and other late schedules with remedies, one batch after the other, in NumPy alone.

It knows of a schedule only how many updates late the forward and backward passes of a block are.
"""

import numpy as np

CLASSES = 3


def _softmax_gradient(scores, labels):
    """The mean cross entropy of the first classes, and its derivative."""
    z = scores[:, :CLASSES] - scores[:, :CLASSES].max(1, keepdims=True)
    share = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    rows = np.arange(len(labels))
    ct = np.zeros_like(scores)
    ct[:, :CLASSES] = share
    ct[rows, labels] -= 1
    return -np.log(share[rows, labels]).mean(), ct / len(labels)


def _forward(weights, h):
    w, b, v = weights
    return h + np.tanh(h @ w + b) @ v


def _backward(weights, h, ct):
    w, b, v = weights
    a = np.tanh(h @ w + b)
    inner = (ct @ v.T) * (1 - a * a)
    return (h.T @ inner, inner.sum(0), a.T @ ct), ct + inner @ w.T


class LateBlock:
    """A block of `alike.residual`: momentum, and what remedies keep.

    Args:
      params: at the start.
      forward, backward: d, updates by which its passes are late.
      remedies: a dict of what is done, in this order: ``compensation`` (strength, decay), ``rate``
        (power, anneal), ``feedback`` strength, ``prediction`` True.
    """

    def __init__(self, params, forward, backward, remedies):
        self.weights = [[np.asarray(leaf, np.float64) for leaf in params]]
        self.late, self.backward = forward, backward
        self.remedies = remedies if forward else {}
        self.updates = [[np.zeros_like(leaf) for leaf in self.weights[0]]]
        self.momentum = [np.zeros_like(leaf) for leaf in self.weights[0]]
        self.squares = [np.zeros_like(leaf) for leaf in self.weights[0]]
        self.made, self.count = [], 0

    def restart(self):
        """Counts versions from 0 again; what remedies and the optimiser keep stays."""
        self.weights, self.updates = self.weights[-1:], self.updates[-1:]

    def read(self, batch):
        """The weights of the forward pass."""
        version = max(0, batch - self.late)
        if "prediction" not in self.remedies:
            return self.weights[version]
        pairs = zip(self.weights[version], self.updates[version], strict=True)
        return [w + self.late * u for w, u in pairs]

    def linearised(self, batch):
        """The weights of the backward pass: the newest ones, or those of the forward pass."""
        return self.read(batch) if self.backward else self.weights[batch]

    def update(self, batch, gradient, rate, momentum):
        gradient = list(gradient)
        if "compensation" in self.remedies:
            strength, decay = self.remedies["compensation"]
            moved = zip(self.weights[-1], self.read(batch), strict=True)
            for i, (now, then) in enumerate(moved):
                g, factor = gradient[i], strength
                if decay is not None:
                    self.squares[i] = decay * self.squares[i] + (1 - decay) * g**2
                    factor = strength / np.sqrt(self.squares[i] + 1e-7)
                gradient[i] = g + factor * g * g * (now - then)
        self.momentum = [momentum * m + g for m, g in zip(self.momentum, gradient, strict=True)]
        step = [-rate * m for m in self.momentum]
        if "rate" in self.remedies:
            power, anneal = self.remedies["rate"]
            left = 1 if anneal is None else 1 - min(self.count, anneal) / anneal
            step = [u / self.late ** (power * left) for u in step]
        if "feedback" in self.remedies:
            d, given = self.late, step
            before = self.made[-d] if len(self.made) >= d else [np.zeros_like(u) for u in step]
            again = self.remedies["feedback"]
            step = [u + again * (u - b) for u, b in zip(given, before, strict=True)]
            self.made.append(given)
        self.count += 1
        self.updates.append(step)
        self.weights.append([w + u for w, u in zip(self.weights[-1], step, strict=True)])


def train(params, ages, batches, remedies, rate, momentum, emptied=()):
    """The last weights and the losses.

    Args:
      params: of each block.
      ages: of each block how late its forward and its backward pass are.
      batches: pairs (x, labels).
      remedies: as of `LateBlock`.
      rate, momentum: of SGD.
      emptied: batches before which the pipeline has been emptied.
    """
    blocks = [LateBlock(own, *late, remedies) for own, late in zip(params, ages, strict=True)]
    losses, first = [], 0
    for number, (x, labels) in enumerate(batches):
        if number in emptied:
            first = number
            for own in blocks:
                own.restart()
        n = number - first
        h, inputs = np.asarray(x, np.float64), []
        for own in blocks:
            inputs.append(h)
            h = _forward(own.read(n), h)
        loss, ct = _softmax_gradient(h, labels)
        losses.append(loss)
        gradients = []
        for own, h in zip(reversed(blocks), reversed(inputs), strict=True):
            gradient, ct = _backward(own.linearised(n), h, ct)
            gradients.append(gradient)
        for own, gradient in zip(blocks, reversed(gradients), strict=True):
            own.update(n, gradient, rate, momentum)
    return [own.weights[-1] for own in blocks], losses
