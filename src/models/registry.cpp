#include "models/registry.h"

#include <fmt/format.h>

#include "core/error.h"

namespace hone {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> list = {
      {.name = "Qwen3MoeForCausalLM",
       .model_type = "qwen3_moe",
       .read = &read_qwen3_moe,
       .released = "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
       .cases = {"qwen3_moe", "qwen3_moe_hard"}},
      {.name = "MixtralForCausalLM",
       .model_type = "mixtral",
       .read = &read_mixtral,
       .released = "Mixtral-8x7B, Mixtral-8x22B",
       .cases = {"mixtral"}},
      {.name = "Qwen3ForCausalLM",
       .model_type = "qwen3",
       .read = &read_qwen3,
       .experts = false,
       .released = "Qwen3-0.6B to Qwen3-32B",
       .cases = {"qwen3"}},
      {.name = "LlamaForCausalLM",
       .model_type = "llama",
       .read = &read_llama,
       .experts = false,
       .released = "Llama 2 and 3",
       .cases = {"llama"}},
  };
  return list;
}

DecoderConfig read_decoder_config(const HfConfig& config) {
  const std::string name = config.architecture();
  std::string known;
  for (const Architecture& architecture : architectures()) {
    if (architecture.name == name) return architecture.read(config);
    known += (known.empty() ? "" : ", ") + architecture.name;
  }
  config.refuse(fmt::format("the architecture '{}' is not supported", name.empty() ? "(none named)" : name),
                "this version trains " + known);
}

}  // namespace hone
