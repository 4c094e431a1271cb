"""Makes tests/fixtures/sharded: what torch.distributed.checkpoint writes of small models on two processes.

    pip install torch transformers peft
    python tools/make_sharded_checkpoints.py tests/fixtures/sharded

Each case has `model` (the pretrained one), `pytorch_model_fsdp_0` (the sharded checkpoint of the tuned one) and `tuned`
(the tuned one as save_pretrained writes it).
"""
import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from peft import LoraConfig, get_peft_model
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

RANKS = 2
SIZES = dict(vocab_size=12, hidden_size=8, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2,
             num_key_value_heads=1, head_dim=4, num_experts_per_tok=2, max_position_embeddings=32)


def mixtral():
    torch.manual_seed(3)
    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4))


def qwen3_moe():
    torch.manual_seed(3)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, num_experts=4, moe_intermediate_size=6,
                                              tie_word_embeddings=False))


def tune(model, only=""):
    """Other values, the same on every rank."""
    torch.manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only in name:
                parameter.copy_(torch.randn_like(parameter))


def save(state, rank):
    dcp.save({"model": state}, storage_writer=dcp.FileSystemWriter("pytorch_model_fsdp_0"))
    dist.barrier()


def save_pretrained(model, folder, rank):
    if rank == 0:
        model.save_pretrained(folder)


def fsdp2_qwen3_moe(mesh, rank):
    """All parameters sharded by FSDP2, in bfloat16."""
    model = qwen3_moe().to(torch.bfloat16)
    save_pretrained(model, "model", rank)
    tune(model)
    save_pretrained(model, "tuned", rank)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    save(get_model_state_dict(model), rank)


def scattermoe_mixtral(mesh, rank):
    """ScatterMoE's names, its experts sharded by expert, others by their last dimension, below DDP's `module.`."""
    model = mixtral()
    save_pretrained(model, "model", rank)
    tune(model)
    save_pretrained(model, "tuned", rank)
    state = {}
    for name, value in model.state_dict().items():
        value = value.detach().clone()
        if name.endswith("experts.gate_up_proj"):
            module = name.replace("mlp.experts.gate_up_proj", "block_sparse_moe")
            gate, up = value.chunk(2, dim=1)
            state[module + ".w1.weight"] = gate.transpose(1, 2).contiguous()
            state[module + ".w3.weight"] = up.transpose(1, 2).contiguous()
        elif name.endswith("experts.down_proj"):
            module = name.replace("mlp.experts.down_proj", "block_sparse_moe")
            state[module + ".w2.weight"] = value.transpose(1, 2).contiguous()
        else:
            state[name.replace("mlp.gate.weight", "block_sparse_moe.router.weight")] = value
    for name, value in state.items():
        state[name] = distribute_tensor(value, mesh, [Shard(0 if value.dim() == 3 else value.dim() - 1)])
    save({"module." + name: value for name, value in state.items()}, rank)


def lora(base, mesh, rank, **targets):
    """A PEFT model sharded by FSDP2, base and adapter."""
    save_pretrained(base, "model", rank)
    model = get_peft_model(base, LoraConfig(r=2, lora_alpha=4, **targets))
    tune(model, "lora_")
    save_pretrained(model, "tuned", rank)
    fully_shard(model, mesh=mesh)
    save(get_model_state_dict(model), rank)


def fsdp2_lora(mesh, rank):
    lora(mixtral(), mesh, rank, target_modules=["q_proj", "v_proj"])


def fsdp2_lora_experts(mesh, rank):
    """Adapters of a router and of all experts of a layer at once, which PEFT has by target_parameters alone."""
    lora(qwen3_moe(), mesh, rank, target_modules=["q_proj"],
         target_parameters=["mlp.gate.weight", "experts.gate_up_proj", "experts.down_proj"])


def work(rank, root):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    for case in (fsdp2_qwen3_moe, scattermoe_mixtral, fsdp2_lora, fsdp2_lora_experts):
        folder = os.path.join(root, case.__name__)
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)  # relative paths, so that the metadata do not name this machine's folders
        case(mesh, rank)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    out = os.path.abspath(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    mp.spawn(work, args=(out,), nprocs=RANKS)
    for case in ("fsdp2_lora", "fsdp2_lora_experts"):
        os.remove(os.path.join(out, case, "tuned/README.md"))
