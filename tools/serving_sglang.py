"""SGLang for serving_checks.py: its classes on a CPU, without its kernels."""
import os
import types

import torch

from serving_standins import stand_in

OPTION = "moe_runner_backend=triton"  # has LoRA for experts; SGLang itself chooses others for some models


def helps(result):
    return "does not expose quant info" in result


def unpinned(function):
    """The function without pin_memory, which needs a GPU."""
    return lambda *arguments, **options: function(*arguments, **{k: v for k, v in options.items() if k != "pin_memory"})


def prepare(folder):
    """Makes SGLang importable, on a CPU, as the only process. The folder must stay: the process group has its file there."""
    os.environ.update(HF_HUB_OFFLINE="1", SGLANG_USE_CPU_ENGINE="1")
    stand_in("sgl_kernel")
    torch.Tensor.pin_memory = lambda tensor, *device: tensor
    for name in ("tensor", "zeros", "empty"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    from sglang.srt import utils
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.moe.fused_moe_triton import layer
    from sglang.srt.layers.rotary_embedding import factory
    torch.cuda.current_device = lambda: "cpu"
    from sglang.srt.models import qwen3_moe  # and all layers, as on a CPU
    layer._is_cpu = False  # where a CPU's kernels want weights packed otherwise than a GPU's
    factory.get_rope_cpu = lambda *arguments: factory.get_rope(*arguments[:-1])  # a CPU's knows one kind of RoPE
    publish("dummy")
    is_cpu, utils.is_cpu = utils.is_cpu, lambda: False  # these read fields that a CPU's server adds to config.json
    import sglang.srt.models.qwen3_5
    import sglang.srt.models.qwen3_next
    utils.is_cpu = is_cpu
    init_distributed_environment(backend="gloo", world_size=1, rank=0, local_rank=0,
                                 distributed_init_method=f"file://{folder}/rendezvous")
    initialize_model_parallel()


def publish(model, **options):
    """The server's options for a model, for all of SGLang that is called from now on."""
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs
    arguments = ServerArgs(model_path=str(model), device="cpu", dtype="float32", skip_tokenizer_init=True, context_length=64,
                           mamba_radix_cache_strategy="no_buffer", disable_overlap_schedule=True, **options)
    if options:
        arguments.resolve_once()
        arguments.check_server_args()
    runtime_context.publish(arguments, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0))
    return arguments


class Engine:
    """A model in SGLang, and an adapter for it if one is given."""

    def __init__(self, model, adapter=None, option=False):
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.layers.dp_attention import initialize_dp_attention
        from sglang.srt.layers.moe.utils import initialize_moe_config
        from sglang.srt.model_loader.loader import _initialize_model
        lora = dict(lora_paths={"adapter": str(adapter)}, lora_backend="torch_native", max_loras_per_batch=2,
                    moe_runner_backend="triton" if option else "auto") if adapter else {}
        self.arguments = publish(model, **lora)
        initialize_dp_attention(server_args=self.arguments)
        initialize_moe_config()
        self.config = ModelConfig.from_server_args(self.arguments)
        self.model = _initialize_model(self.config, LoadConfig())

    def load_weights(self, weights):
        self.model.load_weights(weights)

    def changes(self):
        """What the adapter adds to each parameter, after all checks of SGLang: its LoRA layers' answer to the identity, and of
        experts B A of the tensors that its kernels read."""
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.lora.lora_manager import LoRAManager
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.runtime_context import get_lora
        options = get_lora()
        manager = LoRAManager(self.model, self.config.hf_config, options.max_loras_per_batch, LoadConfig(), torch.float32,
                              self.arguments, options.lora_backend, options.max_lora_rank, options.lora_target_modules,
                              options.lora_paths)
        adapter = options.lora_paths[0].lora_id
        manager.fetch_new_loras({adapter})
        slot = manager.memory_pool.get_buffer_id(adapter)
        found = {}
        for name, layer in ((n, l) for layers in manager.lora_modules for n, l in layers.items()):
            if hasattr(layer, "gate_up_lora_a_weights"):
                for part, key in (("gate_up", "w13_weight"), ("down", "w2_weight")):
                    a, b = (getattr(layer, f"{part}_lora_{side}_weights")[slot] for side in "ab")
                    found[f"{name}.{key}"] = products(a, b, part == "gate_up" and layer._uses_interleaved_gate_up)
            else:
                outputs, inputs = layer.base_layer.weight.shape
                batch = types.SimpleNamespace(forward_mode=ForwardMode.EXTEND, batch_size=1, lora_ids=[adapter],
                                              extend_num_tokens=inputs, extend_seq_lens_cpu=[inputs],
                                              extend_seq_lens=torch.tensor([inputs], dtype=torch.int32))
                manager.prepare_lora_batch(batch)
                found[f"{name}.weight"] = layer.apply_lora(torch.zeros(inputs, outputs), torch.eye(inputs)).T
        return found


def products(a, b, interleaved):
    """B A of stacked projections: a [experts, projections * rank, in], b [experts, projections * out, rank], whose rows come one
    of each projection in turn if interleaved."""
    count = a.shape[1] // b.shape[-1]
    rows = b.unflatten(1, (-1, count) if interleaved else (count, -1))
    changes = [rows.select(2 if interleaved else 1, i) @ part for i, part in enumerate(a.chunk(count, dim=1))]
    return torch.stack(changes, dim=2 if interleaved else 1).flatten(1, 2)
