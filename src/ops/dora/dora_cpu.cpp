#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "ops/dora/dora.h"

namespace hone::cpu {

namespace {

/// Rows that one task works on.
constexpr int64_t kRows = 16;
/// Columns whose sums over rows one task forms.
constexpr int64_t kColumns = 64;

/// The elements of a small tensor; `count` zeros for an undefined one.
std::vector<float> floats(const Tensor& tensor, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  if (!tensor.defined()) return values;
  dispatch_float(tensor.dtype, [&](auto element) {
    const auto* from = tensor.as<decltype(element)>();
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = static_cast<float>(from[i]);
  });
  return values;
}

float reciprocal(float norm) { return norm > 0.0f ? 1.0f / norm : 0.0f; }

/// magnitude / norms
std::vector<float> factors_of(const Tensor& magnitude, const Tensor& norms, int64_t count) {
  std::vector<float> factors = floats(magnitude, count);
  for (int64_t o = 0; o < count; ++o) factors[static_cast<size_t>(o)] *= reciprocal(norms.as<float>()[o]);
  return factors;
}

}  // namespace

void dora_norm(const Context& context, const DoraNormArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const int64_t out = args.shape[0], in = args.shape[1], r = args.lora_a.shape[0];
    const EncodedWeight weight{args.shape, args.w.payload, args.w.scales};
    const std::vector<float> a = floats(args.lora_a, r * in), b = floats(args.lora_b, out * r);
    pool.parallel_ranges(out, kRows, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(in));
      for (int64_t o = begin; o < end; ++o) {
        args.w.format->read(weight, o, 1, row.data());
        for (int64_t rho = 0; rho < r; ++rho) {
          const float factor = args.scaling * b[static_cast<size_t>(o * r + rho)];
          const float* direction = a.data() + rho * in;
          for (int64_t i = 0; i < in; ++i) row[static_cast<size_t>(i)] += factor * direction[i];
        }
        double sum = 0;
        for (const float value : row) sum += static_cast<double>(value) * value;
        args.norms.as<float>()[o] = static_cast<float>(std::sqrt(sum));
      }
    });
  });
}

void dora_scale(const Context& context, const DoraScaleArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const int64_t rows = args.x.shape[0], out = args.x.shape[1];
    const std::vector<float> factors = factors_of(args.magnitude, args.norms, out), bias = floats(args.bias, out);
    dispatch_float(args.x.dtype, [&](auto element) {
      using T = decltype(element);
      const T* x = args.x.as<T>();
      T* y = args.y.as<T>();
      pool.parallel_ranges(rows, kRows, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          for (int64_t o = 0; o < out; ++o) {
            const auto i = static_cast<size_t>(o);
            y[t * out + o] = T(static_cast<float>(x[t * out + o]) * factors[i] + bias[i]);
          }
        }
      });
    });
  });
}

void dora_scale_grad(const Context& context, const DoraScaleGradArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const int64_t rows = args.dy.shape[0], out = args.dy.shape[1];
    const float* norms = args.norms.as<float>();
    const std::vector<float> factors = factors_of(args.magnitude, args.norms, out);
    dispatch_float(args.dy.dtype, [&](auto element) {
      using T = decltype(element);
      const T* dy = args.dy.as<T>();
      const T* x = args.dmagnitude.wanted() ? args.x.as<T>() : nullptr;
      T* dx = args.dx.wanted() ? args.dx.dst.as<T>() : nullptr;
      const bool adds = args.dx.beta != 0.0f;
      const auto store = [](const GradDest& destination, int64_t o, float sum) {
        if (!destination.wanted()) return;
        float& to = destination.dst.as<float>()[o];
        to = destination.beta != 0.0f ? to + sum : sum;
      };
      pool.parallel_ranges((out + kColumns - 1) / kColumns, 1, [&](int64_t first, int64_t last) {
        const int64_t begin = first * kColumns, end = std::min(last * kColumns, out);
        std::vector<float> products(static_cast<size_t>(end - begin)), sums(static_cast<size_t>(end - begin));
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t o = begin; o < end; ++o) {
            const auto i = static_cast<size_t>(o - begin);
            const float gradient = static_cast<float>(dy[t * out + o]);
            if (x != nullptr) products[i] += gradient * static_cast<float>(x[t * out + o]);
            sums[i] += gradient;
            if (dx == nullptr) continue;
            T& to = dx[t * out + o];
            const float scaled = gradient * factors[static_cast<size_t>(o)];
            to = T(adds ? scaled + static_cast<float>(to) : scaled);
          }
        }
        for (int64_t o = begin; o < end; ++o) {
          const auto i = static_cast<size_t>(o - begin);
          store(args.dmagnitude, o, products[i] * reciprocal(norms[o]));
          store(args.dbias, o, sums[i]);
        }
      });
    });
  });
}

}  // namespace hone::cpu
