"""JupyterLab in the image. Settings in ~/.jupyter come later and win."""

import contextlib
import os
import sys
from pathlib import Path

from jupyter_server.auth.identity import PasswordIdentityProvider
from tornado.ioloop import IOLoop

c = get_config()  # noqa: F821 - Jupyter puts it there


def _end(code, *lines):
    """End this start. An exception would not: Jupyter goes on without this file, with a token in its log."""
    print(*lines, sep="\n        ", file=sys.stderr, flush=True)
    sys.exit(code)  # docker/entrypoint/backoff.py has the reasons


def _token():
    """From a file of mode 0600: neither on the command line nor in the environment of kernels."""
    file = Path(os.environ.get("TORCHTAP_STATE", "/var/lib/torchtap")) / "jupyter-token"
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = f"ERROR   jupyter: not started, its token cannot be read: {error}"
        return _end(77, why, "Restart the container: start mends the file, or says why it cannot")


def _note_that_it_answers(folder):
    """Called once the server listens: an end before that may lie in the user's packages (docker/entrypoint/lab.py)."""
    with contextlib.suppress(OSError):
        (folder / "torchtap-answered").write_text(f"{os.getpid()}\n")


class _NeverOpenByAccident(PasswordIdentityProvider):
    """Ends a start that would let anyone in, unless that was asked for by name."""

    def validate_security(self, app, ssl_options=None):
        if not self.auth_enabled and os.environ.get("JUPYTER_OPEN_TO_ANYONE") != "1":
            _end(
                78,
                "ERROR   jupyter: not started, it would be open to anyone: no token and no password",
                "Take the empty token out of ~/.jupyter, or set a password: jupyter server password",
                "Open on purpose: -e JUPYTER_OPEN_TO_ANYONE=1",
            )
        super().validate_security(app, ssl_options)
        IOLoop.current().add_callback(_note_that_it_answers, Path(app.runtime_dir))


c.ServerApp.identity_provider_class = _NeverOpenByAccident
c.ServerApp.ip = "0.0.0.0"  # inside the container; compose.yaml publishes on 127.0.0.1 only
c.ServerApp.port = int(os.environ.get("JUPYTER_PORT_IN_CONTAINER") or 8888)
c.ServerApp.port_retries = 0  # another port would not be published
c.ServerApp.open_browser = False
c.ServerApp.allow_root = os.geteuid() == 0
c.IdentityProvider.token = "" if os.environ.get("JUPYTER_OPEN_TO_ANYONE") == "1" else _token()
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
