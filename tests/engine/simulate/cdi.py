"""A CDI specification of the simulated host: `docker run --device nvidia.com/gpu=all`, no hook registered.

Mounts the same files as the hook would. What a specification cannot say itself (links, /proc/driver/nvidia, the
loader's cache) is done by a createContainer hook, as `nvidia-ctk cdi generate` does it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.engine.simulate import hook, toolkit
from tests.engine.simulate.hosts import Host

KIND = "nvidia.com/gpu"
VERSION = "0.5.0"
HOOK = "/torchtap/tests/engine/simulate/hook/nvidia-container-runtime-hook"  # in the private root


def specification(host: Host, folder: Path, seen_as: Path) -> dict[str, Any]:
    """The specification for a host: devices `all`, each index, each UUID.

    `folder` is the simulation's state folder, where the files are written; `seen_as` is where the engine sees it.
    """
    names = {"all": "all"}
    for gpu in host.gpus:
        names |= {name: gpu["index"] for name in (gpu["index"], gpu.get("uuid", "")) if name}
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [
            {"name": name, "containerEdits": _edits(host, gpu, folder, seen_as)}
            for name, gpu in names.items()
        ],
        # So that a registered hook or runtime does not inject a second time.
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }


def write(host: Host, folder: Path, seen_as: Path = hook.STATE) -> None:
    """Put the specification where the engine looks. It notices a rename inside the folder, but not one into it."""
    target = folder / "cdi" / "nvidia.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_suffix(".new")
    beside.write_text(json.dumps(specification(host, folder, seen_as), indent=2))
    beside.replace(target)


def _edits(host: Host, device: str, folder: Path, seen_as: Path) -> dict[str, Any]:
    asked = toolkit.Request(devices=(device,), capabilities=toolkit.DEFAULT_CAPABILITIES)
    seen = toolkit.visible_gpus(host, asked)
    library_folder = hook.LIBRARY_FOLDERS[0].format(machine=os.uname().machine)
    injected = toolkit.injection(seen, asked, folder / "lib", library_folder)
    stored = seen_as / hook.store(injected, folder / "rendered").relative_to(folder)
    return {
        "deviceNodes": [
            {
                "path": path,
                "type": "c",
                "major": node.major,
                "minor": node.minor,
                "fileMode": node.mode,
                # "denied" stands for a device cgroup rule that was lost: only mknod is left
                "permissions": "m" if host.nodes == "denied" else "rw",
            }
            for path, node in injected.nodes.items()
        ],
        "mounts": [
            {
                "hostPath": str(stored / path.lstrip("/")),
                "containerPath": path,
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
            for path in injected.files
        ],
        "hooks": [
            {"hookName": "createContainer", "path": HOOK, "args": [Path(HOOK).name, "cdi", str(stored)]}
        ],
    }
