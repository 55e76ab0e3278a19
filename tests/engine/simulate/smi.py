"""The simulated nvidia-smi: a POSIX shell script with one host's answers in it.

A script, because it must run in any container and be readable there. It answers `--query-gpu` (and
`--query-remapped-rows`, `--query-compute-apps`), `-L`, `--version` and the plain table, refuses what the real one
refuses with the same words, prints everything on stdout, and can hang. It knows nothing else, and says so.

    python3 -m tests.engine.simulate.smi h200-good > nvidia-smi
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping

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

SCRIPT = """\
#!/bin/sh
# A simulated nvidia-smi of the simulated host {host}: {about}
# Made by tests/engine/simulate/smi.py. No GPU answers here.
set -f

{before}
say() {{ printf %b "$1"; exit "$2"; }}    # text with \\n and octal escapes, exit status
{answer_all}
question=table fields= format=, chosen=
while [ $# -gt 0 ]; do
    case $1 in
        --query-*=*) question=${{1%%=*}} fields=${{1#*=}} ;;
        --query-*) question=$1 fields=${{2-}}; shift ;;
        --format=*) format=,${{1#*=}}, ;;
        -i | --id) chosen=${{2-}}; shift ;;
        -i=* | --id=*) chosen=${{1#*=}} ;;
        -L | --list-gpus) question=list ;;
        --version) question=version ;;
        --help-query-gpu) question=help ;;
        -q | -x | nvlink | topo | mig | dmon | pmon) say "torchtap simulation: $1 is not simulated\\n" 255 ;;
        *) say "ERROR: Option $1 is not recognized. Please run 'nvidia-smi -h'.\\n\\n" 255 ;;
    esac
    [ $# -gt 0 ] && shift
done

# The cell of one field: sets value.
{cells}
# Whether a field may be asked.
{valid}
# The name that a field's value is kept under and headed with.
column() {{    # field: sets header
    case $1 in {aliases} *) header=$1 ;; esac
}}
unit_of() {{    # column: sets unit
    case $1 in {units} *) unit= ;; esac
}}
query() {{    # the function that knows the fields, names of the rows
    IFS=', '
    for field in $fields; do
        "$1" "$field" || say "Field \\"$field\\" is not a valid field to query.\\n\\n" 2
    done
    case $format in *,noheader,*) ;; *)
        line=
        for field in $fields; do
            column "$field"
            unit_of "$header"
            case $format in *,nounits,*) ;; *) header="$header${{unit:+ [$unit]}}" ;; esac
            line="$line${{line:+, }}$header"
        done
        printf '%s\\n' "$line"
    esac
    IFS=' '
    for row in $2; do
        line=
        IFS=', '
        for field in $fields; do
            column "$field"
            "$row" "$header"
            unit_of "$header"
            case $format:$value in *,nounits,*:* | *:\\[* | *:N/A) unit= ;; esac
            line="$line${{line:+, }}$value${{unit:+ $unit}}"
        done
        printf '%s\\n' "$line"
        IFS=' '
    done
    exit 0
}}
now() {{ date '+%Y/%m/%d %H:%M:%S.000'; }}

gpus={gpus}
if [ -n "$chosen" ]; then
    gpus=
    IFS=,
    for gpu in $chosen; do
        case $gpu in {ids} *) ;; esac
    done
    [ -n "$gpus" ] || say 'No devices were found\\n' 6
fi

case $question in
    --query-gpu) {answer_query}query valid_gpu "$gpus" ;;
    --query-remapped-rows) query valid_remapped_rows "$gpus" ;;
    --query-compute-apps) query valid_compute_apps {apps} ;;
    --query-*) say "ERROR: Option $question is not recognized. Please run 'nvidia-smi -h'.\\n\\n" 255 ;;
    help) printf 'List of valid properties to query for the switch "--query-gpu=":\\n\\n'
        printf '"%s"\\n' {names} ;;
    list) {list} ;;
    version) {version} ;;
    table) {table} ;;
esac
"""


def render(host: Host, *, cuda_visible: bool = True) -> str:
    """The script. `cuda_visible`: whether libcuda is in the container too (else CUDA's version reads N/A)."""
    cuda = host.cuda if cuda_visible else "N/A"
    gpus = [complete(gpu, host) for gpu in host.gpus]
    apps = [{**app, "used_memory": app["used_gpu_memory"]} for app in host.compute_apps]
    known = sorted(fields.valid(host.driver))
    every = host.answers.get("all")
    refused = host.answers.get("query")
    return SCRIPT.format(
        host=host.name,
        about=host.about,
        before=_before(host),
        answer_all="" if every is None else _say(every),
        cells="\n".join([*_cells("gpu", gpus), *_cells("app", apps)]),
        valid="\n".join(
            f"valid_{asked}() {{ case $1 in {'|'.join(allowed)}) ;; *) return 1 ;; esac; }}"
            for asked, allowed in (
                ("gpu", known),
                ("remapped_rows", REMAPPED_ROW_FIELDS),
                ("compute_apps", COMPUTE_APP_FIELDS),
            )
        ),
        aliases=" ".join(
            f"{name}) header={fields.canonical(name)} ;;"
            for name in sorted({*known, *COMPUTE_APP_FIELDS})
            if fields.canonical(name) != name
        ),
        units=" ".join(f"{pattern}) unit='{unit}' ;;" for pattern, unit in fields.UNITS),
        gpus=shlex.quote(" ".join(f"gpu_{place}" for place, _ in enumerate(gpus))),
        ids=" ".join(
            f'{gpu["index"]} | {gpu["uuid"]} | {gpu["pci.bus_id"]}) gpus="$gpus gpu_{place}" ;;'
            for place, gpu in enumerate(gpus)
        ),
        apps=shlex.quote(" ".join(f"app_{place}" for place, _ in enumerate(apps))),
        answer_query="" if refused is None else f"{_say(refused)}; ",
        names=" ".join(known),
        list=_say(host.answers.get("list") or Answer(text=_list(host, gpus).encode(), rc=0)),
        version=_say(host.answers.get("version") or Answer(text=_version(host, cuda).encode(), rc=0)),
        table=_table(host, cuda, gpus, apps),
    )


def complete(gpu: Mapping[str, str], host: Host) -> dict[str, str]:
    """One GPU's cells with those that follow from others, and the default under the key "".

    >>> complete({"memory.total": "100", "memory.used": "30"}, load("h200-good"))["memory.free"]
    '70'
    """
    cells = {fields.canonical(name): value for name, value in gpu.items() if name != "default"}
    default = gpu.get("default", NOT_REPORTED)
    total, used = (cells.get(f"memory.{name}", "") for name in ("total", "used"))
    follow = {
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
        # exec: one process, as the real one; a child would keep the caller's pipe open after a kill. Forever is a day.
        return ("" if host.heeds_sigterm else "trap '' TERM\n") + "exec sleep 86400\n"
    return f"sleep {host.latency_s:g}\n" if host.latency_s else ""


def _say(answer: Answer) -> str:
    # Octal escapes for everything but plain text: also for NUL, % and quotes, in any POSIX printf.
    plain = frozenset(
        b'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;/()[]{}+-=_|<>?!@#&*~"'
    )
    escaped = ("\\n" if byte == ord("\n") else f"\\0{byte:03o}" for byte in answer.text)
    text = "".join(
        chr(byte) if byte in plain else next_ for byte, next_ in zip(answer.text, escaped, strict=True)
    )
    return f"say '{text}' {answer.rc}"


def _cells(kind: str, rows: Iterable[Mapping[str, str]]) -> Iterable[str]:
    for place, row in enumerate(rows):
        known = " ".join(f"{name}) value={shlex.quote(value)} ;;" for name, value in row.items() if name)
        default = shlex.quote(row.get("", NOT_REPORTED))
        yield f"{kind}_{place}() {{ case $1 in timestamp) value=$(now) ;; {known} *) value={default} ;; esac; }}"


def _list(host: Host, gpus: Iterable[Mapping[str, str]]) -> str:
    lines = []
    for gpu in gpus:
        lines.append(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n")
        for place, (profile, uuid) in enumerate(host.mig.get(gpu["index"], ())):
            lines.append(f"  MIG {profile:<12}Device {place:>2}: (UUID: {uuid})\n")
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
    if "table" in host.answers:
        return _say(host.answers["table"])
    index_of = {gpu["uuid"]: gpu["index"] for gpu in gpus}
    running = [{"gpu_index": index_of.get(app["gpu_uuid"], "0"), **app} for app in apps]
    text = table.render(host.driver, cuda, gpus, running)
    return f"LC_ALL=C date '+%a %b %e %H:%M:%S %Y       '; {_say(Answer(text=text.encode(), rc=0))}"


if __name__ == "__main__":
    sys.stdout.write(render(load(sys.argv[1])))
