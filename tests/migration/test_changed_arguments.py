"""Names and arguments that PyTorch changed: each form, and how it is rewritten."""

from __future__ import annotations

import pytest
from checked_texts import OLD, START, fixed, found, is_safe, messages


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("nn.MSELoss(size_average=True)", 'nn.MSELoss(reduction="mean")'),
        ("nn.MSELoss(size_average=None)", 'nn.MSELoss(reduction="mean")'),
        ("nn.MSELoss(reduce=True)", 'nn.MSELoss(reduction="mean")'),
        ("nn.MSELoss(reduce=False)", 'nn.MSELoss(reduction="none")'),
        ("nn.MSELoss(size_average=False, reduce=True)", 'nn.MSELoss(reduction="sum")'),
        ("nn.MSELoss(size_average=False, reduce=False)", 'nn.MSELoss(reduction="none")'),
        ("nn.MSELoss(reduce=False, size_average=True)", 'nn.MSELoss(reduction="none")'),
        ("F.nll_loss(a, b, size_average=False)", 'F.nll_loss(a, b, reduction="sum")'),
        ("nn.NLLLoss(w, size_average=a)", 'nn.NLLLoss(w, reduction="mean" if a else "sum")'),
        (
            "nn.NLLLoss(size_average=not a)",
            'nn.NLLLoss(reduction="mean" if (not a) else "sum")',
        ),
        ("nn.MSELoss(reduce=a)", None),
        ("nn.MSELoss(size_average=a, reduce=True)", None),
        ("nn.MSELoss(size_average=False, **b)", None),
        ('nn.MSELoss(size_average=False, reduction="sum")', None),
    ],
)
def test_arguments_of_losses_become_a_reduction(before: str, after: str | None) -> None:
    assert [code for code, _ in found(f"{START}x = {before}\n", "ARC104")] == ["ARC104"]
    assert fixed(f"{START}x = {before}\n", "ARC104") == f"{START}x = {after or before}\n"


def test_a_reduction_has_the_quotes_of_the_file() -> None:
    text = f"{START}y = 'a'\nx = nn.MSELoss(size_average=False)\n"
    assert fixed(text, "ARC104").endswith("x = nn.MSELoss(reduction='sum')\n")
    assert messages(f"{START}x = nn.MSELoss(reduce=a)\n", "ARC104")[0].endswith("`reduction=…`")


@pytest.mark.parametrize("mode", ["linear", "bilinear", "bicubic", "trilinear"])
@pytest.mark.parametrize("name", ["F.interpolate(x, 2, ", "F.upsample(x, 2, ", "nn.Upsample(2, "])
def test_linear_resampling_in_old_code_is_found(name: str, mode: str) -> None:
    call = f'{name}mode="{mode}")\n'
    assert found(START + call, "ARC105") == []
    assert found(OLD + call, "ARC105") == [("ARC105", 6)]
    assert fixed(OLD + call, "ARC105") == OLD + call.replace(")\n", ", align_corners=True)\n")


@pytest.mark.parametrize(
    ("call", "is_found"),
    [
        ("F.interpolate(x, 2)", False),
        ('F.interpolate(x, 2, mode="nearest")', False),
        ("F.interpolate(x, 2, mode=m)", False),
        ('F.interpolate(x, 2, mode="linear", align_corners=None)', False),
        ('F.interpolate(x, None, 2, "linear")', True),
        ('F.interpolate(x, None, 2, "linear", True)', False),
        ('nn.Upsample(None, 2, "linear", False)', False),
        ('F.interpolate(*x, mode="linear")', False),
        ("F.grid_sample(x, g)", True),
        ('F.grid_sample(x, g, "nearest", "zeros")', True),
        ('F.grid_sample(x, g, "nearest", "zeros", True)', False),
        ("F.affine_grid(t, s)", True),
        ("F.affine_grid(t, s, False)", False),
        ("F.affine_grid(t, **s)", False),
    ],
)
def test_corners_are_left_to_the_default(call: str, is_found: bool) -> None:
    assert len(found(f"{OLD}{call}\n", "ARC105")) == is_found
    is_sampler = "interpolate" not in call and "Upsample" not in call
    assert len(found(f"{START}{call}\n", "ARC105")) == (is_found and is_sampler)


@pytest.mark.parametrize(
    ("before", "after", "version"),
    [
        *(
            (f"nn.init.{name}(w)", f"nn.init.{name}_(w)", "0.4")
            for name in ("constant", "dirac", "eye", "kaiming_normal", "kaiming_uniform", "normal")
        ),
        *(
            (f"nn.init.{name}(w)", f"nn.init.{name}_(w)", "0.4")
            for name in ("orthogonal", "sparse", "uniform", "xavier_normal", "xavier_uniform")
        ),
        ("nn.utils.clip_grad_norm(p, 1)", "nn.utils.clip_grad_norm_(p, 1)", "0.4"),
        ("F.upsample(x, 2)", "F.interpolate(x, 2)", "0.4.1"),
        ("nn.NLLLoss2d()", "nn.NLLLoss()", "0.4"),
        ("torch.ger(a, b)", "torch.outer(a, b)", "1.7"),
    ],
)
def test_a_deprecated_name(before: str, after: str, version: str) -> None:
    (message,) = messages(f"{START}{before}\n", "ARC109")
    old, new = before.partition("(")[0], after.partition("(")[0]
    assert message == (
        f"`{old.rpartition('.')[2]}` has been deprecated since PyTorch {version}; write "
        f"`{new.rpartition('.')[2]}`"
    )
    assert fixed(f"{START}{before}\n", "ARC109") == f"{START}{after}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from torch.nn.init import normal\nnormal(w)",
            "from torch.nn.init import normal_\nnormal_(w)",
        ),
        (
            "from torch.nn.init import normal as n\nn(w)",
            "from torch.nn.init import normal as n\nn(w)",
        ),
        (
            "from torch.nn.init import normal\nfrom mine import normal\nnormal(w)",
            "from torch.nn.init import normal_\nfrom mine import normal\nnormal(w)",
        ),
        (
            "from .torch.nn.init import normal\nnormal(w)",
            "from .torch.nn.init import normal\nnormal(w)",
        ),
    ],
)
def test_an_imported_name_is_renamed_with_its_uses(before: str, after: str) -> None:
    assert fixed(f"{before}\n", "ARC109") == f"{after}\n"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("torch.potrf(x)", "torch.cholesky(x)", "`torch.potrf` is gone; write `torch.cholesky`"),
        (
            "torch._six.inf",
            "torch._six.inf",
            "`torch._six.inf` is gone; write `torch.inf`",
        ),
        (
            "torch.gels(a, b)",
            "torch.gels(a, b)",
            "`torch.gels` is gone; use torch.linalg.lstsq(A, B).solution, with A first",
        ),
        ("torch.legacy.nn", "torch.legacy.nn", "`torch.legacy` is gone; use torch.nn"),
    ],
)
def test_a_removed_name(before: str, after: str, message: str) -> None:
    assert messages(f"{START}{before}\n", "ARC110") == [message]
    assert fixed(f"{START}{before}\n", "ARC110") == f"{START}{after}\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from torch.utils.ffi import create_extension", 1),
        ("from torch.legacy import nn", 1),
        ("from torchvision.transforms import Scale", 1),
        ("import torch\nx = torch.solve", 2),
        ("from .torch.utils.ffi import create_extension", None),
        ("from torchtext import Scale", None),
    ],
)
def test_an_import_of_a_removed_name(text: str, line: int | None) -> None:
    assert [at for _, at in found(f"{text}  # torch\n", "ARC110")] == (
        [] if line is None else [line]
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(
            (f"F.{name}(x)", f"F.{name}(x, dim=1)")
            for name in ("softmax", "log_softmax", "softmin")
        ),
        *((f"nn.{name}()", f"nn.{name}(dim=1)") for name in ("Softmax", "LogSoftmax", "Softmin")),
        ("F.softmax(x, 1)", None),
        ("F.softmax(x, dim=-1)", None),
        ("F.softmax(*x)", None),
        ("nn.Softmax(1)", None),
        ("nn.Softmax(**x)", None),
        ("torch.softmax(x)", None),
    ],
)
def test_softmax_needs_its_dimension(before: str, after: str | None) -> None:
    assert len(found(f"{START}{before}\n", "ARC113")) == (after is not None)
    assert fixed(f"{START}{before}\n", "ARC113") == f"{START}{after or before}\n"


ORDER = """\
import torch
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
for epoch in range(90):
    {first}
    {second}
    {third}
"""


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (("scheduler.step()", "train(model)", "pass"), 4),
        (("pass", "scheduler.step()", "train_epoch(model)"), 5),
        (("scheduler.step()", "for x in y: optimizer.step()", "pass"), 4),
        (("scheduler.step()", "self.train(model)", "pass"), 4),
        (("train(model)", "scheduler.step()", "pass"), None),
        (("train(model)", "scheduler.step()", "train(model)"), None),
        (("scheduler.step()", "validate(model)", "clock.step()"), None),
        (("scheduler.step()", "model.train()", "pass"), None),
        (("scheduler.step(loss)", "train(model)", "pass"), None),
        (("clock.step()", "train(model)", "pass"), None),
        (("if epoch: scheduler.step()", "train(model)", "pass"), None),
    ],
)
def test_a_scheduler_steps_first(lines: tuple[str, str, str], line: int | None) -> None:
    text = ORDER.format(first=lines[0], second=lines[1], third=lines[2])
    assert [at for _, at in found(text, "ARC115")] == ([] if line is None else [line])


@pytest.mark.parametrize("flag", ["True", "False", "verbose"])
def test_verbose_is_gone(flag: str) -> None:
    start = "from torch.optim import lr_scheduler as s\ny = s."
    before = f"{start}StepLR(optimizer, verbose={flag}, gamma=0.1)\n"
    assert fixed(before, "ARC116") == f"{start}StepLR(optimizer, gamma=0.1)\n"
    assert is_safe(before, "ARC116") is (flag == "False")
    first = f"{start}StepLR(verbose={flag}, gamma=0.1)\n"
    assert fixed(first, "ARC116") == f"{start}StepLR(gamma=0.1)\n"
    alone = f"{start}StepLR(verbose={flag},)\n"
    assert fixed(alone, "ARC116") == f"{start}StepLR()\n"


def test_verbose_of_others_stays() -> None:
    assert found("import torch\ntorch.hub.load('a', verbose=True)\n", "ARC116") == []


@pytest.mark.parametrize(
    ("start", "call", "flag"),
    [
        (OLD, "torch.load(f)", "True"),
        (START, "torch.load(f)", None),
        (OLD, "torch.load(f, weights_only=False)", None),
        (OLD, "torch.load(f, **options)", None),
        (f"{OLD}torch.serialization.add_safe_globals([A])\n", "torch.load(f)", None),
        (START, "torch.load(f).eval()", "False"),
        (START, "torch.load(f).keys()", None),
        (START, "a = torch.load(f)\nb = torch.from_numpy(a['x'])", "False"),
        (
            START,
            "optimizer = torch.optim.SGD(p, 1)\ntorch.save(optimizer, f)\ntorch.load(f)",
            "False",
        ),
        (START, "torch.save({'m': nn.Linear(1, 1)}, f)\ntorch.load(f)", "False"),
        (START, "torch.save(nn.Linear(1, 1), f)\ntorch.save(x, g)\ntorch.load(g)", None),
    ],
)
def test_what_a_file_may_hold_is_said(start: str, call: str, flag: str | None) -> None:
    text = f"{start}{call}\n"
    after = fixed(text, "ARC117")
    assert after.count("weights_only") - text.count("weights_only") == (flag is not None)
    if flag is not None:
        assert f"torch.load(f, weights_only={flag})" in after
        assert is_safe(text, "ARC117") is (flag == "True")
