// The momentum update of one element, shared by all devices.
#pragma once

#include "core/base/host_device.h"
#include "ops/momentum/momentum.h"
#include "tape/step_scalars.h"

namespace hone {

/// Values shared by all elements of a tensor: computed in float64 and rounded once.
struct MomentumStep {
  MomentumRule rule;
  float gradient_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, learning_rate;

  HONE_HOST_DEVICE static MomentumStep of(const StepScalars& scalars, MomentumRule rule, double beta1, double beta2,
                                          double rate_factor, double weight_decay) {
    const bool lion = rule == MomentumRule::kLion;
    const double lr = static_cast<double>(scalars.learning_rate) * rate_factor;
    return {rule,
            scalars.clip_coefficient,
            static_cast<float>(lion ? 1.0 - lr * weight_decay : weight_decay),
            static_cast<float>(beta1),
            static_cast<float>(1.0 - beta1),
            static_cast<float>(beta2),
            static_cast<float>(1.0 - beta2),
            static_cast<float>(lr)};
  }

  HONE_HOST_DEVICE void update(float& p, float& m, float gradient) const {
    float g = gradient * gradient_scale;
    if (rule == MomentumRule::kLion) {
      const float direction = beta1 * m + one_minus_beta1 * g;
      const float sign = direction > 0.0f ? 1.0f : direction < 0.0f ? -1.0f : 0.0f;
      p = p * decay - learning_rate * sign;
      m = beta2 * m + one_minus_beta2 * g;
      return;
    }
    g += decay * p;
    m = beta1 * m + g;
    p -= learning_rate * (rule == MomentumRule::kNesterov ? g + beta1 * m : m);
  }
};

}  // namespace hone
