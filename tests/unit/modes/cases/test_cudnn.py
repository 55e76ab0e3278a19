"""Section 4a: `cudnn RNN backward can only be called in training mode`."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.unit.modes.cases.harness import Run, quiet, raises, refuses, works
from tests.unit.modes.cases.nets import Tagger, evaluate, tokens, train_step
from torchtap import modes


@raises("")
def test_c01_bare_lstm_in_eval(run: Run) -> None:
    """pytorch#5878: fails on CUDA, fine on a machine without."""
    lstm = run.watch(nn.LSTM(6, 5))
    lstm.eval()  # eval line
    out, _ = lstm(torch.randn(7, 4, 6))  # forward line
    run.backward(out.sum())


@raises("rnn")
def test_c02_samples_made_in_eval_then_train_before_backward(run: Run) -> None:
    """pytorch#7961: soft samples of a generator in eval mode, then train() and a loss on the samples."""
    generator, critic = run.watch(Tagger(nn.GRU)), nn.Linear(3, 1)
    generator.eval()  # eval line
    samples = generator(tokens()).softmax(-1)  # forward line
    generator.train()
    run.backward(critic(samples).mean())


@quiet
def test_c02_samples_made_under_no_grad_train_the_critic(run: Run) -> None:
    """Its answer: the samples need no gradient."""
    generator, critic = run.watch(Tagger(nn.GRU)), nn.Linear(3, 1)
    generator.eval()
    with torch.no_grad():
        samples = generator(tokens()).softmax(-1)
    generator.train()
    run.backward(critic(samples).mean())


@raises("rnn")
def test_c04_gradients_with_dropout_off(run: Run) -> None:
    """pytorch#10006: eval() was meant to switch dropout off only."""
    net = run.watch(Tagger())
    net.eval()  # eval line
    run.backward(net(tokens()).sum())  # forward line


@quiet
def test_c04_only_the_dropout_modules_in_eval(run: Run) -> None:
    """Its answer: works, and is repeatable once the RNN's own dropout is 0 as well."""
    net = run.watch(Tagger())
    net.drop.eval()
    net.rnn.dropout = 0.0
    batch = tokens()
    first, second = net(batch), net(batch)
    run.backward(first.sum())
    assert torch.equal(first, second)


@raises("")
def test_c05_gradient_statistics_in_eval_fail_on_the_first_chunk(run: Run) -> None:
    """dynamic-evaluation#2: eval(), then forward and backward for each chunk of a sequence."""
    net, state = run.watch(nn.LSTM(6, 5)), None
    net.eval()  # eval line
    for chunk in torch.randn(9, 4, 6).split(3):
        out, state = net(chunk, state)  # forward line
        state = tuple(each.detach() for each in state)
        run.backward(out.sum())


@raises("rnn", helpers=[Tagger.scores])
def test_c07_ddpg_critic_trained_four_lines_too_late(run: Run) -> None:
    """pytorch#37965: critic.eval(), critic.forward(...), critic.train(), backward(). `.forward()` skips hooks."""
    critic = run.watch(Tagger())
    critic.eval()  # eval line
    value = critic.forward(tokens())
    critic.train()
    run.backward(value.mean())


@quiet
def test_c07_train_before_the_forward(run: Run) -> None:
    """What would have been right."""
    critic = run.watch(Tagger().eval())
    critic.train()
    run.backward(critic.forward(tokens()).mean())


class Headed(nn.Module):
    """A pretrained LSTM and a head to be trained on it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.lstm(x)[0])
        return result


@raises("lstm")
def test_c08_lstm_in_eval_under_a_trained_head(run: Run) -> None:
    """pytorch#8582: frozen in the sense of eval(), while its parameters still ask for gradients."""
    net = run.watch(Headed())
    net.lstm.eval()  # eval line
    run.backward(net(torch.randn(7, 4, 6)).sum())  # forward line


@quiet
def test_c08_frozen_lstm_on_plain_input_needs_no_gradient(run: Run) -> None:
    """Frozen in both senses."""
    net = run.watch(Headed())
    net.lstm.eval().requires_grad_(False)
    run.backward(net(torch.randn(7, 4, 6)).sum())


@raises("rnn")
def test_c08_frozen_lstm_after_a_trained_embedding(run: Run) -> None:
    """Frozen in both senses, and a gradient has to pass through it all the same."""
    net = run.watch(Tagger())
    net.rnn.eval().requires_grad_(False)  # eval line
    run.backward(net(tokens()).sum())  # forward line


@quiet
def test_c08_frozen_lstm_kept_in_train(run: Run) -> None:
    """The maintainers' answer there."""
    net = run.watch(Tagger())
    net.rnn.requires_grad_(False)
    run.backward(net(tokens()).sum())


@raises("rnn", at=2, helpers=[evaluate, train_step])
def test_c10_eval_inside_the_epoch_loop_fails_in_epoch_two(run: Run) -> None:
    """DeepTTE#6: train() once before the loop, evaluate() inside it. Only on a GPU, only from epoch 2."""
    net = run.watch(Tagger())
    net.train()
    for _ in range(3):
        train_step(run, net)
        evaluate(net)


@raises("rnn", at=3, helpers=[train_step])
def test_c10_each_file_of_an_epoch_then_eval_by_an_object_that_holds_the_model(run: Run) -> None:
    """DeepTTE#13: the first epoch's files train, and the evaluation is a method of something else."""

    class Elapsed:
        def __init__(self, model: nn.Module) -> None:
            self.model = model

        def evaluate(self) -> None:
            self.model.eval()  # eval line
            with torch.no_grad():
                self.model(tokens())

    net = run.watch(Tagger())
    elapsed = Elapsed(net)
    net.train()
    for _ in range(2):
        for _file in range(2):
            train_step(run, net)
        elapsed.evaluate()


@quiet
def test_c10_train_at_the_head_of_each_epoch(run: Run) -> None:
    """What would have been right."""
    net = run.watch(Tagger())
    for _ in range(2):
        net.train()
        train_step(run, net)
        evaluate(net)


class Generator(Tagger):
    """A model that samples from itself."""

    def sample(self) -> Tensor:
        self.eval()  # eval line
        with torch.no_grad():
            sampled: Tensor = self(tokens()).argmax(-1)
        return sampled


@raises("rnn", at=2, helpers=[Generator.sample, train_step])
def test_c11_sampling_method_that_evals_itself(run: Run) -> None:
    """controlled-text-generation#24: sample() calls self.eval() and returns."""
    net = run.watch(Generator())
    train_step(run, net)
    net.sample()
    train_step(run, net)


@raises("encoder", "decoder", at=2)
def test_c13_translation_with_two_networks_fails_in_epoch_two(run: Run) -> None:
    """minimal-nmt#4: encoder and decoder are evaluated within the epoch, and never trained again."""
    net = run.watch(nn.ModuleDict({"encoder": nn.GRU(6, 6), "decoder": nn.GRU(6, 6)}))
    source, target = torch.randn(7, 4, 6), torch.randn(5, 4, 6)
    for _ in range(2):
        _, state = net["encoder"](source)  # forward line
        out, _ = net["decoder"](target, state)  # forward line
        run.backward(out.sum())
        for each in net.values():
            each.eval()  # eval line


@raises("rnn", at=4, helpers=[evaluate, train_step])
def test_c14_evaluation_every_n_steps_fails_at_the_step_after(run: Run) -> None:
    """cnn-text-classification-pytorch PR#30: a dev evaluation inside the batch loop."""
    net = run.watch(Tagger())
    net.train()
    for at in range(1, 6):
        train_step(run, net)
        if at % 3 == 0:
            evaluate(net)


@quiet
def test_c14_train_called_again_after_each_evaluation(run: Run) -> None:
    """Its fix."""
    net = run.watch(Tagger())
    net.train()
    for at in range(1, 6):
        train_step(run, net)
        if at % 3 == 0:
            evaluate(net)
            net.train()


@raises("rnn", at=3, helpers=[train_step])
def test_c16_saving_a_checkpoint_that_evals(run: Run) -> None:
    """GLiNER#25: eval and save inside the loop; only eval() was added."""
    net = run.watch(Tagger())
    for at in range(1, 5):
        train_step(run, net)
        if at % 2 == 0:
            net.eval()  # eval line
            net.state_dict()


@raises("rnn")
def test_c17_three_networks_trained_right_before_backward(run: Run) -> None:
    """paccmann_rl#5: `.train()` on all three just before rl_loss.backward(); the sampling ran in eval."""
    nets = [Tagger(nn.GRU) for _ in range(3)]
    run.watch(*nets)
    for net in nets:
        net.eval()  # eval line
    scores = [net(tokens()).log_softmax(-1).mean() for net in nets]  # forward line
    for net in nets:
        net.train()
    run.backward(torch.stack(scores).sum())


@raises("rnn", at=2, helpers=[Tagger.scores])
def test_c19_refining_the_latent_code_in_evaluation(run: Run) -> None:
    """sa-vae#4: its variational inference takes gradient steps, in evaluation as well."""
    net = run.watch(Tagger())

    def refined(latent: Tensor) -> Tensor:
        latent = latent.detach().requires_grad_()
        (gradient,) = run.grad(net.scores(latent).square().mean(), [latent])
        return latent - 0.1 * gradient

    refined(torch.randn(7, 4, 6))
    net.eval()  # eval line
    refined(torch.randn(7, 4, 6))


@raises("rnn", helpers=[Tagger.scores], before_watch=True)
def test_c20_attack_on_the_input_of_a_frozen_translation_model(run: Run) -> None:
    """Seq2Sick#2: weights frozen, model loaded in eval, gradient of a perturbation."""
    net = Tagger().eval().requires_grad_(False)  # eval line
    run.watch(net)
    perturbation = torch.zeros(7, 4, 6, requires_grad=True)
    run.backward(net.scores(net.embed(tokens()) + perturbation).sum())


def saliency(run: Run, net: Tagger, batch: Tensor) -> Tensor:
    """The gradient of the scores with respect to the embedded tokens."""
    embedded = net.embed(batch).detach().requires_grad_()
    (gradient,) = run.grad(net.scores(embedded).sum(), [embedded])
    return gradient


@raises("rnn", helpers=[Tagger.scores])
def test_c22_saliency_of_a_predictor(run: Run) -> None:
    """allennlp PR#3555: a Predictor evals its model when it is made; HotFlip and saliency need gradients."""
    net = run.watch(Tagger())
    net.eval()  # eval line
    saliency(run, net, tokens())


@quiet
def test_c22_saliency_with_cudnn_off_around_the_forward(run: Run) -> None:
    """Its remedy, and ours, which gives the same."""
    net, batch = run.watch(Tagger()).eval(), tokens()
    with torch.backends.cudnn.flags(enabled=False):
        expected = saliency(run, net, batch)
    with modes.differentiable_eval(net):
        torch.testing.assert_close(saliency(run, net, batch), expected)


@raises("")
def test_c23_attribution_over_a_baseline_on_a_bilstm_in_eval(run: Run) -> None:
    """captum#328: DeepLIFT-like difference of two inputs through a BiLSTM in eval."""
    net = run.watch(nn.LSTM(6, 5, bidirectional=True))
    net.eval()  # eval line
    inputs = torch.randn(7, 4, 6, requires_grad=True)
    both = torch.cat([inputs, torch.zeros_like(inputs)], dim=1)
    of_input, of_baseline = net(both)[0].chunk(2, dim=1)  # forward line
    run.grad((of_input - of_baseline).sum(), [inputs])


@quiet
def test_c23_train_does_not_change_weights_by_itself(run: Run) -> None:
    """What its reporter feared."""
    net, batch = run.watch(Tagger()), tokens()
    before = [parameter.clone() for parameter in net.parameters()]
    saliency(run, net.train(), batch)
    assert all(torch.equal(*pair) for pair in zip(net.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in net.parameters())


@works("nothing: it works, and two runs differ")
def test_c25_attributions_in_train_mode_are_not_repeatable(run: Run) -> None:
    """captum#1159: train() "works", and dropout makes every run another one."""
    net, batch = run.watch(Tagger()).train(), tokens()
    assert not torch.equal(saliency(run, net, batch), saliency(run, net, batch))
    with modes.differentiable_eval(net):
        assert torch.equal(saliency(run, net, batch), saliency(run, net, batch))


@raises("rnn", at=2, helpers=[Tagger.scores])
def test_c26_saliency_on_a_trained_lstm(run: Run) -> None:
    """TS-Interpretability-Benchmark#4."""
    net = run.watch(Tagger())
    train_step(run, net)
    net.eval()  # eval line
    saliency(run, net, tokens())


@works("nothing: cuDNN is off, and the gradient is at the leaf")
def test_c28_gradient_of_a_tensor_that_is_no_leaf_stays_none(run: Run) -> None:
    """deepspeech2-pytorch-adversarial-attack#1: cudnn off globally, no error any more, and data.grad is None."""
    net = run.watch(Tagger()).eval()
    data = torch.zeros(7, 4, 6, requires_grad=True)
    shifted = data + 1
    with modes.without_cudnn():
        run.backward(net.scores(shifted).sum())
    with pytest.warns(UserWarning, match="not a leaf Tensor"):
        assert shifted.grad is None
    assert data.grad is not None


@works("nothing: cuDNN is off, and a detached tensor has no gradient")
def test_c28_gradient_of_what_was_detached_stays_none(run: Run) -> None:
    """The other likely cause there."""
    net = run.watch(Tagger()).eval()
    data = torch.zeros(7, 4, 6, requires_grad=True)
    with modes.without_cudnn():
        run.backward(net.scores(data.detach() + 1).sum())
    assert data.grad is None


def hessian_vector_product(run: Run, net: Tagger) -> None:
    """As influence functions need it."""
    parameters = list(net.parameters())
    loss = net(tokens()).square().mean()  # forward line
    gradients = run.grad(loss, parameters, create_graph=True)
    run.grad(torch.cat([each.flatten() for each in gradients]).sum(), parameters)


@raises("rnn", helpers=[hessian_vector_product])
def test_c29_influence_functions_on_an_lstm_in_eval(run: Run) -> None:
    """torch-influence#7: raises in eval ..."""
    net = run.watch(Tagger())
    net.eval()  # eval line
    hessian_vector_product(run, net)


@refuses(
    NotImplementedError,
    "Double backwards is not supported for CuDNN RNNs",
    says="raises cuDNN's refusal of second derivatives",
)
def test_c29_influence_functions_on_an_lstm_in_train(run: Run) -> None:
    """... and in train mode the second derivative is refused."""
    hessian_vector_product(run, run.watch(Tagger()).train())


@raises("rnn")
def test_c31_train_added_before_backprop_but_after_the_forward(run: Run) -> None:
    """trulens PR#60, and what its reviewer says: it must stand before the forward."""
    net = run.watch(Tagger())
    net.eval()  # eval line
    out = net(tokens())  # forward line
    net.train()
    run.backward(out.sum())


@quiet
def test_c31_train_before_the_forward(run: Run) -> None:
    """What its reviewer asks for."""
    net = run.watch(Tagger()).eval()
    net.train()
    run.backward(net(tokens()).sum())


class Wrapper(nn.Module):
    """Runs a model, in eval mode whatever the caller set unless told otherwise."""

    def __init__(self, net: nn.Module, *, evals: bool = True) -> None:
        super().__init__()
        self.net = net
        self.evals = evals

    def forward(self, batch: Tensor) -> Tensor:
        if self.evals:
            self.net.eval()  # eval line
        out: Tensor = self.net(batch)
        return out


@raises("net.rnn", helpers=[Wrapper.forward])
def test_c32_wrapper_that_forces_eval_before_each_run(run: Run) -> None:
    """trulens PR#82: whatever the caller set, the wrapper evals."""
    wrapped = run.watch(Wrapper(Tagger()))
    wrapped.train()
    run.backward(wrapped(tokens()).sum())  # forward line


@quiet
def test_c32_wrapper_with_the_option_to_leave_the_mode(run: Run) -> None:
    """Its remedy."""
    wrapped = run.watch(Wrapper(Tagger(), evals=False))
    wrapped.train()
    run.backward(wrapped(tokens()).sum())
