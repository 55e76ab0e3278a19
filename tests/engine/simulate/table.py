"""The table that plain `nvidia-smi` prints, in the form of drivers 550 and newer.

Column widths were measured on recorded tables (tests/fixtures/smi, 12 and 13) and are compared with them by a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

RULE = "+-----------------------------------------------------------------------------------------+"
CELLS = "+-----------------------------------------+------------------------+----------------------+"
HEAD = (
    "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
    "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
    "|                                         |                        |               MIG M. |",
    "|=========================================+========================+======================|",
)
PROCESSES = (
    "",
    RULE,
    "| Processes:                                                                              |",
    "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
    "|        ID   ID                                                               Usage      |",
    "|=========================================================================================|",
)
NO_PROCESSES = "|  No running processes found                                                             |"
KMD_BANNER = 610  # first driver major whose banner says KMD and CUDA UMD
NAME_WIDTH = 27


def render(
    driver: str, cuda: str, gpus: Iterable[Mapping[str, str]], apps: Iterable[Mapping[str, str]]
) -> str:
    """The table without its first line, the date. `cuda` is "N/A" where libcuda is not visible."""
    lines = [RULE, banner(driver, cuda), CELLS, *HEAD]
    for gpu in gpus:
        lines += [*_gpu(gpu), CELLS]
    running = [_process(app) for app in apps]
    return "\n".join([*lines, *PROCESSES, *(running or [NO_PROCESSES]), RULE, ""])


def banner(driver: str, cuda: str) -> str:
    """The banner line.

    >>> banner("610.57.04", "13.3")[36:86].split("  ")[0]
    'KMD Version: 610.57.04'
    """
    if int(driver.split(".")[0]) >= KMD_BANNER:
        return f"| NVIDIA-SMI {driver:<23}KMD Version: {driver:<14}CUDA UMD Version: {cuda:<9}|"
    return f"| NVIDIA-SMI {driver:<23}Driver Version: {driver:<15}CUDA Version: {cuda:<9}|"


def _gpu(cells: Mapping[str, str]) -> list[str]:
    def cell(field: str) -> str:
        return cells.get(field, "[N/A]").replace("[N/A]", "N/A")

    def number(field: str, unit: str) -> str:
        text = cell(field)
        return f"{int(float(text))}{unit}" if text[:1].isdigit() else text

    name = cell("name")
    name = name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 3] + "..."
    persistence = {"Enabled": "On", "Disabled": "Off"}.get(cell("persistence_mode"), "N/A")
    fan = f"{number('fan.speed', '%'):>3}   {number('temperature.gpu', 'C'):>3}    {cell('pstate'):<2}"
    power = f"{number('power.draw', 'W'):>16} /{number('power.limit', 'W'):>6}"
    memory = f"{number('memory.used', 'MiB'):>10} / {number('memory.total', 'MiB'):>9}"
    ecc = cell("ecc.errors.uncorrected.volatile.total")
    use = f"{number('utilization.gpu', '%'):>8}{cell('compute_mode'):>13}"
    return [
        f"|{cell('index'):>4}  {name:<{NAME_WIDTH}}    {persistence:<3} |   {cell('pci.bus_id')} Off |{ecc:>21} |",
        f"| {fan}{power} | {memory:>22} |{use} |",
        f"|{'':41}|{'':24}|{cell('mig.mode.current'):>21} |",
    ]


def _process(app: Mapping[str, str]) -> str:
    memory = f"{app['used_gpu_memory']}MiB"
    name = f"{app['process_name'][:38]:<{46 - len(memory)}}"
    return f"|{app['gpu_index']:>5}   N/A  N/A{app['pid']:>16}{app.get('type', 'C'):>7}   {name}{memory} |"
