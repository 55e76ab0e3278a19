"""The PyTorch that is installed: can it be imported, is it the one that was built and tested, is it made for a GPU."""

from __future__ import annotations

from torchtap.selftest.check import Check, Judged, Scope, failed, passed, skipped, unknown, warned
from torchtap.selftest.facts import Facts
from torchtap.selftest.manifest import Manifest, variant_like
from torchtap.selftest.status import Device
from torchtap.selftest.words import cudnn_version


def judge_build(facts: Facts) -> Judged:
    """torch's version, CUDA and architectures against the manifest, where there is one."""
    torch = facts.need_child.done("torch.import")
    version, cuda = torch.text("version"), torch.maybe_text("cuda")
    arch_list = facts.need_child.done("torch.build").texts("arch_list")
    values = {"torch": version, "cuda": cuda, "arch_list": list(arch_list)}
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
    differences = _differences(manifest, version, cuda, arch_list)
    if differences:
        return warned("torch_drift", seen, **values, differences="; ".join(differences))
    return passed(f"{seen}; as built", **values)


def _span(arch_list: tuple[str, ...]) -> str:
    return f"{arch_list[0]} to {arch_list[-1]}" if arch_list else "no architectures"


def _differences(manifest: Manifest, version: str, cuda: str | None, arch_list: tuple[str, ...]) -> list[str]:
    pairs = (
        ("torch", version.partition("+")[0], manifest.torch.partition("+")[0]),
        ("CUDA", cuda or "none", manifest.cuda or "none"),
        ("architectures", " ".join(sorted(arch_list)), " ".join(sorted(manifest.arch_list))),
    )
    return [f"{name} {now} instead of {built}" for name, now, built in pairs if now != built]


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
    if facts.manifest is not None and not facts.manifest.error:
        return facts.manifest.cudnn
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
