"""The callback in real trainings by Hugging Face's Trainer, on a CPU, with a model of random weights."""

# mypy: disallow-untyped-calls=False, disallow-subclassing-any=False

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from torchtap.integrations.transformers import WatchCallback
from torchtap.monitor import gather

TOKENS = torch.randint(0, 32, (24, 8), generator=torch.Generator().manual_seed(0))
ROWS = [{"input_ids": row, "labels": row} for row in TOKENS]


def model() -> Any:
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2))


def trained(net: Any, folder: Path, *callbacks: Any, rows: Any = ROWS, **options: Any) -> Trainer:
    arguments = {
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 5,
        "dataloader_pin_memory": False,
    }
    trainer = Trainer(
        model=net,
        args=TrainingArguments(output_dir=str(folder), **{**arguments, **options}),
        train_dataset=rows,
        eval_dataset=rows[:4],
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def test_each_step_is_measured_and_nothing_is_changed(tmp_path: Path) -> None:
    """6 steps with an evaluation in between, which is not measured. Weights and random numbers as without."""
    bare, net, callback = model(), model(), WatchCallback(parameters_every=1)
    trained(bare, tmp_path, eval_strategy="steps", eval_steps=2)
    numbers = torch.get_rng_state()
    trained(net, tmp_path, callback, eval_strategy="steps", eval_steps=2)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), net.parameters(), strict=True))
    w = callback.watch
    assert w is not None
    assert (w.steps, w.is_open) == (6, False)
    assert w.series("transformer.h.0.mlp.c_fc")["count"].tolist() == [4 * 8 * 64] * 6
    assert len(w.series("transformer.h.1.attn.c_attn", "gradient")) == 6
    assert not any(module._forward_hooks for module in net.modules())
    parameter = gather(w)[0].parameters["transformer.h.0.mlp.c_fc.weight"]
    assert (parameter.gradient > 0).all()
    assert (parameter.update[:-1] > 0).all(), "of the last step the learning rate is 0"


def test_loss_and_learning_rate_are_logged(tmp_path: Path) -> None:
    """The trainer's loss, at the step that follows."""
    callback = WatchCallback()
    trainer = trained(model(), tmp_path, callback)
    w = callback.watch
    assert w is not None
    logged = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    losses = w.scalars("loss")
    np.testing.assert_allclose(losses["mean"], logged[:-1], rtol=1e-6)
    assert losses.first_step.tolist() == [1, 2, 3, 4, 5]
    rates = w.scalars("lr.0")["mean"]
    assert len(rates) == 6
    assert (np.diff(rates) < 0).all(), "it decays"


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    callback = WatchCallback()
    trained(model(), tmp_path, callback, gradient_accumulation_steps=3, max_steps=2)
    assert callback.watch is not None
    assert callback.watch.steps == 2
    assert callback.watch.series("transformer.h.0.mlp.c_fc")["count"].tolist() == [3 * 4 * 8 * 64] * 2


def test_a_training_that_raises_can_begin_anew(tmp_path: Path) -> None:
    """The trainer tells no callback of it: the next train() takes the old hooks off."""
    net, callback = model(), WatchCallback()
    broken = [*ROWS[:8], *({"input_ids": row + 99, "labels": row} for row in TOKENS[8:])]
    with pytest.raises(IndexError):
        trained(net, tmp_path, callback, rows=broken, max_steps=20)
    first = callback.watch
    assert first is not None
    trained(net, tmp_path, callback)
    assert callback.watch is not first
    assert not first.is_open
    assert callback.watch is not None
    assert callback.watch.steps == 6
    assert not any(module._forward_hooks for module in net.modules())


def test_options_are_those_of_watch(tmp_path: Path) -> None:
    callback = WatchCallback(layers="**.mlp.c_fc", every=3)
    trained(model(), tmp_path, callback)
    assert callback.watch is not None
    assert [layer.name for layer in callback.watch.layers] == [f"transformer.h.{n}.mlp.c_fc" for n in (0, 1)]
    assert callback.watch.series("transformer.h.0.mlp.c_fc").first_step.tolist() == [0, 3]
