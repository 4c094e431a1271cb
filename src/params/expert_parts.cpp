#include "params/expert_parts.h"

#include <fmt/format.h>

namespace hone {

bool is_experts(const Parameter& p) {
  return begins_experts(p.spec().kind) || p.spec().kind == ParameterKind::kExpertsDown;
}

bool begins_experts(ParameterKind kind) {
  return kind == ParameterKind::kExpertsGateUp || kind == ParameterKind::kExpertsUp;
}

std::vector<ExpertPart> parts_of(const Parameter& experts) {
  const int64_t out = experts.shape()[1];
  if (experts.spec().kind == ParameterKind::kExpertsDown) return {{"down_proj", 0, out}};
  if (experts.spec().kind == ParameterKind::kExpertsUp) return {{"up_proj", 0, out}};
  return {{"gate_proj", 0, out / 2}, {"up_proj", out / 2, out / 2}};
}

std::string experts_module(const Parameter& experts) { return experts.name().substr(0, experts.name().rfind('.')); }

bool has_expert_files(const Parameter& experts) {
  return experts.spec().all_layouts().front().front().shape.rank() < experts.shape().rank();
}

FileLayout separate_experts(const Parameter& experts) {
  if (has_expert_files(experts)) return experts.spec().all_layouts().front();
  const int64_t count = experts.shape()[0], out = experts.shape()[1], in = experts.shape()[2];
  FileLayout layout;
  for (int64_t e = 0; e < count; ++e) {
    for (const ExpertPart& part : parts_of(experts)) {
      layout.push_back({fmt::format("{}.{}.{}.weight", experts_module(experts), e, part.name),
                        {part.out_count, in},
                        (e * out + part.out_begin) * in});
    }
  }
  return layout;
}

}  // namespace hone
