"""Whole programs in the style of 2017, before and after."""

import ast

from checked_texts import fixed, found

from anyrig.migration.python2 import find_repairs

TRAINING = """\
from __future__ import print_function
import torch
import torch.nn.functional as F
from torch.autograd import Variable


def train(epoch, model, loader, optimizer):
    model.train()
    for step, (data, target) in enumerate(loader):
        data, target = data.cuda(), target.cuda(async=True)  # to the GPU
        data, target = Variable(data), Variable(target)
        loss = F.nll_loss(F.log_softmax(model(data)), target)
        loss.backward()
        optimizer.step()
        print("{}: {:.3f}".format(step, loss.data[0]))


def test(model, loader, criterion):
    model.eval()
    total, correct = 0, 0
    for data, target in loader:
        data, target = Variable(data.cuda(), volatile=True), Variable(target.cuda())
        output = model(data)
        total += criterion(output, target).data[0]
        pred = output.data.max(1)[1]
        correct += pred.eq(target.data).cpu().sum()
    print("mean %f, %d correct" % (total / len(loader), correct))
"""
TRAINING_TODAY = """\
from __future__ import print_function
import torch
import torch.nn.functional as F


def train(epoch, model, loader, optimizer):
    model.train()
    for step, (data, target) in enumerate(loader):
        data, target = data.cuda(), target.cuda(non_blocking=True)  # to the GPU
        loss = F.nll_loss(F.log_softmax(model(data), dim=1), target)
        loss.backward()
        optimizer.step()
        print("{}: {:.3f}".format(step, loss.item()))


@torch.no_grad()
def test(model, loader, criterion):
    model.eval()
    total, correct = 0, 0
    for data, target in loader:
        data, target = data.cuda(), target.cuda()
        output = model(data)
        total += criterion(output, target).item()
        pred = output.detach().max(1)[1]
        correct += pred.eq(target.detach()).cpu().sum().item()
    print("mean %f, %d correct" % (total / len(loader), correct))
"""


def test_a_training_and_its_test() -> None:
    assert fixed(TRAINING, "ARC0", "ARC1") == TRAINING_TODAY
    assert found(TRAINING_TODAY, "ARC0", "ARC1") == []


def test_lines_are_those_of_the_file() -> None:
    assert found(TRAINING, "ARC002", "ARC101", "ARC103") == [
        ("ARC002", 10),
        ("ARC101", 11),
        ("ARC101", 11),
        ("ARC103", 15),
        ("ARC101", 22),
        ("ARC103", 24),
    ]


def test_evaluation_in_a_function_that_also_trains() -> None:
    """Only the loop that evaluates is put under `no_grad`, strings inside it stay as they are."""
    program = '''\
    import torch
    from torch.autograd import Variable

    def main(model, train_loader, dev_loader, optimizer):
        for x, y in train_loader:
            model(x).sum().backward()
            for u, v in dev_loader:
                u = Variable(u, volatile=True)

                print("""u
    is""", model(u))
            optimizer.step()
    '''
    expected = '''\
import torch

def main(model, train_loader, dev_loader, optimizer):
    for x, y in train_loader:
        model(x).sum().backward()
        with torch.no_grad():
            for u, v in dev_loader:

                print("""u
is""", model(u))
        optimizer.step()
'''
    assert fixed(program, "ARC101", "ARC102") == expected


def test_a_function_that_calls_a_training_one_is_not_put_under_no_grad() -> None:
    program = """\
    import torch
    from torch.autograd import Variable

    def step(model, x):
        model(x).sum().backward()

    def main(model, loader):
        sample = Variable(torch.ones(3), volatile=True)
        for x in loader:
            step(model, x)
        model(sample)
    """
    assert "no_grad" not in fixed(program, "ARC102")
    assert "sample = torch.ones(3)\n" in fixed(program, "ARC102")


def test_volatile_by_an_argument() -> None:
    """The callers that ask for it are put under `no_grad`."""
    program = """\
    import torch
    from torch.autograd import Variable

    def get_batch(source, i, evaluation=False):
        data = Variable(source[i:i + 5], volatile=evaluation)
        return data

    def evaluate(model, source):
        data = get_batch(source, 0, evaluation=True)
        return model(data)

    def train(model, source):
        data = get_batch(source, 0)
        model(data).sum().backward()
    """
    after = fixed(program, "ARC102")
    assert after.count("@torch.no_grad()\ndef evaluate") == after.count("no_grad") == 1
    assert "    data = source[i:i + 5].detach()\n" in after


def test_a_hidden_state_is_detached() -> None:
    program = """\
    from torch.autograd import Variable

    def repackage(h):
        if type(h) == Variable:
            return Variable(h.data)
        return tuple(repackage(v) for v in h)
    """
    expected = (
        "import torch\n\ndef repackage(h):\n    if isinstance(h, torch.Tensor):\n"
        "        return h.data\n    return tuple(repackage(v) for v in h)\n"
    )
    assert fixed(program) == expected


def test_what_may_have_a_graph_is_detached() -> None:
    assert "y = x.detach()\n" in fixed(
        "from torch.autograd import Variable\n\ndef f(x):\n    y = Variable(x)\n    return y\n"
    )
    assert "(x + 1).detach().requires_grad_().cuda()" in fixed(
        "from torch.autograd import Variable\n\ndef f(x):\n"
        "    return Variable(x + 1, requires_grad=True).cuda()\n",
        "ARC101",
    )


def test_a_program_of_python_2() -> None:
    program = """\
    import torch

    def main(depth, loader):
        assert depth % 6 == 0
        n = depth / 6
        for step in xrange(n):
            try:
                print 'step', step,
                x = iter(loader).next()
            except (ValueError, KeyError), error:
                print >>log, "bad", error
                raise RuntimeError, "stopped"
            if step <> 0: print
    """
    after = fixed(program)
    ast.parse(after)
    assert after == (
        "import torch\n\ndef main(depth, loader):\n    assert depth % 6 == 0\n    n = depth // 6\n"
        "    for step in range(n):\n        try:\n            print('step', step, end=\" \")\n"
        "            x = next(iter(loader))\n        except (ValueError, KeyError) as error:\n"
        '            print("bad", error, file=log)\n            raise RuntimeError("stopped")\n'
        "        if step != 0: print()\n"
    )


def test_two_exceptions_of_python_3_14() -> None:
    assert find_repairs("try:\n    pass\nexcept OSError, ValueError:\n    pass\n") == ()


def test_tabs_and_spaces_of_python_2() -> None:
    program = "import torch\n\ndef f(x):\n        if x:\n\t    print 'a\tb'\n"
    assert fixed(program) == "import torch\n\ndef f(x):\n        if x:\n            print('a\tb')\n"
