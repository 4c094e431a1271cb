#include "data/micro_batch.h"

#include <numeric>

namespace hone {

int64_t StepData::tokens() const {
  int64_t n = 0;
  for (const MicroBatch& batch : micro_batches) n += batch.tokens();
  return n;
}

int64_t StepData::supervised() const {
  int64_t n = 0;
  for (const MicroBatch& batch : micro_batches) n += batch.supervised();
  return n;
}

double StepData::loss_weight() const {
  double sum = 0;
  for (const MicroBatch& batch : micro_batches)
    sum = std::accumulate(batch.loss_weights.begin(), batch.loss_weights.end(), sum);
  return sum;
}

}  // namespace hone
