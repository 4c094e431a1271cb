#include "config/tools/tool.h"

namespace hone {

/// The guide to full fine-tuning of Qwen3-32B on several nodes: fine_tune_qwen3.py with config.json (model_args,
/// data_args, training_args) or flags. Each node trains its own model.
ToolText node_guide_text() {
  return {"qwen3-nodes",
          "fine_tune_qwen3.py",
          "transformers",
          {"fine_tune_qwen3.py"},
          {"model_args", "data_args", "training_args"},
          R"(
use_flash_attention, use_flash_attn ~ attention never builds the score matrix
num_nodes, node_id ~ each node trained a model of its own: one configuration for each
)",
          R"(
num_train_epochs: 3
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 5.0e-5
lr_scheduler_type: cosine
min_lr: 1.0e-7
warmup_ratio: 0.1
weight_decay: 0.01
max_length: 8192
overlength: truncate_right
chat_template_kwargs: {enable_thinking: false}
val_split: 0.05
eval_steps: 500
load_best_model_at_end: true
logging_steps: 10
save_total_limit: 3
gradient_checkpointing: true
)",
          ""};
}

/// The guide to LoRA on Mixtral's attention: train_moe.py --config config.yaml.
ToolText mixtral_guide_text() {
  return {
      "mixtral-guide",
      "train_moe.py",
      "transformers",
      {"train_moe.py"},
      {"training", "moe", "inference", "advanced", "post_training", "hardware", "repository", "validation", "wandb"},
      R"(
moe.num_experts_per_token, moe.num_experts_per_tok, moe.num_experts, moe.num_local_experts, moe.top_k ~ the model's config.json says it
inference.max_length ~ only answers would be that long
device_map, offload_folder, max_memory ~ weights are read straight into place
hardware.num_gpus(1) ? its batch is that of so many devices: convert with --devices
hardware.gpu_type, hardware.gpu_model, hardware.gpu_memory, hardware.gpu_memory_gb, hardware.device_map, hardware.max_memory, hardware.offload_folder ~ Hone finds its devices itself
validation.metrics ~ loss, perplexity and accuracy are always measured
advanced.profile_memory = profile
advanced.use_cpu_offload = cpu_offload: auto
)",
      R"(
num_train_epochs: 3
per_device_train_batch_size: 1
gradient_accumulation_steps: 16
learning_rate: 2.0e-4
lr_scheduler_type: cosine
min_lr: 1.0e-6
warmup_ratio: 0.03
weight_decay: 0.01
max_length: 4096
overlength: truncate_right
finetuning_type: lora
router_aux_loss_coef: 0.001
logging_steps: 10
save_steps: 100
save_total_limit: 3
gradient_checkpointing: true
)",
      R"(
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules: [q_proj, k_proj, v_proj, o_proj]
)"};
}

/// fms-hf-tuning with fms-acceleration's plugins: tuning.sft_trainer.
ToolText fms_text() {
  return {"fms",
          "fms-hf-tuning",
          "transformers",
          {"tuning.sft_trainer", "sft_trainer.py"},
          {"fast_moe", "multipack", "fast_kernels", "training_data_path", "response_template", "peft_method",
           "use_flash_attn", "data_config_path", "data_formatter_template", "instruction_template", "auto_gptq",
           "plugins", "training.moe", "training.attention", "training.fused_ops_and_kernels", "training.dataloader"},
          R"(
plugins.training.moe.scattermoe.ep_degree, training.moe.scattermoe.ep_degree = expert_parallel_size
padding_free, multipack, multipack_effective_batch_size, fast_kernels, use_flash_attn ~ nothing is padded, and the fused kernels are always on
plugins.training.moe.scattermoe.* ~ experts always run as grouped products
training.moe.scattermoe.* ~ experts always run as grouped products
plugins.training.attention.* ~ nothing is padded
plugins.training.fused_ops_and_kernels.* ~ the fused kernels are always on
plugins.training.dataloader.* ~ nothing is padded
plugins.peft.quantization.bitsandbytes.quant_type, quantized_lora_config.bnb_qlora.quant_type = base_weight_dtype
plugins.peft.quantization.bitsandbytes.no_peft_model, quantized_lora_config.bnb_qlora.no_peft_model ~ the adapters are Hone's
plugins.peft.quantization.auto_gptq.*, quantized_lora_config.auto_gptq.* ! files of GPTQ are not read: take the model in bfloat16 and base_weight_dtype: nf4
plugins.peft.*, quantized_lora_config.* ! only quantization.bitsandbytes is known of it
training.attention.*, training.fused_ops_and_kernels.*, training.dataloader.* ~ nothing is padded, and the fused kernels are always on
acceleration_framework_config_file @ fms
training_data_path = datasets
validation_data_path = eval_datasets
peft_method = finetuning_type {lora: lora, none: full, "": full}
response_template, instruction_template, data_formatter_template, data_config_path ? the chat template and train_on say what is learnt
dataset_text_field(text) ! columns have other names: state column_mapping in the entry of datasets
tracker*, exp_metadata, aim_*, scanner* - metrics go where report_to says
additional_data_handlers ! the rows have to be written in a format that Hone reads
embedding_size_multiple_of ~ rows that no token has are never read
auto_gptq ! files of GPTQ are not read: take the model in bfloat16 and base_weight_dtype: nf4
fused_lora ~ the fused kernels are always on
save_model_dir = output_dir
log_level, enable_reduce_loss_sum ~ a loss is always over all supervised tokens of a step
)",
          R"(
max_length: 4096
overlength: truncate_right
)",
          R"(
lora_r: 8
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules: [q_proj, v_proj]
bnb_4bit_use_double_quant: true
)"};
}

}  // namespace hone
