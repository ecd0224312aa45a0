"""What the rules ARC2xx report, and similar code that they leave alone."""

from __future__ import annotations

import pytest
from checked_texts import fixed, found, messages, rewritten

START = "import torch\nfrom torch import nn\n"
CHOICE = 'torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")'


@pytest.mark.parametrize(
    "text",
    [
        "m.cuda()",
        "m.cuda(0)",
        "m.cuda(non_blocking=True)",
        "if x:\n    pass\nelse:\n    m.cuda()",
        "if m.cuda():\n    pass",
        "try:\n    pass\nexcept OSError:\n    m.cuda()",
        "m.cuda()\nassert torch.cuda.is_available()",
        "if not torch.cuda.is_available():\n    print(1)\nm.cuda()",
        "if x:\n    raise OSError\nm.cuda()",
        "if not torch.cuda.is_available():\n    raise OSError\n    x = 1\nm.cuda()",
    ],
)
def test_cuda_is_hard_wired(text: str) -> None:
    assert len(found(START + text, "ARC201")) == 1


@pytest.mark.parametrize(
    "text",
    [
        *(f"if {word}:\n    m.cuda()" for word in ("cuda", "use_gpu", "xpu", "accelerator")),
        *(f"if {word}:\n    m.cuda()" for word in ("device", "nccl", "backend", "CUDA")),
        "if x:\n    pass\nelif cuda:\n    m.cuda()",
        "x = m.cuda() if gpu else m",
        "while gpu:\n    m.cuda()",
        "class GpuModel:\n    def f(self):\n        m.cuda()",
        "async def on_gpu():\n    m.cuda()",
        "@needs_gpu\nclass A:\n    def f(self):\n        m.cuda()",
        "assert torch.cuda.is_available()\nm.cuda()",
        "def f():\n    assert torch.cuda.is_available()\n    m.cuda()",
        "try:\n    m.cuda()\nexcept OSError:\n    pass",
        *(
            f"def f():\n    if not torch.cuda.is_available():\n        {end}\n    m.cuda()"
            for end in ("return", "raise OSError", "sys.exit(1)", "os._exit(1)", "exit()", "quit()")
        ),
        "if not gpu:\n    pytest.skip()\nm.cuda()",
        "m.cuda(device)",
        "m.cuda(args.gpu)",
        "torch.cuda.synchronize()",
        "m.cuda",
    ],
)
def test_cuda_is_chosen(text: str) -> None:
    assert found(START + text, "ARC201") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("m.cuda()\nn.cuda()", f"\ndevice = {CHOICE}\nm.to(device)\nn.to(device)"),
        ("m.cuda(non_blocking=True)", f"\ndevice = {CHOICE}\nm.to(device, non_blocking=True)"),
        ("(m or n).cuda()", f"\ndevice = {CHOICE}\n(m or n).to(device)"),
        ("device = pick()\nm.cuda()", "device = pick()\nm.to(device)"),
        ("m.cuda(0)", None),
        ("def f(device):\n    m.cuda()", None),
        ("device = 1\ndef f(device):\n    m.cuda()", None),
        ("device = 1\ndevice = 2\nm.cuda()", None),
        ("def f():\n    device = 1\nm.cuda()", None),
    ],
)
def test_cuda_becomes_the_device_of_the_module(before: str, after: str | None) -> None:
    assert fixed(f"{START}{before}\n", "ARC201") == f"{START}{after or before}\n"


@pytest.mark.parametrize(
    "start", ["import torch as t\n", "import os\n", "def f():\n    import torch\n"]
)
def test_without_torch_at_the_top_no_device_is_defined(start: str) -> None:
    text = f"{start}m.cuda()  # torch\n"
    assert len(found(text, "ARC201")) == 1
    assert fixed(text, "ARC201") == text


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ('torch.ones(3, device="cuda:1")', True),
        ('x.to("cuda:0")', True),
        ('x.cuda("cuda:10")', True),
        ('x.to(device="cuda:0")', True),
        ('torch.device("cuda:1")', True),
        ('torch.load(f, map_location="cuda:0")', True),
        ('torch.load(f, "cuda:0")', True),
        ('torch.ones(3, device="cuda")', False),
        ('torch.ones(3, name="cuda:1")', False),
        ('print("cuda:1")', False),
        ('run(device="cuda:1")', False),
        ('name = "cuda:1"', False),
        ('x.to("cuda:1 or so")', False),
        ('if gpus > 1:\n    x.to("cuda:1")', False),
        ("nn.DataParallel(m, device_ids=[0, 1])", True),
        ("nn.DataParallel(m, (0, 1))", True),
        ("nn.DataParallel(m, device_ids=[0])", False),
        ("nn.DataParallel(m, device_ids=[a, b])", False),
        ("nn.DataParallel(m, device_ids=ids)", False),
        ("nn.DataParallel(m)", False),
        ("if gpus > 1:\n    nn.DataParallel(m, device_ids=[0, 1])", False),
    ],
)
def test_a_number_is_hard_wired(text: str, is_found: bool) -> None:
    assert len(found(f"{START}{text}\n", "ARC202")) == is_found


PARALLEL = f"{START}model = nn.DataParallel(Net())\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = model.fc", "x = model.module.fc"),
        ("model.fc.weight.data", "model.module.fc.weight.data"),
        ("torch.save(model.state_dict(), f)", "torch.save(model.module.state_dict(), f)"),
        (
            'torch.save({"net": model.state_dict()}, f)',
            'torch.save({"net": model.module.state_dict()}, f)',
        ),
        (
            'state = {"net": model.state_dict()}\ntorch.save(state, f)',
            'state = {"net": model.module.state_dict()}\ntorch.save(state, f)',
        ),
        ("model.train(), model.module, model.device_ids, model._x", None),
        ("model.fc = 1", None),
        ("x = model.state_dict()", None),
        ("other.fc", None),
    ],
)
def test_a_wrapper_hides_the_model(before: str, after: str | None) -> None:
    assert fixed(f"{PARALLEL}{before}\n", "ARC203") == f"{PARALLEL}{after or before}\n"
    assert len(found(f"{PARALLEL}{before}\n", "ARC203")) == (after is not None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("nn.functional.cross_entropy(model(x), y)", 3),
        ("criterion = nn.MSELoss()\ncriterion(model(x), y)", 3),
        ("nn.functional.relu(model(x))", None),
        ("nn.functional.cross_entropy(net(x), y)", None),
        ("model = nn.parallel.DistributedDataParallel(model)\nnn.MSELoss()(model(x), y)", None),
    ],
)
def test_a_loss_is_outside_the_wrapper(text: str, line: int | None) -> None:
    assert [at for _, at in found(PARALLEL + text, "ARC203")] == ([] if line is None else [line])


def test_a_model_that_may_be_wrapped_is_saved_with_the_prefix() -> None:
    text = "model = Net()\nif many:\n    model = nn.DataParallel(model)\n"
    save = "torch.save(model.state_dict(), f)\n"
    assert found(START + text + save, "ARC203") == [("ARC203", 6)]
    wrapped = "if ranks:\n    model = nn.parallel.DistributedDataParallel(model)\n"
    assert found(START + text + wrapped + save, "ARC203") == []


LATE = 'os.environ["CUDA_VISIBLE_DEVICES"] = "1"'


@pytest.mark.parametrize(
    "start",
    [
        *(f"torch.cuda.{name}()" for name in ("init", "is_available", "current_device")),
        *(f"torch.cuda.{name}(0)" for name in ("set_device", "get_device_name", "mem_get_info")),
        *(f"torch.cuda.{name}(0)" for name in ("get_device_properties", "get_device_capability")),
        *(f"torch.cuda.{name}()" for name in ("synchronize", "Stream", "current_stream")),
        "m.cuda()",
        "m.cuda(1)",
        'x.to("cuda:0")',
        'torch.ones(3, device="cuda")',
        "if gpu:\n    m.cuda()",
    ],
)
def test_what_starts_cuda_before_the_variable_is_set(start: str) -> None:
    text = f"import os, torch\n{start}\n{LATE}\n"
    (message,) = messages(text, "ARC204")
    line = 2 + start.count("\n")
    assert f"which line {line} (`{start.splitlines()[-1].strip()}`)" in message
    assert found(f"import os, torch\n{LATE}\n{start}\n", "ARC204") == []


@pytest.mark.parametrize(
    "start",
    [
        "torch.cuda.device_count()",
        "torch.cuda.memory_allocated()",
        'torch.device("cuda")',
        'torch.ones(3, device="cpu")',
        "x.to(device)",
        'x.to("cpu")',
        "f = lambda m: m.cuda()",
        "class A:\n    x = torch.ones(3, device='cuda')",
        "def f():\n    m.cuda()",
        'run(device="cuda")',
    ],
)
def test_what_does_not_start_cuda(start: str) -> None:
    assert found(f"import os, torch\n{start}\n{LATE}\n", "ARC204") == []


@pytest.mark.parametrize(
    ("setting", "count"),
    [
        ('os.environ.setdefault("CUDA_VISIBLE_DEVICES", "1")', 1),
        ('os.putenv("CUDA_VISIBLE_DEVICES", "1")', 1),
        ('os.environ["OMP_NUM_THREADS"] = "1"', 0),
        ('environment["CUDA_VISIBLE_DEVICES"] = "1"', 0),
        ('x = os.environ["CUDA_VISIBLE_DEVICES"]', 0),
    ],
)
def test_ways_to_set_the_variable(setting: str, count: int) -> None:
    assert len(found(f"import os, torch\nm.cuda()\n{setting}\n", "ARC204")) == count


def test_another_branch_does_not_start_cuda_before() -> None:
    text = f"import os, torch\nif x:\n    m.cuda()\nelse:\n    {LATE}\n"
    assert found(text, "ARC204") == []
    assert len(found(text.replace("else:\n", "    y = 1\n"), "ARC204")) == 1


def test_the_first_line_that_starts_cuda_is_named() -> None:
    text = f"import os, torch\nm.cuda()\ntorch.cuda.init()\n{LATE}\n"
    (message,) = messages(text, "ARC204")
    assert "which line 2 (`m.cuda()`)" in message


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        ("CUDA_VISIBLE_DEVICE", True),
        ("CUDA_VISIBLE_DEVISES", True),
        ("CUDA_VISBLE_DEVICES", True),
        ("CUDA_VISIBLE_DEVICES", False),
        ("cuda_visible_device", False),
        ("CUDA_VISIBLE", False),
        ("ROCR_VISIBLE_DEVICES", False),
        ("CUDA_LAUNCH_BLOCKING", False),
    ],
)
def test_a_variable_is_misspelt(name: str, is_found: bool) -> None:
    text = f"import os\nos.environ['{name}'] = \"1\"\n"
    assert len(found(text, "ARC205")) == is_found
    assert fixed(text, "ARC205") == (
        text.replace(name, "CUDA_VISIBLE_DEVICES") if is_found else text
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.cuda.device(0)", "torch.cuda.set_device(0)"),
        ("torch.cuda.stream(s)", "torch.cuda.set_stream(s)"),
        ("torch.device('cuda')", "torch.device('cuda')"),
        ("torch.no_grad()", "torch.no_grad()"),
        ("torch.inference_mode()", "torch.inference_mode()"),
        ("torch.autocast('cuda')", "torch.autocast('cuda')"),
        ("torch.cuda.amp.autocast()", "torch.cuda.amp.autocast()"),
        ("torch.enable_grad()", "torch.enable_grad()"),
        ("with torch.cuda.device(0):\n    pass", None),
        ("x = torch.no_grad()", None),
        ("torch.cuda.synchronize()", None),
    ],
)
def test_a_context_manager_stands_alone(before: str, after: str | None) -> None:
    assert len(found(f"{START}{before}\n", "ARC206")) == (after is not None)
    assert fixed(f"{START}{before}\n", "ARC206") == f"{START}{after or before}\n"


def test_the_advice_names_a_function_only_if_there_is_one() -> None:
    (device,) = messages("import torch\ntorch.device('cuda')\n", "ARC206")
    assert device.endswith("use it in a `with`, or call `torch.set_default_device`")
    (no_grad,) = messages("import torch\ntorch.no_grad()\n", "ARC206")
    assert no_grad.endswith("use it in a `with`")


MOVES = ("cuda", "cpu", "half", "xpu", "contiguous", "detach", "float", "double")


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        *((f"x = torch.ones(3)\nx.{name}()", True) for name in MOVES),
        ("x = torch.ones(3)\nx.to(d)", True),
        ("x = torch.ones(3)\nx = x.to(d)", False),
        ("x = torch.ones(3)\nx.add_(1)", False),
        ("x = nn.Linear(3, 3)\nx.cuda()", False),
        ("torch.ones(3).cuda()", False),
        ("x.cuda()", False),
    ],
)
def test_a_moved_tensor_is_dropped(text: str, is_found: bool) -> None:
    assert len(found(f"{START}{text}\n", "ARC207")) == is_found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("torch.load(f)\nm.cuda()", True),
        ("torch.load(f)\nnn.DataParallel(m)", True),
        ("torch.load(f)\nnn.parallel.DistributedDataParallel(m)", True),
        ("torch.serialization.load(f)\nm.cuda()", True),
        ("torch.load(f)", False),
        ("torch.load(f)\ntorch.cuda.synchronize()", False),
        ('torch.load(f, "cpu")\nm.cuda()', False),
        ('torch.load(f, map_location="cpu")\nm.cuda()', False),
        ("torch.load(*f)\nm.cuda()", False),
        ("torch.load(f, **options)\nm.cuda()", False),
        ("if gpu:\n    torch.load(f)\n    m.cuda()", False),
        ("def f():\n    torch.save(m, 'a')\n    torch.load('a')\nm.cuda()", False),
        ("def f():\n    torch.save(m, 'a')\ndef g():\n    torch.load('a')\nm.cuda()", True),
        ("torch.save(m, 'a')\ntorch.load('a')\nm.cuda()", True),
    ],
)
def test_a_file_is_loaded_to_where_it_came_from(text: str, is_found: bool) -> None:
    assert len(found(f"{START}{text}\n", "ARC208")) == is_found


LOADERS = """\
from torch.utils.data import DataLoader
loader = DataLoader(data{flags})
for x, y in loader:
    {copy}
"""


@pytest.mark.parametrize("copy", ["x.to(device)", "x.cuda()", "x.to(rank)", "x.to(device=d)"])
def test_pinned_memory_and_asynchronous_copies_go_together(copy: str) -> None:
    pinned = LOADERS.format(flags=", pin_memory=True", copy=copy)
    later = copy[:-1] + (", " if copy[-2] != "(" else "") + "non_blocking=True)"
    both = LOADERS.format(flags=", pin_memory=True", copy=later)
    assert found(pinned, "ARC209", "ARC210") == [("ARC209", 4)]
    assert fixed(pinned, "ARC209") == both
    assert found(both, "ARC209", "ARC210") == []
    unpinned = LOADERS.format(flags="", copy=later)
    assert found(unpinned, "ARC209", "ARC210") == [("ARC210", 4)]
    assert fixed(unpinned, "ARC210") == both


@pytest.mark.parametrize(
    ("flags", "copy"),
    [
        (", pin_memory=True", "x.to(torch.float64)"),
        (", pin_memory=True", "x.to('cpu')"),
        (", pin_memory=True", "x.to(device, torch.float64)"),
        (", pin_memory=True", "x.to(device, **options)"),
        (", pin_memory=True", "z.to(device)"),
        (", pin_memory=pins", "x.to(device)"),
        (", pin_memory=False", "x.to(device)"),
        (", **options", "x.to(device)"),
        (")\nother = DataLoader(data", "x.to(device)"),
        (", pin_memory=True)\nother = DataLoader(data", "x.to(device)"),
        ("", "x.to(device, non_blocking=False)"),
        ("", "x.to(device, non_blocking=flag)"),
        (", **options", "x.to(device, non_blocking=True)"),
        (", pin_memory=pins", "x.to(device, non_blocking=True)"),
        (")\nother = DataLoader(data, pin_memory=True", "x.to(device, non_blocking=True)"),
    ],
)
def test_copies_that_may_be_right(flags: str, copy: str) -> None:
    assert found(LOADERS.format(flags=flags, copy=copy), "ARC209", "ARC210") == []


def test_each_loader_gets_pinned_memory() -> None:
    text = LOADERS.format(
        flags=", 8)\nother = DataLoader(data", copy="x.to(device, non_blocking=True)"
    )
    assert fixed(text, "ARC210").count("pin_memory=True") == 2
    assert not rewritten(text, "ARC210", allow_unsafe=False).is_changed
