#include "train/plan/offload_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/rules.h"
#include "report/humanise.h"
#include "train/plan/recompute.h"

namespace hone {

namespace {

struct Saving {
  std::string name;
  int64_t saves = 0;  ///< bytes of the device
};

std::string bytes_of(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

/// The parts that the run could offload one at a time; where experts have a place of their own already, not weights.
std::vector<std::string> parts_of_run(const RunConfig& config) {
  std::vector<std::string> parts;
  const bool weights_are_placed = offload_of(config.machine.cpu_offload).values();
  for (const std::vector<std::string>& names : offload_choices()) {
    if (names.size() != 1 || (weights_are_placed && names.front() == "params")) continue;
    if (go_together(with_offload(config, names))) parts.push_back(names.front());
  }
  return parts;
}

std::vector<std::string> in_order(const std::vector<std::string>& names) {
  std::vector<std::string> sorted;
  for (const std::string& name : offload_names()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) sorted.push_back(name);
  }
  return sorted;
}

}  // namespace

bool chooses_offload(const RunConfig& config) {
  const std::vector<std::string>& names = config.machine.cpu_offload;
  return std::find(names.begin(), names.end(), kAutoOffload) != names.end();
}

RunConfig with_offload(RunConfig config, const std::vector<std::string>& names) {
  std::vector<std::string>& offload = config.machine.cpu_offload;
  std::erase(offload, kAutoOffload);
  offload.insert(offload.end(), names.begin(), names.end());
  offload = in_order(offload);
  return config;
}

OffloadChoice choose_offload(const RunConfig& config, const MemoryLimit& limit, RunUse use, const PlanOfConfig& plan) {
  if (!limit.host) return {{}, "cpu_offload auto: nothing, since the device is the CPU"};
  const bool training = use == RunUse::kTraining;
  const std::vector<std::string> levels = training ? allowed_levels(config.model.gradient_checkpointing)
                                                   : std::vector<std::string>{recompute_levels().front()};
  const auto chosen_with = [&](const std::vector<std::string>& names) {
    const RunConfig changed = with_offload(config, names);
    return choose_level(levels, limit, [&](const RecomputePolicy& policy) { return plan(changed, policy); });
  };
  const FittingLevel before = chosen_with({});
  if (!training && before.fits) return {{}, "cpu_offload auto: nothing, since an evaluation fits without"};
  RecomputePolicy same = recompute_policy(before.level);
  same.on_host = before.on_host;
  std::vector<Saving> parts;
  for (const std::string& name : parts_of_run(config)) {
    const int64_t saves = before.plan.total() - plan(with_offload(config, {name}), same).total();
    if (saves > 0) parts.push_back({name, saves});
  }
  std::stable_sort(parts.begin(), parts.end(), [](const Saving& a, const Saving& b) { return a.saves > b.saves; });
  std::vector<std::string> names, saved;
  for (const Saving& part : parts) {
    std::vector<std::string> more = names;
    more.push_back(part.name);
    const FittingLevel with = chosen_with(more);
    if (with.plan.host() > *limit.host) continue;  // the next one may be smaller
    names = std::move(more);
    saved.push_back(fmt::format("{} ({})", part.name, bytes_of(part.saves)));
    if (with.fits) break;
  }
  if (names.empty()) {
    const char* why =
        parts.empty() ? "it would save no memory of the device" : "the host's memory does not suffice for a part";
    return {{}, fmt::format("cpu_offload auto: nothing, since {}", why)};
  }
  return {in_order(names), fmt::format("cpu_offload auto: {} of {} on the device go to host memory",
                                       fmt::join(saved, ", "), bytes_of(before.plan.total()))};
}

}  // namespace hone
