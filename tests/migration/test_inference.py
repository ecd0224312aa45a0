"""What is a tensor, a loss or a loader is inferred, so that nothing else is reported."""

import pytest
from checked_texts import fixed, found, messages, rewritten


@pytest.mark.parametrize(
    "program",
    [
        "import torch\nclass Table:\n    data = [1]\nprint(Table().data[0])\n",
        "import torch\ndef f(batch):\n    return batch.data[0], batch['data'][0]\n",
        "import torch\nimages = torch.rand(4, 3)\nprint(images.data[0], images[0])\n",
        "import torch\nclass Variable:\n    pass\nx = Variable()\n",
        "import tensorflow as tf\nimport torch\nx = tf.Variable(3)\n",
        "from torch.autograd import Variable\nVariable._execution_engine.queue_callback(print)\n",
        "from torch.autograd import Variable\n__all__ = ['Variable']\n",
        "import torch\nimport numpy as np\nmask = 1 - np.ones(3)\n",
        "import torch\ndef f(loader):\n    for x in loader:\n        total = 1 - (len(x) > 3)\n",
        "import torch\ndef f(model):\n    model.cuda_graph()\n    model.to('cpu')\n",
        "import torch\nclass Scale:\n    pass\nScale()\n",
        "import torch\nfrom mine import Scale, xavier_uniform\nxavier_uniform(Scale())\n",
        "import torch\ndef f(rows):\n    return rows.iteritems\n",
        "import torch\ndef f(queue):\n    return queue.next()\n",
        "import torch\nxrange = range\nxrange(3)\n",
        "import sys\nnames = xrange(3) if sys.version_info[0] < 3 else range(3)\n",
        "import six\nif six.PY2:\n    xrange(3)\n",
        "try:\n    read = raw_input\nexcept NameError:\n    read = input\n",
        "try:\n    read = raw_input\nexcept:\n    read = input\n",
        "import torch\ntorch = None\ntorch.load('a')\n",
        "import torch\ndef f(torch):\n    torch.gels(1)\n",
        "import os, torch\nos.environ['NVIDIA_VISIBLE_DEVICES'] = '0'\n",
        "import os, torch\nos.environ['HIP_VISIBLE_DEVICES'] = '0'\n",
        "import torch\nmask = torch.ones(3) > 0\na, b = 1 - mask.byte(), 1 - mask.cumsum(0)\n",
        "import torch\nmask = torch.ones(3) > 0\na = 1 - mask.type(torch.FloatTensor)\n",
        "import torch\nclass A:\n    def f(self):\n        self.volatile = True\n",
        "import torch\ncorrect = torch.ones(4, 5).t().eq(1)\ntop = correct[:1].view(-1)\n",
        "from torch.utils.serialization import config\n",
        "import os, torch\ntorch.cuda.device_count()\ntorch.cuda.empty_cache()\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n",
    ],
)
def test_nothing_is_found(program: str) -> None:
    assert found(program) == []


@pytest.mark.parametrize(
    "program",
    [
        "import torch as t\nx = t.autograd.Variable(t.ones(3))\n",
        "from torch import autograd\nx = autograd.Variable(3)\n",
        "from torch.autograd import Variable as V\nx = V(3)\n",
        "from torch.autograd import *\nx = Variable(3)\n",
        "import torch.autograd as ag\nclass A:\n    def f(self):\n        return ag.Variable(3)\n",
    ],
)
def test_aliases(program: str) -> None:
    assert [code for code, _ in found(program)] == ["ARC101"]


@pytest.mark.parametrize(
    "loss",
    [
        "F.mse_loss(x, y)",
        "nn.MSELoss()(x, y)",
        "self.criterion(x, y)",
        "(x - y).pow(2).mean()",
        "F.mse_loss(x, y) + 0.1 * F.l1_loss(x, y)",
        "(x - y).abs().sum() / 3",
        "criterion(x, y)",
        "total_loss",
    ],
)
def test_losses(loss: str) -> None:
    program = f"""\
    import torch
    from torch import nn
    import torch.nn.functional as F

    class Trainer:
        def __init__(self):
            self.criterion = nn.CrossEntropyLoss().cuda()

        def f(self, criterion, total_loss):
            x, y = torch.ones(3), torch.ones(3)
            loss = {loss}
            return loss.data[0]
    """
    assert found(program, "ARC103") == [("ARC103", 12)]


def test_a_sampled_action() -> None:
    program = """\
    from torch.autograd import Variable
    from torch.distributions import Categorical

    def act(policy, state):
        action = Categorical(policy(Variable(state))).sample()
        return action.data[0]
    """
    assert found(program, "ARC103") == [("ARC103", 6)]
    # There may be several samples: only a person knows.
    assert not rewritten(program, "ARC103", allow_unsafe=False).is_changed


def test_an_index_of_a_tensor_of_other_numbers_is_divided() -> None:
    program = """\
    import torch
    from torch.autograd import Variable

    place = Variable(torch.rand(9)).max(0)[1]
    a = place.view(-1) / 3
    b = place.type(torch.FloatTensor) / 3
    """
    assert found(program, "ARC107") == [("ARC107", 5)]


@pytest.mark.parametrize(
    "mark",
    [
        "Variable(torch.ones(3))",
        "model(x, volatile=True)",
        "torch.nn.MSELoss(size_average=False)",
        "print(loss.data[0])",
        "print 'a'",
    ],
)
def test_what_shows_that_a_program_is_old(mark: str) -> None:
    program = (
        "import torch\nfrom torch.autograd import Variable\n\n"
        "place = torch.rand(9).max(0)[1]\nrow = place / 3\n"
    )
    assert found(program, "ARC107") == []
    assert found(f"{program}{mark}\n", "ARC107") == [("ARC107", 5)]


@pytest.mark.parametrize("name", ["each", "loss"])
@pytest.mark.parametrize(
    "call",
    [
        'nn.MSELoss(reduction="none")(x, y)',
        "nn.MSELoss(reduce=False)(x, y)",
        'nn.functional.mse_loss(x, y, reduction="none")',
    ],
)
def test_a_loss_per_sample_has_an_index(call: str, name: str) -> None:
    program = f"""\
    import torch
    from torch import nn

    x, y = torch.ones(3), torch.ones(3)
    {name} = {call}
    print({name}.data[0])
    """
    assert found(program, "ARC103") == []
    program = program.replace(".data[0]", ".mean().data[0]")
    assert found(program, "ARC103") == [("ARC103", 6)]


def test_names_in_circles_end() -> None:
    lines = [f"    x{i} = x{(i * 7 + 1) % 40}.cuda() + x{(i * 3 + 2) % 40}" for i in range(40)] * 20
    program = "import torch\ndef f(x0):\n" + "\n".join(lines) + "\n    x1.to('cpu')\n"
    assert {code for code, _ in found(program)} == {"ARC201"}


def test_what_a_condition_on_gpus_guards() -> None:
    program = """\
    import torch

    def f(args, model):
        if args.cuda:
            model.cuda()
        return model

    def g(args, model):
        if not torch.cuda.is_available():
            raise SystemExit
        return model.cuda()

    def on_gpu(model):
        return model.cuda()

    def h(model):
        return model.cuda()
    """
    assert found(program) == [("ARC201", 17)]


def test_a_mask_of_bytes_raises_only_where_it_sets_a_number() -> None:
    start = "import torch\nx = torch.ones(3)\nmask = torch.ones(3)\n"
    (read,) = messages(f"{start}y = x[mask.byte()]\n", "ARC106")
    (set_,) = messages(f"{start}x[mask.byte()] = 0\n", "ARC106")
    assert "deprecated" in read
    assert "RuntimeError" not in read
    assert "raises RuntimeError where it sets a number" in set_


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("from torch.autograd.variable import Variable\nVariable(x)", "ARC101"),
        ("from torch.nn.parallel import DataParallel\nDataParallel(m, [0, 1])", "ARC202"),
        (
            "from torch.nn.parallel.data_parallel import DataParallel\nDataParallel(m, [0, 1])",
            "ARC202",
        ),
        ("from torch.nn import *\nDataParallel(m, [0, 1])", "ARC202"),
        ("from torch.nn import *\nx = CrossEntropyLoss(size_average=True)", "ARC104"),
        ("from torch.nn import *\nx = Parameter(y)\nx.cuda()", "ARC207"),
        (
            "from torch.utils.data import *\n"
            "for x, y in DataLoader(d, pin_memory=True):\n    x.cuda()",
            "ARC209",
        ),
        (
            "from torch.utils.data.dataloader import DataLoader\n"
            "for x, y in DataLoader(d, pin_memory=True):\n    x.cuda()",
            "ARC209",
        ),
        ("from torch.nn.parameter import Parameter\nx = Parameter(y)\nx.cuda()", "ARC207"),
        ("from torch.nn import Linear\nx = Linear(1, 1).bias\nx.cuda()", "ARC207"),
    ],
)
def test_one_thing_has_several_names(text: str, code: str) -> None:
    assert code in [each for each, _ in found(f"import torch\n{text}\n")]


@pytest.mark.parametrize(
    "text", ["from .torch.autograd import Variable", "from mine import *", "import torch.autograd"]
)
def test_another_thing_may_have_the_same_name(text: str) -> None:
    assert found(f"import torch\n{text}\nVariable(x)\n", "ARC101") == []


FACTORIES = (
    *("ones(3)", "zeros(3)", "rand(3)", "randn(3)", "empty(3)", "tensor([1])", "eye(3)"),
    *("arange(3)", "linspace(0, 1, 3)", "full((3,), 1.0)", "randint(3, (2,))", "randperm(3)"),
    *("from_numpy(y)", "as_tensor(y)", "zeros_like(y)", "ones_like(y)", "randn_like(y)"),
    *("bernoulli(y)", "multinomial(y, 2)", "normal(y, y)", "FloatTensor(3)", "cuda.IntTensor(3)"),
)


@pytest.mark.parametrize("call", FACTORIES)
def test_a_new_tensor_has_no_graph(call: str) -> None:
    text = f"import torch\nfrom torch.autograd import Variable\nx = Variable(torch.{call})\n"
    assert fixed(text, "ARC101") == f"import torch\nx = torch.{call}\n"


@pytest.mark.parametrize(
    "call", ["exp(y)", "sum(y)", "cat([y])", "nn.Parameter(y)", "relu(y)", "stack(y)"]
)
def test_other_tensors_may_have_one(call: str) -> None:
    text = f"import torch\nfrom torch.autograd import Variable\nx = Variable(torch.{call})\n"
    assert fixed(text, "ARC101") == f"import torch\nx = torch.{call}.detach()\n"


LOOP = "import torch\nfrom torch.utils.data import DataLoader\n{}\n    x.cuda()\n"


@pytest.mark.parametrize(
    ("loop", "is_batch"),
    [
        ("for x, y in loader:", True),
        ("for x, y in self.train_Loader:", True),
        ("for x, y in loader_of_tests:", True),
        ("for i, (x, y) in enumerate(loader):", True),
        ("for i, (x, y) in enumerate(tqdm(loader)):", True),
        ("for x, y in tqdm.tqdm(loader):", True),
        ("d = DataLoader(z)\nfor x, y in d:", True),
        ("for x, (i, y) in enumerate(loader):", False),
        ("for x, y in zip(loader, loader):", False),
        ("for x, y in rows:", False),
        ("for x in range(3):", False),
    ],
)
def test_a_part_of_a_batch_is_a_tensor(loop: str, is_batch: bool) -> None:
    text = LOOP.format(loop)
    assert [code for code, _ in found(text, "ARC207")] == ["ARC207"] * is_batch


@pytest.mark.parametrize(
    ("text", "is_module"),
    [
        ("class A(torch.nn.Module): pass\nm = A()", True),
        ("class A(torch.nn.Module): pass\nclass B(A): pass\nm = B()", True),
        ("m = torchvision.models.resnet18()", True),
        ("m = torch.nn.Sequential().eval().half()", True),
        ("m = torch.nn.DataParallel(f())", True),
        ("class A(torch.nn.Parameter): pass\nm = A()", False),
        ("class A: pass\nm = A()", False),
        ("m = torch.nn.functional.relu(x)", False),
    ],
)
def test_what_is_a_module(text: str, is_module: bool) -> None:
    program = f"import torch, torchvision\n{text}\ntorch.save(m, 'a')\ntorch.load('a')\n"
    assert [code for code, _ in found(program, "ARC117")] == ["ARC117"] * is_module


def test_a_value_of_several_kinds_is_what_all_have_in_common() -> None:
    start = "import torch\nx = torch.ones(3)\n"
    number = "loss = x.sum()\nif y:\n    loss = x.mean()\nloss[0]\n"
    assert found(start + number, "ARC103") == [("ARC103", 6)]
    assert found(start + number.replace("x.mean()", "x"), "ARC103") == []
    assert found(f"{start}loss = x.sum() if y else x\nloss[0]\n", "ARC103") == []
    assert len(found(f"{start}loss = x.sum() if y else x.mean()\nloss[0]\n", "ARC103")) == 1
    assert found(f"{start}loss = x.sum() + x\nloss[0]\n", "ARC103") == []
    assert len(found(f"{start}loss = x.sum() + len(y)\nloss[0]\n", "ARC103")) == 1
    assert len(found(f"{start}loss = x.sum() * int(y)\nloss[0]\n", "ARC103")) == 1


def test_a_gradient_that_is_passed_tells_nothing_about_the_loss() -> None:
    text = "import torch\ndef f(out):\n    out.backward({})\n    return out.data[0]\n"
    assert found(text.format(""), "ARC103") == [("ARC103", 4)]
    assert found(text.format("retain_graph=True"), "ARC103") == [("ARC103", 4)]
    assert found(text.format("weights"), "ARC103") == []
    assert found(text.format("gradient=weights"), "ARC103") == []


def test_a_program_for_the_old_losses_is_old() -> None:
    text = "import torch\nrow = torch.arange(9) / 3\nprint({})\n"
    for mark in ("f(volatile=True)", "f(size_average=True)", "total_loss2.data[0]"):
        assert found(text.format(mark), "ARC107") == [("ARC107", 2)]
    for other in ("volatile", "f(average=True)", "total.data[0]"):
        assert found(text.format(other), "ARC107") == []
