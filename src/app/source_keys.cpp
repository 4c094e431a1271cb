#include "app/source_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>

#include "app/schema.h"
#include "app/statement.h"
#include "core/error.h"

namespace hone {
namespace {

// A line each: the key, or key=value where values differ in what becomes of them.
constexpr const char* kQwen3Sft = R"(
--model_path --tokenizer_path --dataset_path=d.jsonl --output_dir
--global_batch_size --micro_batch_size --train_steps --save_steps --max_length=64 --learning_rate --weight_decay --optim=adamw_torch
--run_name --full_determinism --logging_steps
--deepspeed_config=config/zero1.json --deepspeed_config=config/zero3.json --fsdp=full_shard,auto_wrap
--use_fast_moe_block --use_fp8 --use_packing --completion_only_loss --use_liger_kernel --torch_compile --use_lora
--use_liger_efficiency_callback
)";
constexpr const char* kKtConfig = R"(
kt_backend=AMXBF16 kt_backend=AMXINT8 kt_backend=AMXINT4 kt_num_threads kt_tp_enabled kt_threadpool_count kt_weight_path kt_expert_checkpoint_path
kt_num_gpu_experts kt_skip_expert_loading kt_share_backward_bb kt_share_cache_pool kt_max_cache_depth kt_model_max_length
kt_lora_rank kt_lora_alpha kt_use_lora_experts kt_lora_expert_num kt_lora_expert_intermediate_size
kt_checkpoint_files kt_sharded_metadata kt_wrap_fn kt_wrap_kwargs
kt_non_expert_weight_path kt_expert_weight_format=bf16 kt_expert_weight_format=int8 kt_weight_lifecycle kt_force_fused_expert_lora
kt_activation_policy kt_lora_dropout=0.1 kt_train_mode=lora kt_train_mode=full kt_train_mode=hybrid kt_full_weight_grad
ACCELERATE_KT_BACKEND=AMXINT8 ACCELERATE_KT_NUM_THREADS ACCELERATE_KT_TP_ENABLED ACCELERATE_KT_THREADPOOL_COUNT ACCELERATE_KT_WEIGHT_PATH
ACCELERATE_KT_EXPERT_CHECKPOINT_PATH ACCELERATE_KT_NUM_GPU_EXPERTS ACCELERATE_KT_SKIP_EXPERT_LOADING
ACCELERATE_KT_SHARE_BACKWARD_BB ACCELERATE_KT_SHARE_CACHE_POOL ACCELERATE_KT_MAX_CACHE_DEPTH ACCELERATE_KT_MODEL_MAX_LENGTH
ACCELERATE_KT_LORA_RANK ACCELERATE_KT_LORA_ALPHA ACCELERATE_KT_USE_LORA_EXPERTS ACCELERATE_KT_LORA_EXPERT_NUM
ACCELERATE_KT_LORA_EXPERT_INTERMEDIATE_SIZE ACCELERATE_KT_NON_EXPERT_WEIGHT_PATH ACCELERATE_KT_EXPERT_WEIGHT_FORMAT=int8
ACCELERATE_KT_WEIGHT_LIFECYCLE ACCELERATE_KT_FORCE_FUSED_EXPERT_LORA ACCELERATE_KT_LORA_DROPOUT=0.1 ACCELERATE_KT_TRAIN_MODE=lora
ACCELERATE_KT_FULL_WEIGHT_GRAD ACCELERATE_KT_OMP_NUM_THREADS ACCELERATE_KT_ACTIVATION_POLICY
KT_REUSE_CHECKPOINT_FORWARD KT_SFT_PROFILE KT_SFT_DEBUG KT_SFT_ENABLE_WARMUP SFT_MOE_NAN_CHECK SFT_POOL_LOG SFT_POOL_LOG_FILE
KT_INT8_VNNI_BACKEND SFT_TRACE_PATH SFT_TIMER_DISABLED
use_kt kt_config kt_cpu_activation kt_optimize_rule cpu_infer chunk_size USE_KT
finetuning_type=full finetuning_type=freeze finetuning_type=lora stage=sft stage=dpo template=qwen3 cutoff_len=64
)";
constexpr const char* kNodeGuide = R"(
model_args.model_name_or_path model_args.trust_remote_code model_args.torch_dtype=bfloat16 model_args.attn_implementation
data_args.dataset_path=d.csv data_args.max_seq_length=64 data_args.validation_split=0.05 data_args.preprocessing_num_workers
training_args.output_dir training_args.per_device_train_batch_size training_args.per_device_eval_batch_size
training_args.gradient_accumulation_steps training_args.learning_rate training_args.lr_scheduler_type=cosine
training_args.warmup_ratio=0.1 training_args.weight_decay training_args.num_train_epochs training_args.logging_steps
training_args.save_steps training_args.eval_steps training_args.save_strategy=steps training_args.evaluation_strategy=steps
training_args.save_total_limit training_args.load_best_model_at_end training_args.metric_for_best_model=eval_loss
training_args.dataloader_num_workers training_args.ddp_timeout training_args.report_to=tensorboard training_args.bf16
training_args.tf32 training_args.seed training_args.data_seed training_args.gradient_checkpointing training_args.max_grad_norm
training_args.deepspeed=ds_zero3.json training_args.remove_unused_columns training_args.logging_dir training_args.run_name
enable_thinking
)";
constexpr const char* kMixtralGuide = R"(
training.learning_rate training.min_learning_rate training.lr_scheduler_type=cosine training.lr_scheduler_type=linear
training.lr_scheduler_type=constant training.lr_scheduler_type=cosine_with_restarts training.warmup_ratio=0.03
training.per_device_train_batch_size training.per_device_eval_batch_size training.gradient_accumulation_steps training.weight_decay
training.label_smoothing_factor=0 training.label_smoothing_factor=0.1 training.dropout=0.05
training.optim=adamw_torch_fused training.optim=adamw_torch training.optim=adafactor training.optim=sgd
training.adam_beta1=0.9 training.adam_beta2=0.999 training.adam_epsilon training.max_grad_norm training.num_train_epochs
training.max_steps=-1 training.gradient_checkpointing training.dataloader_num_workers training.logging_steps training.save_steps
training.save_total_limit training.load_best_model_at_end training.metric_for_best_model=eval_loss training.auto_find_batch_size
training.gradient_accumulation_steps_auto training.bf16 training.fp16=false training.fp16=true training.ddp_backend
training.ddp_timeout training.seed training.output_dir training.eval_steps training.evaluation_strategy=steps
moe.use_auxiliary_loss moe.auxiliary_loss_weight moe.freeze_router moe.monitor_expert_usage moe.log_expert_metrics
moe.router_jitter_noise=0.1 moe.num_experts_per_token=2
inference.temperature inference.top_k inference.top_p=0.95 inference.repetition_penalty inference.max_new_tokens
inference.num_beams=1 inference.num_beams=4 inference.do_sample
advanced.use_cpu_offload advanced.torch_compile advanced.early_stopping_patience=3 advanced.early_stopping_threshold=0.001
advanced.compile_backend advanced.compile_mode advanced.profile_memory advanced.detect_anomaly advanced.debug_mode advanced.log_level
model.name model.attn_implementation model.max_seq_length=64 model.load_in_8bit=false model.load_in_8bit=true
model.load_in_4bit=true model.torch_dtype=bfloat16 model.trust_remote_code
lora.r lora.alpha lora.dropout=0.05 lora.bias=none lora.target_modules=q_proj lora.exclude_modules=w1 lora.use_rslora
lora.modules_to_save=gate lora.task_type
validation.validation_split=0.05 validation.compute_perplexity validation.max_eval_samples=100
post_training.merge_and_save post_training.merged_output_dir=m post_training.quantize_after_training
post_training.quantization_bits
dataset.max_tokens=512 dataset.overlap=64 dataset.train_split=0.95 dataset.min_tokens=10 dataset.text_field=text dataset.include_tests
repository.path repository.exclude_patterns
tokenizer.padding_side tokenizer.truncation_side=right tokenizer.add_eos_token tokenizer.add_bos_token
checkpoint.push_to_hub checkpoint.hub_model_id checkpoint.resume_from_checkpoint=auto
wandb.enabled=false wandb.enabled=true wandb.project wandb.entity wandb.name wandb.tags
hardware.num_gpus=1 hardware.num_gpus=8
)";
constexpr const char* kFms = R"(
training.moe.scattermoe.ep_degree=1 training.moe.scattermoe.ep_degree=4 training.moe.scattermoe.disable_distributed
--fast_moe=4 --fast_moe=true --padding_free=huggingface --multipack=16 --fast_kernels=true
)";

void add(const char* system, const char* text, std::vector<SourceKey>& keys) {
  std::stringstream stream(text);
  for (std::string word; stream >> word;) {
    const size_t equals = word.find('=');
    keys.push_back({system, word.substr(0, equals), equals == std::string::npos ? "" : word.substr(equals + 1)});
  }
}

/// A value that turns the key on, where none is given.
std::string value_for(const SourceKey& key, const KeySpec& spec) {
  if (!key.value.empty()) return key.value;
  switch (spec.type) {
    case KeyType::kString:
    case KeyType::kPath:
    case KeyType::kStringList:
      return "x";
    case KeyType::kInteger:
    case KeyType::kNumber:
      return "1";
    default:
      return "true";
  }
}

const char* status_name(SourceKeyStatus::Kind kind) {
  static constexpr const char* kNames[] = {"used", "no effect", "not in this version", "unknown"};
  return kNames[static_cast<size_t>(kind)];
}

constexpr const char* kIntroduction = R"(# Keys of the source systems

<!-- Generated by `hone schema --source-keys`; a test compares them. -->

What becomes of each key of five systems whose features Hone has, wherever it stands: in a file, in a section, as
`key=value` or `--key value`. `hone validate` says the same of a whole configuration, and
[`hone convert-config`](migration.md) writes one in Hone's own words.

- **used**: under the canonical name, printed once at start;
- **no effect**: accepted with a line that says why it cannot change what is learnt;
- **not in this version**: refused (exit code 2), unless its value only says that the feature is off.

Names in capitals are environment variables of their systems. Here they are keys like the others: written into the
configuration they are obeyed; set in the environment they are not read, which the start of a run says by name.
)";

}  // namespace

const std::vector<SourceKey>& source_keys() {
  static const std::vector<SourceKey> all = [] {
    std::vector<SourceKey> keys;
    add("Qwen3-MoE fast SFT (qwen3_sft.py)", kQwen3Sft, keys);
    add("KTransformers (KTConfig, environment, LLaMA-Factory)", kKtConfig, keys);
    add("Qwen3-32B on several nodes (fine_tune_qwen3.py)", kNodeGuide, keys);
    add("Mixtral with LoRA on attention (train_moe.py)", kMixtralGuide, keys);
    add("fms-acceleration (scattermoe, fms-hf-tuning)", kFms, keys);
    return keys;
  }();
  return all;
}

SourceKeyStatus status_of(const SourceKey& key) {
  using Kind = SourceKeyStatus::Kind;
  std::string path = key.written.substr(std::min(key.written.find_first_not_of('-'), key.written.size()));
  const size_t dot = path.rfind('.');
  const std::string above = dot == std::string::npos ? "" : path.substr(0, dot);
  const std::string section = config_name(above.substr(above.rfind('.') + 1));
  const std::string name = config_name(path.substr(dot == std::string::npos ? 0 : dot + 1));
  if (!section.empty() && !is_section(section)) return {};
  const FoundKey found = find_key(schema(), section, name);
  if (!found.key) return {};
  if (found.key->status == KeyStatus::kNoEffect) return {Kind::kNoEffect, found.key->name, found.key->help};
  ConfigNode value;
  value.kind = ConfigNode::Kind::kScalar;
  value.text = value_for(key, *found.key);
  value.where = key.written;
  if (found.key->name == "chat_template" && value.text.find('{') == std::string::npos) {
    return {Kind::kNotHere, found.key->name, "Names of templates: leave it out to use the model's own."};
  }
  try {
    const std::optional<Statement> statement = read_statement(found, name, value);
    if (statement) return {Kind::kUsed, statement->key->name, ""};
    if (found.key->status == KeyStatus::kSupported) return {Kind::kUsed, found.key->name, ""};
    return {Kind::kNoEffect, found.key->name, "It says that the feature is off, as it is."};
  } catch (const UserError&) {
    return {Kind::kNotHere, found.key->name, found.key->help};
  }
}

std::vector<std::string> unread_environment() {
  std::vector<std::string> names;
  for (const SourceKey& key : source_keys()) {
    const bool shouted =
        std::none_of(key.written.begin(), key.written.end(), [](unsigned char c) { return std::islower(c); });
    const bool known = std::find(names.begin(), names.end(), key.written) != names.end();
    if (shouted && !known && std::getenv(key.written.c_str()) != nullptr) names.push_back(key.written);
  }
  return names;
}

std::string source_keys_markdown() {
  std::string text = kIntroduction, system;
  for (const SourceKey& key : source_keys()) {
    if (key.system != system) {
      system = key.system;
      text += fmt::format("\n## {}\n\n| key | here | status | |\n|---|---|---|---|\n", system);
    }
    const SourceKeyStatus status = status_of(key);
    const std::string written = key.value.empty() ? key.written : fmt::format("{}: {}", key.written, key.value);
    text +=
        fmt::format("| `{}` | `{}` | {} | {} |\n", written, status.canonical, status_name(status.kind), status.remark);
  }
  return text;
}

}  // namespace hone
