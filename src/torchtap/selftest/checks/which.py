"""Which GPU is meant: torch and nvidia-smi count in different orders.

CUDA_VISIBLE_DEVICES hides and reorders GPUs from torch, and CUDA counts the fastest first unless CUDA_DEVICE_ORDER is
PCI_BUS_ID. So a GPU is named by nvidia-smi's index, found by UUID or bus id; where torch tells neither, by torch's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchtap.selftest.check import UnreadableError
from torchtap.selftest.facts import Facts, NotDoneError
from torchtap.selftest.words import name_gpus

# What `numbering` looks at.
READS = ("child:torch.cuda", "smi:index", "smi:uuid", "smi:pci.bus_id")


@dataclass(frozen=True, slots=True)
class Numbering:
    """torch's index -> the index to show; `by` says whose that is: "nvidia-smi" or "torch"."""

    by: str
    shown: Mapping[int, int]
    names: Mapping[int, str]  # torch's index -> the GPU's name
    memory_mib: Mapping[int, int]

    def index(self, torch_index: int) -> int:
        """The index to show."""
        return self.shown.get(torch_index, torch_index)

    def name(self, torch_indexes: Iterable[int]) -> str:
        """These GPUs, as in "GPU 1"; with a word where they are not counted as nvidia-smi does."""
        known = [index for index in torch_indexes if index >= 0]
        names = name_gpus(self.index(index) for index in known)
        differs = self.by == "torch" and bool(known)
        return f"{names} (as PyTorch counts)" if differs else names

    def where(self, text: str) -> str:
        """Where a step was, in its own words, with GPUs called as in `name`: "GPU 0, bf16" -> "GPU 1, bf16"."""
        named = re.sub(r"\bGPU (\d+)", lambda found: f"GPU {self.index(int(found[1]))}", text)
        return f"{named} (as PyTorch counts)" if self.by == "torch" and "GPU " in text else named

    def measured(self, torch_index: int, value: float, unit: str, what: str = "") -> dict[str, object]:
        """One record of Judged.values["measured"]."""
        record = {"gpu": self.index(torch_index), "name": self.names.get(torch_index, "")}
        return {**record, **({"what": what} if what else {}), "value": value, "unit": unit}


def numbering_if_known(facts: Facts) -> Numbering:
    """`numbering`; torch's own numbers where CUDA did not start, or said nothing that can be read."""
    try:
        return numbering(facts)
    except (NotDoneError, UnreadableError):
        return Numbering("torch", {}, {}, {})


def numbering(facts: Facts) -> Numbering:
    """How torch's GPUs are to be called on this machine."""
    gpus = facts.need_child.done("torch.cuda").records("gpus")
    names = {gpu.whole("index"): gpu.text("name") for gpu in gpus}
    memory = {gpu.whole("index"): gpu.whole("memory_mib") for gpu in gpus}
    rows = facts.smi.rows if facts.smi is not None else ()
    shown: dict[int, int] = {}
    for gpu in gpus:
        for row in rows:
            same_uuid = gpu.value.get("uuid") is not None and gpu.value.get("uuid") == row.text("uuid")
            bus_id = (row.text("pci.bus_id") or "").upper()
            same_bus = bool(bus_id) and gpu.value.get("bus_id") == bus_id
            if (same_uuid or same_bus) and row.gpu is not None:
                shown[gpu.whole("index")] = row.gpu
    if len(shown) == len(gpus):
        return Numbering("nvidia-smi", shown, names, memory)
    # One GPU on either side, and nobody chose it: there is nothing to mix up.
    chosen = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} & facts.host.env.keys()
    alone = len(gpus) == 1 and len(rows) <= 1 and not chosen
    return Numbering("nvidia-smi" if alone else "torch", {}, names, memory)
