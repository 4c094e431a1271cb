#include "params/parameter_share.h"

#include "params/bucket.h"

namespace hone {

Slice ParameterShare::slice_of(int rank) const {
  if (spread()) return rank < expert_ranks_ ? block_of(rank) : Slice{};
  const Slice all{0, elements_};
  if (!sharded()) return all;
  const Slice part = bucket_->part_of(rank);
  return all.intersect({part.begin - bucket_offset_, part.count});
}

Tensor ParameterShare::own_part(const Tensor& whole) const {
  if (!sharded()) return whole;
  const Slice slice = own();
  return {
      whole.data + static_cast<size_t>(slice.begin) * size_of(whole.dtype), whole.dtype, {slice.count}, whole.device};
}

}  // namespace hone
