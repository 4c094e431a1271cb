#include "models/registry.h"

#include <fmt/format.h>

#include "core/error.h"

namespace hone {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> list = {
      {"Qwen3MoeForCausalLM", "qwen3_moe", &read_qwen3_moe},
      {"Qwen3ForCausalLM", "qwen3", &read_qwen3},
      {"MixtralForCausalLM", "mixtral", &read_mixtral},
      {"LlamaForCausalLM", "llama", &read_llama},
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
