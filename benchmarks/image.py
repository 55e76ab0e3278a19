"""Measure the image: build, rebuild, size, start, stop.

    python -m benchmarks.image                        everything, on the image as it is built from this folder
    python -m benchmarks.image --only start,stop      some of it
    python -m benchmarks.image --json FILE            also as JSON

Needs a Docker engine (DOCKER_HOST, or the one that the tests start). Medians of --repeat runs; each start and stop is
a container of its own. Sizes are ratios to the sum of the locked wheels, read from the index that pip is configured
for. Exit codes: 0 measured, 1 a figure is beyond its bar, 2 could not measure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.engine import base
from tests.engine.engine import Engine, EngineUnavailable, ensure
from tests.image.conftest import CA_BUNDLE, ROOT, Container, containers, free_port
from tests.image.test_stop import BUSY

IMAGE = "torchtap-bench"


@dataclass(frozen=True)
class Figure:
    """One line of the result. `bar` None: a figure to know, with nothing promised."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    runs: tuple[float, ...] = ()

    @property
    def held(self) -> bool:
        return self.bar is None or self.value <= self.bar


def median_of(
    repeat: int, measure: Callable[[], float], name: str, bar: float | None, progress: Console
) -> Figure:
    """The median of some runs, in seconds."""
    runs = []
    for number in range(1, repeat + 1):
        runs.append(measure())
        progress.print(f"{name}: {number}/{repeat} {runs[-1]:.2f} s")
    return Figure(name, statistics.median(runs), "s", bar, tuple(runs))


class Bench:
    """The subjects, each a method that returns its figures."""

    def __init__(self, engine: Engine, variant: str, repeat: int, key: Path, progress: Console) -> None:
        self.engine, self.variant, self.repeat, self.key, self.progress = (
            engine,
            variant,
            repeat,
            key,
            progress,
        )
        self.image = f"{IMAGE}:{variant}"
        self.base = base.ensure_base(engine) if engine.owned else os.environ.get("BASE_IMAGE", "")

    def build_once(self, *options: str) -> float:
        arguments = [f"--build-arg=VARIANT={self.variant}", f"--build-arg=BASE_IMAGE={self.base}"]
        arguments += ["--build-arg=TORCH_INDEX="]  # as compose.yaml: one build cache for both
        if CA_BUNDLE.exists():
            arguments.append(f"--secret=id=ca_bundle,src={CA_BUNDLE}")
        began = time.monotonic()
        self.engine.docker("build", "-q", "-t", self.image, *arguments, *options, str(ROOT), timeout=3000)
        return time.monotonic() - began

    def build(self) -> list[Figure]:
        """Cold: nothing cached, downloads included. Once: it moves 3 GB."""
        seconds = self.build_once("--no-cache")
        self.progress.print(f"cold build: {seconds:.0f} s")
        return [Figure("cold build, downloads included", seconds, "s", None, (seconds,))]

    def rebuild(self) -> list[Figure]:
        """After one changed line in src/."""
        self.build_once()
        probe = ROOT / "src" / "torchtap" / "_rebuild_probe.py"

        def once() -> float:
            probe.write_text(f"# {time.time_ns()}\n")
            return self.build_once()

        try:
            return [median_of(self.repeat, once, "rebuild after a source-only change", 5, self.progress)]
        finally:
            probe.unlink(missing_ok=True)

    def start(self) -> list[Figure]:
        """From `docker run` to an answer; first start with new volumes, later ones with the same."""
        self.build_once()
        runs: dict[str, list[float]] = {}
        for number in range(self.repeat):
            volumes = (f"{IMAGE}-home-{os.getpid()}-{number}", f"{IMAGE}-state-{os.getpid()}-{number}")
            for when in ("first", "later"):
                banner, answer = self.start_once(volumes)
                runs.setdefault(f"docker run to SSH banner, {when} start", []).append(banner)
                runs.setdefault(f"docker run to authenticated Jupyter answer, {when} start", []).append(
                    answer
                )
                self.progress.print(
                    f"start {number + 1}/{self.repeat}, {when}: {banner:.2f} s, {answer:.2f} s"
                )
            self.engine.docker("volume", "rm", *volumes)
        bars = (1.0, 3.2, 0.6, 2.7)
        order = [f"docker run to {what}, {when} start" for when in ("first", "later") for what in ANSWERS]
        return [
            Figure(name, statistics.median(runs[name]), "s", bar, tuple(runs[name]))
            for name, bar in zip(order, bars, strict=True)
        ]

    def start_once(self, volumes: tuple[str, str]) -> tuple[float, float]:
        ssh, jupyter = free_port(), free_port()
        command = ["run", "-d", "-p", f"127.0.0.1:{ssh}:22", "-p", f"127.0.0.1:{jupyter}:8888"]
        command += ["-v", f"{volumes[0]}:/home/dev", "-v", f"{volumes[1]}:/var/lib/torchtap"]
        command += [
            "-e",
            f"SSH_PUBLIC_KEY={self.key.with_suffix('.pub').read_text()}",
            "-e",
            "JUPYTER_TOKEN=bench",
        ]
        began = time.monotonic()
        # Asking starts when `docker run` returns: a connection to an address that is not up yet makes the kernel wait
        # a second before it asks for the address again (ARP), and would measure that.
        identity = self.engine.docker(*command, self.image).stdout.strip()
        try:
            banner = wait_for(lambda: has_banner(ssh)) - began
            answer = wait_for(lambda: has_answer(jupyter)) - began
        finally:
            self.engine.docker("rm", "-f", "-v", identity, check=False)
        return banner, answer

    def stop(self) -> list[Figure]:
        """`docker stop` while a kernel computes."""
        self.build_once()

        def once() -> float:
            with containers(self.engine, self.image, self.key) as start:
                container: Container = start(
                    env={"TORCHTAP_SELFTEST": "off"}, allow=(r"(?s).*",)
                ).wait_healthy()
                container.kernel(BUSY, wait=False)
                return container.stop()[1]

        return [median_of(self.repeat, once, "docker stop with a busy kernel", 1.3, self.progress)]

    def size(self) -> list[Figure]:
        """The layers above the base, unpacked and compressed, and the sum of the locked wheels."""
        self.build_once()
        own = json.loads(self.engine.docker("image", "inspect", self.image).stdout)[0]
        below = json.loads(self.engine.docker("image", "inspect", self.base).stdout)[0] if self.base else own
        skip = len(below["RootFS"]["Layers"]) if self.base else 0
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "image.tar"
            self.engine.docker("save", "-o", archive, self.image, timeout=900)
            packed = compressed_layers(archive, skip, self.progress)
        wheels = wheels_sum(self.variant, self.progress)
        unpacked = own["Size"] - (below["Size"] if self.base else 0)
        return [
            Figure("image without base, unpacked", unpacked / 1e9, "GB"),
            Figure("image without base, gzip -6", packed["gzip"] / 1e9, "GB"),
            Figure("image without base, zstd -9", packed["zstd"] / 1e9, "GB"),
            Figure("sum of the locked wheels", wheels / 1e9, "GB"),
            Figure("gzip -6 over the wheels' sum", packed["gzip"] / wheels, "x", 1.03),
            Figure("zstd -9 over the wheels' sum", packed["zstd"] / wheels, "x", 0.90),
        ]


ANSWERS = ("SSH banner", "authenticated Jupyter answer")
COMPRESSORS = {"gzip": ["pigz", "-6", "-c"], "zstd": ["zstd", "-9", "-T0", "-q", "-c"]}


def wait_for(true: Callable[[], bool], limit_s: float = 60) -> float:
    """Poll every 5 ms; the time at which it became true."""
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer in {limit_s:.0f} s")
        time.sleep(0.005)
    return time.monotonic()


def has_banner(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(8).startswith(b"SSH-")
    except OSError:
        return False


def has_answer(port: int) -> bool:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/status", headers={"Authorization": "token bench"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=2
        ) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def compressed_layers(archive: Path, skip: int, progress: Console) -> dict[str, int]:
    """Bytes of the layers above the first `skip`, each compressed by itself as registries do."""
    total = dict.fromkeys(COMPRESSORS, 0)
    with tarfile.open(archive) as outer:
        manifest = json.load(outer.extractfile("manifest.json"))  # type: ignore[arg-type]
        for number, layer in enumerate(manifest[0]["Layers"][skip:], 1):
            for name, command in COMPRESSORS.items():
                total[name] += piped_size(command, outer.extractfile(layer))
            progress.print(f"layer {number} of {len(manifest[0]['Layers']) - skip}: {total}")
    return total


def piped_size(command: list[str], source: Any) -> int:
    """How many bytes a compressor makes of a stream."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    to, back = process.stdin, process.stdout
    assert to is not None
    assert back is not None

    def feed() -> None:
        shutil.copyfileobj(source, to, 1 << 20)
        to.close()

    feeder = threading.Thread(target=feed)
    feeder.start()
    size = 0
    while piece := back.read(1 << 20):
        size += len(piece)
    feeder.join()
    return size


def wheels_sum(variant: str, progress: Console) -> int:
    """Bytes of the wheels that the locks name for this machine's Python."""
    total = 0
    for lock in (f"torch-{variant}.lock", "lab.lock"):
        path = ROOT / "docker" / "requirements" / lock
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--no-deps",
        ]
        command += ["--require-hashes", "--report", "-", "-r", str(path)]
        report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for item in report["install"]:
            url = item["download_info"]["url"]
            if url.startswith("file:"):
                total += Path(urllib.request.url2pathname(url.removeprefix("file://"))).stat().st_size
                continue
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as response:
                total += int(response.headers["Content-Length"])
        progress.print(f"{lock}: {total / 1e9:.2f} GB so far")
    return total


SUBJECTS = ("build", "rebuild", "start", "stop", "size")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SUBJECTS), help=f"some of {','.join(SUBJECTS)}")
    parser.add_argument("--variant", default="cu130")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if unknown := [name for name in wanted if name not in SUBJECTS]:
        parser.error(f"unknown subject {unknown[0]!r}: some of {', '.join(SUBJECTS)}")
    progress = Console(stderr=True)
    try:
        engine = ensure()
    except EngineUnavailable as error:
        print(f"benchmarks.image: {error}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        bench = Bench(engine, arguments.variant, arguments.repeat, key, progress)
        for name in wanted:
            figures += getattr(bench, name)()
    engine.docker("image", "rm", bench.image, check=False)
    table = Table(
        "figure", "value", "bar", "held", title=f"image {arguments.variant}, {os.cpu_count()} cores"
    )
    for figure in figures:
        bar = f"{figure.bar:g} {figure.unit}" if figure.bar is not None else ""
        held = {True: "yes", False: "NO"}[figure.held] if figure.bar is not None else ""
        table.add_row(figure.name, f"{figure.value:.2f} {figure.unit}", bar, held)
    Console().print(table)
    if arguments.json:
        draft = arguments.json.with_name(arguments.json.name + ".tmp")
        draft.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
        draft.replace(arguments.json)
    return 0 if all(figure.held for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
