#include "app/quickstart/expert_load.h"

#include "app/config/resolve.h"
#include "train/run_options.h"

namespace hone {

RoutingLoad measure_expert_load(const std::filesystem::path& directory, const std::filesystem::path& data,
                                int64_t samples, Stream& stream) {
  RunConfig config;
  config.data.datasets = {{.path = data.string(), .type = "messages", .samples = samples, .name = ""}};
  LoadedModel model(directory, DType::kF32);
  config.data.max_length = model.decoder().config().rope.max_position_embeddings;
  config.schedule.per_device_train_batch_size = config.schedule.global_batch_size = 16;
  const Tokenizer tokenizer = Tokenizer::load(directory);
  const TrainingData training = build_training_data(
      data_options(config, model.decoder().config().vocab_size, directory), &tokenizer, stream.pool());
  const Loader loader(training.train, train_loader_options(config));
  EngineOptions options;
  options.capacity = loader.capacity();
  model.decoder().prepare(stream, options.capacity.max_seqlen);
  model.load(stream.device(), stream.pool(), 0);
  Engine engine(model.decoder(), model.store(), stream, options);
  engine.reserve();
  // A training step that is measured and not taken: routers count what they choose.
  StepData step;
  step.micro_batches = loader.all_in_order();
  engine.accumulate(step, 0);
  return engine.measure().routing;
}

}  // namespace hone
