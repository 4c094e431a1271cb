#include <algorithm>

#include "core/cpu/thread_pool.h"
#include "ops/expert_scale/expert_scale.h"

namespace hone::cpu {

namespace {

float value_at(const Tensor& tensor, int64_t i) {
  return tensor.dtype == DType::kBF16 ? static_cast<float>(tensor.as<BFloat16>()[i]) : tensor.as<float>()[i];
}

void store(const Tensor& tensor, int64_t i, float value) {
  if (tensor.dtype == DType::kBF16) {
    tensor.as<BFloat16>()[i] = BFloat16(value);
  } else {
    tensor.as<float>()[i] = value;
  }
}

int64_t expert_at(const Tensor& ids, const Tensor& scale, int64_t i) {
  const int64_t expert = ids.as<int32_t>()[i];
  HONE_ASSERT(expert >= 0 && expert < scale.numel());
  return expert;
}

constexpr int64_t kGrain = 4096;

}  // namespace

void expert_scale(const Context& context, const ExpertScaleArgs& args) {
  context.launch([args](ThreadPool& pool) {
    pool.parallel_ranges(args.y.numel(), kGrain, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        store(args.y, i, value_at(args.weights, i) * value_at(args.scale, expert_at(args.ids, args.scale, i)));
      }
    });
  });
}

void expert_scale_grad(const Context& context, const ExpertScaleGradArgs& args) {
  context.launch([args](ThreadPool& pool) {
    if (args.dweights.wanted()) {
      const Tensor& dx = args.dweights.dst;
      pool.parallel_ranges(dx.numel(), kGrain, [&](int64_t i, int64_t end) {
        for (; i < end; ++i) {
          const float value = value_at(args.dy, i) * value_at(args.scale, expert_at(args.ids, args.scale, i));
          store(dx, i, args.dweights.beta != 0.0f ? value + value_at(dx, i) : value);
        }
      });
    }
    if (!args.dscale.wanted()) return;
    // A pass over all choices for some experts at a time: one owner and one order for each sum.
    float* const sums = args.dscale.dst.as<float>();
    pool.parallel_ranges(args.scale.numel(), 16, [&](int64_t begin, int64_t end) {
      if (args.dscale.beta == 0.0f) std::fill(sums + begin, sums + end, 0.0f);
      for (int64_t i = 0; i < args.ids.numel(); ++i) {
        const int64_t expert = expert_at(args.ids, args.scale, i);
        if (expert >= begin && expert < end) sums[expert] += value_at(args.dy, i) * value_at(args.weights, i);
      }
    });
  });
}

}  // namespace hone::cpu
