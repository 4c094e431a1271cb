#include "app/convert_config/tool.h"

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
template(default) ? the model's own chat template is used instead of a template of LLaMA-Factory
tool_format ? the model's own chat template writes the tools
default_system ! write the system message into the data
enable_thinking = chat_template_kwargs.enable_thinking
preserve_thinking ? the model's own chat template decides about thoughts of earlier turns
buffer_size, preprocessing_batch_size, streaming, data_shared_file_system, tokenized_path, overwrite_cache ~ data are prepared in one way
mix_strategy(concat) ! data sets are trained on one after the other: state weights in datasets
max_samples ~ it is in the entries of datasets
eval_num_beams, eval_on_each_dataset, ignore_pad_token_for_loss, compute_accuracy ~ evaluation is of loss and accuracy
freeze_trainable_layers, freeze_trainable_modules, freeze_extra_modules ~ only finetuning_type freeze would read it
pissa_* ! it is not in this version
create_new_adapter ! merge the old adapter first: hone merge
loraplus_lr_embedding ~ embeddings have no adapter
module_dropout, oft_* ~ only finetuning_type oft would read it
pref_*, dpo_label_smoothing, kto_*, simpo_gamma, ppo_*, ref_model*, reward_model*, ld_alpha ~ only other stages would read it
use_packed_sequences = packing
export_hf_on_finish ~ it changes no training
use_galore, use_apollo, use_badam, use_adam_mini, use_llama_pro ! it is not in this version
galore_*, apollo_*, badam_* ~ nothing would read it
use_muon = optim: muon
use_dft_loss, use_asft_loss, use_eaft_loss ! another loss than cross-entropy is not in this version
asft_alpha, eaft_alpha ~ only another loss would read it
use_swanlab - metrics go where report_to says
swanlab_* ~ only use_swanlab would read it
tensor_model_parallel_size(1), pipeline_model_parallel_size(1), virtual_pipeline_model_parallel_size(1), expert_model_parallel_size(1), context_parallel_size(1), sequence_parallel, tensor_parallel_size(1), use_distributed_optimizer, overlap_grad_reduce, overlap_param_gather, overlap_moe_expert_parallel_comm, use_mca, use_megatron_bridge, use_hyper_parallel, hyper_parallel_*, megatron_bridge_args, master_addr, master_port, ray_*, ray_run_name, ray_storage_path, placement_strategy, resources_per_worker ~ it says how ranks share the work, which changes nothing that is learnt
bias_activation_fusion, apply_rope_fusion, moe_grouped_gemm, moe_token_dispatcher_type, moe_permute_fusion, masked_softmax_fusion, bias_dropout_fusion, gradient_accumulation_fusion, cross_entropy_loss_fusion, calculate_per_token_loss ~ the fused kernels are always on
mixed_precision = dtype {bf16: bfloat16, bf16_mixed: bfloat16, fp16: float16, fp32: float32}
freeze_vision_tower, freeze_multi_modal_projector, image_*, video_*, audio_*, use_audio_in_video, crop_to_patches ~ a vision tower is kept as it is
freeze_language_model ! nothing would be trained
disable_shuffling = shuffle {true: "false", false: "true"}
include_effective_tokens_per_second ~ tokens are always counted
adapter_folder, model_revision, hf_hub_token, ms_hub_token, om_hub_token, export_hub_model_id ~ models are folders here
use_fast_tokenizer, split_special_tokens, use_kv_cache, print_param_status, use_v1_kernels, use_reentrant_gc, use_unsloth, use_unsloth_gc, upcast_layernorm, upcast_lmhead_output, infer_*, offload_folder, block_diag_attn, compute_dtype ~ it does not change results
resize_vocab, add_tokens, add_special_tokens, new_special_tokens_config, init_special_tokens ! write them into the tokenizer's files
rope_scaling, shift_attn, mixture_of_depths, model_max_length ! edit the model's config.json
disable_gradient_checkpointing = gradient_checkpointing {true: "false", false: ""}
train_from_scratch ! hone init --new-model makes a model with random weights
quantization_method, quantization_type, quantization_device_map, double_quantization ~ only quantization_bit would read it
export_*, vllm_*, sglang_* ~ it changes no training
enable_torch_profiler = profile
profiler_*, profile_modules ~ profile has no further keys
fp8_backend, fp8_enable_fsdp_float8_all_gather ~ only fp8 would read it
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
)"};
}

}  // namespace hone
