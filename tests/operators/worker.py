"""A process that reads entry numbers from stdin, checks each and writes its outcome as JSON."""

import argparse
import faulthandler
import gc
import json
import os
import sys

from anyrig.virtual import install

RIG = "2xH100-SXM"
DEVICE = "cuda:1"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", required=True)
    parser.add_argument("--most-samples", type=int)
    arguments = parser.parse_args()
    # Some operators print, but the parent expects outcomes only.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()

    install(RIG)
    import torch
    from entry import check_entry
    from torch.testing._internal.common_methods_invocations import op_db
    from variants import VARIANTS

    torch.set_num_threads(1)
    device = torch.device(DEVICE)
    # cuBLAS keeps a workspace for each thread that computes a product, including autograd's, and
    # cuBLASLt, which adds biases, has one of its own.
    one = torch.ones(1, 1, device=device, requires_grad=True)
    torch.addmm(one[0], one, one).backward()
    del one
    gc.freeze()  # each entry collects garbage to find leaked device memory
    for line in sys.stdin:
        outcome = check_entry(
            op_db[int(line)], VARIANTS[arguments.variant], device, arguments.most_samples
        )
        answers.write(json.dumps(outcome.as_dict()) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
