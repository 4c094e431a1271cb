"""What the tools of reference cases share: loading a model, a pass through it, half an ulp of its weights, measures of errors."""
import torch
import transformers

IGNORED = -100
# The first and second weights of all experts of a layer; without a gate the first is up alone.
FIRST_OF_EXPERTS = ("experts.gate_up_proj", "experts.up_proj")
EXPERTS = (*FIRST_OF_EXPERTS, "experts.down_proj")
# PEFT refuses these for such models: kernels of theirs read the weight itself, past an adapter.
NOT_FOR_PEFT = {"nemotron_h": ("out_proj",)}


def plain(tensors):
    return {name: tensor.detach().float().contiguous().clone() for name, tensor in tensors.items()}


def class_of(path):
    """The class that config.json names: AutoModelForCausalLM does not know text models with a vision tower beside them.
    Kimi-K2.5's files spell theirs otherwise than transformers."""
    config = transformers.AutoConfig.from_pretrained(path)
    named = getattr(transformers, config.architectures[0], None)
    return named or transformers.AutoModelForImageTextToText._model_mapping[type(config)]


def load(path, dtype=torch.float32):
    model = class_of(path).from_pretrained(path, dtype=dtype, attn_implementation="eager")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.train()


def forward(model, tokens, labels, aux):
    """A pass, with the loss of its logits in float64."""
    out = model(input_ids=tokens, use_cache=False, **({"output_router_logits": True} if aux else {}))
    out.loss = cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), "mean")
    if aux:
        out.loss = out.loss + model.config.get_text_config().router_aux_loss_coef * out.aux_loss
    return out


def gradients(model):
    """The gradients of the model, which has none afterwards."""
    result = plain({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    model.zero_grad()
    return result


def jitter(model, seed):
    """Moves every weight by half an ulp up or down. Float32 has no such number, so each is rounded at random: half of
    them move by an ulp, the others stay."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            draw = torch.randint(0, 4, p.shape, generator=generator, dtype=torch.uint8)
            towards = torch.where(draw == 0, torch.inf, -torch.inf)
            p.copy_(torch.where(draw < 2, torch.nextafter(p, towards.to(p)), p))


def cross_entropy(logits, targets, reduction):
    """In float64: the probabilities of a vocabulary of 49,152, in float32 on a CPU, sum to 1 + 6e-6, which losses show, and
    gradients more: what all logits have in common, cancels only if they sum to 1."""
    return torch.nn.functional.cross_entropy(logits.double(), targets, reduction=reduction, ignore_index=IGNORED)


def ratio(a, b):
    """a / b, with 0 / 0 = 0."""
    return 0.0 if a == 0 else a / b if b != 0 else float("inf")


def norm(tensors):
    return sum((tensor.double()**2).sum().item() for tensor in tensors)**0.5


def shorten(value):
    return float(f"{value:.4g}")
