"""GPUs of one kind against each other: their NVLinks and their firmware."""

from __future__ import annotations

from torchtap.selftest.check import Check, Judged, UnreadableError, failed, passed, skipped, warned
from torchtap.selftest.facts import Facts
from torchtap.selftest.references import has_nvswitch
from torchtap.selftest.smi.nvlink import Links, read_nvlink
from torchtap.selftest.status import Level
from torchtap.selftest.words import count, name_gpus

FIRMWARE = ("vbios_version", "inforom.image")


def judge_nvlink(facts: Facts) -> Judged:
    """Links that are down. All down, or some on all GPUs alike, is right for PCIe and NVL boards, which are bridged in
    pairs or not at all, and wrong behind an NVSwitch, known by the board or the fabric that it reports.
    """
    smi = facts.need_smi
    if smi.path is None:
        return skipped("not_reported", "there is no nvidia-smi to ask")
    if any(row.text("mig.mode.current") == "Enabled" for row in smi.rows):
        return skipped("not_applicable", "MIG is on, which uses no NVLink")
    answer = smi.also.get("nvlink")
    if answer is None:
        if len(smi.rows) == 1:
            return skipped("not_applicable", "one GPU, which has nothing to be linked with")
        raise UnreadableError("nvidia-smi was not asked for its NVLinks")
    gpus, strays = read_nvlink(answer.text)
    if strays or answer.rc or len(gpus) != len(smi.rows):
        what = strays[0].strip() if strays else f"{len(gpus)} of {len(smi.rows)} GPUs, exit code {answer.rc}"
        raise UnreadableError(f"nvidia-smi nvlink -s says {what!r}")
    values: dict[str, object] = {"up": [gpu.up for gpu in gpus], "down": [list(gpu.down) for gpu in gpus]}
    if not any(gpu.up for gpu in gpus):
        switched = [
            row.gpu
            for row in smi.rows
            if row.text("fabric.state") is not None or has_nvswitch(row.text("name") or "")
        ]
        if switched:
            return failed("nvlink_all_down", "no NVLink is up", **values, gpus=name_gpus(switched))
        return skipped("not_applicable", "no NVLink is connected")
    broken = [gpu for gpu in gpus if gpu.up < max(each.up for each in gpus if each.name == gpu.name)]
    if broken:
        return failed("nvlink_inactive", _seen(broken), **values, gpus=name_gpus(gpu.index for gpu in broken))
    if partly := [gpu for gpu in gpus if gpu.down]:
        wired = [gpu for gpu in partly if has_nvswitch(gpu.name)]
        cause, say = ("nvlink_down", failed) if wired else ("nvlink_partly", warned)
        return say(cause, _seen(partly), **values, gpus=name_gpus(gpu.index for gpu in wired or partly))
    return passed(f"{count(sum(gpu.up for gpu in gpus), 'NVLink')} up, none down", **values)


def _seen(gpus: list[Links]) -> str:
    return "; ".join(f"GPU {gpu.index}: {gpu.up} up, {len(gpu.down)} down" for gpu in gpus)


def judge_firmware(facts: Facts) -> Judged:
    """VBIOS and infoROM of GPUs with the same name."""
    smi = facts.need_smi
    if smi.path is None:
        return skipped("not_reported", "there is no nvidia-smi to ask")
    if not smi.rows:
        raise UnreadableError("nvidia-smi reported no GPU")
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for row in smi.rows:
        for field in FIRMWARE:
            row.value(field)  # a value of another form is unreadable, not another version
            if (text := row.text(field)) is not None:
                found.setdefault((row.text("name") or "?", field), {}).setdefault(text, []).append(
                    row.gpu or 0
                )
    values: dict[str, object] = {f"{name}: {field}": versions for (name, field), versions in found.items()}
    if not found:
        return skipped("not_reported", "not reported by this GPU")
    for (name, field), versions in found.items():
        if len(versions) > 1:
            fewest = min(versions.values(), key=len)
            seen = ", ".join(f"{text} ({name_gpus(gpus)})" for text, gpus in versions.items())
            return warned(
                "firmware_differs",
                f"{field}: {seen}",
                **values,
                gpus=name_gpus(fewest),
                what=field,
                name=name,
            )
    return passed(", ".join(f"{field} {next(iter(texts))}" for (_, field), texts in found.items()), **values)


CHECKS = (
    Check(
        id="gpu.nvlink",
        title="Are all NVLinks up?",
        reads=("ask:nvlink", "smi:index", "smi:fabric.state", "smi:mig.mode.current"),
        needs=("gpu.state",),
        judge=judge_nvlink,
        causes=("nvlink_inactive", "nvlink_all_down", "nvlink_down", "nvlink_partly"),
        level=Level.FULL,
        source="GPUs of one kind must have as many links up; on boards of NVSwitch hosts all must be. Others may have "
        "links that are down by design (azurehpc-health-checks#162: 6 of 18 of an H100 NVL)",
        see="nvidia-smi nvlink -s",
    ),
    Check(
        id="gpu.firmware",
        title="Have GPUs of one kind the same firmware?",
        reads=("smi:name", *(f"smi:{field}" for field in FIRMWARE)),
        needs=("gpu.state",),
        judge=judge_firmware,
        causes=("firmware_differs",),
        level=Level.FULL,
        source="imbue-ai/cluster-health: versions all equal over the GPUs of a host",
        see="nvidia-smi --query-gpu=name,vbios_version,inforom.img --format=csv",
    ),
)
