"""Section 4b: double backward through cuDNN's RNN, which is refused in train mode, too."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.unit.modes.cases.harness import Run, quiet, refuses
from torchtap import modes

cudnn_refuses = refuses(
    NotImplementedError,
    "Double backwards is not supported for CuDNN RNNs",
    says="raises cuDNN's refusal of second derivatives",
)


class Critic(nn.Module):
    """Scores of sequences (steps, batch, 6)."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn
        self.head = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.rnn(x)
        result: Tensor = self.head(out[0] if isinstance(out, tuple) else out)
        return result


def gradient_penalty(run: Run, critic: Critic, *samples: Tensor) -> None:
    """WGAN-GP: the norm of the critic's input gradient, as a loss."""
    inputs = [each.detach().requires_grad_() for each in samples]
    score = torch.stack([critic(each).sum() for each in inputs]).sum()
    gradients = run.grad(score, inputs, create_graph=True)
    norms = torch.cat([each.norm(2, dim=-1) for each in gradients])
    run.backward((norms - 1).square().mean())


@cudnn_refuses
def test_c35_gradient_penalty_of_an_rnn_critic(run: Run) -> None:
    """seq2seq-wgan#1 (the text of that time: CudnnRNNLegacyBackward is not differentiable twice)."""
    gradient_penalty(run, run.watch(Critic(nn.GRU(6, 5))), torch.randn(7, 4, 6))


@cudnn_refuses
def test_c35_gradient_penalty_between_real_and_generated_sequences(run: Run) -> None:
    """seq2seq-wgan#2: derivative for _cudnn_rnn_backward is not implemented."""
    mixed = 0.3 * torch.randn(7, 4, 6) + 0.7 * torch.randn(7, 4, 6)
    gradient_penalty(run, run.watch(Critic(nn.LSTM(6, 5))), mixed, torch.randn(7, 4, 6))


@cudnn_refuses
def test_c37_one_step_of_maml_through_an_rnn(run: Run) -> None:
    """pytorch#5261: what WGAN-GP, MAML and reinforcement learning ask for."""
    critic = run.watch(Critic(nn.LSTM(6, 5)))
    names, parameters = zip(*critic.named_parameters(), strict=True)
    inner = run.grad(critic(torch.randn(7, 4, 6)).square().mean(), parameters, create_graph=True)
    adapted = {name: each - 0.1 * grad for name, each, grad in zip(names, parameters, inner, strict=True)}
    run.backward(torch.func.functional_call(critic, adapted, torch.randn(7, 4, 6)).square().mean())


@cudnn_refuses
def test_c38_gradient_of_a_gradient_through_a_plain_rnn(run: Run) -> None:
    """pytorch#25315: autograd.grad twice through nn.RNN."""
    rnn = run.watch(nn.RNN(6, 5))
    x = torch.randn(7, 4, 6, requires_grad=True)
    (first,) = run.grad(rnn(x)[0].sum(), [x], create_graph=True)
    run.grad(first.square().sum(), [x])


@quiet
def test_c38_the_same_with_cudnn_off_around_the_forward(run: Run) -> None:
    """Its remedy, in PyTorch's words and in ours."""
    rnn = run.watch(nn.RNN(6, 5))
    for scope in (torch.backends.cudnn.flags(enabled=False), modes.without_cudnn()):
        x = torch.randn(7, 4, 6, requires_grad=True)
        with scope:
            out = rnn(x)[0]
        (first,) = run.grad(out.sum(), [x], create_graph=True)
        run.grad(first.square().sum(), [x])


@refuses(
    RuntimeError,
    "element 0 of tensors does not require grad",
    says="raises PyTorch's own error: nothing requires a gradient",
)
def test_c40_meta_learning_with_a_frozen_lstm_and_cudnn_off(run: Run) -> None:
    """learn2learn#218: with the LSTM frozen and its input plain there is nothing to derive ..."""
    critic = run.watch(Critic(nn.LSTM(6, 5)))
    critic.rnn.requires_grad_(False)
    with modes.without_cudnn():
        out, _ = critic.rnn(torch.randn(7, 4, 6))
    out.sum().backward()


@cudnn_refuses
def test_c40_meta_learning_through_an_lstm_with_cudnn_on(run: Run) -> None:
    """... and with cuDNN on the second derivative is refused."""
    critic = run.watch(Critic(nn.LSTM(6, 5)))
    parameters = list(critic.rnn.parameters())
    gradients = run.grad(critic(torch.randn(7, 4, 6)).mean(), parameters, create_graph=True)
    run.backward(torch.stack([each.square().sum() for each in gradients]).sum())


class Looped(nn.Module):
    """An LSTM as a loop over its cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        state, out = None, []
        for step in x:
            state = self.cell(step, state)
            out.append(state[0])
        return torch.stack(out)


@quiet
def test_c41_cells_in_a_loop_have_second_derivatives(run: Run) -> None:
    """memory-efficient-maml#2: the advice to use nn.LSTMCell; in eval mode as well."""
    critic = run.watch(Critic(Looped()).double())
    gradient_penalty(run, critic, torch.randn(7, 4, 6).double())
    critic.eval()
    gradient_penalty(run, critic, torch.randn(7, 4, 6).double())
