"""From facts to a plan: which mode, which variant, which GPUs. Pure: no file is read, no program is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from host.engine import ABSENT, Engine, demand
from host.gpu import Gpu, HostGpus, variant_for
from host.settings import Settings
from host.show import Problem
from torchtap.variants import DEFAULT, VARIANTS, Variant

LOCAL, DOCKER = "local", "docker"
IF_HANDED_OUT = "if Docker hands one out (a container will tell), else cpu"


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done, and for each choice the reason in words."""

    place: str  # local, or docker
    mode: str  # gpu, cpu, local
    mode_why: str
    variant: Variant
    variant_why: str
    prove: bool = False  # a `--gpus` run of the built image has the last word between gpu and cpu
    must: bool = False  # no GPU then is an error, not a reason for cpu
    notes: tuple[str, ...] = ()

    def on_cpu(self, why: str) -> Plan:
        """The same plan without a GPU."""
        return replace(self, mode="cpu", mode_why=why, prove=False, must=False)


def decide(settings: Settings, engine: Engine, host: HostGpus) -> Plan:
    """Choose. Raises `Problem` when what the user asked for cannot be had here."""
    asked = settings.get("MODE")
    if asked == "local" or (not asked and engine.state in ABSENT):
        return local_plan(settings, engine, host)
    demand(engine)
    return docker_plan(
        settings, host if engine.local else HostGpus(trouble="the engine is on another machine")
    )


def local_plan(settings: Settings, engine: Engine, host: HostGpus) -> Plan:
    """Without Docker. The variant is only a wish: what is installed already may serve as well (venv.choose)."""
    why = "MODE says so" if settings.get("MODE") else str(engine)
    forced = settings.get("VARIANT")
    fits = variant_for(host)
    variant = VARIANTS[forced] if forced else fits or VARIANTS[DEFAULT]
    reason = "VARIANT says so" if forced else f"fits {host}" if fits else "the default"
    return Plan(LOCAL, "local", why, variant, reason, notes=mismatch(variant, host) if forced else ())


def docker_plan(settings: Settings, host: HostGpus) -> Plan:
    """With Docker: the variant from the driver and the GPUs asked for; gpu or cpu as far as it can be said now."""
    asked, forced, gpus = settings.get("MODE"), settings.get("VARIANT"), settings.get("GPUS")
    if forced == "cpu" and asked == "gpu":
        raise Problem("VARIANT=cpu has no CUDA, so MODE=gpu is impossible", "Leave one of them out")
    notes: tuple[str, ...] = ()
    if asked == "cpu" or forced == "cpu":
        if gpus and gpus != "all":
            notes = (f"GPUS={gpus} ({settings.where('GPUS')}) means nothing without a GPU",)
        variant = VARIANTS[forced or DEFAULT]
        why = f"{'MODE' if asked else 'VARIANT=cpu'} says so"
        return Plan(DOCKER, "cpu", why, variant, "VARIANT says so" if forced else "the default", notes=notes)
    chosen = replace(host, gpus=select(host.gpus, gpus))
    fits = variant_for(chosen)
    too_old = bool(host.driver and host.gpus and fits is None)
    if too_old and not forced:
        text = f"no variant works with {chosen}: 525 is the oldest driver that does"
        if asked == "gpu" or gpus:
            raise Problem(text, "Update the host's driver. Until then:  make up MODE=cpu")
        return Plan(DOCKER, "cpu", text, VARIANTS[DEFAULT], "the default")
    must = asked == "gpu" or bool(gpus and gpus != "all")
    why = "MODE says so" if asked else f"GPUS={gpus} asks for it" if must else IF_HANDED_OUT
    variant = VARIANTS[forced] if forced else fits or VARIANTS[DEFAULT]
    reason = "VARIANT says so" if forced else f"fits {chosen}" if fits else f"the default; {chosen}"
    notes = mismatch(variant, chosen) if forced else unserved(variant, chosen)
    return Plan(DOCKER, "gpu", why, variant, reason, prove=True, must=must, notes=notes)


def select(gpus: Sequence[Gpu], wish: str) -> tuple[Gpu, ...]:
    """The GPUs that GPUS names. Unknown ids raise `Problem`; MIG ids and an empty list cannot be checked here.

    >>> a, b = Gpu("0", "GPU-aa", "T4", (7, 5)), Gpu("1", "GPU-bb", "V100", (7, 0))
    >>> [gpu.name for gpu in select([a, b], "1")], [gpu.name for gpu in select([a, b], "count=1")]
    (['V100'], ['T4'])
    """
    if not gpus or wish in {"", "all"}:
        return tuple(gpus)
    if wish.startswith("count="):
        number = int(wish.removeprefix("count="))
        if number > len(gpus):
            raise Problem(
                f"GPUS={wish}: this host has {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}", *listed(gpus)
            )
        return tuple(gpus[:number])
    found = []
    for each in wish.split(","):
        if each.startswith("MIG-"):
            return tuple(gpus)
        match = [
            gpu
            for gpu in gpus
            if gpu.index == each.partition(":")[0] or (gpu.uuid.startswith(each) and "-" in each)
        ]
        if not match:
            raise Problem(f"GPUS={wish}: there is no GPU {each} here", *listed(gpus))
        found += match
    return tuple(found)


def listed(gpus: Sequence[Gpu]) -> list[str]:
    return [f"{gpu.index}  {gpu.name}  {gpu.uuid}" for gpu in gpus]


def mismatch(variant: Variant, host: HostGpus) -> tuple[str, ...]:
    """A warning when a forced variant will not work with this host's GPUs."""
    fits = variant_for(host)
    if not host.gpus or host.driver is None or fits is variant:
        return ()
    if variant.driver_floor and host.driver < variant.driver_floor:
        instead = f"; {fits.name} would" if fits else ""
        return (f"{variant.name} needs {variant.needs}, this host has {host.driver_text}: no GPU{instead}",)
    return unserved(variant, host)


def unserved(variant: Variant, host: HostGpus) -> tuple[str, ...]:
    """A warning for each GPU for which a variant holds no code."""
    return tuple(
        f"{variant.name} has no code for GPU {gpu.index}, {gpu}"
        for gpu in host.gpus
        if gpu.capability and variant.cuda and not variant.runs_on(gpu.capability)
    )
