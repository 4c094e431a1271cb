// embedding: looks up rows of a table by token id.
#pragma once

#include "tape/tape.h"

namespace hone {

/// y[t, :] = w[tokens[t], :] in y's dtype. tokens i32 [T], each in [0, V); other ids are a bug: an assertion on a CPU,
/// a row of NaN on a GPU. w [V, H] and y [T, H] are float32 or bfloat16.
struct EmbeddingArgs {
  Tensor tokens, w, y;
};

void embedding(const Context& context, const EmbeddingArgs& args);

/// dw[v, :] = Σ over t with tokens[t] = v of dy[t, :], in a fixed order: deterministic. dw float32 [V, H]; with beta 0
/// the rows of absent tokens become zero. The row of padding_idx gets no gradient from this use (torch.nn.Embedding's
/// padding_idx: checkpoints often have zeros there, for which a norm would produce huge gradients).
struct EmbeddingGradArgs {
  Tensor tokens, dy;
  GradDest dw;
  int64_t padding_idx = -1;  ///< -1: none
};

void embedding_grad(const Context& context, const EmbeddingGradArgs& args);

/// Records y [T, H] = w[tokens] in `dtype`. The tokens must outlive the tape. Backward saves nothing else.
Var embedding(Tape& tape, Tensor tokens, Weight& w, DType dtype, int64_t padding_idx = -1);

namespace cpu {
void embedding(const Context& context, const EmbeddingArgs& args);
void embedding_grad(const Context& context, const EmbeddingGradArgs& args);
}  // namespace cpu

namespace cuda {
void embedding(const Context& context, const EmbeddingArgs& args);
void embedding_grad(const Context& context, const EmbeddingGradArgs& args);
}  // namespace cuda

}  // namespace hone
