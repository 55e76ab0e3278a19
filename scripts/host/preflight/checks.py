"""The checks of preflight, as data, and how each is judged. Pure: facts in, one `Judged` out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from host import disk, proc
from host.engine import ABSENT, COMPOSE_FLOOR, REMEDIES, State, compose_number
from host.gpu import Gpu, variant_for
from host.plan import select
from host.preflight.causes import cause_of
from host.preflight.facts import Facts, Tried
from host.show import Problem, gigabytes
from torchtap.selftest import compat, smi
from torchtap.selftest.check import Judged, UnreadableError, failed, passed, skipped, unknown, warned
from torchtap.selftest.result import Result
from torchtap.selftest.status import Status
from torchtap.selftest.words import count, name_gpus, version
from torchtap.variants import PREFERENCE, VARIANTS, fitting_variant

# Docker Engine 25.0 is the first with HEALTHCHECK --start-interval, which the Dockerfile uses (moby release notes,
# v25.0.0). `--gpus` is there since 19.03, CDI devices since 25.0.
ENGINE_FLOOR = (25, 0)
TESTED_MACHINES = frozenset({"x86_64", "amd64"})
# Above what a step needs: home and workspace grow.
SPARE_BYTES = 5_000_000_000
REPORT_BYTES = 1_000_000_000
WITHOUT_GPU = "no NVIDIA GPU here: make up uses the CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check. `judge` is pure, and may raise `UnreadableError`, which is `unknown` and never a pass."""

    id: str  # subject first
    title: str
    judge: Callable[[Facts], Judged]
    causes: tuple[str, ...]
    needs: tuple[str, ...] = ()  # one of these neither passed nor warned: skipped
    stops: bool = False  # where it fails, make up ends with an error
    for_start: bool = False  # matters to `make up` and not to `make selftest`
    source: str = ""


# ---- the machine ---------------------------------------------------------------------------------------------------


def system(facts: Facts) -> Judged:
    where = (
        "WSL, "
        if facts.host.wsl
        else f"in a {facts.host.container} container, "
        if facts.host.container
        else ""
    )
    seen = f"{where}{facts.system} {facts.release} {facts.machine}, Python {facts.python}"
    if facts.system != "Linux":
        return warned("system_untested", seen, system=facts.system)
    if facts.machine.lower() not in TESTED_MACHINES:
        return warned("machine_untested", seen, machine=facts.machine)
    return passed(seen, system=facts.system, machine=facts.machine, wsl=facts.host.wsl)


# ---- the engine ----------------------------------------------------------------------------------------------------


def told(problem: Problem) -> dict[str, object]:
    """A `Problem` as the slots {what}, {do} and {paste}: the first command in its lines is the line to paste."""
    paste, words = "", []
    for line in problem.do:
        said, colon, command = line.partition(":  ")
        command, _, aside = command.partition("     ")
        if colon and not paste:
            paste = command
            words.append(f"{said} {aside}".strip())
        else:
            words.append(re.sub(r" {2,}", " ", line))
    return {"what": problem.what, "do": ". ".join(words) or "See docs/host.md", "paste": paste}


def docker(facts: Facts) -> Judged:
    engine = facts.engine
    if facts.settings.get("MODE") == "local":
        return skipped("not_applicable", "not asked: MODE=local needs no Docker")
    if engine.state in ABSENT:
        slots = told(Problem(str(engine), *REMEDIES[engine.state]))
        if facts.local:
            return warned("docker_absent", str(engine), **slots)
        return failed("docker_unusable", str(engine), **slots)
    if engine.state is State.NO_PERMISSION:
        return failed("no_rights", engine.state.value, said=engine.said)
    found = compose_number(engine.version)
    seen = f"{engine.version} (needed: {'.'.join(map(str, ENGINE_FLOOR))})"
    if not any(found):
        raise UnreadableError(f"Docker's version {engine.version!r}")
    if found < ENGINE_FLOOR:
        return failed("docker_too_old", seen, version=engine.version, floor=".".join(map(str, ENGINE_FLOOR)))
    return passed(seen, version=engine.version)


def without_docker(facts: Facts) -> Judged | None:
    """The skip of a check about an engine that plays no part."""
    return skipped("not_applicable", "local mode needs no Docker") if facts.local else None


def compose(facts: Facts) -> Judged:
    if skip := without_docker(facts):
        return skip
    engine = facts.engine
    seen = f"{engine.compose or 'not installed'} (needed: {'.'.join(map(str, COMPOSE_FLOOR))})"
    if engine.state in {State.NO_COMPOSE, State.OLD_COMPOSE}:
        return failed("compose_unusable", seen, **told(Problem(str(engine), *REMEDIES[engine.state])))
    if not any(compose_number(engine.compose)):
        raise UnreadableError(f"Compose's version {engine.compose!r}")
    return passed(seen, version=engine.compose)


def buildx(facts: Facts) -> Judged:
    if skip := without_docker(facts):
        return skip
    plugins = (facts.engine.info.get("ClientInfo") or {}).get("Plugins")
    if plugins is None:  # clients before 19.03, and docker-compatible ones
        return skipped("not_reported", "this Docker client lists no plugins")
    versions = [str(each.get("Version", "")) for each in plugins if each.get("Name") == "buildx"]
    return passed(f"buildx {versions[0]}") if versions else warned("no_buildx", "not installed")


def place(facts: Facts) -> Judged:
    """Where the engine runs, and how: what keeps GPUs and files from it."""
    if skip := without_docker(facts):
        return skip
    engine, info = facts.engine, facts.engine.info
    name = str(info.get("OperatingSystem") or "an unnamed system")
    if not engine.local:
        return warned("engine_remote", f"on another machine: {name}", address=address(info))
    if "Docker Desktop" in name and not facts.host.wsl:
        judge = failed if facts.gpu_seen and not facts.cpu else warned
        return judge("engine_desktop", "Docker Desktop", system=facts.system)
    if str(info.get("DockerRootDir", "")).startswith("/var/snap/"):
        return warned("engine_snap", f"a snap, in {info['DockerRootDir']}")
    if not facts.rootless:
        return passed(f"on this machine, {name}")
    if facts.memlock_limit >= 0 and not facts.settings.get("MEMLOCK"):
        limit = facts.memlock_limit
        return warned("rootless_memlock", f"rootless, memlock at most {limit:,} bytes", limit=limit)
    if facts.gpu_seen and not facts.cpu and not engine.cdi and facts.toolkit.no_cgroups is not True:
        return warned("rootless_cgroups", "rootless, without no-cgroups and without CDI devices")
    return passed("on this machine, rootless")


def address(info: Mapping[str, object]) -> str:
    return str(info.get("Name") or "unknown")


def no_gpu_wanted(facts: Facts) -> Judged | None:
    """The skip of a check that has no GPU to look at."""
    if facts.cpu:
        return skipped("not_applicable", "MODE=cpu, or VARIANT=cpu: no GPU is wanted")
    return None if facts.gpu_seen or facts.must_have_gpu else skipped("not_applicable", WITHOUT_GPU)


def engine_gpu(facts: Facts) -> Judged:
    """A hint only: make up lets a container prove it."""
    engine, toolkit = facts.engine, facts.toolkit
    if skip := without_docker(facts):
        return skip
    if not engine.hints:
        if not engine.local:
            return skipped("not_applicable", "on another machine: only a container can tell")
        if not facts.gpu_seen and facts.must_have_gpu:
            return skipped("needs", "needs gpu.pci", need="gpu.pci")
        return no_gpu_wanted(facts) or failed(
            "engine_without_gpu", "no runtime nvidia, no CDI device, no hook"
        )
    seen = f"by {', '.join(engine.hints)}" + (
        f"; NVIDIA Container Toolkit {toolkit.version}" if toolkit.version else ""
    )
    if toolkit.no_cgroups and not facts.rootless and not engine.cdi:
        return warned("no_cgroups_rootful", f"{seen}; no-cgroups = true")
    return passed(seen, hints=list(engine.hints))


def cgroups(facts: Facts) -> Judged:
    info = facts.engine.info
    if not facts.engine.local:
        return skipped("not_applicable", "on another machine")
    if skip := no_gpu_wanted(facts):
        return skip
    driver = info.get("CgroupDriver")
    if not isinstance(driver, str) or not driver:
        raise UnreadableError("docker info names no cgroup driver")
    seen = f"{driver}, cgroup v{info.get('CgroupVersion') or '?'}"
    if driver == "systemd" and not facts.engine.cdi and not facts.toolkit.char_links:
        return warned(
            "devices_may_be_revoked", f"{seen}; /dev/char has no link to NVIDIA's devices", driver=driver
        )
    return passed(seen, driver=driver)


def selinux(facts: Facts) -> Judged:
    if facts.selinux.enforcing is None:
        return skipped("not_applicable", "this kernel has no SELinux, or it is off")
    if not facts.selinux.enforcing:
        return passed("permissive: it forbids nothing")
    if "name=selinux" not in facts.security:
        return passed("enforcing; Docker leaves containers unconfined")
    if facts.selinux.containers_use_devices or (facts.cpu and not facts.gpu_seen):
        return passed("enforcing; containers may use devices")
    return warned("selinux_confines", "enforcing, and Docker confines containers")


# ---- the GPU and its driver ----------------------------------------------------------------------------------------


def pci(facts: Facts) -> Judged:
    host, listed = facts.host, facts.gpus.gpus
    if facts.cpu:
        return skipped("not_applicable", "MODE=cpu, or VARIANT=cpu: no GPU is wanted")
    if host.wsl:
        if any(path.endswith("dxg") for path in facts.gpu_nodes):
            return passed("/dev/dxg: the GPU comes from Windows")
        judge = failed if facts.must_have_gpu else warned
        return judge("wsl_without_gpu", "WSL without /dev/dxg")
    if not facts.gpu_seen:
        if facts.must_have_gpu and facts.engine.local:
            asked = (
                "MODE=gpu" if facts.settings.get("MODE") == "gpu" else f"GPUS={facts.settings.get('GPUS')}"
            )
            return failed("no_gpu_in_host", "no NVIDIA GPU", asked=asked)
        if host.pci is None and facts.system == "Linux":
            return unknown("pci_unreadable", "/sys/bus/pci cannot be read")
        return skipped("not_applicable", WITHOUT_GPU)
    if not host.pci:
        return passed(f"{', '.join(facts.gpu_nodes) or 'nvidia-smi answers'}; the PCI bus shows none")
    seen = f"{count(len(host.pci), 'NVIDIA GPU')}: " + ", ".join(
        f"{each.address} ({each.driver or 'no driver'})" for each in host.pci[:4]
    )
    seen += ", ..." if len(host.pci) > 4 else ""
    causes = {"nouveau": "nouveau_bound", "vfio-pci": "vfio_bound", "": "driver_not_bound"}
    odd = [each for each in host.pci if each.driver in causes]
    if odd and not listed:
        return failed(causes[odd[0].driver], seen, address=odd[0].address)
    if odd:
        return warned(causes[odd[0].driver], seen, address=odd[0].address)
    return passed(seen, count=len(host.pci))


def smi_answer(facts: Facts) -> Judged:
    """nvidia-smi on this host, judged as the self-test judges it in a container."""
    said = facts.gpus.said
    if skip := no_gpu_wanted(facts):
        return skip
    if said.done.rc == proc.NOT_FOUND:
        return failed("smi_missing", "nvidia-smi is not installed")
    if said.done.rc == proc.TIMED_OUT:
        return failed("smi_hung", said.done.err, waited_s=re.sub(r"\D+(\d+).*", r"\1", said.done.err))
    text = said.done.out + (said.done.err if not said.done.ok else "")
    judged = smi.judge(text, said.done.rc, said.command)
    first = next((each for each in judged.findings if each.verdict is judged.verdict), None)
    if first is None:
        return passed(str(facts.gpus), gpus=[gpu.name for gpu in facts.gpus.gpus])
    judge = {smi.Verdict.FAIL: failed, smi.Verdict.WARN: warned}.get(judged.verdict, unknown)
    where = [each.gpu for each in judged.findings if each.cause == first.cause]
    seen = first.line or next((line for line in text.splitlines() if line.strip()), "no output")
    values = {"gpus": name_gpus(where, first.values.get("bus")), "index": first.gpu or 0, **first.values}
    return judge(first.cause, seen.strip(), **values)


def gpu_count(facts: Facts) -> Judged:
    on_bus = [each for each in facts.host.pci or () if each.driver == "nvidia"]
    listed = len(facts.gpus.gpus)
    if not on_bus:
        return skipped("not_applicable", "the PCI bus shows no GPU with NVIDIA's driver")
    if len(on_bus) > listed:
        return failed("gpus_missing", f"{listed} of {len(on_bus)}", on_bus=len(on_bus), listed=listed)
    return passed(f"{listed} of {len(on_bus)}", on_bus=len(on_bus), listed=listed)


def driver_version(facts: Facts) -> Judged:
    driver = facts.gpus.driver
    if driver is None:
        return unknown("driver_unknown", "nvidia-smi names no version")
    name = version(driver)
    can = [each for each in PREFERENCE if driver >= (VARIANTS[each].driver_floor or ())]
    seen = f"{name}, new enough for {', '.join(can) or 'no variant'}"
    if not can:
        return failed("driver_too_old_for_all", seen, driver=name)
    forced = VARIANTS.get(facts.settings.get("VARIANT"))
    if forced and forced.driver_floor and forced.name not in can:
        floor = forced.driver_floor[0]
        return failed("driver_too_old", seen, driver=name, variant=forced.name, floor=floor, fits=can[0])
    return passed(seen, driver=name, variants=can)


def capability(gpu: Gpu) -> tuple[int, int] | None:
    """As nvidia-smi tells it (drivers from 510), else by the GPU's name."""
    return gpu.capability or compat.capability_of(gpu.name)


def variant(facts: Facts) -> Judged:
    """The variant for the GPUs asked for."""
    try:
        wanted = select(facts.gpus.gpus, facts.settings.get("GPUS"))
    except Problem as problem:
        return failed("in_the_way", f"GPUS={facts.settings.get('GPUS')}", **told(problem))
    driver = facts.gpus.driver
    if not wanted or driver is None:
        raise UnreadableError("no GPU with a driver's version")
    gpus = tuple(replace(gpu, capability=capability(gpu)) for gpu in wanted)
    names = ", ".join(dict.fromkeys(str(gpu) for gpu in gpus))
    unread = [gpu for gpu in gpus if gpu.capability is None]
    if unread:
        return unknown("capability_unknown", names, gpus=unread[0].name)
    forced = VARIANTS.get(facts.settings.get("VARIANT"))
    chosen = forced or variant_for(replace(facts.gpus, gpus=gpus))
    if chosen is None or not any(fitting_variant(driver, gpu.capability) for gpu in gpus):
        return failed("no_variant_fits", names, gpus=names, driver=version(driver))
    missed = [gpu for gpu in gpus if gpu.capability and chosen.cuda and not chosen.runs_on(gpu.capability)]
    if missed:
        judge = failed if len(missed) == len(gpus) else warned
        which = " and ".join(f"GPU {gpu.index}, {gpu}" for gpu in missed)
        return judge("variant_misses_gpu", f"{chosen.name} for {names}", variant=chosen.name, gpus=which)
    return passed(f"{chosen.name} for {names}", variant=chosen.name)


def kernel_log(facts: Facts) -> Judged:
    if skip := no_gpu_wanted(facts):
        return skip
    if facts.kernel_log is None:
        return skipped("not_permitted", "only root may read it: sudo dmesg | grep -iE 'nvrm|xid'")
    findings = smi.judge(facts.kernel_log, None, "dmesg", "dmesg").findings if facts.kernel_log else ()
    bad = [each for each in findings if each.verdict in {smi.Verdict.FAIL, smi.Verdict.WARN}]
    if bad:
        line = next((each for each in facts.kernel_log.splitlines() if bad[0].line in each), bad[0].line)
        return warned(
            "kernel_log_trouble", f"{len(bad)} found", line=line.strip(), causes=[each.cause for each in bad]
        )
    return passed("no trouble of the NVIDIA driver since boot")


# ---- what make up needs --------------------------------------------------------------------------------------------


def tried(name: str, cause_id: str = "in_the_way") -> Callable[[Facts], Judged]:
    """A check whose step was tried while gathering."""

    def judge(facts: Facts) -> Judged:
        step: Tried | None = facts.tried.get(name)
        if step is None:
            return skipped("not_applicable", "make up does not need it here")
        if step.problem:
            return failed(cause_id, step.problem.what, **told(step.problem))
        return passed(step.seen)

    return judge


def room(free: int | None, needed: int, where: str, what: str, cause_id: str = "disk_full") -> Judged:
    """Whether `needed` bytes are free, and some to spare."""
    if free is None:
        return unknown("disk_unreadable", "cannot be read", place=where)
    seen = f"{gigabytes(free)} free at {where} (needed: {gigabytes(needed)})"
    slots = {"place": where, "what": what, "needed": gigabytes(needed), "free": gigabytes(free)}
    if free < needed:
        return failed(cause_id, seen, **slots, free_bytes=free)
    if free < needed + SPARE_BYTES:
        return warned("disk_tight", seen, **slots, free_bytes=free)
    return passed(seen, free_bytes=free)


def disk_images(facts: Facts) -> Judged:
    if facts.local or not facts.image:
        return skipped("not_applicable", "no image is built here")
    if facts.engine.root is None:
        return skipped("not_applicable", "images are not kept in a folder of this machine")
    if facts.image_here:
        needed, what = REPORT_BYTES, f"running {facts.image}"
    else:
        needed, what = disk.IMAGE_BYTES, f"building {facts.image}"
    return room(facts.free.get("images"), needed, str(facts.engine.root), what)


def disk_checkout(facts: Facts) -> Judged:
    if facts.local and not facts.venv_here:
        cuda = facts.plan is None or facts.plan.variant.cuda is not None
        size = disk.CUDA_VENV_BYTES if cuda else disk.CPU_VENV_BYTES
        return room(facts.free.get("venv"), size, ".venv", "filling .venv", "disk_full_venv")
    return room(facts.free.get("checkout"), REPORT_BYTES, facts.checkout, "your workspace, with reports,")


def choice(facts: Facts) -> Judged:
    """What make up would choose."""
    if facts.refused and not facts.engine.ready:
        need = "engine.compose" if facts.engine.version else "engine.docker"
        return skipped("needs", f"needs {need}", need=need)
    if facts.refused:
        return failed("in_the_way", facts.refused.what, **told(facts.refused))
    if facts.plan is None:
        raise UnreadableError("no plan and no reason")
    seen = f"mode {facts.mode}, variant {facts.plan.variant.name}"
    # With a GPU the notes are what driver.version and gpu.variant say.
    notes = "; ".join(facts.plan.notes) if facts.plan.mode == "cpu" else ""
    return warned("choice_warned", seen, what=notes) if notes else passed(seen)


GPU_CAUSES = (
    "no_gpu_in_host",
    "wsl_without_gpu",
    "nouveau_bound",
    "vfio_bound",
    "driver_not_bound",
    "pci_unreadable",
)
START = "what make up does first"
CHECKS: tuple[Check, ...] = (
    Check(
        id="host.system",
        title="Is this a machine of the kind that Torchtap is tested on?",
        judge=system,
        causes=("system_untested", "machine_untested"),
    ),
    Check(
        id="engine.docker",
        title="Does Docker answer, to this user, and is it new enough?",
        judge=docker,
        stops=True,
        causes=("docker_absent", "docker_unusable", "no_rights", "docker_too_old"),
        source="25.0: HEALTHCHECK --start-interval (moby release notes v25.0.0)",
    ),
    Check(
        id="engine.compose",
        title="Is the Compose plugin there, and new enough?",
        judge=compose,
        stops=True,
        causes=("compose_unusable",),
        needs=("engine.docker",),
        source="2.26: `!reset` and `!override` in compose.cpu.yaml, tried with 2.26.1",
    ),
    Check(
        id="engine.buildx",
        title="Is BuildKit's client there?",
        judge=buildx,
        causes=("no_buildx",),
        needs=("engine.docker",),
    ),
    Check(
        id="engine.place",
        title="Where does the engine run: here, elsewhere, rootless, in a snap, in Docker Desktop?",
        judge=place,
        causes=("engine_remote", "engine_desktop", "engine_snap", "rootless_memlock", "rootless_cgroups"),
        needs=("engine.docker",),
        source="docker-snap#148, nvidia-docker#1637; toolkit's guide for rootless mode",
    ),
    Check(
        id="gpu.pci",
        title="Is there an NVIDIA GPU, and who holds it?",
        judge=pci,
        causes=GPU_CAUSES,
    ),
    Check(
        id="driver.smi",
        title="Does nvidia-smi answer well on the host?",
        judge=smi_answer,
        causes=("smi_missing", "smi_hung", "driver_libraries_missing", "devices_revoked"),
        needs=("gpu.pci",),
        source="docs/selftest.md: the self-test's own judging",
    ),
    Check(
        id="gpu.count",
        title="Does nvidia-smi list every GPU of the PCI bus?",
        judge=gpu_count,
        causes=("gpus_missing",),
        needs=("driver.smi",),
    ),
    Check(
        id="driver.version",
        title="Which variants is the driver new enough for?",
        judge=driver_version,
        causes=("driver_unknown", "driver_too_old", "driver_too_old_for_all"),
        needs=("driver.smi",),
        source="torchtap.variants: CUDA minor-version compatibility",
    ),
    Check(
        id="gpu.variant",
        title="Which variant fits driver and compute capability?",
        judge=variant,
        causes=("no_variant_fits", "variant_misses_gpu", "capability_unknown", "in_the_way"),
        needs=("driver.version",),
        source="torchtap.variants: arch lists of the wheels",
    ),
    Check(
        id="engine.gpu",
        title="Does Docker show a way to hand out GPUs?",
        judge=engine_gpu,
        causes=("engine_without_gpu", "no_cgroups_rootful"),
        needs=("engine.docker",),
        source="--gpus: Docker 19.03; CDI devices: 25.0",
    ),
    Check(
        id="engine.cgroups",
        title="Can a daemon-reload take the GPU from running containers?",
        judge=cgroups,
        causes=("devices_may_be_revoked",),
        needs=("engine.docker", "engine.gpu"),
        source="nvidia-docker#1730",
    ),
    Check(
        id="host.selinux",
        title="Does SELinux keep containers from devices and files?",
        judge=selinux,
        causes=("selinux_confines",),
    ),
    Check(
        id="host.kernel_log",
        title="Does the kernel log tell of trouble with the GPU?",
        judge=kernel_log,
        causes=("kernel_log_trouble",),
    ),
    Check(
        id="disk.images",
        title="Is there room for the image?",
        judge=disk_images,
        stops=True,
        causes=("disk_full", "disk_tight", "disk_unreadable"),
        source="measured: scripts/host/disk.py",
    ),
    Check(
        id="disk.checkout",
        title="Is there room in this folder?",
        judge=disk_checkout,
        stops=True,
        causes=("disk_full", "disk_full_venv", "disk_tight", "disk_unreadable"),
        source="measured: scripts/host/disk.py",
    ),
    Check(
        id="python.venv",
        title="Can this Python make a virtual environment?",
        judge=tried("python.venv"),
        stops=True,
        causes=("in_the_way",),
    ),
    Check(
        id="files.compose",
        title="Can workspace, .env and the Compose files be used?",
        judge=tried("files.compose"),
        stops=True,
        causes=("in_the_way",),
        for_start=True,
        source=START,
    ),
    Check(
        id="ssh.key",
        title="Is there a public key to let in?",
        judge=tried("ssh.key"),
        stops=True,
        causes=("in_the_way",),
        for_start=True,
        source=START,
    ),
    Check(
        id="port.jupyter",
        title="Can JUPYTER_PORT be had?",
        judge=tried("port.jupyter", "port_taken"),
        stops=True,
        causes=("port_taken",),
        for_start=True,
        source=START,
    ),
    Check(
        id="port.ssh",
        title="Can SSH_PORT be had?",
        judge=tried("port.ssh", "port_taken"),
        stops=True,
        causes=("port_taken",),
        for_start=True,
        source=START,
    ),
    Check(
        id="up.choice",
        title="What would make up choose?",
        judge=choice,
        stops=True,
        causes=("in_the_way", "choice_warned"),
    ),
)
GOOD = frozenset({Status.PASS, Status.WARN})


def judge_all(
    facts: Facts, checks: Sequence[Check] = CHECKS, *, for_start: bool = True
) -> tuple[Result, ...]:
    """Judge in order. `for_start` False leaves out what only `make up` needs."""
    results: dict[str, Result] = {}
    for check in checks:
        if not for_start and check.for_start:
            continue
        results[check.id] = result_of(check.id, judge(check, facts, results))
    return tuple(results.values())


def judge(check: Check, facts: Facts, before: Mapping[str, Result]) -> Judged:
    for need in check.needs:
        found = before[need]
        if found.status in GOOD:
            continue
        if found.status is Status.SKIP and found.cause_id != "needs":  # neither matters here
            return skipped("not_applicable", found.seen)
        root = str(found.values.get("need", need))
        return skipped("needs", f"needs {root}", need=root)
    try:
        return check.judge(facts)
    except (UnreadableError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What Docker or nvidia-smi answered is not of the form that it must have.
        return unknown("unreadable", str(error), what=str(error) or type(error).__name__)


def result_of(check_id: str, judged: Judged) -> Result:
    says, remedy, act = None, None, None
    if judged.cause_id and judged.status is not Status.SKIP:
        says, remedy, act = cause_of(judged.cause_id).told(check_id, judged.values)
    return Result(
        id=check_id,
        status=judged.status,
        seen=judged.seen,
        cause=says,
        cause_id=judged.cause_id,
        remedy=remedy,
        remedy_id=act,
        values=dict(judged.values),
    )
