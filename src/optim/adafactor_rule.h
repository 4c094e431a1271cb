// Adafactor (ops/adafactor).
#pragma once

#include <memory>

#include "optim/rule.h"

namespace hone {

/// Defaults are those of Hugging Face's `optim: adafactor`.
struct AdafactorOptions {
  double eps1 = 1e-30, eps2 = 1e-3;
  double clip_threshold = 1;
  double decay_rate = -0.8;      ///< β2t = 1 - t^decay_rate
  double beta1 = 0;              ///< 0: no first moment
  bool scale_parameter = false;  ///< multiplies the rate by the parameter's RMS
  bool relative_step = false;    ///< the rate is min(1e-2, 1 / √t), instead of the schedule's
  bool warmup_init = false;      ///< with relative_step: the rate is min(1e-6 · t, 1 / √t)
};

std::shared_ptr<const Rule> adafactor_rule(const AdafactorOptions& options = {});

}  // namespace hone
