// Lion and SGD (ops/momentum).
#pragma once

#include <memory>

#include "optim/rule.h"

namespace hone {

struct LionOptions {
  double beta1 = 0.9;   ///< weight of the momentum in a step; the gradient's is 1 - beta1
  double beta2 = 0.99;  ///< decay of the momentum
};

std::shared_ptr<const Rule> lion_rule(const LionOptions& options = {});

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;  ///< used with momentum > 0
};

std::shared_ptr<const Rule> sgd_rule(const SgdOptions& options = {});

}  // namespace hone
