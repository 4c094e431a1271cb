// The architectures that this program trains. Only code in this folder depends on a particular one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/hf_config.h"
#include "nn/decoder.h"

namespace hone {

/// One architecture and the function that reads its config.json. Each has its own file.
struct Architecture {
  std::string name;        ///< as in `architectures` of config.json
  std::string model_type;  ///< as in `model_type`
  DecoderConfig (*read)(const HfConfig& config);
  bool experts = true;                  ///< has a router and experts
  std::string released = {};            ///< released models, for users: "Qwen3-30B-A3B, Qwen3-235B-A22B"
  std::vector<std::string> cases = {};  ///< its reference cases (tests/fixtures/goldens)
  /// What other files say for the same in `architectures` and `model_type`.
  std::vector<std::string> other_names = {}, other_types = {};
};

const std::vector<Architecture>& architectures();

/// The architecture of this name; null if there is none.
const Architecture* find_architecture(const std::string& name);
/// The first one of this model_type; null if there is none.
const Architecture* architecture_of_type(const std::string& model_type);

/// The decoder that config.json describes. Throws UserError with the name of an unsupported architecture or option.
DecoderConfig read_decoder_config(const HfConfig& config);

DecoderConfig read_qwen3_moe(const HfConfig& config);
DecoderConfig read_qwen3(const HfConfig& config);
DecoderConfig read_qwen3_next(const HfConfig& config);
DecoderConfig read_qwen3_5_moe(const HfConfig& config);
DecoderConfig read_qwen3_5_moe_text(const HfConfig& config);
DecoderConfig read_qwen2(const HfConfig& config);
DecoderConfig read_qwen2_moe(const HfConfig& config);
DecoderConfig read_gpt_oss(const HfConfig& config);
DecoderConfig read_mistral(const HfConfig& config);
DecoderConfig read_mixtral(const HfConfig& config);
DecoderConfig read_olmoe(const HfConfig& config);
DecoderConfig read_granitemoe(const HfConfig& config);
DecoderConfig read_granitemoeshared(const HfConfig& config);
DecoderConfig read_granitemoehybrid(const HfConfig& config);
DecoderConfig read_gemma4(const HfConfig& config);
DecoderConfig read_gemma4_text(const HfConfig& config);
DecoderConfig read_nemotron_h(const HfConfig& config);
DecoderConfig read_glm4_moe(const HfConfig& config);
DecoderConfig read_llama(const HfConfig& config);
DecoderConfig read_deepseek_v2(const HfConfig& config);
DecoderConfig read_deepseek_v3(const HfConfig& config);
DecoderConfig read_ernie4_5_moe(const HfConfig& config);
DecoderConfig read_minimax_m2(const HfConfig& config);
DecoderConfig read_glm4_moe_lite(const HfConfig& config);
DecoderConfig read_dots1(const HfConfig& config);
DecoderConfig read_mistral4(const HfConfig& config);
DecoderConfig read_mistral3(const HfConfig& config);
DecoderConfig read_qwen3_vl_moe(const HfConfig& config);
DecoderConfig read_hunyuan_v1_moe(const HfConfig& config);
DecoderConfig read_kimi_k25(const HfConfig& config);
DecoderConfig read_solar_open(const HfConfig& config);
DecoderConfig read_hy_v3(const HfConfig& config);

}  // namespace hone
