// AdamW (ops/adamw).
#pragma once

#include <memory>

#include "optim/rule.h"

namespace hone {

struct AdamwOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
};

std::shared_ptr<const Rule> adamw_rule(const AdamwOptions& options = {});

}  // namespace hone
