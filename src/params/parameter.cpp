#include "params/parameter.h"

#include "params/adapter.h"
#include "params/payload.h"

namespace hone {

Parameter::Parameter(ParameterSpec spec, DType dtype)
    : spec_(std::move(spec)),
      trainable_(spec_.kind != ParameterKind::kBuffer),
      share_(spec_.shape),
      value_(spec_, dtype),
      gradient_(share_) {
  set_formats({});
}

Parameter::~Parameter() = default;

void Parameter::set_formats(const TrainingFormats& formats) {
  const int64_t rank = spec_.shape.rank();
  const bool small = spec_.kind == ParameterKind::kLora || spec_.kind == ParameterKind::kNorm ||
                     spec_.kind == ParameterKind::kBias || rank < 2;
  TrainingFormats& in_force = state_.formats = formats;
  if (small) in_force.gradient = DType::kF32;
  for (DType* moment : {&in_force.m, &in_force.v}) {
    if (size_of(*moment) == 1 && spec_.shape.numel() < kLeastCoded) *moment = DType::kF32;
  }
  if (in_force.second_moment == SecondMoment::kFactored && rank < 2) in_force.second_moment = SecondMoment::kWhole;
  in_force.whole_matrices = in_force.whole_matrices && rank >= 2;
}

std::optional<PackedWeight> Parameter::packed_view() const {
  if (!value_.packed()) return std::nullopt;
  return PackedWeight{packed_layout(*this), value_.present(), value_.dtype_, value_.format_};
}

Tensor own_value(const Parameter& parameter) {
  const Tensor& stored = parameter.value().stored().payload;
  return parameter.value().home().sharded ? stored : parameter.share().own_part(stored);
}

const Tensor& stepped_value(const Parameter& parameter) {
  return parameter.state().has_master() ? parameter.state().master : parameter.value().stored().payload;
}

bool keeps_master(const Parameter& parameter) {
  return parameter.trainable() && parameter.value().dtype() != DType::kF32 &&
         parameter.state().formats.master == DType::kF32;
}

}  // namespace hone
