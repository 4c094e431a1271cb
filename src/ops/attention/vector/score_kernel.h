// The elementwise part of attention that is compiled once per instruction set: operations on a block of scores between
// the matrix products.
#pragma once

#include <cstdint>

namespace hone::cpu {

/// Rows of scores are aligned to this many floats, and so is their stride; kernels process whole vectors and may read
/// and write up to the next multiple.
inline constexpr int64_t kScoreAlignment = 16;

/// A block of scores: row r is the query at position first_query + r / group of its sequence, column c the key at
/// first_key + c. A query attends to a key at or before its position and, with a window, less than `window` before it.
struct ScoreBlock {
  float* scores;  ///< [rows, stride]
  int64_t stride, rows, cols;
  int64_t first_query, first_key;
  int64_t group;   ///< heads that share the block's keys
  int64_t window;  ///< 0: none
};

/// State of the softmax of each row over blocks of keys; initially largest = −infinity and sum = 0.
struct OnlineSoftmax {
  float* largest;      ///< [rows] largest scores so far
  float* sum;          ///< [rows] Σ exp(score − largest)
  float* out;          ///< [rows, out_stride] Σ exp(score − largest) v
  int64_t out_stride;  ///< a multiple of kScoreAlignment
};

/// exp(x) is 0 below −86 (the largest term of a row is 1); its error is under 2 ulp.
struct ScoreKernel {
  /// scores = exp(scores − largest), 0 where masked, with the rows' new largest; rescales sum and out to it.
  void (*softmax)(const ScoreBlock& block, const OnlineSoftmax& state);
  /// scores = exp(scores − lse), 0 where masked; lse [rows].
  void (*probabilities)(const ScoreBlock& block, const float* lse);
  /// gradients = probabilities · (gradients − delta), 0 where masked; block.scores holds the probabilities, gradients
  /// [rows, stride] d loss / d probability, delta [rows].
  void (*gradients)(const ScoreBlock& block, float* gradients, const float* delta);
};

/// The kernels for the active instruction set.
const ScoreKernel& score_kernel();

extern const ScoreKernel kScoreKernelBaseline;
extern const ScoreKernel kScoreKernelAvx2;
extern const ScoreKernel kScoreKernelAvx512;

}  // namespace hone::cpu
