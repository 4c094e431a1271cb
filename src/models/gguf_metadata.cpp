// The keys of GGUF files, written and read.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/base/error.h"
#include "core/text/json.h"
#include "models/gguf.h"
#include "models/registry.h"
#include "nn/latent_attention.h"

namespace hone {

namespace {

// Keys below the architecture's name, but for the first.
constexpr const char* kArchitecture = "general.architecture";
constexpr const char *kBlocks = "block_count", *kContext = "context_length", *kEmbedding = "embedding_length",
                     *kFeedForward = "feed_forward_length", *kVocabulary = "vocab_size",
                     *kHeads = "attention.head_count", *kKvHeads = "attention.head_count_kv",
                     *kKeyLength = "attention.key_length", *kValueLength = "attention.value_length",
                     *kEpsilon = "attention.layer_norm_rms_epsilon", *kRopeBase = "rope.freq_base",
                     *kRopeDimensions = "rope.dimension_count", *kRopeType = "rope.scaling.type",
                     *kRopeFactor = "rope.scaling.factor", *kRopeOriginal = "rope.scaling.original_context_length",
                     *kRopeFinetuned = "rope.scaling.finetuned", *kYarnFast = "rope.scaling.yarn_beta_fast",
                     *kYarnSlow = "rope.scaling.yarn_beta_slow", *kYarnLatentScale = "rope.scaling.yarn_log_multiplier",
                     *kExperts = "expert_count", *kExpertsUsed = "expert_used_count",
                     *kExpertWidth = "expert_feed_forward_length", *kKvRank = "attention.kv_lora_rank",
                     *kQueryRank = "attention.q_lora_rank", *kPredicting = "nextn_predict_layers",
                     *kWindowPattern = "attention.sliding_window_pattern",
                     *kWindowKeyLength = "attention.key_length_swa", *kWindowValueLength = "attention.value_length_swa",
                     *kWindowRopeBase = "rope.freq_base_swa", *kWindowRopeDimensions = "rope.dimension_count_swa",
                     *kLatentKeyLength = "attention.key_length_mla", *kLatentValueLength = "attention.value_length_mla";

/// What the file's kYarnLatentScale has of mscale_all_dim.
constexpr double kPartOfScale = 0.1;

/// The factor of pairs that RoPE does not turn.
constexpr float kUnturned = 1e30f;

constexpr const char *kLinear = "linear", *kYarn = "yarn", *kNoScaling = "none";

/// The shortest number that float32 rounds to the same: 1e-06 for what the file has of 1e-6.
double plain_number(double value) {
  const std::string text = fmt::format("{}", static_cast<float>(value));
  double number = value;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

Json json_of(const GgufValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return plain_number(*number);
  return std::visit([](const auto& held) { return Json(held); }, value);
}

bool is_llama3(const DecoderConfig& model) { return model.rope.scaling.type == RopeType::kLlama3; }

}  // namespace

std::vector<float> gguf_rope_factors(const DecoderConfig& model) {
  const auto pairs = static_cast<size_t>(model.rope.rotary_dim / 2);
  if (model.rope.scaling.type == RopeType::kProportional) {
    std::vector<float> factors(pairs, kUnturned);
    const auto turned = static_cast<size_t>(std::llround(model.rope.scaling.proportion * static_cast<double>(pairs)));
    std::fill_n(factors.begin(), std::min(turned, pairs), 1.0f);
    return factors;
  }
  if (!is_llama3(model)) return {};
  RopeParameters plain = model.rope;
  plain.scaling = {};
  const std::vector<float> base = rope_frequencies(plain, 1).inverse, scaled = rope_frequencies(model.rope, 1).inverse;
  std::vector<float> factors;
  for (size_t i = 0; i < base.size(); ++i) factors.push_back(base[i] / scaled[i]);
  return factors;
}

GgufFacts gguf_facts(const std::vector<GgufTensor>& tensors, const DecoderConfig& model) {
  GgufFacts facts = {.vocab_rows = model.vocab_size, .rope_factors = gguf_rope_factors(model)};
  for (const GgufTensor& tensor : tensors) facts.see(tensor.name);
  return facts;
}

void GgufFacts::see(std::string_view tensor) {
  has_head = has_head || tensor == "output.weight";
  has_query_bias = has_query_bias || tensor.ends_with(".attn_q.bias");
  has_output_bias = has_output_bias || tensor.ends_with(".attn_output.bias");
  has_mlp_bias = has_mlp_bias || tensor.ends_with(".ffn_down.bias");
  has_query_norm = has_query_norm || tensor.ends_with(".attn_q_norm.weight");
  keys_without_values += tensor.ends_with(".attn_k.weight") ? 1 : 0;
  keys_without_values -= tensor.ends_with(".attn_v.weight") ? 1 : 0;
}

GgufFacts gguf_facts(const GgufFile& file) {
  const GgufEntry* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw UserError("the file has no matrix token_embd.weight", file.path().string(), "give the GGUF file of a model");
  }
  GgufFacts facts = {.vocab_rows = embedding->shape.front(), .rope_factors = {}};
  for (const GgufEntry& entry : file.entries()) facts.see(entry.name);
  if (const GgufEntry* factors = file.find(kRopeFactors); factors != nullptr) {
    constexpr int64_t kMostPairs = 1 << 16;
    if (factors->numel() > kMostPairs) throw UserError("rope_freqs.weight is too long", file.path().string());
    facts.rope_factors.resize(static_cast<size_t>(factors->numel()));
    file.read_floats(*factors, 0, factors->numel(), facts.rope_factors.data());
  }
  return facts;
}

namespace {

bool same_window_rope(const DecoderConfig& a, const DecoderConfig& b) {
  if (!a.window_rope || !b.window_rope) return a.window_rope.has_value() == b.window_rope.has_value();
  const RopeParameters &x = *a.window_rope, &y = *b.window_rope;
  return static_cast<float>(x.rope_theta) == static_cast<float>(y.rope_theta) && x.rotary_dim == y.rotary_dim &&
         x.scaling == y.scaling;
}

/// The name of a setting in which the model and what a file says of it differ; "": they are the same in all that
/// inference computes.
std::string difference(DecoderConfig a, DecoderConfig b) {
  const auto same_number = [](double x, double y) { return static_cast<float>(x) == static_cast<float>(y); };
  const RopeScaling &x = a.rope.scaling, &y = b.rope.scaling;
  const std::pair<const char*, bool> settings[] = {
      {"vocab_size", a.vocab_size == b.vocab_size},
      {"head_dim", a.head_dim == b.head_dim && a.v_head_dim == b.v_head_dim},
      {"clip_qkv", a.clip_qkv == b.clip_qkv},
      {"attention_bias", a.qkv_bias == b.qkv_bias && a.o_bias == b.o_bias},
      {"mlp_bias", a.mlp_bias == b.mlp_bias},
      {"tie_word_embeddings", a.tie_word_embeddings == b.tie_word_embeddings},
      {"rms_norm_eps", same_number(a.rms_norm_eps, b.rms_norm_eps)},
      {"rope_theta", same_number(a.rope.rope_theta, b.rope.rope_theta)},
      {"partial_rotary_factor", a.rope.rotary_dim == b.rope.rotary_dim},
      {"rope_scaling.rope_type", x.type == y.type},
      {"rope_scaling.factor", same_number(x.factor.value_or(0), y.factor.value_or(0))},
      {"rope_scaling.original_max_position_embeddings",
       x.original_max_position_embeddings == y.original_max_position_embeddings},
      {"rope_scaling.beta_fast", same_number(x.beta_fast, y.beta_fast) && same_number(x.beta_slow, y.beta_slow)},
      {"rope_scaling.attention_factor",
       x.attention_factor == y.attention_factor && x.mscale == y.mscale && x.mscale_all_dim == y.mscale_all_dim},
      {"rope_scaling.truncate", x.truncate == y.truncate},
      {"rope_parameters", same_number(x.proportion, y.proportion) && same_window_rope(a, b)},
      {"position_embedding_type", a.rotates == b.rotates},
      {"linear_value_head_dim", a.delta_net == b.delta_net},
      {"mamba_conv_bias, mamba_proj_bias, time_step_limit", a.mamba == b.mamba},
      {"llama_4_scaling_beta", a.latent.query_scaling == b.latent.query_scaling},
      {"rope_interleave", a.latent.rope_interleave == b.latent.rope_interleave},
      {"attention_multiplier", same_number(a.softmax_scale(), b.softmax_scale())},
      {"swiglu_limit", a.activation == b.activation},
      {"norm_topk_prob", a.moe.router.normalise == b.moe.router.normalise},
      {"routed_scaling_factor", same_number(a.moe.router.scale, b.moe.router.scale)},
      {"n_group, topk_group",
       a.moe.router.groups == b.moe.router.groups && a.moe.router.kept_groups == b.moe.router.kept_groups},
      {"the layers that have experts or windows (decoder_sparse_step, mlp_only_layers, moe_layer_freq, layer_types)",
       a.layers == b.layers}};
  for (const auto& [name, same] : settings) {
    if (!same) return name;
  }
  b.rms_norm_eps = a.rms_norm_eps;
  b.rope = a.rope;
  b.window_rope = a.window_rope;
  b.attention_scale = a.attention_scale;
  // What only training and files know.
  b.pad_token_id = a.pad_token_id;
  b.initializer_range = a.initializer_range;
  b.moe.router_aux_loss_coef = a.moe.router_aux_loss_coef;
  b.moe.router_jitter_noise = a.moe.router_jitter_noise;
  b.names = a.names;
  b.carried = a.carried;
  return a == b ? "" : "a setting of its architecture";
}

/// The name of a setting that llama.cpp does not load in the architecture; "": there is none.
std::string unloadable(const GgufArchitecture& architecture, const DecoderConfig& model) {
  const bool wide = model.num_attention_heads * model.head_dim != model.hidden_size;
  if (model.tie_word_embeddings && !architecture.may_tie) return "tie_word_embeddings";
  if (wide && !architecture.wide_heads && !architecture.latent) return "head_dim";
  const int64_t inner = model.mamba.heads.inner();
  if (architecture.mamba && !architecture.halves && inner != 2 * model.hidden_size) return "mamba_expand";
  const RopeScaling& scaling = model.rope.scaling;
  if (architecture.latent && scaling.type == RopeType::kYarn && scaling.mscale_all_dim.value_or(0) == 0) {
    return "rope_scaling.mscale_all_dim";
  }
  const bool shared = model.num_key_value_heads != model.num_attention_heads;
  return shared && !architecture.shared_heads ? "num_key_value_heads" : "";
}

/// The model as inference with at most `context` tokens computes it: without windows that are as long, and with the
/// defaults that its scaling leaves out.
DecoderConfig within(const GgufArchitecture& architecture, DecoderConfig model, int64_t context) {
  for (LayerConfig& layer : model.layers) {
    if (!architecture.windows && layer.sliding_window >= context) layer.sliding_window = 0;
  }
  if (architecture.halves) model.mamba.heads.min_step = 0;
  RouterRule& router = model.moe.router;
  if (router.kept_groups == router.groups) router.kept_groups = router.groups = 1;
  RopeScaling& scaling = model.rope.scaling;
  if (architecture.yarn_between) scaling.truncate = false;
  if (scaling.alpha) {
    const auto dims = static_cast<double>(model.rope.rotary_dim);
    model.rope.rope_theta *= std::pow(*scaling.alpha, dims / (dims - 2));
    scaling = {};
  }
  if (scaling.type == RopeType::kYarn || scaling.type == RopeType::kLlama3) {
    if (!scaling.original_max_position_embeddings) {
      scaling.original_max_position_embeddings = model.rope.max_position_embeddings;
    }
  } else {
    scaling.original_max_position_embeddings.reset();
  }
  if (scaling.type == RopeType::kYarn) {
    if (!scaling.factor) {
      scaling.factor = static_cast<double>(model.rope.max_position_embeddings) /
                       static_cast<double>(*scaling.original_max_position_embeddings);
    }
    // llama.cpp always scales by 0.1 ln(factor) + 1.
    const double usual = yarn_mscale(*scaling.factor, 1.0);
    if (scaling.attention_factor && static_cast<float>(*scaling.attention_factor) == static_cast<float>(usual)) {
      scaling.attention_factor.reset();
    }
  }
  return model;
}

void set_rope(const std::function<void(const char*, GgufValue)>& set, const GgufArchitecture& architecture,
              const DecoderConfig& model, const std::string& file) {
  set(kRopeBase, model.rope.rope_theta);
  set(kRopeDimensions, model.rope.rotary_dim);
  const RopeScaling& scaling = model.rope.scaling;
  const bool factors = is_llama3(model) && architecture.takes_factors;
  if (scaling.type == RopeType::kDefault || architecture.two_heads) return;  // those have a tensor of factors
  if (scaling.type == RopeType::kLinear) {
    set(kRopeType, std::string(kLinear));
    set(kRopeFactor, scaling.factor.value_or(1));
  } else if (scaling.type == RopeType::kYarn) {
    set(kRopeType, std::string(kYarn));
    set(kRopeFactor, scaling.factor.value_or(1));
    set(kRopeOriginal, scaling.original_max_position_embeddings.value_or(0));
    set(kYarnFast, scaling.beta_fast);
    set(kYarnSlow, scaling.beta_slow);
    if (architecture.latent) set(kYarnLatentScale, kPartOfScale * scaling.mscale_all_dim.value_or(0));
  } else if (factors) {
    set(kRopeOriginal, scaling.original_max_position_embeddings.value_or(0));  // the factors are a tensor
  } else {
    throw UserError(fmt::format("GGUF files of {} do not have this rope_scaling", architecture.name), file,
                    "export safetensors, for convert_hf_to_gguf.py of llama.cpp");
  }
}

/// Keys of heads that differ between layers with a window and those without.
void set_two_heads(const std::function<void(const char*, GgufValue)>& set, const DecoderConfig& model) {
  int64_t wide = model.head_dim;
  std::vector<int64_t> kv_heads;
  std::vector<bool> windows;
  for (const LayerConfig& layer : model.layers) {
    kv_heads.push_back(model.kv_heads_of(layer));
    windows.push_back(layer.sliding_window > 0);
    if (!windows.back()) wide = model.head_dim_of(layer);
  }
  set(kKvHeads, kv_heads);
  set(kWindowPattern, windows);
  set(kKeyLength, wide);
  set(kValueLength, wide);
  set(kWindowKeyLength, model.head_dim);
  set(kWindowValueLength, model.head_dim);
  if (!model.window_rope) return;  // no layer has a window
  set(kWindowRopeBase, model.window_rope->rope_theta);
  set(kWindowRopeDimensions, model.window_rope->rotary_dim);
}

/// feed_forward_length; 0: nothing says it.
int64_t dense_width(const GgufArchitecture& architecture, const HfConfig& config, const DecoderConfig& model) {
  if (architecture.width_is_dense) return model.moe.moe_intermediate_size;
  if (architecture.two_heads && architecture.experts) return model.moe.shared_expert_intermediate_size;
  for (const LayerConfig& layer : model.layers) {
    if (layer.intermediate_size > 0) return layer.intermediate_size;
  }
  return config.integer_or("intermediate_size", 0);
}

}  // namespace

GgufMetadata gguf_metadata(const GgufArchitecture& architecture, const HfConfig& config, const DecoderConfig& given,
                           const std::vector<GgufTensor>& tensors, std::vector<std::string>& notes) {
  int64_t context = given.rope.max_position_embeddings;
  for (const LayerConfig& layer : given.layers) {
    const bool ignored = layer.sliding_window > 0 && !architecture.windows;
    if (ignored && layer.sliding_window < context) context = layer.sliding_window;
  }
  if (context < given.rope.max_position_embeddings) {
    notes.push_back(
        fmt::format("the context is {} tokens, the length of the sliding window, which llama.cpp does not "
                    "apply in this architecture",
                    context));
  }
  const RopeScaling& scaling = given.rope.scaling;
  const bool yarn = scaling.type == RopeType::kYarn;
  if (architecture.yarn_between && yarn && !scaling.truncate) {
    notes.push_back(
        "llama.cpp rounds the borders of YaRN's ramp, which the model does not: its logits differ a little");
  }
  const RopeScaling usual;
  if (yarn && (scaling.beta_fast != usual.beta_fast || scaling.beta_slow != usual.beta_slow)) {
    notes.push_back(
        fmt::format("llama.cpp takes beta_fast {} and beta_slow {} for YaRN, the model {} and {}: its logits "
                    "differ",
                    usual.beta_fast, usual.beta_slow, scaling.beta_fast, scaling.beta_slow));
  }
  if (architecture.latent && static_cast<float>(given.rms_norm_eps) != kLatentNormEps) {
    notes.push_back(
        fmt::format("llama.cpp normalises latents with rms_norm_eps ({}), the model with {}: its logits "
                    "differ a little",
                    given.rms_norm_eps, kLatentNormEps));
  }
  if (architecture.halves && given.mamba.heads.min_step > 0) {
    notes.push_back(fmt::format(
        "llama.cpp has no time_step_min, the model {}: its logits differ where a step of Mamba-2 is smaller",
        given.mamba.heads.min_step));
  }
  const auto require_none = [&](const std::string& differs) {
    if (differs.empty()) return;
    throw UserError(fmt::format("GGUF files of {} cannot say what config.json does: {}", architecture.name, differs),
                    config.file(), "export safetensors, for convert_hf_to_gguf.py of llama.cpp, if that knows it");
  };
  const DecoderConfig model = within(architecture, given, context);
  GgufMetadata metadata;
  metadata.file = config.file();
  metadata.set(kArchitecture, std::string(architecture.name));
  metadata.set("general.type", std::string("model"));
  const auto set = [&](const char* key, GgufValue value) {
    metadata.set(fmt::format("{}.{}", architecture.name, key), std::move(value));
  };
  set(kBlocks, static_cast<int64_t>(model.layers.size()));
  set(kContext, context);
  set(kEmbedding, model.hidden_size);
  if (const int64_t dense = dense_width(architecture, config, model); dense > 0) set(kFeedForward, dense);
  set(kHeads, model.num_attention_heads);
  if (architecture.latent) {
    // Heads that share one latent: their keys are the latent and what RoPE turns, their values the latent.
    const LatentConfig& latent = model.latent;
    set(kKvHeads, int64_t{1});
    set(kKeyLength, latent.kv_lora_rank + latent.qk_rope_head_dim);
    set(kValueLength, latent.kv_lora_rank);
    set(kLatentKeyLength, model.head_dim);
    set(kLatentValueLength, model.v_head_dim);
    set(kKvRank, latent.kv_lora_rank);
    set(kQueryRank, latent.q_lora_rank);
  } else if (architecture.two_heads) {
    set_two_heads(set, model);
  } else {
    if (!architecture.mamba) set(kKvHeads, model.num_key_value_heads);
    set(kKeyLength, model.head_dim);
    set(kValueLength, model.v_head_dim);
  }
  if (architecture.mamba) {
    std::vector<int64_t> kv_heads;
    for (const LayerConfig& layer : model.layers) {
      kv_heads.push_back(layer.mixer == MixerKind::kAttention ? model.num_key_value_heads : 0);
    }
    set(kKvHeads, kv_heads);
  }
  if (architecture.halves) {
    std::vector<int64_t> widths;
    for (const LayerConfig& layer : model.layers) {
      const bool beside = architecture.experts && !layer.moe && layer.intermediate_size > 0;
      require_none(beside ? "layers_block_type with MLPs beside experts" : "");
      widths.push_back(layer.moe ? model.moe.moe_intermediate_size : layer.intermediate_size);
    }
    set(kFeedForward, widths);
  }
  if (architecture.optional_rope) set(kRopeFinetuned, model.rotates);
  set(kEpsilon, model.rms_norm_eps);
  set(kVocabulary, model.vocab_size);
  set_rope(set, architecture, model, config.file());
  if (architecture.experts) {
    set(kExperts, model.moe.num_experts);
    set(kExpertsUsed, model.moe.num_experts_per_tok);
    if (!architecture.width_is_dense) set(kExpertWidth, model.moe.moe_intermediate_size);
  }
  for (const GgufSetting& setting : architecture.settings) {
    if (setting.value) set(std::string(setting.key).c_str(), setting.value(model));
  }
  const Json said = config_of_gguf(architecture, metadata, gguf_facts(tensors, model));
  require_none(difference(model, within(architecture, read_decoder_config(HfConfig(said, config.file())), context)));
  require_none(unloadable(architecture, model));
  return metadata;
}

namespace {

/// Reads the keys of an architecture, and knows which of them have not been read.
class ArchitectureKeys {
 public:
  ArchitectureKeys(std::string_view architecture, const GgufMetadata& metadata)
      : prefix_(std::string(architecture) + "."), metadata_(metadata) {}

  std::optional<int64_t> integer(const char* key) { return metadata_.integer(full(key)); }
  /// Nothing if there is none.
  const std::vector<bool>* booleans(const char* key) { return metadata_.list<bool>(full(key)); }
  const std::vector<int64_t>* integers(const char* key) { return metadata_.list<int64_t>(full(key)); }
  /// An integer, or a list with the same one for all layers.
  std::optional<int64_t> of_all_layers(const char* key) {
    if (!any(key).value_or(Json()).is_array()) return integer(key);
    const std::vector<int64_t>& values = *integers(key);
    if (values.empty() || std::count(values.begin(), values.end(), values.front()) != std::ssize(values)) {
      refuse(key, "differs between layers");
    }
    return values.front();
  }
  /// A value of any type; nothing if there is none.
  std::optional<Json> any(std::string_view key) {
    const GgufValue* found = metadata_.find(full(key));
    return found ? std::optional(json_of(*found)) : std::nullopt;
  }
  std::optional<double> number(const char* key) {
    const std::optional<double> found = metadata_.number(full(key));
    return found ? std::optional(plain_number(*found)) : found;
  }
  std::optional<std::string> text(const char* key) { return metadata_.text(full(key)); }
  std::optional<bool> boolean(const char* key) { return metadata_.boolean(full(key)); }
  int64_t size(const char* key) {
    const std::optional<int64_t> found = integer(key);
    if (!found || *found < 1) refuse(key, found ? fmt::format("is {}", *found) : "is missing");
    return *found;
  }
  /// Without the last ones that predict further tokens.
  int64_t layers() {
    const int64_t blocks = size(kBlocks), predicting = integer(kPredicting).value_or(0);
    constexpr int64_t kMostBlocks = 1 << 16;  // config.json lists some of their settings
    if (blocks > kMostBlocks) refuse(kBlocks, fmt::format("is {}", blocks));
    if (predicting < 0 || predicting >= blocks) refuse(kPredicting, fmt::format("is {} of {}", predicting, blocks));
    return blocks - predicting;
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    throw UserError(fmt::format("the GGUF key '{}{}' {}", prefix_, key, what), metadata_.file,
                    "use the model's safetensors (hone download ORG/NAME)");
  }
  /// UserError for a key that has not been read and may change what the model computes.
  void require_all_read() const {
    for (const auto& [key, value] : metadata_.all()) {
      if (!key.starts_with(prefix_) || read_.contains(key)) continue;
      const auto* number = std::get_if<int64_t>(&value);
      const auto* flag = std::get_if<bool>(&value);
      if ((number != nullptr && *number == 0) || (flag != nullptr && !*flag)) continue;
      refuse(key.substr(prefix_.size()), "is not supported");
    }
  }

 private:
  std::string full(std::string_view key) { return *read_.insert(prefix_ + std::string(key)).first; }

  std::string prefix_;
  const GgufMetadata& metadata_;
  std::set<std::string> read_;
};

/// The scaling of Llama 3.1 that gives these factors; none is known: null.
Json llama3_scaling(const std::vector<float>& factors, std::optional<int64_t> original, double base, int64_t head_dim) {
  if (static_cast<int64_t>(factors.size()) != head_dim / 2) return nullptr;
  constexpr int64_t kUsualOriginal = 8192;
  constexpr double kDigits = 1e4;  // the factor is a short number, the tensor's quotients are rounded
  RopeScaling scaling = {.type = RopeType::kLlama3,
                         .factor = std::round(*std::max_element(factors.begin(), factors.end()) * kDigits) / kDigits,
                         .original_max_position_embeddings = original.value_or(kUsualOriginal)};
  DecoderConfig model;
  model.rope = {.rope_theta = base, .rotary_dim = head_dim, .scaling = scaling};
  const std::vector<float> known = gguf_rope_factors(model);
  for (size_t i = 0; i < known.size(); ++i) {
    if (!(std::abs(known[i] - factors[i]) <= 1e-5f * known[i])) return nullptr;  // rounded in another order
  }
  return {{"rope_type", "llama3"},
          {"factor", *scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", *scaling.original_max_position_embeddings}};
}

Json rope_scaling_of(ArchitectureKeys& keys, const GgufArchitecture& architecture, const GgufFacts& facts, double base,
                     int64_t head_dim) {
  const std::optional<std::string> type = keys.text(kRopeType);
  const std::optional<double> factor = keys.number(kRopeFactor);
  const std::optional<int64_t> original = keys.integer(kRopeOriginal);
  const std::optional<double> fast = keys.number(kYarnFast), slow = keys.number(kYarnSlow);
  keys.boolean(kRopeFinetuned);  // says how the model was trained
  if (!facts.rope_factors.empty()) {
    const Json scaling = llama3_scaling(facts.rope_factors, original, base, head_dim);
    if (scaling.is_null() || type.value_or(kNoScaling) != kNoScaling || factor.value_or(1) != 1 ||
        !architecture.takes_factors) {
      keys.refuse(kRopeType, fmt::format("beside the tensor {} is not one of Llama 3", kRopeFactors));
    }
    return scaling;
  }
  if (type == kYarn) {
    if (!factor || !original) keys.refuse(factor ? kRopeOriginal : kRopeFactor, "is missing");
    Json scaling = {{"rope_type", "yarn"}, {"factor", *factor}, {"original_max_position_embeddings", *original}};
    if (fast) scaling["beta_fast"] = *fast;
    if (slow) scaling["beta_slow"] = *slow;
    if (architecture.yarn_between) scaling["truncate"] = false;
    if (!architecture.latent) return scaling;
    if (const double scale = plain_number(keys.number(kYarnLatentScale).value_or(0) / kPartOfScale); scale != 0) {
      scaling["mscale"] = scaling["mscale_all_dim"] = scale;
    }
    return scaling;
  }
  if (type && *type != kLinear && *type != kNoScaling)
    keys.refuse(kRopeType, fmt::format("'{}' is not supported", *type));
  if (type == kNoScaling || factor.value_or(0) == 0 || factor == 1) return nullptr;
  return {{"rope_type", "linear"}, {"factor", *factor}};
}

/// A number for each layer that has something, 0 for others; returns the number.
int64_t read_list(ArchitectureKeys& keys, const char* key, std::vector<int64_t>& list) {
  const std::vector<int64_t>* found = keys.integers(key);
  if (found == nullptr) keys.refuse(key, "is missing");
  const auto layers = static_cast<size_t>(keys.layers());
  if (found->size() < layers) keys.refuse(key, "does not list every layer");
  list.assign(found->begin(), found->begin() + static_cast<std::ptrdiff_t>(layers));  // without those that predict
  const int64_t most = *std::max_element(list.begin(), list.end());
  for (const int64_t count : list) {
    if (count != 0 && count != most) keys.refuse(key, "has different numbers");
  }
  return most;
}

/// Which layers are Mamba-2, those without heads of keys and values and, where layers are halves, without a width;
/// returns how many such heads the others have.
int64_t read_mixers(ArchitectureKeys& keys, const GgufArchitecture& architecture, Json& config) {
  std::vector<int64_t> kv_heads, widths;
  const int64_t heads = read_list(keys, kKvHeads, kv_heads);
  Json types = Json::array();
  if (!architecture.halves) {
    for (const int64_t count : kv_heads) types.push_back(count == 0 ? "mamba" : "attention");
    config["layer_types"] = types;
    return heads;
  }
  const int64_t width = read_list(keys, kFeedForward, widths);
  if (!architecture.experts) config["intermediate_size"] = width;
  for (size_t i = 0; i < kv_heads.size(); ++i) {
    types.push_back(kv_heads[i] > 0        ? "full_attention"
                    : widths[i] == 0       ? "linear_attention"
                    : architecture.experts ? "moe"
                                           : "mlp");
  }
  config["layers_block_type"] = types;
  return heads;
}

/// Heads, windows and RoPE of layers with a window and of those without.
void read_two_heads(ArchitectureKeys& keys, const GgufFacts& facts, Json& config) {
  const auto layers = static_cast<size_t>(keys.layers());
  const std::vector<bool>* windows = keys.booleans(kWindowPattern);
  if (windows == nullptr || windows->size() < layers) keys.refuse(kWindowPattern, "does not list every layer");
  std::vector<int64_t> kv_heads(layers);
  if (keys.any(kKvHeads).value_or(Json()).is_array()) {
    const std::vector<int64_t>& list = *keys.integers(kKvHeads);
    if (list.size() < layers) keys.refuse(kKvHeads, "does not list every layer");
    std::copy_n(list.begin(), layers, kv_heads.begin());
  } else {
    kv_heads.assign(layers, keys.size(kKvHeads));
  }
  const int64_t wide = keys.size(kKeyLength), narrow = keys.size(kWindowKeyLength);
  for (const auto& [key, expected] : {std::pair{kValueLength, wide},
                                      {kRopeDimensions, wide},
                                      {kWindowValueLength, narrow},
                                      {kWindowRopeDimensions, narrow}}) {
    if (keys.integer(key).value_or(expected) != expected) keys.refuse(key, fmt::format("is not {}", expected));
  }
  Json types = Json::array(), own = Json::object();
  int64_t narrow_heads = kv_heads.front();
  for (size_t i = 0; i < layers; ++i) {
    if ((*windows)[i]) narrow_heads = kv_heads[i];
  }
  for (size_t i = 0; i < layers; ++i) {
    types.push_back((*windows)[i] ? "sliding_attention" : "full_attention");
    if ((*windows)[i] && kv_heads[i] != narrow_heads) keys.refuse(kKvHeads, "has different numbers");
    if (!(*windows)[i]) own[std::to_string(i)] = {{"head_dim", wide}, {"num_key_value_heads", kv_heads[i]}};
  }
  config["layer_types"] = types;
  config["head_dim"] = narrow;
  config["num_key_value_heads"] = narrow_heads;
  config["per_layer_config"] = own;
  config["attention_k_eq_v"] = facts.keys_without_values > 0;
  const auto turned = std::count(facts.rope_factors.begin(), facts.rope_factors.end(), 1.0f);
  std::vector<float> known(facts.rope_factors.size(), kUnturned);
  std::fill_n(known.begin(), turned, 1.0f);
  if (known.empty() || known != facts.rope_factors || static_cast<int64_t>(2 * known.size()) != wide) {
    keys.refuse(kRopeType, fmt::format("beside the tensor {} is not Gemma's", kRopeFactors));
  }
  config["rope_parameters"] = {
      {"full_attention",
       {{"rope_type", "proportional"},
        {"partial_rotary_factor", static_cast<double>(turned) / static_cast<double>(known.size())},
        {"rope_theta", keys.number(kRopeBase).value_or(10000.0)}}},
      {"sliding_attention",
       {{"rope_type", "default"}, {"rope_theta", keys.number(kWindowRopeBase).value_or(10000.0)}}}};
}

/// The sizes of heads.
void read_heads(ArchitectureKeys& keys, const GgufArchitecture& architecture, Json& config) {
  const int64_t hidden = keys.size(kEmbedding), heads = keys.size(kHeads);
  const int64_t head_dim = keys.integer(kKeyLength).value_or(hidden / heads);
  const int64_t value_dim = keys.integer(kValueLength).value_or(head_dim);
  if (architecture.optional_rope) {
    config["layer_types"] = Json(static_cast<size_t>(keys.layers()), Json("attention"));
    config["position_embedding_type"] = keys.boolean(kRopeFinetuned).value_or(true) ? "rope" : "nope";
  }
  const int64_t kv_heads =
      architecture.mamba ? read_mixers(keys, architecture, config) : keys.of_all_layers(kKvHeads).value_or(heads);
  const int64_t rotary = keys.integer(kRopeDimensions).value_or(head_dim);
  config["hidden_size"] = hidden;
  config["num_attention_heads"] = heads;
  if (architecture.latent) {
    const int64_t rank = keys.size(kKvRank), query_rank = keys.integer(kQueryRank).value_or(0);
    if (kv_heads != 1) keys.refuse(kKvHeads, "is not 1");
    if (value_dim != rank) keys.refuse(kValueLength, fmt::format("is not that of latents, {}", rank));
    if (head_dim != rank + rotary) keys.refuse(kKeyLength, fmt::format("is not {} + {}", rank, rotary));
    const int64_t keys_length = keys.size(kLatentKeyLength);
    if (keys_length <= rotary) keys.refuse(kLatentKeyLength, fmt::format("is not above {}", rotary));
    config["num_key_value_heads"] = heads;
    config["kv_lora_rank"] = rank;
    config["q_lora_rank"] = query_rank > 0 ? Json(query_rank) : Json(nullptr);
    config["qk_rope_head_dim"] = rotary;
    config["qk_nope_head_dim"] = keys_length - rotary;
    config["v_head_dim"] = keys.size(kLatentValueLength);
    return;
  }
  if (head_dim < 1) keys.refuse(kKeyLength, fmt::format("is {}", head_dim));
  config["num_key_value_heads"] = kv_heads;
  config["head_dim"] = head_dim;
  if (value_dim != head_dim) keys.refuse(kValueLength, "is not the keys' length");
  if (architecture.rotary_field == "partial_rotary_factor") {
    config["partial_rotary_factor"] = static_cast<double>(rotary) / static_cast<double>(head_dim);
  } else if (!architecture.rotary_field.empty()) {
    config[architecture.rotary_field] = rotary;
  } else if (rotary != head_dim && !architecture.halves) {
    keys.refuse(kRopeDimensions, "is not the heads' length");
  }
}

/// The keys of the architecture's own settings.
void read_settings(ArchitectureKeys& keys, const GgufArchitecture& architecture, Json& config) {
  for (const GgufSetting& setting : architecture.settings) {
    const std::optional<Json> found = keys.any(setting.key);
    if (setting.field.empty()) continue;
    if (!found && setting.absent.empty()) keys.refuse(std::string(setting.key), "is missing");
    Json value = found ? *found : Json::parse(setting.absent);
    if (!setting.unit.empty()) {
      const int64_t unit = std::max<int64_t>(config.at(setting.unit).get<int64_t>(), 1);
      if (!value.is_number_integer()) keys.refuse(std::string(setting.key), "is not an integer");
      value = value.get<int64_t>() / unit;
    }
    config[Json::json_pointer("/" + std::string(setting.field))] = value;
  }
}

/// UserError if the file says otherwise what config.json says of settings without a field.
void check_settings(ArchitectureKeys& keys, const GgufArchitecture& architecture, const DecoderConfig& model) {
  for (const GgufSetting& setting : architecture.settings) {
    std::optional<Json> found = keys.any(setting.key);
    if (!setting.field.empty() || setting.free || !found) continue;
    const Json known = json_of(setting.value(model));
    if (found->is_array()) found->get_ref<Json::array_t&>().resize(model.layers.size());  // without those that predict
    if (*found != known) {
      keys.refuse(std::string(setting.key), fmt::format("is {}, not {}", found->dump(), known.dump()));
    }
  }
}

}  // namespace

Json config_of_gguf(const GgufArchitecture& architecture, const GgufMetadata& metadata, const GgufFacts& facts) {
  ArchitectureKeys keys(architecture.name, metadata);
  if (const auto rows = keys.integer(kVocabulary); rows && *rows != facts.vocab_rows) {
    keys.refuse(kVocabulary, fmt::format("is {}, and the embedding has {} rows", *rows, facts.vocab_rows));
  }
  std::optional<double> epsilon = keys.number(kEpsilon);
  if (!epsilon && architecture.halves) epsilon = keys.number("attention.layer_norm_epsilon");
  if (!epsilon) keys.refuse(kEpsilon, "is missing");
  Json config = {{"architectures", {architecture.hf_class}},
                 {"model_type", architecture.model_type},
                 {"hidden_act", "silu"},
                 {"num_hidden_layers", keys.layers()},
                 {"max_position_embeddings", keys.size(kContext)},
                 {"rms_norm_eps", *epsilon},
                 {"vocab_size", facts.vocab_rows},
                 {"tie_word_embeddings", !facts.has_head}};
  if (architecture.two_heads) {
    config.erase("hidden_act");
    config["hidden_size"] = keys.size(kEmbedding);
    config["num_attention_heads"] = keys.size(kHeads);
    read_two_heads(keys, facts, config);
  } else {
    read_heads(keys, architecture, config);
    const double base = keys.number(kRopeBase).value_or(10000.0);
    const int64_t rotary = keys.integer(kRopeDimensions).value_or(config.value("head_dim", int64_t{0}));
    Json scaling = rope_scaling_of(keys, architecture, facts, base, rotary);
    if (architecture.own_rope) {
      if (scaling.is_null()) keys.refuse(kRopeType, "is missing");
      scaling["rope_theta"] = base;
      config["rope_parameters"] = scaling;
    } else {
      config["rope_theta"] = base;
      if (!scaling.is_null()) config["rope_scaling"] = scaling;
    }
  }
  if (!architecture.halves) {
    const std::optional<int64_t> feed_forward = keys.integer(kFeedForward);
    if (feed_forward) config["intermediate_size"] = *feed_forward;
    if (!architecture.experts && !feed_forward) keys.refuse(kFeedForward, "is missing");
  }
  if (architecture.biases != GgufBiases::kNone) {
    const bool output = facts.has_output_bias || architecture.biases == GgufBiases::kQueries;
    config["attention_bias"] = facts.has_query_bias && output;
  }
  if (architecture.biases == GgufBiases::kAll && !architecture.experts) config["mlp_bias"] = facts.has_mlp_bias;
  if (!architecture.qk_norm_field.empty()) config[architecture.qk_norm_field] = facts.has_query_norm;
  if (architecture.experts) {
    config[architecture.count_field] = keys.size(kExperts);
    config[architecture.used_field] = keys.size(kExpertsUsed);
    config[architecture.width_field] = keys.size(architecture.width_is_dense ? kFeedForward : kExpertWidth);
  } else {
    keys.integer(kExperts);
    keys.integer(kExpertsUsed);
  }
  read_settings(keys, architecture, config);
  const Json fields = Json::parse(architecture.fields);
  for (const auto& [field, value] : fields.items()) config[field] = value;
  check_settings(keys, architecture, read_decoder_config(HfConfig(config, metadata.file)));
  keys.require_all_read();
  return config;
}

}  // namespace hone
