"""Which folders are the host's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint.mounts import Mount, is_hosts, mounts, parse

# As `cat /proc/self/mountinfo` shows it in a container (shortened; names are made up).
MOUNTINFO = r"""
812 703 0:57 / / rw,relatime master:280 - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A
830 812 254:1 /var/lib/docker/volumes/torchtap_home/_data /home/dev rw,relatime master:1 - ext4 /dev/vda1 rw
831 812 254:1 /home/me/my\040project /workspace rw,relatime master:1 - ext4 /dev/vda1 rw
832 830 254:1 /srv/data /home/dev/data ro,relatime master:1 - ext4 /dev/vda1 rw
833 812 0:60 / /run rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,mode=755
834 812 254:16 / /var/lib/torchtap rw,relatime - ext4 /dev/vdb rw
835 812 254:1 /var/lib/kubelet/pods/0/volumes/kubernetes.io~empty-dir/cache /cache rw - ext4 /dev/vda1 rw
836 812 254:1 /home/me/back\134slash /odd\011name rw - ext4 /dev/vda1 rw
""".strip()


@pytest.mark.parametrize(
    ("folder", "hosts"),
    [
        ("/home/dev", False),
        ("/workspace", True),
        ("/home/dev/data", True),
        ("/run", False),
        ("/var/lib/torchtap", False),
        ("/cache", False),
        ("/", False),
        ("/home", False),
        ("/odd\tname", True),
    ],
    ids=[
        "a named volume",
        "a folder of the host",
        "a folder of the host in a volume",
        "a tmpfs",
        "a whole disk",
        "a Kubernetes emptyDir",
        "the image's root",
        "not a mount",
        "a name with a tab",
    ],
)
def test_folders_of_the_host_are_told_from_volumes(folder: str, hosts: bool) -> None:
    assert is_hosts(Path(folder), parse(MOUNTINFO)) is hosts


def test_octal_escapes_are_undone() -> None:
    assert parse(MOUNTINFO)[2] == Mount(Path("/workspace"), "/home/me/my project")
    assert parse(MOUNTINFO)[7] == Mount(Path("/odd\tname"), "/home/me/back\\slash")


def test_the_last_of_several_mounts_on_one_point_is_what_is_seen() -> None:
    over = [Mount(Path("/home/dev"), "/home/me"), Mount(Path("/home/dev"), "/")]
    assert not is_hosts(Path("/home/dev"), over)
    assert is_hosts(Path("/home/dev"), over[::-1])


@pytest.mark.parametrize("text", ["", "\n", "garbage", "1 2 3 4"], ids=repr)
def test_lines_that_are_none_are_passed_over(text: str) -> None:
    assert parse(text) == []


def test_this_processs_mounts_can_be_read() -> None:
    assert Path("/proc") in {mount.point for mount in mounts()}
