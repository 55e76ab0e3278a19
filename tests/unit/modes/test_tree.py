"""describe(): the tree, its oddities, and how it is shown."""

from __future__ import annotations

import json
from io import StringIO

import pytest
import torch
from rich.cells import cell_len
from torch import nn

from torchtap import modes
from torchtap.modes import ModeTree, Severity


class Captioner(nn.Module):
    """A frozen backbone with BatchNorm, an RNN, a head that shares a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.1))
        self.decoder = nn.ModuleDict(
            {"rnn": nn.LSTM(4, 4, num_layers=2, dropout=0.3), "out": nn.Linear(4, 9)}
        )
        self.tied = self.decoder["out"]
        self.backbone.requires_grad_(False)


def found(tree: ModeTree) -> list[tuple[str, str, str]]:
    return [(finding.severity.value, finding.id, finding.where) for finding in tree.findings]


def test_a_model_all_in_train_mode_has_nothing_odd() -> None:
    assert found(modes.describe(Captioner().requires_grad_(True))) == []


def test_frozen_batchnorm_in_train_mode_is_marked() -> None:
    """C85 (chemprop PR#952): requires_grad=False alone; running statistics still move, also under no_grad."""
    net = Captioner()
    assert found(modes.describe(net)) == [("warn", "batchnorm.frozen", "backbone.1")]
    before = [buffer.clone() for buffer in net.buffers()]
    with torch.no_grad():
        net.backbone(torch.randn(2, 3, 4, 4))
    assert not any(torch.equal(*pair) for pair in zip(net.buffers(), before, strict=True))
    net.backbone.eval()
    assert ("warn", "batchnorm.frozen", "backbone.1") not in found(modes.describe(net))


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False), nn.BatchNorm2d(4, affine=False)],
    ids=["trained", "no running statistics", "no parameters"],
)
def test_batchnorm_that_is_not_frozen_is_not_marked(norm: nn.Module) -> None:
    if "track_running_stats=False" in repr(norm):
        norm.requires_grad_(False)
    assert found(modes.describe(nn.Sequential(norm))) == []


def test_a_part_in_another_mode_is_marked_once_at_its_top() -> None:
    net = Captioner().requires_grad_(True)
    net.backbone.eval()
    tree = modes.describe(net)
    assert found(tree) == [("info", "mode.mixed", "backbone")]
    assert (
        tree.findings[0].seen
        == "in eval mode, the model in train mode (4 modules; matters in BatchNorm2d, Dropout)"
    )


def test_an_rnn_in_eval_warns_in_a_train_model_and_informs_in_an_eval_model() -> None:
    net = Captioner().requires_grad_(True)
    net.decoder["rnn"].eval()
    assert ("warn", "rnn.eval", "decoder.rnn") in found(modes.describe(net))
    assert found(modes.describe(net.eval())) == [("info", "rnn.eval", "decoder.rnn")]


def test_what_rnn_eval_says_comes_true_and_its_remedy_works() -> None:
    net = nn.Sequential(nn.GRU(4, 3)).eval()
    (finding,) = modes.describe(net).findings
    assert finding.severity is Severity.INFO
    with modes.emulate_cudnn():
        with pytest.raises(RuntimeError, match="training mode"):
            net(torch.randn(5, 2, 4))[0].sum().backward()
        assert "modes.differentiable_eval(model)" in finding.remedy
        with modes.differentiable_eval(net):
            net(torch.randn(5, 2, 4))[0].sum().backward()


def test_requires_grad_is_summed_up_over_the_subtree() -> None:
    net = Captioner()
    rows = {module.path: module.requires_grad for _, module in modes.describe(net).root.walk()}
    assert (rows[""], rows["backbone"], rows["backbone.2"], rows["decoder"]) == ("some", "none", "-", "all")


def test_shared_modules_and_cycles_are_told_once() -> None:
    net = Captioner()
    net.decoder["rnn"].add_module("up", net)  # a cycle; named_modules() survives it, so must this
    shared = {
        module.path: module.same_as
        for _, module in modes.describe(net).root.walk()
        if module.same_as is not None
    }
    assert shared == {"decoder.rnn.up": "", "tied": "decoder.out"}


def test_paths_are_those_of_named_modules() -> None:
    net = Captioner()
    told = [module.path for _, module in modes.describe(net).root.walk() if module.same_as is None]
    assert told == [name for name, _ in net.named_modules()]


def test_nothing_changes_and_nothing_runs_even_on_meta() -> None:
    with torch.device("meta"):
        net = nn.Sequential(nn.LSTM(4, 3), nn.LazyLinear(2))
    net[0].eval()
    modes.describe(net)
    assert [m.training for m in net.modules()] == [True, False, True]


SHOWN = """\
   module                  mode   requires_grad  what the mode changes here
   Captioner               train  some
     backbone: Sequential  train  none
       0: Conv2d           train  none
!      1: BatchNorm2d      train  none           train: batch statistics, running ones move
       2: Dropout          train  -              train: zeroes inputs (p=0.1)
     decoder: ModuleDict   train  all
!      rnn: LSTM           eval   all            train: dropout between layers (p=0.3), cuDNN's
                                                 reserve
       out: Linear         train  all
     tied: Linear          train  all            same module as decoder.out
warn   batchnorm.frozen at backbone.1: BatchNorm2d in train mode, parameters frozen: running
       statistics move
cause  requires_grad=False freezes weight and bias; statistics follow the mode, also under no_grad
do     eval() on this module after each train() of the model
info   mode.mixed at decoder.rnn: in eval mode, the model in train mode (1 module; matters in LSTM)
cause  eval() was called on this part after train() on the model
do     nothing if on purpose (a frozen part), else train() on the whole model before the forward
warn   rnn.eval at decoder.rnn: LSTM in eval mode: on cuDNN, backward through a forward run now will
       raise
cause  cuDNN keeps what backward needs only when the forward runs in train mode
do     nothing for inference; to train, train() before the forward; for gradients of eval outputs,
       modes.differentiable_eval(model) around the forward"""


def test_text_shows_every_module_and_every_finding() -> None:
    net = Captioner()
    net.decoder["rnn"].eval()
    assert str(modes.describe(net)) == SHOWN


def test_text_is_plain_whatever_the_terminal_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython kernels set FORCE_COLOR; what prints the tree may be a log file."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    tree = modes.describe(Captioner())
    assert "\x1b" not in str(tree)
    assert repr(tree) == str(tree)


def test_rich_prints_it_in_colour_and_at_its_own_width() -> None:
    from rich.console import Console

    console = Console(width=60, record=True, file=StringIO())
    console.print(modes.describe(Captioner()))
    lines = console.export_text(styles=False).splitlines()
    assert max(map(len, lines)) <= 60
    assert any("BatchNorm2d" in line for line in lines)


def test_html_is_escaped_and_complete() -> None:
    net = nn.Sequential()
    net.add_module("<b>", nn.LSTM(4, 3).eval())
    html = modes.describe(net)._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;: LSTM" in html
    assert html.count("<tr>") == 3 + 2 * 3  # head and two modules; two findings of three lines
    assert "mode.mixed at &lt;b&gt;" in html


def test_control_characters_in_names_do_not_reach_the_terminal() -> None:
    tree = modes.describe(nn.ModuleDict({"a\n\x1b[31mb": nn.Linear(1, 1)}))
    for drawn in (str(tree), tree._repr_html_()):
        assert "\x1b" not in drawn
        assert "a\\n\\x1b[31mb: Linear" in drawn


def test_names_with_markup_are_shown_as_they_are() -> None:
    net = nn.Sequential()
    net.add_module("[red]", nn.Linear(2, 2))
    assert "[red]: Linear" in str(modes.describe(net))


def test_dict_is_json_and_complete() -> None:
    net = Captioner()
    tree = json.loads(json.dumps(modes.describe(net).to_dict()))
    assert tree["schema"] == 1
    assert [child["path"] for child in tree["root"]["children"]] == ["backbone", "decoder", "tied"]
    assert tree["root"]["children"][2]["same_as"] == "decoder.out"
    assert [(f["id"], f["severity"], f["where"]) for f in tree["findings"]] == [
        ("batchnorm.frozen", "warn", "backbone.1")
    ]


def test_what_is_no_module_is_one_clear_error() -> None:
    with pytest.raises(TypeError, match=r"^describe\(\) takes an nn.Module, got a dict$"):
        modes.describe({})  # type: ignore[arg-type]


class HalfMade(nn.Module):
    """Forgets super().__init__()."""

    def __init__(self) -> None:
        self.scale = 2.0


def test_a_module_that_is_half_made_is_told_and_does_not_raise() -> None:
    with pytest.raises(AttributeError):
        str(HalfMade())  # as print(model) does
    tree = modes.describe(nn.Sequential(nn.Linear(2, 2), HalfMade()))
    assert found(tree) == [("error", "module.unreadable", "1")]
    row = tree.root.children[1]
    assert (row.training, row.mode, row.requires_grad, row.changes) == (None, "?", "-", "")
    assert json.loads(json.dumps(tree.to_dict()))["root"]["children"][1]["training"] is None
    assert found(modes.describe(HalfMade())) == [("error", "module.unreadable", "")]


def test_a_dropout_without_a_number_is_told_and_does_not_raise() -> None:
    net = nn.Sequential(nn.Dropout(), nn.Dropout(0.0))
    net[0].p = None  # type: ignore[assignment]
    (finding,) = modes.describe(net).findings
    assert (finding.id, finding.seen) == ("module.unreadable", "Dropout cannot be read: p=None")
    del net[0].p
    assert found(modes.describe(net)) == [("error", "module.unreadable", "0")]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_compiled_and_captured_modules_are_described() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
    for made in (
        torch.jit.script(net),
        torch.jit.trace(net, torch.ones(1, 2)),  # type: ignore[no-untyped-call]
        torch.fx.symbolic_trace(net),
        torch.compile(net, backend="eager"),
        nn.DataParallel(net),
        torch.export.export(net, (torch.ones(1, 2),)).module(),
    ):
        tree = modes.describe(made)  # type: ignore[arg-type]
        assert tree.root.class_name == type(made).__name__
        assert {each.severity for each in tree.findings} <= {Severity.INFO}


def test_who_set_the_mode_is_shown_while_somebody_watches() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout()), nn.ReLU())
    assert "set by" not in str(modes.describe(net))
    with modes.guard(net, on_violation="collect"):
        net[1].eval()
        net[2].training = False
        tree = modes.describe(net)
    line = test_who_set_the_mode_is_shown_while_somebody_watches.__code__.co_firstlineno + 4
    told = {module.path: module.set_by for _, module in tree.root.walk()}
    assert (told[""], told["0"]) == (None, None)
    assert told["1"] == told["1.0"]
    assert told["1"] is not None
    assert told["1"].startswith("eval() at ")
    assert told["1"].endswith(f"test_tree.py:{line}")
    assert told["2"] is not None
    assert told["2"].startswith("training = at ")
    lines = [line for line, _ in tree.lines(120)]
    assert "set by" in lines[0]
    assert next(line for line in lines if '"' in line).split()[:2] == ["0:", "Dropout"]  # as its parent
    assert tree.to_dict()["root"]["children"][1]["set_by"] == told["1"]
    assert "set by" in tree._repr_html_()
    narrow = "\n".join(line for line, _ in tree.lines(80))
    assert "set by" not in narrow.split("\n")[0]
    assert "set by eval() at" in " ".join(narrow.split())
    assert "set by" not in str(modes.describe(net))  # nobody watches any more


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    net = nn.Sequential(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 1), Captioner()
    )
    net.kept = [nn.Dropout()]  # type: ignore[assignment]
    net.get_submodule("1.decoder.rnn").eval()
    net.add_module("名前", nn.Linear(1, 1))
    lines = [line for line, _ in modes.describe(net).lines(width)]
    assert max(map(cell_len, lines)) <= width
    told = "".join("".join(lines).split())
    for name in ("NonDynamicallyQuantizableLinear", "名前:Linear", "BatchNorm2d"):
        assert name in told.replace("-", "") or width < 100


def test_what_other_rules_find_is_marked_too() -> None:
    class Loop(nn.Module):
        def train(self, loader: object, epochs: int) -> None:  # type: ignore[override]
            pass

    net = nn.Sequential(Loop(), nn.Linear(2, 2))
    net[1].kept = [nn.Dropout()]  # type: ignore[assignment]
    tree = modes.describe(net)
    assert found(tree) == [("warn", "module.train_overridden", "0"), ("warn", "module.unregistered", "1")]
    assert [line[0] for line, _ in tree.lines() if line.startswith("!")] == ["!", "!"]


def test_a_thousand_modules_are_each_looked_at_once() -> None:
    """No time is measured here; each module being asked once is what keeps it fast."""
    asked = 0

    class Counting(nn.Module):
        def __getattribute__(self, name: str) -> object:
            nonlocal asked
            asked += name == "training"
            return super().__getattribute__(name)

    deep: nn.Module = Counting()
    for _ in range(50):
        deep = nn.Sequential(deep, *(Counting() for _ in range(20)))
    asked = 0
    tree = modes.describe(deep)
    assert sum(1 for _ in tree.root.walk()) == 50 * 21 + 1
    assert asked <= 4 * 1001
