#include "app/generate/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <span>

#include "app/inference/generation_prompts.h"
#include "app/output.h"
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/files/partial_lines.h"
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

/// The rule for the answers that are ready before all are (core/files/partial_lines.h).
OutputRule partial_rule(const GenerateOptions& options) {
  OutputRule rule = answers_rule(options);
  rule.is_earlier = [](std::string_view beginning) { return beginning.starts_with("{\"hone_partial\":"); };
  return rule;
}

void check(const GenerateOptions& options, const TrainerRanks& ranks) {
  if (options.prompt.empty() == options.input.empty()) {
    throw UserError(options.prompt.empty() ? "the prompt is missing" : "both a prompt and a file of prompts are given",
                    "--prompt", "give a text with --prompt, or a JSONL file with --input");
  }
  if (options.batch_size < 1) throw UserError("the batch has no room", "--batch-size", "give at least 1");
  if (!options.input.empty() && options.output != "-") {
    if (ranks.rank != 0) return;
    require_output(options.output, answers_rule(options));
    require_output(PartialLines::path_for(options.output), partial_rule(options));
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
    const size_t ready = earlier_answers();
    const std::vector<GeneratedSequence> sequences = answer_from(ready);
    if (!first_) return;
    console_.clear_progress();
    std::string lines;
    for (const std::string& line : lines_) lines += line + "\n";
    if (options_.output == "-") {
      print_text(lines);
    } else {
      try {
        write_output(options_.output, lines, answers_rule(options_));
      } catch (const UserError&) {
        print_text(lines);  // hours of work are not lost with a full disk
        throw;
      }
      partial_->discard();
    }
    summarise(sequences);
  }

  /// Takes the answers that a stopped process of the same command has left. Returns how many, on all ranks.
  size_t earlier_answers() {
    size_t ready = 0;
    if (first_ && options_.output != "-") {
      const auto is_answer = [](std::string_view line) {
        const Json row = Json::parse(line, nullptr, false);
        return row.is_object() && row.contains("generated_text");
      };
      partial_.emplace(options_.output, identity().dump(), is_answer,
                       [&](const std::string& found) { refuse_other(found); });
      lines_ = partial_->earlier();
      ready = std::min(lines_.size(), prompts_.size());
      lines_.resize(ready);
      if (ready > 0) {
        tell(fmt::format("{} of {} answers are there from before: going on after them", ready, prompts_.size()));
      }
    }
    if (Control* const others = model_.control()) ready = std::stoul(others->broadcast(std::to_string(ready), 0));
    return ready;
  }

  /// What the answers come from: the rows with their prompts, the model, and what changes an answer.
  Json identity() {
    uint32_t sum = 0;
    for (const PromptRow& prompt : prompts_) {
      sum = extend_crc32c(sum, std::as_bytes(std::span(prompt.ids)));
      const std::string row = prompt.row->dump(-1, ' ', false, Json::error_handler_t::replace);
      sum = extend_crc32c(sum, std::as_bytes(std::span(row)));
    }
    Json json = {{"hone_partial", 1}, {"input", fmt::format("{} rows, {:08x}", prompts_.size(), sum)}};
    json.update(model_.identity());
    return json;
  }

  void refuse_other(const std::string& found) {
    if (options_.force) return;
    const Json before = Json::parse(found, nullptr, false), now = identity();
    std::string differs;
    for (const char* part : {"input", "model", "settings"}) {
      const bool same = before.is_object() && before.contains(part) && before[part] == now[part];
      if (!same) differs += fmt::format("{}the {}", differs.empty() ? "" : " and ", part);
    }
    throw UserError(fmt::format("a stopped command has left answers that {} of this one would not give", differs),
                    PartialLines::path_for(options_.output).string(),
                    "repeat that command to complete them, delete the file, or begin anew with --force");
  }

  /// The answers from row `ready` on; each becomes a line as soon as those before it are ready.
  std::vector<GeneratedSequence> answer_from(size_t ready) {
    const std::vector<std::vector<int32_t>> prompts = std::move(request_.prompts);
    // One rank sees each answer when it ends; several exchange theirs at the end of a request, so they make parts.
    constexpr int64_t kWaves = 4;
    const size_t part = ranks_ > 1 ? static_cast<size_t>(kWaves * options_.batch_size * ranks_) : prompts.size();
    std::vector<GeneratedSequence> all;
    while (ready + all.size() < prompts.size()) {
      const size_t begin = ready + all.size(), end = std::min(begin + part, prompts.size());
      request_.first_sequence = begin;
      request_.prompts.assign(prompts.begin() + static_cast<std::ptrdiff_t>(begin),
                              prompts.begin() + static_cast<std::ptrdiff_t>(end));
      std::map<size_t, GeneratedSequence> ended;  // before one that has not
      if (first_ && ranks_ == 1) {
        request_.on_end = [&](size_t i, const GeneratedSequence& sequence) {
          ended.emplace(begin + i, sequence);
          while (!ended.empty() && ended.begin()->first == lines_.size()) {
            add_line(ended.begin()->second);
            ended.erase(ended.begin());
          }
        };
      }
      for (GeneratedSequence& sequence : generate()) {
        all.push_back(std::move(sequence));
        if (first_ && lines_.size() < ready + all.size()) add_line(all.back());
      }
    }
    request_.on_end = nullptr;
    return all;
  }

  void add_line(const GeneratedSequence& sequence) {
    lines_.push_back(answered(prompts_[lines_.size()], sequence));
    if (partial_) partial_->append(lines_.back());
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
    generator_ =
        &model_.load({.max_sequences = sequences, .max_length = max_length, .cache_tokens = options_.cache_tokens},
                     [this](const std::string& line) { tell(line); });
  }

  std::vector<GeneratedSequence> generate() {
    const auto begin = std::chrono::steady_clock::now();
    auto sequences = generator_->generate(request_);
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
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
  std::vector<std::string> lines_;       // the answers so far, in the order of the prompts, on the first rank
  std::optional<PartialLines> partial_;  // set if they go to a file
  double seconds_ = 0;
};

}  // namespace

int run_generate(const GenerateOptions& options, const TrainerRanks& ranks) {
  check(options, ranks);
  Generation(options, ranks).run();
  return 0;
}

}  // namespace hone
