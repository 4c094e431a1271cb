#include <algorithm>
#include <array>
#include <cmath>

#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace hone::cpu {

namespace {

constexpr int64_t kMaxHeadDim = 1024;
/// Tokens whose weight gradients are summed in one go; fixed, so that sums do not depend on the threads.
constexpr int64_t kChunkTokens = 32;

using HeadBuffer = std::array<float, kMaxHeadDim>;

/// Σ a[i] b[i] in an order that the compiler can keep in vector registers.
float dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t kLanes = 16;
  std::array<float, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += a[i + static_cast<int64_t>(lane)] * b[i + static_cast<int64_t>(lane)];
  }
  for (size_t lane = 0; i < n; ++i, ++lane) sums[lane] += a[i] * b[i];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

template <class T>
void load(const T* source, int64_t n, float* target) {
  for (int64_t i = 0; i < n; ++i) target[i] = static_cast<float>(source[i]);
}

/// The weight as float32; false if there is none.
bool load_weight(const Tensor& norm, HeadBuffer& w) {
  if (!norm.defined()) return false;
  dispatch_float(norm.dtype, [&](auto element) { load(norm.as<decltype(element)>(), norm.numel(), w.data()); });
  return true;
}

/// A token's row of the table.
struct Angles {
  const float* cos;
  const float* sin;
  int64_t half;

  Angles(const QkNormRopeArgs& args, int64_t token) : half(args.table.cos.shape[1]) {
    const int64_t position = args.positions.as<int32_t>()[token];
    HONE_ASSERT(position >= 0 && position < args.table.cos.shape[0],
                "position " + std::to_string(position) + " is beyond the table of rotary embeddings");
    cos = args.table.cos.as<float>() + position * half;
    sin = args.table.sin.as<float>() + position * half;
  }

  /// Turns the pairs of a head, by the angles or (direction -1) by their negatives.
  void turn(float* head, float direction) const {
    for (int64_t i = 0; i < half; ++i) {
      const float a = head[i], b = head[i + half], s = direction * sin[i];
      head[i] = a * cos[i] - b * s;
      head[i + half] = b * cos[i] + a * s;
    }
  }
};

float inverse_rms(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
}

template <class T>
float round_to(float value) {
  return static_cast<float>(T(value));
}

template <class T>
void forward_token(const QkNormRopeArgs& args, const float* w, int64_t token) {
  const int64_t width = args.x.shape[1], dim = args.head_dim;
  const Angles angles(args, token);
  HeadBuffer z;
  for (int64_t column = 0; column < width; column += dim) {
    load(args.x.as<T>() + token * width + column, dim, z.data());
    if (w) {
      const float scale = inverse_rms(z.data(), dim, args.eps);
      for (int64_t i = 0; i < dim; ++i) {
        float& value = z[static_cast<size_t>(i)];
        value = round_to<T>(w[i] * round_to<T>(value * scale));
      }
    }
    angles.turn(z.data(), 1.0f);
    T* y = args.y.as<T>() + token * width + column;
    for (int64_t i = 0; i < dim; ++i) y[i] = T(z[static_cast<size_t>(i)]);
  }
}

/// From d loss / d z in `dz` to d loss / d x in place; adds the weight's gradient to `dw`.
template <class T>
void norm_backward(const float* x, const float* w, float eps, int64_t dim, float* dz, float* dw) {
  const float scale = inverse_rms(x, dim, eps);
  HeadBuffer normed;
  for (int64_t i = 0; i < dim; ++i) {
    normed[static_cast<size_t>(i)] = x[i] * scale;
    if (dw) dw[i] += dz[i] * round_to<T>(normed[static_cast<size_t>(i)]);
    dz[i] *= w[i];
  }
  const float mean = dot(dz, normed.data(), dim) / static_cast<float>(dim);
  for (int64_t i = 0; i < dim; ++i) dz[i] = scale * (dz[i] - normed[static_cast<size_t>(i)] * mean);
}

template <class T>
void backward_token(const QkNormRopeBackwardArgs& args, const float* w, int64_t token, float* dw) {
  const QkNormRopeArgs& forward = args.forward;
  const int64_t width = args.dy.shape[1], dim = forward.head_dim;
  const Angles angles(forward, token);
  HeadBuffer gradient, x;
  for (int64_t column = 0; column < width; column += dim) {
    const int64_t at = token * width + column;
    load(args.dy.as<T>() + at, dim, gradient.data());
    angles.turn(gradient.data(), -1.0f);
    if (w) {
      load(forward.x.as<T>() + at, dim, x.data());
      norm_backward<T>(x.data(), w, forward.eps, dim, gradient.data(), dw);
    }
    if (!args.dx.wanted()) continue;
    T* dx = args.dx.dst.as<T>() + at;
    const bool accumulate = args.dx.beta != 0.0f;
    for (int64_t i = 0; i < dim; ++i) {
      const float value = gradient[static_cast<size_t>(i)];
      dx[i] = T(accumulate ? value + static_cast<float>(dx[i]) : value);
    }
  }
}

/// dw = Σ partials over chunks, in rising order.
void sum_partials(const Tensor& partials, const GradDest& dest) {
  const float* partial = partials.as<float>();
  float* dw = dest.dst.as<float>();
  const int64_t chunks = partials.shape[0], dim = partials.shape[1];
  for (int64_t i = 0; i < dim; ++i) {
    float sum = 0.0f;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * dim + i];
    dw[i] = dest.beta != 0.0f ? dw[i] + sum : sum;
  }
}

}  // namespace

void qk_norm_rope(const Context& context, const QkNormRopeArgs& args) {
  HONE_ASSERT(args.head_dim <= kMaxHeadDim);
  context.launch([args](ThreadPool& pool) {
    HeadBuffer weight;
    const float* w = load_weight(args.norm, weight) ? weight.data() : nullptr;
    dispatch_float(args.x.dtype, [&](auto element) {
      pool.parallel_ranges(args.x.shape[0], kChunkTokens, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) forward_token<decltype(element)>(args, w, token);
      });
    });
  });
}

void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args) {
  HONE_ASSERT(args.forward.head_dim <= kMaxHeadDim);
  const int64_t tokens = args.dy.shape[0], dim = args.forward.head_dim;
  ArenaScope scratch(context.scratch());
  Tensor partials;
  if (args.dnorm.wanted()) partials = scratch.take({(tokens + kChunkTokens - 1) / kChunkTokens, dim}, DType::kF32);
  context.launch([args, partials, tokens, dim](ThreadPool& pool) {
    HeadBuffer weight;
    const float* w = load_weight(args.forward.norm, weight) ? weight.data() : nullptr;
    dispatch_float(args.dy.dtype, [&](auto element) {
      pool.parallel_ranges(tokens, kChunkTokens, [&](int64_t begin, int64_t end) {
        float* dw = partials.defined() ? partials.as<float>() + begin / kChunkTokens * dim : nullptr;
        if (dw) std::fill_n(dw, dim, 0.0f);
        for (int64_t token = begin; token < end; ++token) backward_token<decltype(element)>(args, w, token, dw);
      });
    });
    if (partials.defined()) sum_partials(partials, args.dnorm);
  });
}

}  // namespace hone::cpu
