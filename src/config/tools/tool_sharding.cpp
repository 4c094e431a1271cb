#include "config/tools/tool.h"

namespace hone {

/// A DeepSpeed configuration. "auto" leaves a value to the trainer's arguments.
ToolText deepspeed_text() {
  return {"deepspeed",
          "a DeepSpeed file",
          "",
          {},
          {"zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer", "steps_per_print",
           "wall_clock_breakdown"},
          R"(
train_batch_size = global_batch_size
train_micro_batch_size_per_gpu = per_device_train_batch_size
gradient_accumulation_steps = gradient_accumulation_steps
gradient_clipping = max_grad_norm
zero_optimization.stage = zero_stage
zero_optimization.stage3_param_persistence_threshold = stage3_param_persistence_threshold {auto: ""}
zero_optimization.mics_shard_size = dp_shard_size {-1: ""}
zero_optimization.zero_hpz_partition_size(1) - dp_shard_size: N keeps weights, gradients and states in groups of N ranks
zero_optimization.offload_optimizer.device = cpu_offload {cpu: optimizer, none: ""}
zero_optimization.offload_param.device = cpu_offload {cpu: params, none: ""}
zero_optimization.* ~ it says how ZeRO communicates
bf16.enabled = dtype: bfloat16
bf16.* ~ sums are float32
fp16.enabled ! float16 is not in this version: enable bf16, which has the range of float32
fp16.* ~ only fp16 would read it
optimizer.type = optim {adamw: adamw, adam: adamw, fusedadam: adamw, deepspeedcpuadam: adamw, cpuadam: adamw}
optimizer.params.lr = learning_rate
optimizer.params.eps = adam_epsilon
optimizer.params.weight_decay = weight_decay
optimizer.params.betas.0 = adam_beta1
optimizer.params.betas.1 = adam_beta2
optimizer.params.* ~ one AdamW is there
scheduler.type = lr_scheduler_type {warmuplr: constant_with_warmup, warmupdecaylr: linear, warmupcosinelr: cosine}
scheduler.params.warmup_num_steps = warmup_steps
scheduler.params.warmup_max_lr = learning_rate
scheduler.params.total_num_steps = max_steps
scheduler.params.cos_min_ratio = min_lr_ratio
scheduler.params.warmup_min_lr(0) ! warm-up begins at 0
scheduler.params.warmup_type(linear) ! warm-up is linear
scheduler.params.* ~ the schedule has no such parameter
activation_checkpointing.* ~ gradient_checkpointing says what is recomputed
zero_allow_untested_optimizer, zero_force_ds_cpu_optimizer, steps_per_print, wall_clock_breakdown, flops_profiler.*, comms_logger.*, comms_config.*, communication_data_type, prescale_gradients, gradient_predivide_factor, sparse_gradients, dump_state, memory_breakdown, disable_allgather, aio.*, checkpoint.*, data_types.*, monitor_config.*, tensorboard.*, wandb.*, csv_monitor.*, torch_autocast.*, compile.*, autotuning.*, elasticity.*, zero_quantized_*, fp16_master_weights_and_gradients, hybrid_engine.*, seq_parallel_communication_data_type, tensor_parallel.*, autotp_size, amp.enabled ~ it does not change results
data_efficiency.*, curriculum_learning.*, progressive_layer_drop.*, eigenvalue.*, compression_training.*, sparse_attention.* ! this feature of DeepSpeed is not in this version
)",
          "",
          ""};
}

/// FSDP: fsdp_config of transformers (JSON or mapping), names with or without fsdp_.
ToolText fsdp_text() {
  return {"fsdp",
          "an FSDP file",
          "",
          {},
          {"backward_prefetch", "forward_prefetch", "fsdp_backward_prefetch", "fsdp_forward_prefetch",
           "limit_all_gathers", "use_orig_params", "fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap",
           "transformer_layer_cls_to_wrap"},
          R"(
activation_checkpointing = gradient_checkpointing {false: ""}
fsdp_activation_checkpointing = gradient_checkpointing {false: ""}
offload_params, fsdp_offload_params, cpu_offload = cpu_offload {true: params+optimizer, false: ""}
activation_cpu_offload, fsdp_activation_cpu_offload = cpu_offload {true: activations, false: ""}
sharding_strategy, fsdp_sharding_strategy = fsdp_config.sharding_strategy
reshard_after_forward, fsdp_reshard_after_forward = fsdp_config.reshard_after_forward
version, fsdp_version ~ zero_stage says what ranks share
ignored_modules, fsdp_ignored_modules ! the gradients of all trained weights are summed
backward_prefetch, forward_prefetch, limit_all_gathers, use_orig_params, sync_module_states, cpu_ram_efficient_loading, cpu_offload_pin_memory, state_dict_type, final_state_dict_type, auto_wrap_policy, transformer_layer_cls_to_wrap, min_num_params, mixed_precision_policy, mixed_precision, xla, xla_*, enabled ~ it says how FSDP communicates
fsdp_* ~ it says how FSDP communicates
)",
          "",
          ""};
}

/// accelerate's configuration (accelerate launch --config_file).
ToolText accelerate_text() {
  return {"accelerate",
          "an accelerate file",
          "",
          {},
          {"compute_environment", "distributed_type", "num_machines", "machine_rank", "rdzv_backend", "downcast_bf16"},
          R"(
mixed_precision = dtype {bf16: bfloat16, no: "", fp8: fp8, fp16: float16}
fsdp_config @ fsdp
deepspeed_config.deepspeed_config_file @ deepspeed
deepspeed_config.gradient_clipping = max_grad_norm
deepspeed_config.gradient_accumulation_steps = gradient_accumulation_steps
deepspeed_config.zero_stage = zero_stage
deepspeed_config.offload_optimizer_device = cpu_offload {cpu: optimizer, none: ""}
deepspeed_config.offload_param_device = cpu_offload {cpu: params, none: ""}
deepspeed_config.* ~ it says how ZeRO communicates
num_processes, num_machines, distributed_type ~ hone launch, torchrun or srun start ranks
parallelism_config.parallelism_config_dp_shard_size, parallelism_config.dp_shard_size = dp_shard_size
parallelism_config.parallelism_config_dp_replicate_size, parallelism_config.dp_replicate_size = dp_replicate_size
parallelism_config.* ~ it says how ranks share the work, which changes nothing that is learnt
kt_config @ kt
use_cpu = device: cpu
* ~ it says how processes are started
)",
          "",
          ""};
}

}  // namespace hone
