// Tests that layer inputs kept in 8-bit floats (layer_input_dtype) leave losses alone, give gradients that are nearly
// the exact ones, and the same bits wherever they are kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "app/verify/replay.h"
#include "core/cpu/thread_pool.h"
#include "ops/kept_rows/kept_rows.h"
#include "rank_jobs.h"
#include "session/loaded_model.h"

namespace hone {
namespace {

Job job_of(const std::string& model, const std::string& adapter = "") {
  return {.model = model,
          .adapter = adapter,
          .steps = steps_of(model, {2, 1}),
          .layer_inputs = &fp8_value_format(),
          .recompute = true};
}

Outcome alone(const Job& job) { return train(job, nullptr, ZeroStage::kNone); }

struct Gradients {
  double loss = 0;
  HostTensors of;
};

/// Those of a case's first step.
Gradients gradients(const std::string& model, RecomputeLevel level, const ValueFormat* format) {
  const StepData step = steps_of(model, {2}).front();
  int64_t longest = 0;
  for (const MicroBatch& batch : step.micro_batches) longest = std::max(longest, batch.tokens());
  ThreadPool pool(1);
  Stream stream(device_under_test(), pool);
  Replay replay(goldens() / model / "model", stream, {longest, 1, longest, longest}, {.layer_inputs = format});
  const auto engine = replay.make_engine(0);
  engine->set_recompute({.level = level});
  engine->reserve();
  engine->accumulate(step, 0);
  const double loss = engine->measure().loss.loss;
  return {loss, replay.gradients()};
}

/// ‖a − b‖ / ‖b‖ over all tensors.
double distance(const HostTensors& a, const HostTensors& b) {
  double error = 0, norm = 0;
  for (const auto& [name, tensor] : b) {
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const double want = tensor.values[i];
      error += std::pow(static_cast<double>(a.at(name).values[i]) - want, 2);
      norm += want * want;
    }
  }
  return std::sqrt(error / norm);
}

int64_t layers_of(const std::string& model) {
  return static_cast<int64_t>(LoadedModel(goldens() / model / "model", DType::kF32).decoder().config().layers.size());
}

TEST(LayerInputs, InFewerBitsLeaveTheLossAndMoveGradientsByTheirRounding) {
  for (const char* model : {"qwen3_moe", "llama", "deepseek_v3", "qwen3_next", "gpt_oss"}) {
    // An element is rounded by at most 2^-4 of it, 2^-4 / √3 root mean square. A gradient reads each layer's input and
    // the final norm's; these roundings are independent. Three times that for what norms and attention make of it.
    const double bound = 3 * 0x1p-4 / std::sqrt(3.0) * std::sqrt(static_cast<double>(layers_of(model) + 1));
    for (const RecomputeLevel level :
         {RecomputeLevel::kNone, RecomputeLevel::kAllButAttention, RecomputeLevel::kEverything}) {
      SCOPED_TRACE(std::string(model) + " at level " + std::to_string(static_cast<int>(level)));
      const Gradients exact = gradients(model, level, nullptr), got = gradients(model, level, &fp8_value_format());
      EXPECT_EQ(bits_of(got.loss), bits_of(exact.loss));
      const double error = distance(got.of, exact.of);
      EXPECT_GT(error, 0) << "nothing was rounded";
      EXPECT_LE(error, bound);
      RecordProperty(std::string(model) + std::to_string(static_cast<int>(level)), std::to_string(error));
    }
  }
}

TEST(LayerInputs, GiveTheSameBitsInHostMemory) {
  for (Job job : {job_of("qwen3_moe"), job_of("deepseek_v3"), job_of("qwen3_next", "lora_experts_init"),
                  job_of("qwen3_moe", "lora_attention_init")}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(job.model + " " + job.adapter + (recompute ? ", recomputed" : ""));
        job.dtype = dtype;
        job.recompute = recompute;
        job.offload_activations = false;
        const Outcome here = alone(job);
        job.offload_activations = true;
        expect_same_bits(alone(job), here);
      }
    }
  }
}

TEST(LayerInputs, OfLayersThatAreSteppedInBackwardGiveTheSameBitsInHostMemory) {
  Job job = job_of("qwen3_moe");
  job.steps = steps_of("qwen3_moe", {1, 1});
  job.max_grad_norm = 0;
  job.optimizer_in_backward = true;
  const Outcome here = alone(job);
  job.offload_activations = true;
  job.offload = {.params = true};
  expect_same_bits(alone(job), here);
}

TEST(LayerInputs, OfSeveralRanksTrainAsOfOne) {
  Job job = job_of("qwen3_moe");
  job.steps = steps_of("qwen3_moe", {4});
  const Outcome one = alone(job);
  for (const ZeroStage stage : kStages) {
    SCOPED_TRACE(traced(2, stage));
    const Outcome two = train_by(2, job, stage);
    expect_same_training(two, one, job);
    expect_same_bits(train_by(2, job, stage), two);
  }
  job.expert_ranks = 2;
  const Outcome spread = train_by(2, job, ZeroStage::kNone);
  expect_same_training(spread, one, job);
}

}  // namespace
}  // namespace hone
