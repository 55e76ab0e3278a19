"""JupyterLab in the image. Settings in ~/.jupyter come later and win."""

import os
import sys
from pathlib import Path

from jupyter_server.auth.identity import PasswordIdentityProvider

c = get_config()  # noqa: F821 - Jupyter puts it there


class _NeverOpenByAccident(PasswordIdentityProvider):
    """Ends a start that would let anyone in, unless that was asked for by name."""

    def validate_security(self, app, ssl_options=None):
        if not self.auth_enabled and os.environ.get("JUPYTER_OPEN_TO_ANYONE") != "1":
            # 78: what docker/entrypoint/backoff.py has a reason for.
            print(
                "ERROR   jupyter: not started, it would be open to anyone: no token and no password\n"
                "        Take the empty token out of ~/.jupyter, or set a password: jupyter server password\n"
                "        Open on purpose: -e JUPYTER_OPEN_TO_ANYONE=1",
                file=sys.stderr,
                flush=True,
            )
            sys.exit(78)
        super().validate_security(app, ssl_options)


c.ServerApp.identity_provider_class = _NeverOpenByAccident
c.ServerApp.ip = "0.0.0.0"  # inside the container; compose.yaml publishes on 127.0.0.1 only
c.ServerApp.port = int(os.environ.get("JUPYTER_PORT_IN_CONTAINER") or 8888)
c.ServerApp.port_retries = 0  # another port would not be published
c.ServerApp.open_browser = False
c.ServerApp.allow_root = os.geteuid() == 0
# From a file of mode 0600: neither on the command line nor in the environment of kernels.
_state = Path(os.environ.get("TORCHTAP_STATE", "/var/lib/torchtap"))
_open = os.environ.get("JUPYTER_OPEN_TO_ANYONE") == "1"
c.IdentityProvider.token = "" if _open else (_state / "jupyter-token").read_text().strip()
# The log says what is wrong; that the server runs is said by start.
c.Application.log_level = "WARN"
c.ServerApp.log_level = "WARN"
# Kernels talk over sockets in JUPYTER_RUNTIME_DIR, which only the user can enter, instead of unencrypted TCP ports.
c.KernelManager.transport = "ipc"
# Off (0) unless asked for. Busy kernels, and those that a browser tab is connected to, are never ended.
c.MappingKernelManager.cull_idle_timeout = int(os.environ.get("JUPYTER_CULL_IDLE_S") or 0)
c.MappingKernelManager.cull_interval = min(max(c.MappingKernelManager.cull_idle_timeout // 4, 1), 300)
# Behind JupyterLab's own login, at /tensorboard/; started at the first visit. Others of yours: /proxy/PORT/
c.ServerProxy.servers = {
    "tensorboard": {
        "command": [
            sys.executable,
            "-m",
            "tensorboard.main",
            "--logdir=.",
            "--port={port}",
            "--host=127.0.0.1",
        ],
        "timeout": 60,
        "launcher_entry": {"title": "TensorBoard", "category": "Other"},
    }
}
