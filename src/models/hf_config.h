// HfConfig: reads a Hugging Face config.json field by field, and refuses unsupported fields by name.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/json_value.h"
#include "nn/decoder_config.h"

namespace hone {

class HfConfig {
 public:
  /// `file` is the path in error messages.
  HfConfig(Json json, std::string file);

  /// Reads config.json of a checkpoint directory. Throws UserError if it is missing or not a JSON object.
  static HfConfig read(const std::filesystem::path& directory);
  /// The same for a file with any name.
  static HfConfig read_file(const std::filesystem::path& path);

  const Json& json() const { return json_; }
  const std::string& file() const { return file_; }

  bool has(const std::string& key) const;
  /// The value of a required field. Throws UserError with the field's name if it is missing or has another type.
  int64_t integer(const std::string& key) const;
  int64_t integer_or(const std::string& key, int64_t fallback) const { return has(key) ? integer(key) : fallback; }
  double number_or(const std::string& key, double fallback) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string string_or(const std::string& key, const std::string& fallback) const;

  /// A field that is an object. Throws UserError if it is missing or not an object.
  HfConfig nested(const std::string& key) const;

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

  /// Reads rope_theta and the scaling from `rope_parameters` (transformers 5), or from `rope_theta` and `rope_scaling`
  /// (older). The argument is the default of `partial_rotary_factor`, the rotated share of each head.
  void read_rope(DecoderConfig& config, double partial_rotary_factor) const;
  /// Reads the fields that all decoder models have: sizes, head_dim, norm eps, tied embeddings, RoPE.
  DecoderConfig read_decoder(double partial_rotary_factor = 1.0) const;
  /// Reads the number of experts (num_experts, num_local_experts or n_routed_experts) and the router's fields.
  MoeConfig read_moe(const std::string& intermediate_key) const;
  /// Reads `n_group` and `topk_group`, which limit a token's choice to the best groups of experts.
  void read_expert_groups(GroupScore score, MoeConfig& moe) const;
  /// Reads which layers are sparse: each decoder_sparse_step-th one that is not in mlp_only_layers (Qwen's MoE models).
  void read_sparse_layers(DecoderConfig& config) const;
  /// Reads which layers are sparse: each moe_layer_freq-th one from `first_k_dense_replace` on; and the multi-token
  /// prediction layers (num_nextn_predict_layers), which are not trained (DeepSeek's models, GLM).
  void read_leading_dense_layers(int64_t first_k_dense_replace, DecoderConfig& config) const;

 private:
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
