// Keys of systems whose features are Hone's own: known, so that their configurations are understood to the last line.
#include "config/alias_rules.h"
#include "config/schema_builder.h"

namespace hone {
namespace {

void add_later(GroupBuilder group) {
  group.later("kt_use_lora_experts", KeyType::kBool, "Small MLPs beside the experts.")
      .neutral(false)
      .alias({"accelerate_kt_use_lora_experts"});
  group.later("num_experts_per_token", KeyType::kInteger,
              "Another number of experts than config.json of the model says.");
  group.later("max_eval_samples", KeyType::kInteger, "Fewer samples to evaluate on.")
      .neutral(0)
      .unset({"-1"})
      .instead("state samples in the entries of eval_datasets");
  group.later("quantize_after_training", KeyType::kBool, "A quantised copy of the result.").neutral(false);
  group.later("text_field", KeyType::kString, "Another column of texts.")
      .neutral("text")
      .instead("state column_mapping in the entry of datasets");
}

void add_placement(GroupBuilder group) {
  group
      .no_effect("kt_tp_enabled",
                 "experts_device: cpu spreads threads and weights over NUMA nodes, keeps what backward reads where "
                 "there is memory, and needs no buffers of stated sizes.")
      .alias({"kt_threadpool_count", "kt_share_backward_bb", "kt_share_cache_pool"})
      .alias({"kt_max_cache_depth", "kt_model_max_length", "kt_lora_expert_num", "kt_lora_expert_intermediate_size"})
      .alias({"kt_cpu_activation", "kt_activation_policy", "kt_weight_lifecycle", "kt_force_fused_expert_lora"})
      .alias({"kt_full_weight_grad", "kt_wrap_fn", "kt_wrap_kwargs", "cpu_infer", "chunk_size"})
      .alias({"accelerate_kt_tp_enabled", "accelerate_kt_threadpool_count"})
      .alias({"accelerate_kt_share_backward_bb", "accelerate_kt_share_cache_pool"})
      .alias({"accelerate_kt_max_cache_depth", "accelerate_kt_model_max_length", "accelerate_kt_lora_expert_num"})
      .alias({"accelerate_kt_lora_expert_intermediate_size", "accelerate_kt_omp_num_threads"})
      .alias({"accelerate_kt_activation_policy", "accelerate_kt_weight_lifecycle", "accelerate_kt_full_weight_grad"})
      .alias({"accelerate_kt_force_fused_expert_lora", "kt_reuse_checkpoint_forward", "kt_sft_enable_warmup"})
      .alias({"kt_int8_vnni_backend"})
      .alias({"kt_config.tp_enabled", "kt_config.threadpool_count", "kt_config.share_backward_bb"})
      .alias({"kt_config.share_cache_pool", "kt_config.max_cache_depth", "kt_config.model_max_length"});
  group.no_effect("kt_weight_path", "Weights are read from the model's folder.")
      .alias(
          {"kt_expert_checkpoint_path", "kt_non_expert_weight_path", "kt_skip_expert_loading", "kt_checkpoint_files"})
      .alias({"kt_config.weight_path", "kt_config.expert_checkpoint_path", "kt_config.skip_expert_loading"})
      .alias({"kt_sharded_metadata", "accelerate_kt_weight_path", "accelerate_kt_expert_checkpoint_path"})
      .alias({"accelerate_kt_skip_expert_loading", "accelerate_kt_non_expert_weight_path"});
  group.no_effect("kt_sft_profile", "profile: true says where the time goes.")
      .alias({"kt_sft_debug", "sft_pool_log", "sft_pool_log_file", "sft_trace_path", "sft_timer_disabled"})
      .alias({"profile_memory"});
  group.no_effect("sft_moe_nan_check", "Numbers that are not finite always stop the run or its step: nan_policy.")
      .alias({"detect_anomaly"});
  group.no_effect("disable_distributed", "expert_parallel_size is done in one way, whatever it says.");
}

void add_conveniences(GroupBuilder group) {
  group.no_effect("fast_kernels", "The fused kernels are always on.").alias({"multipack"});
  group.no_effect("compute_perplexity", "Perplexity is always reported.");
  group.no_effect("compile_backend", "The kernels are compiled already.").alias({"compile_mode"});
  group.no_effect("debug_mode", "--log-level says what is printed.").alias({"log_level"});
  group.no_effect("gradient_accumulation_steps_auto",
                  "The accumulation always follows: from global_batch_size or tokens_per_step, and where "
                  "auto_find_batch_size halves the batch.");
  group.no_effect("quantization_bits", "Only quantize_after_training would read it.");
  group.no_effect("task_type", "Adapters are of causal language models.");
  group.no_effect("padding_side", "Nothing is padded.");
  group.no_effect("hub_model_id", "Only push_to_hub would read it.").alias({"hub_token", "hub_strategy"});
  group.no_effect("repository.url", "Repositories are folders here: repository.path.").alias({"dataset.output_dir"});
}

}  // namespace

void add_foreign_keys(std::vector<KeySpec>& table) {
  add_later({table, "Keys of other systems"});
  add_placement({table, "Recognised, no effect"});
  add_conveniences({table, "Recognised, no effect"});
}

}  // namespace hone
