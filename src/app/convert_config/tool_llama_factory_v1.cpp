#include "app/convert_config/tool.h"

namespace hone {

/// LLaMA-Factory's YAML of its second trainer (USE_V1): parts of the run are mappings with a name.
ToolText llama_factory_v1_text() {
  return {"llama-factory-v1",
          "LLaMA-Factory (v1)",
          "",
          {},
          {"model", "model_class", "kernel_config", "dist_config", "init_config", "peft_config", "quant_config",
           "optim_config", "lr_scheduler_config", "sample_backend", "batching_strategy", "batching_workers",
           "train_dataset"},
          R"(
model = model_name_or_path
model_class(llm) ! only language models are trained in this version
custom_chat_template = chat_template
template ? the model's own chat template is used
trust_remote_code ~ no code is loaded from a model's folder
flash_attn ~ attention never builds the score matrix
init_config, init_config.* ~ weights are read straight into place
kernel_config, kernel_config.* ~ the fused kernels are always on
quant_config.name(auto) ~ quantization_bit says it
quant_config.quantization_bit = load_in_4bit
quant_config.* ~ only quantization_bit would read it
peft_config.name = finetuning_type
peft_config.r = lora_r
peft_config.lora_alpha = lora_alpha
peft_config.lora_dropout = lora_dropout
peft_config.target_modules = lora_target_modules
peft_config.use_rslora = use_rslora
peft_config.use_dora = use_dora
peft_config.modules_to_save = lora_modules_to_save
peft_config.adapter_name_or_path = adapter_name_or_path
peft_config.freeze_trainable_layers, peft_config.freeze_trainable_modules, peft_config.freeze_extra_modules, peft_config.cast_trainable_params_to_fp32 ~ only name: freeze would read it
peft_config.export_dir, peft_config.export_size, peft_config.export_hub_model_id, peft_config.infer_dtype, peft_config.export_legacy_format - it merges an adapter: hone merge does
train_dataset = datasets
eval_dataset = eval_datasets
output_dir = output_dir
micro_batch_size = per_device_train_batch_size
global_batch_size = global_batch_size
cutoff_len = max_length
learning_rate = learning_rate
num_train_epochs = num_train_epochs
max_steps = max_steps
max_grad_norm = max_grad_norm
bf16 = dtype {true: bfloat16, false: float32}
batching_strategy, batching_workers, dp_size, dist_timeout, full_determinism, save_ckpt_as_hf ~ packing and padding do not change what a step learns, nor does how ranks talk
dist_config.config_file @ deepspeed
dist_config, dist_config.*, mp_replicate_size, mp_shard_size, cp_mode ~ it says how ranks share the work, which changes nothing that is learnt
cp_size(1) ~ it says how ranks share the work, which changes nothing that is learnt
enable_activation_checkpointing = gradient_checkpointing
optim_config.name = optim
optim_config.lr = learning_rate
optim_config.weight_decay, optim_config.wd = weight_decay
optim_config.* ~ only another optimizer would read it
lr_scheduler_config.name = lr_scheduler_type
lr_scheduler_config.* ! only lr_scheduler_config.name is known of the schedule
seed = seed
resume_from_checkpoint = resume_from_checkpoint
save_steps = save_steps
save_epochs ? it says how often checkpoints are written: state saves_per_epoch
save_total_limit = save_total_limit
logging_steps = logging_steps
pref_*, simpo_gamma, dpo_label_smoothing, ld_alpha ~ only preference training would read it
stage, dpo_stage ! only supervised fine-tuning is in this version
sample_backend, max_new_tokens, sample_* ~ it changes no training
)",
          R"(
num_train_epochs: 3
per_device_train_batch_size: 1
learning_rate: 1.0e-4
lr_scheduler_type: constant
warmup_ratio: 0
weight_decay: 0.01
decay_norms_and_biases: true
adam_beta2: 0.999
adam_epsilon: 1.0e-8
max_grad_norm: 1.0
max_length: 2048
overlength: truncate_right
packing: false
router_aux_loss_coef: 0
seed: 42
)",
          R"(
lora_r: 8
lora_alpha: 16
lora_dropout: 0.05
lora_target_modules: [all-linear]
)",
          ""};
}

}  // namespace hone
