#include "app/convert_config/tool.h"

namespace hone {

/// KTransformers' fine-tuning: LLaMA-Factory's YAML with use_kt and kt_ keys. Its adapters are on every expert.
ToolText kt_text() {
  return {"kt",
          "KTransformers",
          "llama-factory",
          {},
          {"use_kt", "kt_backend", "kt_weight_path", "kt_num_threads", "kt_tp_enabled", "kt_threadpool_count",
           "kt_lora_rank", "kt_use_lora_experts", "kt_config", "kt_optimize_rule", "kt_expert_checkpoint_path",
           "kt_cpu_activation"},
          R"(
use_kt - experts on the CPU beside a GPU; `hone estimate` says what fits on one of them
kt_optimize_rule, cpu_infer, chunk_size, mode - experts on the CPU beside a GPU; `hone estimate` says what fits on one of them
kt_backend, kt_config.kt_backend, kt_expert_weight_format, kt_config.kt_expert_weight_format = expert_weight_dtype
kt_weight_path, kt_expert_checkpoint_path, kt_non_expert_weight_path, kt_skip_expert_loading, kt_checkpoint_files, kt_sharded_metadata ~ weights are read from the model's folder
kt_lora_rank, kt_config.kt_lora_rank = lora_r
kt_lora_alpha, kt_config.kt_lora_alpha = lora_alpha
kt_lora_dropout, kt_config.kt_lora_dropout = lora_dropout
kt_train_mode, kt_config.kt_train_mode = finetuning_type
kt_use_lora_experts, kt_config.kt_use_lora_experts ! small MLPs beside the experts are not in this version
kt_num_threads, kt_config.kt_num_threads = threads
kt_config.* ~ it says how the experts are placed
kt_* ~ it says how the experts are placed
lora_target = lora_target_modules {all: "all-linear,all-experts"}
)",
          "",
          R"(
lora_target_modules: [all-linear, all-experts]
)"};
}

}  // namespace hone
