"""The public reports that are reproduced: the number of each, where it is, what happens, and what must come out."""

from __future__ import annotations

from typing import NamedTuple

RAISES = "raises"
SECOND = "second derivatives are refused"
SILENT = "silent: a finding"
NONE = "no finding"
OTHER = "another error, or none"


class Report(NamedTuple):
    """One public report."""

    where: str
    happens: str
    expected: str
    """One of the five above: what must come out."""
    without: str = ""
    """Why there is no reproduction."""


REPORTS: dict[str, Report] = {
    "C01": Report("pytorch#5878", "bare LSTM in eval mode, loss on its output", RAISES),
    "C02": Report("pytorch#7961", "samples made in eval mode, `train()` before backward", RAISES),
    "C04": Report("pytorch#10006", "`eval()` to switch dropout off, then backward", RAISES),
    "C05": Report("dynamic-evaluation#2", "gradient statistics over chunks of text in eval mode", RAISES),
    "C07": Report(
        "pytorch#37965", "DDPG: `critic.eval()`, `critic.forward(...)`, `critic.train()`, backward", RAISES
    ),
    "C08": Report("pytorch#8582", "LSTM in eval mode under a head that trains", RAISES),
    "C10": Report("DeepTTE#6, #13", "`train()` once before the epochs, evaluation inside", RAISES),
    "C11": Report("controlled-text-generation#24", "`sample()` of the model calls `self.eval()`", RAISES),
    "C13": Report("minimal-nmt#4", "encoder and decoder evaluated within the epoch", RAISES),
    "C14": Report(
        "cnn-text-classification-pytorch PR#30", "evaluation every N steps inside the batch loop", RAISES
    ),
    "C16": Report("GLiNER#25", "`eval()` before saving, inside the loop", RAISES),
    "C17": Report(
        "paccmann_rl#5", "three networks sampled in eval mode, `train()` right before backward", RAISES
    ),
    "C19": Report("sa-vae#4", "latent codes refined by gradients in evaluation", RAISES),
    "C20": Report("Seq2Sick#2", "attack on the input of a frozen model loaded in eval mode", RAISES),
    "C22": Report("allennlp PR#3555", "saliency in a predictor; cuDNN off around the forward helps", RAISES),
    "C23": Report(
        "captum#328", "DeepLIFT on a BiLSTM in eval mode; fear that `train()` changes weights", RAISES
    ),
    "C25": Report("captum#1159", "`train()` works, and attributions differ from run to run", OTHER),
    "C26": Report("TS-Interpretability-Benchmark#4", "saliency on a trained LSTM", RAISES),
    "C28": Report(
        "deepspeech2-pytorch-adversarial-attack#1", "cuDNN off, and the input's gradient is None", OTHER
    ),
    "C29": Report(
        "torch-influence#7", "Hessian-vector products of an LSTM in eval mode, then in train mode", RAISES
    ),
    "C31": Report("trulens PR#60", "`train()` added after the forward", RAISES),
    "C32": Report("trulens PR#82", "a wrapper calls `eval()` before each run", RAISES),
    "C34": Report(
        "flow-forecast#121",
        "DA-RNN fails only on a GPU; its text is not in the report",
        OTHER,
        without="nothing is claimed: neither error text nor code is shown",
    ),
    "C35": Report("seq2seq-wgan#1, #2", "gradient penalty of an RNN critic, texts of two versions", SECOND),
    "C37": Report("pytorch#5261", "WGAN-GP, MAML, reinforcement learning", SECOND),
    "C38": Report("pytorch#25315", "`autograd.grad` twice through `nn.RNN`; with cuDNN off it works", SECOND),
    "C40": Report("learn2learn#218", "MAML with an LSTM, frozen with cuDNN off, and with it on", SECOND),
    "C41": Report("memory-efficient-maml#2", "the advice to use `nn.LSTMCell` in a loop", OTHER),
    "C43": Report(
        "lerobot#3668", "the policy is evaluated and not restored, on rank 0 only under DDP", SILENT
    ),
    "C44": Report("vsepp#4", "validation within the epoch, `train()` at the next epoch only", SILENT),
    "C46": Report("clevr-iep PR#22", '`set_mode("eval", [net, None, ...])` not undone', SILENT),
    "C47": Report("pytorch/tutorials PR#1602", "`test()` evals, `train()` sets no mode", SILENT),
    "C49": Report(
        "MultiBench#26", "`model.train()` a few lines after `model.eval()` in the validation", SILENT
    ),
    "C50": Report("pytorch-3dunet#53", "validation without `eval()`; harmless for GroupNorm", SILENT),
    "C52": Report(
        "pytorch-seq2seq#33, PR#38", "evaluator without `eval()`; evaluator that forces `train(True)`", SILENT
    ),
    "C53": Report("trl#155", "PPO samples in train mode", SILENT),
    "C55": Report("ai-engineering-from-scratch PR#206", "`generate()` calls `eval()` and returns", SILENT),
    "C56": Report("ellipse-rcnn#13", "`validation_step()` sets `self.train(True)` to get losses", SILENT),
    "C58": Report("stable-baselines3#535", "`predict()` with dropout and BatchNorm active", SILENT),
    "C59": Report("stable-baselines3 PR#553", "`policy.train()` wakes the target networks", SILENT),
    "C61": Report("TextAttack#457", "adversarial examples made in train mode", SILENT),
    "C62": Report("espnet PR#1952", "`eval()` reached the decoder, the encoder stayed in train mode", SILENT),
    "C64": Report("fairseq PR#4722", "decoder owned by the task, outside the model", SILENT),
    "C65": Report("StarGANv2-VC#72", "`train()` on all networks of a dict wakes a frozen one", SILENT),
    "C67": Report(
        "mcan-vqa#26", "`self.eval(dataset)` of an object that evals a new network (negative)", NONE
    ),
    "C68": Report("coRNN#1", "`eval()` not undone where nothing reads the mode (negative)", NONE),
    "C70": Report("DMS#30", "`train()` in the evaluation, for batches of one (intentional)", NONE),
    "C71": Report("higher#55", "batch statistics in the test of MAML (intentional)", NONE),
    "C73": Report("Tacotron2-PyTorch#8", "dropout always on in the prenet (intentional)", NONE),
    "C74": Report(
        "pytorch#5406, #4741, VideoPose3D#113", "eval gives other outputs than train (expected)", NONE
    ),
    "C76": Report("Lightning PR#18951", "the mode of each submodule is kept over validation", NONE),
    "C77": Report("Lightning#20177", "a hook that is not called leaves an own network in eval mode", SILENT),
    "C79": Report("Lightning#20216, #20986", "eval mode before or inside `fit()` stays", SILENT),
    "C80": Report("pytorch-ie#511", "a pretrained model is fitted in eval mode", SILENT),
    "C82": Report("gt-pyg#112", "`freeze()` evals BatchNorm once, the next `train()` undoes it", SILENT),
    "C83": Report("indexnet_matting#35", "`freeze_bn()` called once, no `train()` of its own", SILENT),
    "C85": Report(
        "chemprop PR#952, ultralytics PR#8753", "`requires_grad = False` only: statistics move", SILENT
    ),
    "C86": Report("Detectron.pytorch#104", "overridden `train()` reaches some children only", SILENT),
    "C88": Report(
        "unbiased-teacher#47, U2PL#64, cosmix-uda#21",
        "teacher in train mode under no_grad; its buffers are not copied",
        SILENT,
    ),
    "C89": Report("pytorch#7716 and six like it", "BatchNorm and a batch of one in train mode", OTHER),
    "C91": Report(
        "pytorch#26338, #11999, PyTorchNLPBook#28, pytorch-fm#21", "`F.dropout` without `training=`", SILENT
    ),
    "C92": Report("NTS-Net#14", "`nn.Dropout` made inside `forward()`", SILENT),
    "C94": Report(
        "Megatron-LM PR#411", "the eval branch sets the dropout's probability to 0 for good", SILENT
    ),
    "C95": Report(
        "DA-RNN#21, minimalRL#2, pykan#108, metal PR#71, foundations-drl#9",
        "`train` is the training loop",
        SILENT,
    ),
    "C97": Report("pytorch#151726, #29177", "exported and traced modules refuse or ignore a mode", SILENT),
    "C98": Report("pytorch#98487", "a GraphModule says train mode always", NONE),
    "C100": Report(
        "pytorch#54059, #20611, #53979, #48988, #24397",
        "evaluation on rank 0 only, through DDP or SyncBatchNorm, hangs",
        SILENT,
        without="the ranks wait for each other before any step that could be compared; NCCL's time limit ends them",
    ),
    "C101": Report(
        "semseg#60, skorch#218, OpenNMT-py#1141, FCGF#15, pytorch#4932",
        "eval() without no_grad: memory grows",
        SILENT,
    ),
}
"""In the order of the log; some numbers are left out there."""
