#include "app/convert_config/tool.h"

namespace hone {

/// Unsloth's Python scripts: FastLanguageModel beside TRL's trainer.
ToolText unsloth_text() {
  return {"unsloth",
          "Unsloth",
          "trl",
          {},
          {"full_finetuning", "load_in_16bit", "random_state", "use_gradient_checkpointing"},
          R"(
random_state = seed
full_finetuning = finetuning_type: full
load_in_16bit ~ the base is read in dtype
embedding_learning_rate ! there is one learning rate
chat_template ? the model's own chat template is used
fast_inference, gpu_memory_utilization, max_lora_rank, float8_kv_cache, max_memory, rope_scaling, fix_tokenizer, use_exact_model_name, offload_embedding, unsloth_*, device_map, revision ~ it is about loading and generating
finetune_vision_layers ~ a vision tower is kept as it is
finetune_language_layers(true), finetune_attention_modules(true), finetune_mlp_modules(true) ! name what is trained in lora_target_modules
)",
          R"(
max_length: 2048
)",
          R"(
lora_r: 16
lora_alpha: 16
lora_dropout: 0
lora_target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]
)",
          "the rows are text, or a chat for the model's template: Unsloth's scripts write them with Python code"};
}

}  // namespace hone
