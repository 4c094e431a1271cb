// Payloads: shapes and dtypes of the tensors that hold a parameter's value in its format.
#pragma once

#include <optional>

#include "params/parameter.h"

namespace hone {

/// What ops on this rank read: all of its elements.
FormatTensor whole_payload(const Parameter& parameter);
/// What this rank keeps between uses: its part if ranks shard the value, else all.
FormatTensor stored_payload(const Parameter& parameter);
/// What the format keeps beside the payload.
std::optional<FormatTensor> value_scales(const Parameter& parameter);
/// The layout of each of its matrices (ParameterSpec::matrix()); it is packed.
PackedLayout packed_layout(const Parameter& parameter);
/// The whole value in its format; packed weights are packed matrix by matrix.
EncodedWeight encoded(const Parameter& parameter);

int64_t bytes_of(const FormatTensor& tensor);
/// The tensor that begins at element `first` of `memory`, which has its dtype.
Tensor tensor_at(const Tensor& memory, int64_t first, const FormatTensor& tensor);

}  // namespace hone
