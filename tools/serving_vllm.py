"""vLLM for serving_checks.py: its classes on a CPU, without its kernels."""
import os

import torch

from serving_standins import stand_in

OPTION = "enable_mixed_moe_lora_format"  # and is_3d_lora_weight in the request: takes experts in one tensor


def helps(result):
    return OPTION in result


def prepare(folder):
    """Makes vLLM importable, on a CPU, as the only process. The folder must stay: the process group has its file there."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    stand_in("xgrammar", "llguidance", "outlines_core", "mcp", "anthropic", "tvm_ffi", "flashinfer")
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform
    vllm.platforms._current_platform = CpuPlatform()
    import vllm.model_executor.models.registry as registry
    registry._run_in_subprocess = lambda function: function()
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.lora.layers import fused_moe
    from vllm.model_executor.layers.fused_moe import config as fused_config

    class Xpu(CpuPlatform):  # vLLM has experts without a gate on GPUs alone; nothing is computed here
        def is_xpu(self):
            return True

    fused_config.current_platform = Xpu()

    def start(layer, base_layer):  # what FusedMoEWithLoRA does, but for the choice of a GPU's kernel
        super(fused_moe.FusedMoEWithLoRA, layer).__init__()
        layer.base_layer, layer.moe_config = base_layer, base_layer.moe_config
        layer.tp_size, layer.tp_rank, layer.device = 1, 0, "cpu"
        layer._w13_slices = 2 if base_layer.moe_config.is_act_and_mul else 1
        layer._shared_experts, layer.enable_moe_shared_loras = base_layer._shared_experts, False

    fused_moe.FusedMoEWithLoRA.__init__ = start
    fused_moe.FusedMoEWithLoRA.set_mapping = lambda layer, wrapper: None  # only kernels read it
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        initialize_model_parallel(1, 1)


class Engine:
    """A model in vLLM, and an adapter for it if one is given."""

    def __init__(self, model, adapter=None, option=False):
        from vllm import config
        self.adapter, self.fused = adapter, option
        lora = config.LoRAConfig(max_lora_rank=16, max_loras=1, max_cpu_loras=16, lora_dtype=torch.float32,
                                 enable_mixed_moe_lora_format=option)
        try:
            self.start(model, lora)  # without LoRA vLLM would look for experts' kernels, which a CPU lacks for gpt-oss
        except ValueError as error:
            if adapter or "LoRA is not supported" not in str(error):
                raise
            self.start(model, None)

    def start(self, model, lora):
        from vllm import config
        from vllm.model_executor.model_loader.utils import initialize_model
        self.config = config.VllmConfig(
            model_config=config.ModelConfig(model=str(model), skip_tokenizer_init=True, dtype="float32", max_model_len=64,
                                            enforce_eager=True),
            device_config=config.DeviceConfig("cpu"), lora_config=lora)
        self.current = lambda: config.set_current_vllm_config(self.config)
        with self.current():
            self.model = initialize_model(self.config)

    def load_weights(self, weights):
        with self.current():
            self.model.load_weights(weights)

    def changes(self):
        """B A of the adapter by parameter, after all checks of vLLM."""
        from vllm.lora.request import LoRARequest
        from vllm.lora.worker_manager import WorkerLoRAManager
        with self.current():
            worker = WorkerLoRAManager(self.config, "cpu", getattr(self.model, "embedding_modules", {}))
            worker.create_lora_manager(self.model, self.config)
        manager = worker._adapter_manager
        request = LoRARequest(self.adapter.name, 1, str(self.adapter), is_3d_lora_weight=self.fused)
        manager.add_adapter(worker._load_adapter(request))
        manager.activate_adapter(1)
        found = {}
        for module, layer in manager.modules.items():
            if hasattr(layer, "w13_lora_a_stacked"):
                for part in ("w13", "w2"):
                    pairs = zip(getattr(layer, f"{part}_lora_a_stacked"), getattr(layer, f"{part}_lora_b_stacked"))
                    found[f"{module}.routed_experts.{part}_weight"] = torch.cat([b[0] @ a[0] for a, b in pairs], dim=1)
            elif isinstance(layer.lora_a_stacked, tuple):  # others are embeddings, which these adapters leave alone
                pairs = zip(layer.lora_a_stacked, layer.lora_b_stacked)
                found[f"{module}.weight"] = torch.cat([b[0, 0] @ a[0, 0] for a, b in pairs])
        return found
