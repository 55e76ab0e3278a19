"""A report as Prometheus metrics, for node_exporter's textfile collector, which reads `*.prom` of one folder.

Base units, HELP and TYPE for every name, one block a name (the format's own rule). A status is a label, and only the
one it has is written, with the value 1: alert on `torchtap_selftest_ready == 0`, look at `check_status` for the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from torchtap.selftest.result import Report, measured
from torchtap.selftest.status import Status
from torchtap.selftest.words import printable

PREFIX = "torchtap_selftest_"
Samples = Iterator[tuple[Mapping[str, object], float]]
# The unit of a measured value (Check values["measured"]): the base unit in the metric's name, and the factor to it.
UNITS: Mapping[str, tuple[str, float]] = {
    "B/s": ("bytes_per_second", 1),
    "MB/s": ("bytes_per_second", 1e6),
    "GB/s": ("bytes_per_second", 1e9),
    "TB/s": ("bytes_per_second", 1e12),
    "GFLOP/s": ("flop_per_second", 1e9),
    "TFLOP/s": ("flop_per_second", 1e12),
    "s": ("seconds", 1),
    "ms": ("seconds", 1e-3),
    "us": ("seconds", 1e-6),
    "MiB": ("bytes", 2**20),
    "GiB": ("bytes", 2**30),
    "GB": ("bytes", 1e9),
    "C": ("celsius", 1),
    "W": ("watts", 1),
    "MHz": ("hertz", 1e6),
    "%": ("ratio", 0.01),
}


def to_prometheus(report: Report) -> str:
    """The text format, version 0.0.4, UTF-8."""
    blocks = [_block("ready", "1 where the verdict is pass or warn, else 0.", _ready(report))]
    blocks += [
        _block("verdict", "1, with the verdict of the last self-test.", _verdict(report)),
        _block("check_status", "1, with the status of each check and its cause.", _statuses(report)),
        _block("check_duration_seconds", "What each check took to read.", _durations(report)),
        _block("duration_seconds", "What the self-test took.", iter([({}, report.seconds)])),
        _block("timestamp_seconds", "When the self-test began, in seconds since 1970.", _timestamp(report)),
        _block("info", "1, with what was tested.", _info(report)),
        _block("gpu_info", "1, with each GPU by nvidia-smi.", _gpus(report)),
    ]
    for unit, samples in sorted(_measured(report).items()):
        name = f"measured_{unit}" if unit else "measured"
        blocks.append(_block(name, "What checks measured, a GPU each.", iter(samples)))
    return "".join(blocks)


def _block(name: str, meaning: str, samples: Samples) -> str:
    """One metric: its HELP, its TYPE, its samples; nothing where there are none."""
    lines = [f"{PREFIX}{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    if not lines:
        return ""
    return "\n".join([f"# HELP {PREFIX}{name} {meaning}", f"# TYPE {PREFIX}{name} gauge", *lines]) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    r"""Labels in braces; those without a value are left out, as an empty label means the same.

    >>> _labels({"check": "gpu.ecc", "gpu": 3, "uuid": None, "name": 'a "b"'})
    '{check="gpu.ecc",gpu="3",name="a \\"b\\""}'
    """
    known = {
        name: printable(str(value), keep="\n") for name, value in labels.items() if value not in (None, "")
    }
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        for name, value in known.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}" if known else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _ready(report: Report) -> Samples:
    yield {}, float(report.exit_code == 0)


def _verdict(report: Report) -> Samples:
    first = report.first
    labels = {"check": first.id, "cause": first.cause_id, "remedy": first.remedy_id} if first else {}
    yield {"verdict": report.verdict.value, **labels}, 1


def _statuses(report: Report) -> Samples:
    for result in report.results:
        cause = result.cause_id if result.status is not Status.PASS else None
        yield {"check": result.id, "status": result.status.value, "cause": cause}, 1


def _durations(report: Report) -> Samples:
    for result in report.results:
        if result.status is not Status.SKIP:
            yield {"check": result.id}, round(result.seconds, 3)


def _timestamp(report: Report) -> Samples:
    if report.identity.started:
        yield {}, datetime.fromisoformat(report.identity.started.replace("Z", "+00:00")).timestamp()


def _info(report: Report) -> Samples:
    versions = {f"{name}_version" if name != "variant" else name: text for name, text in _known(report)}
    yield {"version": report.torchtap, "level": report.level, "device": report.device, **versions}, 1


def _known(report: Report) -> list[tuple[str, str]]:
    return [(name, text) for name, text in report.identity.versions.items() if text]


def _gpus(report: Report) -> Samples:
    for gpu in report.identity.gpus:
        yield {"gpu": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "driver_version": gpu.driver}, 1


def _measured(report: Report) -> dict[str, list[tuple[Mapping[str, object], float]]]:
    """Every measured value under its base unit; one whose unit is not in the table keeps it as a label."""
    uuids = {gpu.index: gpu.uuid for gpu in report.identity.gpus}
    by_unit: dict[str, list[tuple[Mapping[str, object], float]]] = {}
    for result in report.results:
        for record in measured(result.values):
            base, factor = UNITS.get(str(record["unit"]), ("", 1))
            labels = {
                "check": result.id,
                "what": record.get("what"),
                "gpu": record["gpu"],
                "uuid": uuids.get(record["gpu"]),  # type: ignore[call-overload]
                "unit": None if base else record["unit"],
            }
            by_unit.setdefault(base, []).append((labels, float(record["value"]) * factor))  # type: ignore[arg-type]
    return by_unit
