# The image of Torchtap, every variant from this one file. Needs BuildKit (the default since Docker 23).
#
#   docker build -t torchtap:cu130 .                                   PyTorch 2.14.1, CUDA 13.0, driver 580 or newer
#   docker build -t torchtap:cu128 --build-arg VARIANT=cu128 .         PyTorch 2.9.1, CUDA 12.8, driver 525 or newer
#
# VARIANT      cu130 (default), cu128, cu126 or cpu: the rows of src/torchtap/variants.py. Another word ends in
#              "variant-WORD: not found".
# BASE_IMAGE   another Debian or Ubuntu image to start from; the default is the variant's own, below.
# TORCH_INDEX  another wheel index for torch, such as a mirror of PyTorch's.
# Secret       ca_bundle: certificates for networks that re-sign TLS. Never stored in a layer.
#
# Layers are ordered by how often they change: OS, torch, lab, start-up, torchtap, then the variant's labels.

ARG VARIANT=cu130
ARG BASE_IMAGE

# Never a "-cudnn" base: the wheels bring cuDNN, and two of them on one loader path are the classic fault.
FROM nvidia/cuda:13.0.2-base-ubuntu24.04 AS variant-cu130
FROM nvidia/cuda:12.8.1-base-ubuntu24.04 AS variant-cu128
FROM nvidia/cuda:12.6.3-base-ubuntu24.04 AS variant-cu126
FROM ubuntu:24.04 AS variant-cpu
# BASE_IMAGE where it is given, else the variant's. In two stages, because the dev container CLI reads these lines too,
# and knows no variable inside another's default.
# hadolint ignore=DL3006
FROM variant-${VARIANT} AS base
FROM ${BASE_IMAGE:-scratch} AS own-base

# ---- OS packages -----------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE:+own-}base AS os
RUN --mount=type=bind,source=docker/build/os.sh,target=/build/os.sh \
    --mount=type=bind,source=docker/packages.txt,target=/build/packages.txt \
    sh /build/os.sh /build/packages.txt

# ---- Tools of the build: uv and hatchling. Nothing of this stage reaches the image. -------------------------------
FROM os AS tools
RUN --mount=type=bind,source=docker/build,target=/build \
    --mount=type=bind,source=docker/requirements/build.lock,target=/requirements/build.lock \
    --mount=type=secret,id=ca_bundle \
    sh /build/tools.sh /requirements/build.lock

FROM tools AS wheel
WORKDIR /source
# Compiling takes seconds, so its source comes first: another source leaves this layer as it is.
COPY src/torchtap/monitor/stats/build.py src/torchtap/monitor/stats/kernel.c src/torchtap/monitor/stats/
RUN /tools/bin/python -B src/torchtap/monitor/stats/build.py
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /tools/bin/python -m hatchling build -t wheel -d /wheel

# ---- The environment: torch in a layer of its own, then the lab -----------------------------------------------------
FROM os AS environment
ARG VARIANT
ARG TORCH_INDEX
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=bind,source=docker/build/install.sh,target=/build/install.sh \
    --mount=type=bind,source=docker/requirements/torch-${VARIANT}.lock,target=/requirements/torch.lock \
    --mount=type=secret,id=ca_bundle \
    sh /build/install.sh torch /requirements/torch.lock
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=bind,source=docker/build/install.sh,target=/build/install.sh \
    --mount=type=bind,source=docker/requirements/lab.lock,target=/requirements/lab.lock \
    --mount=type=secret,id=ca_bundle \
    sh /build/install.sh lab /requirements/lab.lock
# Ends the build unless what is installed is what the table of variants says. Writes /opt/torchtap/manifest.json.
ARG BASE_IMAGE
RUN --mount=type=bind,source=docker/build/manifest.py,target=/build/manifest.py \
    --mount=type=bind,source=src/torchtap/variants.py,target=/build/variants.py \
    /opt/torchtap/venv/bin/python -B /build/manifest.py --variant "${VARIANT}" --base "${BASE_IMAGE}" \
      --out /opt/torchtap/manifest.json

# ---- Start-up, configuration, notebooks, torchtap ---------------------------------------------------------------------
FROM environment AS app
COPY docker/rootfs /
COPY docker/entrypoint /opt/torchtap/entrypoint
COPY notebooks /opt/torchtap/notebooks
RUN /usr/bin/python3 -m compileall -q /opt/torchtap/entrypoint
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    --mount=type=bind,source=docker/build/install.sh,target=/build/install.sh \
    --mount=type=bind,source=docker/build/overlay.py,target=/build/overlay.py \
    sh /build/install.sh torchtap /wheel/*.whl \
    && /opt/torchtap/venv/bin/python -B /build/overlay.py --manifest /opt/torchtap/manifest.json \
      --interpreter /opt/torchtap/bin/env-python --out /opt/torchtap/overlay

# The image's own programs, python among them; the system's; the user's own packages over the base (docs/packages.md); the
# base's programs, run by the user's python. The user's come after the system's: `docker exec CONTAINER ls` is root's.
ENV PATH=/opt/torchtap/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/torchtap/env/bin:/opt/torchtap/overlay/bin:/opt/torchtap/venv/bin \
    LANG=C.UTF-8 \
    SHELL=/bin/bash \
    JUPYTER_RUNTIME_DIR=/run/torchtap/jupyter \
    TORCHTAP_MANIFEST=/opt/torchtap/manifest.json
WORKDIR /workspace
EXPOSE 8888 22
# Often at first, so that `make up` need not wait for the next round; the interval is for later.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --start-interval=1s --retries=3 \
  CMD ["/opt/torchtap/bin/health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/opt/torchtap/bin/start"]
CMD ["dev"]
LABEL org.opencontainers.image.title="torchtap" \
      org.opencontainers.image.description="PyTorch with JupyterLab and SSH, and a self-test for the GPU" \
      org.opencontainers.image.licenses="Apache-2.0"

# ---- What the image says of itself: equal to the manifest, by test -------------------------------------------------------
# NVIDIA_REQUIRE_CUDA: the base asks for its own minor version of CUDA. The wheels need only the major (minor-version
# compatibility), so the floor is that of the major, on purpose.
FROM app AS final-cu130
ARG BASE_IMAGE
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_REQUIRE_CUDA="cuda>=13.0"
LABEL org.opencontainers.image.base.name="${BASE_IMAGE:-nvidia/cuda:13.0.2-base-ubuntu24.04}" \
      torchtap.variant="cu130" torchtap.torch="2.14.1" torchtap.cuda="13.0" torchtap.cudnn="92400" \
      torchtap.nccl="2.30.7" torchtap.arch_list="sm_75 sm_80 sm_86 sm_90 sm_100 sm_120" torchtap.driver_floor="580.65.6"

FROM app AS final-cu128
ARG BASE_IMAGE
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_REQUIRE_CUDA="cuda>=12.0"
LABEL org.opencontainers.image.base.name="${BASE_IMAGE:-nvidia/cuda:12.8.1-base-ubuntu24.04}" \
      torchtap.variant="cu128" torchtap.torch="2.9.1" torchtap.cuda="12.8" torchtap.cudnn="91002" \
      torchtap.nccl="2.27.5" torchtap.arch_list="sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120" \
      torchtap.driver_floor="525.60.13"

FROM app AS final-cu126
ARG BASE_IMAGE
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_REQUIRE_CUDA="cuda>=12.0"
LABEL org.opencontainers.image.base.name="${BASE_IMAGE:-nvidia/cuda:12.6.3-base-ubuntu24.04}" \
      torchtap.variant="cu126" torchtap.torch="2.14.1" torchtap.cuda="12.6" torchtap.cudnn="91002" \
      torchtap.nccl="" torchtap.arch_list="sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90" torchtap.driver_floor="525.60.13"

FROM app AS final-cpu
ARG BASE_IMAGE
# void: no GPU even where the NVIDIA runtime is Docker's default.
ENV NVIDIA_VISIBLE_DEVICES=void TORCHTAP_DEVICE=cpu
LABEL org.opencontainers.image.base.name="${BASE_IMAGE:-ubuntu:24.04}" \
      torchtap.variant="cpu" torchtap.torch="2.14.1" torchtap.cuda="" torchtap.cudnn="" torchtap.nccl="" \
      torchtap.arch_list="" torchtap.driver_floor=""

# hadolint ignore=DL3006
FROM final-${VARIANT}
