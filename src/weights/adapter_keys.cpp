#include "weights/adapter_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "weights/adapter.h"

namespace hone {

namespace {

std::string without_weight(const std::string& name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

}  // namespace

const char* prefix_of(ExpertNaming names) { return names == ExpertNaming::kServing ? "" : kAdapterKeyPrefix; }

bool can_be_saved_whole(ParameterKind kind) {
  return kind == ParameterKind::kRouter || kind == ParameterKind::kEmbedding || kind == ParameterKind::kHead ||
         kind == ParameterKind::kNorm;
}

std::vector<std::string> whole_names(const ParameterStore& store, const Parameter& whole) {
  std::vector<std::string> names = {whole.name()};
  const bool tied = whole.kind() == ParameterKind::kEmbedding &&
                    std::none_of(store.all().begin(), store.all().end(),
                                 [](const Parameter& p) { return p.kind() == ParameterKind::kHead; });
  if (tied) names.push_back("lm_head.weight");
  return names;
}

std::string kt_key(const Parameter& experts, const std::string& part, bool a) {
  const std::string projection = part.substr(0, part.find('_'));  // gate of gate_proj
  return fmt::format("layers.{}.experts.{}_lora_{}", experts.layer(), projection, a ? "a" : "b");
}

ExpertKeys::ExpertKeys(const Parameter& experts, ExpertNaming names) : experts_(experts), naming_(names) {
  for (const FileTensor& tensor : separate_experts(experts)) names_[tensor.offset] = without_weight(tensor.name);
}

std::string ExpertKeys::module(int64_t expert, int64_t out_begin) const {
  if (naming_ == ExpertNaming::kFile) {
    const auto found = names_.find((expert * experts_.shape()[1] + out_begin) * experts_.shape()[2]);
    HONE_ASSERT(found != names_.end(), experts_.name());
    return prefix_of(naming_) + found->second;
  }
  for (const ExpertPart& part : parts_of(experts_)) {
    if (part.out_begin != out_begin) continue;
    return fmt::format("{}{}.{}.{}", prefix_of(naming_), experts_module(experts_), expert, part.name);
  }
  HONE_ASSERT(false, experts_.name());
}

std::string ExpertKeys::leaf(int64_t out_begin) const {
  const std::string name = module(0, out_begin);
  return name.substr(name.rfind('.') + 1);
}

}  // namespace hone
