"""Section 4c: the mode is not restored, never set, or set in the wrong place."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  as everybody writes it
from torch.optim import SGD

from tests.unit.modes.cases.harness import Run, finds, in_source_only, quiet
from tests.unit.modes.cases.nets import Classifier, rows, step, validate
from torchtap import modes


@finds("mode.not_restored", where="")
def test_c43_policy_evaluated_and_never_trained_again(run: Run) -> None:
    """lerobot#3668: eval_policy() evaluates the policy and returns; training goes on without dropout."""
    policy = run.watch(Classifier())
    policy.train()
    step(run, policy)
    validate(policy)
    step(run, policy)


@finds("mode.not_restored", where="")
def test_c43_evaluation_that_ends_in_an_exception_is_not_undone(run: Run) -> None:
    """Its fix must restore on exceptions, too: a train() after the evaluation is not reached."""
    policy = run.watch(Classifier())

    def evaluated() -> None:
        policy.eval()
        with torch.no_grad():
            policy(rows())
        raise TimeoutError("the simulator does not answer")
        policy.train()

    step(run, policy)
    with suppress(TimeoutError):
        evaluated()
    step(run, policy)


@quiet
def test_c43_evaluation_that_puts_each_mode_back(run: Run) -> None:
    """Its fix, which keeps a caller in eval mode there as well."""
    policy = run.watch(Classifier())
    for _ in range(2):
        step(run, policy)
        with modes.eval_mode(policy):
            policy(rows())
    policy.eval()
    with modes.eval_mode(policy):
        policy(rows())
    assert not policy.training


@finds("mode.not_restored", where="")
def test_c44_validation_in_the_middle_of_an_epoch(run: Run) -> None:
    """vsepp#4: train() at the head of each epoch, validation every few steps: dropout is off for the rest."""
    net = run.watch(Classifier())
    optimizer = SGD(net.parameters(), 0.01)
    for _ in range(2):
        net.train()
        for at in range(4):
            step(run, net, optimizer)
            if at == 1:
                validate(net)


def set_mode(mode: str, nets: Sequence[nn.Module | None]) -> None:
    """As the report has it: some of the networks may be missing."""
    for net in nets:
        if net is not None:
            net.train() if mode == "train" else net.eval()


@finds("mode.not_restored")
def test_c46_helper_that_sets_the_mode_of_a_list_of_networks(run: Run) -> None:
    """clevr-iep PR#22: set_mode("eval", [program_generator, execution_engine, None]), not undone."""
    generator, engine = Classifier(), Classifier()
    run.watch(generator, engine)
    nets = [generator, engine, None]
    set_mode("train", nets)
    step(run, generator)
    step(run, engine)
    set_mode("eval", nets)
    with torch.no_grad():
        engine(rows())
        generator(rows())
    step(run, generator)
    step(run, engine)


@finds("mode.not_restored", where="")
def test_c47_nothing_ever_calls_train(run: Run) -> None:
    """pytorch/tutorials PR#1602: test() evals, train() sets no mode: right in epoch 1 only."""
    net = run.watch(Classifier())
    for _ in range(2):
        step(run, net)
        validate(net)


@finds("mode.train_in_evaluation")
def test_c49_train_a_few_lines_after_eval_in_the_validation(run: Run) -> None:
    """MultiBench#26: model.train() slipped in behind model.eval()."""
    net = run.watch(Classifier())
    for _ in range(2):
        net.train()
        step(run, net)
        with torch.no_grad():
            net.eval()
            net.train()
            net(rows())


@finds("mode.train_in_evaluation")
def test_c50_validation_without_eval(run: Run) -> None:
    """pytorch-3dunet#53: no eval() at all in validate()."""
    net = run.watch(Classifier())
    for _ in range(2):
        step(run, net)
        with torch.no_grad():
            net(rows())


@quiet
def test_c50_validation_without_eval_of_a_group_norm(run: Run) -> None:
    """The default model of that project: GroupNorm does the same in both modes."""
    net = run.watch(nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3)))
    for _ in range(2):
        step(run, net)
        with torch.no_grad():
            net(rows())


@finds("mode.train_in_evaluation")
def test_c52_evaluator_without_eval(run: Run) -> None:
    """pytorch-seq2seq#33: the evaluator ran in the mode of the trainer."""
    net = run.watch(Classifier())
    net.train()
    step(run, net)
    with torch.no_grad():
        losses = [F.cross_entropy(net(rows()), torch.randint(0, 3, (6,))) for _ in range(3)]
    assert len(losses) == 3
    step(run, net)


@finds("mode.train_in_evaluation")
def test_c52_evaluator_that_leaves_an_eval_caller_in_train_mode(run: Run) -> None:
    """Its PR#38: the review rejects a train(True) at the end; a caller in eval mode goes on in train mode."""

    def evaluator(net: nn.Module) -> None:
        validate(net)
        net.train(True)

    net = run.watch(Classifier())
    step(run, net)
    net.eval()
    evaluator(net)
    with torch.no_grad():
        net(rows())


@finds("mode.train_in_evaluation")
def test_c53_rollouts_in_train_mode(run: Run) -> None:
    """trl#155: PPO samples with dropout."""
    policy = run.watch(Classifier())
    policy.train()
    for _ in range(2):
        with torch.no_grad():
            policy(rows()).softmax(-1).multinomial(1)
        step(run, policy)


@finds("mode.not_restored", where="")
def test_c55_generate_that_evals(run: Run) -> None:
    """ai-engineering-from-scratch PR#206: generate() calls eval() and leaves it so."""

    class Writer(Classifier):
        @torch.no_grad()
        def generate(self) -> Tensor:
            self.eval()
            written: Tensor = self(rows()).argmax(-1)
            return written

    net = run.watch(Writer())
    net.train()
    for _ in range(2):
        step(run, net)
        net.generate()


@finds("mode.train_in_evaluation")
def test_c56_validation_step_that_trains_to_get_losses(run: Run) -> None:
    """ellipse-rcnn#13: validation_step() sets self.train(True), as detection models give losses there only."""

    class Detector(Classifier):
        def validation_step(self) -> Tensor:
            self.train(True)
            return F.cross_entropy(self(rows()), torch.randint(0, 3, (6,)))

    net = run.watch(Detector())
    for _ in range(2):
        net.train()
        step(run, net)
        net.eval()
        net.validation_step()


@finds("mode.train_in_evaluation")
def test_c58_predict_with_dropout_and_batch_norm_active(run: Run) -> None:
    """stable-baselines3#535: predict() between updates, and nobody sets eval mode."""

    class Policy(Classifier):
        def predict(self, observation: Tensor) -> Tensor:
            with torch.no_grad():
                action: Tensor = self(observation).argmax(-1)
            return action

    policy = run.watch(Policy())
    policy.train()
    for _ in range(2):
        for _step in range(3):
            policy.predict(rows(2))
        step(run, policy)


class ActorCritic(nn.Module):
    """A critic and its target, both with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = Classifier()
        self.target = Classifier().requires_grad_(False)


@finds("mode.train_in_evaluation")
def test_c59_train_of_the_policy_wakes_its_targets(run: Run) -> None:
    """stable-baselines3 PR#553: policy.train() also flips the target networks, which run under no_grad."""
    policy = run.watch(ActorCritic())
    policy.target.eval()
    policy.train()
    optimizer = SGD(policy.critic.parameters(), 0.01)
    for _ in range(3):
        with torch.no_grad():
            wanted = policy.target(rows())
        optimizer.zero_grad()
        run.backward(F.mse_loss(policy.critic(rows()), wanted))
        optimizer.step()


@finds("mode.train_in_evaluation")
def test_c61_adversarial_examples_made_in_train_mode(run: Run) -> None:
    """TextAttack#457: the attack asks the model that is being trained, dropout and all."""
    net = run.watch(Classifier())
    net.train()
    for _ in range(2):
        step(run, net)
        attacked = rows()
        for _try in range(3):
            with torch.no_grad():
                scores = net(attacked)
            attacked = attacked + 0.1 * scores.std()


@in_source_only("a train() since the last step is taken to be on purpose, whatever function runs the forward")
def test_c61_adversarial_examples_made_right_after_train(run: Run) -> None:
    """The same, where train() at the head of the epoch is the last thing before the attack."""
    net = run.watch(Classifier())

    def attack(attacked: Tensor) -> Tensor:
        with torch.no_grad():
            scores: Tensor = net(attacked)
        return attacked + 0.1 * scores.std()

    for _ in range(2):
        net.train()
        attack(rows())
        step(run, net)


@finds("mode.apart")
def test_c62_eval_reached_the_decoder_only(run: Run) -> None:
    """espnet PR#1952: eval() was called on the object that holds the decoder; the encoder stayed in train mode."""
    encoder, decoder = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3)), Classifier()
    run.watch(encoder, decoder)
    optimizer = SGD([*encoder.parameters(), *decoder.parameters()], 0.01)
    optimizer.zero_grad()
    run.backward(decoder(encoder(rows())).square().mean())
    optimizer.step()
    decoder.eval()
    with torch.no_grad():
        decoder(encoder(rows()))


@finds("mode.train_in_evaluation", where="0.1")
def test_c62_eval_reached_a_part_of_the_guarded_model_only(run: Run) -> None:
    """The same, where one guarded model holds both: the encoder's dropout is named."""
    encoder, decoder = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3)), Classifier()
    model = run.watch(nn.Sequential(encoder, decoder))
    step(run, model)
    nn.Sequential(decoder).eval()  # the object that holds the decoder
    with torch.no_grad():
        decoder(encoder(rows()))


@finds("mode.apart")
def test_c64_decoder_of_the_task_outside_the_model(run: Run) -> None:
    """fairseq PR#4722: a decoder that the task owns; validation evals the model alone."""

    class Task:
        def __init__(self) -> None:
            self.decoder = Classifier()

    task, model = Task(), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3))
    run.watch(model, task.decoder)
    optimizer = SGD([*model.parameters(), *task.decoder.parameters()], 0.01)
    for _ in range(2):
        model.train()
        optimizer.zero_grad()
        run.backward(task.decoder(model(rows())).square().mean())
        optimizer.step()
        model.eval()
        with torch.no_grad():
            task.decoder(model(rows()))


@in_source_only("a module that no guarded model holds is nobody's: guard(model, decoder) sees it")
def test_c64_decoder_of_the_task_that_is_not_guarded(run: Run) -> None:
    """The same, where the guard was given the model alone."""
    decoder = Classifier()
    model = run.watch(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3)))
    step_of: Callable[[], Tensor] = lambda: decoder(model(rows())).square().mean()  # noqa: E731
    optimizer = SGD([*model.parameters(), *decoder.parameters()], 0.01)
    for _ in range(2):
        model.train()
        optimizer.zero_grad()
        run.backward(step_of())
        optimizer.step()
        model.eval()
        with torch.no_grad():
            step_of()


@finds("mode.frozen_in_train", "batchnorm.frozen_updates")
def test_c65_train_on_every_network_of_a_dict_wakes_a_frozen_one(run: Run) -> None:
    """StarGANv2-VC#72: `for k in model: model[k].train()`, and one of them is a pretrained, frozen ASR network."""
    nets = {"generator": Classifier(), "asr": Classifier().eval().requires_grad_(False)}
    run.watch(*nets.values())
    optimizer = SGD(nets["generator"].parameters(), 0.01)
    for _ in range(2):
        for name in nets:
            nets[name].train()
        optimizer.zero_grad()
        made = nets["generator"](rows())
        run.backward(nets["asr"](torch.cat([made, made[:, :1]], dim=1)).square().mean())
        optimizer.step()


@quiet
def test_c65_frozen_network_left_in_eval(run: Run) -> None:
    """What its reporter tried; it is right as far as modes go."""
    generator, asr = Classifier(), Classifier().eval().requires_grad_(False)
    run.watch(generator, asr)
    optimizer = SGD(generator.parameters(), 0.01)
    for _ in range(2):
        generator.train()
        optimizer.zero_grad()
        made = generator(rows())
        run.backward(asr(torch.cat([made, made[:, :1]], dim=1)).square().mean())
        optimizer.step()


@quiet
def test_c67_eval_of_a_network_made_for_it_and_of_what_is_no_module(run: Run) -> None:
    """mcan-vqa#26: train() before the loop; self.eval(dataset) is no mode switch, and evals a new network."""

    class Execution:
        def __init__(self, net: nn.Module) -> None:
            self.net = net

        def train(self, dataset: list[Tensor]) -> None:
            self.net.train()
            for _ in dataset:
                step(run, self.net)
                self.eval(dataset)

        def eval(self, dataset: list[Tensor]) -> None:
            validate(Classifier())

    Execution(run.watch(Classifier())).train([rows(), rows()])


@quiet
def test_c68_eval_left_on_where_nothing_reads_it(run: Run) -> None:
    """coRNN#1: eval() is not undone, and the model is made of cells that do not read it."""

    class Oscillators(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(torch.tanh(self.inner(x)))
            return result

    net = run.watch(Oscillators())
    net.train()
    for _ in range(2):
        step(run, net)
        validate(net)


@quiet
def test_c70_train_in_the_evaluation_for_a_batch_of_one(run: Run) -> None:
    """DMS#30, on purpose: statistics of the batch are wanted, so evaluate() calls train() itself."""

    def evaluate(net: nn.Module) -> None:
        net.train()
        with torch.no_grad():
            net(rows())

    net = run.watch(Classifier())
    for _ in range(2):
        net.train()
        step(run, net)
        evaluate(net)


@quiet
def test_c71_transductive_batch_norm_in_the_test_of_maml(run: Run) -> None:
    """higher#55, on purpose: train() in the test, where the inner loop adapts a copy."""
    net = run.watch(Classifier())

    def adapted_and_tested() -> None:
        net.train()
        inner = SGD(net.parameters(), 0.01)
        step(run, net, inner)
        net(rows()).argmax(-1)

    for _ in range(2):
        net.train()
        step(run, net)
        adapted_and_tested()


@quiet
def test_c73_dropout_that_is_always_on(run: Run) -> None:
    """Tacotron2-PyTorch#8, on purpose: the prenet drops in inference as well."""

    class Prenet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.inner(x).relu(), 0.5, training=True)

    net = run.watch(Prenet())
    step(run, net)
    net.eval()
    with torch.no_grad():
        net(rows())
    net.train()
    step(run, net)


@quiet
def test_c74_eval_gives_other_outputs_than_train(run: Run) -> None:
    """pytorch#5406, #4741, VideoPose3D#113, expected: running statistics in place of the batch's."""
    net, batch = run.watch(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))), rows()
    net.train()
    in_train = net(batch)
    net.eval()
    with torch.no_grad():
        in_eval = net(batch)
    assert not torch.allclose(in_train, in_eval)
    net.train()
