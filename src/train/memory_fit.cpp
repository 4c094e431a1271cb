#include "train/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "session/device_facts.h"
#include "train/recompute.h"

namespace hone {

MemoryLimit memory_limit(Stream& stream) {
  const Device device = stream.device();
  if (device.kind == DeviceKind::kCuda) stream.cuda().libraries();
  const auto available = static_cast<int64_t>(available_memory(device));
  if (device.kind == DeviceKind::kCuda) {
    return {.comfortable = available, .most = available, .host = static_cast<int64_t>(allocatable_host_memory())};
  }
  // Other programs of the host allocate and free memory meanwhile.
  return {.comfortable = available * 9 / 10, .most = available, .host = std::nullopt};
}

MemoryLimit least_of_ranks(MemoryLimit limit, Device device, int sharing, Control& ranks) {
  if (device.kind == DeviceKind::kCpu) {
    limit.comfortable /= sharing;
    limit.most /= sharing;
  }
  if (limit.host) *limit.host /= sharing;
  for (const std::string& text :
       ranks.exchange(fmt::format("{} {} {}", limit.comfortable, limit.most, limit.host.value_or(0)))) {
    MemoryLimit other;
    std::istringstream(text) >> other.comfortable >> other.most >> other.host.emplace();
    limit.comfortable = std::min(limit.comfortable, other.comfortable);
    limit.most = std::min(limit.most, other.most);
    if (limit.host) limit.host = std::min(*limit.host, *other.host);
  }
  return limit;
}

std::vector<std::string> allowed_levels(const std::string& gradient_checkpointing) {
  if (gradient_checkpointing == "auto") return recompute_levels();
  if (gradient_checkpointing == "true") return {recompute_levels().back()};
  if (gradient_checkpointing == "false") return {recompute_levels().front()};
  return {gradient_checkpointing};
}

std::string level_setting(const std::string& level) {
  if (level == recompute_levels().front()) return "false";
  return level == recompute_levels().back() ? "true" : level;
}

FittingLevel choose_level(const std::vector<std::string>& levels, const MemoryLimit& limit,
                          const std::function<MemoryPlan(const RecomputePolicy&)>& plan) {
  HONE_ASSERT(!levels.empty());
  FittingLevel choice;
  for (const bool on_host : {false, true}) {
    for (const std::string& level : levels) {
      const bool last = level == levels.back();
      RecomputePolicy policy = recompute_policy(level);
      policy.on_host = on_host;
      choice = {level, plan(policy), false, on_host};
      choice.fits = last ? limit.fits(choice.plan) : limit.fits_comfortably(choice.plan);
      if (choice.fits) return choice;
    }
    const bool too_much_of_the_host = !limit.host || choice.plan.host() > *limit.host;
    if (choice.plan.experts_on_host == 0 || !too_much_of_the_host) break;
  }
  return choice;
}

FittingLevel choose_level(const std::vector<std::string>& levels, const MemoryLimit& limit, Engine& engine) {
  return choose_level(levels, limit, [&](const RecomputePolicy& policy) {
    engine.set_recompute(policy);
    return engine.plan();
  });
}

UserError does_not_fit(const std::string& what, const MemoryPlan& plan, const MemoryLimit& limit,
                       const std::string& fix) {
  const auto gigabytes = [](int64_t bytes) {
    return fmt::format("{:.2f} GB", static_cast<double>(std::max<int64_t>(bytes, 0)) / 1e9);
  };
  if (limit.host && plan.host() > *limit.host) {
    return UserError(
        fmt::format("{} needs {} of host memory, {} are free", what, gigabytes(plan.host()), gigabytes(*limit.host)),
        kMemoryPlan, "offload less (cpu_offload); " + fix);
  }
  return UserError(
      fmt::format("{} needs {} of memory, {} are free", what, gigabytes(limit.needs(plan)), gigabytes(limit.most)),
      kMemoryPlan, fix);
}

}  // namespace hone
