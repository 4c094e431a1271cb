// gather_rows: selects rows, forward only: the positions whose logits generation and verification read.
#pragma once

#include "tape/tape.h"

namespace hone {

/// y[i, :] = x[rows[i], :]. x [T, H] float32 or bfloat16; rows i32 [R], each in [0, T); y [R, H].
struct GatherRowsArgs {
  Tensor x, rows, y;
};

void gather_rows(const Context& context, const GatherRowsArgs& args);

/// Records y = x[rows]; has no gradient.
Var gather_rows(Tape& tape, Var x, Tensor rows);

namespace cpu {
void gather_rows(const Context& context, const GatherRowsArgs& args);
}

namespace cuda {
void gather_rows(const Context& context, const GatherRowsArgs& args);
}

}  // namespace hone
