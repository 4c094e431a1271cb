#include "app/convert_config/model_families.h"

#include <algorithm>
#include <array>
#include <utility>

#include "app/bench/bench_shapes.h"
#include "core/base/printable.h"
#include "params/pattern.h"

namespace hone {
namespace {

constexpr bool kMedia = true;

/// The first that matches counts, so a special name stands above a general one.
constexpr ModelFamily kFamilies[] = {
    {"qwen3-vl-*b-a*b*", "Qwen3-VL-MoE", "qwen3_vl_moe"},
    {"qwen*-vl*", "Qwen-VL", "qwen3_vl", kMedia},
    {"qwen*-omni*", "Qwen-Omni", "qwen3_omni_moe", kMedia},
    {"qwen*-audio*", "Qwen-Audio", "qwen2_audio", kMedia},
    {"llama-3.2-*vision*", "Llama 3.2 Vision", "mllama", kMedia},
    {"llava*", "LLaVA", "llava", kMedia},
    {"internvl*", "InternVL", "internvl", kMedia},
    {"smolvlm*", "SmolVLM", "smolvlm", kMedia},
    {"lfm2-vl*", "LFM2-VL", "lfm2_vl", kMedia},
    {"moss-vl*", "MOSS-VL", "moss_vl", kMedia},
    {"paddleocr*", "PaddleOCR-VL", "paddleocr_vl", kMedia},
    {"paligemma*", "PaliGemma", "paligemma", kMedia},
    {"pixtral*", "Pixtral", "pixtral", kMedia},
    {"voxtral*", "Voxtral", "voxtral", kMedia},
    {"idefics*", "Idefics", "idefics3", kMedia},
    {"minicpm-v*", "MiniCPM-V", "minicpmv", kMedia},
    {"kimi-vl*", "Kimi-VL", "kimi_vl", kMedia},
    {"deepseek-vl*", "DeepSeek-VL", "deepseek_vl", kMedia},
    {"phi-*-vision*", "Phi Vision", "phi3_v", kMedia},
    {"phi-4-multimodal*", "Phi-4 Multimodal", "phi4_multimodal", kMedia},
    {"glm-4.[156]v*", "GLM-4V", "glm4v", kMedia},
    {"ernie-4.5-vl*", "ERNIE 4.5 VL", "ernie4_5_vl_moe", kMedia},
    {"whisper*", "Whisper", "whisper", kMedia},
    {"qwen3-next*", "Qwen3-Next", "qwen3_next"},
    {"qwen3-coder-next*", "Qwen3-Next", "qwen3_next"},
    {"qwen3-*b-a*b*", "Qwen3-MoE", "qwen3_moe"},
    {"qwen3-[0-9]*", "Qwen3", "qwen3"},
    {"qwen3.[56]-*b-a*b*", "Qwen3.5-MoE", "qwen3_5_moe_text"},
    {"qwen3.[56]-[0-9]*", "dense Qwen3.5", "qwen3_5"},
    {"qwen1.5-moe*", "Qwen2-MoE", "qwen2_moe"},
    {"qwen2-57b-a14b*", "Qwen2-MoE", "qwen2_moe"},
    {"qwen2.5-[0-9]*", "Qwen2.5", "qwen2"},
    {"qwen2.5-coder*", "Qwen2.5", "qwen2"},
    {"qwen2.5-math*", "Qwen2.5", "qwen2"},
    {"qwen2-[0-9]*", "Qwen2", "qwen2"},
    {"qwen1.5-[0-9]*", "Qwen1.5", "qwen2"},
    {"qwq-32b*", "Qwen2.5", "qwen2"},
    {"qwen-[0-9]*", "first-generation Qwen", "qwen"},
    {"deepseek-r1-distill-qwen*", "Qwen2.5", "qwen2"},
    {"deepseek-r1-distill-llama*", "Llama", "llama"},
    {"deepseek-r1-0528-qwen3*", "Qwen3", "qwen3"},
    {"deepseek-v2*", "DeepSeek-V2", "deepseek_v2"},
    {"deepseek-coder-v2*", "DeepSeek-V2", "deepseek_v2"},
    {"deepseek-v3.2*", "DeepSeek-V3.2", "deepseek_v32"},
    {"deepseek-v3*", "DeepSeek-V3", "deepseek_v3"},
    {"deepseek-r1*", "DeepSeek-V3", "deepseek_v3"},
    {"deepseek-v4*", "DeepSeek-V4", "deepseek_v4"},
    {"kimi-k2.[567]*", "Kimi-K2.5", "kimi_k25"},
    {"kimi-k2*", "DeepSeek-V3", "deepseek_v3"},
    {"solar-open-100b*", "Solar-Open", "solar_open"},
    {"hy3*", "Hy3", "hy_v3"},
    {"kimi-linear*", "Kimi Linear", "kimi_linear"},
    {"moonlight*", "DeepSeek-V3", "deepseek_v3"},
    {"glm-4.[56]", "GLM-4.5", "glm4_moe"},
    {"glm-4.[56]-*", "GLM-4.5", "glm4_moe"},
    {"glm-4.7-flash*", "GLM-4.7-Flash", "glm4_moe_lite"},
    {"glm-4.7*", "GLM-4.7", "glm4_moe"},
    {"glm-5*", "GLM-5", "glm_moe_dsa"},
    {"glm-4-*", "dense GLM-4", "glm4"},
    {"mixtral*", "Mixtral", "mixtral"},
    {"mistral-small-4*", "Mistral Small 4", "mistral4"},
    {"mistral-medium-3.5*", "Mistral Medium 3.5", "mistral3"},
    {"mistral-small-3.[12]*", "Mistral Small 3", "mistral3"},
    {"magistral*-2509*", "Magistral Small", "mistral3"},
    {"ministral-3-*", "Ministral 3", "ministral3"},
    {"ministral-8b*", "Mistral", "mistral"},
    {"mistral*", "Mistral", "mistral"},
    {"magistral*", "Mistral", "mistral"},
    {"devstral-small-250[57]*", "Mistral", "mistral"},
    {"gpt-oss*", "gpt-oss", "gpt_oss"},
    {"olmoe*", "OLMoE", "olmoe"},
    {"olmo-3*", "Olmo 3", "olmo3"},
    {"olmo-2*", "OLMo 2", "olmo2"},
    {"olmo-*", "OLMo", "olmo"},
    {"granite-4*", "Granite 4", "granitemoehybrid"},
    {"granite-3.[01]-*-a*m*", "Granite-MoE", "granitemoe"},
    {"granite-3*", "Granite 3", "granite"},
    {"llama-4*", "Llama 4", "llama4"},
    {"llama-[23]*", "Llama", "llama"},
    {"meta-llama-3*", "Llama", "llama"},
    {"llama-7b*", "Llama", "llama"},
    {"codellama*", "Llama", "llama"},
    {"tinyllama*", "Llama", "llama"},
    {"open_llama*", "Llama", "llama"},
    {"smollm2*", "Llama", "llama"},
    {"smollm3*", "SmolLM3", "smollm3"},
    {"yi-*", "Llama", "llama"},
    {"gemma-4-12b*", "Gemma 4 without towers", "gemma4_unified"},
    {"gemma-4-e[24]b*", "Gemma 4 with embeddings for each layer", "gemma4_e"},
    {"gemma-4*", "Gemma 4", "gemma4"},
    {"gemma-3n*", "Gemma 3n", "gemma3n"},
    {"gemma-3*", "Gemma 3", "gemma3"},
    {"gemma-2-*", "Gemma 2", "gemma2"},
    {"gemma-*", "Gemma", "gemma"},
    {"phi-4-mini*", "Phi-3", "phi3"},
    {"phi-[34]*", "Phi-3", "phi3"},
    {"phi-[12]*", "Phi", "phi"},
    {"falcon-h1*", "Falcon-H1", "falcon_h1"},
    {"falcon-e*", "Falcon-E", "falcon_e"},
    {"falcon-*", "Falcon", "falcon"},
    {"jamba*", "Jamba", "jamba"},
    {"ai21-jamba*", "Jamba", "jamba"},
    {"lfm2-*-a*b*", "LFM2-MoE", "lfm2_moe"},
    {"lfm2*", "LFM2", "lfm2"},
    {"minimax-m2*", "MiniMax-M2", "minimax_m2"},
    {"dots.llm1*", "dots.llm1", "dots1"},
    {"ernie-4.5-*b-a*b*", "ERNIE 4.5 MoE", "ernie4_5_moe"},
    {"ernie-4.5-*", "dense ERNIE 4.5", "ernie4_5"},
    {"nvidia-nemotron-3*", "Nemotron 3", "nemotron_h"},
    {"nemotron-3*", "Nemotron 3", "nemotron_h"},
    {"nemotron-mini*", "Nemotron", "nemotron"},
    {"c4ai-command*", "Command", "cohere"},
    {"dbrx*", "DBRX", "dbrx"},
    {"mamba-*", "Mamba", "mamba"},
    {"mpt-*", "MPT", "mpt"},
    {"gpt-j*", "GPT-J", "gptj"},
    {"gpt2*", "GPT-2", "gpt2"},
    {"pythia*", "GPT-NeoX", "gpt_neox"},
    {"redpajama-incite*", "GPT-NeoX", "gpt_neox"},
    {"stablelm-2*", "StableLM", "stablelm"},
    {"starcoder2*", "StarCoder2", "starcoder2"},
    {"replit-code*", "Replit Code", "mpt"},
    {"seed-oss*", "Seed-OSS", "seed_oss"},
    {"apertus*", "Apertus", "apertus"},
    {"hunyuan-a*b*", "Hunyuan-A13B", "hunyuan_v1_moe"},
    {"hunyuan-*", "Hunyuan", "hunyuan_v1_dense"},
    {"mimo-7b*", "MiMo", "mimo"},
    {"afm-*", "Arcee", "arcee"},
    {"trinity-*", "Trinity", "afmoe"},
    {"btlm*", "BTLM", "btlm"},
    {"cerebras-gpt*", "GPT-2", "gpt2"},
    {"xgen-7b*", "Llama", "llama"},
    {"deepcoder-*", "Qwen2.5", "qwen2"},
    {"cogito-v1-preview-llama*", "Llama", "llama"},
    {"cogito-v1-preview-qwen*", "Qwen2.5", "qwen2"},
    {"orpheus-3b*", "Llama", "llama"},
    {"bloom*", "BLOOM", "bloom"},
    {"opt-[0-9]*", "OPT", "opt"},
};

/// Methods of quantised files, by a part of a name.
constexpr std::array<std::pair<const char*, const char*>, 7> kUnreadFiles = {{{"gptq", "GPTQ"},
                                                                              {"awq", "AWQ"},
                                                                              {"aqlm", "AQLM"},
                                                                              {"nvfp4", "NVFP4"},
                                                                              {"hqq", "HQQ"},
                                                                              {"autoround", "AutoRound"},
                                                                              {"gguf", "GGUF"}}};

std::string last_part(const std::string& model) {
  const size_t end = model.find_last_not_of('/');
  const std::string path = model.substr(0, end == std::string::npos ? 0 : end + 1);
  return in_lower_case(path.substr(path.rfind('/') + 1));
}

}  // namespace

std::span<const ModelFamily> model_families() { return kFamilies; }

const ModelFamily* family_named(const std::string& model) {
  const std::string name = last_part(model);
  const auto found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                  [&](const ModelFamily& family) { return Pattern(family.names).matches(name); });
  return found == std::end(kFamilies) ? nullptr : found;
}

std::string unread_files_named(const std::string& model) {
  const std::string name = last_part(model);
  for (const auto& [part, title] : kUnreadFiles) {
    const size_t at = name.rfind(part);
    if (at != std::string::npos && at > 0 && (name[at - 1] == '-' || name[at - 1] == '_')) return title;
  }
  return "";
}

std::string shape_named(const std::string& model) {
  const std::string name = last_part(model);
  std::string best;
  for (const auto& [shape, config] : bench_shapes()) {
    const bool begins = name == shape || name.starts_with(shape + "-");
    if (begins && shape.size() > best.size()) best = shape;
  }
  return best;
}

}  // namespace hone
