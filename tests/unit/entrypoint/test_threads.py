"""CPUs of a container, from control groups of both versions as the kernel shows them, and what is set for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoint import threads
from entrypoint.threads import Processors, processors, variables

NAMES = tuple(name for name, _ in threads.VARIABLES)


class Host:
    """A /proc and control groups in a folder; `files` are relative to where they are mounted."""

    def __init__(self, folder: Path, cgroup: str, mounts: str, **files: str) -> None:
        self.proc, self.groups = folder / "proc", folder / "groups"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self/cgroup").write_text(cgroup)
        (self.proc / "self/mountinfo").write_text(mounts.replace("GROUPS", str(self.groups)))
        for name, text in files.items():
            path = self.groups / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(path.name.replace("cpu_", "cpu.").replace("pids_", "pids.")).write_text(text)

    @property
    def seen(self) -> tuple[float | None, int | None]:
        found = processors(self.proc)
        return found.quota, found.tasks


V2 = "30 23 0:26 / GROUPS ro,nosuid - cgroup2 cgroup rw,nsdelegate\n"
V1 = (
    "137 136 0:29 /docker/abc GROUPS/cpu ro - cgroup cgroup rw,cpu\n"
    "138 136 0:30 /docker/abc GROUPS/cpuset ro - cgroup cgroup rw,cpuset\n"
    "144 136 0:36 /docker/abc GROUPS/pids ro - cgroup cgroup rw,pids\n"
)
V1_PATHS = "8:pids:/docker/abc\n3:cpuset:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/docker/abc\n"


def test_version_2_in_a_namespace_of_its_own(tmp_path: Path) -> None:
    """Docker's default: the container's group is the top."""
    host = Host(tmp_path, "0::/\n", V2, cpu_max="150000 100000\n", pids_max="1024\n")
    assert host.seen == (1.5, 1024)


def test_version_2_without_a_limit(tmp_path: Path) -> None:
    assert Host(tmp_path, "0::/\n", V2, cpu_max="max 100000\n", pids_max="max\n").seen == (None, None)


def test_version_2_whose_limit_lies_on_a_parent(tmp_path: Path) -> None:
    """A job of a batch system, or --cgroupns host: the tightest of all the groups above counts."""
    host = Host(
        tmp_path, "0::/job/step/task\n", V2,
        job__cpu_max="400000 100000\n", job__step__cpu_max="250000 100000\n", job__step__task__cpu_max="max 100000\n",
        job__pids_max="4096\n", other__cpu_max="100000 100000\n",
    )  # fmt: skip
    assert host.seen == (2.5, 4096)


def test_version_1_where_the_containers_own_group_is_mounted(tmp_path: Path) -> None:
    """The path in /proc/self/cgroup is the host's; the mount's root is the same, so the mount is the group."""
    host = Host(
        tmp_path, V1_PATHS, V1, cpu__cpu_cfs_quota_us="150000\n", cpu__cpu_cfs_period_us="100000\n",
        pids__pids_max="100\n",
    )  # fmt: skip
    assert host.seen == (1.5, 100)


def test_version_1_in_a_group_below_the_containers_own(tmp_path: Path) -> None:
    host = Host(
        tmp_path, V1_PATHS.replace("/docker/abc", "/docker/abc/inner"), V1,
        cpu__inner__cpu_cfs_quota_us="50000\n", cpu__inner__cpu_cfs_period_us="100000\n",
        cpu__cpu_cfs_quota_us="150000\n", cpu__cpu_cfs_period_us="100000\n",
    )  # fmt: skip
    assert host.seen == (0.5, None)


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    host = Host(
        tmp_path, V1_PATHS, V1, cpu__cpu_cfs_quota_us="-1\n", cpu__cpu_cfs_period_us="100000\n",
        pids__pids_max="max\n",
    )  # fmt: skip
    assert host.seen == (None, None)


def test_version_1_with_the_hosts_whole_tree(tmp_path: Path) -> None:
    mounts = "137 136 0:29 / GROUPS/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"
    host = Host(
        tmp_path, V1_PATHS, mounts,
        cpu__docker__abc__cpu_cfs_quota_us="300000\n", cpu__docker__abc__cpu_cfs_period_us="100000\n",
        cpu__docker__cpu_cfs_quota_us="200000\n", cpu__docker__cpu_cfs_period_us="100000\n",
    )  # fmt: skip
    assert host.seen == (2.0, None)


def test_a_path_outside_of_what_is_mounted_means_the_mount_itself(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/../other\n", V2.replace(" / ", " /docker/abc "), cpu_max="50000 100000\n")
    assert host.seen == (0.5, None)


@pytest.mark.parametrize(
    "text", ["", "\n", "nonsense", "max", "1 2 3", "0 0", "100000 0", "-5 100000"], ids=repr
)
def test_what_cannot_be_understood_limits_nothing(tmp_path: Path, text: str) -> None:
    assert Host(tmp_path, "0::/\n", V2, cpu_max=text, pids_max=text).seen[0] is None


def test_without_control_groups_or_proc_nothing_is_limited(tmp_path: Path) -> None:
    assert Host(tmp_path, "", "1 0 8:1 / / rw - ext4 /dev/sda rw\n").seen == (None, None)
    assert processors(tmp_path / "nowhere") == Processors(visible=len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("found", "usable"),
    [
        (Processors(visible=64), 64),
        (Processors(visible=64, quota=1.5), 2),
        (Processors(visible=64, quota=0.1), 1),
        (Processors(visible=2, quota=8.0), 2),
        (Processors(visible=384, tasks=1024), 64),
        (Processors(visible=384, quota=8.0, tasks=1024), 8),
        (Processors(visible=2, tasks=100), 2),
        (Processors(visible=8, tasks=10), 1),
    ],
    ids=str,
)
def test_threads_that_make_sense(found: Processors, usable: int) -> None:
    assert found.usable == usable
    expected = {} if usable == found.visible else dict.fromkeys(NAMES, str(usable))
    assert variables(found, {}) == expected


def test_what_the_user_set_wins_and_empty_counts_as_unset() -> None:
    found = Processors(visible=64, quota=4.0)
    assert variables(found, {"OMP_NUM_THREADS": "3"}) == {"TORCHINDUCTOR_COMPILE_THREADS": "4"}
    assert variables(found, {"OMP_NUM_THREADS": ""})["OMP_NUM_THREADS"] == "4"


def test_a_librarys_own_variable_is_never_set() -> None:
    """Where it is set it wins over OMP_NUM_THREADS, also over the one that a user gives to a single program."""
    assert not {"MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"} & set(NAMES)
