"""The simulated nvidia-smi: a POSIX shell script with one host's answers in it.

A script, because it must run in any container and be readable there. It answers `--query-gpu` (and
`--query-remapped-rows`, `--query-compute-apps`), `-L`, `--version`, `nvlink -s` and the plain table, refuses what the
real one refuses with the same words, prints everything on stdout, and can hang. It knows nothing else, and says so.

    python3 -m tests.engine.simulate.smi h200-good > nvidia-smi
"""

from __future__ import annotations

import shlex
import string
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.engine.simulate import fields, table
from tests.engine.simulate.hosts import Answer, Host, load

COMPUTE_APP_FIELDS = (
    *("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid"),
    *("pid", "process_name", "used_gpu_memory", "used_memory"),
)
REMAPPED_ROW_FIELDS = (
    *("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid"),
    *("remapped_rows.correctable", "remapped_rows.uncorrectable"),
    *("remapped_rows.pending", "remapped_rows.failure"),
)
NOT_REPORTED = "[N/A]"
PLAIN = frozenset(string.ascii_letters.encode() + string.digits.encode() + b' .,:;/()[]{}+-=_|<>?!@#&*~"')

WORKING_PART = Path(__file__).with_name("smi.sh")


def render(host: Host, *, cuda_visible: bool = True) -> str:
    """The script. `cuda_visible`: whether libcuda is in the container too (else CUDA's version reads N/A)."""
    cuda = host.cuda if cuda_visible else "N/A"
    gpus = [complete(gpu, host) for gpu in host.gpus]
    apps = [{fields.canonical(name): value for name, value in app.items()} for app in host.compute_apps]
    known = sorted(fields.valid(host.driver))
    named = [
        (f"{gpu['index']} | {gpu['uuid']} | {gpu['pci.bus_id']}", f'chosen_gpus="$chosen_gpus gpu_{place}"')
        for place, gpu in enumerate(gpus)
    ]
    other_names = [(name, f"key={fields.canonical(name)}") for name in sorted({*known, *COMPUTE_APP_FIELDS})]
    instead = {question: _say(answer) for question, answer in host.answers.items()}
    help_ = "".join(f'"{name}"\n' for name in known)
    parts = [
        "#!/bin/sh",
        f"# A simulated nvidia-smi: host {host.name}. {' '.join(host.about.split())}",
        "# Made by tests/engine/simulate/smi.py. No GPU answers here.",
        _before(host),
        f"gpus={shlex.quote(_names('gpu', gpus))} apps={shlex.quote(_names('app', apps))}",
        *_rows("gpu", gpus),
        *_rows("app", apps),
        _valid("valid_gpu", known),
        _valid("valid_remapped_rows", REMAPPED_ROW_FIELDS),
        _valid("valid_compute_apps", COMPUTE_APP_FIELDS),
        _choice("key_of", other_names, "key=$1"),
        _choice("unit_of", [(pattern, f"unit='{unit}'") for pattern, unit in fields.UNITS], "unit="),
        _choice("gpu_named", named, ":"),
        _function("answer_all", instead.get("all", ":")),
        _function("answer_query", instead.get("query", ":")),
        _function(
            "answer_help",
            _say_text(f'List of valid properties to query for the switch "--query-gpu=":\n\n{help_}'),
        ),
        _function("answer_list", instead.get("list") or _say_text(_list(host, gpus))),
        _function("answer_version", instead.get("version") or _say_text(_version(host, cuda))),
        _function("answer_nvlink", instead.get("nvlink") or _say_text(_nvlink(host, gpus))),
        _function("answer_table", instead.get("table") or _table(host, cuda, gpus, apps)),
        WORKING_PART.read_text(),
    ]
    return "\n".join(part for part in parts if part)


def complete(gpu: Mapping[str, str], host: Host) -> dict[str, str]:
    """One GPU's cells with those that follow from others, and the default under the key "".

    >>> complete({"memory.total": "100", "memory.used": "30"}, load("h200-good"))["memory.free"]
    '70'
    """
    cells = {fields.canonical(name): value for name, value in gpu.items() if name != "default"}
    default = gpu.get("default", NOT_REPORTED)
    total, used = (cells.get(f"memory.{name}", "") for name in ("total", "used"))
    follow = {
        "name": default,
        "count": str(len(host.gpus)),
        "driver_version": host.driver,
        "pci.bus_id": f"00000000:{int(cells.get('index', 0)) + 1:02X}:00.0",
        "uuid": f"GPU-00000000-0000-0000-0000-{int(cells.get('index', 0)):012d}",
        "enforced.power.limit": cells.get("power.limit", default),
        "": default,
    }
    if total.isdigit() and used.isdigit():
        follow["memory.free"] = str(int(total) - int(used))
    return {**follow, **cells}


def _before(host: Host) -> str:
    """What happens before any answer."""
    if host.hangs:
        # exec: one process, as the real one; a child would keep the caller's pipe open after a kill. A day is for ever.
        return ("" if host.heeds_sigterm else "trap '' TERM\n") + "exec sleep 86400"
    return f"sleep {host.latency_s:g}" if host.latency_s else ""


def _function(name: str, body: str) -> str:
    return f"{name}() {{ {body}; }}"


def _choice(name: str, branches: Iterable[tuple[str, str]], otherwise: str) -> str:
    """A function that does something by its argument: pattern → command."""
    cases = " ".join(f"{pattern}) {command} ;;" for pattern, command in branches)
    return _function(name, f"case $1 in {cases} *) {otherwise} ;; esac")


def _valid(name: str, allowed: Iterable[str]) -> str:
    return _choice(name, [(" | ".join(allowed), ":")], "return 1")


def _names(kind: str, rows: Sequence[object]) -> str:
    return " ".join(f"{kind}_{place}" for place, _ in enumerate(rows))


def _rows(kind: str, rows: Sequence[Mapping[str, str]]) -> Iterable[str]:
    for place, row in enumerate(rows):
        cells = [(name, f"value={shlex.quote(value)}") for name, value in row.items() if name]
        default = f"value={shlex.quote(row.get('', NOT_REPORTED))}"
        yield _choice(f"{kind}_{place}", [("timestamp", "value=$(now)"), *cells], default)


def _say(answer: Answer) -> str:
    # Octal escapes for everything but plain text: also for NUL, % and quotes, in any POSIX printf.
    text = "".join(
        chr(byte) if byte in PLAIN else "\\n" if byte == ord("\n") else f"\\0{byte:03o}"
        for byte in answer.text
    )
    return f"say '{text}' {answer.rc}"


def _say_text(text: str) -> str:
    return _say(Answer(text=text.encode(), rc=0))


def _list(host: Host, gpus: Iterable[Mapping[str, str]]) -> str:
    lines = []
    for gpu in gpus:
        lines.append(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n")
        for place, (profile, uuid) in enumerate(host.mig.get(gpu["index"], ())):
            lines.append(f"  MIG {profile:<12}Device {place:>2}: (UUID: {uuid})\n")
    return "".join(lines)


def _nvlink(host: Host, gpus: Iterable[Mapping[str, str]]) -> str:
    """`nvlink -s`. The words for a GPU without links are as remembered, not recorded."""
    lines = []
    for gpu in gpus:
        lines.append(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n")
        links = host.nvlink.get(gpu["index"], ())
        for place, speed in enumerate(links):
            lines.append(f"\t Link {place}: {'<inactive>' if speed is None else f'{speed:.3f} GB/s'}\n")
        if not any(links):
            lines.append("NVML: Unable to retrieve NVLink information as all links are inActive\n")
    return "".join(lines)


def _version(host: Host, cuda: str) -> str:
    nvml = ".".join(host.driver.split(".")[:2])
    head = f"NVIDIA-SMI version  : {host.driver}\nNVML version        : {nvml}\n"
    if int(host.driver.split(".")[0]) >= table.KMD_BANNER:
        return head + (
            'DRIVER version      : Deprecated, see "KMD version" instead\n'
            'CUDA version        : Deprecated, see "CUDA UMD version" instead\n'
            f"KMD version         : {host.driver}\nCUDA UMD version    : {cuda}\n"
        )
    return head + f"DRIVER version      : {host.driver}\nCUDA Version        : {cuda}\n"


def _table(host: Host, cuda: str, gpus: list[dict[str, str]], apps: list[dict[str, str]]) -> str:
    index_of = {gpu["uuid"]: gpu["index"] for gpu in gpus}
    running = [{"gpu_index": index_of.get(app["uuid"], "0"), **app} for app in apps]
    text = table.render(host.driver, cuda, gpus, running)
    return f"LC_ALL=C date '+%a %b %e %H:%M:%S %Y       '; {_say_text(text)}"


if __name__ == "__main__":
    sys.stdout.write(render(load(sys.argv[1])))
