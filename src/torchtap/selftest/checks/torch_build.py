"""The PyTorch that is installed: can it be imported, is it the one that was built and tested, is it made for a GPU."""

from __future__ import annotations

import os

from torchtap.selftest.check import Check, Judged, Scope, failed, passed, skipped, unknown, warned
from torchtap.selftest.facts import Facts, Step
from torchtap.selftest.manifest import Manifest, variant_like
from torchtap.selftest.status import Device
from torchtap.selftest.words import cudnn_version


def judge_build(facts: Facts) -> Judged:
    """torch's version, CUDA and architectures against the manifest, where there is one."""
    torch = facts.need_child.done("torch.import")
    version, cuda = torch.text("version"), torch.maybe_text("cuda")
    build = facts.need_child.done("torch.build")
    arch_list = build.texts("arch_list")
    values: dict[str, object] = {"torch": version, "cuda": cuda, "arch_list": list(arch_list)}
    values |= {name: build.maybe_text(name) for name in ("nccl", "nccl_file", "triton", "triton_file")}
    seen = f"torch {version}, " + (f"CUDA {cuda}, {_span(arch_list)}" if cuda else "no CUDA")
    if cuda is None and facts.device is Device.GPU:
        has_gpu = bool(facts.host.nodes or facts.host.pci or (facts.smi is not None and facts.smi.rows))
        # Without a GPU this is the second thing to mend, so it must not be named first.
        return (failed if has_gpu else warned)("cpu_only_build", seen, **values)
    manifest = facts.manifest
    if manifest is None:
        return passed(seen, **values)
    if manifest.error:
        return unknown("manifest_unreadable", seen, **values, error=manifest.error, path=manifest.path)
    names, differences = drift(manifest, torch, build)
    if differences:
        found = "; ".join(differences)
        return warned("torch_drift", seen, **values, differences=found, packages=" ".join(names))
    return passed(f"{seen}; as built", **values)


def _span(arch_list: tuple[str, ...]) -> str:
    return f"{arch_list[0]} to {arch_list[-1]}" if arch_list else "no architectures"


def drift(manifest: Manifest, torch: Step, build: Step) -> tuple[list[str], list[str]]:
    """(the distributions to remove, what differs from the image, each with the file that was really loaded)."""
    nccl = f"nvidia-nccl-cu{manifest.cuda.partition('.')[0]}" if manifest.cuda else "nvidia-nccl"
    arch_list = " ".join(sorted(build.texts("arch_list")))
    rows = (
        ("torch", "torch", torch.text("version").partition("+")[0], manifest.torch, torch.maybe_text("file")),
        ("torch", "CUDA", torch.maybe_text("cuda") or "none", manifest.cuda or "none", None),
        ("torch", "architectures", arch_list, " ".join(sorted(manifest.arch_list)), None),
        ("triton", "triton", build.maybe_text("triton"), manifest.triton, build.maybe_text("triton_file")),
        (nccl, "NCCL", build.maybe_text("nccl"), manifest.nccl, build.maybe_text("nccl_file")),
    )
    names: dict[str, None] = {}
    said = []
    for distribution, name, now, built, file in rows:
        differs = bool(built) and now != built.partition("+")[0]
        elsewhere = bool(file and manifest.packages) and not _is_below(file or "", manifest.packages)
        if differs or elsewhere:
            names[distribution] = None
            what = f"{name} {now} instead of {built}" if differs else f"{name} {now} of yours"
            said.append(f"{what}, from {file}" if elsewhere else what)
    return list(names), said


def _is_below(file: str, folder: str) -> bool:
    return os.path.realpath(file).startswith(os.path.realpath(folder) + os.sep)


def judge_cudnn(facts: Facts) -> Judged:
    """The cuDNN that torch has loaded against the manifest, else against the one its wheel brings."""
    torch = facts.need_child.done("torch.import")
    cuda = torch.maybe_text("cuda")
    step = facts.need_child.done("torch.cudnn")
    if cuda is None and step.value.get("version") is None:
        return skipped("not_applicable", "this torch is built without CUDA, so without cuDNN")
    loaded = step.whole("version")
    files = step.texts("files")
    folder = files[0].rpartition("/")[0] if files else ""
    expected = _expected_cudnn(facts, torch.text("version"), cuda)
    values = {"loaded": cudnn_version(loaded), "files": list(files)}
    seen = f"cuDNN {cudnn_version(loaded)}"
    if expected is None:
        return passed(f"{seen} (nothing to compare it with)", **values)
    values["expected"] = cudnn_version(expected)
    if loaded != expected:
        where = f": {folder}" if folder else ""
        return warned("cudnn_drift", f"{seen}, expected {cudnn_version(expected)}", **values, where=where)
    return passed(f"{seen}, as it should be", **values)


def _expected_cudnn(facts: Facts, version: str, cuda: str | None) -> int | None:
    manifest = facts.manifest
    # For another torch than the image's, that one's own is the right one: torch.build has said what is the matter.
    if manifest is not None and not manifest.error and manifest.torch == version.partition("+")[0]:
        return manifest.cudnn
    like = variant_like(version, cuda)
    return like.cudnn if like is not None else None


CHECKS = (
    Check(
        id="torch.build",
        title="Is this the PyTorch that was built and tested, and is it made for a GPU?",
        reads=("child:torch.import", "child:torch.build", "manifest", "/dev/nvidia*", "/sys/bus/pci/devices"),
        judge=judge_build,
        causes=("torch_missing", "cpu_only_build", "torch_drift", "manifest_unreadable"),
        on_error="torch_missing",
        scope=Scope.ANY,
        source="the image's manifest",
        see="python -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_arch_list())'",
    ),
    Check(
        id="torch.cudnn",
        title="Is the cuDNN that PyTorch loads its own?",
        reads=("child:torch.import", "child:torch.cudnn", "manifest"),
        needs=("torch.build",),
        judge=judge_cudnn,
        causes=("cudnn_drift", "cudnn_mixed"),
        on_error="cudnn_mixed",
        scope=Scope.ANY,
        source="the image's manifest, else variants.py; pytorch#188892",
        see="python -c 'import torch; print(torch.backends.cudnn.version())'",
    ),
)
