#include "app/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>

#include "app/generation_prompts.h"
#include "app/output.h"
#include "core/error.h"
#include "infer/generator.h"
#include "report/console.h"
#include "report/humanise.h"
#include "report/output_file.h"
#include "text/stream_decoder.h"
#include "train/device_facts.h"
#include "train/loaded_model.h"

namespace hone {

SamplingOptions SamplingOverrides::apply(SamplingOptions options) const {
  const bool draws = temperature.has_value() || top_k.has_value() || top_p.has_value();
  options.do_sample = do_sample.value_or(draws || options.do_sample);
  options.max_new_tokens = max_new_tokens.value_or(options.max_new_tokens);
  options.temperature = temperature.value_or(options.temperature);
  options.top_k = top_k.value_or(options.top_k);
  options.top_p = top_p.value_or(options.top_p);
  options.repetition_penalty = repetition_penalty.value_or(options.repetition_penalty);
  options.seed = seed.value_or(options.seed);
  check_sampling(options);
  return options;
}

namespace {

DType dtype_of(const GenerateOptions& options, const std::filesystem::path& model) {
  const std::string given = options.dtype;
  if (given.empty()) {
    const HfConfig config = HfConfig::read(model);
    const std::string stated = config.string_or("dtype", config.string_or("torch_dtype", "bfloat16"));
    return stated == name_of(DType::kF32) ? DType::kF32 : DType::kBF16;
  }
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (name_of(dtype) == given) return dtype;
  }
  throw UserError(fmt::format("'{}' is not a dtype of generate", given), "--dtype", "use float32 or bfloat16");
}

/// The one that is asked for; else the adapter's, with which it was trained; else the model's own.
ChatTemplateSource template_of(const GenerateOptions& options) {
  std::filesystem::path path = options.chat_template;
  if (path.empty() && !options.adapter.empty()) {
    path = std::filesystem::path(options.adapter) / "chat_template.jinja";
    if (!std::filesystem::exists(path)) return {};
  }
  if (path.empty()) return {};
  std::ifstream file(path, std::ios::binary);
  ChatTemplateSource source{{std::istreambuf_iterator<char>(file), {}}, path.string()};
  if (source.text.empty()) {
    throw UserError("the chat template cannot be read, or is empty", path.string(), "give a Jinja file");
  }
  return source;
}

void check(const GenerateOptions& options) {
  if (options.prompt.empty() == options.input.empty()) {
    throw UserError(options.prompt.empty() ? "there is no prompt" : "both a prompt and a file of prompts are given",
                    "--prompt", "give a text with --prompt, or a JSONL file with --input");
  }
  if (options.batch_size < 1) throw UserError("the batch has no room", "--batch-size", "give at least 1");
  if (!options.input.empty() && options.output != "-") require_free_file(options.output, options.force);
}

Tokenizer load_tokenizer(const std::filesystem::path& model) {
  if (!std::filesystem::exists(model / "tokenizer.json")) {
    throw UserError("the model has no tokenizer", (model / "tokenizer.json").string(),
                    "copy the tokenizer's files into the model folder");
  }
  return Tokenizer::load(model);
}

/// Positions that the model is made for.
int64_t context_length(const RopeParameters& rope) {
  const RopeScaling& scaling = rope.scaling;
  const auto scaled = [&](int64_t positions) {
    return static_cast<int64_t>(scaling.factor.value_or(1.0) * static_cast<double>(positions));
  };
  switch (scaling.type) {
    case RopeType::kDefault:
    case RopeType::kLlama3:
      return rope.max_position_embeddings;
    case RopeType::kLinear:
    case RopeType::kDynamic:
      return scaled(rope.max_position_embeddings);
    case RopeType::kYarn:
      return std::max(rope.max_position_embeddings,
                      scaled(scaling.original_max_position_embeddings.value_or(rope.max_position_embeddings)));
  }
  return rope.max_position_embeddings;
}

/// Tokens of the longest sequence: what its prompt and answer need, within the model's context.
int64_t longest_sequence(const std::vector<PromptRow>& prompts, int64_t max_new_tokens, int64_t context) {
  int64_t longest = 0;
  for (const PromptRow& prompt : prompts) {
    const auto tokens = static_cast<int64_t>(prompt.ids.size());
    if (tokens >= context) {
      throw UserError(fmt::format("the prompt has {} tokens, and the model's context {}, the answer included",
                                  with_commas(tokens), with_commas(context)),
                      prompt.where, "shorten the prompt");
    }
    longest = std::max(longest, tokens);
  }
  return longest + std::min(max_new_tokens, context - longest);
}

/// A model that is ready to generate, and its prompts.
class Generation {
 public:
  explicit Generation(const GenerateOptions& options)
      : options_(options),
        directory_(resolve_model_path(options.model)),
        tokenizer_(load_tokenizer(directory_)),
        pool_(options.threads),
        stream_(choose_device(options.device, "--device"), pool_),
        model_(directory_, dtype_of(options, directory_)) {
    const SamplingDefaults defaults = read_sampling_defaults(directory_);
    request_.sampling = options.sampling.apply(defaults.options);
    request_.stop_ids = tokenizer_.special_tokens().stop;
    if (!defaults.not_applied.empty()) {
      console_.line(fmt::format("warning: generation_config.json asks for what this version does not apply: {}",
                                fmt::join(defaults.not_applied, ", ")));
    }
    read_prompts();
    load();
  }

  /// Streams the answer to the only prompt.
  void stream_answer() {
    StreamDecoder decoder(tokenizer_, true);
    request_.on_token = [&](size_t, int32_t id) {
      if (!is_stop(id)) print_text(decoder.push(id));
    };
    const auto sequences = generate();
    print_text(decoder.finish() + "\n");
    summarise(sequences);
  }

  void write_answers() {
    int64_t tokens = 0;
    request_.on_token = [&](size_t, int32_t) {
      console_.set_progress({.label = "generate", .done = ++tokens, .detail = "tokens"});
    };
    const auto sequences = generate();
    console_.clear_progress();
    std::string lines;
    for (size_t i = 0; i < sequences.size(); ++i) lines += answered(prompts_[i], sequences[i]) + "\n";
    if (options_.output == "-") {
      print_text(lines);
    } else {
      replace_file(options_.output, lines);
    }
    summarise(sequences);
  }

 private:
  void read_prompts() {
    const ChatPrompt chat(tokenizer_, template_of(options_));
    const PromptReader reader(tokenizer_, chat, {.system = options_.system, .raw = options_.raw});
    if (options_.input.empty()) {
      prompts_.push_back(reader.read_text(options_.prompt, "--prompt"));
    } else {
      prompts_ = reader.read_file(options_.input);
    }
    for (const PromptRow& prompt : prompts_) request_.prompts.push_back(prompt.ids);
  }

  void load() {
    const int64_t context = context_length(model_.decoder().config().rope);
    const int64_t max_length = longest_sequence(prompts_, request_.sampling.max_new_tokens, context);
    TrainableOptions nothing;
    nothing.train_base = nothing.train_router = false;
    nothing.adapter = options_.adapter;
    model_.set_trainable(nothing);
    model_.load(stream_.device(), pool_, 0, true);
    model_.decoder().prepare(stream_, max_length);
    const auto sequences = std::min(options_.batch_size, static_cast<int64_t>(prompts_.size()));
    generator_ = std::make_unique<Generator>(model_.decoder(), stream_,
                                             GeneratorOptions{.max_sequences = sequences, .max_length = max_length});
  }

  bool is_stop(int32_t id) const {
    return std::find(request_.stop_ids.begin(), request_.stop_ids.end(), id) != request_.stop_ids.end();
  }

  std::vector<GeneratedSequence> generate() {
    const auto begin = std::chrono::steady_clock::now();
    auto sequences = generator_->generate(request_);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return sequences;
  }

  std::string answered(const PromptRow& prompt, const GeneratedSequence& sequence) const {
    Json row = prompt.row;
    row["generated_text"] = tokenizer_.decode(sequence.answer(), true);
    row["finish_reason"] = sequence.finish == FinishReason::kStop ? "stop" : "length";
    row["prompt_tokens"] = prompt.ids.size();
    row["generated_tokens"] = sequence.ids.size();
    return row.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  void summarise(const std::vector<GeneratedSequence>& sequences) {
    int64_t tokens = 0;
    size_t unfinished = 0;
    for (const GeneratedSequence& sequence : sequences) {
      tokens += static_cast<int64_t>(sequence.ids.size());
      unfinished += sequence.finish == FinishReason::kLength ? 1 : 0;
    }
    std::string text = fmt::format("{} tokens in {}, {} tokens/s", with_commas(tokens), human_duration(seconds_),
                                   human_count(seconds_ > 0 ? static_cast<double>(tokens) / seconds_ : 0));
    if (unfinished > 0) {
      text += sequences.size() == 1
                  ? "; stopped at the limit of tokens"
                  : fmt::format("; {} of {} answers stopped at the limit of tokens", unfinished, sequences.size());
    }
    console_.line(styled(text, Style::kDim, console_.color()));
  }

  const GenerateOptions& options_;
  Console console_{Terminal::of(2)};  // standard output is for the answers
  std::filesystem::path directory_;
  Tokenizer tokenizer_;
  ThreadPool pool_;
  Stream stream_;
  LoadedModel model_;
  GenerationRequest request_;
  std::vector<PromptRow> prompts_;
  std::unique_ptr<Generator> generator_;
  double seconds_ = 0;
};

}  // namespace

int run_generate(const GenerateOptions& options) {
  check(options);
  Generation generation(options);
  if (options.input.empty()) {
    generation.stream_answer();
  } else {
    generation.write_answers();
  }
  return 0;
}

}  // namespace hone
