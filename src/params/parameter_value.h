// ParameterValue: the value of a parameter on this rank: its format, where it is between uses, and its tensors.
#pragma once

#include <memory>

#include "core/base/error.h"
#include "params/arrival.h"
#include "params/parameter_spec.h"
#include "params/slice.h"
#include "params/value_home.h"
#include "tape/weight.h"

namespace hone {

class ThreadPool;

/// The part of a parameter's value that this rank keeps between uses, in the parameter's format.
struct StoredValue {
  Slice slice;     ///< the elements that are here
  Tensor payload;  ///< these elements: in the parameter's local shape if they are all of that, else [slice.count]
  Tensor scales;   ///< undefined if the format has none
};

class ParameterValue {
 public:
  /// Dense. The spec must outlive it.
  ParameterValue(const ParameterSpec& spec, DType dtype) : spec_(spec), dtype_(dtype) {}

  /// The format. Values that are not dense are frozen.
  const WeightFormat& format() const { return *format_; }
  bool packed() const { return format_->packed(); }
  /// The dtype of the payload or, if it is packed, of the unpacked values.
  DType dtype() const { return dtype_; }
  /// Sets the format of a dense value, which fits its shape; before allocation. See hold_frozen_in().
  void hold_in(const WeightFormat& format);
  /// The 8-bit floats of its products.
  const Fp8Products& fp8() const { return fp8_; }
  void multiply_in(const Fp8Products& fp8) { fp8_ = fp8; }
  /// Reorders the dense values of a frozen matrix or stack as tiles (formats/tiled_weights.h), in place, where they are
  /// filled_here(). The format is that on every rank.
  void order_as_tiles(ThreadPool& pool);

  /// Where it is between uses, from ParameterStore::share_among() on.
  const ValueHome& home() const { return *home_; }
  /// Whether this rank fills the stored value: loads, draws or reorders it. One that a host's ranks share one of them
  /// fills, and there is none of one that stays in files.
  bool filled_here() const { return filled_here_; }

  /// The stored value, for loading, saving and the optimizer; undefined if it stays in files. The host waits for values
  /// that other ranks are sending.
  const StoredValue& stored() const {
    if (arrivals_ && !home_->brought) arrivals_->await_on_host();
    return stored_;
  }
  /// The payload of a value that is stored whole.
  const Tensor& whole() const {
    HONE_ASSERT(stored_.slice.count == spec_.shape.numel(), spec_.name);
    return stored().payload;
  }
  /// The whole stored value, for ops outside of passes: its group need not be acquired.
  WeightView whole_view() const { return {whole(), format_, stored_.scales}; }

 private:
  friend class Parameter;
  friend class ParameterStore;

  /// What ops read. The stream waits for values that other ranks are sending.
  const Tensor& present() const {
    if (arrivals_) arrivals_->await_on_stream();
    return present_;
  }

  const ParameterSpec& spec_;
  DType dtype_;
  const WeightFormat* format_ = &dense_format();
  Fp8Products fp8_;
  const ValueHome* home_ = &kResident;
  bool filled_here_ = true;
  StoredValue stored_;
  Tensor present_;                      ///< the payload in the local shape, for ops
  std::shared_ptr<Arrivals> arrivals_;  ///< its bucket's; null: no bucket
};

}  // namespace hone
