// HfConfig: reads a Hugging Face config.json field by field, and refuses unsupported fields by name.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/text/json_value.h"
#include "nn/decoder_config.h"

namespace hone {

/// What an architecture's config class in transformers 5 assumes for fields that config.json lacks, where the classes
/// differ. Sizes are never assumed: a file without them is refused.
struct ClassDefaults {
  int64_t num_key_value_heads = 0;  ///< 0: as many as num_attention_heads
  int64_t head_dim = 0;             ///< 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = {};                     ///< where config.json says nothing about RoPE
  std::optional<double> partial_rotary_factor = {};  ///< none: the model rotates whole heads
  int64_t pad_token_id = -1;                         ///< -1: none
  double router_aux_loss_coef = 0.001;
  bool rope_by_layer_type = false;  ///< read_decoder() leaves RoPE to rope_of_layer_type()
  int64_t num_hidden_layers = 0;    ///< above 0: known from elsewhere, and num_hidden_layers is not read
};

/// Whether a field of config.json has no influence on a forward or backward pass.
bool describes_no_computation(const std::string& key);

class HfConfig {
 public:
  /// `file` is the path in error messages.
  HfConfig(Json json, std::string file);

  /// Reads config.json of a checkpoint directory. Throws UserError if it is missing or not a JSON object.
  static HfConfig read(const std::filesystem::path& directory);
  /// The same for a file with any name.
  static HfConfig read_file(const std::filesystem::path& path);

  /// The same with another vocab_size, in text_config where there is one.
  HfConfig with_vocab_size(int64_t rows) const;

  const Json& json() const { return json_; }
  const std::string& file() const { return file_; }

  bool has(const std::string& key) const;
  /// Whether the field is there and null, which can mean something else than a missing field.
  bool is_null(const std::string& key) const;
  /// The value of a required field. Throws UserError with the field's name if it is missing or has another type.
  int64_t integer(const std::string& key) const;
  int64_t integer_or(const std::string& key, int64_t fallback) const { return has(key) ? integer(key) : fallback; }
  /// The same of a field that is an integer, or a list of as many equal ones as there are layers, or more.
  int64_t of_all_layers(const std::string& key) const;
  double number_or(const std::string& key, double fallback) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string string_or(const std::string& key, const std::string& fallback) const;

  /// A field that is an object. Throws UserError if it is missing or not an object.
  HfConfig nested(const std::string& key) const;
  /// The text model's part of a config.json that has other parts. Copies of its fields beside it say nothing new; those
  /// that differ are unread().
  HfConfig text_config() const;

  /// Throws UserError "KEY: VALUE is not supported" unless the field is absent, null, or equal to `allowed`.
  void require(const std::string& key, const Json& allowed) const;
  /// Fields that have not been read and may change the computation: not fields that are null, false, 0 or empty, nor
  /// fields about files, generation or training. A field of a nested object is "text_config.x".
  std::vector<std::string> unread() const;
  [[noreturn]] void refuse(const std::string& what, const std::string& fix = {}) const;

  /// The first entry of `architectures`, or the architecture that belongs to `model_type`.
  std::string architecture() const;

  /// Whether layer `layer` has a sliding window, by `layer_types`; `fallback` if that is absent.
  bool layer_uses_window(int64_t layer, bool fallback) const;
  /// `sliding_window`: null means none (0), a missing field the class's default.
  int64_t sliding_window_or(int64_t fallback) const {
    return is_null("sliding_window") ? 0 : integer_or("sliding_window", fallback);
  }

  /// Reads the windows of Qwen's dense models: with use_sliding_window, layers from max_window_layers on have one, or
  /// those that layer_types names. UserError where layer_types names one and the rest says that there is none.
  void read_late_windows(DecoderConfig& config) const;

  /// Reads rope_theta and the scaling from `rope_scaling` or `rope_parameters`, and what these leave out from the
  /// fields beside them. UserError where both are there and differ: programs choose differently between them.
  void read_rope(DecoderConfig& config, const ClassDefaults& defaults) const;
  /// The RoPE of one type of layers, from rope_parameters.TYPE; the defaults where rope_parameters is missing.
  RopeParameters rope_of_layer_type(const std::string& type, int64_t head_dim, const ClassDefaults& defaults) const;
  /// Reads the fields that all decoder models have: sizes, head_dim, norm eps, tied embeddings, RoPE.
  DecoderConfig read_decoder(const ClassDefaults& defaults) const;
  /// Reads the number of experts (num_experts, num_local_experts or n_routed_experts) and the router's fields.
  MoeConfig read_moe(const std::string& intermediate_key, const ClassDefaults& defaults) const;
  /// Takes `n_group` (groups) and `topk_group` (kept), which limit a token's choice to the best groups of experts.
  void read_expert_groups(GroupScore score, int64_t groups, int64_t kept, MoeConfig& moe) const;
  /// Reads DeepSeek-V3's router and shared experts beside attention of any kind: sigmoids, a selection bias, groups
  /// scored by their two best. What config.json lacks has these values.
  void read_corrected_experts(bool normalise, int64_t shared_experts, DecoderConfig& config) const;
  /// Reads which layers are sparse: each decoder_sparse_step-th one that is not in mlp_only_layers (Qwen's MoE models).
  void read_sparse_layers(DecoderConfig& config) const;
  /// Reads which layers are sparse: those that `mlp_layer_types` names or, without it, all but the first. Classes with
  /// this field ignore first_k_dense_replace and moe_layer_freq, which other programs read: a file in which they say
  /// something else is refused.
  void read_kinds_of_mlp(DecoderConfig& config) const;
  /// Reads which layers are sparse: each moe_layer_freq-th one from `first_k_dense_replace` on (DeepSeek's models,
  /// GLM).
  void read_leading_dense_layers(int64_t first_k_dense_replace, DecoderConfig& config) const;

 private:
  RopeParameters rope_of(const HfConfig& rope, int64_t head_dim, const ClassDefaults& defaults) const;

  template <class T>
  T get(const std::string& key, const char* expected) const;

  /// Fields that have been read, by object.
  struct Reads {
    std::set<std::string> keys;
    std::map<std::string, std::shared_ptr<Reads>> objects;
  };

  JsonValue json_;
  std::string file_;
  std::shared_ptr<Reads> reads_ = std::make_shared<Reads>();  // shared by all copies
};

}  // namespace hone
