#include "params/payload.h"

#include "core/base/error.h"

namespace hone {

FormatTensor whole_payload(const Parameter& p) {
  HONE_ASSERT(p.format().dense() || !p.trainable(), p.name());
  return p.format().payload(p.packed() ? p.local_stack() : p.local_shape(), p.dtype());
}

FormatTensor stored_payload(const Parameter& p) {
  if (!p.home().sharded) return whole_payload(p);
  if (!p.packed()) return {{p.own().count}, p.dtype()};
  return {{p.own().count / p.matrix().numel(), p.packed_layout().bytes}, DType::kU8};
}

std::optional<FormatTensor> value_scales(const Parameter& p) { return p.format().scales(p.shape()); }

int64_t bytes_of(const FormatTensor& tensor) {
  return tensor.shape.numel() * static_cast<int64_t>(size_of(tensor.dtype));
}

Tensor tensor_at(const Tensor& memory, int64_t first, const FormatTensor& tensor) {
  HONE_ASSERT(memory.dtype == tensor.dtype);
  return {memory.data + static_cast<size_t>(first) * size_of(memory.dtype), tensor.dtype, tensor.shape, memory.device};
}

}  // namespace hone
