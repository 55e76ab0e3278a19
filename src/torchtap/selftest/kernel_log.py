"""The kernel log: what NVIDIA's drivers wrote to it, where this process may read it.

Only a read, never a process: the newest part of the log through syslog(2), which cannot block; where that is refused,
/dev/kmsg, non-blocking and for a bounded time. A container may usually do neither. The log is the host's, and it
reaches back to the boot at most.

>>> read_text("<4>[  12.500000] NVRM: Xid (PCI:0000:1a:00): 79, pid=1, off the bus\\n", now=20.0).events
(XidEvent(at=12.5, bus='0000:1a:00', xid=79, line='NVRM: Xid (PCI:0000:1a:00): 79, pid=1, off the bus'),)
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torchtap.selftest.limits import KERNEL_LOG_TIMEOUT_S, MAX_KERNEL_LOG_BYTES, MAX_KERNEL_LOG_LINES
from torchtap.selftest.process import visible
from torchtap.selftest.smi.texts import XID

KMSG = "/dev/kmsg"
# Lines that NVIDIA's drivers write, and those of other parts of the kernel about a GPU that is gone.
_OURS = re.compile(rb"NVRM|nvidia|NVIDIA|nouveau|Xid")
_TIME = re.compile(rb"^(?:<\d+>)?\[ *(\d+\.\d+)\]", re.MULTILINE)
# A sandbox answers with a log of its own making, which knows nothing of the host's GPUs.
_SANDBOX = b"Starting gVisor"
_LINE = re.compile(r"(?:<\d+>)?\[\s*(?P<at>\d+\.\d+)\]\s?(?:\[\s*[TC]\d+\] ?)?(?P<text>.*)")
_PRIORITY = re.compile(r"^<\d+>")
_READ_ALL, _SIZE = 3, 10  # actions of syslog(2)


class LogLine(NamedTuple):
    """One line: when, in seconds on the log's clock (None where the kernel writes no times), and what."""

    at: float | None
    text: str


class XidEvent(NamedTuple):
    """One Xid: when, at which PCI address ("0000:1a:00"), its number, and the line."""

    at: float | None
    bus: str
    xid: int
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """What NVIDIA's drivers wrote, oldest first. `problem` says why it could not be read, else it is ""."""

    lines: tuple[LogLine, ...] = ()
    now: float = 0.0  # the log's clock when it was read
    since: float | None = None  # its oldest line, of whatever driver
    problem: str = ""

    @property
    def events(self) -> tuple[XidEvent, ...]:
        """Every Xid of it, oldest first."""
        return tuple(
            XidEvent(line.at, found["bus"].lower(), int(found["xid"]), line.text)
            for line in self.lines
            for found in XID.finditer(line.text)
        )

    def age(self, at: float | None) -> float | None:
        """Seconds from then to the moment of reading; None where the line has no time."""
        return None if at is None else max(self.now - at, 0.0)


def new_events(before: KernelLog, after: KernelLog) -> tuple[XidEvent, ...]:
    """The Xids of `after` that were not there before.

    >>> new_events(KernelLog(), KernelLog())
    ()
    """
    known = set(before.events)
    return tuple(event for event in after.events if event not in known)


def read_kernel_log(
    *,
    syslog: Callable[[], bytes] | None = None,
    kmsg: Callable[[], bytes] | None = None,
) -> KernelLog:
    """The newest part of this machine's kernel log, at most `limits.MAX_KERNEL_LOG_BYTES` of it.

    Never raises and never waits longer than `limits.KERNEL_LOG_TIMEOUT_S`. `syslog` and `kmsg` replace the two ways
    of reading.
    """
    problems = []
    for name, read in (("syslog(2)", syslog or _syslog), (KMSG, kmsg or _kmsg)):
        try:
            raw = read()
        except OSError as error:
            problems.append(f"{name}: {error.strerror or error}")
            continue
        return read_bytes(raw, now=time.monotonic())
    return KernelLog(problem="; ".join(problems))


def read_text(text: str, now: float) -> KernelLog:
    """A log that is at hand as text."""
    return read_bytes(text.encode("utf-8", errors="surrogatepass"), now)


def read_bytes(raw: bytes, now: float) -> KernelLog:
    """The log taken apart. What is no kernel log, or a sandbox's, is a problem and not an empty log.

    Only the newest lines of NVIDIA's drivers are decoded: a log may be megabytes, and this runs at every start.
    """
    if _SANDBOX in raw:
        return KernelLog(now=now, problem="a sandbox (gVisor) shows a log of its own")
    first = _TIME.search(raw)
    ours = list(_our_lines(raw))[-MAX_KERNEL_LOG_LINES:]
    if first is None and not ours:
        return KernelLog(
            now=now, problem="it has not the form of a kernel log" if raw.strip() else "it is empty"
        )
    lines = tuple(_line(line) for line in visible(b"\n".join(ours)).splitlines() if line.strip())
    return KernelLog(lines=lines, now=now, since=float(first[1]) if first else None)


def _our_lines(raw: bytes) -> Iterable[bytes]:
    """Found by searching the whole log at once: to look at every line takes twice as long."""
    end = -1
    for found in _OURS.finditer(raw):
        if found.start() > end:
            end = raw.find(b"\n", found.start())
            end = len(raw) if end < 0 else end
            yield raw[raw.rfind(b"\n", 0, found.start()) + 1 : end]


def _line(line: str) -> LogLine:
    found = _LINE.fullmatch(line)
    if found is None:
        return LogLine(None, _PRIORITY.sub("", line).strip())
    return LogLine(float(found["at"]), found["text"])


def _syslog() -> bytes:
    """Raises `OSError` where this process may not, or the C library has no such call."""
    try:
        call = ctypes.CDLL(None, use_errno=True).klogctl
    except AttributeError:
        raise OSError(errno.ENOSYS, "not in this C library") from None
    size = _checked(call(_SIZE, None, 0))
    buffer = ctypes.create_string_buffer(min(max(size, 1), MAX_KERNEL_LOG_BYTES))
    length = _checked(call(_READ_ALL, buffer, len(buffer)))
    return buffer.raw[:length]


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _kmsg(path: str = KMSG) -> bytes:
    """Every record of /dev/kmsg, as lines like syslog's. Raises `OSError`, also where the time is not enough."""
    deadline = time.monotonic() + KERNEL_LOG_TIMEOUT_S
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return b"".join(_records(fd, deadline))
    finally:
        os.close(fd)


def _records(fd: int, deadline: float) -> Iterable[bytes]:
    read = 0
    while True:
        if time.monotonic() > deadline or read > MAX_KERNEL_LOG_BYTES:
            # What is missing is the newest, and that is what is asked for.
            raise OSError(errno.ETIMEDOUT, "it is too long to be read in time")
        try:
            record = os.read(fd, 16384)
        except BlockingIOError:
            return  # the end for now
        except BrokenPipeError:
            continue  # older records were overwritten while reading: go on with what is there
        if not record:
            return
        read += len(record)
        head, _, message = record.partition(b";")
        parts = head.split(b",")
        if len(parts) > 2 and parts[2].isdigit():
            yield b"[%.6f] %s\n" % (int(parts[2]) / 1e6, message.partition(b"\n")[0])
