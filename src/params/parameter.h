// Parameter: a named weight with its value, gradient, optimizer state and adapters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/weight_gradient/weight_gradient.h"
#include "params/optimizer_state.h"
#include "params/parameter_gradient.h"
#include "params/parameter_share.h"
#include "params/parameter_spec.h"
#include "params/parameter_value.h"
#include "tape/weight.h"

namespace hone {

class AttachedAdapter;
class ParameterGroup;

/// The adapters attached to one weight (params/adapter.h).
using Adapters = std::vector<std::unique_ptr<AttachedAdapter>>;

/// A parameter of a model. Ops see it as a Weight. The store gives it its place among the ranks and allocates it: the
/// value in its format and, if it is trained, the gradient and what the optimizer keeps, in the formats of its state.
class Parameter : public NarrowGradWeight {
 public:
  Parameter(ParameterSpec spec, DType dtype);
  ~Parameter() override;

  /// What the model says of it: its name, kind, layer, layouts and order in files, initial values.
  const ParameterSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }
  /// Its place in the store.
  uint32_t index() const { return index_; }
  /// The first group in which a model uses it (params/placement.h), for an adapter its weight's; null: not set.
  const ParameterGroup* group() const { return group_; }
  void set_group(const ParameterGroup* group) { group_ = group; }

  bool trainable() const { return trainable_; }
  /// A buffer stays as it is.
  void set_trainable(bool trainable) { trainable_ = trainable && spec_.kind != ParameterKind::kBuffer; }
  /// Sets the formats of its training state. Gradients of vectors (norms, biases) and of adapters are always float32,
  /// and so are moments of fewer than kLeastCoded elements if 8 bits were set: they are small, and their few elements
  /// matter.
  void set_formats(const TrainingFormats& formats);
  static constexpr int64_t kLeastCoded = 4096;

  ParameterValue& value() { return value_; }
  const ParameterValue& value() const { return value_; }
  const ParameterGradient& gradient() const { return gradient_; }
  const OptimizerState& state() const { return state_; }
  const ParameterShare& share() const { return share_; }
  Adapters& adapters() { return adapters_; }
  const Adapters& adapters() const { return adapters_; }

  /// The shape in files, in patterns and in counts of FLOPs, whatever a rank keeps.
  const Shape& shape() const override { return spec_.shape; }
  const Shape& local_shape() const override { return share_.local_shape(); }
  /// The value that ops read while its group is acquired (params/placement.h). The stream waits for values that other
  /// ranks are sending.
  WeightView view() const override {
    HONE_ASSERT(!value_.packed(), name());
    return {value_.present(), value_.format_, value_.stored_.scales};
  }
  std::optional<PackedWeight> packed_view() const override;
  Fp8Products fp8() const override { return value_.fp8(); }
  bool wants_grad() const override { return trainable_; }
  GradDest grad() override { return trainable_ ? gradient_.next() : GradDest{}; }
  GradRounding rounding() const override { return {gradient_.scalars_, uint64_t{index_} << 32 | gradient_.uses_}; }

 private:
  friend class ParameterStore;

  ParameterSpec spec_;
  uint32_t index_ = 0;
  const ParameterGroup* group_ = nullptr;
  bool trainable_;
  ParameterShare share_;
  ParameterValue value_;
  ParameterGradient gradient_;
  OptimizerState state_;
  Adapters adapters_;
};

/// The elements of share().own(), as the value is stored.
Tensor own_value(const Parameter& parameter);
/// The values that the optimizer steps: the master, or the stored value itself.
const Tensor& stepped_value(const Parameter& parameter);
/// Whether training keeps a master of it, on this or (for elements outside share().own()) another rank.
bool keeps_master(const Parameter& parameter);

}  // namespace hone
