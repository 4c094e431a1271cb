#include <algorithm>
#include <cmath>

#include "kernels/cpu/row_math/rounded_blocks.h"
#include "ops/adamw/adamw.h"
#include "ops/adamw/dynamic_code.h"

namespace hone::cpu {

namespace {

static_assert(kRowBlock % kMomentBlock == 0);

constexpr std::array<float, 256> kSignedValues = dynamic_values<true>(), kUnsignedValues = dynamic_values<false>();

/// Values shared by all blocks of a tensor; scalars are computed in float64 and rounded once, as in torch.
AdamwRow row_of(const AdamwArgs& args, const AdamwTensor& tensor) {
  const StepScalars& step = *args.scalars;
  const double lr = static_cast<double>(step.learning_rate) * args.rate_factor;
  return {.parameter = nullptr,
          .m = nullptr,
          .v = nullptr,
          .gradient = nullptr,
          .gradient_scale = step.clip_coefficient,
          .decay = static_cast<float>(1.0 - lr * tensor.weight_decay),
          .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
          .beta2 = static_cast<float>(args.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - args.beta2),
          .sqrt_bias_correction2 = static_cast<float>(std::sqrt(static_cast<double>(step.bias_correction2))),
          .eps = static_cast<float>(args.eps),
          .step_size = static_cast<float>(lr / static_cast<double>(step.bias_correction1))};
}

/// One of a parameter's moments; the first is signed.
template <bool kSigned>
class MomentRange {
 public:
  MomentRange(const Moment& moment, Range range, float* buffer) : moment_(moment), range_(range), buffer_(buffer) {}

  float* load(const RowMath& math) {
    if (size_of(moment_.values.dtype) > 1) return load_rounded(math, moment_.values, range_, buffer_);
    for (int64_t i = 0; i < range_.count; ++i) buffer_[i] = kValues[codes()[i]] * scale(i);
    return buffer_;
  }

  bool is_rounded() const { return moment_.values.dtype != DType::kF32; }

  void store(const RowMath& math, const RangeWords& words) {
    constexpr int kShift = kSigned ? 0 : 16;
    if (moment_.values.dtype == DType::kBF16) {
      return math.narrow_randomly(buffer_, words.data(), kShift, moment_.values.as<BFloat16>() + range_.begin,
                                  range_.count);
    }
    for (int64_t first = 0; first < range_.count; first += kMomentBlock) {
      uint32_t largest = 0;
      for (int64_t i = first; i < std::min(range_.count, first + kMomentBlock); ++i) {
        largest = std::max(largest, magnitude_key(buffer_[i]));
      }
      scale(first) = to_scale(largest);
    }
    for (int64_t i = 0; i < range_.count; ++i) {
      codes()[i] = dynamic_code<kSigned>(buffer_[i], scale(i), words.bits(i, kShift), kValues.data());
    }
  }

 private:
  static constexpr const std::array<float, 256>& kValues = kSigned ? kSignedValues : kUnsignedValues;

  uint8_t* codes() const { return reinterpret_cast<uint8_t*>(moment_.values.data) + range_.begin; }
  float& scale(int64_t i) const { return moment_.scales.as<float>()[(range_.begin + i) / kMomentBlock]; }

  const Moment& moment_;
  Range range_;
  float* buffer_;
};

void update_range(const RowMath& math, const AdamwTensor& tensor, AdamwRow row, uint64_t key, Range range) {
  float p[kRowBlock], m[kRowBlock], v[kRowBlock], g[kRowBlock];
  MomentRange<true> first(tensor.m, range, m);
  MomentRange<false> second(tensor.v, range, v);
  row.parameter = load_rounded(math, tensor.parameter, range, p);
  row.m = first.load(math);
  row.v = second.load(math);
  row.gradient = load_block(math, tensor.gradient, range.begin, g, range.count);
  math.adamw(row, range.count);
  if (first.is_rounded() || second.is_rounded()) {
    const RangeWords words(math, range, key, RoundingUse::kMoments);
    if (first.is_rounded()) first.store(math, words);
    if (second.is_rounded()) second.store(math, words);
  }
  store_rounded(math, row.parameter, tensor.parameter, range, key, RoundingUse::kParameter);
  if (tensor.working_copy.defined()) store_block(math, row.parameter, tensor.working_copy, range.begin, range.count);
}

}  // namespace

void adamw(const Context& context, const AdamwArgs& args) {
  context.launch([args](ThreadPool& pool) {
    if (args.scalars->nonfinite != 0) return;
    const RowMath& math = row_math();
    for (const AdamwTensor& tensor : args.tensors) {
      const AdamwRow row = row_of(args, tensor);
      const uint64_t key = mix_key(args.scalars->seed, tensor.stream_id);
      parallel_blocks(pool, tensor.parameter.numel(), [&](int64_t begin, int64_t count) {
        update_range(math, tensor, row, key, {begin, count, tensor.first_element});
      });
    }
  });
}

}  // namespace hone::cpu
