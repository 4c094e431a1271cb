#include "models/registry.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/contains.h"
#include "core/base/error.h"

namespace hone {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> list = {
      {.name = "Qwen3MoeForCausalLM",
       .model_type = "qwen3_moe",
       .read = &read_qwen3_moe,
       .released = "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
       .cases = {"qwen3_moe", "qwen3_moe_hard"}},
      {.name = "Qwen3VLMoeForConditionalGeneration",
       .model_type = "qwen3_vl_moe",
       .read = &read_qwen3_vl_moe,
       .released = "Qwen3-VL-30B-A3B, Qwen3-VL-235B-A22B (the text model)",
       .cases = {"qwen3_vl_moe", "qwen3_vl_moe_tied"}},
      {.name = "Qwen3_5MoeForConditionalGeneration",
       .model_type = "qwen3_5_moe",
       .read = &read_qwen3_5_moe,
       .released = "Qwen3.6-35B-A3B, Qwen3.5-35B-A3B, 122B-A10B, 397B-A17B (the text model)",
       .cases = {"qwen3_5_moe_vl"}},
      {.name = "Qwen3_5MoeForCausalLM",
       .model_type = "qwen3_5_moe_text",
       .read = &read_qwen3_5_moe_text,
       .released = "the text model of Qwen3.5-MoE alone",
       .cases = {"qwen3_5_moe", "qwen3_5_moe_long"}},
      {.name = "Qwen3NextForCausalLM",
       .model_type = "qwen3_next",
       .read = &read_qwen3_next,
       .released = "Qwen3-Next-80B-A3B",
       .cases = {"qwen3_next"}},
      {.name = "Qwen2MoeForCausalLM",
       .model_type = "qwen2_moe",
       .read = &read_qwen2_moe,
       .released = "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
       .cases = {"qwen2_moe"}},
      {.name = "MixtralForCausalLM",
       .model_type = "mixtral",
       .read = &read_mixtral,
       .released = "Mixtral-8x7B, Mixtral-8x22B",
       .cases = {"mixtral"}},
      {.name = "OlmoeForCausalLM",
       .model_type = "olmoe",
       .read = &read_olmoe,
       .released = "OLMoE-1B-7B",
       .cases = {"olmoe", "olmoe_clip"}},
      {.name = "GraniteMoeForCausalLM",
       .model_type = "granitemoe",
       .read = &read_granitemoe,
       .released = "granite-3.0 and 3.1: 1b-a400m, 3b-a800m",
       .cases = {"granitemoe"}},
      {.name = "GraniteMoeSharedForCausalLM",
       .model_type = "granitemoeshared",
       .read = &read_granitemoeshared,
       .released = "moe-7b-1b-active-shared-experts",
       .cases = {"granitemoeshared"}},
      {.name = "GraniteMoeHybridForCausalLM",
       .model_type = "granitemoehybrid",
       .read = &read_granitemoehybrid,
       .released = "granite-4.0: h-tiny, h-small, h-micro, h-1b, h-350m",
       .cases = {"granitemoehybrid", "granitemoehybrid_rope", "granitemoehybrid_dense"}},
      {.name = "NemotronHForCausalLM",
       .model_type = "nemotron_h",
       .read = &read_nemotron_h,
       .released = "Nemotron-3-Nano-30B-A3B, Nemotron-3.5-Lightning-30B-A3B",
       .cases = {"nemotron_h", "nemotron_h_groups"}},
      {.name = "DeepseekV2ForCausalLM",
       .model_type = "deepseek_v2",
       .read = &read_deepseek_v2,
       .released = "DeepSeek-V2, DeepSeek-V2-Lite, DeepSeek-Coder-V2",
       .cases = {"deepseek_v2", "deepseek_v2_yarn"}},
      {.name = "DeepseekV3ForCausalLM",
       .model_type = "deepseek_v3",
       .read = &read_deepseek_v3,
       .released = "DeepSeek-V3, DeepSeek-R1, Kimi-K2, Moonlight-16B-A3B",
       .cases = {"deepseek_v3", "deepseek_v3_yarn", "deepseek_v3_halves"},
       .other_types = {"kimi_k2"}},
      {.name = "KimiK25ForConditionalGeneration",
       .model_type = "kimi_k25",
       .read = &read_kimi_k25,
       .released = "Kimi-K2.5, Kimi-K2.6 (the text model)",
       .cases = {"kimi_k25", "kimi_k25_int4"},
       .other_names = {"Kimi_K25ForConditionalGeneration"}},
      {.name = "Glm4MoeForCausalLM",
       .model_type = "glm4_moe",
       .read = &read_glm4_moe,
       .released = "GLM-4.5, GLM-4.5-Air, GLM-4.6",
       .cases = {"glm4_moe"}},
      {.name = "Glm4MoeLiteForCausalLM",
       .model_type = "glm4_moe_lite",
       .read = &read_glm4_moe_lite,
       .released = "GLM-4.7-Flash",
       .cases = {"glm4_moe_lite", "glm4_moe_lite_wide"}},
      {.name = "SolarOpenForCausalLM",
       .model_type = "solar_open",
       .read = &read_solar_open,
       .released = "Solar-Open-100B",
       .cases = {"solar_open", "solar_open_groups"}},
      {.name = "HYV3ForCausalLM",
       .model_type = "hy_v3",
       .read = &read_hy_v3,
       .released = "Hy3-preview",
       .cases = {"hy_v3", "hy_v3_kinds"}},
      {.name = "MiniMaxM2ForCausalLM",
       .model_type = "minimax_m2",
       .read = &read_minimax_m2,
       .released = "MiniMax-M2, M2.1, M2.5, M2.7",
       .cases = {"minimax_m2", "minimax_m2_published"}},
      {.name = "Ernie4_5_MoeForCausalLM",
       .model_type = "ernie4_5_moe",
       .read = &read_ernie4_5_moe,
       .released = "ERNIE-4.5-21B-A3B, ERNIE-4.5-300B-A47B",
       .cases = {"ernie4_5_moe", "ernie4_5_moe_every_second"}},
      {.name = "Dots1ForCausalLM",
       .model_type = "dots1",
       .read = &read_dots1,
       .released = "dots.llm1.base, dots.llm1.inst",
       .cases = {"dots1", "dots1_window"}},
      {.name = "Mistral3ForConditionalGeneration",
       .model_type = "mistral3",
       .read = &read_mistral3,
       .released = "Mistral-Small-4-119B (the text model)",
       .cases = {"mistral4_vl"}},
      {.name = "Mistral4ForCausalLM",
       .model_type = "mistral4",
       .read = &read_mistral4,
       .released = "the text model of Mistral-Small-4 alone",
       .cases = {"mistral4"}},
      {.name = "HunYuanMoEV1ForCausalLM",
       .model_type = "hunyuan_v1_moe",
       .read = &read_hunyuan_v1_moe,
       .released = "Hunyuan-A13B",
       .cases = {"hunyuan_v1_moe", "hunyuan_v1_moe_plain"}},
      {.name = "Gemma4ForConditionalGeneration",
       .model_type = "gemma4",
       .read = &read_gemma4,
       .released = "gemma-4-26B-A4B, gemma-4-31B (the text model)",
       .cases = {"gemma4"}},
      {.name = "Gemma4ForCausalLM",
       .model_type = "gemma4_text",
       .read = &read_gemma4_text,
       .released = "the text model of Gemma 4 alone",
       .cases = {"gemma4_text", "gemma4_dense"}},
      {.name = "GptOssForCausalLM",
       .model_type = "gpt_oss",
       .read = &read_gpt_oss,
       .released = "gpt-oss-20b, gpt-oss-120b",
       .cases = {"gpt_oss"}},
      {.name = "Qwen3ForCausalLM",
       .model_type = "qwen3",
       .read = &read_qwen3,
       .experts = false,
       .released = "Qwen3-0.6B to Qwen3-32B",
       .cases = {"qwen3"}},
      {.name = "Qwen2ForCausalLM",
       .model_type = "qwen2",
       .read = &read_qwen2,
       .experts = false,
       .released = "Qwen2 and Qwen2.5: 0.5B to 72B, Qwen2.5-Coder, Qwen2.5-Math",
       .cases = {"qwen2", "qwen2_window"}},
      {.name = "MistralForCausalLM",
       .model_type = "mistral",
       .read = &read_mistral,
       .experts = false,
       .released = "Mistral-7B (v0.1 to v0.3), Mistral-Nemo, Mistral-Small-24B",
       .cases = {"mistral"}},
      {.name = "LlamaForCausalLM",
       .model_type = "llama",
       .read = &read_llama,
       .experts = false,
       .released = "Llama 2 and 3",
       .cases = {"llama"}},
  };
  return list;
}

const Architecture* find_architecture(const std::string& name) {
  const auto found = std::ranges::find_if(
      architectures(), [&](const Architecture& one) { return one.name == name || contains(one.other_names, name); });
  return found == architectures().end() ? nullptr : &*found;
}

const Architecture* architecture_of_type(const std::string& model_type) {
  const auto found = std::ranges::find_if(architectures(), [&](const Architecture& one) {
    return one.model_type == model_type || contains(one.other_types, model_type);
  });
  return found == architectures().end() ? nullptr : &*found;
}

DecoderConfig read_decoder_config(const HfConfig& config) {
  const std::string name = config.architecture();
  const Architecture* const architecture = find_architecture(name);
  if (architecture == nullptr) {
    std::string known;
    for (const Architecture& one : architectures()) known += (known.empty() ? "" : ", ") + one.name;
    config.refuse(fmt::format("the architecture '{}' is not supported", name.empty() ? "(none given)" : name),
                  "this version trains " + known);
  }
  DecoderConfig decoder = architecture->read(config);
  // Layers that predict further tokens have this name in several models' files, or follow the decoder's.
  constexpr const char* kFurtherTokens = "mtp.";
  if (!decoder.carried.contain(kFurtherTokens)) decoder.carried.prefixes.emplace_back(kFurtherTokens);
  std::string prefix = decoder.names.prefix;
  for (const auto& [own, in_files] : decoder.names.file_parts) prefix = own == decoder.names.prefix ? in_files : prefix;
  decoder.carried.layers = prefix + "layers.";
  decoder.carried.num_layers = static_cast<int64_t>(decoder.layers.size());
  return decoder;
}

}  // namespace hone
