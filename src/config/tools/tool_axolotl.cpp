#include "config/tools/tool.h"

namespace hone {

/// Axolotl's YAML.
ToolText axolotl_text() {
  return {"axolotl",
          "Axolotl",
          "transformers",
          {"axolotl train", "axolotl.cli.train"},
          {"base_model", "sequence_len", "sample_packing", "micro_batch_size", "num_epochs", "val_set_size",
           "pad_to_sequence_len", "dataset_prepared_path", "lora_target_linear", "flash_attention", "special_tokens",
           "strict", "adapter", "bf16", "evals_per_epoch", "saves_per_epoch", "train_on_inputs", "datasets"},
          R"(
strict ~ an unknown key is always an error
plugins ~ what plugins bring is stated by keys of its own
base_model_ignore_patterns, model_type, type_of_model, tokenizer_type, tokenizer_use_fast, tokenizer_legacy, tokenizer_save_jinja_files, processor_kwargs, is_falcon_derived_model, is_llama_derived_model, is_mistral_derived_model, is_qwen_derived_model, cls_model_config ~ the model's config.json says what it is
processor_type, processor ! images and audio are not trained in this version: leave it out where the data are texts
base_model_config ? the model's folder has this config.json
tokenizer_config = tokenizer_name_or_path
tokenizer_use_mistral_common ? the model's chat template writes what mistral-common writes
hf_use_auth_token ~ HF_TOKEN and HF_HUB_CACHE say this (docs/hub.md)
overrides_of_model_config.output_router_logits ~ the balance of the routers is not in the loss
overrides_of_model_config.router_aux_loss_coef = router_aux_loss_coef
overrides_of_model_config.* ! edit the model's config.json
model_config.output_router_logits ~ the balance of the routers is not in the loss
model_config.router_aux_loss_coef = router_aux_loss_coef
model_config.router_z_loss_coef = router_z_loss_coef
model_config.* ! edit the model's config.json
overrides_of_model_kwargs, use_kernels, kernels, experimental_skip_move_to_device, device_map, max_memory, gpu_memory_limit, lora_on_cpu, torchdistx_path ~ weights are read straight into place
use_onebitllms, nvfp4_merge_aware ! weights would be rounded while they are trained, which is not in this version
nvfp4_merge_aware_start_step ~ only nvfp4_merge_aware would read it
nonexpert_quantization = base_weight_dtype {none: "", bf16: "", fp8_blockwise: fp8}
gemma4_nf4_nonexpert = base_weight_dtype: nf4
gemma4_fp8_nonexpert = base_weight_dtype: fp8
use_scattermoe, use_sonicmoe, expert_backend, moe_grouped_backend, use_dsv4_kernels, use_glm_dsa_kernels, dsv4_fp4_grouped_mode, dsv4_fp8_nonexpert_mode, dsv4_fp8_lora_kernel, dsv4_mlp_lora_kernel ~ experts always run as grouped products, and the fused kernels are always on
rope_scaling ! edit rope_scaling in the model's config.json
rl, reward_model, process_reward_model, num_labels, trl, vllm, ebft, center_rewards_coefficient ! only supervised fine-tuning is in this version
dpo_*, kto_*, orpo_alpha, simpo_gamma, cpo_alpha, rl_beta, rpo_alpha, precompute_ref_log_probs, max_prompt_len ~ only rl would read it
pretraining_dataset = datasets
datasets.ds_type, datasets.data_files, datasets.trust_remote_code, datasets.preprocess_shards, datasets.shards_idx ? path has to be the file itself
datasets.roles_to_train(assistant) ! only the assistant's turns of a row are learnt: write a message's train where others are
datasets.shards ! it takes a part of the data: state samples
datasets.train_on_eos(turn) ? the end of each learnt turn is learnt
datasets.train_on_eot ? the end of each learnt turn is learnt
datasets.message_field_training_detail, datasets.split_thinking, datasets.input_format, datasets.input_transform ! the rows have to be written in a format that Hone reads
datasets.message_field_training ? a message's train or weight is read
datasets.conversation ? one template renders all data sets
datasets.chat_template ? one template renders all data sets: chat_template outside datasets
datasets.logprobs_field, datasets.temperature ! distillation is not in this version
shuffle_merged_datasets ~ the trainer draws samples at random all the same: curriculum_sampling keeps their order
shuffle_before_merging_datasets, dataset_shard_*, dataset_keep_in_memory, skip_prepare_dataset, num_dataset_shards_to_save, push_dataset_to_hub, preprocess_iterable, is_preprocess, axolotl_config_path, streaming, streaming_multipack_buffer_size ~ data are prepared in one way
dataset_exact_deduplication ? no row occurs twice: duplicates are reported here, and trained on
min_sample_len ? no sample is shorter: shorter ones are not dropped here
eval_sequence_len, eval_sample_packing ~ evaluation is packed as training is; the loss is the same
sample_packing_sequentially ? the order of samples need not be exact: packs are filled best here
sample_packing_*, pad_to_sequence_len, pad_to_multiple_of, multipack_real_batches, batch_flattening, pretrain_multipack_*, pretraining_sample_concatenation, total_num_tokens, total_supervised_tokens ~ packing is best fit and has no padding
curriculum_sampling = shuffle {true: "false", false: ""}
qat, quantization ! weights that are rounded while they are trained are not in this version
use_eaft, eaft_* ! another loss than cross-entropy is not in this version
use_pose, pose_* ! positions with gaps are not in this version
scaling_softmax* ! attention with another softmax is not in this version
flash_attn_*, xformers_attention, sdp_attention, flex_attention, flex_attn_compile_kwargs, sage_attention, eager_attention, gemma4_hybrid_attn_impl, large_head_attention, sdpa_varlen, fused_attn_kernel, s2_attention, flash_optimum ~ attention never builds the score matrix
lora_mlp_kernel, lora_qkv_kernel, lora_o_kernel, lora_embedding_kernel, unsloth_*, liger_*, cut_cross_entropy, chunked_cross_entropy, chunked_cross_entropy_num_chunks, llama4_linearized_experts, deepcompile ~ the fused kernels are always on
tiled_mlp, tiled_mlp_* ~ it is about memory: MLPs and experts take tokens in tiles where it is short (mlp_token_tile, moe_token_tile)
torch_compile_options, include_tkps, profiler_*, gc_steps, gc_collect_steps, torch_empty_cache_steps, selective_checkpointing ~ it does not change results
layer_offloading ~ it is about memory
bfloat16 = dtype {true: bfloat16, false: ""}
float32 = dtype: float32
float16 ! float16 is not in this version: write bf16: true, which has the range of float32
fp8_enable_fsdp_float8_all_gather ~ weights travel between ranks in dtype
fp32_norms, fp32_norm_classes, embeddings_skip_upcast ~ norms compute in float32
expert_parallel_size = expert_parallel_size
expert_parallel_token_capacity ? no expert gets more tokens than that in a step
expert_parallel_*, context_parapllel_size(1), sequence_parallel_degree(1), context_parallel_size(1), tensor_parallel_size(1), heads_k_stride, ring_attn_func, fsdp_version, fsdp_final_state_dict_type, ddp, world_size, use_ray, ray_*, resources_per_worker ~ it says how ranks share the work, which changes nothing that is learnt
special_tokens.bos_token = special_tokens.bos_token
special_tokens.eos_token = special_tokens.eos_token
special_tokens.pad_token = special_tokens.pad_token
special_tokens.unk_token = special_tokens.unk_token
special_tokens.additional_special_tokens = add_special_tokens
special_tokens.* ? the model's tokenizer has these tokens
tokens.bos_token = special_tokens.bos_token
tokens.eos_token = special_tokens.eos_token
tokens.pad_token = special_tokens.pad_token
tokens.unk_token = special_tokens.unk_token
tokens = add_tokens
tokens.* ? the model's tokenizer has these tokens
added_tokens_overrides ! write them into the tokenizer's files
resize_token_embeddings_to_32x ? the head gets no rows without a token here: a softmax over them differs in the last digits
shrink_embeddings ~ rows that no token has are kept
mean_resizing_embeddings ~ rows of tokens that are added begin as the mean of the others
reinit_weights ? the model folder has random weights: hone init --new-model makes such a one
fix_untrained_tokens ! the embedding stays as it is
default_system_message ! write the system message into the data
peft_layers_to_transform = lora_layers
peft_init_lora_weights = lora_init
lora_fan_in_fan_out ~ linear weights are [out, in]
peft_autocast_adapter_dtype, qlora_sharded_model_loading, merge_method, loftq_config ~ adapters are float32
bnb_config_kwargs.bnb_4bit_use_double_quant = bnb_4bit_use_double_quant
bnb_config_kwargs.bnb_4bit_quant_type = bnb_4bit_quant_type
bnb_config_kwargs.* ~ it says how bitsandbytes stores codes and multiplies
gptq ! files of GPTQ are not read: take the model in bfloat16 and base_weight_dtype: nf4
relora ! ReLoRA, which merges adapters during the run, is not in this version
lisa_* ! LISA, which trains other layers from time to time, is not in this version
peft.loftq_config ! LoftQ's start of adapters is not in this version
peft_layers_pattern, peft_layer_replication, peft_trainable_token_indices, peft_ensure_weight_tying, peft.* ! this kind of LoRA is not in this version
gptq_* ~ only gptq would read it
max_packed_sequence_len ! it packs samples that see each other: write sample_packing
batch_size = global_batch_size
evals_per_epoch = evals_per_epoch {0: ""}
saves_per_epoch = saves_per_epoch {0: ""}
gradient_checkpointing = gradient_checkpointing {offload: "true", offload_disk: "true"}
eta_min, full_finetune, test_value ~ Axolotl does not read it
llmcompressor ! recipes of sparse weights are not in this version
diffusion, diffusion.* ! only models that predict the next token are trained
relora_*, jagged_* ~ only relora would read it
loraplus_lr_embedding ~ embeddings have no adapter
noisy_embedding_alpha = neftune_noise_alpha
embedding_lr, embedding_lr_scale, lr_groups ! there is one learning rate
lr_quadratic_warmup ! warm-up is linear
cosine_constant_lr_ratio, lr_div_factor ! the schedules are those of lr_scheduler_type
dynamic_checkpoint ! checkpoints are saved by steps
adam_beta3, adam_epsilon2, dion_*, qgalore_* ~ only another optimizer would read it
optim_target_modules ! GaLore is not in this version
do_causal_lm_eval, eval_causal_lm_metrics, do_bench_eval, bench_*, eval_table_size, eval_max_new_tokens, gradio_* ~ it changes no training
loss_watchdog_* ? the loss stays below the threshold: here only numbers that are not finite stop a run (nan_policy)
save_first_step ~ a checkpoint of the first step is not needed
hub_* - models are not uploaded
use_comet, comet_*, use_swanlab, swanlab_*, mlflow_run_name - metrics go where report_to says
generation_* - only generate_samples would read it
freeze_mm_modules ~ a vision tower is kept as it is
model_quantization_config, model_quantization_config_kwargs ? quantised checkpoints are read as they are
trainer_cls ! a trainer of one's own is not run
)",
          R"(
num_train_epochs: 1
per_device_train_batch_size: 1
lr_scheduler_type: cosine
warmup_ratio: 0.03
max_length: 512
overlength: drop
)",
          R"(
lora_dropout: 0
bnb_4bit_use_double_quant: true
)"};
}

}  // namespace hone
