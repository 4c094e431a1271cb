// Ops as benchmarks run them: on a tape, with random data of a model's shapes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nn/decoder_config.h"
#include "tape/tape.h"

namespace hone {

/// Random tensors that live as long as it does.
class BenchData {
 public:
  explicit BenchData(Stream& stream) : stream_(stream) {}

  Stream& stream() const { return stream_; }
  /// Uninitialised.
  Tensor take(Shape shape, DType dtype);
  /// Normal with this standard deviation.
  Tensor random(Shape shape, DType dtype, float deviation = 1.0f);
  /// A copy of host values.
  template <class T>
  Tensor upload(Shape shape, std::vector<T> values) {
    const Tensor tensor = take(shape, DTypeOf<T>::value);
    stream_.upload(tensor, std::move(values));
    return tensor;
  }
  /// A weight of random values, with a float32 gradient if it is trained.
  Weight& weight(Shape shape, DType dtype, bool trained);
  /// A frozen weight in the order that products gain from (formats/tiled_weights.h).
  Weight& frozen_weight(Shape shape, DType dtype);
  /// Frozen experts in 8 bits (formats/int8_weights.h), all with the same values. On a CPU.
  Weight& int8_weight(Shape shape);

 private:
  Stream& stream_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<Weight>> weights_;
  uint64_t key_ = 0;
};

/// A line of the results: one node's work in one pass, or (span "step") all of it.
struct OpPart {
  std::string name, shape;
  std::string span, pass;       ///< of the profiler
  double flops = 0, bytes = 0;  ///< products counted twice; each operand and result read or written once
  bool int8 = false;            ///< most of its FLOPs are products of int8
};

/// What is run and measured together.
struct OpCase {
  std::vector<OpPart> parts;
  /// Records ops; returns the output that the gradient comes to, or nothing if there is no backward or it starts
  /// itself.
  std::function<Var(Tape&)> record;
  bool backward = true;
  /// A tensor of the output's shape: the gradient that comes in.
  Tensor gradient = {};
};

struct OpSizes {
  int64_t tokens = 0, seq = 0;
  DType dtype = DType::kBF16;
  DeviceKind device = DeviceKind::kCpu;
};

/// A case that takes its data when it is about to run; the names of its parts are known before.
struct OpCaseMaker {
  std::vector<std::string> names;
  std::function<OpCase(BenchData&)> make;
};

/// Every op of a training step of this model.
std::vector<OpCaseMaker> op_cases(const DecoderConfig& config, const OpSizes& sizes);

/// y = x Wᵀ, trained or frozen.
OpCase linear_case(BenchData& data, const std::string& name, const OpSizes& sizes, int64_t in, int64_t out,
                   bool trained);
/// Copies `bytes`.
OpCase copy_case(BenchData& data, int64_t bytes);

}  // namespace hone
