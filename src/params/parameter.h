// Parameter: a named weight with its gradient, optimizer state, adapters and file layouts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/packed_weights.h"
#include "kernels/weight_gradient/weight_gradient.h"
#include "ops/adamw/adamw.h"
#include "params/arrival.h"
#include "params/file_order.h"
#include "params/slice.h"
#include "params/value_home.h"
#include "params/value_memory.h"
#include "tape/weight.h"

namespace hone {

class AttachedAdapter;
class ParameterGroup;
struct Bucket;

/// The adapters attached to one weight (params/adapter.h).
using Adapters = std::vector<std::unique_ptr<AttachedAdapter>>;

/// The role of a parameter in the model: defines what `attention`, `all-linear` and the like select.
enum class ParameterKind {
  kEmbedding,
  kNorm,
  kBias,
  kAttention,      ///< a linear weight of attention
  kAttentionGate,  ///< a linear weight that only gates linear attention
  kRecurrence,     ///< convolution, decay, step sizes and skips of linear attention and Mamba-2
  kMlp,            ///< a linear weight of a dense or shared MLP
  kRouter,
  kExpertsGateUp,  ///< [E, 2I, H], gate rows first
  kExpertsUp,      ///< [E, I, H]: the first product of experts without a gate
  kExpertsDown,    ///< [E, H, I]
  kHead,
  kLora,
  kBuffer,  ///< stored and loaded, never trained: the router's e_score_correction_bias
};

/// The row of the start-up table for a kind.
std::string_view group_of(ParameterKind kind);

/// Initial values of a parameter of a new model.
enum class InitialValues {
  kOfKind,  ///< norms ones, biases zeros, others kNormal
  kNormal,  ///< standard deviation `initializer_range`
  kZeros,
  kOnes,
  kLogOfUniform,  ///< logarithms of numbers from 0.01 to 16, so that their exponentials are spread evenly
};

/// One tensor of a file and its elements in the parameter: a contiguous run from `offset`, in some order.
struct FileTensor {
  std::string name;
  Shape shape;         ///< in the parameter; the file's is file_shape(order, shape)
  int64_t offset = 0;  ///< elements from the parameter's start
  FileOrder order = FileOrder::kSame;
};

/// A layout of a parameter in files; its tensors cover every element exactly once.
using FileLayout = std::vector<FileTensor>;

struct ParameterSpec {
  std::string name;  ///< canonical: the name in transformers 5
  Shape shape;
  ParameterKind kind = ParameterKind::kAttention;
  int layer = -1;                      ///< -1: outside the layers
  std::vector<FileLayout> layouts;     ///< the canonical name itself is always one; others that files may use
  FileOrder order = FileOrder::kSame;  ///< the order of the tensor with the canonical name
  InitialValues initial = InitialValues::kOfKind;
  bool of_experts = false;  ///< whether it belongs to routed experts, its first dimension: [E, ...]

  /// All layouts in files, the canonical one last.
  std::vector<FileLayout> all_layouts() const;
  /// The canonical name and every name that a file may use for it or for a part of it.
  std::vector<std::string> all_names() const;
};

/// The second moments that an optimizer keeps.
enum class SecondMoment {
  kNone,
  kWhole,     ///< a number for each element
  kFactored,  ///< for matrices a number per row and per column (ops/adafactor); for vectors as kWhole
};

/// Formats of a parameter's training state.
struct TrainingFormats {
  DType gradient = DType::kF32;  ///< or bfloat16
  DType master = DType::kF32;    ///< bfloat16: no master; a bfloat16 parameter is stepped itself
  DType m = DType::kF32;         ///< moments: float32, bfloat16, or i8 and u8 with scales
  DType v = DType::kF32;
  bool has_m = true;
  SecondMoment second_moment = SecondMoment::kWhole;
  bool whole_matrices = false;  ///< ranks that share the state cut it between matrices (Parameter::matrix())

  bool operator==(const TrainingFormats&) const = default;
};

/// Shape of the equal matrices that a parameter consists of.
struct MatrixShape {
  int64_t rows = 0, columns = 0;

  int64_t numel() const { return rows * columns; }
};

/// The part of a parameter's value that this rank keeps between uses, in the parameter's format.
struct StoredValue {
  Slice slice;     ///< the elements that are here
  Tensor payload;  ///< these elements: in the parameter's local shape if they are all of that, else [slice.count]
  Tensor scales;   ///< undefined if the format has none
};

/// What an optimizer keeps of a parameter: of own(), if ranks share the state. Undefined where it keeps none.
struct OptimizerState {
  Moment moment1, moment2;
  /// Factors of the second moments, float32: [.., R] and [.., C] of a parameter [.., R, C].
  Tensor row_moments, column_moments;
};

/// A parameter of a model. The store allocates it; ops see it as a Weight.
class Parameter : public NarrowGradWeight {
 public:
  Parameter(ParameterSpec spec, DType dtype);
  ~Parameter() override;

  /// What the model says of it: its name, layouts and order in files, initial values.
  const ParameterSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }
  /// The shape in files, in patterns and in counts of FLOPs, whatever a rank keeps.
  const Shape& shape() const override { return spec_.shape; }
  const Shape& local_shape() const override { return local_shape_; }
  /// Whether the experts are spread over the ranks of an expert group (RankShare), of which this rank has a block. The
  /// value, gradient and optimizer's state then are the block's, [E / N, ...].
  bool spread() const { return expert_ranks_ > 1; }
  /// Where its value is between uses, from ParameterStore::share_among() on.
  const ValueHome& home() const { return *home_; }
  /// Whether this rank fills the stored value: loads, draws or reorders it. One that a host's ranks share one of them
  /// fills, and there is none of one that stays in files.
  bool filled_here() const {
    return home_->memory != ValueHome::Memory::kFile && (apart_ == nullptr || apart_->fills(*this));
  }
  ParameterKind kind() const { return spec_.kind; }
  int layer() const { return spec_.layer; }
  /// The linear maps of a parameter of two or more dimensions: a stack [E, out, in] consists of E, and the gate_up of
  /// experts [E, 2I, H] of 2E, since gate and up are separate maps.
  MatrixShape matrix() const;
  DType dtype() const { return dtype_; }
  /// The format of the value. Values that are not dense are frozen.
  const WeightFormat& format() const { return *format_; }
  /// Sets a format that fits its shape. dtype() is then that of the payload or, if it is packed, of the unpacked
  /// values. Before allocation.
  void hold_in(const WeightFormat& format);
  /// Its matrices, [matrices, rows, columns].
  Shape stack() const { return {shape().numel() / matrix().numel(), matrix().rows, matrix().columns}; }
  /// The same of this rank's experts.
  Shape local_stack() const { return {local_shape_.numel() / matrix().numel(), matrix().rows, matrix().columns}; }
  bool packed() const { return format_->packed(); }
  /// The layout of each of its matrices, if it is packed.
  PackedLayout packed_layout() const;
  /// Reorders the dense values of a frozen matrix or stack as tiles (formats/tiled_weights.h), in place, where they are
  /// filled_here(). The format is that on every rank.
  void order_as_tiles(ThreadPool& pool);
  /// The whole value in its format; packed weights are packed matrix by matrix.
  EncodedWeight encoded() const { return {packed() ? stack() : shape(), value(), stored_.scales}; }
  /// Its place in the store.
  uint32_t index() const { return index_; }
  /// The first group in which a model uses it (params/placement.h), for an adapter its weight's; null: not set.
  const ParameterGroup* group() const { return group_; }
  void set_group(const ParameterGroup* group) { group_ = group; }
  /// Its bucket (params/bucket.h); null: none.
  const Bucket* bucket() const { return bucket_; }

  bool trainable() const { return trainable_; }
  /// A buffer stays as it is.
  void set_trainable(bool trainable) { trainable_ = trainable && kind() != ParameterKind::kBuffer; }

  /// The formats in force. Gradients of vectors (norms, biases) and of adapters are always float32, and so are moments
  /// of fewer than kLeastCoded elements if 8 bits were set: they are small, and their few elements matter.
  TrainingFormats formats() const;
  void set_formats(const TrainingFormats& formats) { formats_ = formats; }
  static constexpr int64_t kLeastCoded = 4096;

  /// The value that ops read while its group is acquired (params/placement.h). The stream waits for values that other
  /// ranks are sending.
  WeightView view() const override {
    HONE_ASSERT(!packed(), name());
    if (arrivals_) arrivals_->await_on_stream();
    return {present_, format_, stored_.scales};
  }
  std::optional<PackedWeight> packed_view() const override;
  bool wants_grad() const override { return trainable_; }
  GradDest grad() override;
  GradRounding rounding() const override { return {scalars_, uint64_t{index_} << 32 | uses_}; }

  /// Whether ranks shard it, as its bucket's stage says (params/bucket.h). The optimizer's state then has only the
  /// elements of own(), in one dimension, and so have gradients and values in the stages that shard them.
  bool sharded() const { return sharded_; }
  /// Whether its gradients are in a slot that other groups use before and after: written in one pass of backward, and
  /// used when its group is released.
  bool stages_gradients() const { return stages_gradients_; }
  /// The elements that this rank keeps: all of them unless sharded or spread. Begins at a multiple of kMomentBlock if
  /// any state has 8 bits.
  Slice own() const { return spread() ? block_of(expert_rank_) : slice_of(rank_); }
  /// The elements that files get from a rank of the first shard group. All ranks of an expert group and those that keep
  /// the same blocks are in it; the first expert group gives the blocks, the others nothing.
  Slice slice_of(int rank) const;

  // The store allocates the value in dtype(), and for a trainable parameter the gradient, moments and master in
  // formats() that the optimizer keeps; the others are undefined. There is no master if it would be a copy of the
  // value, or if formats() wants none.

  /// The stored value, for loading, saving and the optimizer; undefined if it stays in files. The host waits for values
  /// that other ranks are sending.
  const StoredValue& stored() const {
    if (arrivals_ && !home_->brought) arrivals_->await_on_host();
    return stored_;
  }
  /// The elements of own(), as stored() has them.
  Tensor own_value() const { return home_->sharded ? stored().payload : own_part(stored().payload); }
  /// The payload of a parameter that is stored whole.
  const Tensor& value() const {
    HONE_ASSERT(stored_.slice.count == shape().numel(), name());
    return stored().payload;
  }
  /// The whole stored value, for ops outside of passes: its group need not be acquired.
  WeightView stored_view() const { return {value(), format_, stored_.scales}; }
  /// Scales that format() keeps beside the value, or undefined.
  const Tensor& scales() const { return stored_.scales; }
  /// The whole gradient, as ops write it.
  const Tensor& gradient() const { return gradient_; }
  /// The elements of own() that the optimizer reads: sums over ranks.
  Tensor own_gradient() const { return own_gradient_.defined() ? own_gradient_ : own_part(gradient_); }
  const OptimizerState& state() const { return state_; }
  /// The values that the optimizer steps: the master (of own(), if sharded), or the stored value itself.
  const Tensor& master() const { return master_.defined() ? master_ : stored().payload; }
  bool has_master() const { return master_.defined(); }
  /// Whether training keeps a master of it, on this or (for elements outside own()) another rank.
  bool keeps_master() const { return trainable_ && dtype_ != DType::kF32 && formats().master == DType::kF32; }
  bool gradient_written() const { return uses_ > 0; }
  /// Whether the current micro-batch has requested its gradient.
  bool gradient_written_in_pass() const { return written_in_pass_; }

  Adapters& adapters() { return adapters_; }
  const Adapters& adapters() const { return adapters_; }

 private:
  friend class ParameterStore;

  /// The elements of own() in a tensor that has all that ops write: the tensor itself unless sharded.
  Tensor own_part(const Tensor& whole) const;

  /// The elements of the experts of a rank of the expert group.
  Slice block_of(int expert_rank) const { return {expert_rank * local_shape_.numel(), local_shape_.numel()}; }

  ParameterSpec spec_;
  Shape local_shape_;
  DType dtype_;
  const WeightFormat* format_ = &dense_format();
  TrainingFormats formats_;
  bool trainable_;
  StoredValue stored_;
  Tensor present_;  ///< the payload in the local shape, for ops
  Tensor gradient_, own_gradient_, master_;
  OptimizerState state_;
  uint32_t index_ = 0;
  uint32_t uses_ = 0;  ///< gradients handed out in this step
  bool written_in_pass_ = false;
  const StepScalars* scalars_ = nullptr;  ///< this step's, in the memory of its gradient
  const ParameterGroup* group_ = nullptr;
  const Bucket* bucket_ = nullptr;
  bool stages_gradients_ = false;
  const ValueHome* home_ = &kResident;
  const ValueMemory* apart_ = nullptr;  ///< that of a home whose memory is apart
  bool sharded_ = false;
  int64_t bucket_offset_ = 0;           ///< if it is sharded
  int rank_ = 0;                        ///< in the shard group
  int expert_rank_ = 0;                 ///< in the expert group
  int expert_ranks_ = 1;                ///< ranks of the expert group; 1 for what is not of experts
  std::shared_ptr<Arrivals> arrivals_;  ///< its bucket's; null: no bucket
  Adapters adapters_;
};

}  // namespace hone
