#include "app/convert_config/tool.h"

namespace hone {

/// ms-swift: the flags of `swift sft` (or `swift pt`), its args.json, or YAML.
ToolText swift_text() {
  return {"swift",
          "ms-swift",
          "transformers",
          {"swift sft", "swift pt"},
          {"model", "train_type", "tuner_type", "tuner_backend", "split_dataset_ratio", "torch_dtype", "attn_impl",
           "use_hf", "truncation_strategy", "loss_scale", "target_modules", "system", "lora_rank", "val_dataset",
           "dataset_shuffle", "experts_impl"},
          R"(
tuner_backend, use_hf, use_swift_lora, load_args, load_data_args, ignore_args_error, add_version, create_checkpoint_symlink, check_model, hub_token, custom_register_path, external_plugins, custom_dataset_info, local_repo_path, download_mode, enable_npu_model_patch, model_kwargs, model_type, task_type, model_revision, template_backend ~ models and data are folders here
model_name, model_author ~ only the self-cognition data would read it
attn_impl, experts_impl ~ the kernels are chosen by the device
template ? the model's own chat template is used instead of a template of ms-swift
system ! write the system message into the data
agent_template ? the model's own chat template writes the tools
norm_bbox, max_pixels, freeze_vit, freeze_aligner ~ a vision tower is kept as it is
freeze_llm ! nothing would be trained
use_chat_template(true) ! state type: text or prompt_completion in datasets
padding_side(right) ~ nothing is padded
response_prefix, add_non_thinking_prefix(true), preserve_thinking, disable_ignore_empty_think ? the model's own chat template decides about thoughts
sequence_parallel_size(1), packing_num_proc, packing_length, zero_hpz_partition_size, deepspeed_autotp_size, ddp_*, device_map, max_memory ~ it says how ranks share the work, which changes nothing that is learnt
is_binary_loss_scale, lazy_tokenize, load_from_cache_file, streaming, shuffle_buffer_size, stopping_strategy, strict, disable_auto_column_mapping, cached_val_dataset, val_dataset_shuffle ~ data are prepared in one way
interleave_prob = interleave_probs
rope_scaling, max_model_len, num_labels, problem_type, init_strategy ! edit the model's config.json
new_special_tokens ! write them into the tokenizer's files
quant_method, hqq_axis, bnb_4bit_quant_storage ~ only quant_bits would read it
freeze_parameters_ratio ! write freeze_parameters
trainable_parameters_regex ! write trainable_parameters with re: in front
lora_dtype(float32) ~ adapters are float32
init_weights = lora_init
lora_ga_*, fourier_*, boft_*, vera_*, adapter_act, adapter_length, adalora_*, llamapro_*, reft_* ~ only other tuners would read it
swanlab_* - metrics go where report_to says
acc_strategy, use_logits_to_keep, metric, eval_use_evalscope, eval_dataset_args, extra_eval_args, eval_limit ~ it changes no training
use_galore, use_flash_ckpt, lisa_*, galore_* ! it is not in this version
channels, enable_channel_loss ~ the loss of each data set is in the metrics
dataset_num_proc ~ data are prepared by the threads
)",
          R"(
finetuning_type: lora
learning_rate: 1.0e-5
lr_scheduler_type: cosine
warmup_ratio: 0
weight_decay: 0.1
adam_beta2: 0.95
per_device_train_batch_size: 1
overlength: drop
)",
          R"(
learning_rate: 1.0e-4
lora_r: 8
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules: [all-linear]
)"};
}

}  // namespace hone
