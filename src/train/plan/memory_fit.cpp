#include "train/plan/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "core/base/error.h"
#include "session/device_facts.h"
#include "train/plan/predicted_time.h"
#include "train/plan/recompute.h"

namespace hone {

namespace {

/// Other programs of the host allocate and free memory meanwhile.
int64_t margin_of(int64_t host_memory) { return host_memory / 10; }

}  // namespace

MemoryLimit memory_limit(Stream& stream) {
  const Device device = stream.device();
  if (device.kind == DeviceKind::kCuda) stream.cuda().libraries();
  const auto available = static_cast<int64_t>(available_memory(device));
  if (device.kind == DeviceKind::kCuda) {
    const auto host = static_cast<int64_t>(allocatable_host_memory());
    return {.comfortable = available,
            .most = available,
            .host = host,
            .host_margin = margin_of(host),
            .gpu = gpu_model_of(device_name(device))};
  }
  return {.comfortable = available - margin_of(available), .most = available, .host = std::nullopt};
}

MemoryLimit least_of_ranks(MemoryLimit limit, Device device, int sharing, Control& ranks) {
  if (device.kind == DeviceKind::kCpu) {
    limit.comfortable /= sharing;
    limit.most /= sharing;
  }
  if (limit.host) *limit.host /= sharing;
  limit.host_margin /= sharing;
  const std::string gpu = limit.gpu ? limit.gpu->option() : "none";
  for (const std::string& text :
       ranks.exchange(fmt::format("{} {} {} {}", limit.comfortable, limit.most, limit.host.value_or(0), gpu))) {
    MemoryLimit other;
    std::string other_gpu;
    std::istringstream(text) >> other.comfortable >> other.most >> other.host.emplace() >> other_gpu;
    if (other_gpu != gpu) limit.gpu = std::nullopt;
    limit.comfortable = std::min(limit.comfortable, other.comfortable);
    limit.most = std::min(limit.most, other.most);
    if (limit.host) limit.host = std::min(*limit.host, *other.host);
  }
  return limit;
}

std::vector<std::string> allowed_levels(const Checkpointing& gradient_checkpointing) {
  if (!gradient_checkpointing) return recompute_levels();
  return {recompute_levels().at(static_cast<size_t>(*gradient_checkpointing))};
}

std::string level_setting(const std::string& level) {
  return std::string(name_of(Checkpointing(recompute_policy(level).level)));
}

RecomputePolicy FittingLevel::policy() const {
  RecomputePolicy policy = recompute_policy(level);
  policy.on_host = on_host;
  return policy;
}

FittingLevel choose_level(const std::vector<std::string>& levels, const MemoryLimit& limit,
                          const std::function<MemoryPlan(const RecomputePolicy&)>& plan) {
  HONE_ASSERT(!levels.empty());
  const bool can_recompute_experts = recompute_policy(levels.back()).level >= RecomputeLevel::kExperts;
  FittingLevel choice;
  std::optional<FittingLevel> fastest;
  for (const bool on_host : {false, true}) {
    for (const std::string& level : levels) {
      choice = {};
      choice.level = level;
      choice.on_host = on_host;
      const RecomputePolicy policy = choice.policy();
      if (on_host && policy.level < RecomputeLevel::kExperts) continue;  // the same plan on either side
      choice.plan = plan(policy);
      const bool last = level == levels.back();
      choice.fits = limit.fits(choice.plan) && (last || limit.fits_device_comfortably(choice.plan)) &&
                    (on_host || !can_recompute_experts || limit.fits_host_comfortably(choice.plan));
      if (!choice.fits) continue;
      if (!limit.gpu || choice.plan.host_activations == 0) return choice;  // levels are in the order of their speed
      choice.by_time = fastest.has_value();
      if (!fastest || predicted_seconds(choice.plan, *limit.gpu) < predicted_seconds(fastest->plan, *limit.gpu)) {
        fastest = choice;
      }
    }
    if (fastest) return *fastest;
    const bool host_suffices = limit.host && limit.fits_host_comfortably(choice.plan);
    if (choice.plan.experts_on_host == 0 || !can_recompute_experts || host_suffices) break;
  }
  return choice;
}

FittingLevel choose_level(const std::vector<std::string>& levels, const MemoryLimit& limit, Engine& engine) {
  FittingLevel choice = choose_level(levels, limit, [&](const RecomputePolicy& policy) {
    engine.set_recompute(policy);
    return engine.plan();
  });
  engine.set_recompute(choice.policy());
  return choice;
}

bool fits_at(const std::string& level, const MemoryLimit& limit,
             const std::function<MemoryPlan(const RecomputePolicy&)>& plan) {
  return choose_level({level}, limit, plan).fits;
}

std::string level_note(const std::string& level, bool on_host) {
  if (level == recompute_levels().front()) return "kept";
  std::string note = fmt::format("kept, {} recomputed", level);
  if (recompute_policy(level).level == RecomputeLevel::kAllButAttention)
    note = "recomputed in backward, but not attention";
  if (level == recompute_levels().back()) note = "recomputed in backward";
  return note + (on_host ? ", experts on the CPU too" : "");
}

namespace {

/// How a plan needs less host memory.
std::string advice_for_host(const MemoryPlan& plan) {
  const int64_t offloaded = plan.host_activations + plan.parameters.host - plan.parameters.on_host;
  std::string advice = offloaded > 0 ? "offload less (cpu_offload); " : "";
  if (plan.experts_on_host > 0) {
    advice +=
        "hold the experts in fewer bits (expert_weight_dtype, with adapters), or more of them on the device "
        "(experts_device: gpu, or fewer cpu_expert_layers); ";
  }
  return advice;
}

}  // namespace

UserError does_not_fit(const std::string& what, const MemoryPlan& plan, const MemoryLimit& limit,
                       const std::string& fix) {
  const auto gigabytes = [](int64_t bytes) {
    return fmt::format("{:.2f} GB", static_cast<double>(std::max<int64_t>(bytes, 0)) / 1e9);
  };
  if (limit.host && plan.host() > *limit.host) {
    return UserError(
        fmt::format("{} needs {} of host memory, {} are free", what, gigabytes(plan.host()), gigabytes(*limit.host)),
        kMemoryPlan, advice_for_host(plan) + fix);
  }
  return UserError(
      fmt::format("{} needs {} of memory, {} are free", what, gigabytes(limit.needs(plan)), gigabytes(limit.most)),
      kMemoryPlan, fix);
}

}  // namespace hone
