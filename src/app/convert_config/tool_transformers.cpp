#include "app/convert_config/tool.h"

namespace hone {

/// TrainingArguments of Hugging Face's transformers, versions 4 and 5; PEFT's LoraConfig beside them.
ToolText transformers_text() {
  return {"transformers",
          "Hugging Face TrainingArguments",
          "",
          {"run_clm.py"},
          {"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "warmup_ratio",
           "gradient_checkpointing", "logging_steps", "save_steps", "output_dir"},
          R"(
deepspeed @ deepspeed
accelerate_config @ accelerate
padding_free ~ nothing is ever padded
fsdp_config @ fsdp
fsdp_min_num_params, fsdp_transformer_layer_cls_to_wrap, local_rank, parallelism_config ~ it says how ranks share the work, which changes nothing that is learnt
accelerator_config, use_ipex, use_mps_device, xpu_backend, tpu_*, jit_mode_eval, place_model_on_device ~ Hone finds its devices itself
past_index, debug, log_level, log_level_replica, log_on_each_node, disable_tqdm, skip_memory_metrics, logging_strategy(steps) ~ it is about messages
push_to_hub_*, hub_*, save_on_each_node, project, trackio_*, run_id - models are not uploaded
dataloader_* ~ batches are prepared by the threads
group_by_length, length_column_name, train_sampling_strategy ~ nothing is padded, so lengths need not be grouped; the order of samples is drawn anew
auto_find_batch_size = auto_find_batch_size
average_tokens_across_devices(true) ~ a loss is always over all supervised tokens of a step
batch_eval_metrics, eval_accumulation_steps, eval_delay, eval_do_concat_batches, eval_use_gather_object, include_for_metrics, include_inputs_for_metrics, prediction_loss_only, label_names, fp16_full_eval, bf16_full_eval, use_legacy_prediction_loop ~ evaluation keeps numbers, not logits
ddp_bucket_cap_mb, ddp_broadcast_buffers, torchdynamo, torch_empty_cache_steps, half_precision_backend, fp16_backend, fp16_opt_level, use_cache, liger_kernel_config ~ it is about PyTorch
optim_target_modules ! GaLore and its kin are not in this version
adafactor = optim: adafactor
restore_callback_states_from_checkpoint, enable_jit_checkpoint, mp_parameters ~ resumed runs have their whole state
sharded_ddp, ray_scope, tensor_parallel_size ~ it says how ranks share the work, which changes nothing that is learnt
neftune_noise_alpha = neftune_noise_alpha
r = lora_r
target_modules = lora_target_modules
bias = lora_bias
task_type, peft_type, base_model_name_or_path, inference_mode, auto_mapping, revision ~ an adapter's file has it
fan_in_fan_out ~ linear weights are [out, in]
init_lora_weights = lora_init
lora_bias = lora_bias
loftq_config, megatron_*, eva_config, corda_config, layer_replication, arrow_config ! this kind of LoRA is not in this version
model_revision, cache_dir, token, use_auth_token, hub_token ~ models are folders here
block_size = max_length
tokenizer_name_or_path = tokenizer_name_or_path
)",
          R"(
num_train_epochs: 3
per_device_train_batch_size: 8
learning_rate: 5.0e-5
lr_scheduler_type: linear
warmup_ratio: 0
weight_decay: 0
adam_beta2: 0.999
adam_epsilon: 1.0e-8
max_grad_norm: 1.0
packing: false
router_aux_loss_coef: 0
seed: 42
)",
          R"(
lora_r: 8
lora_alpha: 8
lora_dropout: 0
lora_target_modules: [q_proj, v_proj]
)"};
}

}  // namespace hone
