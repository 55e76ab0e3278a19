"""The GPU's part of health: nvidia-smi still answers if it did at start, and names the same GPUs.

nvidia-smi can take seconds, or hang for ever and heed no signal. So health never waits for it: a process of its own
asks, at most one at a time and once a minute, and leaves its answer in the run directory; health reads the last one.
The lock that keeps it alone is inherited by nvidia-smi, so that one that hangs is never given company. What an answer
means is the self-test's to say (diagnosis.py); that GPUs of the start are missing is found here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from entrypoint import diagnosis, paths
from entrypoint.diagnosis import Diagnosis, Said

# Not by PATH, where the user's own programs come first.
PLACES = tuple(
    Path(folder, "nvidia-smi")
    for folder in ("/usr/bin", "/bin", "/usr/local/bin", "/usr/lib/wsl/lib", "/usr/local/nvidia/bin")
)
NODES = (Path("/dev/nvidiactl"), Path("/dev/nvidia0"), Path("/dev/dxg"))
STATE, LOCK = "gpu.json", "gpu.lock"  # in the run directory
LIMIT_S = 20.0  # for one answer; the self-test's own
EVERY_S, EVERY_BAD_S = 60.0, 25.0
QUERY = ("--query-gpu=index,uuid,mig.mode.current,temperature.gpu", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class Known:
    """What the last answer was, and what the first good one named."""

    at_start: tuple[str, ...] = ()  # UUIDs; empty: it has never answered
    here: int = 0  # GPUs in the last answer
    problem: str = ""  # empty: none
    bad_since: float = 0.0


def check(started: Mapping[str, Any], run: Path, *, ready: bool) -> tuple[bool, str]:
    """(healthy, one line). `ready`: the services answer, so that nvidia-smi may be asked for the first time."""
    if started["device"] == "cpu":
        return True, "gpu: none, by design (TORCHTAP_DEVICE=cpu)"
    known, age_s = _read(run)
    if known is None and not _is_here():
        return _none(started)
    waiting_s = _waiting(run)
    due = known is None or age_s >= (EVERY_BAD_S if known.problem else EVERY_S)
    if waiting_s is None and due and (ready or known) and os.access(run, os.W_OK):
        _ask_in_background(run, started)
    wanted = started["device"] == "gpu"
    if waiting_s is not None and waiting_s > LIMIT_S:
        return _verdict(known, diagnosis.explain("smi_hung", {"waited_s": f"{waiting_s:.0f}"}), wanted=wanted)
    if known is None:
        return True, "gpu: not asked yet"
    if known.problem:
        return _verdict(known, known.problem, wanted=wanted)
    return True, f"gpu: {known.here} {'answers' if known.here == 1 else 'answer'}"


def _none(started: Mapping[str, Any]) -> tuple[bool, str]:
    if started["device"] == "gpu":
        return False, (
            "gpu: TORCHTAP_DEVICE=gpu, and there is none in this container; recreate it with one: "
            "make up MODE=gpu, or docker run --gpus all"
        )
    visible = os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    why = (
        f"NVIDIA_VISIBLE_DEVICES={visible}"
        if visible in ("void", "none")
        else "this container was given none"
    )
    return True, f"gpu: none, by design ({why})"


def _verdict(known: Known | None, problem: str, *, wanted: bool) -> tuple[bool, str]:
    if known and known.at_start:
        ago_s = max(time.time() - known.bad_since, 0.0) if known.bad_since else 0.0
        ago = f", {ago_s / 60:.0f} min ago" if ago_s >= 60 else ""
        return False, f"gpu: lost while running{ago}: {problem}"
    # Without one from the start, the services decide: the self-test has told, and people work without a GPU too.
    return not wanted, f"gpu: no answer since the start: {problem}"


def _is_here() -> bool:
    return any(path.exists() for path in (*NODES, *PLACES))


def _read(run: Path) -> tuple[Known | None, float]:
    """The last answer, and its age in seconds."""
    try:
        age_s = abs(time.time() - (run / STATE).stat().st_mtime)
        said = json.loads((run / STATE).read_text())
        return Known(**{**said, "at_start": tuple(said["at_start"])}), age_s
    except (OSError, ValueError, TypeError, KeyError):
        return None, 0.0


def _waiting(run: Path) -> float | None:
    """For how many seconds an nvidia-smi has been asked now; None where none is."""
    try:
        descriptor = os.open(run / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return max(time.time() - os.fstat(descriptor).st_mtime, 0.0)
    finally:
        os.close(descriptor)
    return None


def _ask_in_background(run: Path, started: Mapping[str, Any]) -> None:
    sys.stdout.flush()
    if os.fork():
        return
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # Docker waits for these
            os.dup2(nowhere, number)
        signal.signal(signal.SIGTERM, _end)
        probe(run, started)
    finally:
        os._exit(0)


def _end(*_: object) -> None:
    sys.exit(1)  # so that `finally` ends nvidia-smi, which a stop would wait for otherwise


def probe(run: Path, started: Mapping[str, Any]) -> None:
    """Ask nvidia-smi, unless one is being asked, and keep what comes of it."""
    lock = os.open(run / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    os.utime(lock)
    began = time.time()
    before = _read(run)[0] or Known()
    try:
        found = diagnosis.of(ask(started, lock), uid=started["uid"], waited_s=LIMIT_S)
    except ImportError as error:  # else nobody would ever learn that nothing is judged
        found = Diagnosis(problem=f"torchtap cannot be loaded to judge nvidia-smi's answer: {error}")
    known = judge(before, found)
    if known.problem:
        known = Known(known.at_start, known.here, known.problem, before.bad_since or began)
    paths.write(run / STATE, json.dumps(asdict(known)) + "\n")


def ask(started: Mapping[str, Any], lock: int) -> list[Said]:
    """What nvidia-smi answers; code 127 where it is not here, none where it hangs."""
    program = next((str(place) for place in PLACES if place.exists()), None)
    if program is None:
        return [Said(("nvidia-smi", *QUERY), 127, "")]
    answers = [_run((program, *QUERY), started, lock)]
    if answers[0].code == 0 and "Enabled" in answers[0].text:  # MIG instances are only in the list
        answers.append(_run((program, "-L"), started, lock))
    return answers


def _run(command: tuple[str, ...], started: Mapping[str, Any], lock: int) -> Said:
    import subprocess  # costs health 10 ms that it need not spend

    root = os.geteuid() == 0
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
        pass_fds=(lock,),
        user=started["uid"] if root else None,
        group=started["gid"] if root else None,
        extra_groups=started["groups"] if root else None,
    )
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
        return Said(command, process.returncode, said)
    except subprocess.TimeoutExpired:
        return Said(command, None, "")
    finally:
        if process.poll() is None:
            with contextlib.suppress(OSError):
                process.kill()  # one that is stuck in the kernel stays, and keeps the lock
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)


def judge(before: Known, found: Diagnosis) -> Known:
    """What an answer means after what was known.

    >>> judge(Known(), Diagnosis(("GPU-1",)))
    Known(at_start=('GPU-1',), here=1, problem='', bad_since=0.0)
    >>> judge(Known(("GPU-1", "GPU-2")), Diagnosis(("GPU-1",))).problem[:55]
    '1 of 2 is gone: GPU-2. Fell off the PCIe bus (Xid 79)? '
    """
    here = sum(uuid.startswith("GPU-") for uuid in found.uuids)
    gone = [uuid for uuid in before.at_start if uuid not in found.uuids]
    if found.problem:
        return Known(before.at_start, here, found.problem)
    if not gone:
        return Known(before.at_start or found.uuids, here)
    why = "MIG was reconfigured" if gone[0].startswith("MIG-") else "Fell off the PCIe bus (Xid 79)"
    count = f"{len(gone)} of {len(before.at_start)} {'is' if len(gone) == 1 else 'are'} gone"
    do = "See nvidia-smi -L on the host, then recreate the container"
    return Known(before.at_start, here, f"{count}: {gone[0]}. {why}? {do}")
