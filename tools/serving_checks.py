"""Loads merged models and adapters of Hone with the code of vLLM, without a GPU and without running a model.

    pip download --no-deps vllm && unzip -q vllm-*.whl -d vllm
    python3 tools/serving_checks.py build/hone vllm tests/fixtures/goldens/qwen3_moe [more cases]

Needs torch, transformers and the pure Python packages that vLLM imports; its compiled modules are not needed, and packages in
STAND_INS are replaced by empty ones. For each case Hone trains LoRA in several forms and merges it, all in float32. A row is

- model: vLLM's class of the architecture reads the files of the text model. Every element of its parameters must have been
  written, and each tensor of the files must change one.
- an adapter: vLLM's own checks of adapter_config.json and of names, then its LoRA layers. B A of every layer, scaled as vLLM
  will apply it, must be the merged model's weights less the base's, both as vLLM has read them.

"refused" is what vLLM or Hone says of an adapter, and no failure. Exit code 1 if a row failed.
"""
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import traceback
import types

import torch
from safetensors.torch import load_file

STAND_INS = {"xgrammar", "llguidance", "outlines_core", "mcp", "anthropic", "tvm_ffi", "flashinfer"}
EXPERTS = "lora_target_modules=[attention,all-experts]"
ADAPTERS = {
    "attention": ["lora_target_modules=attention"],
    "rslora": ["lora_target_modules=attention", "use_rslora=true"],
    "ranks": ["lora_target_modules=attention", "lora_rank_pattern={layers.0.*: 2}"],
    "split": [EXPERTS, "expert_lora=split", "adapter_layout=split"],
    "target_parameters": [EXPERTS, "expert_lora=split", "adapter_layout=target_parameters"],
    "shared": [EXPERTS, "expert_lora=shared"],
    "sglang": [EXPERTS, "expert_lora=split", "adapter_layout=sglang"],
}
# Fields of released config.json files that transformers 5, which made the cases, does not write.
RELEASED = {"deepseek_v3": {"topk_method": "noaux_tc"}}
BOUND = 1e-5  # of the largest change of a weight; sums of at most a few products in float32


class Empty(type):
    """A class that has every name."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Nothing(metaclass=Empty):
    def __class_getitem__(cls, item):
        return cls


class StandIn(types.ModuleType):
    __path__ = []
    __version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds empty modules for names that nothing else finds."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in STAND_INS else None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def told(error):
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split()) or f"at {pathlib.Path(place.filename).name}:{place.lineno}"
    return f"{type(error).__name__}: {text}"[:500]


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)


def is_text(name):
    return not any(tower in name for tower in ("visual", "vision", "mm_projector", "multi_modal_projector"))


def read(model):
    files = sorted(model.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items() if is_text(name)}


def prepare_model(case, folder):
    shutil.copytree(case / "model", folder / "model")
    config = json.loads((case / "model" / "config.json").read_text())
    text = config.get("text_config", config)
    text.update(RELEASED.get(text["model_type"], {}))
    (folder / "model" / "config.json").write_text(json.dumps(config))


def train(hone, case, folder):
    """Adapters of folder/model, and beside them merged/NAME, by their names; or what Hone says."""
    batches = load_file(case / "batches.safetensors")
    ids, labels = batches["input_ids"], batches["labels"]
    rows = [{"input_ids": ids[i, b].tolist(), "labels": labels[i, b].tolist()} for i in range(4) for b in range(2)]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, options in ADAPTERS.items():
        try:
            run(hone, "train", f"model_name_or_path={folder / 'model'}", f"datasets={data}", "finetuning_type=lora", "lora_r=4",
                "max_length=256", "dtype=float32", "max_steps=3", "learning_rate=2e-2", "warmup_steps=0", "packing=false",
                "device=cpu", f"output_dir={folder / name}", *options)
        except RuntimeError as error:
            if EXPERTS not in options:
                raise
            yield name, f"refused by Hone, {told(error)}"  # no experts, or a form that they cannot have
            continue
        run(hone, "merge", "--model", folder / "model", "--adapter", folder / name, "--output", folder / "merged" / name)
        yield name, None


def prepare(source, folder):
    """Makes vLLM importable, on a CPU, as the only process. The folder must stay: the process group has its file there."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.meta_path.append(StandIns())
    sys.path.insert(0, source)
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
    torch.set_default_dtype(torch.float32)
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        initialize_model_parallel(1, 1)


class Engine:
    """A model in vLLM. `fused`: with the options for experts in one tensor."""

    def __init__(self, model, lora=True, fused=False):
        from vllm import config
        from vllm.model_executor.model_loader.utils import initialize_model
        lora = config.LoRAConfig(max_lora_rank=16, max_loras=1, max_cpu_loras=16, lora_dtype=torch.float32,
                                 enable_mixed_moe_lora_format=fused) if lora else None
        self.fused = fused
        self.config = config.VllmConfig(
            model_config=config.ModelConfig(model=str(model), skip_tokenizer_init=True, dtype="float32", max_model_len=64,
                                            enforce_eager=True),
            device_config=config.DeviceConfig("cpu"), lora_config=lora)
        self.current = lambda: config.set_current_vllm_config(self.config)
        with self.current():
            self.model = initialize_model(self.config)

    def load(self, tensors):
        """The parameters after the model's load_weights; NaN is where nothing was written."""
        with self.current(), torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.is_floating_point():
                    parameter.fill_(float("nan"))
            self.model.load_weights([(name, tensor.clone()) for name, tensor in tensors.items()])
        held = [*self.model.named_parameters(), *self.model.named_buffers()]
        return {name: value.detach().clone() for name, value in held if is_text(name)}

    def add_lora(self):
        """Replaces layers by vLLM's LoRA layers."""
        from vllm.lora.worker_manager import WorkerLoRAManager
        with self.current():
            self.worker = WorkerLoRAManager(self.config, "cpu", getattr(self.model, "embedding_modules", {}))
            self.worker.create_lora_manager(self.model, self.config)
        self.manager = self.worker._adapter_manager

    def changes(self, name, folder):
        """B A of an adapter by parameter, after all checks of vLLM."""
        from vllm.lora.request import LoRARequest
        self.manager.remove_all_adapters()
        request = LoRARequest(name, 1, str(folder), is_3d_lora_weight=self.fused)
        self.manager.add_adapter(self.worker._load_adapter(request))
        self.manager.activate_adapter(1)
        found = {}
        for module, layer in self.manager.modules.items():
            if hasattr(layer, "w13_lora_a_stacked"):
                for part in ("w13", "w2"):
                    pairs = zip(getattr(layer, f"{part}_lora_a_stacked"), getattr(layer, f"{part}_lora_b_stacked"))
                    found[f"{module}.routed_experts.{part}_weight"] = torch.cat([b[0] @ a[0] for a, b in pairs], dim=1)
            elif isinstance(layer.lora_a_stacked, tuple):  # others are embeddings, which these adapters leave alone
                pairs = zip(layer.lora_a_stacked, layer.lora_b_stacked)
                found[f"{module}.weight"] = torch.cat([b[0, 0] @ a[0, 0] for a, b in pairs])
        return found


def check_model(engine, tensors):
    parameters = engine.load(tensors)
    empty = [name for name, value in parameters.items() if value.isnan().any()]
    unused = []
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            other = engine.load({**tensors, name: tensor * 2 + 1})
            if all(torch.equal(value, other[key]) for key, value in parameters.items() if not value.isnan().any()):
                unused.append(name)
    problems = [f"not written: {', '.join(empty)}"] * bool(empty) + [f"without effect: {', '.join(unused)}"] * bool(unused)
    return f"FAILED, {'; '.join(problems)}" if problems else f"{len(tensors)} tensors"


def started(folder, names, fused=False):
    """An engine with LoRA layers, and the weights of the base and of the merged models as vLLM reads them."""
    engine = Engine(folder / "model", fused=fused)
    engine.before = engine.load(read(folder / "model"))
    engine.after = {name: engine.load(read(folder / "merged" / name)) for name in names}
    engine.add_lora()
    return engine


def check_adapter(engine, name, folder):
    found, before, after = engine.changes(name, folder / name), engine.before, engine.after[name]
    expected = {key: (after[key] - value).nan_to_num() for key, value in before.items()  # padding is not written
                if value.is_floating_point() and value.numel()}
    scale = max(change.abs().max().item() for change in expected.values())
    worst, wrong = 0.0, []
    for key, change in expected.items():
        error = (change - found.get(key, torch.zeros(()))).abs().max().item() / scale
        worst = max(worst, error)
        if not error <= BOUND:
            wrong.append(key)
    return f"FAILED {', '.join(wrong)}" if wrong else f"{worst:.1e} of the largest change"


def check(hone, case):
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        names = []
        prepare_model(case, folder)
        for name, refusal in train(hone, case, folder):
            if refusal:
                yield name, refusal
            else:
                names.append(name)
        merged = read(folder / "merged" / names[-1])
        try:
            yield "model", check_model(Engine(folder / "model"), merged)
            engine = started(folder, names)
        except ValueError as error:
            if "LoRA is not supported" not in str(error):
                raise
            yield "model", check_model(Engine(folder / "model", lora=False), merged)
            yield "adapters", "refused, vLLM has no LoRA for this architecture"
            return
        fused = []  # those that vLLM takes only with an option
        for name in names:
            try:
                yield name, check_adapter(engine, name, folder)
            except (AssertionError, ValueError) as error:
                yield name, f"refused, {told(error)}"
                if "enable_mixed_moe_lora_format" in str(error):
                    fused.append(name)
        if fused:
            engine = started(folder, fused, fused=True)
            for name in fused:
                yield f"{name}, enable_mixed_moe_lora_format", check_adapter(engine, name, folder)


def main():
    hone, source, *cases = sys.argv[1:]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        prepare(source, folder)
        for case in map(pathlib.Path, cases):
            try:
                for what, result in check(hone, case):
                    print(f"{case.name} {what}: {result}", flush=True)
                    failed |= result.startswith("FAILED")
            except Exception as error:  # one case must not hide the others
                print(f"{case.name}: FAILED {told(error)}", flush=True)
                failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
