// The activation of an MLP and its slopes for an element. Included by *_cuda.cu only.
#pragma once

#include "kernels/mlp_activation.h"

namespace hone::cuda {

/// f = glu(gate) · linear(up), with the slopes of both; without a gate f = glu(gate), where `gate` is h, and linear
/// is 1.
struct ActivationElement {
  float glu, glu_slope, linear, linear_slope;

  __device__ ActivationElement(const MlpActivation& f, float gate, float up) : linear(up), linear_slope(1.0f) {
    switch (f.kind) {
      case MlpActivation::Kind::kSwiglu:
        sigmoid_unit(gate, 1.0f);
        return;
      case MlpActivation::Kind::kClampedSwiglu:
        sigmoid_unit(fminf(gate, f.limit), f.alpha);
        if (gate > f.limit) glu_slope = 0.0f;
        linear_slope = fabsf(up) <= f.limit ? 1.0f : 0.0f;
        linear = fminf(fmaxf(up, -f.limit), f.limit) + 1.0f;
        return;
      case MlpActivation::Kind::kGeglu:
        gelu(gate);
        return;
      case MlpActivation::Kind::kSquaredRelu:
        // A comparison that keeps NaN.
        const float relu = gate < 0.0f ? 0.0f : gate;
        glu = relu * relu;
        glu_slope = 2.0f * relu;
        linear = 1.0f;
        return;
    }
  }

 private:
  /// x · sigmoid(alpha · x)
  __device__ void sigmoid_unit(float x, float alpha) {
    const float sigmoid = 1.0f / (1.0f + expf(-alpha * x));
    glu = x * sigmoid;
    glu_slope = sigmoid * (1.0f + alpha * x * (1.0f - sigmoid));
  }
  /// As row_math's gelu_and_slope.
  __device__ void gelu(float x) {
    constexpr float kLinear = 1.5957691216057308f, kCubic = 0.044715f;
    const float sigmoid = 1.0f / (1.0f + expf(-kLinear * (x + kCubic * (x * x * x))));
    const float near = fminf(fmaxf(x, -16.0f), 16.0f);
    glu = x * sigmoid;
    glu_slope = sigmoid * (1.0f + near * (1.0f - sigmoid) * kLinear * (1.0f + 3.0f * kCubic * (near * near)));
  }
};

}  // namespace hone::cuda
