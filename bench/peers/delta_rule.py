"""Time of flash-linear-attention's chunked gated delta rule, beside `hone bench ops --op gated_delta_rule`.

    python3 bench/peers/delta_rule.py [--tokens 16384] [--documents 1 500]

Needs torch, triton, einops and flash-linear-attention. The package refuses its backward pass on Hopper under Triton before
3.7.1, because of results there; --any-triton runs it all the same, since only the time is asked for. The first run compiles
every configuration that it tries, which takes minutes.
"""
import argparse
import torch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tokens", type=int, default=16384)
parser.add_argument("--documents", type=int, nargs="+", default=[1, 500])
parser.add_argument("--any-triton", action="store_true")
options = parser.parse_args()
if options.any_triton:
    import fla.ops.common.chunk_o
    fla.ops.common.chunk_o.IS_NVIDIA_HOPPER = False
from fla.ops.gated_delta_rule import chunk_gated_delta_rule

KEY_HEADS, VALUE_HEADS, DIM = 16, 32, 128


def milliseconds(run, repeats=10):
    for _ in range(3):
        run()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


torch.manual_seed(0)
for documents in options.documents:
    random = lambda heads, *dim: torch.randn(1, options.tokens, heads, *dim, device="cuda", dtype=torch.bfloat16)
    q, k, v = (random(heads, DIM).requires_grad_() for heads in (KEY_HEADS, KEY_HEADS, VALUE_HEADS))
    g = (-torch.rand(1, options.tokens, VALUE_HEADS, device="cuda")).requires_grad_()
    beta = torch.rand(1, options.tokens, VALUE_HEADS, device="cuda", dtype=torch.bfloat16).requires_grad_()
    borders = torch.tensor([options.tokens * i // documents for i in range(documents + 1)], device="cuda")
    dout = random(VALUE_HEADS, DIM)

    def forward():
        return chunk_gated_delta_rule(q, k, v, g=g, beta=beta, cu_seqlens=borders, use_qk_l2norm_in_kernel=True)[0]

    def both():
        forward().backward(dout)
        for tensor in (q, k, v, g, beta):
            tensor.grad = None

    print(f"documents {documents}: forward {milliseconds(forward):.3f} ms, forward and backward {milliseconds(both):.3f} ms")
