// Parameter: a named weight with its gradient, optimizer state, adapters and the ways files may hold it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/weight_gradient/weight_gradient.h"
#include "ops/adamw/adamw.h"
#include "params/arrival.h"
#include "params/file_order.h"
#include "tape/weight.h"

namespace hone {

/// What a parameter is to the model: decides what `attention`, `all-linear` and the like mean.
enum class ParameterKind {
  kEmbedding,
  kNorm,
  kBias,
  kAttention,      ///< a linear weight of attention
  kAttentionGate,  ///< a linear weight that only gates linear attention
  kRecurrence,     ///< convolution, decay and step sizes of linear attention
  kMlp,            ///< a linear weight of a dense or shared MLP
  kRouter,
  kExpertsGateUp,  ///< [E, 2I, H], gate rows first
  kExpertsDown,    ///< [E, H, I]
  kHead,
  kLora,
  kBuffer,  ///< stored and loaded, never trained: the router's e_score_correction_bias
};

/// The row of the start-up table a kind is counted in.
std::string_view group_of(ParameterKind kind);

/// What a parameter of a new model begins with.
enum class InitialValues {
  kOfKind,  ///< norms ones, biases zeros, others kNormal
  kNormal,  ///< standard deviation `initializer_range`
  kZeros,
  kOnes,
  kLogOfUniform,  ///< logarithms of numbers from 0.01 to 16, so that their exponentials are spread evenly
};

/// One tensor of a file and where its elements stand in the parameter: a contiguous run from `offset`, in some order.
struct FileTensor {
  std::string name;
  Shape shape;         ///< in the parameter; the file's is file_shape(order, shape)
  int64_t offset = 0;  ///< elements from the parameter's start
  FileOrder order = FileOrder::kSame;
};

/// One way in which files hold a parameter; its tensors cover every element exactly once.
using FileLayout = std::vector<FileTensor>;

struct ParameterSpec {
  std::string name;  ///< canonical: the name transformers 5 has in memory
  Shape shape;
  ParameterKind kind = ParameterKind::kAttention;
  int layer = -1;                      ///< -1: outside the layers
  std::vector<FileLayout> layouts;     ///< the canonical name itself is always one; others that files may use
  FileOrder order = FileOrder::kSame;  ///< of the tensor with the canonical name
  InitialValues initial = InitialValues::kOfKind;
};

/// A low-rank adapter on some output rows of a weight: all of them, or gate or up of a fused gate_up.
struct AttachedAdapter {
  Adapter adapter = {};
  std::string target = {};  ///< what it adapts, as PEFT names it: "q_proj", "gate_proj", "experts.gate_up_proj"
  int64_t out_begin = 0;    ///< first output row of the weight it adds to
  int64_t out_count = 0;
  bool shared = false;  ///< PEFT target_parameters: one A for the fused gate_up
  double alpha = 0;     ///< of the adapter's scaling
};

/// What an optimizer keeps of squared gradients.
enum class SecondMoment {
  kNone,
  kWhole,     ///< a number for each element
  kFactored,  ///< of matrices one for each row and each column (ops/adafactor); of vectors as kWhole
};

/// Formats of what training keeps for a parameter besides its value.
struct TrainingFormats {
  DType gradient = DType::kF32;  ///< or bfloat16
  DType master = DType::kF32;    ///< bfloat16: a bfloat16 parameter is stepped itself
  DType m = DType::kF32;         ///< of the optimizer's moments: or bfloat16, or i8 and u8 with scales
  DType v = DType::kF32;
  bool has_m = true;
  SecondMoment second_moment = SecondMoment::kWhole;

  bool operator==(const TrainingFormats&) const = default;
};

/// Elements [begin, begin + count) of a parameter.
struct Slice {
  int64_t begin = 0, count = 0;

  int64_t end() const { return begin + count; }
  /// What both have; its count is 0 if that is nothing.
  Slice intersect(Slice other) const {
    const int64_t first = std::max(begin, other.begin), last = std::min(end(), other.end());
    return {first, std::max<int64_t>(last - first, 0)};
  }
  bool operator==(const Slice&) const = default;
};

/// A parameter of a model. The store allocates it; ops see it as a Weight.
class Parameter : public NarrowGradWeight {
 public:
  Parameter(ParameterSpec spec, DType dtype)
      : spec_(std::move(spec)), dtype_(dtype), trainable_(spec_.kind != ParameterKind::kBuffer) {}

  const std::string& name() const { return spec_.name; }
  const Shape& shape() const override { return spec_.shape; }
  ParameterKind kind() const { return spec_.kind; }
  InitialValues initial() const { return spec_.initial; }
  int layer() const { return spec_.layer; }
  /// How the tensor with the canonical name, in files and in transformers, stands against the parameter.
  FileOrder order() const { return spec_.order; }
  DType dtype() const { return dtype_; }
  /// How the value is held. Whatever is not dense is frozen.
  const WeightFormat& format() const { return *format_; }
  /// Has it held in a format that fits its shape; dtype() is that of the payload then. Before allocation.
  void hold_in(const WeightFormat& format);
  /// Orders the dense values of a frozen matrix or stack as tiles (formats/tiled_weights.h), where they lie.
  void order_as_tiles(ThreadPool& pool);
  /// The value as format() keeps it.
  EncodedWeight encoded() const { return {shape(), value(), scales_}; }
  /// Its place in the store.
  uint32_t index() const { return index_; }
  /// The ways files may hold it, the canonical one last.
  std::vector<FileLayout> layouts() const;
  /// Canonical name and every name a file may use for it or a part of it.
  std::vector<std::string> names() const;

  bool trainable() const { return trainable_; }
  /// A buffer stays as it is.
  void set_trainable(bool trainable) { trainable_ = trainable && kind() != ParameterKind::kBuffer; }

  /// The formats in force. Whatever was set, gradients of vectors (norms, biases) and of adapters are float32, and so
  /// are moments of fewer than kLeastCoded elements where 8 bits were set: they are small, and their few elements
  /// matter.
  TrainingFormats formats() const;
  void set_formats(const TrainingFormats& formats) { formats_ = formats; }
  static constexpr int64_t kLeastCoded = 4096;

  /// Values that are on their way from other ranks are awaited: by the stream that works with the parameter.
  WeightView view() const override {
    if (arrivals_) arrivals_->await_on_stream();
    return {value_, format_, scales_};
  }
  bool wants_grad() const override { return trainable_; }
  GradDest grad() override;
  GradRounding rounding() const override { return {scalars_, uint64_t{index_} << 32 | uses_}; }

  /// Whether each rank keeps the optimizer's state of some elements only and steps those (params/bucket.h); if so,
  /// moments and master have the elements of own() alone, in one dimension.
  bool sharded() const { return elements_per_rank_ > 0; }
  /// The elements that this rank steps, or another: all of them unless sharded. Begins at a multiple of kMomentBlock.
  Slice own() const { return slice_of(rank_); }
  Slice slice_of(int rank) const;
  /// The elements of own() of a tensor that has all: the tensor itself unless sharded.
  Tensor own_part(const Tensor& whole) const;

  /// Bytes the store gives it: value in dtype(); for a trainable one gradient, moments and master in formats(), as far
  /// as the optimizer keeps them: the others are undefined. There is no master where that would be a copy of the value,
  /// or where formats() wants none.
  /// Values that are on their way from other ranks are awaited: by the host.
  const Tensor& value() const {
    if (arrivals_) arrivals_->await_on_host();
    return value_;
  }
  /// Those that format() keeps beside the value, or undefined.
  const Tensor& scales() const { return scales_; }
  const Tensor& gradient() const { return gradient_; }
  const Moment& moment1() const { return moment1_; }
  const Moment& moment2() const { return moment2_; }
  /// Factors of the second moments, float32: [.., R] and [.., C] of a parameter [.., R, C].
  const Tensor& row_moments() const { return row_moments_; }
  const Tensor& column_moments() const { return column_moments_; }
  /// The values the optimizer steps: the master copy (of own(), where sharded), or the value itself.
  const Tensor& master() const { return master_.defined() ? master_ : value(); }
  bool has_master() const { return master_.defined(); }
  /// Whether training keeps masters of it, here or (of elements that are not in own()) on another rank.
  bool keeps_master() const { return trainable_ && dtype_ != DType::kF32 && formats().master == DType::kF32; }
  bool gradient_written() const { return uses_ > 0; }
  /// Whether a use of the micro-batch that is at work has asked where its gradient goes.
  bool gradient_written_in_pass() const { return written_in_pass_; }

  std::vector<AttachedAdapter>& adapters() { return adapters_; }
  const std::vector<AttachedAdapter>& adapters() const { return adapters_; }

 private:
  friend class ParameterStore;

  ParameterSpec spec_;
  DType dtype_;
  const WeightFormat* format_ = &dense_format();
  TrainingFormats formats_;
  bool trainable_;
  Tensor value_, scales_, gradient_, master_;
  Moment moment1_, moment2_;
  Tensor row_moments_, column_moments_;
  uint32_t index_ = 0;
  uint32_t uses_ = 0;  ///< gradients handed out in this step
  bool written_in_pass_ = false;
  const StepScalars* scalars_ = nullptr;               ///< of this step
  int64_t bucket_offset_ = 0, elements_per_rank_ = 0;  ///< in the bucket; 0: not sharded
  int rank_ = 0;
  std::shared_ptr<Arrivals> arrivals_;  ///< of its bucket; null: no bucket
  std::vector<AttachedAdapter> adapters_;
};

}  // namespace hone
