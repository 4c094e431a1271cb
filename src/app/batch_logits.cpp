#include "app/batch_logits.h"

#include <numeric>

#include "tape/pass_runner.h"

namespace hone {

std::vector<float> batch_logits(LoadedModel& model, Stream& stream, const DeviceBatch& batch, Forward forward) {
  const Buffer memory(stream.device(), static_cast<size_t>(batch.tokens) * sizeof(int32_t));
  const Tensor rows = memory.tensor({batch.tokens}, DType::kI32);
  std::vector<int32_t> every(static_cast<size_t>(batch.tokens));
  std::iota(every.begin(), every.end(), 0);
  stream.upload(rows, std::move(every));
  forward.batch = &batch;
  PassRunner passes(stream, model.store().experts_on_host());
  TapePlan plan;
  passes.measure([&] {
    Tape tape = passes.tape(plan);
    model.decoder().logits(tape, forward, rows);
  });
  passes.reserve();
  Tape tape = passes.tape(plan);
  const Tensor logits = tape.data(model.decoder().logits(tape, forward, rows));
  passes.synchronize();
  std::vector<float> result;
  dispatch_float(logits.dtype, [&](auto element) {
    const auto values = stream.download<decltype(element)>(logits);
    result.assign(values.begin(), values.end());
  });
  return result;
}

}  // namespace hone
