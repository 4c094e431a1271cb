// The table of architectures and names of GGUF files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/text/json.h"
#include "models/gguf.h"
#include "weights/tensor_dims.h"

namespace hone {

const std::vector<GgufArchitecture>& gguf_architectures() {
  static const std::vector<GgufArchitecture> table = {
      {.name = "llama",
       .hf_class = "LlamaForCausalLM",
       .model_type = "llama",
       .also = {"MistralForCausalLM"},
       .turns_neighbours = true,
       .takes_factors = true},
      {.name = "llama",
       .hf_class = "MixtralForCausalLM",
       .model_type = "mixtral",
       .also = {},
       .experts = true,
       .turns_neighbours = true,
       .takes_factors = true,
       .count_field = "num_local_experts",
       .width_field = "intermediate_size",
       .width_is_dense = true},
      {.name = "qwen2", .hf_class = "Qwen2ForCausalLM", .model_type = "qwen2", .also = {}, .wide_heads = false},
      {.name = "qwen3", .hf_class = "Qwen3ForCausalLM", .model_type = "qwen3", .also = {}},
      {.name = "qwen2moe",
       .hf_class = "Qwen2MoeForCausalLM",
       .model_type = "qwen2_moe",
       .also = {},
       .experts = true,
       .may_tie = false,
       .wide_heads = false,
       .normalises = false},
      {.name = "qwen3moe",
       .hf_class = "Qwen3MoeForCausalLM",
       .model_type = "qwen3_moe",
       .also = {},
       .experts = true,
       .normalises = true},
      {.name = "olmoe",
       .hf_class = "OlmoeForCausalLM",
       .model_type = "olmoe",
       .also = {},
       .experts = true,
       .may_tie = false,
       .wide_heads = false,
       .shared_heads = false,
       .width_field = "intermediate_size",
       .width_is_dense = true,
       .normalises = false},
  };
  return table;
}

const std::vector<GgufName>& gguf_names() {
  using enum GgufPart;
  static const std::vector<GgufName> table = {
      {"embed_tokens.weight", "token_embd.weight"},
      {"norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"},
      {"layers.%.input_layernorm.weight", "blk.%.attn_norm.weight"},
      {"layers.%.self_attn.q_proj.weight", "blk.%.attn_q.weight", kHeads},
      {"layers.%.self_attn.q_proj.bias", "blk.%.attn_q.bias", kHeads},
      {"layers.%.self_attn.k_proj.weight", "blk.%.attn_k.weight", kHeads},
      {"layers.%.self_attn.k_proj.bias", "blk.%.attn_k.bias", kHeads},
      {"layers.%.self_attn.v_proj.weight", "blk.%.attn_v.weight"},
      {"layers.%.self_attn.v_proj.bias", "blk.%.attn_v.bias"},
      {"layers.%.self_attn.o_proj.weight", "blk.%.attn_output.weight"},
      {"layers.%.self_attn.o_proj.bias", "blk.%.attn_output.bias"},
      {"layers.%.self_attn.q_norm.weight", "blk.%.attn_q_norm.weight"},
      {"layers.%.self_attn.k_norm.weight", "blk.%.attn_k_norm.weight"},
      {"layers.%.post_attention_layernorm.weight", "blk.%.ffn_norm.weight"},
      {"layers.%.mlp.gate_proj.weight", "blk.%.ffn_gate.weight"},
      {"layers.%.mlp.up_proj.weight", "blk.%.ffn_up.weight"},
      {"layers.%.mlp.down_proj.weight", "blk.%.ffn_down.weight"},
      {"layers.%.mlp.gate_proj.bias", "blk.%.ffn_gate.bias"},
      {"layers.%.mlp.up_proj.bias", "blk.%.ffn_up.bias"},
      {"layers.%.mlp.down_proj.bias", "blk.%.ffn_down.bias"},
      {"layers.%.mlp.gate.weight", "blk.%.ffn_gate_inp.weight"},
      {"layers.%.mlp.experts.gate_up_proj", "blk.%.ffn_gate_exps.weight", kGate},
      {"layers.%.mlp.experts.gate_up_proj", "blk.%.ffn_up_exps.weight", kUp},
      {"layers.%.mlp.experts.down_proj", "blk.%.ffn_down_exps.weight"},
      {"layers.%.mlp.shared_expert.gate_proj.weight", "blk.%.ffn_gate_shexp.weight"},
      {"layers.%.mlp.shared_expert.up_proj.weight", "blk.%.ffn_up_shexp.weight"},
      {"layers.%.mlp.shared_expert.down_proj.weight", "blk.%.ffn_down_shexp.weight"},
      {"layers.%.mlp.shared_expert_gate.weight", "blk.%.ffn_gate_inp_shexp.weight"},
  };
  return table;
}

namespace {

std::string names_of_table() {
  std::set<std::string_view> names;
  for (const GgufArchitecture& row : gguf_architectures()) {
    names.insert(row.hf_class);
    names.insert(row.also.begin(), row.also.end());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string in_layer(std::string_view name, int layer) {
  std::string text(name);
  const size_t at = text.find('%');
  return at == std::string::npos ? text : text.replace(at, 1, std::to_string(layer));
}

/// The parameter's name below the model's prefix, with % for its layer.
std::string general_name(const Parameter& parameter, const DecoderConfig& model) {
  std::string name = parameter.name();
  const std::string layer = model.layer_module(parameter.spec().layer);
  if (parameter.spec().layer >= 0 && name.starts_with(layer)) return "layers.%." + name.substr(layer.size());
  if (name.starts_with(model.names.prefix)) name.erase(0, model.names.prefix.size());
  return name;
}

bool stays_exact(const Parameter& parameter) {
  const ParameterKind kind = parameter.spec().kind;
  return parameter.shape().rank() < 2 || kind == ParameterKind::kNorm || kind == ParameterKind::kBias ||
         kind == ParameterKind::kRouter || kind == ParameterKind::kBuffer;
}

GgufTensor tensor_of(const GgufName& row, const GgufArchitecture& architecture, const DecoderConfig& model,
                     const Parameter& parameter) {
  const Shape& shape = parameter.shape();
  const int64_t rows = shape.numel() / row_elements(parameter);
  GgufTensor tensor = {.name = in_layer(row.tensor, parameter.spec().layer),
                       .shape = dims_of(shape),
                       .parameter = &parameter,
                       .rows = RowGrid::all(rows),
                       .exact = stays_exact(parameter)};
  if (row.part == GgufPart::kGate || row.part == GgufPart::kUp) {
    const int64_t whole = shape[-2], half = whole / 2;
    tensor.rows = RowGrid::part_of_each(rows / whole, whole, row.part == GgufPart::kUp ? half : 0, half);
    tensor.shape[tensor.shape.size() - 2] = half;
  } else if (row.part == GgufPart::kHeads && architecture.turns_neighbours) {
    tensor.rows = RowGrid::halves_in_turn(rows / model.head_dim, model.head_dim);
  }
  if (tensor.shape.size() == 2 && tensor.shape[0] == 1) tensor.shape.erase(tensor.shape.begin());  // a gate [1, H]
  tensor.exact = tensor.exact || tensor.shape.size() < 2;
  return tensor;
}

}  // namespace

const GgufArchitecture& gguf_architecture_of(const HfConfig& config, const DecoderConfig& model) {
  const std::string name = config.architecture();
  for (const GgufArchitecture& row : gguf_architectures()) {
    const bool named = row.hf_class == name || std::find(row.also.begin(), row.also.end(), name) != row.also.end();
    if (named && row.experts == (model.moe.num_experts > 0)) return row;
  }
  throw UserError(fmt::format("{} is not written as GGUF", name), config.file(),
                  fmt::format("export safetensors, for convert_hf_to_gguf.py of llama.cpp; GGUF is written of {}",
                              names_of_table()));
}

const GgufArchitecture& gguf_architecture_of(const GgufMetadata& metadata) {
  const std::optional<std::string> name = metadata.text("general.architecture");
  if (!name)
    throw UserError("the file does not say its architecture", metadata.file, "general.architecture is missing");
  const bool experts = metadata.integer(*name + ".expert_count").value_or(0) > 0;
  for (const GgufArchitecture& row : gguf_architectures()) {
    if (row.name == *name && row.experts == experts) return row;
  }
  std::set<std::string_view> names;
  for (const GgufArchitecture& row : gguf_architectures()) names.insert(row.name);
  throw UserError(fmt::format("the GGUF architecture '{}' is not read", *name), metadata.file,
                  fmt::format("use the model's safetensors (hone download ORG/NAME); of GGUF, {} are read",
                              fmt::join(names, ", ")));
}

std::vector<GgufTensor> gguf_tensors(const GgufArchitecture& architecture, const DecoderConfig& model,
                                     const ParameterStore& store) {
  std::vector<GgufTensor> tensors;
  for (const Parameter& parameter : store.all()) {
    if (parameter.spec().kind == ParameterKind::kLora) continue;
    const std::string name = general_name(parameter, model);
    const size_t before = tensors.size();
    for (const GgufName& row : gguf_names()) {
      if (row.parameter == name) tensors.push_back(tensor_of(row, architecture, model, parameter));
    }
    if (tensors.size() > before) continue;
    throw UserError(fmt::format("'{}' has no name in GGUF files of {}", parameter.name(), architecture.name), "",
                    "export safetensors, for convert_hf_to_gguf.py of llama.cpp");
  }
  return tensors;
}

}  // namespace hone
