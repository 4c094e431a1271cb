// The input of a forward pass, in device memory.
#pragma once

#include "core/base/tensor.h"
#include "ops/load_balancing/load_balancing.h"
#include "ops/packed_sequences.h"
#include "tape/step_scalars.h"

namespace hone {

/// One micro-batch of packed documents, without attention across documents: T tokens, D documents, S supervised rows.
/// No token is padding. The last documents and supervised rows may be empty; all ops skip those.
struct DeviceBatch {
  int64_t tokens = 0, documents = 0, supervised = 0;
  int64_t max_seqlen = 0;  ///< tokens of the longest document (an upper bound is enough)
  Tensor input_ids;        ///< i32 [T]
  Tensor positions;        ///< i32 [T], from 0 in each document
  Tensor sample_ids;       ///< i64 [T], the global sample of a token (key of random numbers)
  Tensor cu_seqlens;       ///< i32 [D + 1], first token of each document, then T
  Tensor rows;             ///< i32 [S], tokens whose next token is supervised
  Tensor targets;          ///< i32 [S], the ids of those next tokens
  Tensor loss_weights;     ///< f32 [S]
  Tensor present;          ///< i32 [1], number of supervised rows before the empty ones

  PackedSequences sequences() const {
    return {.cu_seqlens = cu_seqlens, .num_documents = documents, .max_seqlen = max_seqlen};
  }
};

/// Router measurements of a micro-batch over all MoE layers and E experts, and the result that router backward reads.
struct RoutingBuffers {
  RoutingMeasurements measurements;
  Tensor fractions;  ///< f32 [E], share of all choices of all layers, finished after the last block
};

/// Per-step values in device memory.
struct StepMemory {
  StepScalars* scalars = nullptr;
  LossTotals* totals = nullptr;
};

}  // namespace hone
