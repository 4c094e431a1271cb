#include "config/tools/tool.h"

namespace hone {

/// LLaMA-Factory's YAML or flags, for `llamafactory-cli train`.
ToolText llama_factory_text() {
  return {"llama-factory",
          "LLaMA-Factory",
          "transformers",
          {"llamafactory-cli train"},
          {"stage", "template", "cutoff_len", "dataset_dir", "lora_target", "finetuning_type", "overwrite_cache",
           "plot_loss", "lora_rank", "do_train", "neat_packing", "val_size"},
          R"(
stage(sft) ! only supervised fine-tuning is in this version
dataset_dir, media_dir ~ it is read with dataset
template = chat_template {phi: phi_35, deepseek3: deepseek_v3, llama2: none of Hone, default: none of Hone}
tool_format ? the model's own chat template writes the tools
default_system ! write the system message into the data
enable_thinking = chat_template_kwargs.enable_thinking
preserve_thinking ? the model's own chat template decides about thoughts of earlier turns
buffer_size, preprocessing_batch_size, streaming, data_shared_file_system, tokenized_path, overwrite_cache ~ data are prepared in one way
mix_strategy(concat) ! data sets are trained on one after the other: state weights in datasets
max_samples ~ it is in the entries of datasets
eval_num_beams, eval_on_each_dataset, ignore_pad_token_for_loss, compute_accuracy ~ evaluation is of loss and accuracy
freeze_trainable_layers, freeze_trainable_modules, freeze_extra_modules ~ only finetuning_type freeze would read it
pissa_* ! PiSSA's start of adapters is not in this version
create_new_adapter ! merge the old adapter first: hone merge
loraplus_lr_embedding ~ embeddings have no adapter
module_dropout, oft_* ~ only finetuning_type oft would read it
pref_*, dpo_label_smoothing, kto_*, simpo_gamma, ppo_*, ref_model*, reward_model*, ld_alpha ~ only other stages would read it
use_packed_sequences = packing
export_hf_on_finish ~ it changes no training
use_galore, use_apollo, use_badam, use_adam_mini ! this optimizer is not in this version
use_llama_pro ! new layers are not in this version
galore_*, apollo_*, badam_* ~ nothing would read it
use_muon = optim: muon
use_dft_loss, use_asft_loss, use_eaft_loss ! another loss than cross-entropy is not in this version
asft_alpha, eaft_alpha ~ only another loss would read it
use_swanlab - metrics go where report_to says
swanlab_* ~ only use_swanlab would read it
tensor_model_parallel_size(1), pipeline_model_parallel_size(1), virtual_pipeline_model_parallel_size(1), context_parallel_size(1), sequence_parallel, tensor_parallel_size(1), use_distributed_optimizer, overlap_grad_reduce, overlap_param_gather, overlap_moe_expert_parallel_comm, use_mca, use_megatron_bridge, use_hyper_parallel, hyper_parallel_*, megatron_bridge_args, master_addr, master_port, ray_*, ray_run_name, ray_storage_path, placement_strategy, resources_per_worker ~ it says how ranks share the work, which changes nothing that is learnt
bias_activation_fusion, apply_rope_fusion, moe_grouped_gemm, moe_token_dispatcher_type, moe_permute_fusion, masked_softmax_fusion, bias_dropout_fusion, gradient_accumulation_fusion, cross_entropy_loss_fusion  ~ the fused kernels are always on
mixed_precision = dtype {bf16: bfloat16, bf16_mixed: bfloat16, fp16: float16, fp32: float32}
freeze_vision_tower, freeze_multi_modal_projector, image_*, video_*, audio_*, use_audio_in_video, crop_to_patches ~ a vision tower is kept as it is
freeze_language_model ! nothing would be trained
calculate_per_token_loss ~ a loss is always over all supervised tokens of a step
disable_shuffling = shuffle {true: "false", false: "true"}
include_effective_tokens_per_second ~ tokens are always counted
adapter_folder, hf_hub_token, ms_hub_token, om_hub_token, export_hub_model_id ~ HF_TOKEN and HF_HUB_CACHE say this (docs/hub.md)
use_fast_tokenizer, use_kv_cache, print_param_status, use_v1_kernels, use_reentrant_gc, use_unsloth, use_unsloth_gc, upcast_layernorm, upcast_lmhead_output, infer_*, offload_folder, block_diag_attn, compute_dtype ~ it does not change results
new_special_tokens_config, init_special_tokens ! state add_special_tokens, or write them into the tokenizer's files
rope_scaling, model_max_length ! edit the model's config.json
mixture_of_depths ! mixtures of depths are not in this version
shift_attn ! attention in shifted groups is not in this version
disable_gradient_checkpointing = gradient_checkpointing {true: "false", false: ""}
train_from_scratch ! hone init --new-model makes a model with random weights
quantization_method(bnb), quantization_type(nf4) ? its numbers are those of bitsandbytes' nf4 and int8: no others are here
quantization_device_map ~ Hone finds its devices itself
export_*, vllm_*, sglang_* ~ it changes no training
enable_torch_profiler = profile
profiler_*, profile_modules ~ profile has no further keys
fp8_backend ~ the products are cuBLASLt's
fp8_enable_fsdp_float8_all_gather ~ weights travel between ranks in dtype
length_penalty, skip_special_tokens ~ it changes no training
)",
          R"(
finetuning_type: lora
max_length: 2048
overlength: truncate_right
learn_empty_thinking: true
)",
          R"(
lora_r: 8
lora_alpha: null
lora_dropout: 0
lora_target_modules: [all-linear]
bnb_4bit_use_double_quant: true
)"};
}

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
quant_config.quantization_bit = base_weight_dtype {4: "nf4", 8: "int8"}
quant_config.double_quantization = bnb_4bit_use_double_quant
quant_config.quantization_type = bnb_4bit_quant_type
quant_config.* ~ 4 bits are nf4 with nested scales here, 8 bits a scale for each row
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
batching_strategy = packing {normal: "false", padding_free: "false", dynamic_batching: "true", dynamic_padding_free: "true"}
batching_workers, dp_size, dist_timeout, full_determinism, save_ckpt_as_hf ~ packing and padding do not change what a step learns, nor does how ranks talk
dist_config.config_file @ deepspeed
dist_config.ep_size = expert_parallel_size
dist_config, dist_config.*, mp_replicate_size, mp_shard_size, cp_mode ~ it says how ranks share the work, which changes nothing that is learnt
cp_size(1) ~ it says how ranks share the work, which changes nothing that is learnt
enable_activation_checkpointing = gradient_checkpointing
optim_config.name = optim
optim_config.lr ~ learning_rate has precedence there
optim_config.weight_decay, optim_config.wd = weight_decay
optim_config.adamw_betas.0 = adam_beta1
optim_config.adamw_betas.1 = adam_beta2
optim_config.adamw_eps = adam_epsilon
optim_config.momentum = optim_args.momentum
optim_config.nesterov = optim_args.nesterov
optim_config.ns_steps = optim_args.ns_steps
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

/// KTransformers' fine-tuning: LLaMA-Factory's YAML with use_kt and kt_ keys, which kt_config may hold, too. Its
/// adapters are on every expert, except with the backends called …_SkipLoRA.
ToolText kt_text() {
  return {"kt",
          "KTransformers",
          "llama-factory",
          {},
          {"use_kt", "kt_backend", "kt_weight_path", "kt_num_threads", "kt_tp_enabled", "kt_threadpool_count",
           "kt_lora_rank", "kt_use_lora_experts", "kt_config", "kt_optimize_rule", "kt_expert_checkpoint_path",
           "kt_cpu_activation"},
          R"(
use_kt, kt_config.enabled = experts_device: cpu
kt_optimize_rule, chunk_size, mode ~ it says how the experts are placed
kt_expert_weight_format = expert_weight_dtype
kt_weight_path, kt_expert_checkpoint_path ? experts are read from model_name_or_path, and rounded by the same rule: this folder was made of that model
kt_non_expert_weight_path ~ the weights that it was made of are read from model_name_or_path
kt_skip_expert_loading, kt_checkpoint_files, kt_sharded_metadata, kt_wrap_fn, kt_wrap_kwargs ~ weights are read straight into place
kt_lora_rank = lora_r
kt_lora_alpha = lora_alpha
kt_lora_dropout = lora_dropout
kt_train_mode = finetuning_type
kt_full_weight_grad ~ kt_train_mode says it
kt_use_lora_experts ! small MLPs beside the experts are not in this version
kt_lora_expert_num, kt_lora_expert_intermediate_size ~ only kt_use_lora_experts would read it
kt_num_threads, cpu_infer = threads
kt_num_gpu_experts - the routed experts of a layer are all in one place
kt_tp_enabled, kt_threadpool_count ~ threads and memory are spread over the memory nodes of the machine
kt_cpu_activation, kt_activation_policy, kt_share_backward_bb, kt_share_cache_pool, kt_max_cache_depth, kt_model_max_length, kt_weight_lifecycle ~ memory is planned before the run
kt_force_fused_expert_lora ~ adapter_layout says how adapters are written
lora_target = lora_target_modules {all: "all-linear,all-experts"}
)",
          "",
          R"(
lora_target_modules: [all-linear, all-experts]
)"};
}

}  // namespace hone
