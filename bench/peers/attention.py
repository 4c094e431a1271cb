"""Time of FlashAttention-2 through torch, beside `hone bench ops --op attention --tokens 16384`.

    python3 bench/peers/attention.py [--repeats 30] [--shape 4 4096 32 4 128]

SHAPE is batch, tokens, query heads, key-value heads and elements of a head; causal, bfloat16. Medians; one dense attention
is counted as 4 T² d FLOPs a head forward, 10 T² d backward, and a causal one as half of it.
"""
import argparse
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--repeats", type=int, default=30)
parser.add_argument("--shape", type=int, nargs=5, action="append", metavar=("B", "T", "H", "K", "D"))
options = parser.parse_args()


def median_ms(run):
    times = []
    for i in range(options.repeats + 5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if i >= 5:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


torch.manual_seed(0)
print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}")
for batch, tokens, heads, kv_heads, dim in options.shape or [(4, 4096, 32, 4, 128), (4, 4096, 16, 4, 64), (4, 4096, 16, 2, 256)]:
    for shared in (False, True):
        def tensor(of_heads):
            return torch.randn(batch, of_heads, tokens, dim, device="cuda", dtype=torch.bfloat16).requires_grad_()

        q, k, v = tensor(heads), tensor(kv_heads if shared else heads), tensor(kv_heads if shared else heads)
        dout = torch.randn(batch, heads, tokens, dim, device="cuda", dtype=torch.bfloat16)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            def forward():
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)

            out = forward()
            forward_ms = median_ms(forward)
            backward_ms = median_ms(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
        flops = 4 * batch * heads * tokens**2 * dim / 2
        keys = f"{kv_heads} key-value heads" if shared else "key-value heads repeated"
        print(f"{batch} x {tokens}, {heads} heads of {dim}, {keys}: forward {forward_ms:.3f} ms {flops / forward_ms / 1e9:.0f} TFLOP/s, "
              f"backward {backward_ms:.3f} ms {2.5 * flops / backward_ms / 1e9:.0f} TFLOP/s")
