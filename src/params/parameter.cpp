#include "params/parameter.h"

#include "formats/tiled_weights.h"
#include "params/adapter.h"
#include "params/bucket.h"

namespace hone {

std::string_view group_of(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kEmbedding:
      return "embedding";
    case ParameterKind::kNorm:
      return "norms";
    case ParameterKind::kBias:
      return "biases";
    case ParameterKind::kAttention:
    case ParameterKind::kAttentionGate:
    case ParameterKind::kRecurrence:
      return "attention";
    case ParameterKind::kMlp:
      return "dense mlp";
    case ParameterKind::kRouter:
      return "router";
    case ParameterKind::kExpertsGateUp:
    case ParameterKind::kExpertsUp:
    case ParameterKind::kExpertsDown:
      return "experts";
    case ParameterKind::kHead:
      return "head";
    case ParameterKind::kLora:
      return "lora";
    case ParameterKind::kBuffer:
      return "buffers";
  }
  HONE_ASSERT(false, "kind out of range");
}

Parameter::Parameter(ParameterSpec spec, DType dtype)
    : spec_(std::move(spec)),
      local_shape_(spec_.shape),
      dtype_(dtype),
      trainable_(spec_.kind != ParameterKind::kBuffer) {}

Parameter::~Parameter() = default;

std::vector<FileLayout> ParameterSpec::all_layouts() const {
  std::vector<FileLayout> all = layouts;
  all.push_back({{name, shape, 0, order}});
  return all;
}

std::vector<std::string> ParameterSpec::all_names() const {
  std::vector<std::string> names = {name};
  for (const FileLayout& layout : layouts) {
    for (const FileTensor& tensor : layout) names.push_back(tensor.name);
  }
  return names;
}

MatrixShape Parameter::matrix() const {
  const Shape& all = shape();
  HONE_ASSERT(all.rank() >= 2, name());
  return {kind() == ParameterKind::kExpertsGateUp ? all[-2] / 2 : all[-2], all[-1]};
}

void Parameter::hold_in(const WeightFormat& format) {
  HONE_ASSERT(format.fits(shape()) && format_->dense() && !stored_.payload.defined(), name());
  format_ = &format;
  if (!format.packed()) dtype_ = format.payload(shape(), dtype_).dtype;
  trainable_ = false;
}

PackedLayout Parameter::packed_layout() const {
  HONE_ASSERT(packed(), name());
  return static_cast<const PackedFormat&>(*format_).layout(matrix().rows, matrix().columns);
}

void Parameter::order_as_tiles(ThreadPool& pool) {
  HONE_ASSERT(!trainable_ && !home_->brought && format_->dense(), name());
  if (filled_here()) hone::order_as_tiles(pool, stored().payload);
  format_ = &tile_format();
}

TrainingFormats Parameter::formats() const {
  TrainingFormats formats = formats_;
  const bool small = spec_.kind == ParameterKind::kLora || spec_.kind == ParameterKind::kNorm ||
                     spec_.kind == ParameterKind::kBias || spec_.shape.rank() < 2;
  if (small) formats.gradient = DType::kF32;
  for (DType* moment : {&formats.m, &formats.v}) {
    if (size_of(*moment) == 1 && spec_.shape.numel() < kLeastCoded) *moment = DType::kF32;
  }
  if (formats.second_moment == SecondMoment::kFactored && spec_.shape.rank() < 2) {
    formats.second_moment = SecondMoment::kWhole;
  }
  formats.whole_matrices = formats.whole_matrices && spec_.shape.rank() >= 2;
  return formats;
}

std::optional<PackedWeight> Parameter::packed_view() const {
  if (!packed()) return std::nullopt;
  if (arrivals_) arrivals_->await_on_stream();
  return PackedWeight{packed_layout(), present_, dtype_, format_};
}

GradDest Parameter::grad() {
  if (!trainable_) return {};
  written_in_pass_ = true;
  return {gradient_, uses_++ > 0 ? 1.0f : 0.0f};
}

Slice Parameter::slice_of(int rank) const {
  if (spread()) return rank < expert_ranks_ ? block_of(rank) : Slice{};
  const Slice all{0, spec_.shape.numel()};
  if (!sharded()) return all;
  const Slice part = bucket_->part_of(rank);
  return all.intersect({part.begin - bucket_offset_, part.count});
}

Tensor Parameter::own_part(const Tensor& whole) const {
  if (!sharded()) return whole;
  const Slice slice = own();
  return {
      whole.data + static_cast<size_t>(slice.begin) * size_of(whole.dtype), whole.dtype, {slice.count}, whole.device};
}

}  // namespace hone
