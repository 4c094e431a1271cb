#include "app/batch_logits.h"

#include <numeric>
#include <utility>

#include "core/memory/buffer.h"

namespace hone {

std::vector<float> batch_logits(PassCompanions& companions, const DeviceBatch& batch, Forward forward) {
  Stream& stream = companions.stream();
  const Buffer memory(stream.device(), static_cast<size_t>(batch.tokens) * sizeof(int32_t));
  const Tensor rows = memory.tensor({batch.tokens}, DType::kI32);
  std::vector<int32_t> every(static_cast<size_t>(batch.tokens));
  std::iota(every.begin(), every.end(), 0);
  stream.upload(rows, std::move(every));
  forward.batch = &batch;
  PassRunner passes = companions.runner();
  TapePlan plan;
  const auto run = [&](RankPass part) {
    const PassCompanions::Pass pass(companions, std::move(part));
    forward.exchange = pass.exchange();
    Tape tape = passes.tape(plan);
    return tape.data(companions.decoder().logits(tape, forward, rows));
  };
  const RankPass part = companions.agree(batch.tokens).value();
  passes.measure([&] { run({.work = PassWork::kPlanned, .tokens = part.tokens}); });
  passes.reserve();
  const Tensor logits = run(part);
  passes.synchronize();
  std::vector<float> result;
  dispatch_float(logits.dtype, [&](auto element) {
    const auto values = stream.download<decltype(element)>(logits);
    result.assign(values.begin(), values.end());
  });
  return result;
}

}  // namespace hone
