"""Several guarded models in different modes in one evaluation, or in one training step."""

from __future__ import annotations

import torch
from torch import nn

from tests.unit.modes.silent.nets import Net, X, evaluate, found, sgd, step, watch


class Decoder(Net):
    """Another class, to be told apart by."""


def test_c64_eval_reaches_one_of_two_models():
    """Says which one is in which mode, and by which line."""
    model, decoder = Net(), Decoder()
    optimizer = sgd(model, decoder)
    with watch(model, decoder) as guard:
        for _ in range(2):
            optimizer.zero_grad()
            (model(X) + decoder(X)).sum().backward()
            optimizer.step()
            evaluate(model)
            with torch.no_grad():
                decoder(X)
            model.train()
    assert found(guard) == [("mode.apart", "Decoder")]
    assert guard.findings[0].cause.endswith("reached Net, and not Decoder, which runs in the same evaluation")


def test_without_any_training_inside_too():
    model, decoder = Net(), Decoder()
    with watch(model, decoder) as guard:
        model.eval()
        with torch.no_grad():
            decoder(X)
    assert found(guard) == [("mode.apart", "Decoder")]


def test_a_model_that_does_not_run_there_may_be_in_train_mode():
    """A GAN's generator sampled in eval mode."""
    generator, critic = Net(), Decoder()
    optimizers = sgd(generator), sgd(critic)
    with watch(generator, critic) as guard:
        for _ in range(2):
            step(generator, optimizers[0])
            step(critic, optimizers[1])
            evaluate(generator)
            generator.train()
    assert found(guard) == []


def test_c65_train_on_every_net_of_a_dict_reaches_the_frozen_one():
    nets = {"mapping": Net(), "asr": Decoder().requires_grad_(False).eval()}
    optimizer = sgd(nets["mapping"])
    with watch(*nets.values()) as guard:
        for key in nets:
            nets[key].train()
        for _ in range(2):
            optimizer.zero_grad()
            (nets["mapping"](X) + nets["asr"](X)).sum().backward()
            optimizer.step()
    assert ("mode.frozen_in_train", "Decoder") in found(guard)


def test_a_net_that_came_in_eval_mode_and_no_optimizer_holds():
    """Its parameters ask for gradients, as those of a loaded net do."""
    nets = [Net(), Decoder().eval()]
    optimizer = sgd(nets[0])
    with watch(*nets) as guard:
        for each in nets:
            each.train()
        for _ in range(2):
            optimizer.zero_grad()
            (nets[0](X) + nets[1](X)).sum().backward()
            optimizer.step()
    assert ("mode.frozen_in_train", "Decoder") in found(guard)


def test_nets_with_an_optimizer_each_are_well():
    nets = [Net().eval(), Decoder().eval()]
    optimizers = [sgd(each) for each in nets]
    with watch(*nets) as guard:
        for _ in range(3):
            for each in nets:
                each.train()
            for net, optimizer in zip(nets, optimizers, strict=True):
                step(net, optimizer)
    assert found(guard) == []


def test_a_frozen_net_that_is_left_in_eval_mode_is_well():
    student, teacher = Net(), Decoder().requires_grad_(False).eval()
    optimizer = sgd(student)
    with watch(student, teacher) as guard:
        for _ in range(2):
            student.train()
            with torch.no_grad():
                teacher(X)
            step(student, optimizer)
    assert found(guard) == []


def test_a_net_without_anything_that_reads_its_mode_is_well():
    student, teacher = Net(), nn.Linear(4, 1).requires_grad_(False)
    with watch(student, teacher) as guard:
        for each in (student, teacher):
            each.train()
        step(student, sgd(student))
    assert found(guard) == []
