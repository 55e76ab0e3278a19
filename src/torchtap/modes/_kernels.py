"""CPU kernels for `aten::_cudnn_rnn` and `aten::_cudnn_rnn_backward`: cuDNN's rule, the CPU's arithmetic.

The forward runs PyTorch's own CPU RNN. The autograd node around it is libtorch's: `CudnnRnnBackward0`, with
its saved `train` flag. The backward kernel obeys the rule of the CUDA one (pytorch
`aten/src/ATen/native/cudnn/RNN.cpp`): where any gradient flows into a call that ran with `train=False`, it
raises; otherwise it runs the forward again, this time recorded, and differentiates that.

What ties the two is the tensor `reserve`, as in cuDNN: of size 0 in eval mode; in train mode it holds the
dropout masks that were drawn, one byte an element (one byte in all where there is no dropout). So the
gradients are those of the forward that was run, no random number is drawn twice, and backward does not touch
the random state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtap.modes._torch import inside_kernel

EVAL_BACKWARD = "cudnn RNN backward can only be called in training mode"
"""The text of the CUDA kernel since PyTorch 0.4.1, letter by letter: people search for it."""

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)
"""cuDNN's numbers for the kinds of RNN, as in `grad_fn._saved_mode`."""

NATIVE: dict[int, Callable[..., tuple[Tensor, ...]]] = {
    RNN_RELU: torch.rnn_relu,
    RNN_TANH: torch.rnn_tanh,
    LSTM: torch.lstm,
    GRU: torch.gru,
}

Factor = Callable[[int, Tensor], Tensor]
"""(number of a layer, its output) -> what the output is multiplied by on its way to the next layer."""


@dataclass(frozen=True, slots=True)
class Call:
    """What one call of the operator says besides its differentiable tensors."""

    mode: int
    weights_per_layer: int  # of one direction: 2, with biases 4, one more with a projection
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: Sequence[int]  # of a PackedSequence; empty for a padded batch

    @property
    def drops(self) -> bool:
        """Whether dropout acts: in train mode, between layers, so never after the last one."""
        return self.train and self.dropout > 0 and self.num_layers > 1

    def run(
        self, x: Tensor, hx: Tensor, cx: Tensor | None, weights: Sequence[Tensor], factor: Factor
    ) -> list[Tensor]:
        """Output and final states, `[out, hy]` or, for an LSTM, `[out, hy, cy]`, by PyTorch's CPU code."""
        if not self.drops:
            return self._layers(x, hx, cx, weights, self.num_layers, self.batch_first)
        # Layer by layer, so that the masks are ours to keep. The native call goes the same way, time first: the
        # arithmetic and the random numbers that the masks take are its own.
        swap = self.batch_first and not self.batch_sizes
        x = x.transpose(0, 1) if swap else x
        directions = 2 if self.bidirectional else 1
        states: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            at = slice(layer * directions, (layer + 1) * directions)
            mine = weights[at.start * self.weights_per_layer : at.stop * self.weights_per_layer]
            x, *state = self._layers(x, hx[at], None if cx is None else cx[at], mine, 1, False)
            states.append(state)
            if layer < self.num_layers - 1:
                x = x * factor(layer, x)
        return [x.transpose(0, 1) if swap else x, *(torch.cat(each) for each in zip(*states, strict=True))]

    def _layers(
        self,
        x: Tensor,
        hx: Tensor,
        cx: Tensor | None,
        weights: Sequence[Tensor],
        num_layers: int,
        batch_first: bool,
    ) -> list[Tensor]:
        state = hx if cx is None else (hx, cx)
        has_biases = self.weights_per_layer >= 4
        tail = (list(weights), has_biases, num_layers, 0.0, self.train, self.bidirectional)
        if self.batch_sizes:
            return list(NATIVE[self.mode](x, torch.tensor(self.batch_sizes, device="cpu"), state, *tail))
        return list(NATIVE[self.mode](x, state, *tail, batch_first))


def forward(
    x: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    _weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    _hidden_size: int,
    _proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    _dropout_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`aten::_cudnn_rnn` for CPU tensors: (output, hy, cy, reserve, weight_buf), shaped as in `nn.LSTM`."""
    for name, state in (("hx", hx), ("cx", cx)):
        if state is not None and not state.is_contiguous():
            raise RuntimeError(f"rnn: {name} is not contiguous")  # the CUDA kernel's check and text
    call = Call(mode, weight_stride0, num_layers, batch_first, dropout, train, bidirectional, batch_sizes)
    masks: list[Tensor] = []

    def draw(_: int, layer_output: Tensor) -> Tensor:
        if dropout == 1:
            return torch.zeros((), dtype=layer_output.dtype, device="cpu")  # as PyTorch: draws nothing
        mask = torch.empty_like(layer_output, memory_format=torch.contiguous_format).bernoulli_(1 - dropout)
        masks.append(mask.to(torch.uint8))
        return mask.div_(1 - dropout)

    with inside_kernel():
        out, hy, *rest = call.run(x, hx, cx, weight, draw)
        cy = rest[0] if rest else hx.new_empty(0)
        reserve = torch.stack(masks).flatten() if masks else x.new_zeros(int(train), dtype=torch.uint8)
        return out, hy, cy, reserve, x.new_empty(0)


def backward(
    x: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    _weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    _output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    mode: int,
    _hidden_size: int,
    _proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    _dropout_state: Tensor | None,
    reserve: Tensor,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor]]:
    """`aten::_cudnn_rnn_backward` for CPU tensors: the gradients of x, hx, cx and weights."""
    wanted_x, wanted_hx, wanted_cx, wanted_weight = output_mask
    grads = [grad_output, grad_hy, grad_cy]
    if all(grad is None for grad in grads):
        # The CUDA kernel returns undefined tensors; a list of those cannot come from Python. See below.
        return None, None, None, [torch.zeros_like(w) for w in weight] if wanted_weight else []
    if not train:
        raise RuntimeError(EVAL_BACKWARD)
    call = Call(mode, weight_stride0, num_layers, batch_first, dropout, train, bidirectional, batch_sizes)

    def kept(layer: int, layer_output: Tensor) -> Tensor:
        if dropout == 1:
            return torch.zeros((), dtype=layer_output.dtype, device="cpu")
        masks = reserve.view(num_layers - 1, *layer_output.shape)
        return masks[layer].to(layer_output.dtype).div_(1 - dropout)

    with inside_kernel(recording=True):
        leaf_x = x.detach().requires_grad_(wanted_x)
        leaf_hx = hx.detach().requires_grad_(wanted_hx)
        leaf_cx = None if cx is None else cx.detach().requires_grad_(wanted_cx)
        leaf_weight = [w.detach().requires_grad_(wanted_weight) for w in weight]
        outputs = call.run(leaf_x, leaf_hx, leaf_cx, leaf_weight, kept)
        leaves = [
            leaf
            for leaf in (leaf_x, leaf_hx, leaf_cx, *leaf_weight)
            if leaf is not None and leaf.requires_grad
        ]
        flowing = [(out, grad) for out, grad in zip(outputs, grads, strict=False) if grad is not None]
        found = iter(torch.autograd.grad([out for out, _ in flowing], leaves, [grad for _, grad in flowing]))
        return (
            next(found) if wanted_x else None,
            next(found) if wanted_hx else None,
            next(found) if wanted_cx else None,
            list(found),
        )


def nothing_comes_of_nothing(
    grad_inputs: tuple[Tensor | None, ...], grad_outputs: tuple[Tensor | None, ...]
) -> tuple[None, ...] | None:
    """A hook for the autograd node: where no gradient came in, none goes out, and `.grad` stays None as on a GPU."""
    return (None,) * len(grad_inputs) if all(grad is None for grad in grad_outputs) else None
