"""Puts the experts of a transformers model on the CPU by libhone: the block of a Qwen3-MoE keeps its router, and Hone computes the
experts, with LoRA on them. Compares outputs and gradients with the block as it was: python3 examples/library/moe_block.py"""
import numpy
import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

import hone


class HoneExperts(torch.nn.Module):
    """The frozen experts of a block, in the place of its `experts` module; `lora` holds their adapters as parameters of torch."""

    def __init__(self, experts, *, weight_dtype="dtype", lora_r=8):
        super().__init__()
        gate_up, down = experts.gate_up_proj.detach(), experts.down_proj.detach()
        count, hidden, intermediate = down.shape
        dtype = str(down.dtype).replace("torch.", "")
        self.layer = hone.Experts(count, hidden, intermediate, dtype=dtype, weight_dtype=weight_dtype, lora_r=lora_r)
        for e in range(count):
            gate, up = gate_up[e].chunk(2)
            self.layer.set(e, gate.contiguous(), up.contiguous(), down[e].contiguous())
        # Adapters and their gradients are in the library's memory: torch's optimizers step them in place.
        self.lora = torch.nn.ParameterDict()
        for part in ("gate", "up", "down") if lora_r else ():
            for factor in ("lora_a", "lora_b"):
                name = f"{part}.{factor}"
                parameter = torch.nn.Parameter(torch.from_numpy(numpy.asarray(self.layer.tensor(name))))
                parameter.grad = torch.from_numpy(numpy.asarray(self.layer.tensor(name + ".grad")))
                if factor == "lora_a":
                    torch.nn.init.kaiming_uniform_(parameter.data, a=5**0.5)
                self.lora[name.replace(".", "_")] = parameter

    def forward(self, x, ids, weights):
        return _Pass.apply(x, weights, ids, self.layer)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weights, ids, layer):
        context.layer, context.dtype = layer, weights.dtype
        out = torch.empty_like(x)
        layer.forward(x.contiguous(), ids.contiguous(), weights.float().contiguous(), out, training=torch.is_grad_enabled() or
                      x.requires_grad or weights.requires_grad)
        layer.sync()
        context.shapes = x.shape, weights.shape
        return out

    @staticmethod
    def backward(context, dout):
        dx, dweights = torch.empty_like(dout), torch.empty(context.shapes[1])
        context.layer.backward(dout.contiguous(), dx, dweights)
        context.layer.sync()
        return dx, dweights.to(context.dtype), None, None


def output_of(block, x):
    out = block(x)
    return out[0] if isinstance(out, tuple) else out


def difference(a, b):
    return ((a - b).norm() / b.norm()).item()


def main():
    torch.manual_seed(0)
    config = Qwen3MoeConfig(hidden_size=128, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True)
    config._experts_implementation = "eager"
    block = Qwen3MoeSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    x = torch.randn(2, 24, 128)
    results = []
    for replaced in (False, True):
        if replaced:
            block.experts = HoneExperts(block.experts)
        given = x.clone().requires_grad_()
        out = output_of(block, given)
        block.gate.weight.grad = None
        (out * torch.linspace(-1, 1, 128)).sum().backward()
        results.append((out.detach(), given.grad, block.gate.weight.grad.clone()))
    for name, eager, ours in zip(("output", "gradient of x", "gradient of the router"), *results):
        found = difference(ours, eager)
        print(f"{name}: relative difference {found:.1e}")
        assert found < 1e-5, name
    optimizer = torch.optim.AdamW(block.experts.lora.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        block.experts.layer.zero_grad()
        loss = output_of(block, x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"adapters learn: {losses[0]:.4f} to {losses[-1]:.4f}")
    assert losses[-1] < 0.9 * losses[0]


if __name__ == "__main__":
    main()
