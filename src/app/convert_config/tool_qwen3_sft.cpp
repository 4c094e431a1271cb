#include "app/convert_config/tool.h"

namespace hone {

/// qwen3_sft.py of the Qwen3-MoE fast SFT project: its flags, or the shell script that calls it.
ToolText qwen3_sft_text() {
  return {
      "qwen3-sft",
      "qwen3_sft.py",
      "transformers",
      {"qwen3_sft.py"},
      {"use_fast_moe_block", "use_liger_efficiency_callback", "global_batch_size", "train_steps", "dataset_path",
       "use_fp8", "deepspeed_config", "tokenizer_path", "use_packing", "use_lora", "completion_only_loss"},
      R"(
deepspeed_config @ deepspeed
use_liger_efficiency_callback ~ the efficiency metrics are always written
use_lora = finetuning_type {true: lora, false: ""}
use_fp8 ! products in 8-bit floats are not in this version
completion_only_loss = train_on {true: completion, false: ""}
)",
      R"(
max_steps: 100
global_batch_size: 128
per_device_train_batch_size: 4
max_length: 4096
overlength: truncate_right
train_on: all
learning_rate: 2.0e-5
lr_scheduler_type: cosine
warmup_ratio: 0.1
weight_decay: 0.1
router_aux_loss_coef: null
)",
      R"(
lora_r: 8
lora_alpha: 0.5
lora_dropout: 0.05
lora_target_modules: [all-linear]
router_aux_loss_coef: 0.001
)",
      "rows are written as prompt and completion: qwen3_sft.py joins instruction, a blank and input to the prompt, as "
      "plain "
      "text, and learns a blank and output; rows of instruction, input and output go through the chat template here"};
}

}  // namespace hone
