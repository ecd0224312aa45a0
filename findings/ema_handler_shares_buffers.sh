#!/usr/bin/env bash
# Buffers of the averaged model under ignite.handlers.EMAHandler.
#
# Version: pytorch-ignite 0.5.5, torch 2.13.0 (CPU build), Python 3.11, seen on 2026-11-30.
# Expected: handle_buffers="copy", the default, copies the buffers of the online model at each update,
#           as the documentation says and as torch's AveragedModel does. What is done to ema_model
#           leaves the online model as it is.
# Seen:     from the first update on, both models share the memory of their buffers. With an update
#           at every fourth iteration, the averaged model's BatchNorm statistics still change at
#           each iteration. torch.optim.swa_utils.update_bn(loader, ema_model), and
#           ema_model.load_state_dict of an older checkpoint, replace the running statistics of the
#           model in training: its running_mean of about 3 becomes -5 and 7. No warning. With
#           handle_buffers="update" the integer buffers are shared.
# The script fails if one of these outcomes changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    pytorch-ignite==0.5.5 torch==2.13.0 numpy==2.2.6
cat > "$folder/case.py" <<'PYTHON'
import torch
from ignite.engine import Engine, Events
from ignite.handlers import EMAHandler
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn


def train(handle_buffers):
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(2, momentum=0.5))
    handler = EMAHandler(net, momentum=0.1, handle_buffers=handle_buffers)
    engine = Engine(lambda _, batch: net(batch))
    handler.attach(engine, event=Events.ITERATION_COMPLETED(every=4))
    means = []
    engine.add_event_handler(
        Events.ITERATION_COMPLETED,
        lambda _: means.append(round(handler.ema_model[0].running_mean[0].item(), 2)),
    )
    engine.run([torch.randn(64, 2) + 3 for _ in range(10)])
    return net, handler.ema_model, means


def mean_of(net):
    return round(net[0].running_mean[0].item())


net, ema_model, means = train("copy")
print(f"averaged model's running_mean after each iteration, updated at 4 and 8: {means}")
assert means[:3] == [0, 0, 0] and len(set(means[3:])) == 7
assert mean_of(net) == 3

update_bn([torch.randn(64, 2) - 5], ema_model)
print(f"online model's running_mean after update_bn of the averaged model: {mean_of(net)}")
assert mean_of(net) == -5

older = {name: torch.full_like(value, 7) for name, value in ema_model.state_dict().items()}
ema_model.load_state_dict(older)
print(f"and after load_state_dict of the averaged model: {mean_of(net)}")
assert mean_of(net) == 7

net, ema_model, means = train("update")
counts = [one[0].num_batches_tracked for one in (net, ema_model)]
print(f'"update": means {means}, num_batches_tracked {[one.item() for one in counts]}')
assert len(set(means)) == 3 and counts[0].data_ptr() == counts[1].data_ptr()

net = nn.Sequential(nn.BatchNorm1d(2, momentum=0.5))
averaged = AveragedModel(net)
net(torch.randn(64, 2) + 3)
averaged.update_parameters(net)
before = mean_of(net)
update_bn([torch.randn(64, 2) - 5], averaged)
print(f"torch's AveragedModel: online model's running_mean {before}, then {mean_of(net)}")
assert mean_of(net) == before
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/case.py"
