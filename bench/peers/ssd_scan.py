"""Time of mamba-ssm's Triton scan, beside `hone bench ops --op ssd_scan`.

    python3 bench/peers/ssd_scan.py [--tokens 4 4096] [--deterministic]

Needs torch, triton, einops and the Triton part of mamba-ssm (mamba_ssm/ops/triton and mamba_ssm/utils of its source package,
below an empty mamba_ssm/__init__.py). The first run compiles every configuration that it tries, which takes minutes.
"""
import argparse
import os

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tokens", type=int, nargs=2, default=[4, 4096], metavar=("ROWS", "LENGTH"))
parser.add_argument("--deterministic", action="store_true")
options = parser.parse_args()
if options.deterministic:
    os.environ["MAMBA_DETERMINISTIC"] = "1"

import torch  # noqa: E402
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined  # noqa: E402

# heads, their size, groups, state: granite-4.0-h-tiny, Nemotron-3-Nano
SHAPES = [(48, 64, 1, 128), (64, 64, 8, 128)]


def milliseconds(run, repeats=20):
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[repeats // 2]


torch.manual_seed(0)
rows, length = options.tokens
for heads, dim, groups, state in SHAPES:
    random = lambda *shape: torch.randn(rows, length, *shape, device="cuda", dtype=torch.bfloat16)
    x, b, c = random(heads, dim).requires_grad_(), random(groups, state).requires_grad_(), random(groups, state).requires_grad_()
    dt = random(heads).requires_grad_()
    a, bias, skip = (-torch.rand(heads, device="cuda") * 16).requires_grad_(), torch.zeros(heads, device="cuda"), torch.ones(heads, device="cuda")
    bias.requires_grad_()
    skip.requires_grad_()
    dout = random(heads, dim)

    def forward():
        return mamba_chunk_scan_combined(x, dt, a, b, c, 256, D=skip, dt_bias=bias, dt_softplus=True)

    def backward():
        y.backward(dout, retain_graph=True)
        for tensor in (x, dt, a, b, c, bias, skip):
            tensor.grad = None

    y = forward()
    print(f"{heads} heads of {dim}, {groups} groups, state {state}: forward {milliseconds(forward):.3f} ms, backward {milliseconds(backward):.3f} ms")
