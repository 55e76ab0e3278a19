"""The sampler against nvidia-smi scripts: good ones, and those that hang, babble, refuse or lose a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from torchtap.selftest.burn.records import Watch
from torchtap.selftest.burn.sampler import (
    BRAKE,
    CLOCKS,
    ECC,
    HEAT,
    MEASURED,
    NAMES,
    POWER,
    TEMPERATURE,
    Sampler,
)
from torchtap.selftest.burn.series import Course

CELLS = {
    "uuid": "GPU-11111111-2222-3333-4444-55555555550$gpu",
    "name": "NVIDIA H200",
    "pci.bus_id": "00000000:4$gpu:00.0",
    "temperature.gpu": "$((60 + n))",
    "power.draw": "690.50",
    "clocks.sm": "1700",
    "utilization.gpu": "100",
    CLOCKS: "0x0000000000000004",
    "clocks_event_reasons.active": "0x0000000000000040",
    ECC: "0",
}
REPLAYS = "GPU 00000000:40:00.0\n    PCI\n        Replays Since Reset               : %s\n"
Make = Callable[..., Sampler]


def script(folder: Path, *, gpus: str = "0 1", before: str = "", cells: dict[str, str] | None = None) -> Path:
    """An nvidia-smi that counts its calls in `n`, runs `before`, and prints the cells that were asked for."""
    cases = "\n".join(f'{name}) cell="{value}" ;;' for name, value in {**CELLS, **(cells or {})}.items())
    file = folder / "nvidia-smi"
    file.write_text(
        "#!/bin/sh\n"
        f"echo $$ > {folder}/pid\n"
        f'if [ "$1" = -q ]; then printf "{REPLAYS}" "$(cat {folder}/replays 2>/dev/null || echo 3)"; exit 0; fi\n'
        f"n=$(cat {folder}/n 2>/dev/null || echo 0); n=$((n + 1)); echo $n > {folder}/n\n"
        f"gpus='{gpus}'\n{before}\n"
        "for gpu in $gpus; do\n"
        "line=; IFS=,\n"
        "for field in ${1#--query-gpu=}; do\n"
        f'case $field in index) cell=$gpu ;;\n{cases}\n*) cell="[N/A]" ;; esac\n'
        'line="$line${line:+, }$cell"\n'
        "done\n"
        'IFS=" "; echo "$line"\n'
        "done\n"
    )
    file.chmod(0o755)
    return file


def watched(folder: Path, *, readings: int = 5, timeout_s: float = 5.0, **options: object) -> Watch:
    """What a sampler says after about so many readings under load."""
    sampler = Sampler(str(script(folder, **options)), timeout_s=timeout_s, every_s=0.02)  # type: ignore[arg-type]
    sampler.start()
    sampler.loaded()
    deadline = time.monotonic() + 20
    while sampler._asked < readings and not sampler._hung and time.monotonic() < deadline:
        time.sleep(0.02)
    return sampler.stop()


def test_a_good_host_is_read_every_time(tmp_path: Path):
    """Extremes, first and last; the reading before the load counts for counters alone; replays before and after."""
    watch = watched(tmp_path)
    assert watch.asked >= 5
    assert (watch.unread, watch.why, watch.hung, watch.gone) == (0, "", False, "")
    assert [gpu.index for gpu in watch.gpus] == [0, 1]
    gpu = watch.gpus[1]
    assert (gpu.name, gpu.bus, gpu.lost) == ("NVIDIA H200", "00000000:41:00.0", "")
    assert gpu.readings[POWER].mean == 690.5
    heat = gpu.readings[TEMPERATURE]
    assert heat.count >= watch.asked - 1
    assert (heat.least, heat.most) == (heat.first, heat.last)
    assert gpu.readings[ECC].count >= heat.count + 2
    assert watch.gpus[0].replays == (3, 3)
    assert gpu.replays == (None, None)  # this one does not report them
    assert gpu.course[0]["s"] >= 0
    assert gpu.slowed == {}


def test_clock_reasons_are_counted_by_what_they_mean(tmp_path: Path):
    """0x20 and 0x40 are heat, 0x80 the power brake; one reading with both thermal bits counts once."""
    watch = watched(tmp_path, cells={CLOCKS: "$([ $gpu = 0 ] && echo 0x60 || echo 0x80)"})
    clocks = watch.gpus[0].readings[CLOCKS].count
    assert watch.gpus[0].slowed == {HEAT: clocks}
    assert watch.gpus[1].slowed == {BRAKE: clocks}


def test_new_errors_and_replays_show_in_the_counters(tmp_path: Path):
    """Also those that came between the last reading and the end."""
    watch = watched(tmp_path, cells={ECC: "$([ $n -gt 3 ] && echo 2 || echo 0)"})
    ecc = watch.gpus[0].readings[ECC]
    assert (ecc.first, ecc.most) == (0, 2)


def test_a_gpu_that_is_lost_in_the_middle_stays_lost(tmp_path: Path):
    """Its cells say so, while nvidia-smi exits with 0."""
    lost = "$([ $gpu = 1 ] && [ $n = 3 ] && echo '[GPU is lost]' || echo 60)"
    watch = watched(tmp_path, cells={"temperature.gpu": lost})
    assert [gpu.lost for gpu in watch.gpus] == ["", "[GPU is lost]"]


def test_a_gpu_that_is_not_listed_any_more_is_lost(tmp_path: Path):
    """As after it fell off the bus."""
    watch = watched(tmp_path, before="[ $n -gt 3 ] && gpus=0")
    assert [gpu.lost for gpu in watch.gpus] == ["", "not listed any more"]


def test_all_gpus_gone_is_what_it_says_in_their_place(tmp_path: Path):
    """Its last word, because one failure may pass."""
    gone = "echo 'No devices were found'; exit 6"
    watch = watched(tmp_path, before=f"[ $n -gt 3 ] && {{ {gone}; }}")
    assert watch.gone == "No devices were found"
    assert watch.unread > 0
    (tmp_path / "n").unlink()
    assert watched(tmp_path, before=f"[ $n = 3 ] && {{ {gone}; }}").gone == ""


@pytest.mark.parametrize("words", ["echo lorem ipsum", "exit 3", "printf '0, \\001\\n'", ":; exit 0"])
def test_garbage_is_unread_and_never_good(tmp_path: Path, words: str):
    """Whatever it is."""
    watch = watched(tmp_path, before=f"[ $n -gt 1 ] && {{ {words}; exit 0; }}")
    assert watch.asked >= 5
    assert watch.unread == watch.asked
    assert watch.why
    assert all(TEMPERATURE not in gpu.readings for gpu in watch.gpus)


def test_one_field_of_garbage_is_counted_for_that_field(tmp_path: Path):
    """The others are read."""
    watch = watched(tmp_path, cells={"power.draw": "plenty", "temperature.gpu": "[Unknown Error]"})
    gpu = watch.gpus[0]
    assert gpu.unread[POWER] == gpu.unread[TEMPERATURE] == gpu.readings[CLOCKS].count
    assert POWER not in gpu.readings


def test_a_hanging_nvidia_smi_is_killed_and_asked_no_more(tmp_path: Path):
    """Three times, one at a time; then the driver hangs."""
    began = time.monotonic()
    watch = watched(tmp_path, before="[ $n -gt 2 ] && exec sleep 600", timeout_s=0.5)
    assert watch.hung
    assert watch.unread >= 3
    assert watch.why.startswith("no answer in")
    assert time.monotonic() - began < 10
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_refused_field_is_left_out_or_asked_by_its_other_name(tmp_path: Path):
    """Driver 530 knows the clock reasons by their new name alone; nothing else is lost for it."""
    refuse = f"case $1 in *{CLOCKS}*) echo 'Field \"{CLOCKS}\" is not a valid field to query.'; exit 2;; esac"
    watch = watched(tmp_path, before=refuse)
    assert watch.unread == 0
    assert watch.gpus[0].slowed[HEAT] == watch.gpus[0].readings[CLOCKS].count
    refuse = (
        "case $1 in *clocks.sm*) echo 'Field \"clocks.sm\" is not a valid field to query.'; exit 2;; esac"
    )
    assert "clocks.sm" not in watched(tmp_path, before=refuse).gpus[0].readings


def test_stopping_ends_a_running_nvidia_smi_at_once(tmp_path: Path):
    """Ctrl-C does not wait for its time-out."""
    stopped: list[bool] = []
    path = script(tmp_path, before="[ $n -gt 1 ] && exec sleep 600")
    sampler = Sampler(str(path), timeout_s=60, every_s=0.02, stop=lambda: bool(stopped))
    sampler.start()
    sampler.loaded()
    while not (tmp_path / "n").read_text().startswith("2"):
        time.sleep(0.02)
    began = time.monotonic()
    stopped.append(True)
    watch = sampler.stop(at_once=True)
    assert time.monotonic() - began < 5
    assert watch.asked == watch.unread == 0
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()


def test_an_nvidia_smi_that_cannot_start_is_unread(tmp_path: Path):
    """The sampler never raises."""
    sampler = Sampler(str(tmp_path / "none"), timeout_s=1, every_s=0.02)
    sampler.start()
    sampler.loaded()
    time.sleep(0.2)
    watch = sampler.stop()
    assert watch.asked == watch.unread > 0
    assert watch.why == "No such file or directory"


def test_a_sampler_that_breaks_has_read_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What it read before must not stand for the rest of the load."""
    sampler = Sampler(str(script(tmp_path)), timeout_s=5, every_s=0.02)
    sampler.start()
    sampler.loaded()
    while sampler._asked < 3:
        time.sleep(0.02)
    monkeypatch.setattr(sampler, "_take", lambda *_, **__: 1 // 0)
    sampler._thread.join(timeout=10)
    monkeypatch.undo()
    watch = sampler.stop()
    assert watch.asked == watch.unread > 2
    assert watch.why.startswith("ZeroDivisionError")


def test_hours_of_readings_stay_small():
    """A course of at most as many moments as were allowed, evenly spread from the first."""
    course = Course(120)
    for second in range(100_000):
        course.add({"s": float(second)})
    moments = [moment["s"] for moment in course.moments]
    assert 60 <= len(moments) <= 120
    assert moments[0] == 0
    assert {later - earlier for earlier, later in pairwise(moments)} == {1024.0}


def test_every_driver_knows_every_field():
    """So no reading is lost for a refusal, but on 530 (above)."""
    from torchtap.selftest.smi.fields import FIELDS

    assert all(not FIELDS[name].unknown_to for name in (*NAMES, *MEASURED))
