#include "core/base/op_group.h"

#include "core/base/error.h"

namespace hone {

std::string_view name_of(OpGroup group) {
  switch (group) {
    case OpGroup::kDense:
      return "dense";
    case OpGroup::kAttention:
      return "attention";
    case OpGroup::kMemoryBound:
      return "memory-bound";
    case OpGroup::kExperts:
      return "experts";
    case OpGroup::kHead:
      return "head";
    case OpGroup::kOptimizer:
      return "optimizer";
    case OpGroup::kCollectives:
      return "collectives";
  }
  HONE_ASSERT(false, "group out of range");
}

}  // namespace hone
