// The architectures this program trains. Nothing outside this folder knows one by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/hf_config.h"
#include "nn/decoder.h"

namespace hone {

/// One architecture: how its config.json becomes a decoder. Each has a file of its own.
struct Architecture {
  std::string name;        ///< as in `architectures` of config.json
  std::string model_type;  ///< as in `model_type`
  DecoderConfig (*read)(const HfConfig& config);
  bool experts = true;                  ///< has a router and experts
  std::string released = {};            ///< what was released of it, for people: "Qwen3-30B-A3B, Qwen3-235B-A22B"
  std::vector<std::string> cases = {};  ///< reference cases (tests/fixtures/goldens) that hold it in every test run
};

const std::vector<Architecture>& architectures();

/// What config.json describes. Throws UserError for an architecture or option that is not supported, by its name.
DecoderConfig read_decoder_config(const HfConfig& config);

DecoderConfig read_qwen3_moe(const HfConfig& config);
DecoderConfig read_qwen3(const HfConfig& config);
DecoderConfig read_qwen3_next(const HfConfig& config);
DecoderConfig read_qwen3_5_moe(const HfConfig& config);
DecoderConfig read_qwen3_5_moe_text(const HfConfig& config);
DecoderConfig read_qwen2_moe(const HfConfig& config);
DecoderConfig read_gpt_oss(const HfConfig& config);
DecoderConfig read_mixtral(const HfConfig& config);
DecoderConfig read_olmoe(const HfConfig& config);
DecoderConfig read_granitemoe(const HfConfig& config);
DecoderConfig read_granitemoeshared(const HfConfig& config);
DecoderConfig read_glm4_moe(const HfConfig& config);
DecoderConfig read_llama(const HfConfig& config);
DecoderConfig read_deepseek_v2(const HfConfig& config);
DecoderConfig read_deepseek_v3(const HfConfig& config);

}  // namespace hone
