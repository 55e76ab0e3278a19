"""The load of the level burn: every GPU multiplies whole numbers without a pause, and compares every value it gets.

One thread a GPU in one process. A thread that waits for its GPU holds no lock of Python's, and a product takes far
longer than its launch, so eight GPUs do not wait for each other; one process tells how all of them are, and one GPU
that fails or hangs does not keep the others from saying what they found. (A process a GPU would add an `import torch`
and a pair of pipes for each, and say no more.)

Nearly all free memory holds operands, and each product takes the next two, so that all of it is read again and again.
The result is known exactly: the operands repeat a small block, whose product is computed in 64-bit integers on the CPU.
Values are compared and counted on the GPU. The host waits only for the end of a round (a tenth of a second), while the
next one is queued already.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from torchtap.selftest.child.devices import each_gpu
from torchtap.selftest.child.running import Reporter, Values
from torchtap.selftest.limits import BURN_ENTRY, BURN_MEMORY_SHARE, BURN_SILENCE_S, BURN_SLICES

TELL_EVERY_S = 1.0
# Two rounds are queued at most. Of longer ones a fast GPU would hold more launches than its queue takes (1024), and the
# next launch would wait for it while holding Python's lock.
ROUND_S = 0.1
# The block that the operands repeat: so small that 64-bit integers multiply it in less than a second.
BLOCK = 64
SMALL_GPU_BYTES = 8 << 30
CPU_BYTES = 256 << 20  # a CPU host has other work, and nothing is to be swapped out


class StalledError(Exception):
    """A GPU took a product and gave nothing back."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one device computes: square products of `size`, in `dtype`, of whole numbers up to `entry`."""

    size: int
    dtype: torch.dtype
    entry: int


@dataclass(slots=True)
class Load:
    """One device under load, and what it has found. Written by its thread, read by the one that reports."""

    device: torch.device
    name: str
    job: Job
    seconds: float  # how long it is to last
    blocks: int = 0
    products: int = 0
    wrong: int = 0
    timed: int = 0  # products whose time is known: all but the first round, which loads code
    busy_s: float = 0.0
    done: bool = False
    error: Exception | None = None
    heard: float = field(default_factory=time.monotonic)  # when it last gave a sign of life
    slices: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in range(BURN_SLICES)])

    def record(self, products: int, wrong: int, elapsed: float, took: float) -> None:
        """The end of a round: `wrong` is the sum so far, `elapsed` since all began, `took` 0 for an untimed one."""
        self.products += products
        self.wrong = wrong
        self.heard = time.monotonic()
        if not took:
            return
        self.timed += products
        self.busy_s += took
        part = self.slices[min(int(elapsed / self.seconds * BURN_SLICES), BURN_SLICES - 1)]
        part[0] += products
        part[1] += took

    def values(self) -> Values:
        """What is known now, for a report."""
        work = 2e-12 * self.job.size**3  # TFLOP a product
        return {
            "index": self.device.index if self.device.type == "cuda" else -1,
            "name": self.name,
            "type": str(self.job.dtype).removeprefix("torch."),
            "size": self.job.size,
            "memory_mib": self.blocks * self.job.size**2 * self.job.dtype.itemsize >> 20,
            "products": self.products,
            "checked": self.products * self.job.size**2,
            "wrong": self.wrong,
            "tflops": _rate(work * self.timed, self.busy_s),
            "course": [_rate(work * products, took) for products, took in self.slices if took],
        }


def _rate(amount: float, seconds: float) -> float:
    return round(amount / seconds, 4) if seconds else 0.0


def cpu_burn(reporter: Reporter) -> Values:
    """The load on every core that torch uses."""
    cores = torch.get_num_threads()
    job = Job(1024, torch.float32, BURN_ENTRY["float32"])
    return _burn(reporter, [Load(torch.device("cpu"), f"CPU, {cores} threads", job, _seconds(reporter))])


def gpu_burn(reporter: Reporter) -> Values:
    """The load on every GPU that torch sees, at once."""
    # Sums of parts are kept in fp32: rounded in between, they would depend on their order.
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    loads = []
    for device in each_gpu(reporter):
        properties = torch.cuda.get_device_properties(device)
        size = 8192 if properties.total_memory >= SMALL_GPU_BYTES else 4096
        dtype = _fastest((properties.major, properties.minor))
        job = Job(size, dtype, BURN_ENTRY[str(dtype).removeprefix("torch.")])
        loads.append(Load(device, properties.name, job, _seconds(reporter)))
    reporter.say_where("")
    return _burn(reporter, loads)


def _fastest(capability: tuple[int, int]) -> torch.dtype:
    """What draws the most power: tensor cores, which Volta has for fp16 and Ampere for bf16 too."""
    if capability >= (8, 0):
        return torch.bfloat16
    return torch.float16 if capability >= (7, 0) else torch.float32


def _seconds(reporter: Reporter) -> float:
    return float(reporter.options["seconds"])


def _burn(reporter: Reporter, loads: Sequence[Load]) -> Values:
    """Load all devices until the time is over. Raises what stopped one of them, after all have been told to stop."""
    silence_s = float(reporter.options.get("silence", BURN_SILENCE_S))
    began: list[float] = []
    stop = threading.Event()
    # All at once: the power supply and the cooling are tested too.
    ready = threading.Barrier(len(loads), action=lambda: began.append(time.monotonic()))
    expected = {load.job: _block(load.job) for load in loads}
    for load in loads:
        load.heard = time.monotonic()
        target = threading.Thread(
            target=_run,
            args=(load, expected[load.job], ready, stop, began),
            name=str(load.device),
            daemon=True,
        )
        target.start()
    while not all(load.done for load in loads):
        stop.wait(TELL_EVERY_S)
        reporter.progress(_said(loads, began))
        for load in loads:
            silent_s = time.monotonic() - load.heard
            if load.error is None and not load.done and silent_s > silence_s:
                load.error = StalledError(f"no product came back in {silent_s:.0f} s")
            if load.error is not None:
                stop.set()
                ready.abort()
                if load.device.type == "cuda":
                    reporter.say_where(f"GPU {load.device.index}")
                raise load.error
    return _said(loads, began)


def _said(loads: Sequence[Load], began: Sequence[float]) -> Values:
    elapsed = time.monotonic() - began[0] if began else 0.0
    return {"elapsed": round(elapsed, 1), "gpus": [load.values() for load in loads]}


def _run(
    load: Load, block: _Block, ready: threading.Barrier, stop: threading.Event, began: Sequence[float]
) -> None:
    """One device's thread."""
    try:
        with torch.inference_mode():
            work = _Work(load, block)
            load.heard = time.monotonic()
            ready.wait()
            load.heard = time.monotonic()
            for products, wrong, at, took in work.rounds(began[0] + load.seconds, stop):
                load.record(products, wrong, at - began[0], took)
    except threading.BrokenBarrierError:
        pass  # another device failed before this one was ready
    except Exception as error:  # any library may raise anything; the text is the finding
        load.error = error
        stop.set()
    load.done = load.error is None


@dataclass(frozen=True, slots=True)
class _Block:
    """The repeated parts of both operands and of their product, on the CPU."""

    left: torch.Tensor
    right: torch.Tensor
    product: torch.Tensor


def _block(job: Job) -> _Block:
    """Rows of the left and columns of the right operand, and their exact product, rounded once to the type."""
    generator = torch.Generator().manual_seed(0)
    whole = {"low": -job.entry, "high": job.entry + 1, "generator": generator}
    left = torch.randint(size=(BLOCK, job.size), **whole)  # type: ignore[call-overload]
    right = torch.randint(size=(job.size, BLOCK), **whole)  # type: ignore[call-overload]
    return _Block(left.to(job.dtype), right.to(job.dtype), (left @ right).float().to(job.dtype))


class _Work:
    """One device's memory, full of operands, and the products of them."""

    def __init__(self, load: Load, block: _Block) -> None:
        self._device, self._size = load.device, load.job.size
        size, dtype = load.job.size, load.job.dtype
        repeat = size // BLOCK
        self._expected = block.product.to(self._device).repeat(repeat, repeat)
        self._result = torch.empty(size, size, device=self._device, dtype=dtype)
        self._differs = torch.empty(size, size, device=self._device, dtype=torch.bool)
        self._wrong = torch.zeros((), device=self._device, dtype=torch.int64)
        self._operands = _allocate(self._device, size, dtype)
        for at, operand in enumerate(self._operands):
            operand.copy_(
                block.left.to(self._device).repeat(repeat, 1)
                if at % 2 == 0
                else block.right.to(self._device).repeat(1, repeat)
            )
        load.blocks = len(self._operands)
        self._next = 0

    def rounds(self, until: float, stop: threading.Event) -> Iterator[tuple[int, int, float, float]]:
        """(products, wrong values so far, when it ended, seconds it took) of round after round.

        The next round is queued before the last one is waited for, so that the device never waits for the host.
        """
        pending: list[tuple[int, _Mark]] = []
        number, ended = 1, 0
        last = time.monotonic()
        for turn in count():
            going = time.monotonic() < until and not stop.is_set()
            if going:
                for _ in range(number):
                    self._multiply()
                pending.append((number, _Mark(self._wrong)))
            if not pending:
                return
            if going and turn == 0:
                continue
            products, mark = pending.pop(0)
            wrong = mark.wait()
            now = time.monotonic()
            took, last = now - last, now
            if ended:
                number = max(1, min(round(products * ROUND_S / max(took, 1e-6)), 2 * number))
            yield products, wrong, now, took if ended else 0.0
            ended += 1

    def _multiply(self) -> None:
        left, right = self._operands[self._next], self._operands[self._next + 1]
        self._next = (self._next + 2) % len(self._operands)
        torch.mm(left, right, out=self._result)
        torch.ne(self._result, self._expected, out=self._differs)  # NaN differs from everything
        self._wrong += self._differs.sum()


class _Mark:
    """The count of wrong values as it will be when the device comes to this place of its queue."""

    def __init__(self, wrong: torch.Tensor) -> None:
        self._event = torch.cuda.Event(blocking=True) if wrong.is_cuda else None  # type: ignore[no-untyped-call]
        self._copy = torch.empty((), dtype=wrong.dtype, pin_memory=wrong.is_cuda)
        self._copy.copy_(wrong, non_blocking=True)
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(wrong.device))

    def wait(self) -> int:
        """Wait for it; other threads run meanwhile."""
        if self._event is not None:
            self._event.synchronize()
        return int(self._copy.item())


def _allocate(device: torch.device, size: int, dtype: torch.dtype) -> torch.Tensor:
    """An even number of operands: nearly all free memory of a GPU, a little of a CPU's."""
    each = size * size * dtype.itemsize
    share = 1.0
    while True:
        free = torch.cuda.mem_get_info(device)[0] * BURN_MEMORY_SHARE if device.type == "cuda" else CPU_BYTES
        number = max(int(free * share / each) // 2 * 2, 2)
        try:
            return torch.empty(number, size, size, device=device, dtype=dtype)
        except torch.OutOfMemoryError:
            if number == 2:
                raise
            share *= 0.9  # in pieces, or taken by somebody else in the meantime
