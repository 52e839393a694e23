"""The same model in PyTorch, whose RNN and GRU are cuDNN's on a GPU.

As PyTorch runs it, and captured once in a CUDA graph and replayed, which leaves the kernels and
takes away what launching them from Python costs. Without a GPU PyTorch's own CPU code runs: the
gradients can be compared there, nothing else means anything.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.gpu import contenders, grid
from bench.shared import timing

EAGER, GRAPH = "cudnn", "cudnn_graph"
_WARM_UPS = 3
_MODULES = {grid.RNN: "RNN", grid.GRU: "GRU", grid.LSTM: "LSTM"}


def load() -> Any:
    """The module `torch`, set to round no float32 product to TF32.

    Raises:
        NotImplementedError: it is not installed.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise NotImplementedError(f"PyTorch cannot be imported: {error}") from error
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def versions() -> dict[str, Any]:
    """What the result file says of PyTorch; a reason where it is absent."""
    try:
        torch = load()
    except NotImplementedError as refusal:
        return {"absent": str(refusal)}
    cudnn = torch.backends.cudnn
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": cudnn.version() if cudnn.is_available() else None,
        "tf32": cudnn.allow_tf32,
    }


def lane(program: str, shape: grid.Shape, work: grid.Workload, graph: bool) -> contenders.Lane:
    """One program as PyTorch runs it, or captured in a CUDA graph.

    Raises:
        NotImplementedError: PyTorch is absent, or there is no GPU to capture a graph on.
    """
    torch = load()
    model = Model(torch, shape, work)
    if graph and model.device != "cuda":
        raise NotImplementedError("a CUDA graph needs a CUDA GPU")
    if program == timing.BACKWARD:
        call = _captured_backward(torch, model) if graph else model.backward_of(model.loss())
        return Eager(torch, call, model.device, model.as_gradient)
    call = {
        timing.FORWARD: model.loss,
        timing.VALUE_AND_GRAD: model.value_and_grad,
        contenders.STEP: model.step,
    }[program]
    if graph:
        call = _captured(torch, call)
    layout = model.as_jax if program == timing.VALUE_AND_GRAD else None
    return Eager(torch, call, model.device, layout)


@dataclasses.dataclass(frozen=True)
class Eager:
    """A lane of PyTorch."""

    torch: Any
    call: Callable[[], Any]
    device: str
    layout: Callable[[Any], Any] | None

    def __call__(self) -> Any:
        result = self.call()
        return result if self.layout is None else self.layout(result)

    def seconds(self, repeats: int) -> float:
        """Between two events on the device; on a CPU by the clock."""
        if self.device != "cuda":
            return timing.queued(self.call, repeats)
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            self.call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / repeats

    def to_json(self) -> dict[str, Any]:
        return {}


class Model:
    """The recurrent layer and the linear map of a workload, with its weights.

    Args:
        torch: the module.
        shape: the point of the grid.
        work: its numbers. The RNN's one bias becomes PyTorch's first, the second is zero.
    """

    def __init__(self, torch: Any, shape: grid.Shape, work: grid.Workload) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = getattr(torch, shape.dtype)
        tensor = functools.partial(_tensor, torch, self.device, dtype)
        module = getattr(torch.nn, _MODULES[shape.cell])
        self.cell = module(shape.inputs, shape.hidden).to(self.device, dtype)
        cell = work.params["cell"]
        first = cell["bi" if shape.cell == grid.GRU else "b"]
        weights = {
            "weight_ih_l0": np.asarray(cell["wi"]).T,
            "weight_hh_l0": np.asarray(cell["wh"]).T,
            "bias_ih_l0": first,
            "bias_hh_l0": cell.get("bh", np.zeros_like(first)),
        }
        with torch.no_grad():
            for name, value in weights.items():
                getattr(self.cell, name).copy_(tensor(value))
        self.head, self.bias = (tensor(work.params[name]) for name in ("head", "bias"))
        self.inputs = tensor(work.batch.inputs)
        self.labels = torch.tensor(np.asarray(work.batch.labels), device=self.device).long()
        self.weights = [*(getattr(self.cell, name) for name in weights), self.head, self.bias]
        for leaf in (self.head, self.bias, self.inputs):
            leaf.requires_grad_()
        self._torch = torch
        # The fastest Adam that PyTorch has; capturable, so that the graph runs the same one.
        on_gpu = self.device == "cuda"
        self._adam = torch.optim.Adam(
            self.weights, lr=grid.LEARNING_RATE, fused=on_gpu, capturable=on_gpu
        )

    def loss(self) -> Any:
        """Mean softmax cross entropy of the last state's scores; keeps what backward needs."""
        return self._loss(self.inputs)

    def value_and_grad(self) -> tuple[Any, Any]:
        """The loss and its gradients in weights and inputs."""
        value = self.loss()
        return value, self._torch.autograd.grad(value, [*self.weights, self.inputs])

    def backward_of(self, value: Any) -> Callable[[], Any]:
        """The gradients of a loss that was computed before, as often as one likes."""
        leaves = [*self.weights, self.inputs]
        return lambda: self._torch.autograd.grad(value, leaves, retain_graph=True)

    def step(self) -> Any:
        """A step of Adam: the loss before it. As in training, inputs get no gradient."""
        self._adam.zero_grad(set_to_none=True)
        value = self._loss(self.inputs.detach())
        value.backward()
        self._adam.step()
        return value

    def as_jax(self, result: tuple[Any, Any]) -> tuple[Any, Any]:
        """What `value_and_grad` returns, in the layout of `grid.Workload.point`."""
        value, gradients = result
        return value.detach().float().cpu().numpy(), self.as_gradient(gradients)

    def as_gradient(self, gradients: Any) -> Any:
        """Gradients in the layout of `grid.Workload.point`."""
        numbers = [leaf.detach().float().cpu().numpy() for leaf in gradients]
        wi, wh, bi, bh, head, bias, inputs = numbers
        cell = {"wi": wi.T, "wh": wh.T}
        # The GRU alone has a bias for each product.
        cell |= {"bi": bi, "bh": bh} if isinstance(self.cell, self._torch.nn.GRU) else {"b": bi}
        params = {"cell": cell, "head": head, "bias": bias}
        return {"params": params, "inputs": inputs}

    def _loss(self, inputs: Any) -> Any:
        outputs, _ = self.cell(inputs)
        scores = outputs[-1] @ self.head + self.bias
        return self._torch.nn.functional.cross_entropy(scores, self.labels)


def _captured(torch: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    """`call` as the replay of a CUDA graph, which writes its results to one place."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    # Libraries and optimisers set themselves up in the first calls, which no graph may hold.
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            call()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # JAX's own threads may call CUDA meanwhile; by default that would spoil the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = call()

    # What the graph reads belongs to `call`: freed, its memory would be given to others.
    def replay(owner: Any = call) -> Any:
        graph.replay()
        return result

    return replay


def _captured_backward(torch: Any, model: Model) -> Callable[[], Any]:
    """The backward pass alone as a graph, of a forward pass that another graph has run.

    Both take their memory from one pool, so that what the forward pass keeps stays where it is.
    """
    _captured(torch, model.value_and_grad)
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(forward, capture_error_mode="thread_local"):
        call = model.backward_of(model.loss())
    with torch.cuda.graph(backward, pool=forward.pool(), capture_error_mode="thread_local"):
        result = call()
    forward.replay()

    def replay(owners: Any = (forward, call)) -> Any:
        backward.replay()
        return result

    return replay


def _tensor(torch: Any, device: str, dtype: Any, value: Any) -> Any:
    return torch.tensor(np.asarray(value, np.float32), device=device).to(dtype)
