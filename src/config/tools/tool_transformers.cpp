#include "config/tools/tool.h"

namespace hone {

/// TrainingArguments of Hugging Face's transformers, versions 4 and 5, and PEFT's LoraConfig.
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
push_to_hub_*, hub_*, save_on_each_node, trackio_bucket_id, trackio_static_space_id, run_id - models are not uploaded
project = trackio_project
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
cache_dir, token, use_auth_token, hub_token ~ HF_TOKEN and HF_HUB_CACHE say this (docs/hub.md)
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
bnb_4bit_use_double_quant: false
)"};
}

/// TRL's SFTConfig, ModelConfig, ScriptArguments and DatasetMixtureConfig: `trl sft --config FILE` or flags.
ToolText trl_text() {
  return {"trl",
          "TRL",
          "transformers",
          {"trl sft", "sft.py"},
          {"dataset_text_field", "completion_only_loss", "assistant_only_loss", "dataset_train_split", "use_peft",
           "packing_strategy", "dataset_name", "eval_packing", "loss_type", "lora_task_type", "max_length",
           "dataset_kwargs", "truncation_mode"},
          R"(
dataset_config, dataset_configuration ! the configuration of a data set of the hub: write datasets: [{path: ORG/NAME, name: CONFIGURATION}]
dataset_train_split(train), dataset_test_split(test) ? the file in datasets is that split
dataset_streaming, streaming ~ files are read row by row
dataset_text_field(text) ! columns have other names: state column_mapping in the entry of datasets
dataset_kwargs, dataset_batch_size ~ data are prepared in one way
datasets.data_files = datasets
eval_packing ~ evaluation is packed too; the loss is the same
loss_type(nll) ! another loss than cross-entropy is not in this version
eos_token, pad_token, pad_to_multiple_of ~ nothing is padded, and the end of a turn is the template's
model_init_kwargs, ignore_bias_buffers, lora_task_type, gradient_checkpointing_kwargs ~ the model is read in one way
bnb_4bit_quant_storage ~ codes are stored as bytes
use_dft ! another loss than cross-entropy is not in this version
)",
          R"(
learning_rate: 2.0e-5
max_length: 1024
overlength: truncate_right
router_aux_loss_coef: 0.001
train_on: all
)",
          R"(
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
)",
          "train_on fits the data: TRL learns every token of chats and texts, unless assistant_only_loss is on, and of "
          "prompt "
          "and completion the completion"};
}

/// Unsloth's Python scripts: FastLanguageModel and TRL's trainer.
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
bnb_4bit_use_double_quant: true
)",
          "the rows are text, or a chat for the model's template: Unsloth's scripts write them with Python code"};
}

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
tuner_backend, use_hf, use_swift_lora, load_args, load_data_args, ignore_args_error, add_version, create_checkpoint_symlink, check_model, hub_token, custom_register_path, external_plugins, custom_dataset_info, local_repo_path, download_mode, enable_npu_model_patch, model_kwargs, model_type, task_type, template_backend ~ models and data are folders here
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
ddp_timeout = ddp_timeout
sequence_parallel_size(1), packing_num_proc, packing_length, zero_hpz_partition_size, deepspeed_autotp_size, ddp_*, device_map, max_memory ~ it says how ranks share the work, which changes nothing that is learnt
is_binary_loss_scale, lazy_tokenize, load_from_cache_file, streaming, shuffle_buffer_size, stopping_strategy, strict, disable_auto_column_mapping, cached_val_dataset, val_dataset_shuffle ~ data are prepared in one way
interleave_prob = interleave_probs
rope_scaling, max_model_len, num_labels, problem_type, init_strategy ! edit the model's config.json
new_special_tokens ! state them in add_special_tokens
quant_method(bnb) ? its numbers are those of bitsandbytes: 4 bits are nf4 here, 8 bits a scale for each row
hqq_axis, bnb_4bit_quant_storage ~ codes are stored as bytes
freeze_parameters_ratio ! write freeze_parameters
trainable_parameters_regex ! write trainable_parameters with re: in front
lora_dtype(float32) ~ adapters are float32
init_weights = lora_init
lora_ga_*, fourier_*, boft_*, vera_*, adapter_act, adapter_length, adalora_*, llamapro_*, reft_* ~ only other tuners would read it
swanlab_* - metrics go where report_to says
acc_strategy, use_logits_to_keep, metric, eval_use_evalscope, eval_dataset_args, extra_eval_args, eval_limit ~ it changes no training
use_galore, galore_* ! GaLore is not in this version
lisa_* ! LISA is not in this version
use_flash_ckpt ~ it changes no training
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
bnb_4bit_use_double_quant: true
)"};
}

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
use_fp8 = fp8
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
