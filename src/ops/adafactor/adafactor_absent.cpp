// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of adafactor_cuda.cu.
#include <algorithm>

#include "ops/adafactor/adafactor.h"

namespace hone::cuda {

namespace {

/// Scratch of tensors that are updated together.
struct Needs {
  int64_t partial = 0, tiles = 0, matrices = 0;
};

constexpr int64_t kTileRows = 64;
constexpr size_t kEntries = 24;
constexpr int64_t kMostPartial = int64_t{8} << 20;

Needs needs_of(const AdafactorTensor& tensor) {
  const AdafactorRows rows = AdafactorRows::of(tensor);
  const int64_t tiles = rows.matrices * ((rows.rows_of_matrix + kTileRows - 1) / kTileRows);
  if (!tensor.rows.defined()) return {.tiles = tiles};
  return {.partial = tiles * rows.width, .tiles = tiles, .matrices = rows.matrices};
}

}  // namespace

void adafactor(const Context& context, const AdafactorArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  Needs group, most;
  size_t begin = 0, end = 0;  // the group's part of the list
  for (size_t i = 0; i < args.tensors.size(); ++i) {
    const Needs needs = needs_of(args.tensors[i]);
    if (needs.tiles == 0) continue;  // no elements
    const bool joins = end > begin && end == i && i - begin < kEntries && group.partial + needs.partial <= kMostPartial;
    if (!joins) {
      group = {};
      begin = i;
    }
    end = i + 1;
    group = {group.partial + needs.partial, group.tiles + needs.tiles, group.matrices + needs.matrices};
    most = {std::max(most.partial, group.partial), std::max(most.tiles, group.tiles),
            std::max(most.matrices, group.matrices)};
  }
  ArenaScope scratch(context.scratch());
  scratch.take({most.partial}, DType::kF32);
  scratch.take({most.tiles, 2}, DType::kF64);                      // squares
  scratch.take({most.matrices}, DType::kF64);                      // means of rows
  scratch.take({static_cast<int64_t>(kEntries), 2}, DType::kF32);  // results
}

}  // namespace hone::cuda
