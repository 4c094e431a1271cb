#include "params/payload.h"

#include "core/base/error.h"

namespace hone {

FormatTensor whole_payload(const Parameter& p) {
  const ParameterValue& value = p.value();
  HONE_ASSERT(value.format().dense() || !p.trainable(), p.name());
  if (!value.packed()) return value.format().payload(p.local_shape(), value.dtype());
  const MatrixShape matrix = p.spec().matrix();
  return value.format().payload({p.local_shape().numel() / matrix.numel(), matrix.rows, matrix.columns}, value.dtype());
}

FormatTensor stored_payload(const Parameter& p) {
  if (!p.value().home().sharded) return whole_payload(p);
  const int64_t own = p.share().own().count;
  if (!p.value().packed()) return {{own}, p.value().dtype()};
  return {{own / p.spec().matrix().numel(), packed_layout(p).bytes}, DType::kU8};
}

std::optional<FormatTensor> value_scales(const Parameter& p) { return p.value().format().scales(p.shape()); }

PackedLayout packed_layout(const Parameter& p) {
  HONE_ASSERT(p.value().packed(), p.name());
  const MatrixShape matrix = p.spec().matrix();
  return static_cast<const PackedFormat&>(p.value().format()).layout(matrix.rows, matrix.columns);
}

EncodedWeight encoded(const Parameter& p) {
  const ParameterValue& value = p.value();
  return {value.packed() ? p.spec().stack() : p.shape(), value.whole(), value.stored().scales};
}

int64_t bytes_of(const FormatTensor& tensor) {
  return tensor.shape.numel() * static_cast<int64_t>(size_of(tensor.dtype));
}

Tensor tensor_at(const Tensor& memory, int64_t first, const FormatTensor& tensor) {
  HONE_ASSERT(memory.dtype == tensor.dtype);
  return {memory.data + static_cast<size_t>(first) * size_of(memory.dtype), tensor.dtype, tensor.shape, memory.device};
}

}  // namespace hone
