// The tensors of GGUF files: the names that architectures share, and which rows of a parameter a tensor has.
#include <fmt/format.h>

#include "core/base/error.h"
#include "models/gguf.h"
#include "weights/tensor_dims.h"

namespace hone {

namespace {

/// The names that architectures share.
const std::vector<GgufName>& shared_names() {
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
      {"layers.%.self_attn.query_layernorm.weight", "blk.%.attn_q_norm.weight"},
      {"layers.%.self_attn.key_layernorm.weight", "blk.%.attn_k_norm.weight"},
      {"layers.%.self_attn.q_a_layernorm.weight", "blk.%.attn_q_a_norm.weight"},
      {"layers.%.self_attn.kv_a_layernorm.weight", "blk.%.attn_kv_a_norm.weight"},
      {"layers.%.self_attn.sinks", "blk.%.attn_sinks.weight"},
      {"layers.%.post_attention_layernorm.weight", "blk.%.ffn_norm.weight"},
      {"layers.%.mlp.gate_proj.weight", "blk.%.ffn_gate.weight"},
      {"layers.%.mlp.up_proj.weight", "blk.%.ffn_up.weight"},
      {"layers.%.mlp.down_proj.weight", "blk.%.ffn_down.weight"},
      {"layers.%.mlp.gate_proj.bias", "blk.%.ffn_gate.bias"},
      {"layers.%.mlp.up_proj.bias", "blk.%.ffn_up.bias"},
      {"layers.%.mlp.down_proj.bias", "blk.%.ffn_down.bias"},
      {"layers.%.mlp.gate.weight", "blk.%.ffn_gate_inp.weight"},
      {"layers.%.mlp.gate.wg.weight", "blk.%.ffn_gate_inp.weight"},
      {"layers.%.mlp.router.weight", "blk.%.ffn_gate_inp.weight"},
      {"layers.%.mlp.router.bias", "blk.%.ffn_gate_inp.bias"},
      {"layers.%.mlp.gate.e_score_correction_bias", "blk.%.exp_probs_b.bias"},
      {"layers.%.mlp.gate.moe_statics.e_score_correction_bias", "blk.%.exp_probs_b.bias"},
      {"layers.%.mlp.e_score_correction_bias", "blk.%.exp_probs_b.bias"},
      {"layers.%.mlp.experts.gate_up_proj", "blk.%.ffn_gate_exps.weight", kGate},
      {"layers.%.mlp.experts.gate_up_proj", "blk.%.ffn_up_exps.weight", kUp},
      {"layers.%.mlp.experts.down_proj", "blk.%.ffn_down_exps.weight"},
      {"layers.%.mlp.experts.gate_up_proj_bias", "blk.%.ffn_gate_exps.bias", kGate},
      {"layers.%.mlp.experts.gate_up_proj_bias", "blk.%.ffn_up_exps.bias", kUp},
      {"layers.%.mlp.experts.down_proj_bias", "blk.%.ffn_down_exps.bias"},
      {"layers.%.mlp.shared_expert_gate.weight", "blk.%.ffn_gate_inp_shexp.weight"},
      {"layers.%.block_sparse_moe.router.weight", "blk.%.ffn_gate_inp.weight"},
      {"layers.%.block_sparse_moe.experts.gate_up_proj", "blk.%.ffn_gate_exps.weight", kGate},
      {"layers.%.block_sparse_moe.experts.gate_up_proj", "blk.%.ffn_up_exps.weight", kUp},
      {"layers.%.block_sparse_moe.experts.down_proj", "blk.%.ffn_down_exps.weight"},
      {"layers.%.shared_mlp.input_linear.weight", "blk.%.ffn_gate_shexp.weight", kGate},
      {"layers.%.shared_mlp.input_linear.weight", "blk.%.ffn_up_shexp.weight", kUp},
      {"layers.%.shared_mlp.output_linear.weight", "blk.%.ffn_down_shexp.weight"},
      {"layers.%.mlp.shared_expert.gate_proj.weight", "blk.%.ffn_gate_shexp.weight"},
      {"layers.%.mlp.shared_expert.up_proj.weight", "blk.%.ffn_up_shexp.weight"},
      {"layers.%.mlp.shared_expert.down_proj.weight", "blk.%.ffn_down_shexp.weight"},
      {"layers.%.mlp.shared_experts.gate_proj.weight", "blk.%.ffn_gate_shexp.weight"},
      {"layers.%.mlp.shared_experts.up_proj.weight", "blk.%.ffn_up_shexp.weight"},
      {"layers.%.mlp.shared_experts.down_proj.weight", "blk.%.ffn_down_shexp.weight"},
      {"layers.%.mlp.shared_mlp.gate_proj.weight", "blk.%.ffn_gate_shexp.weight"},
      {"layers.%.mlp.shared_mlp.up_proj.weight", "blk.%.ffn_up_shexp.weight"},
      {"layers.%.mlp.shared_mlp.down_proj.weight", "blk.%.ffn_down_shexp.weight"},
  };
  return table;
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
         kind == ParameterKind::kRouter || kind == ParameterKind::kBuffer || kind == ParameterKind::kRecurrence;
}

GgufTensor tensor_of(const GgufName& row, const GgufArchitecture& architecture, const DecoderConfig& model,
                     const Parameter& parameter) {
  const Shape& shape = parameter.shape();
  const int64_t rows = shape.numel() / row_elements(parameter);
  GgufTensor tensor = {.name = in_layer(row.tensor, parameter.spec().layer),
                       .shape = dims_of(shape),
                       .parameter = &parameter,
                       .rows = RowGrid::all(rows),
                       .exact = stays_exact(parameter),
                       .adapts = row.adapts};
  const LatentConfig& latent = model.latent;
  const int64_t keys = latent.qk_nope_head_dim, values = latent.v_head_dim, heads = model.num_attention_heads;
  const DeltaHeads& delta = model.delta_net.heads;
  const bool tiled = !model.delta_net.fused_projections;
  const int64_t group = delta.num_key_heads > 0 ? delta.group() : 0;
  const int64_t of_group = group * delta.value_dim, of_key_head = 2 * (delta.key_dim + of_group);
  const auto tiled_heads = [&](int64_t width) {
    RowGrid grid = {0, {group, delta.num_key_heads, width}, {width, group * width, 1}};
    for (size_t axis = 0; axis < grid.count.size(); ++axis) {
      if (grid.count[axis] == 1) grid.stride[axis] = 0;
    }
    return grid;
  };
  switch (row.part) {
    case GgufPart::kAll:
      break;
    case GgufPart::kGate:
    case GgufPart::kUp: {
      int64_t& whole = *(tensor.shape.end() - (row_elements(parameter) == 1 ? 1 : 2));
      const int64_t half = whole / 2;
      tensor.rows = RowGrid::part_of_each(rows / whole, whole, row.part == GgufPart::kUp ? half : 0, half);
      whole = half;
      break;
    }
    case GgufPart::kHeads:
      if (architecture.turns_neighbours) tensor.rows = RowGrid::halves_in_turn(rows / model.head_dim, model.head_dim);
      break;
    case GgufPart::kLatentKeys:
      tensor.rows = RowGrid::part_of_each(heads, keys + values, 0, keys);
      tensor.shape = {heads, latent.kv_lora_rank, keys};
      tensor.transposed = keys;
      break;
    case GgufPart::kLatentValues:
      tensor.rows = RowGrid::part_of_each(heads, keys + values, keys, values);
      tensor.shape = {heads, values, latent.kv_lora_rank};
      break;
    case GgufPart::kFusedQkv:
      tensor.rows = RowOrder({{0, {1, delta.num_key_heads, delta.key_dim}, {0, of_key_head, 1}},
                              {delta.key_dim, {1, delta.num_key_heads, delta.key_dim}, {0, of_key_head, 1}},
                              {2 * delta.key_dim, {1, delta.num_key_heads, of_group}, {0, of_key_head, 1}}});
      tensor.shape.front() = tensor.rows.rows();
      break;
    case GgufPart::kFusedGates:
      tensor.rows = RowGrid::part_of_each(delta.num_key_heads, of_key_head, 2 * delta.key_dim + of_group, of_group);
      tensor.shape.front() = tensor.rows.rows();
      break;
    case GgufPart::kTiledQkv: {
      if (!tiled) break;
      RowGrid value_rows = tiled_heads(delta.value_dim);
      value_rows.offset = 2 * delta.num_key_heads * delta.key_dim;
      tensor.rows = RowOrder({RowGrid::all(value_rows.offset), value_rows});
      break;
    }
    case GgufPart::kTiledValues:
      tensor.rows = tiled_heads(delta.value_dim);
      break;
    case GgufPart::kTiledHeads:
      if (tiled) tensor.rows = tiled_heads(1);
      break;
    case GgufPart::kTiledColumns:
      if (tiled) tensor.column_order = tiled_heads(delta.value_dim);
      break;
    case GgufPart::kColumn:
      tensor.shape.push_back(1);
      break;
    case GgufPart::kGroups:
      tensor.shape = {model.mamba.heads.num_groups, rows / model.mamba.heads.num_groups};
      break;
  }
  if (shape.rank() == 3 && shape[1] == 1) tensor.shape.erase(tensor.shape.begin() + 1);  // taps [C, 1, K]
  if (row.parameter.ends_with(".A_log")) tensor.values = GgufValues::kMinusExp;
  const bool own_norm = row.parameter.starts_with("layers.%.linear_attn.");
  if (parameter.spec().kind == ParameterKind::kNorm && model.norm_weighting == NormWeighting::kFromOne && !own_norm) {
    tensor.values = GgufValues::kPlusOne;
  }
  if (shape.rank() == 2 && shape[0] == 1) tensor.shape.erase(tensor.shape.begin());  // a gate [1, H]
  tensor.exact = tensor.exact || tensor.shape.size() < 2;
  return tensor;
}

}  // namespace

std::vector<GgufTensor> gguf_tensors(const GgufArchitecture& architecture, const DecoderConfig& model,
                                     const ParameterStore& store) {
  std::vector<GgufTensor> tensors;
  for (const Parameter& parameter : store.all()) {
    if (parameter.spec().kind == ParameterKind::kLora) continue;
    const std::string name = general_name(parameter, model);
    const size_t before = tensors.size();
    for (const std::vector<GgufName>* names : {&architecture.names, &shared_names()}) {
      for (const GgufName& row : *names) {
        if (row.parameter == name) tensors.push_back(tensor_of(row, architecture, model, parameter));
      }
      if (tensors.size() > before) break;
    }
    if (tensors.size() > before) continue;
    throw UserError(fmt::format("'{}' has no name in GGUF files of {}", parameter.name(), architecture.name), "",
                    "export safetensors, for convert_hf_to_gguf.py of llama.cpp");
  }
  return tensors;
}

}  // namespace hone
