"""What comes in: batches, their scale, and which rows of an embedding they touch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from torchtap._findings import Severity
from torchtap.diagnose._reading import trend
from torchtap.diagnose.rule import Limit, Rule, Seen
from torchtap.monitor.run import Run

_HEALTHY = "measured on the healthy trainings of docs/cases.md: none comes near"


def _same(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    seen = run.batches
    if seen is None or not seen.same or seen.plain or seen.steps < limit["steps"]:
        return
    if not limit["rows"] <= seen.rows <= limit["most"] or not (seen.made_anew or seen.part):
        return
    how = "as new tensors each time" if seen.made_anew else "a small part of a larger tensor"
    yield Seen("", {"rows": seen.rows, "steps": seen.steps, "how": how})


def _empty(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    for series in run.inputs:
        values = series["count"] / np.maximum(1, series.last_step - series.first_step + 1)
        many = len(series) > 0 and values.min() >= limit["values"] and len(run.inputs) == 1
        if many and (series["min"] == series["max"]).all() and trend(run) != "falls":
            yield Seen("", {"value": float(series["max"][0])})


def _unscaled(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    for series in run.inputs:
        rms = float(np.median(series["rms"])) if len(series) else 0.0
        if rms > limit["rms"]:
            mean, deviation = float(np.median(series["mean"])), float(np.median(series["std"]))
            yield Seen(
                "",
                {
                    "rms": rms,
                    "mean": mean,
                    "std": deviation,
                    "low": series["min"].min(),
                    "high": series["max"].max(),
                },
            )
            return


def _untouched(run: Run, limit: Mapping[str, float]) -> Iterator[Seen]:
    for layer in run.layers:
        touched = layer.look.touched
        if touched is None or len(touched) < limit["rows"]:
            continue
        if layer.look.tokens >= limit["tokens"] * len(touched) and touched.mean() <= limit["share"]:
            yield Seen(
                layer.name,
                {"number": int(touched.sum()), "rows": len(touched), "tokens": layer.look.tokens},
            )


RULES = (
    Rule(
        id="input.constant",
        severity=Severity.WARN,
        looks_at="smallest and largest value of the model's input, every step",
        definition="The only floating input is one and the same value throughout, and the loss does not fall.",
        limits=(Limit("values", 8, "values a step", "fewer may be a switch"),),
        seen="every value of the input was {value:g} in all steps",
        cause="the data is lost before the model: an empty buffer, a normalisation that divides by itself, a wrong key",
        remedy="print one batch of the loader; check what the transforms give",
        fine_when="the model needs no input",
        explains=("loss.flat", "output.constant", "parameter.never_updated", "relu.dead", "batch.same"),
        find=_empty,
    ),
    Rule(
        id="input.unscaled",
        severity=Severity.WARN,
        looks_at="root mean square of the model's input, every step",
        definition="It is above 20, and training has one of the troubles that come of it.",
        limits=(Limit("rms", 20, "", "bytes of an image have 130; normalised data has 1"),),
        seen="the input has rms {rms:.3g} (from {low:.3g} to {high:.3g})",
        cause="the data is not normalised: the first layer's outputs and gradients are that much larger",
        remedy="x = (x - {mean:.3g}) / {std:.3g}; for images x / 255 first",
        fine_when="training gets on with it",
        explains=(
            "loss.flat",
            "loss.diverged",
            "loss.nonfinite",
            "nonfinite.first",
            "relu.dead",
            "activation.saturated",
            "update.too_large",
            "gradient.grows",
            "gradient.exploding",
            "activation.grows",
            "softmax.one_choice",
            "output.constant",
            "parameter.never_updated",
            "fp16.overflow",
        ),
        only_with=(
            "loss.flat",
            "loss.diverged",
            "loss.nonfinite",
            "nonfinite.first",
            "relu.dead",
            "activation.saturated",
            "update.too_large",
            "gradient.grows",
            "output.constant",
            "fp16.overflow",
        ),
        find=_unscaled,
    ),
    Rule(
        id="batch.same",
        severity=Severity.WARN,
        looks_at="64 elements of every input in some steps, at no fixed distance",
        definition="They are the same in every step that was looked at, and the tensors are made anew each time or "
        "are a quarter or less of a larger one. One whole tensor given again and again is taken to be the whole data "
        "set.",
        limits=(
            Limit("steps", 6, "steps", "the first six, one after the other"),
            Limit("rows", 2, "rows", "one is an environment or a canvas"),
            Limit("most", 4096, "rows", "more are a data set"),
        ),
        seen="the model got the same {rows} rows in all {steps} steps that were looked at, {how}",
        cause="the loop asks for the first batch again and again: next(iter(loader)) inside it, a seed set in every "
        "step, an index that does not advance",
        remedy="for x, y in loader: ...; or make the iterator once, before the loop",
        fine_when="one batch is overfitted to test the model, or it is the whole data set",
        find=_same,
    ),
    Rule(
        id="embedding.untouched",
        severity=Severity.WARN,
        looks_at="indices given to every nn.Embedding, every tenth step",
        definition="A twentieth of the rows or fewer were ever asked for, of 20 indices a row and more.",
        limits=(
            Limit("share", 0.05, "of the rows", _HEALTHY),
            Limit("rows", 16, "rows", "fewer are a table"),
            Limit("tokens", 4, "indices a row, in the looks", "a tenth of all"),
        ),
        seen="only {number} of {rows} rows were asked for by {tokens} indices",
        cause="the indices are wrong: all mapped to one (unknown word, hash, cast), or of another vocabulary",
        remedy="print(indices.unique()) of a batch; check the tokenizer's vocabulary against num_embeddings={rows}",
        fine_when="the vocabulary is much larger than the data's",
        explains=("loss.flat", "output.constant"),
        find=_untouched,
    ),
)
