#!/bin/sh
# Installs the OS packages and the user `dev`. Argument: the list of packages.
set -eu

fail() {
    echo "torchtap: $*" >&2
    exit 1
}

python_is_new_enough() {
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

if ! command -v apt-get >/dev/null; then
    python_is_new_enough || fail "BASE_IMAGE has no python3 of 3.10 or newer, and no apt-get to install one." \
        "Give a Debian (12 or newer) or Ubuntu (22.04 or newer) image."
    fail "BASE_IMAGE has no apt-get. Give a Debian (12 or newer) or Ubuntu (22.04 or newer) image."
fi

export DEBIAN_FRONTEND=noninteractive
# Manuals and translations: 110 MB that nobody reads in a container. Licences stay.
cat >/etc/dpkg/dpkg.cfg.d/torchtap <<'END'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
END
apt-get update -qq || fail "apt-get update failed: the package index of BASE_IMAGE cannot be reached from this build."
# Names only; the comments say why each is there.
sed 's/#.*//' "$1" | xargs apt-get install -y -qq --no-install-recommends >/tmp/apt.log 2>&1 || {
    tail -n 30 /tmp/apt.log >&2
    fail "the OS packages above could not be installed from the distribution of BASE_IMAGE"
}
python_is_new_enough || fail "BASE_IMAGE brings $(python3 --version), but PyTorch needs Python 3.10 or newer."

# The package made host keys: in the image they would be the same for everyone. start makes them at first start.
rm -f /etc/ssh/ssh_host_*
# For embedding Python into C programs; extensions do not link it.
rm -f /usr/lib/python3*/config-*/libpython3*.a
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /tmp/apt.log

# Ubuntu 24.04 has a user of its own at 1000, where most people's files are. dev gets its entry at start, when its id
# is known: one written here would be found first, with the wrong id.
if taken=$(getent passwd 1000 | cut -d: -f1) && [ -n "$taken" ]; then
    userdel --remove "$taken" 2>/dev/null || userdel "$taken"
fi
install -d -o 1000 -g 1000 /home/dev
cp /etc/skel/.[!.]* /home/dev/
chown -R 1000:1000 /home/dev

# Names come from /etc/passwd, then from the file that start writes (libnss-extrausers). In that order: the other way
# round, extrausers answers for uid 0 with its first entry. The file lies in the run directory, so that a read-only
# root works, and anyone can write there in a container started with --user; started as root, start takes it over.
sed -i -E 's/^((passwd|group|shadow):.*)/\1 extrausers/' /etc/nsswitch.conf
rm -rf /var/lib/extrausers
ln -s /run/torchtap/extrausers /var/lib/extrausers
install -d -m 1777 /run/torchtap
# Every target of a volume exists and is the user's: a new volume takes its owner from here. The state directory
# is sticky: dev keeps the token and the last self-test there but cannot replace root's ssh folder.
install -d -o 1000 -g 1000 /workspace
install -d -o root -g 1000 -m 1775 /var/lib/torchtap
