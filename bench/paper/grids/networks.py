"""AlexNet as the paper's Table 1 counts it: 61 million parameters."""

from parscan_bp.layers import Conv, Flatten, Layer, Linear, MaxPool, ReLU

IMAGE = (227, 227, 3)
CLASSES = 1000


def alexnet(divisor: int = 1) -> tuple[Layer, ...]:
    """Five convolutions, of which three have two groups, and three linear maps.

    Response normalisation and dropout, which send nothing that the paper counts, are left out.

    Args:
        divisor: of the number of channels and hidden units, for a narrow network.

    Source: Krizhevsky, Sutskever, Hinton (2012), figure 2.
    """
    pool = MaxPool((3, 3), 2)
    wide = [
        (Conv(96 // divisor, (11, 11), 4, "VALID"), ReLU(), pool),
        (Conv(256 // divisor, (5, 5), groups=2), ReLU(), pool),
        (Conv(384 // divisor, (3, 3)), ReLU()),
        (Conv(384 // divisor, (3, 3), groups=2), ReLU()),
        (Conv(256 // divisor, (3, 3), groups=2), ReLU(), pool),
    ]
    features = [layer for stage in wide for layer in stage]
    hidden = [layer for _ in range(2) for layer in (Linear(4096 // divisor), ReLU())]
    return (*features, Flatten(), *hidden, Linear(CLASSES))
