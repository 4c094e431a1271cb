#include "optim/muon_rule.h"

#include <fmt/format.h>

namespace hone {

namespace {

class MuonRule : public Rule {
 public:
  explicit MuonRule(const MuonOptions& options) : options_(options) {}

  std::string_view name() const override { return "muon"; }

  void choose_state(TrainingFormats& formats) const override {
    formats.has_m = true;
    formats.second_moment = SecondMoment::kNone;
    formats.whole_matrices = true;
  }

  std::string describe(const TrainingFormats& formats) const override {
    return fmt::format("Muon, {} momentum", moment_name(formats.m));
  }

  bool runs_on(Device device) const override { return device.kind == DeviceKind::kCpu; }

  void step(const Context& context, const RuleStep& step) const override {
    MuonArgs args{.tensors = {},
                  .scalars = step.scalars,
                  .momentum = options_.momentum,
                  .nesterov = options_.nesterov,
                  .steps = options_.steps,
                  .eps = options_.epsilon,
                  .rate = options_.rate,
                  .rate_factor = step.rate_factor,
                  .weight_decay = step.weight_decay};
    for (const Parameter* parameter : step.parameters) {
      const MatrixShape matrix = parameter->spec().matrix();
      args.tensors.push_back({.parameter = stepped_part(*parameter),
                              .working_copy = working_copy_of(*parameter),
                              .m = parameter->state().moment1.values,
                              .gradient = parameter->gradient().own(),
                              .rows = matrix.rows,
                              .columns = matrix.columns,
                              .may_round = parameter->value().dtype() == DType::kBF16,
                              .stream_id = parameter->index(),
                              .first_element = parameter->share().own().begin});
    }
    muon(context, args);
  }

 private:
  MuonOptions options_;
};

}  // namespace

std::shared_ptr<const Rule> muon_rule(const MuonOptions& options) { return std::make_shared<MuonRule>(options); }

std::vector<OptimizerGroup> muon_groups(const std::shared_ptr<const Rule>& muon,
                                        const std::shared_ptr<const Rule>& others, const GroupOptions& options) {
  std::vector<OptimizerGroup> groups = groups_of(muon, options, &is_hidden_matrix);
  for (OptimizerGroup& group : groups_of(others, options)) groups.push_back(std::move(group));
  return groups;
}

bool is_hidden_matrix(const Parameter& parameter) {
  switch (parameter.spec().kind) {
    case ParameterKind::kAttention:
    case ParameterKind::kAttentionGate:
    case ParameterKind::kMlp:
    case ParameterKind::kExpertsGateUp:
    case ParameterKind::kExpertsUp:
    case ParameterKind::kExpertsDown:
    case ParameterKind::kLora:
      return parameter.shape().rank() >= 2;
    default:
      return false;
  }
}

}  // namespace hone
