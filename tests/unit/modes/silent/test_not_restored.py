"""Training goes on in the mode that an evaluation left behind: told at the step that it harms, and only there."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from tests.unit.modes.silent.nets import Net, X, evaluate, found, line_of, set_mode, sgd, step, watch
from torchtap import modes

NOT_RESTORED = [("mode.not_restored", "")]


def test_c10_train_once_before_the_epochs_and_eval_inside():
    """The finding names how many modules, the line of eval(), the line of the step, and the function to mend."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        net.train()
        for _ in range(3):
            step(net, optimizer)
            evaluate(net)
    assert found(guard) == NOT_RESTORED
    finding = guard.findings[0]
    assert finding.severity is modes.Severity.WARN
    assert finding.seen.startswith("2 Dropout, 1 BatchNorm1d in eval mode at the training step at ")
    assert finding.seen.endswith(line_of("# the step"))
    assert finding.cause.startswith("eval() at ")
    assert line_of("# evaluate's eval") in finding.cause
    assert finding.remedy.startswith("in evaluate(), `with modes.eval_mode(model):`")


def test_it_is_told_at_the_first_step_that_it_harms():
    """Not before, and not only at the end."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        step(net, optimizer)
        evaluate(net)
        assert found(guard) == []
        step(net, optimizer)
        assert found(guard) == NOT_RESTORED


def test_c44_validation_in_the_middle_of_an_epoch():
    """train() comes at the next epoch: the rest of this one runs without dropout."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            net.train()
            for batch in range(4):
                step(net, optimizer)
                if batch == 1:
                    evaluate(net)
    assert found(guard) == NOT_RESTORED


def test_c46_a_helper_loops_over_several_nets():
    """Each of them is named."""
    program, engine = Net(), Net()
    optimizer = sgd(program, engine)
    with watch(program, engine) as guard:
        for _ in range(2):
            optimizer.zero_grad()
            (program(X) + engine(X)).sum().backward()
            optimizer.step()
            set_mode("eval", [program, None, engine])
    assert [finding.id for finding in guard.findings] == ["mode.not_restored"] * 2


def test_c55_a_method_of_the_model_evals_itself():
    class Generator(Net):
        def generate(self) -> torch.Tensor:
            self.eval()
            return self(X).detach()  # type: ignore[no-any-return]

    net = Generator()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            step(net, optimizer)
            net.generate()
    assert found(guard) == NOT_RESTORED
    assert "in generate()" in guard.findings[0].remedy


def test_an_evaluation_before_the_first_step_counts_too():
    """A sanity check before training."""
    net = Net()
    with watch(net) as guard:
        evaluate(net)
        step(net, sgd(net))
    assert found(guard) == NOT_RESTORED


def test_eval_of_the_parts_one_by_one_is_seen_through():
    """evaluate() evals encoder and head, not the model itself."""
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            step(net, optimizer)
            net.encoder.eval()
            with torch.no_grad():
                net.encoder(X)
    assert found(guard) == [("mode.not_restored", "encoder")]


def test_without_an_optimizer_a_line_that_has_trained_before_is_a_step():
    """Manual updates. Named is the line of backward()."""
    net = Net()
    with watch(net) as guard:
        for _ in range(2):
            net(X).sum().backward()  # manual
            with torch.no_grad():
                for each in net.parameters():
                    assert each.grad is not None
                    each.sub_(each.grad, alpha=0.01)
            evaluate(net)
    assert found(guard) == NOT_RESTORED
    assert line_of("# manual", __file__) in guard.findings[0].seen


def test_saliency_in_eval_mode_is_no_training_step():
    net = Net()
    with watch(net) as guard:
        for _ in range(2):
            net(X).sum().backward()
        net.eval()
        net(X.clone().requires_grad_()).sum().backward()
        net.train()
    assert found(guard) == []


def test_an_exception_in_the_evaluation_changes_nothing():
    net = Net()
    optimizer = sgd(net)

    def evaluate_on_a_bad_batch() -> None:
        evaluate(net)
        net(X.T)

    with watch(net) as guard:
        step(net, optimizer)
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            evaluate_on_a_bad_batch()
        step(net, optimizer)
    assert found(guard) == NOT_RESTORED


def test_training_in_pieces_under_one_guard_remembers_the_piece_before():
    """A decorated train function, an evaluation outside."""
    net = Net()
    optimizer = sgd(net)
    guard = watch(net)

    @guard
    def train() -> None:
        step(net, optimizer)

    train()
    evaluate(net)
    train()
    assert found(guard) == NOT_RESTORED
    assert "while nobody watched" in guard.findings[0].cause


@pytest.mark.parametrize("mended", [False, True])
def test_of_nested_evaluations_the_outer_one_is_named_as_it_made_the_change(mended: bool):
    """The remedy mends: what is called inside may call eval() as it likes."""
    net = Net()
    optimizer = sgd(net)

    def validate() -> None:
        if mended:
            with modes.eval_mode(net):
                evaluate(net)
        else:
            net.eval()  # validate's eval
            evaluate(net)

    with watch(net) as guard:
        for _ in range(3):
            step(net, optimizer)
            validate()
    assert found(guard) == ([] if mended else NOT_RESTORED)
    if not mended:
        (finding,) = guard.findings
        assert line_of("net.eval()  # validate's eval", __file__) in finding.cause
        assert finding.cause.endswith("before it they were in train mode")
        assert finding.remedy.startswith("in validate(), `with modes.eval_mode(model):`")


def test_a_flag_read_after_eval_is_not_blamed_for_putting_it_back():
    net = Net()
    optimizer = sgd(net)

    def callback() -> None:
        net.eval()  # before the flag
        was = net.training
        with torch.no_grad():
            net(X)
        net.train(was)

    with watch(net) as guard:
        for _ in range(2):
            step(net, optimizer)
            callback()
    assert found(guard) == NOT_RESTORED
    assert line_of("net.eval()  # before the flag", __file__) in guard.findings[0].cause


def test_a_mode_that_train_false_has_set_is_told_so():
    net = Net()
    optimizer = sgd(net)
    with watch(net) as guard:
        step(net, optimizer)
        net.train(False)
        with torch.no_grad():
            net(X)
        step(net, optimizer)
    assert guard.findings[0].cause.startswith("train(False) at ")
    assert "train(False) at " in str(guard)


@pytest.mark.parametrize("part", [False, True], ids=["the whole", "a part"])
def test_a_guard_that_is_entered_again_knows_what_it_saw_before(part: bool):
    """Once an epoch: the eval() is older than this opening."""
    net = Net()
    optimizer = sgd(net)
    guard = watch(net)
    for _ in range(3):
        with guard:
            step(net, optimizer)
            evaluated = net.encoder if part else net
            evaluated.eval()  # in an epoch before
            with torch.no_grad():
                evaluated(X)
    assert found(guard) == [("mode.not_restored", "encoder" if part else "")]
    assert line_of("# in an epoch before", __file__) in guard.findings[0].cause


def test_what_was_changed_between_two_openings_is_not_known():
    net = Net()
    optimizer = sgd(net)
    guard = watch(net)
    for _ in range(2):
        with guard:
            net.eval()
            net.train()
            step(net, optimizer)
        evaluate(net)
    with guard:
        step(net, optimizer)
    assert "while nobody watched" in guard.findings[0].cause


def test_c43_a_decorated_evaluation_that_leaves_eval_mode():
    """Nothing trains inside: the modes shall be as before."""
    net = Net()
    step(net, sgd(net))
    guard = watch(net)
    guard(evaluate)(net)
    assert found(guard) == NOT_RESTORED
    assert guard.findings[0].severity is modes.Severity.WARN
    assert "2 Dropout, 1 BatchNorm1d left in eval mode" in guard.findings[0].seen


@pytest.mark.parametrize("restores", [True, False])
def test_an_evaluation_of_an_untrained_model_is_only_an_info(restores: bool):
    """It may be a script that only predicts."""
    net = Net()
    with watch(net) as guard:
        evaluate(net)
        net.train(restores)
    if not restores:
        guard = watch(net.train())
        guard(evaluate)(net)
    assert [finding.severity for finding in guard.findings] == [modes.Severity.INFO] * (not restores)


def test_c78_a_pretrained_model_trained_without_train():
    net = Net().eval()
    with watch(net) as guard:
        for _ in range(2):
            step(net, sgd(net))
    assert found(guard) == [("mode.trained_in_eval", "")]
    assert "before the guard was entered" in guard.findings[0].cause


def test_eval_right_before_the_loop_is_said_too():
    """Nothing tells a mistake from a decision here, so it is said once."""
    net = Net()
    with watch(net) as guard:
        net.eval()
        for _ in range(3):
            step(net, sgd(net))
    assert found(guard) == [("mode.trained_in_eval", "")]
    assert "eval() at " in guard.findings[0].cause


def test_a_users_class_that_reads_its_mode_outside_forward_counts():
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def noise(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x) if self.training else x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.noise(x))  # type: ignore[no-any-return]

    net = Noisy()
    optimizer = sgd(net)
    with watch(net) as guard:
        for _ in range(2):
            step(net, optimizer)
            evaluate(net)
    assert found(guard) == NOT_RESTORED


def test_nothing_is_kept_alive():
    net = Net()
    optimizer = sgd(net)
    guard = watch(net)
    with guard:
        step(net, optimizer)
        evaluate(net)
        step(net, optimizer)
    model, steps = weakref.ref(net), weakref.ref(optimizer)
    del net, optimizer
    gc.collect()
    assert model() is None
    assert steps() is None
    assert found(guard) == NOT_RESTORED
