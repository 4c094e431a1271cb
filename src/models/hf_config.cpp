#include "models/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "models/registry.h"
#include "weights/other_weights.h"
#include "weights/quantization.h"

namespace hone {

HfConfig::HfConfig(Json json, std::string file) : json_(std::move(json)), file_(std::move(file)) {}

bool HfConfig::has(const std::string& key) const {
  reads_->keys.insert(key);
  return json_.contains(key) && !json_.at(key).is_null();
}

bool HfConfig::is_null(const std::string& key) const { return json_.contains(key) && json_.at(key).is_null(); }

HfConfig HfConfig::read(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  if (!std::filesystem::exists(path)) {
    if (std::filesystem::exists(directory / "adapter_config.json")) {
      throw UserError(
          "the folder has an adapter, not a model", directory.string(),
          "name the adapter's base model, and this folder as the adapter (adapter_name_or_path, --adapter)");
    }
    for (const auto& entry : std::filesystem::directory_iterator(directory)) refuse_gguf_file(entry.path());
    throw UserError("the model folder has no config.json", path.string(),
                    "give the folder of a Hugging Face checkpoint (config.json, *.safetensors, tokenizer.json)");
  }
  return read_file(path);
}

HfConfig HfConfig::read_file(const std::filesystem::path& path) {
  refuse_gguf_file(path);
  Json json = read_json(path);
  if (!json.is_object()) throw UserError("the model's config is not a JSON object", path.string(), "download it again");
  return HfConfig(std::move(json), path.string());
}

void HfConfig::refuse(const std::string& what, const std::string& fix) const { throw UserError(what, file_, fix); }

template <class T>
T HfConfig::get(const std::string& key, const char* expected) const {
  try {
    return json_.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    refuse(has(key) ? fmt::format("{}: {} is not {}", key, json_.at(key).dump(), expected)
                    : fmt::format("{} is missing from the model's config", key));
  }
}

HfConfig HfConfig::with_vocab_size(int64_t rows) const {
  constexpr const char* kKey = "vocab_size";
  Json json = json_;
  Json* const text = json.contains("text_config") && json["text_config"].is_object() ? &json["text_config"] : nullptr;
  if (text) (*text)[kKey] = rows;
  if (!text || json.contains(kKey)) json[kKey] = rows;
  return HfConfig(std::move(json), file_);
}

int64_t HfConfig::integer(const std::string& key) const {
  if (has(key) && !json_.at(key).is_number_integer())
    refuse(fmt::format("{}: {} is not an integer", key, json_.at(key).dump()));
  const auto value = get<int64_t>(key, "an integer");
  if (value < 0 || value > (int64_t{1} << 40)) refuse(fmt::format("{}: {} is out of range", key, value));
  return value;
}

int64_t HfConfig::of_all_layers(const std::string& key) const {
  if (!has(key) || !json_.at(key).is_array()) return integer(key);
  const Json& list = json_.at(key);
  const auto differs = [&](const Json& value) { return !value.is_number_integer() || value != list[0]; };
  if (list.size() < static_cast<size_t>(integer("num_hidden_layers")) ||
      std::any_of(list.begin(), list.end(), differs)) {
    refuse(fmt::format("{}: {} is not supported (only one value for all layers)", key, list.dump()));
  }
  return HfConfig({{key, list[0]}}, file_).integer(key);
}

double HfConfig::number_or(const std::string& key, double fallback) const {
  return has(key) ? get<double>(key, "a number") : fallback;
}

bool HfConfig::boolean_or(const std::string& key, bool fallback) const {
  return has(key) ? get<bool>(key, "true or false") : fallback;
}

std::string HfConfig::string_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? get<std::string>(key, "a string") : fallback;
}

HfConfig HfConfig::nested(const std::string& key) const {
  if (!has(key) || !json_.at(key).is_object()) refuse(fmt::format("{} is missing from the model's config", key));
  HfConfig object(json_.at(key), fmt::format("{} ({})", file_, key));
  std::shared_ptr<Reads>& reads = reads_->objects[key];
  if (reads) {
    object.reads_ = reads;
  } else {
    reads = object.reads_;
  }
  return object;
}

HfConfig HfConfig::text_config() const {
  HfConfig text = nested("text_config");
  for (const auto& [key, value] : text.json().items()) {
    if (json_.contains(key) && json_.at(key) == value) has(key);
  }
  if (has("quantization_config")) read_quantization(json_, file_);  // refuses unsupported quantisation
  return text;
}

bool describes_no_computation(const std::string& key) {
  static const std::set<std::string> keys = {
      // the file and its origin
      "architectures", "attn_implementation", "auto_map", "base_model", "dtype", "finetuning_task", "id2label",
      "is_llama_config", "label2id", "license", "model_type", "name_or_path", "num_labels", "problem_type",
      "tokenizer_class", "torch_dtype", "transformers.js_config", "transformers_js_config", "transformers_version",
      "transformers_weights", "unsloth_fixed", "unsloth_version",
      // what a forward pass of transformers returns
      "output_attentions", "output_hidden_states", "return_dict", "tf_legacy_loss", "torchscript", "use_return_dict",
      // generation: GenerationConfig's, which old versions wrote here too
      "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
      "encoder_no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty",
      "length_penalty", "max_length", "max_new_tokens", "min_length", "min_p", "no_repeat_ngram_size",
      "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "remove_invalid_values",
      "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "task_specific_params", "temperature",
      "top_k", "top_p", "typical_p", "use_cache",
      // training by other programs: this one has its own keys
      "aux_loss_alpha", "ep_size", "output_router_logits", "router_aux_loss_coef", "seq_aux", "z_loss_coef",
      // other names of fields that are read
      "experts_per_token", "initial_context_length", "max_window_layers", "qk_head_dim",
      // layers that predict several tokens, which are carried by their tensors (weights/promised_layers.h)
      "num_mtp_layers", "num_mtp_modules", "num_nextn_predict_layers", "use_mtp",
      // initial values of a new model
      "init_method", "rescale_prenorm_residual", "time_step_floor", "time_step_max",
      // how other programs divide and run the scan of Mamba-2; a width that its heads state
      "chunk_size", "expand", "mamba_chunk_size", "mamba_ssm_cache_dtype", "use_mamba_kernels",
      // how a program runs a shared expert beside others, and which logits it computes
      "moe_shared_expert_overlap", "num_logits_to_keep",
      // RoPE of images and videos; tokens of text have one position
      "mrope_interleaved", "mrope_section",
      // how images reach the text model, in parts that are copied
      "multimodal_projector_bias", "projection_hidden_size", "projection_layer_norm_eps", "projector_hidden_act",
      "spatial_merge_size", "use_unified_vision_chunk",
      // in which dtype outputs of routed and shared experts are added
      "enable_moe_fp32_combine",
      // embeddings for each layer and shared keys, in models without them
      "use_double_wide_mlp", "vocab_size_per_layer_input",
      // size of dense layers, in models without them
      "intermediate_size",
      // tokens, a head of classification and shared caches, which Hunyuan's files mention and do not use
      "cla_share_factor", "class_num", "dense_list", "im_end_id", "im_newline_id", "im_start_id", "mask_init_id",
      "org_vocab_size", "pad_id", "pool_type", "text_end_id", "text_start_id"};
  for (const char* prefix : {"_", "audio_", "image_", "mtp_", "video_", "vision_"}) {
    if (key.starts_with(prefix)) return true;  // private to transformers; parts that are copied and not trained
  }
  return key.ends_with("_token_id") || key.ends_with("_token_index") || keys.contains(key);
}

namespace {

/// Whether a feature's value disables it.
bool is_off(const Json& value) {
  return value.is_null() || value == false || (value.is_number() && value == 0) ||
         (!value.is_number() && !value.is_boolean() && value.empty()) || value == "";
}

}  // namespace

std::vector<std::string> HfConfig::unread() const {
  std::vector<std::string> fields;
  for (const auto& [key, value] : json_->items()) {
    if (const auto object = reads_->objects.find(key); object != reads_->objects.end()) {
      HfConfig inner(value, file_);
      inner.reads_ = object->second;
      for (const std::string& field : inner.unread()) fields.push_back(key + "." + field);
    } else if (!reads_->keys.contains(key) && !describes_no_computation(key) && !is_off(value)) {
      fields.push_back(key);
    }
  }
  return fields;
}

void HfConfig::require(const std::string& key, const Json& allowed) const {
  if (has(key) && json_.at(key) != allowed) {
    refuse(fmt::format("{}: {} is not supported (only {})", key, json_.at(key).dump(), allowed.dump()));
  }
}

std::string HfConfig::architecture() const {
  if (has("architectures") && json_.at("architectures").is_array() && !json_.at("architectures").empty() &&
      json_.at("architectures")[0].is_string()) {
    return json_.at("architectures")[0].get<std::string>();
  }
  const std::string type = string_or("model_type", "");
  const Architecture* const known = architecture_of_type(type);
  return known == nullptr ? type : known->name;
}

bool HfConfig::layer_uses_window(int64_t layer, bool fallback) const {
  if (!has("layer_types")) return fallback;
  const Json& types = json_.at("layer_types");
  if (!types.is_array() || layer >= static_cast<int64_t>(types.size())) refuse("layer_types does not list every layer");
  const Json& type = types[static_cast<size_t>(layer)];
  if (type == "sliding_attention") return true;
  if (type != "full_attention") refuse(fmt::format("layer_types: {} is not supported", type.dump()));
  return false;
}

void HfConfig::read_late_windows(DecoderConfig& config) const {
  const int64_t window = boolean_or("use_sliding_window", false) ? sliding_window_or(4096) : 0;
  const int64_t first_window_layer = integer_or("max_window_layers", 28);
  for (int64_t i = 0; i < static_cast<int64_t>(config.layers.size()); ++i) {
    if (window == 0 && layer_uses_window(i, false)) {
      refuse("layer_types has sliding_attention, but use_sliding_window or sliding_window says that there is none");
    }
    config.layers[static_cast<size_t>(i)].sliding_window = layer_uses_window(i, i >= first_window_layer) ? window : 0;
  }
}

namespace {

/// The scaling in `rope_parameters`, whose defaults are those of the type; `rope` checks the types of its fields.
RopeScaling read_scaling(const HfConfig& rope) {
  RopeScaling scaling;
  scaling.type = rope_type_of(rope.string_or("rope_type", rope.string_or("type", "default")));
  const auto number = [&](const char* key) {
    return rope.has(key) ? std::optional<double>(rope.number_or(key, 0)) : std::nullopt;
  };
  scaling.factor = number("factor");
  if (rope.has("original_max_position_embeddings")) {
    scaling.original_max_position_embeddings = rope.integer("original_max_position_embeddings");
  }
  scaling.beta_fast = rope.number_or("beta_fast", scaling.beta_fast);
  scaling.beta_slow = rope.number_or("beta_slow", scaling.beta_slow);
  scaling.mscale = number("mscale");
  scaling.mscale_all_dim = number("mscale_all_dim");
  scaling.attention_factor = number("attention_factor");
  scaling.truncate = rope.boolean_or("truncate", true);
  scaling.low_freq_factor = rope.number_or("low_freq_factor", scaling.low_freq_factor);
  scaling.high_freq_factor = rope.number_or("high_freq_factor", scaling.high_freq_factor);
  return scaling;
}

}  // namespace

/// The parameters that one object states, or none (`rope` is empty then): what it leaves out stands beside it.
RopeParameters HfConfig::rope_of(const HfConfig& rope, int64_t head_dim, const ClassDefaults& defaults) const {
  RopeParameters result;
  const double stated = number_or("partial_rotary_factor", defaults.partial_rotary_factor.value_or(1.0));
  const double factor = rope.number_or("partial_rotary_factor", stated);
  if (!(factor > 0 && factor <= 1)) refuse(fmt::format("partial_rotary_factor: {} is not in (0, 1]", factor));
  result.scaling = read_scaling(rope);
  const bool proportional = result.scaling.type == RopeType::kProportional;  // its factor leaves the heads whole
  if (proportional) result.scaling.proportion = factor;
  if (!proportional && !defaults.partial_rotary_factor && factor != 1) {
    refuse(fmt::format("partial_rotary_factor: {} is not supported: this architecture rotates whole heads", factor));
  }
  result.rope_theta = rope.number_or("rope_theta", number_or("rope_theta", defaults.rope_theta));
  result.rotary_dim = proportional ? head_dim : static_cast<int64_t>(static_cast<double>(head_dim) * factor);
  if (result.rotary_dim < 2 || result.rotary_dim % 2 != 0) {
    refuse(fmt::format(
        "partial_rotary_factor: {} of head_dim {} gives {} dimensions: the number must be even and positive", factor,
        head_dim, result.rotary_dim));
  }
  result.max_position_embeddings = integer_or("max_position_embeddings", defaults.max_position_embeddings);
  if (result.max_position_embeddings == 0) refuse("max_position_embeddings: 0 is out of range");
  // transformers lets the outer field win where the type of scaling knows one.
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const RopeType type = result.scaling.type;
  if (has(kOriginal) && (type == RopeType::kYarn || type == RopeType::kLlama3)) {
    result.scaling.original_max_position_embeddings = integer(kOriginal);
  }
  if (!result.scaling.original_max_position_embeddings && (type == RopeType::kYarn || type == RopeType::kLlama3)) {
    result.scaling.original_max_position_embeddings = result.max_position_embeddings;
  }
  return result;
}

RopeParameters HfConfig::rope_of_layer_type(const std::string& type, int64_t head_dim,
                                            const ClassDefaults& defaults) const {
  constexpr const char* kParameters = "rope_parameters";
  if (has(kParameters)) {
    const HfConfig types = nested(kParameters);
    if (!types.has(type)) refuse(fmt::format("{}.{} is missing from the model's config", kParameters, type));
    return rope_of(types.nested(type), head_dim, defaults);
  }
  RopeParameters result = rope_of(HfConfig(Json::object(), file_), head_dim, defaults);
  result.scaling = defaults.rope_scaling;
  return result;
}

void HfConfig::read_rope(DecoderConfig& config, const ClassDefaults& defaults) const {
  std::optional<RopeParameters> stated;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!has(key)) continue;
    const Json& fields = json_.at(key);
    if (!fields.is_object()) refuse(fmt::format("{} is not an object", key));
    if (fields.empty()) continue;
    for (const auto& [name, value] : fields.items()) {
      if (value.is_object()) {
        refuse(fmt::format("{}.{} is an object: parameters for each type of layer are not supported", key, name));
      }
    }
    const RopeParameters read = rope_of(nested(key), config.head_dim, defaults);
    if (stated && *stated != read) {
      refuse("rope_scaling and rope_parameters are both there and differ",
             "transformers 5 computes with rope_scaling (and takes rope_theta from it or from the field beside it), "
             "other programs with rope_parameters: remove the one that is wrong");
    }
    stated = read;
  }
  if (!stated) {
    stated = rope_of(HfConfig(Json::object(), file_), config.head_dim, defaults);
    if (!has("rope_parameters")) stated->scaling = defaults.rope_scaling;
  }
  config.rope = *stated;
}

namespace {

int64_t layers_of(const HfConfig& config, const ClassDefaults& defaults) {
  return defaults.num_hidden_layers > 0 ? defaults.num_hidden_layers : config.integer("num_hidden_layers");
}

}  // namespace

DecoderConfig HfConfig::read_decoder(const ClassDefaults& defaults) const {
  require("hidden_act", "silu");
  require("attention_dropout", 0.0);
  require("pretraining_tp", 1);
  if (has("quantization_config")) read_quantization(json_, file_);  // refuses unsupported quantisation
  DecoderConfig config;
  config.vocab_size = integer("vocab_size");
  config.hidden_size = integer("hidden_size");
  config.num_attention_heads = integer("num_attention_heads");
  const bool as_many = is_null("num_key_value_heads") || defaults.num_key_value_heads == 0;
  config.num_key_value_heads =
      integer_or("num_key_value_heads", as_many ? config.num_attention_heads : defaults.num_key_value_heads);
  const int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  if (heads == 0 || kv_heads == 0 || heads % kv_heads != 0) {
    refuse(fmt::format("{} attention heads cannot share {} key-value heads", heads, kv_heads));
  }
  const bool divided = is_null("head_dim") || defaults.head_dim == 0;
  config.head_dim = integer_or("head_dim", divided ? config.hidden_size / heads : defaults.head_dim);
  if (config.vocab_size == 0 || config.hidden_size == 0 || config.head_dim == 0 || config.head_dim % 2 != 0) {
    refuse("vocab_size, hidden_size and head_dim must be positive, head_dim even");
  }
  config.v_head_dim = config.head_dim;
  config.rms_norm_eps = number_or("rms_norm_eps", defaults.rms_norm_eps);
  config.tie_word_embeddings = boolean_or("tie_word_embeddings", false);
  const bool no_padding = is_null("pad_token_id") || (has("pad_token_id") && json_.at("pad_token_id") == -1);
  config.pad_token_id = no_padding ? -1 : integer_or("pad_token_id", defaults.pad_token_id);
  config.initializer_range = number_or("initializer_range", 0.02);
  const int64_t layers = layers_of(*this, defaults);
  if (layers == 0 || layers > 10000) refuse(fmt::format("num_hidden_layers: {} is out of range", layers));
  config.layers.resize(static_cast<size_t>(layers));
  if (!defaults.rope_by_layer_type) read_rope(config, defaults);
  return config;
}

MoeConfig HfConfig::read_moe(const std::string& intermediate_key, const ClassDefaults& defaults) const {
  MoeConfig moe;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}) {
    if (!has(key)) continue;
    if (moe.num_experts > 0 && of_all_layers(key) != moe.num_experts) {
      refuse(fmt::format("{} and another name of this field have different values", key));
    }
    moe.num_experts = of_all_layers(key);
  }
  if (moe.num_experts == 0)
    refuse("num_experts is missing from the model's config",
           "its other names are num_local_experts, n_routed_experts, moe_num_experts");
  // Every tensor of every expert gets a name: implausible numbers are refused before the names are built.
  constexpr int64_t kMostExperts = int64_t{1} << 18;
  const int64_t layers = layers_of(*this, defaults);
  if (moe.num_experts > kMostExperts / std::max<int64_t>(layers, 1)) {
    refuse(fmt::format("num_experts: {} in {} layers exceed {} in total", moe.num_experts, layers, kMostExperts));
  }
  bool chosen = false;
  for (const char* key : {"num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"}) {
    if (!has(key)) continue;
    if (moe.num_experts_per_tok > 0 && of_all_layers(key) != moe.num_experts_per_tok) {
      refuse(fmt::format("num_experts_per_tok and {}, another name of this field, have different values", key));
    }
    moe.num_experts_per_tok = of_all_layers(key);
    chosen = true;
  }
  if (!chosen) {
    refuse("num_experts_per_tok is missing from the model's config",
           "its other names are moe_k, moe_topk, top_k_experts");
  }
  moe.moe_intermediate_size = integer(intermediate_key);
  if (moe.num_experts_per_tok < 1 || moe.num_experts_per_tok > moe.num_experts) {
    refuse(
        fmt::format("num_experts_per_tok: {} of {} experts is out of range", moe.num_experts_per_tok, moe.num_experts));
  }
  moe.router_aux_loss_coef = number_or("router_aux_loss_coef", defaults.router_aux_loss_coef);
  return moe;
}

void HfConfig::read_expert_groups(GroupScore score, int64_t groups, int64_t kept, MoeConfig& moe) const {
  if (groups < 1 || groups > kMaxRouterGroups || moe.num_experts % groups != 0) {
    refuse(fmt::format("n_group: {} experts cannot be cut into {} groups (1 to {})", moe.num_experts, groups,
                       kMaxRouterGroups));
  }
  const int64_t size = moe.num_experts / groups;
  if (kept < 1 || kept > groups || moe.num_experts_per_tok > kept * size) {
    refuse(fmt::format("topk_group: {} of {} groups of {} experts have fewer than the {} experts of a token", kept,
                       groups, size, moe.num_experts_per_tok));
  }
  if (score == GroupScore::kTopTwo && size < 2) {
    refuse(
        fmt::format("n_group: {} groups of one expert each, but the router adds up the two best of a group", groups));
  }
  moe.router.groups = groups;
  moe.router.kept_groups = kept;
  moe.router.group_score = score;
}

void HfConfig::read_corrected_experts(bool normalise, int64_t shared_experts, DecoderConfig& config) const {
  MoeConfig& moe = config.moe;
  require("scoring_func", "sigmoid");
  require("topk_method", "noaux_tc");
  moe.router.scores = RouterScores::kSigmoid;
  moe.router.normalise = boolean_or("norm_topk_prob", normalise);
  moe.router.scale = static_cast<float>(number_or("routed_scaling_factor", 1.0));
  read_expert_groups(GroupScore::kTopTwo, integer_or("n_group", 1), integer_or("topk_group", 1), moe);
  moe.selection_bias = true;
  moe.shared_expert_intermediate_size = moe.moe_intermediate_size * integer_or("n_shared_experts", shared_experts);
  config.names.shared_expert = "mlp.shared_experts";
}

void HfConfig::read_sparse_layers(DecoderConfig& config) const {
  const int64_t sparse_step = std::max<int64_t>(integer_or("decoder_sparse_step", 1), 1);
  std::set<int64_t> dense;
  if (has("mlp_only_layers")) {
    const Json& layers = json_.at("mlp_only_layers");
    const auto is_index = [](const Json& layer) { return layer.is_number_integer(); };
    if (!layers.is_array() || !std::all_of(layers.begin(), layers.end(), is_index)) {
      refuse("mlp_only_layers is not a list of layers");
    }
    dense = layers.get<std::set<int64_t>>();
  }
  for (int64_t i = 0; i < static_cast<int64_t>(config.layers.size()); ++i) {
    LayerConfig& layer = config.layers[static_cast<size_t>(i)];
    layer.moe = !dense.contains(i) && (i + 1) % sparse_step == 0;
    if (!layer.moe) layer.intermediate_size = integer("intermediate_size");
  }
}

void HfConfig::read_kinds_of_mlp(DecoderConfig& config) const {
  constexpr const char* kTypes = "mlp_layer_types";
  const bool named = has(kTypes);
  const Json types = named ? json_.at(kTypes) : Json();
  if (named && (!types.is_array() || types.size() != config.layers.size())) {
    refuse("mlp_layer_types does not list every layer");
  }
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (named && types[i] != "sparse" && types[i] != "dense") {
      refuse(fmt::format("mlp_layer_types: {} is not supported", types[i].dump()));
    }
    LayerConfig& layer = config.layers[i];
    layer.moe = named ? types[i] == "sparse" : i > 0;
    layer.intermediate_size = layer.moe ? 0 : integer("intermediate_size");
  }
  const std::vector<LayerConfig> by_kind = config.layers;
  read_leading_dense_layers(1, config);
  for (const char* key : {"first_k_dense_replace", "moe_layer_freq"}) {
    if (has(key) && by_kind != config.layers) {
      refuse(fmt::format("{} contradicts mlp_layer_types, whose default is that the first layer is dense", key));
    }
  }
  config.layers = by_kind;
}

void HfConfig::read_leading_dense_layers(int64_t first_k_dense_replace, DecoderConfig& config) const {
  const int64_t first_sparse = integer_or("first_k_dense_replace", first_k_dense_replace);
  const int64_t frequency = integer_or("moe_layer_freq", 1), count = static_cast<int64_t>(config.layers.size());
  if (frequency == 0) refuse("moe_layer_freq: 0 is out of range");
  for (int64_t i = 0; i < count; ++i) {
    LayerConfig& layer = config.layers[static_cast<size_t>(i)];
    layer.moe = i >= first_sparse && i % frequency == 0;
    if (!layer.moe) layer.intermediate_size = integer("intermediate_size");
  }
}

}  // namespace hone
