"""The private corners of PyTorch: registered once, kept, and refused where somebody else was first."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import torch

from torchtap import modes
from torchtap.modes._torch import inside_kernel


def in_new_process(code: str) -> str:
    """What this code prints in a process of its own, errors included."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": "src", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr


def test_kernels_are_registered_once_without_a_word_and_stay() -> None:
    out = in_new_process("""
        import torch
        from torchtap import modes
        has = lambda: torch._C._dispatch_has_kernel_for_dispatch_key("aten::_cudnn_rnn", "CPU")
        print(has())
        for _ in range(2):
            with modes.emulate_cudnn():
                pass
        print(has())
    """)
    assert out.split() == ["False", "True"]


def test_a_kernel_of_somebody_else_is_one_clear_error() -> None:
    out = in_new_process("""
        import torch
        library = torch.library.Library("aten", "IMPL")
        library.impl("_cudnn_rnn", lambda *_: None, "CPU")
        from torchtap import modes
        try:
            with modes.emulate_cudnn():
                pass
        except RuntimeError as error:
            print("refused:", error)
        print([name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") if name in vars(torch._VF)])
    """)
    assert "refused: aten::_cudnn_rnn has a CPU kernel already, and not Torchtap's" in out
    assert "Leave out the package that registered it" in out
    assert out.endswith("[]\n")


def test_modes_import_without_what_only_rendering_and_notebooks_need() -> None:
    out = in_new_process("""
        import sys
        import torchtap.modes
        print(sorted({"rich", "matplotlib", "ipywidgets", "torch._dynamo"} & set(sys.modules)))
    """)
    assert out == "[]\n"


def test_recording_inside_a_kernel_ends_with_it() -> None:
    with modes.emulate_cudnn():
        pass
    before = torch._C._dispatch_tls_local_exclude_set().raw_repr()
    with torch._C._AutoDispatchBelowAutograd():
        x = torch.ones(2, requires_grad=True)
        assert (x * 2).grad_fn is None
        with inside_kernel(recording=True):
            assert (x * 2).grad_fn is not None
        assert (x * 2).grad_fn is None
    assert torch._C._dispatch_tls_local_exclude_set().raw_repr() == before
