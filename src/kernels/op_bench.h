// Shared by benchmarks of ops: the sizes of a model's step, random data of these sizes, and the cases that `hone bench
// ops` runs on a tape.
//
// NAME_bench.cpp in an op's folder defines `void NAME_cases(OpCases& cases)`, which adds the op's cases to those of the
// step, or none if the model does not use the op. CMake finds the files and generates op_benches().
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/op_group.h"
#include "core/memory/buffer.h"
#include "core/stream/stream.h"
#include "kernels/mlp_activation.h"
#include "tape/tape.h"

namespace hone {

/// A training step of a model: T tokens in documents of `seq`, and the sizes of its parts; 0 for parts that the model
/// lacks.
struct BenchSizes {
  struct Latent {
    int64_t q_rank = 0;   ///< 0: queries have a single projection
    int64_t kv_rank = 0;  ///< 0: no latent attention
    int64_t nope_dim = 0, rope_dim = 0;
    bool interleaved = true;  ///< RoPE rotates adjacent dimensions
  };
  struct Delta {
    int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
    int64_t width() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  };
  struct Ssd {
    int64_t heads = 0, head_dim = 0, groups = 0, state_size = 0;
    int64_t width() const { return heads * head_dim + 2 * groups * state_size; }
  };
  struct Conv {
    int64_t channels = 0, taps = 0;
    bool bias = false;
  };
  struct Experts {
    int64_t count = 0, chosen = 0, intermediate = 0;
    bool sigmoid = false, normalise = true;  ///< the router's rule (ops/router/router_rule.h)
    float scale = 1.0f;
    int64_t groups = 1, kept_groups = 1;
    bool groups_by_two = false;
  };

  int64_t tokens = 0, seq = 0;
  DType dtype = DType::kBF16;
  DeviceKind device = DeviceKind::kCpu;
  int64_t hidden = 0, vocab = 0;
  int64_t heads = 0, kv_heads = 0;
  int64_t head_dim = 0, v_head_dim = 0;  ///< elements of queries and keys; of values
  int64_t rotary_dim = 0;                ///< 0: attention without RoPE
  bool qk_norm = false;
  int64_t intermediate = 0;  ///< width of the first layer's dense MLP
  MlpActivation activation;  ///< in MLPs and experts
  Latent latent;
  Delta delta;
  Ssd ssd;
  Conv conv;
  Experts experts;
  Fp8Products fp8 = {};  ///< dense matrices multiply so
  bool decode = false;   ///< a pass of generation instead, which adds one token to each of T sequences of `seq`

  double element_bytes() const { return static_cast<double>(size_of(dtype)); }
  /// Bytes of [T, width] in the dtype of activations.
  double bytes(int64_t width) const { return element_bytes() * static_cast<double>(tokens * width); }
  /// "[T, width]"
  std::string shape(int64_t width) const;
};

/// Allocates random tensors, which live as long as this object.
class BenchData {
 public:
  BenchData(Stream& stream, const BenchSizes& of_step) : sizes(of_step), stream_(stream) {}

  const BenchSizes sizes;

  Stream& stream() const { return stream_; }
  /// Uninitialised memory.
  Tensor take(Shape shape, DType dtype);
  /// Normal values with this standard deviation.
  Tensor random(Shape shape, DType dtype, float deviation = 1.0f);
  /// [T, width] in the dtype of activations.
  Tensor activations(int64_t width) { return random({sizes.tokens, width}, sizes.dtype); }
  /// A value [T, width] with a gradient, created anew on each tape.
  std::function<Var(Tape&)> input(int64_t width);
  /// Uploads host values.
  template <class T>
  Tensor upload(Shape shape, std::vector<T> values) {
    const Tensor tensor = take(shape, DTypeOf<T>::value);
    stream_.upload(tensor, std::move(values));
    return tensor;
  }
  /// Copies a struct such as StepScalars to device memory.
  template <class T>
  T* place(const T& value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    return reinterpret_cast<T*>(upload({sizeof(T)}, std::vector<uint8_t>(bytes, bytes + sizeof(T))).data);
  }
  /// T random integers in [0, bound).
  Tensor random_ids(int64_t bound);
  /// A random weight, with a float32 gradient if it is trained, whose products may be in 8-bit floats.
  Weight& weight(Shape shape, DType dtype, bool trained, const Fp8Products& fp8 = {});
  /// A frozen weight in the order that speeds up products (formats/tiled_weights.h).
  Weight& frozen_weight(Shape shape, DType dtype);
  /// Frozen experts in 8 bits (formats/int8_weights.h), all with the same values. CPU only.
  Weight& int8_weight(Shape shape);
  /// Frozen experts [E, N, K] of `parts` packed matrices each, all with the same values. CPU only.
  Weight& packed_weight(Shape shape, const PackedFormat& format, int64_t parts);

 private:
  Stream& stream_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<Weight>> weights_;
  uint64_t key_ = 0;
};

/// A row of the results: the work of a span's nodes in one pass or, with span "step", the whole step.
struct OpPart {
  std::string name, shape;
  std::string span, pass;  ///< names in the profiler
  double bytes = 0;        ///< counts each operand and result once
  double forwards = 0;     ///< FLOPs, as a multiple of forward's (Node::flops())
  bool int8 = false;       ///< most of its FLOPs are products of int8
  double flops = 0;        ///< FLOPs that no node counts; those of `forwards` are added on measuring
};

/// Work that is run and measured together.
struct OpCase {
  std::vector<OpPart> parts;
  /// Records ops; returns the output that receives the gradient, or nothing if there is no backward or `record` starts
  /// it itself.
  std::function<Var(Tape&)> record;
  bool backward = true;  ///< false: on a tape that does not train
  /// The incoming gradient, with the output's shape.
  Tensor gradient = {};
};

/// A case whose data are allocated just before it runs; the names of its parts are known earlier.
struct OpCaseMaker {
  std::string_view op;  ///< NAME of NAME_bench.cpp
  OpGroup group = OpGroup::kMemoryBound;
  std::vector<std::string> names;
  std::function<OpCase(BenchData&)> make;
};

/// The cases of a step, to which ops add their own.
class OpCases {
 public:
  explicit OpCases(const BenchSizes& of_step) : sizes(of_step) {}

  const BenchSizes sizes;
  std::string_view op;  ///< the op that is adding cases
  std::vector<OpCaseMaker> makers;

  void add(OpGroup group, std::vector<std::string> names, std::function<OpCase(BenchData&)> make) {
    if (!sizes.decode) makers.push_back({op, group, std::move(names), std::move(make)});
  }
  /// A case of sizes.decode: forward alone. The first part of make's stands for all of it, by this name.
  void add_decode(OpGroup group, const std::string& name, const std::function<OpCase(BenchData&)>& make) {
    if (!sizes.decode) return;
    makers.push_back({op, group, {name}, [=](BenchData& data) {
                        OpCase result = make(data);
                        const OpPart forward = result.parts.front();
                        result.parts = {{name, forward.shape, "step", "", forward.bytes}};
                        result.backward = false;
                        return result;
                      }});
  }
};

/// An op's benchmark.
struct OpBench {
  std::string_view op;
  void (*add_cases)(OpCases& cases);
};

/// The benchmarks of all NAME_bench.cpp below src/ops, sorted by NAME.
std::span<const OpBench> op_benches();

}  // namespace hone
