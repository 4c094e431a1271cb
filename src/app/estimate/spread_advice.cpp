#include "app/estimate/spread_advice.h"

namespace hone {

std::string spread_advice(const RunConfig& run, const DecoderConfig& decoder) {
  constexpr int64_t kSpreadUpTo = 8192, kNotFrom = 16384;
  const RunConfig::Machine& machine = run.machine;
  if (machine.ranks == 1 || decoder.num_moe_layers() == 0) return "";
  const bool spread = machine.expert_parallel_size > 1, full = run.model.finetuning_type == FinetuningType::kFull;
  const int64_t tokens = run.schedule.per_device_train_batch_size * *run.data.max_length;
  if (spread && !full) return "With adapters, zero_stage: 3 is faster than expert_parallel_size (docs/distributed.md).";
  if (spread && tokens >= kNotFrom) {
    return "With so many tokens at once, a step is as fast without expert_parallel_size (docs/distributed.md).";
  }
  const bool can = machine.ranks % 2 == 0 && machine.shard_size % 2 == 0 && decoder.moe.num_experts % 2 == 0 &&
                   run.optim.name != OptimizerName::kAdafactor && machine.cpu_offload.empty();
  if (!spread && full && can && tokens <= kSpreadUpTo) {
    return "On GPUs of one host, expert_parallel_size: 2 is faster with so few tokens at once (docs/distributed.md).";
  }
  return "";
}

}  // namespace hone
