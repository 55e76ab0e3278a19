"""The table of steps: what the test process can do, in which order, and what each needs. Data; imports nothing heavy.

The process that starts the test process reads it too: which steps need a GPU, which ask the driver, how long each may
take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from torchtap.selftest.limits import BURN_SILENCE_S, STEP_LONG_S, STEP_PROGRAMS_S, STEP_SHORT_S, STEP_START_S
from torchtap.selftest.needs import with_needed as needed
from torchtap.selftest.status import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step of the test process, as data."""

    name: str  # as in Check.reads: "child:NAME"
    does: str  # "module.function" in this package, loaded when the step runs
    after: tuple[str, ...] = ()  # must have run before; where one failed, this step is left out
    on_gpu: bool = False  # makes no sense where there is no GPU by design
    asks_driver: bool = False  # may hang where the driver does; not tried after an nvidia-smi that hung
    level: Level = Level.QUICK  # from which level on it runs
    timeout_s: float  # without an end, or a word of the next GPU, after this long it hangs
    doing: str = ""  # what is said to a person while it runs; empty: too short to say anything


def _long(name: str, does: str, doing: str, timeout_s: float = STEP_LONG_S) -> StepPlan:
    """A step of level full that goes through every GPU."""
    return StepPlan(
        name=name,
        does=does,
        after=("torch.cuda",),
        on_gpu=True,
        asks_driver=True,
        level=Level.FULL,
        timeout_s=timeout_s,
        doing=doing,
    )


# In this order: what leaves the driver alone comes first, so that a crash of the driver does not take it away. An LSTM
# on the CPU is not among it: the first backward() makes autograd count the devices of every backend, so it starts CUDA.
_PLANS = (
    StepPlan(
        name="torch.import", does="packages.import_torch", timeout_s=STEP_START_S, doing="importing torch"
    ),
    StepPlan(
        name="torch.build", does="packages.torch_build", after=("torch.import",), timeout_s=STEP_SHORT_S
    ),
    StepPlan(
        name="torch.cudnn", does="packages.torch_cudnn", after=("torch.import",), timeout_s=STEP_SHORT_S
    ),
    StepPlan(
        name="cpu.matmul",
        does="quick.cpu_matmul",
        after=("torch.import",),
        timeout_s=STEP_SHORT_S,
        doing="computing on the CPU",
    ),
    StepPlan(
        name="host.workers",
        does="workers.host_workers",
        after=("torch.import",),
        level=Level.FULL,
        timeout_s=STEP_PROGRAMS_S,
        doing="handing batches over from workers",
    ),
    StepPlan(
        name="nodes",
        does="driver.open_nodes",
        on_gpu=True,
        asks_driver=True,
        timeout_s=STEP_START_S,
        doing="opening device nodes",
    ),
    StepPlan(name="cuda.library", does="driver.cuda_library", on_gpu=True, timeout_s=STEP_SHORT_S),
    StepPlan(
        name="cuda.init",
        does="driver.cuda_init",
        after=("cuda.library",),
        on_gpu=True,
        asks_driver=True,
        timeout_s=STEP_START_S,
        doing="starting CUDA",
    ),
    StepPlan(
        name="cpu.rnn",
        does="quick.cpu_rnn",
        after=("torch.import",),
        asks_driver=True,
        timeout_s=STEP_START_S,
    ),
    StepPlan(
        name="torch.cuda",
        does="devices.torch_cuda",
        after=("torch.import", "cuda.init"),
        on_gpu=True,
        asks_driver=True,
        timeout_s=STEP_START_S,
        doing="starting CUDA in PyTorch",
    ),
    StepPlan(
        name="gpu.matmul",
        does="quick.gpu_matmul",
        after=("torch.cuda",),
        on_gpu=True,
        asks_driver=True,
        timeout_s=STEP_START_S,
        doing="computing on the GPU",
    ),
    StepPlan(
        name="gpu.cudnn",
        does="quick.gpu_cudnn",
        after=("torch.cuda",),
        on_gpu=True,
        asks_driver=True,
        timeout_s=STEP_START_S,
        doing="testing cuDNN",
    ),
    StepPlan(
        name="gpu.rnn",
        does="quick.gpu_rnn",
        after=("torch.cuda",),
        on_gpu=True,
        asks_driver=True,
        timeout_s=STEP_START_S,
        doing="testing an LSTM on the GPU",
    ),
    _long("gpu.memory", "memory.gpu_memory", "writing and reading all GPU memory"),
    _long("gpu.bandwidth", "speed.gpu_bandwidth", "copying within the GPU"),
    _long("gpu.transfer", "speed.gpu_transfer", "copying between host and GPU"),
    _long("gpu.speed", "speed.gpu_speed", "multiplying large matrices"),
    _long("gpu.recurrent", "recurrent.gpu_recurrent", "training LSTM and GRU"),
    _long("gpu.peers", "together.gpu_peers", "copying between GPUs"),
    _long("gpu.nccl", "together.gpu_nccl", "adding up over all GPUs", STEP_PROGRAMS_S),
    _long("gpu.compile", "compiling.gpu_compile", "compiling for the GPU", STEP_PROGRAMS_S),
    # Last of all: it asks the driver, and a slow compiler must not take a GPU's tests away.
    StepPlan(
        name="cpu.compile",
        does="compiling.cpu_compile",
        after=("torch.import",),
        asks_driver=True,
        level=Level.FULL,
        timeout_s=STEP_PROGRAMS_S,
        doing="compiling for the CPU",
    ),
    # The load of the level burn. It runs in a test process of its own, whose time the options say.
    StepPlan(
        name="cpu.burn",
        does="burn.cpu_burn",
        after=("torch.import",),
        level=Level.BURN,
        timeout_s=BURN_SILENCE_S,
        doing="preparing the load",
    ),
    StepPlan(
        name="gpu.burn",
        does="burn.gpu_burn",
        after=("torch.cuda",),
        on_gpu=True,
        asks_driver=True,
        level=Level.BURN,
        timeout_s=BURN_SILENCE_S,
        doing="filling the GPU's memory",
    ),
)
STEPS: dict[str, StepPlan] = {plan.name: plan for plan in _PLANS}


def with_needed(names: Iterable[str]) -> list[str]:
    """The steps and all that must run before them, in the order of `STEPS`.

    >>> with_needed(["cpu.rnn"])
    ['torch.import', 'cpu.rnn']
    """
    wanted = needed(names, lambda name: STEPS[name].after)
    return [name for name in STEPS if name in wanted]


def limit_of(name: str, asked_s: float | None = None) -> float:
    """Seconds after which a step counts as hung; `asked_s` is what `--timeout` says.

    It replaces the limit of quick steps. A longer step keeps at least its own: who shortens the start-up does not mean
    the test of the memory.

    >>> limit_of("torch.import"), limit_of("torch.import", 5), limit_of("no such step", 5)
    (60.0, 5, 5)
    """
    plan = STEPS.get(name)
    if plan is None or plan.level is Level.QUICK:
        return asked_s if asked_s is not None else (plan.timeout_s if plan is not None else STEP_START_S)
    return max(plan.timeout_s, asked_s or 0.0)


def still_possible(wanted: Iterable[str], ended: Collection[str], broken: str, *, hung: bool) -> list[str]:
    """The steps that a new process may still try after one was ended in the step `broken`; `ended` have a result.

    None after a quick step: what it shows is the first cause, and the rest rests on it. Nothing that needs the broken
    step; and after a hang, nothing that asks a driver which does not answer.
    """
    plan = STEPS.get(broken)
    if plan is None or plan.level is Level.QUICK:
        return []
    driver_hangs = hung and plan.asks_driver
    return [
        name
        for name in wanted
        if name not in ended
        and broken not in with_needed([name])
        and not (driver_hangs and STEPS[name].asks_driver)
    ]
