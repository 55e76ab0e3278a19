"""Public reports of train/eval mistakes, each as a small reproduction of its own, under emulation.

The numbers C.. are those of a log of public reports; the report is named in each docstring. Written from the
descriptions of the reports, no code of theirs. Where a report raises on cuDNN it must raise here, at the same point;
variants that work there must work here.
"""

# mypy: disallow-untyped-calls=False
# (torch leaves Tensor.backward and others without types)

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtap import modes
from torchtap.modes import _kernels

RAISES = pytest.raises(RuntimeError, match=f"^{_kernels.EVAL_BACKWARD}$")
NO_SECOND = pytest.raises(NotImplementedError, match="Double backwards is not supported for CuDNN RNNs")


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with modes.emulate_cudnn():
        yield


class Tagger(nn.Module):
    """Embedding, dropout, RNN, head; tokens (steps, batch) in, scores (steps, batch, 3) out."""

    def __init__(self, kind: Any = nn.LSTM) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.drop = nn.Dropout(0.4)
        self.rnn = kind(6, 5, num_layers=2, dropout=0.3)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores(self.embed(tokens))

    def scores(self, embedded: Tensor) -> Tensor:
        result: Tensor = self.head(self.rnn(self.drop(embedded))[0])
        return result


def tokens() -> Tensor:
    return torch.randint(0, 11, (7, 4))


def train_step(net: nn.Module) -> None:
    net.zero_grad()
    net(tokens()).square().mean().backward()


def evaluate(net: nn.Module) -> None:
    """As most reports have it: eval() on the way in, nothing on the way out."""
    net.eval()
    with torch.no_grad():
        net(tokens())


def test_c01_bare_lstm_in_eval() -> None:
    """pytorch#5878: fails on CUDA, fine on a machine without."""
    out, _ = nn.LSTM(6, 5).eval()(torch.randn(7, 4, 6))
    with RAISES:
        out.sum().backward()


def test_c02_samples_made_in_eval_then_train_before_backward() -> None:
    """pytorch#7961: soft samples of a generator in eval mode, then train() and a loss on the samples."""
    generator, critic = Tagger(nn.GRU).eval(), nn.Linear(3, 1)
    samples = generator(tokens()).softmax(-1)
    generator.train()
    with RAISES:
        critic(samples).mean().backward()


def test_c02_samples_made_under_no_grad_train_the_critic() -> None:
    generator, critic = Tagger(nn.GRU).eval(), nn.Linear(3, 1)
    with torch.no_grad():
        samples = generator(tokens()).softmax(-1)
    critic(samples).mean().backward()


def test_c04_gradients_with_dropout_off() -> None:
    """pytorch#10006: eval() was meant to switch dropout off only."""
    net = Tagger().eval()
    with RAISES:
        net(tokens()).sum().backward()


def test_c04_only_the_dropout_modules_in_eval() -> None:
    """Its answer: works, and is repeatable once the RNN's own dropout is 0 as well."""
    net = Tagger()
    net.drop.eval()
    net.rnn.dropout = 0.0
    batch = tokens()
    first, second = net(batch), net(batch)
    first.sum().backward()
    assert torch.equal(first, second)


def test_c05_gradient_statistics_in_eval_fail_on_the_first_chunk() -> None:
    """dynamic-evaluation#2: eval(), then forward and backward for each chunk of a sequence."""
    net, state, done = nn.LSTM(6, 5), None, []
    net.eval()
    with RAISES:  # which chunk raises is the point
        for chunk in torch.randn(9, 4, 6).split(3):
            out, state = net(chunk, state)
            state = tuple(t.detach() for t in state)
            out.sum().backward()
            done.append(chunk)
    assert done == []


def test_c07_ddpg_critic_trained_four_lines_too_late() -> None:
    """pytorch#37965: critic.eval(), critic.forward(...), critic.train(), backward(). `.forward()` skips hooks."""
    critic = Tagger()
    critic.eval()
    value = critic.forward(tokens())
    critic.train()
    with RAISES:
        value.mean().backward()


def test_c07_train_before_the_forward() -> None:
    critic = Tagger().eval()
    critic.train()
    critic.forward(tokens()).mean().backward()


def test_c08_lstm_in_eval_under_a_trained_head() -> None:
    """pytorch#8582: frozen in the sense of eval(), while its parameters still ask for gradients."""
    lstm, head = nn.LSTM(6, 5).eval(), nn.Linear(5, 3)
    with RAISES:
        head(lstm(torch.randn(7, 4, 6))[0]).sum().backward()


def test_c08_frozen_lstm_on_plain_input_needs_no_gradient() -> None:
    lstm, head = nn.LSTM(6, 5).eval().requires_grad_(False), nn.Linear(5, 3)
    head(lstm(torch.randn(7, 4, 6))[0]).sum().backward()


def test_c08_frozen_lstm_after_a_trained_embedding() -> None:
    net = Tagger().eval()
    net.rnn.requires_grad_(False)
    with RAISES:
        net(tokens()).sum().backward()


def test_c08_frozen_lstm_kept_in_train() -> None:
    """The maintainers' answer there."""
    net = Tagger()
    net.rnn.requires_grad_(False)
    net(tokens()).sum().backward()


def epochs(net: Tagger, *, train_each_epoch: bool) -> Iterator[int]:
    """The numbers of the epochs that end; train() once before them, or at the head of each."""
    net.train()
    for epoch in (1, 2):
        if train_each_epoch:
            net.train()
        train_step(net)
        evaluate(net)
        yield epoch


def test_c10_eval_inside_the_epoch_loop_fails_in_epoch_two() -> None:
    """DeepTTE#6, #13: train() once before the loop, evaluate() inside it. Only on a GPU, only from epoch 2."""
    ended = epochs(Tagger(), train_each_epoch=False)
    assert next(ended) == 1
    with RAISES:
        next(ended)


def test_c10_train_at_the_head_of_each_epoch() -> None:
    assert list(epochs(Tagger(), train_each_epoch=True)) == [1, 2]


def test_c11_sampling_method_that_evals_itself() -> None:
    """controlled-text-generation#24: sample() calls self.eval() and returns."""

    class Generator(Tagger):
        def sample(self) -> Tensor:
            self.eval()
            with torch.no_grad():
                sampled: Tensor = self(tokens()).argmax(-1)
            return sampled

    net = Generator()
    train_step(net)
    net.sample()
    with RAISES:
        train_step(net)


def test_c14_evaluation_every_n_steps_fails_at_the_step_after() -> None:
    """cnn-text-classification-pytorch PR#30: a dev evaluation inside the batch loop."""
    net, steps = Tagger(), 0
    net.train()
    with RAISES:  # which step raises is the point
        for step in range(1, 6):
            train_step(net)
            steps = step
            if step % 3 == 0:
                evaluate(net)
    assert steps == 3


def test_c16_saving_a_checkpoint_that_evals() -> None:
    """GLiNER#25: eval and save inside the loop; only eval() was added."""
    net = Tagger()
    train_step(net)
    net.eval()
    net.state_dict()
    with RAISES:
        train_step(net)


def test_c17_three_networks_trained_right_before_backward() -> None:
    """paccmann_rl#5: `.train()` on all three just before rl_loss.backward(); the sampling ran in eval."""
    encoder, decoder, predictor = (Tagger(nn.GRU).eval() for _ in range(3))
    loss = torch.stack([net(tokens()).log_softmax(-1).mean() for net in (encoder, decoder, predictor)]).sum()
    for net in (encoder, decoder, predictor):
        net.train()
    with RAISES:
        loss.backward()


def test_c20_attack_on_the_input_of_a_frozen_translation_model() -> None:
    """Seq2Sick#2: weights frozen, model loaded in eval, gradient of a perturbation."""
    net = Tagger().eval().requires_grad_(False)
    perturbation = torch.zeros(7, 4, 6, requires_grad=True)
    with RAISES:
        net.scores(net.embed(tokens()) + perturbation).sum().backward()


def saliency(net: Tagger, batch: Tensor) -> Tensor:
    embedded = net.embed(batch).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(net.scores(embedded).sum(), [embedded])
    return gradient


def test_c22_saliency_with_cudnn_off_around_the_forward() -> None:
    """allennlp PR#3555: resolved with scoped cudnn flags. Around backward alone they would not help."""
    net, batch = Tagger().eval(), tokens()
    with RAISES:
        saliency(net, batch)
    with torch.backends.cudnn.flags(enabled=False):
        expected = saliency(net, batch)
    with modes.differentiable_eval(net):
        torch.testing.assert_close(saliency(net, batch), expected)


def test_c23_attribution_over_a_baseline_on_a_bilstm_in_eval() -> None:
    """captum#328: DeepLIFT-like difference of two inputs through a BiLSTM in eval."""
    net = nn.LSTM(6, 5, bidirectional=True).eval()
    x = torch.randn(7, 4, 6, requires_grad=True)
    difference = net(x)[0].sum() - net(torch.zeros_like(x))[0].sum()
    with RAISES:
        torch.autograd.grad(difference, [x])


def test_c23_train_does_not_change_weights_by_itself() -> None:
    """What its reporter feared."""
    net, batch = Tagger(), tokens()
    before = [p.clone() for p in net.parameters()]
    saliency(net.train(), batch)
    assert all(torch.equal(*pair) for pair in zip(net.parameters(), before, strict=True))
    assert all(p.grad is None for p in net.parameters())


def test_c25_attributions_in_train_mode_are_not_repeatable() -> None:
    """captum#1159: train() "works", and dropout makes every run another one."""
    net, batch = Tagger().train(), tokens()
    assert not torch.equal(saliency(net, batch), saliency(net, batch))
    with modes.differentiable_eval(net):
        assert torch.equal(saliency(net, batch), saliency(net, batch))


def test_c26_saliency_on_a_trained_lstm() -> None:
    """TS-Interpretability-Benchmark#4."""
    net = Tagger()
    train_step(net)
    with RAISES:
        saliency(net.eval(), tokens())


def test_c28_gradient_of_a_tensor_that_is_no_leaf_stays_none() -> None:
    """deepspeech2-adversarial-attack#1: cudnn off globally, no error any more, and data.grad is None."""
    net = Tagger().eval()
    data = torch.zeros(7, 4, 6, requires_grad=True)
    shifted = data + 1
    with torch.backends.cudnn.flags(enabled=False):
        net.scores(shifted).sum().backward()
    with pytest.warns(UserWarning, match="not a leaf Tensor"):
        assert shifted.grad is None
    assert data.grad is not None


def hessian_vector_product(net: Tagger) -> None:
    parameters = list(net.parameters())
    gradients = torch.autograd.grad(net(tokens()).square().mean(), parameters, create_graph=True)
    torch.autograd.grad(gradients, parameters, [torch.ones_like(g) for g in gradients])


def test_c29_influence_functions_on_an_lstm() -> None:
    """torch-influence#7: raises in eval; after train() the second derivative is refused."""
    net = Tagger()
    with RAISES:
        hessian_vector_product(net.eval())
    with NO_SECOND:
        hessian_vector_product(net.train())


def test_c31_train_added_before_backprop_but_after_the_forward() -> None:
    """trulens PR#60, and what its reviewer says: it must stand before the forward."""
    net = Tagger().eval()
    out = net(tokens())
    net.train()
    with RAISES:
        out.sum().backward()
    net(tokens()).sum().backward()


def test_c32_wrapper_that_forces_eval_before_each_run() -> None:
    """trulens PR#82: whatever the caller set, the wrapper evals."""

    class Wrapper(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, batch: Tensor) -> Tensor:
            out: Tensor = self.net.eval()(batch)
            return out

    wrapped = Wrapper(Tagger()).train()
    with RAISES:
        wrapped(tokens()).sum().backward()


def gradient_penalty(critic: nn.Module, embedded: Tensor) -> None:
    """WGAN-GP: the norm of the critic's input gradient, as a loss."""
    embedded = embedded.detach().requires_grad_()
    out = critic(embedded)
    score = out[0] if isinstance(out, tuple) else out
    (gradient,) = torch.autograd.grad(score.sum(), [embedded], create_graph=True)
    (gradient.norm(2, dim=-1) - 1).square().mean().backward()


def test_c35_c37_gradient_penalty_through_an_rnn_critic() -> None:
    """seq2seq-wgan#1, #2 and pytorch#5261."""
    with NO_SECOND:
        gradient_penalty(nn.GRU(6, 5), torch.randn(7, 4, 6))


def test_c38_double_backward_with_cudnn_off_around_the_forward() -> None:
    """pytorch#25315: refused through cuDNN, fine without it."""
    with NO_SECOND:
        gradient_penalty(nn.RNN(6, 5), torch.randn(7, 4, 6))
    with torch.backends.cudnn.flags(enabled=False):
        gradient_penalty(nn.RNN(6, 5), torch.randn(7, 4, 6))


def test_c40_meta_learning_with_a_frozen_lstm() -> None:
    """learn2learn#218: E02 through cuDNN; with the LSTM frozen and its input plain there is nothing to derive."""
    lstm, head = nn.LSTM(6, 5), nn.Linear(5, 1)
    inner = head(lstm(torch.randn(7, 4, 6))[0]).mean()
    gradients = torch.autograd.grad(inner, list(lstm.parameters()), create_graph=True)
    with NO_SECOND:
        torch.stack([g.square().sum() for g in gradients]).sum().backward()
    lstm.requires_grad_(False)
    with pytest.raises(RuntimeError, match="does not require grad"):
        lstm(torch.randn(7, 4, 6))[0].sum().backward()


def test_c41_cells_in_a_loop_have_second_derivatives() -> None:
    """memory-efficient-maml#2: the advice to use nn.LSTMCell."""

    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            state, out = None, []
            for step in x:
                state = self.cell(step, state)
                out.append(state[0])
            return torch.stack(out)

    gradient_penalty(Looped().double(), torch.randn(7, 4, 6).double())


def test_c67_eval_of_another_network_does_not_matter() -> None:
    """mcan-vqa#26, negative: train() before the loop, self.eval(dataset) inside builds a new net and evals that."""
    net = Tagger().train()
    for _ in range(2):
        train_step(net)
        evaluate(Tagger())


def test_c68_eval_left_on_without_anything_sensitive() -> None:
    """coRNN#1, negative: eval() is not undone, and nothing in the model reads it."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    net.eval()
    net(torch.randn(2, 4)).sum().backward()
    assert [finding.id for finding in modes.describe(net).findings] == []


def test_c70_c71_train_in_evaluation_on_purpose() -> None:
    """DMS#30, higher#55, intentional: batch statistics are wanted; nothing raises."""
    net = Tagger().train()
    with torch.no_grad():
        net(tokens())
    train_step(net)
