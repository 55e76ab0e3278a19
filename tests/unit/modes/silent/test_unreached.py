"""Parts that the last train() or eval() of the model did not reach."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.unit.modes.silent.nets import Net, X, evaluate, found, line_of, sgd, step, watch


class HandlesHead(Net):
    """C86: its train() goes on to the head only."""

    def train(self, mode: bool = True) -> Any:
        """Sets its own flag and the head's."""
        self.training = mode
        self.head.train(mode)
        return self


def test_c86_an_overridden_train_handles_only_some_children():
    net = HandlesHead()
    with watch(net) as guard:
        step(net, sgd(net))
        evaluate(net)
    found_here = [each for each in guard.findings if each.id == "mode.unreached"]
    assert [each.where for each in found_here] == ["encoder"]
    assert found_here[0].seen.startswith(
        "1 BatchNorm1d, 1 Dropout in train mode, the model in eval mode since "
    )
    assert found_here[0].cause == "HandlesHead.train() is overridden and does not pass the mode on to it"


def test_the_other_way_round_it_is_told_at_a_training_step():
    net = HandlesHead()
    net.encoder.eval()
    with watch(net) as guard:
        net.train()
        step(net, sgd(net))
    assert ("mode.unreached", "encoder") in found(guard)


def test_s24_a_part_added_after_eval():
    net = Net()
    with watch(net) as guard:
        net.eval()  # s24
        net.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 1))
        with torch.no_grad():
            net(X)
    assert found(guard) == [("mode.unreached", "head")]
    assert line_of("# s24", __file__) in guard.findings[0].seen
    assert "added after eval()" in guard.findings[0].cause


def test_a_flag_written_on_the_model_alone():
    net = Net()
    with watch(net) as guard:
        net.training = False
        with torch.no_grad():
            net(X)
    assert [finding.id for finding in guard.findings] == ["mode.unreached"] * 2
    assert "written on the model alone" in guard.findings[0].cause


def test_a_flag_written_on_the_model_alone_behind_a_train_on_the_same_line():
    net = Net()
    with watch(net) as guard:
        net.train(); net.training = False  # fmt: skip  # noqa: E702
        with torch.no_grad():
            net(X)
    assert {each.id for each in guard.findings} == {"mode.unreached"}


def test_without_a_forward_it_does_no_harm():
    net = HandlesHead()
    with watch(net) as guard:
        net.eval()
        net.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 1))
        net.train()
    assert [each.id for each in guard.findings] == ["module.train_overridden"]  # which is seen at once


def test_a_part_that_stays_by_its_own_train_is_meant():
    class Stays(nn.Sequential):
        def train(self, mode: bool = True) -> Any:
            return self

    net = Net()
    net.encoder = Stays(*net.encoder)
    with watch(net) as guard:
        evaluate(net)
    assert ("mode.unreached", "encoder") not in found(guard)
