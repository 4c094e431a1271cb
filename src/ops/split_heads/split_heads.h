// split_heads: splits the columns of a projection in which each head has several adjacent parts, such as a query and
// its gate.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "tape/tape.h"

namespace hone {

/// One part of each head's columns, and the output it belongs to.
struct HeadPart {
  int64_t width = 0;
  int output = 0;
};

/// The columns of x [T, heads · W] are `heads` runs of W = Σ width, each consisting of the parts in order. Output o [T,
/// heads · Σ width of its parts] has its parts one after another, each with the columns of all heads:
///   x   head 0: [q | gate]  head 1: [q | gate]        y_0   [q of head 0 | q of head 1]      y_1   [gate | gate]
inline constexpr int kMaxHeadParts = 4;

struct HeadParts {
  int64_t heads = 0;
  std::vector<HeadPart> list;  ///< at most kMaxHeadParts

  int64_t width() const;  ///< W
  int outputs() const;    ///< 1 + the largest output
  int64_t output_width(int output) const;
  /// First column of part p in its output.
  int64_t begin_in_output(size_t part) const;
};

struct SplitHeadsArgs {
  Tensor x;  ///< [T, heads · W] float32 or bfloat16
  std::array<Tensor, kMaxHeadParts> y;
  HeadParts parts;
};

/// dx of the above, from the gradients of the outputs; an undefined one is treated as zeros.
struct SplitHeadsGradArgs {
  std::array<Tensor, kMaxHeadParts> dy;
  GradDest dx;
  HeadParts parts;
};

void split_heads(const Context& context, const SplitHeadsArgs& args);
void split_heads_grad(const Context& context, const SplitHeadsGradArgs& args);

/// Records the outputs y_o of x. Backward saves nothing.
std::vector<Var> split_heads(Tape& tape, Var x, const HeadParts& parts);

namespace cpu {
void split_heads(const Context& context, const SplitHeadsArgs& args);
void split_heads_grad(const Context& context, const SplitHeadsGradArgs& args);
}  // namespace cpu

namespace cuda {
void split_heads(const Context& context, const SplitHeadsArgs& args);
void split_heads_grad(const Context& context, const SplitHeadsGradArgs& args);
}  // namespace cuda

}  // namespace hone
