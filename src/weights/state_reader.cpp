#include "weights/state_reader.h"

#include "ops/adamw/dynamic_code.h"

namespace hone {

namespace {

int64_t blocks_of(int64_t elements) { return (elements + kMomentBlock - 1) / kMomentBlock; }

bool is_scales(StatePart part) { return part == StatePart::kMScales || part == StatePart::kVScales; }

/// Of what is not sharded: the tensor itself.
StateTensor whole(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.shape = tensor.shape, .dtype = tensor.dtype, .here = tensor, .slice = {0, tensor.numel()}};
}

const Tensor& tensor_of(const Parameter& parameter, StatePart part) {
  switch (part) {
    case StatePart::kValue:
      return parameter.master();
    case StatePart::kM:
      return parameter.moment1().values;
    case StatePart::kMScales:
      return parameter.moment1().scales;
    case StatePart::kV:
      return parameter.moment2().values;
    case StatePart::kVScales:
      return parameter.moment2().scales;
    case StatePart::kVRows:
      return parameter.row_moments();
    case StatePart::kVColumns:
      return parameter.column_moments();
  }
  HONE_ASSERT(false, "part out of range");
}

/// The format of a sharded tensor, which a rank without elements of it has none of; none if it is not kept.
std::optional<DType> sharded_dtype(const Parameter& parameter, StatePart part) {
  const TrainingFormats formats = parameter.formats();
  const auto when = [](bool kept, DType dtype) { return kept ? std::optional(dtype) : std::nullopt; };
  const bool has_v = formats.second_moment == SecondMoment::kWhole;
  switch (part) {
    case StatePart::kValue:
      return parameter.keeps_master() ? DType::kF32 : parameter.dtype();
    case StatePart::kM:
      return when(formats.has_m, formats.m);
    case StatePart::kMScales:
      return when(formats.has_m && size_of(formats.m) == 1, DType::kF32);
    case StatePart::kV:
      return when(has_v, formats.v);
    case StatePart::kVScales:
      return when(has_v && size_of(formats.v) == 1, DType::kF32);
    default:
      return std::nullopt;
  }
}

/// Values are whole on every rank, unless they are sharded themselves or masters are kept of them.
bool is_sharded(const Parameter& parameter, StatePart part) {
  return parameter.sharded() && (part != StatePart::kValue || parameter.keeps_master() || parameter.shards_values());
}

}  // namespace

StateTensor state_tensor(const Parameter& parameter, StatePart part) {
  StateTensor state;
  if (!is_sharded(parameter, part)) {
    state = whole(tensor_of(parameter, part));
    state.exact = part == StatePart::kValue && parameter.has_master();
    return state;
  }
  const std::optional<DType> dtype = sharded_dtype(parameter, part);
  if (!dtype) return {};
  state.shape = is_scales(part) ? Shape{blocks_of(parameter.shape().numel())} : parameter.shape();
  state.dtype = *dtype;
  state.slice =
      is_scales(part) ? Slice{parameter.own().begin / kMomentBlock, blocks_of(parameter.own().count)} : parameter.own();
  if (state.slice.count > 0) state.here = tensor_of(parameter, part);
  state.exact = part == StatePart::kValue && parameter.keeps_master();
  return state;
}

Slice state_slice(const Parameter& parameter, StatePart part, int rank) {
  const Slice slice = parameter.slice_of(rank);
  return is_scales(part) ? Slice{slice.begin / kMomentBlock, blocks_of(slice.count)} : slice;
}

}  // namespace hone
