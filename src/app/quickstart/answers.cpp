#include "app/quickstart/answers.h"

#include <algorithm>

#include "app/config/resolve.h"
#include "infer/chat_prompt.h"
#include "infer/generator.h"
#include "session/loaded_model.h"
#include "train/run_options.h"

namespace hone {
namespace {

/// An ISO moment and the end of the turn, with room for a model that does not know yet when to stop.
constexpr int64_t kMaxNewTokens = 20;
constexpr int64_t kMaxSequences = 64;

void load(LoadedModel& model, const std::filesystem::path& adapter, Stream& stream) {
  model.set_trainable(TrainableOptions::nothing(adapter));
  model.load(stream.device(), stream.pool(), 0, true);
}

}  // namespace

double Answers::accuracy() const {
  return texts.empty() ? 0.0 : static_cast<double>(right) / static_cast<double>(texts.size());
}

Answers ask(const ModelPath& path, const std::vector<Example>& examples, Stream& stream) {
  const Tokenizer tokenizer = Tokenizer::load(path.model);
  const ChatPrompt chat(tokenizer);
  GenerationRequest request;
  request.sampling.max_new_tokens = kMaxNewTokens;
  request.stop_ids = tokenizer.special_tokens().stop;
  size_t longest = 0;
  for (const Example& example : examples) {
    request.prompts.push_back(chat.encode({.messages = question_messages(example)}, "the quickstart's questions"));
    longest = std::max(longest, request.prompts.back().size());
  }
  LoadedModel model(path.model, DType::kF32);
  load(model, path.adapter, stream);
  const GeneratorOptions options{.max_sequences = kMaxSequences,
                                 .max_length = static_cast<int64_t>(longest) + kMaxNewTokens};
  model.decoder().prepare(stream, options.max_length);
  Answers answers;
  for (const GeneratedSequence& sequence : Generator(model.decoder(), stream, options).generate(request)) {
    const Example& example = examples[answers.texts.size()];
    answers.texts.push_back(tokenizer.decode(sequence.answer(), false));
    if (answers.texts.back() == example.answer && sequence.finish == FinishReason::kStop) ++answers.right;
  }
  return answers;
}

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
