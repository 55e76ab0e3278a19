"""Every model constructor of torchvision, with random weights and the smallest input that it takes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.matrix.cases import Case

Batch = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
SAMPLE = {
    "deeplabv3_mobilenet_v3_large", "densenet121", "efficientnet_b0", "fasterrcnn_mobilenet_v3_large_320_fpn",
    "googlenet", "lraspp_mobilenet_v3_large", "mc3_18", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small",
    "quantized_shufflenet_v2_x0_5", "r3d_18", "raft_small", "regnet_x_400mf", "regnet_y_400mf", "resnet18",
    "shufflenet_v2_x0_5", "squeezenet1_1", "ssdlite320_mobilenet_v3_large", "swin_t",
}  # fmt: skip
"""What `make test` runs: each family once, as its smallest."""
GROUPS = ("detection", "segmentation", "video", "quantization", "optical_flow")
SMALL = {"min_size": 96, "max_size": 128}  # what the detectors scale images to
FEW = {"rpn_post_nms_top_n_train": 64, "box_batch_size_per_image": 32}  # boxes that their heads look at
# Arguments of constructors whose models are made for one size of input; the first beginning that fits.
ARGUMENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vit_h_14", {"image_size": 56}),
    ("vit_", {"image_size": 64}),
    ("googlenet", {"init_weights": True}),
    ("inception_v3", {"init_weights": True}),
    ("fasterrcnn_", {**SMALL, **FEW}),
    ("maskrcnn_", {**SMALL, **FEW}),
    ("keypointrcnn_", {**SMALL, **FEW}),
    ("retinanet_", SMALL),
    ("fcos_", SMALL),
)
# Sizes of one input, the first beginning that fits; classification: 64 by 64 is enough for the others.
SIZES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("vit_h_14", (3, 56, 56)),
    ("inception_v3", (3, 299, 299)),
    ("quantized_inception_v3", (3, 299, 299)),
    ("s3d", (3, 16, 224, 224)),
    ("mvit_", (3, 16, 224, 224)),
    ("maxvit_t", (3, 224, 224)),
    ("swin3d_", (3, 4, 64, 64)),
    ("r3d_18", (3, 4, 32, 32)),
    ("mc3_18", (3, 4, 32, 32)),
    ("r2plus1d_18", (3, 4, 32, 32)),
    ("", (3, 64, 64)),
)


def _first(table: tuple[tuple[str, Any], ...], name: str, otherwise: Any = None) -> Any:
    return next((value for beginning, value in table if name.startswith(beginning)), otherwise)


def _images(size: tuple[int, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.rand(1 if size[-1] == 224 else 2, *size),), {}


def _pairs() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)), {"num_flow_updates": 2}


def _scenes() -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Two images with two objects each, with all that the detectors ask for: boxes, labels, masks, keypoints."""

    def target() -> dict[str, Tensor]:
        corners = torch.rand(2, 2) * 40
        boxes = torch.cat([corners, corners + 20 + torch.rand(2, 2) * 30], dim=1)
        points = corners[:, None] + torch.rand(2, 17, 2) * 20
        return {
            "boxes": boxes,
            "labels": torch.tensor([1, 1]),
            "masks": (torch.rand(2, 96, 96) > 0.5).to(torch.uint8),
            "keypoints": torch.cat([points, torch.ones(2, 17, 1)], dim=2),
        }

    return ([torch.rand(3, 96, 96) for _ in range(2)], [target() for _ in range(2)]), {}


def _batch(name: str, group: str) -> Batch:
    if group == "detection":
        return _scenes
    if group == "optical_flow":
        return _pairs
    return partial(_images, _first(SIZES, name))


def _build(name: str, group: str) -> nn.Module:
    models = importlib.import_module("torchvision.models")
    more = {"weights_backbone": None} if group in ("detection", "segmentation") else {}
    model: nn.Module = models.get_model(name, weights=None, **more, **_first(ARGUMENTS, name, {}))
    return model


def cases() -> list[Case]:
    """A row for each name that `torchvision.models.list_models()` knows."""
    models = importlib.import_module("torchvision.models")
    of_group = {name: group for group in GROUPS for name in models.list_models(getattr(models, group))}
    found = []
    for name in sorted(models.list_models()):
        group = of_group.get(name, "classification")
        found.append(
            Case(
                name,
                f"torchvision {group}",
                partial(_build, name, group),
                _batch(name, group),
                name in SAMPLE,
            )
        )
    return found
