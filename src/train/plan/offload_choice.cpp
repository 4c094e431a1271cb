#include "train/plan/offload_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/rules.h"
#include "core/base/contains.h"
#include "report/humanise.h"
#include "train/plan/recompute.h"

namespace hone {

namespace {

struct Saving {
  OffloadPart part = OffloadPart::kAuto;
  int64_t saves = 0;  ///< bytes of the device
};

/// The parts that the run could offload one at a time; where experts have a place of their own already, not weights.
std::vector<OffloadPart> parts_of_run(const RunConfig& config) {
  std::vector<OffloadPart> parts;
  const bool weights_are_placed = offload_of(config.machine.cpu_offload).values();
  for (const std::vector<OffloadPart>& chosen : offload_choices()) {
    if (chosen.size() != 1 || (weights_are_placed && chosen.front() == OffloadPart::kParams)) continue;
    if (go_together(with_offload(config, chosen))) parts.push_back(chosen.front());
  }
  return parts;
}

std::vector<OffloadPart> in_order(const std::vector<OffloadPart>& parts) {
  std::vector<OffloadPart> sorted;
  for (const OffloadPart part : offload_parts()) {
    if (contains(parts, part)) sorted.push_back(part);
  }
  return sorted;
}

}  // namespace

bool chooses_offload(const RunConfig& config) { return contains(config.machine.cpu_offload, OffloadPart::kAuto); }

RunConfig with_offload(RunConfig config, const std::vector<OffloadPart>& parts) {
  std::vector<OffloadPart>& offload = config.machine.cpu_offload;
  std::erase(offload, OffloadPart::kAuto);
  offload.insert(offload.end(), parts.begin(), parts.end());
  offload = in_order(offload);
  return config;
}

OffloadChoice choose_offload(const RunConfig& config, const MemoryLimit& limit, RunUse use, const PlanOfConfig& plan) {
  if (!limit.host) return {{}, "cpu_offload auto: nothing, since the device is the CPU"};
  const bool training = use == RunUse::kTraining;
  const std::vector<std::string> levels = training ? allowed_levels(config.model.gradient_checkpointing)
                                                   : std::vector<std::string>{recompute_levels().front()};
  const auto chosen_with = [&](const std::vector<OffloadPart>& chosen) {
    const RunConfig changed = with_offload(config, chosen);
    return choose_level(levels, limit, [&](const RecomputePolicy& policy) { return plan(changed, policy); });
  };
  const FittingLevel before = chosen_with({});
  if (!training && before.fits) return {{}, "cpu_offload auto: nothing, since an evaluation fits without"};
  std::vector<Saving> parts;
  for (const OffloadPart part : parts_of_run(config)) {
    const int64_t saves = before.plan.total() - plan(with_offload(config, {part}), before.policy()).total();
    if (saves > 0) parts.push_back({part, saves});
  }
  std::stable_sort(parts.begin(), parts.end(), [](const Saving& a, const Saving& b) { return a.saves > b.saves; });
  std::vector<OffloadPart> chosen;
  std::vector<std::string> saved;
  for (const Saving& saving : parts) {
    std::vector<OffloadPart> more = chosen;
    more.push_back(saving.part);
    const FittingLevel with = chosen_with(more);
    if (with.plan.host() > *limit.host) continue;  // the next one may be smaller
    chosen = std::move(more);
    saved.push_back(fmt::format("{} ({})", saving.part, human_bytes(saving.saves)));
    if (with.fits) break;
  }
  if (chosen.empty()) {
    const char* why =
        parts.empty() ? "it would save no memory of the device" : "the host's memory does not suffice for a part";
    return {{}, fmt::format("cpu_offload auto: nothing, since {}", why)};
  }
  return {in_order(chosen), fmt::format("cpu_offload auto: {} of {} on the device go to host memory",
                                        fmt::join(saved, ", "), human_bytes(before.plan.total()))};
}

}  // namespace hone
