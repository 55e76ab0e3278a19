#!/bin/sh
# Become dockerd in a private root. Run by engine.py in new mount and PID namespaces, so that nothing mounted here is
# seen outside, and so that the end of process 1 ends every process the engine ever started.
#   enter-root.sh ROOT DATA SOCKETS TESTS SIMULATE REPOSITORY DAEMON_PATH
set -eu
root=$1 data=$2 sockets=$3 tests=$4 simulate=$5 repository=$6 daemon_path=$7

# engine.py asks for this lock before it starts an engine. It is passed on to dockerd and all it starts, and ends
# with the last of them.
exec 9>> "$data/../lock-of-data"
flock --nonblock 9

# pivot_root wants a mount point. A plain chroot is not enough: layers then fail to import ("remount /, flags: 0x84000").
# Unbindable while we work, so that binding a folder that holds the root does not copy all of this into itself.
mount --bind "$root" "$root"
mount --make-unbindable "$root"

# What callers name in `docker run -v` must lie at the same path for the daemon. The rest of / is the root's own.
for folder in /* ; do
    case $folder in /bin | /boot | /dev | /etc | /lib* | /lost+found | /proc | /run | /sbin | /sys | /usr | /var) continue ;; esac
    [ -d "$folder" ] && [ ! -L "$folder" ] || continue
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
done
if [ ! -e "$root$repository" ]; then
    mkdir -p "$root$repository"
    mount --rbind "$repository" "$root$repository"
fi

mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/var/lib/docker" "$root/torchtap/sockets" "$root/torchtap/tests" "$root/torchtap/simulate"
mount --bind "$data" "$root/var/lib/docker"
mount --bind "$sockets" "$root/torchtap/sockets"
mount --bind -o ro "$tests" "$root/torchtap/tests"
mount --bind "$simulate" "$root/torchtap/simulate"

# cgroup v2 inside a container: the top group holds processes, so its controllers cannot be handed down before they
# have moved. On a host's real top group the first write succeeds, and nothing is moved.
control=/sys/fs/cgroup/cgroup.subtree_control
if [ -f "$control" ]; then
    controllers=$(sed -e 's/^/+/' -e 's/ / +/g' /sys/fs/cgroup/cgroup.controllers)
    if ! echo "$controllers" > "$control" 2> /dev/null; then
        mkdir -p /sys/fs/cgroup/init
        while read -r pid; do echo "$pid" > /sys/fs/cgroup/init/cgroup.procs 2> /dev/null || true; done < /sys/fs/cgroup/cgroup.procs
        echo "$controllers" > "$control" || echo "cgroup v2: no controllers to hand down; limits will not hold" >&2
    fi
fi

cd "$root"
mkdir -p old-root
pivot_root . old-root
umount -l /old-root
mount --make-private /
exec env -i PATH="$daemon_path" HOME=/root LANG=C.UTF-8 \
    tini -- dockerd --host unix:///torchtap/sockets/docker.sock
