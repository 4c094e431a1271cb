// HfConfig: reads a Hugging Face config.json field by field, and refuses unsupported fields by name.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/json.h"
#include "nn/decoder_config.h"

namespace hone {

class HfConfig {
 public:
  /// `file` is named in errors.
  HfConfig(Json json, std::string file) : json_(std::move(json)), file_(std::move(file)) {}

  /// Reads config.json of a checkpoint directory. Throws UserError if it is missing or not a JSON object.
  static HfConfig read(const std::filesystem::path& directory);
  /// The same for a file of any name.
  static HfConfig read_file(const std::filesystem::path& path);

  const Json& json() const { return json_; }
  const std::string& file() const { return file_; }

  bool has(const std::string& key) const {
    reads_->keys.insert(key);
    return json_.contains(key) && !json_.at(key).is_null();
  }
  /// A field that must be there; UserError with the field's name if it is missing or of another type.
  int64_t integer(const std::string& key) const;
  int64_t integer_or(const std::string& key, int64_t fallback) const { return has(key) ? integer(key) : fallback; }
  double number_or(const std::string& key, double fallback) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string string_or(const std::string& key, const std::string& fallback) const;

  /// The object that a field is; UserError if it is missing or something else.
  HfConfig nested(const std::string& key) const;

  /// UserError "KEY: VALUE is not supported" unless the field is absent, null, or equal to `allowed`.
  void require(const std::string& key, const Json& allowed) const;
  /// The fields, "text_config.x" of an object that was read, that nobody has asked for and that may change what the
  /// model computes: not those that are null, false, 0 or empty, and not what describes files, generation or training.
  std::vector<std::string> unread() const;
  [[noreturn]] void refuse(const std::string& what, const std::string& fix = {}) const;

  /// The first architecture of `architectures`, or what `model_type` implies.
  std::string architecture() const;

  /// Whether layer i has a sliding window: by `layer_types`, else `fallback`.
  bool layer_uses_window(int64_t layer, bool fallback) const;

  /// rope_theta and the scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (older).
  /// `partial_rotary_factor`, the share of each head under RoPE, is the default if the file has none.
  void read_rope(DecoderConfig& config, double partial_rotary_factor) const;
  /// The fields of all decoder models: sizes, head_dim, norm eps, tied embeddings, RoPE.
  DecoderConfig read_decoder(double partial_rotary_factor = 1.0) const;
  /// Experts: num_experts, num_local_experts or n_routed_experts, and the router's fields.
  MoeConfig read_moe(const std::string& intermediate_key) const;
  /// The groups of experts to which a token's choice is limited, from `n_group` and `topk_group`.
  void read_expert_groups(GroupScore score, MoeConfig& moe) const;
  /// Which layers are sparse: all that mlp_only_layers does not list, every decoder_sparse_step-th (Qwen's MoE models).
  void read_sparse_layers(DecoderConfig& config) const;
  /// Which layers are sparse: all from `first_k_dense_replace` on, of those every moe_layer_freq-th; and the layers
  /// that predict further tokens (num_nextn_predict_layers), which are not trained (DeepSeek's models, GLM).
  void read_leading_dense_layers(int64_t first_k_dense_replace, DecoderConfig& config) const;

 private:
  template <class T>
  T get(const std::string& key, const char* expected) const;

  /// Fields that have been asked for, and in which objects.
  struct Reads {
    std::set<std::string> keys;
    std::map<std::string, std::shared_ptr<Reads>> objects;
  };

  Json json_;
  std::string file_;
  std::shared_ptr<Reads> reads_ = std::make_shared<Reads>();  // of all copies
};

}  // namespace hone
