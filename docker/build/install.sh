#!/bin/sh
# Installs one part of the environment into /opt/torchtap/venv: `torch LOCK`, `lab LOCK` or `torchtap WHEEL`.
# VARIANT and TORCH_INDEX come from the Dockerfile.
set -eu

venv=/opt/torchtap/venv
# On the same file system as the environment, so that uv links instead of copying; gone at the end of the layer.
export UV_CACHE_DIR=/opt/torchtap/.uv UV_LINK_MODE=hardlink UV_PYTHON=$venv/bin/python UV_NO_PROGRESS=1 UV_HTTP_TIMEOUT=180
# shellcheck source=docker/build/ca.sh
. /tools/ca.sh

fail() {
    echo "torchtap: $*" >&2
    exit 1
}

install_torch() {
    [ -x $venv/bin/python ] || /tools/bin/uv venv --quiet --python /usr/bin/python3 $venv
    # cu126 and cpu are served by PyTorch's own index alone (src/torchtap/variants.py).
    case $VARIANT in
        cu126 | cpu) index=${TORCH_INDEX:-https://download.pytorch.org/whl/$VARIANT} ;;
        *) index=${TORCH_INDEX:-} ;;
    esac
    if [ -z "$index" ]; then
        /tools/bin/uv pip install --quiet --require-hashes -r "$1"
        return
    fi
    curl --fail --silent --show-error --location --max-time 20 --output /dev/null "$index/torch/" || fail \
        "TORCH_INDEX $index cannot be reached from this build (curl says why, above)." \
        "Give a mirror that can: --build-arg TORCH_INDEX=URL; or VARIANT=cu130 or cu128, which do not need that index."
    /tools/bin/uv pip install --quiet --index "$index" --index-strategy unsafe-best-match -r "$1"
}

case $1 in
    torch)
        install_torch "$2"
        packages=$(echo $venv/lib/python3*/site-packages)
        # What nobody opens at run time: static libraries of the profiler (173 MB), the debug information of Triton's
        # compiler (314 MB), and the alternative build of NVRTC (114 MB), which torch does not load.
        rm -f "$packages"/triton/backends/nvidia/lib/cupti*/*.a "$packages"/nvidia/*/lib/libnvrtc*.alt.*
        strip --strip-unneeded "$packages"/triton/_C/*.so
        ;;
    lab)
        /tools/bin/uv pip install --quiet --require-hashes -r "$2"
        # jsonschema checks IRIs with it where it is there, and nothing of the lab has any. It builds a grammar on import:
        # 1.3 of the 2.2 s of CPU that JupyterLab needed to start.
        /tools/bin/uv pip uninstall --quiet rfc3987-syntax lark
        ;;
    torchtap) /tools/bin/uv pip install --quiet --offline --no-deps "$2" ;;
    *) fail "install.sh: unknown part '$1'" ;;
esac

# Compiled now, not at everyone's first import. Files that are up to date are left alone, but looking at all of torch
# takes seconds, so torchtap looks at its own. Packages hold templates that no Python can compile: the exit code says
# nothing.
case $1 in
    torchtap) part=torchtap ;;
    *) part= ;;
esac
$venv/bin/python -m compileall -q -j 0 $venv/lib/python3*/site-packages/$part >/dev/null || true
rm -rf "$UV_CACHE_DIR" $venv/.lock
