"""A convolution and an LSTM, each computed twice: as it is tested, and as its reference."""

from __future__ import annotations

from collections.abc import Callable

import torch


def convolutions(device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A convolution on the device, through cuDNN where it is a GPU; and the same on the CPU."""
    torch.manual_seed(0)
    image = torch.randint(-4, 5, (2, 8, 24, 24)).float()
    weight = torch.randint(-4, 5, (16, 8, 3, 3)).float()
    convolve = torch.nn.functional.conv2d
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        got = convolve(image.to(device), weight.to(device), padding=1)
    return [got], [convolve(image, weight, padding=1)]


def _lstm(device: torch.device) -> tuple[torch.nn.LSTM, torch.Tensor]:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(16, 32).to(device)
    return lstm, torch.randn(10, 4, 16).to(device)


def forward_backward(
    network: torch.nn.Module, batch: torch.Tensor, run: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """The outputs, then the gradients of the input and of every weight. Clears gradients that were there."""
    network.zero_grad(set_to_none=True)
    inputs = batch.detach().clone().requires_grad_()
    outputs = run(inputs)
    outputs.square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = [inputs.grad, *(weight.grad for weight in network.parameters())]
    return [outputs.detach(), *(gradient for gradient in gradients if gradient is not None)]


def lstm_and_formula(device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and gradients of torch's LSTM on the device; and of its formula."""
    lstm, batch = _lstm(device)
    return (
        forward_backward(lstm, batch, lambda inputs: lstm(inputs)[0]),
        forward_backward(lstm, batch, lambda inputs: _formula(lstm, inputs)),
    )


def _formula(lstm: torch.nn.LSTM, inputs: torch.Tensor) -> torch.Tensor:
    """A one-layer LSTM as in its definition (torch.nn.LSTM's page)."""
    weight_in, weight_hidden, bias_in, bias_hidden = lstm.parameters()
    hidden = cell = inputs.new_zeros(inputs.shape[1], lstm.hidden_size)
    outputs = []
    for step in inputs:
        gates = step @ weight_in.T + bias_in + hidden @ weight_hidden.T + bias_hidden
        enter, forget, new, leave = gates.chunk(4, 1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs)


def lstm_with_and_without_cudnn(device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and gradients of torch's LSTM on the device, through cuDNN; and without it. Its switches are put back."""
    lstm, batch = _lstm(device)
    both = []
    for enabled in (True, False):
        # TF32 off: with it, the two would differ by rounding alone.
        with torch.backends.cudnn.flags(enabled=enabled, allow_tf32=False):
            both.append(forward_backward(lstm, batch, lambda inputs: lstm(inputs)[0]))
    return both[0], both[1]
