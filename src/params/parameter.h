// Parameter: a named weight with its gradient, optimizer state, adapters and the ways files may hold it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/weight_gradient/weight_gradient.h"
#include "ops/adamw/adamw.h"
#include "params/arrival.h"
#include "params/file_order.h"
#include "params/slice.h"
#include "tape/weight.h"

namespace hone {

class AttachedAdapter;
class ParameterGroup;
struct Bucket;

/// What is attached to one weight (params/adapter.h).
using Adapters = std::vector<std::unique_ptr<AttachedAdapter>>;

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
  bool whole_matrices = false;  ///< ranks that share the state cut it between matrices (Parameter::matrix())

  bool operator==(const TrainingFormats&) const = default;
};

/// One of the equal matrices that follow one another in a parameter.
struct MatrixShape {
  int64_t rows = 0, columns = 0;

  int64_t numel() const { return rows * columns; }
};

/// What this rank keeps of a parameter's value between uses, in the parameter's format.
struct StoredValue {
  Slice slice;     ///< the elements that are here
  Tensor payload;  ///< of those: in the parameter's shape where they are all, else [slice.count]
  Tensor scales;   ///< undefined where the format has none
};

/// A parameter of a model. The store allocates it; ops see it as a Weight.
class Parameter : public NarrowGradWeight {
 public:
  Parameter(ParameterSpec spec, DType dtype);
  ~Parameter() override;

  const std::string& name() const { return spec_.name; }
  const Shape& shape() const override { return spec_.shape; }
  ParameterKind kind() const { return spec_.kind; }
  InitialValues initial() const { return spec_.initial; }
  int layer() const { return spec_.layer; }
  /// Of a parameter of two or more dimensions: the linear maps that it is. A stack [E, out, in] is E of them, and the
  /// gate_up of experts [E, 2I, H] is 2E: gate and up of an expert are one each.
  MatrixShape matrix() const;
  /// How the tensor with the canonical name, in files and in transformers, stands against the parameter.
  FileOrder order() const { return spec_.order; }
  DType dtype() const { return dtype_; }
  /// How the value is held. Whatever is not dense is frozen.
  const WeightFormat& format() const { return *format_; }
  /// Has it held in a format that fits its shape; dtype() is that of the payload then. Before allocation.
  void hold_in(const WeightFormat& format);
  /// Orders the dense values of a frozen matrix or stack as tiles (formats/tiled_weights.h), where they lie.
  void order_as_tiles(ThreadPool& pool);
  /// The value as format() keeps it; all of it is here.
  EncodedWeight encoded() const { return {shape(), value(), stored_.scales}; }
  /// Its place in the store.
  uint32_t index() const { return index_; }
  /// The group that a model uses it in first (params/placement.h), an adapter its weight's; null: none has been told.
  const ParameterGroup* group() const { return group_; }
  void set_group(const ParameterGroup* group) { group_ = group; }
  /// The bucket that ranks share it in (params/bucket.h); null: none.
  const Bucket* bucket() const { return bucket_; }
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

  /// What ops read, while its group is acquired (params/placement.h). Values that are on their way from other ranks are
  /// awaited: by the stream that works with the parameter.
  WeightView view() const override {
    if (arrivals_) arrivals_->await_on_stream();
    return {present_, format_, stored_.scales};
  }
  bool wants_grad() const override { return trainable_; }
  GradDest grad() override;
  GradRounding rounding() const override { return {scalars_, uint64_t{index_} << 32 | uses_}; }

  /// Whether each rank keeps some elements only of what its bucket's stage says (params/bucket.h). The optimizer's
  /// state has the elements of own() alone then, in one dimension, and so have gradients and values of the stages that
  /// shard them.
  bool sharded() const { return sharded_; }
  /// Whether that holds for its values.
  bool shards_values() const;
  /// Whether ops find its values where its group's turn has brought them: from other ranks or from host memory. What
  /// stored() has stays where it is.
  bool brings_values() const;
  /// Whether its gradients are in memory that others have before and after it: written in one pass of backward, and
  /// used up when its group is released.
  bool stages_gradients() const { return stages_gradients_; }
  /// The elements that this rank keeps, or another: all of them unless sharded. Begins at a multiple of kMomentBlock.
  Slice own() const { return slice_of(rank_); }
  Slice slice_of(int rank) const;
  /// The elements of own() of a tensor that has all: the tensor itself unless sharded.
  Tensor own_part(const Tensor& whole) const;

  // What the store allocates: the value in dtype(); for a trainable parameter gradient, moments and master in
  // formats(), as far as the optimizer keeps them: the others are undefined. There is no master where that would be a
  // copy of the value, or where formats() wants none.

  /// What loading, saving and the optimizer work with. Values that are on their way from other ranks are awaited: by
  /// the host.
  const StoredValue& stored() const {
    if (arrivals_ && !brings_values()) arrivals_->await_on_host();
    return stored_;
  }
  /// The elements of own(), as stored() has them.
  Tensor own_value() const { return shards_values() ? stored().payload : own_part(stored().payload); }
  /// The whole payload of a parameter that is stored whole.
  const Tensor& value() const {
    HONE_ASSERT(stored_.slice.count == shape().numel(), name());
    return stored().payload;
  }
  /// The value where it is kept, for ops outside of passes: its group need not be acquired. Whole.
  WeightView stored_view() const { return {value(), format_, stored_.scales}; }
  /// Those that format() keeps beside the value, or undefined.
  const Tensor& scales() const { return stored_.scales; }
  /// Where ops write it, whole.
  const Tensor& gradient() const { return gradient_; }
  /// The elements of own(), which the optimizer reads: sums over ranks.
  Tensor own_gradient() const { return own_gradient_.defined() ? own_gradient_ : own_part(gradient_); }
  const Moment& moment1() const { return moment1_; }
  const Moment& moment2() const { return moment2_; }
  /// Factors of the second moments, float32: [.., R] and [.., C] of a parameter [.., R, C].
  const Tensor& row_moments() const { return row_moments_; }
  const Tensor& column_moments() const { return column_moments_; }
  /// The values the optimizer steps: the master copy (of own(), where sharded), or the stored value itself.
  const Tensor& master() const { return master_.defined() ? master_ : stored().payload; }
  bool has_master() const { return master_.defined(); }
  /// Whether training keeps masters of it, here or (of elements that are not in own()) on another rank.
  bool keeps_master() const { return trainable_ && dtype_ != DType::kF32 && formats().master == DType::kF32; }
  bool gradient_written() const { return uses_ > 0; }
  /// Whether a use of the micro-batch that is at work has asked where its gradient goes.
  bool gradient_written_in_pass() const { return written_in_pass_; }

  Adapters& adapters() { return adapters_; }
  const Adapters& adapters() const { return adapters_; }

 private:
  friend class ParameterStore;

  ParameterSpec spec_;
  DType dtype_;
  const WeightFormat* format_ = &dense_format();
  TrainingFormats formats_;
  bool trainable_;
  StoredValue stored_;
  Tensor present_;  ///< the whole payload, for ops
  Tensor gradient_, own_gradient_, master_;
  Moment moment1_, moment2_;
  Tensor row_moments_, column_moments_;
  uint32_t index_ = 0;
  uint32_t uses_ = 0;  ///< gradients handed out in this step
  bool written_in_pass_ = false;
  const StepScalars* scalars_ = nullptr;  ///< of this step
  const ParameterGroup* group_ = nullptr;
  const Bucket* bucket_ = nullptr;
  bool stages_gradients_ = false;
  bool sharded_ = false;
  int64_t bucket_offset_ = 0;  ///< of a sharded one
  int rank_ = 0;
  std::shared_ptr<Arrivals> arrivals_;  ///< of its bucket; null: no bucket
  Adapters adapters_;
};

}  // namespace hone
