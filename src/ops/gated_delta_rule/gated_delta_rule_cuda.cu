#include "ops/gated_delta_rule/delta_rule_cuda.h"

namespace hone::cuda {

void gated_delta_rule(const Context& context, const DeltaRuleArgs& args) { delta_rule_general(context, args); }

void gated_delta_rule_grad(const Context& context, const DeltaRuleGradArgs& args) {
  delta_rule_general_grad(context, args);
}

}  // namespace hone::cuda
