// The harness for tests of ops: runs an op through a tape, and compares its outputs and gradients with a float64
// reference and its central differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/philox.h"
#include "core/base/testing_names.h"
#include "core/stream/transfer.h"
#include "kernels/weight_gradient/weight_gradient.h"
#include "tape/tape.h"

namespace hone::testing {

/// The device under test, used by every test of an op: the CPU, or with `--device cuda` the first GPU. `--tier`
/// limits its kernels to those of a tier or of another GPU (kernels/cuda/kernel_limit.h).
Device test_device();

/// A stream of the device under test.
class TestStream : public Stream {
 public:
  explicit TestStream(ThreadPool& pool);
};

/// A tensor with `values` on the device under test.
template <class T>
class TestTensor {
 public:
  TestTensor(const std::vector<T>& values, Shape shape)
      : buffer_(test_device(), std::max<size_t>(values.size() * sizeof(T), 1)),
        tensor_(buffer_.tensor(shape, DTypeOf<T>::value)) {
    HONE_ASSERT(static_cast<size_t>(shape.numel()) == values.size());
    copy_from_host(tensor_, values.data(), values.size() * sizeof(T));
  }
  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }

 private:
  Buffer buffer_;
  Tensor tensor_;
};

/// The elements of a tensor on any device; call after stream.synchronize().
template <class T>
std::vector<T> host_values(const Tensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.numel()));
  tensor.as<T>();  // asserts the type
  copy_to_host(values.data(), tensor);
  return values;
}

/// A struct in memory of the device under test, such as StepScalars.
template <class T>
class TestStruct {
 public:
  explicit TestStruct(const T& value = {}) : buffer_(test_device(), sizeof(T)) { write(value); }
  T* get() const { return reinterpret_cast<T*>(buffer_.data()); }
  void write(const T& value) { copy_from_host(bytes(), &value, sizeof(T)); }
  T read() const {
    T value;
    copy_to_host(&value, bytes());
    return value;
  }

 private:
  Tensor bytes() const { return buffer_.tensor({static_cast<int64_t>(sizeof(T))}, DType::kU8); }

  Buffer buffer_;
};

using Values = std::vector<double>;

/// A floating-point argument of an op under test.
struct Argument {
  Shape shape;
  Values values;
  bool differentiable = true;
  bool takes_narrow_gradient = false;  ///< a weight whose gradient may be bfloat16
};

/// Standard normal values × scale, from a fixed key.
Argument random_argument(Shape shape, uint64_t key, double scale = 1.0, bool differentiable = true);

/// Values rounded to a dtype, as the op receives them.
Values rounded(const Values& values, DType dtype);

/// Gradients of weights that allow narrow ones: float32, bfloat16, or bfloat16 that is added to kGradientBefore.
enum class WeightGradients { kFloat, kNarrow, kNarrowAdded };
inline constexpr double kGradientBefore = 1.0;

/// A weight with its own memory and gradient.
class TestWeight : public NarrowGradWeight {
 public:
  TestWeight(const Argument& argument, DType dtype, WeightGradients gradients = WeightGradients::kFloat);
  const Shape& shape() const override { return shape_; }
  WeightView view() const override { return {payload_}; }
  bool wants_grad() const override { return differentiable_; }
  GradDest grad() override;
  GradRounding rounding() const override { return {scalars_.get(), 1}; }
  Values gradient() const;
  /// The next gradient overwrites; until then the destination is NaN, which detects reads and missing writes.
  void begin_step() { written_ = adds_; }
  void forget_gradient();

 private:
  Values before() const;

  Shape shape_;
  bool differentiable_;
  Buffer bytes_, grad_bytes_;
  Tensor payload_, grad_;
  TestStruct<StepScalars> scalars_;
  bool adds_ = false, written_ = false;
};

/// An op with its arguments. `op` records it on a tape and returns the floating-point outputs to compare; `reference`
/// computes the same outputs in float64 from inputs followed by weights.
struct OpCase {
  std::vector<Argument> inputs;
  std::vector<Argument> weights;
  std::function<std::vector<Var>(Tape&, const std::vector<Var>& inputs, const std::vector<Weight*>& weights)> op;
  std::function<std::vector<Values>(const std::vector<Values>& arguments)> reference;
};

struct RunOptions {
  DType dtype = DType::kF32;  ///< the dtype of inputs, outputs and weights
  bool recompute = false;     ///< recompute everything in backward
  int threads = 2;
  bool recorded = false;  ///< on a GPU: run from a recorded graph
  WeightGradients weight_gradients = WeightGradients::kFloat;
};

/// Outputs, and gradients of Σ seed·output for all inputs then weights (empty where not differentiable).
struct OpResult {
  std::vector<Values> outputs;
  std::vector<Values> gradients;
  std::map<std::string, std::set<std::string>> kernels = {};  ///< that ops have noted (core/stream/kernel_notes.h)
};

/// Fixed pseudo-random weights of the scalar Σ seed·output that is differentiated; rounded to `dtype`.
std::vector<Values> output_seeds(const std::vector<Values>& outputs, DType dtype);

OpResult run_op(const OpCase& op_case, const RunOptions& options);
/// The reference with central differences (step 1e-5 in float64: relative error about 1e-9) on arguments rounded to
/// dtype.
OpResult run_reference(const OpCase& op_case, DType dtype);

/// Runs both and expects ‖a − b‖∞ ≤ tolerance · max(‖b‖∞, 1e-3) for every output and gradient, and bitwise equal
/// results with recomputation, with one thread and, on a GPU, from a recorded graph. Also runs
/// expect_narrow_gradients().
void expect_matches_reference(const OpCase& op_case, DType dtype, double tolerance);

/// On a GPU whose tier has tensor cores: runs the op in bfloat16, and expects that it notes kernels of tier sm80 or
/// sm90 by these names (cuBLASLt may have some of the products), and none of tier general by any name, so that nothing
/// falls back silently. Prints them.
void expect_tensor_cores(const OpCase& op_case, const std::vector<std::string>& names, const std::string& what);

/// Expects that bfloat16 gradients, for weights that allow them, equal the float32 ones after rounding and adding to
/// the old value.
void expect_narrow_gradients(const OpCase& op_case, DType dtype);

}  // namespace hone::testing
