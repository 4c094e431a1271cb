// row_tiles: runs a body of nodes on some rows of x at a time, one tile after the other, so that the values between x
// and the result take the memory of a tile's rows.
//
// Nodes of the body compute each row of their outputs from that row of their inputs, and from weights. The result and
// the gradient of x then have the bits of all rows at once, wherever the nodes' do not depend on the number of rows
// (ops/linear). Gradients of weights are added up over the tiles in their order, as over micro-batches: their bits
// depend on the tile. Weights are unpacked for each tile; they are present (Residency) until the last one.
#pragma once

#include "tape/tape.h"

namespace hone {

struct RowRange {
  int64_t begin = 0, count = 0;

  Tensor of(const Tensor& all) const { return all.rows(begin, count); }
};

/// Records nodes from `x`, which has the rows `rows` of the whole, to a result with as many rows. Called for each tile,
/// in forward and in backward.
using RowBody = std::function<Var(Tape& tape, Var x, const RowRange& rows)>;

/// A body as the one op that profiles show. `kind` is a literal.
struct RowWork {
  std::string_view kind;
  OpGroup group = OpGroup::kMemoryBound;
  double flops = 0;  ///< Node::flops() of all rows
  RowBody body;      ///< what it captures by reference must outlive the tape
};

/// Records the body of x [T, ...] in tiles of `tile` rows; the last one may have fewer. One node, which saves x:
/// backward computes the values of the body again, whatever the policy keeps.
Var row_tiles(Tape& tape, Var x, RowWork work, int64_t tile);

}  // namespace hone
