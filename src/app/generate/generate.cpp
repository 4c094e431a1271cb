#include "app/generate/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "app/inference/generation_prompts.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "dist/control/guarded.h"
#include "report/console.h"
#include "report/humanise.h"
#include "text/tokenizer.h"

namespace hone {

namespace {

OutputRule answers_rule(const GenerateOptions& options) {
  Inputs inputs = inputs_of(options);
  inputs.emplace_back(options.input, "the input");
  return output_rule(inputs, options.force);
}

void check(const GenerateOptions& options, const TrainerRanks& ranks) {
  if (options.prompt.empty() == options.input.empty()) {
    throw UserError(options.prompt.empty() ? "the prompt is missing" : "both a prompt and a file of prompts are given",
                    "--prompt", "give a text with --prompt, or a JSONL file with --input");
  }
  if (options.batch_size < 1) throw UserError("the batch has no room", "--batch-size", "give at least 1");
  if (!options.input.empty() && options.output != "-") {
    if (ranks.rank == 0) require_output(options.output, answers_rule(options));
  }
}

/// A model that is ready to generate, and its prompts.
class Generation {
 public:
  Generation(const GenerateOptions& options, const TrainerRanks& ranks)
      : options_(options), first_(ranks.rank == 0), ranks_(ranks.size), model_(options, ranks) {
    request_.sampling = model_.sampling();
    request_.stop_ids = model_.stop_ids();
    for (const std::string& note : model_.notes()) tell(note);
    read_prompts();
    const bool chats = std::any_of(prompts_.begin(), prompts_.end(), [](const PromptRow& row) { return row.is_chat; });
    const std::optional<std::string> warning = chats ? model_.warning_of_thinking() : std::nullopt;
    if (warning) tell(*warning);
    model_.connect(request_.prompts);
  }

  void run() {
    guarded(model_.control(), [&] {
      load();
      options_.input.empty() ? stream_answer() : write_answers();
    });
  }

 private:
  /// Streams the answer to the only prompt, which is the first rank's.
  void stream_answer() {
    StreamDecoder decoder(model_.tokenizer(), true);
    request_.on_token = [&](size_t, int32_t id) {
      if (!model_.is_stop(id)) print_text(decoder.push(id));
    };
    const auto sequences = generate();
    if (!first_) return;
    print_text(decoder.finish() + "\n");
    summarise(sequences);
  }

  void write_answers() {
    int64_t tokens = 0;
    if (first_) {
      request_.on_token = [&](size_t, int32_t) {
        console_.set_progress({.label = "generate", .done = ++tokens, .detail = ranks_ > 1 ? "tokens here" : "tokens"});
      };
    }
    const auto sequences = generate();
    if (!first_) return;
    console_.clear_progress();
    std::string lines;
    for (size_t i = 0; i < sequences.size(); ++i) lines += answered(prompts_[i], sequences[i]) + "\n";
    if (options_.output == "-") {
      print_text(lines);
    } else {
      try {
        write_output(options_.output, lines, answers_rule(options_));
      } catch (const UserError&) {
        print_text(lines);  // hours of work are not lost with a full disk
        throw;
      }
    }
    summarise(sequences);
  }

  void tell(const std::string& line) {
    if (first_) console_.line(line);
  }

  void read_prompts() {
    const PromptReader reader(model_.tokenizer(), model_.chat(),
                              {.system = options_.system,
                               .template_variables = model_.template_variables(),
                               .raw = options_.raw,
                               .mapping = mapping()});
    if (options_.input.empty()) {
      prompts_.push_back(reader.read_text(options_.prompt, "--prompt"));
    } else {
      prompts_ = reader.read_file(options_.input);
    }
    for (const PromptRow& prompt : prompts_) request_.prompts.push_back(prompt.ids);
  }

  ColumnMapping mapping() const {
    if (options_.column_mapping.empty()) return {};
    return ColumnMapping::parse(parse_json(options_.column_mapping), "--column-mapping");
  }

  void load() {
    const int64_t max_length = longest_sequence(prompts_, request_.sampling.max_new_tokens, model_.context());
    const int64_t dealt = (static_cast<int64_t>(prompts_.size()) + ranks_ - 1) / ranks_;
    const auto sequences = std::min(options_.batch_size, dealt);
    generator_ = &model_.load({.max_sequences = sequences, .max_length = max_length},
                              [this](const std::string& line) { tell(line); });
  }

  std::vector<GeneratedSequence> generate() {
    const auto begin = std::chrono::steady_clock::now();
    auto sequences = generator_->generate(request_);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return sequences;
  }

  std::string answered(const PromptRow& prompt, const GeneratedSequence& sequence) const {
    Json row = prompt.row;
    row["generated_text"] = model_.tokenizer().decode(sequence.answer(), true);
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
  bool first_;                        // prints and writes
  int64_t ranks_;                     // among which prompts are dealt
  Console console_{Terminal::of(2)};  // standard output has the answers
  InferenceModel model_;
  GenerationRequest request_;
  std::vector<PromptRow> prompts_;
  Generator* generator_ = nullptr;
  double seconds_ = 0;
};

}  // namespace

int run_generate(const GenerateOptions& options, const TrainerRanks& ranks) {
  check(options, ranks);
  Generation(options, ranks).run();
  return 0;
}

}  // namespace hone
