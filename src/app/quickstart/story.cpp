#include "app/quickstart/story.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "config/resolve.h"
#include "config/run_options.h"
#include "core/text/json.h"
#include "infer/chat_prompt.h"
#include "infer/generator.h"
#include "report/humanise.h"
#include "report/page/page.h"
#include "report/page/run_record.h"
#include "report/table.h"
#include "report/terminal.h"
#include "session/loaded_model.h"

namespace hone {
namespace {

/// Enough for an ISO moment and the end of the turn, and for an untrained model.
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
  PassCompanions companions(model.decoder(), model.store(), stream);
  Answers answers;
  for (const GeneratedSequence& sequence : Generator(companions, options).generate(request)) {
    const Example& example = examples[answers.texts.size()];
    answers.texts.push_back(tokenizer.decode(sequence.answer(), false));
    if (answers.texts.back() == example.answer && sequence.finish == FinishReason::kStop) ++answers.right;
  }
  return answers;
}

RoutingLoad measure_expert_load(const std::filesystem::path& directory, const std::filesystem::path& data,
                                int64_t samples, Stream& stream) {
  RunConfig config;
  config.data.datasets = {{.path = data.string(), .type = "prompt_response", .samples = samples, .name = ""}};
  LoadedModel model(directory, DType::kF32);
  config.data.max_length = model.decoder().config().rope.max_position_embeddings;
  config.schedule.per_device_train_batch_size = config.schedule.global_batch_size = 16;
  const Tokenizer tokenizer = Tokenizer::load(directory);
  const TrainingData training = build_training_data(
      data_options(config, model.decoder().config().vocab_size, directory, ""), &tokenizer, stream.pool());
  const Loader loader(training.train, train_loader_options(config));
  EngineOptions options;
  options.capacity = loader.capacity();
  model.decoder().prepare(stream, options.capacity.max_seqlen);
  model.load(stream.device(), stream.pool(), 0);
  Engine engine(model.decoder(), model.store(), stream, options);
  engine.reserve();
  // Measures a training step without an update: routers count their choices.
  StepData step;
  step.micro_batches = loader.all_in_order();
  engine.accumulate(step, 0);
  return engine.measure().routing;
}

namespace {

constexpr int kWidth = 96;
constexpr int kShownAnswer = 24;

std::string percent(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }

/// "5.3147 → 0.0213": the first and the last value of a metric.
std::string ends_of(const Json& series, const char* metric) {
  const Json values = series.value(metric, Json::object()).value("y", Json::array());
  const auto text = [](const Json& value) {
    return value.is_number() ? fixed_number(value.get<double>(), 4) : std::string("not finite");
  };
  return values.empty() ? "not measured" : text(values.front()) + " → " + text(values.back());
}

/// Each expert's share of a layer's choices.
std::vector<double> shares_of(const RoutingLoad& load, int64_t layer) {
  const auto begin = load.counts.begin() + layer * load.experts, end = begin + load.experts;
  const double total = std::max(1.0, std::accumulate(begin, end, 0.0));
  std::vector<double> shares;
  for (auto count = begin; count != end; ++count) shares.push_back(static_cast<double>(*count) / total);
  return shares;
}

std::string busiest(const std::vector<double>& shares) {
  const auto most = std::max_element(shares.begin(), shares.end());
  return fmt::format("expert {}, {}", most - shares.begin(), percent(*most));
}

}  // namespace

int Story::width() const { return std::min(console_.width(), kWidth); }

void Story::title(std::string_view text, std::string_view right) {
  const std::string line = styled(text, Style::kBold, console_.color());
  console_.line("\n" + pad_right(line, std::max(0, width() - display_width(right))) +
                styled(right, Style::kDim, console_.color()));
}

void Story::act(std::string_view name, std::string_view what) {
  const std::string head = fmt::format("{} ", name), rest = fmt::format(" {}", what);
  std::string rule;
  for (int i = display_width(head) + display_width(rest); i < width(); ++i) rule += "─";
  console_.line(fmt::format("\n\n{}{}{}\n", styled(head, Style::kBold, console_.color()),
                            styled(rule, Style::kDim, console_.color()), styled(rest, Style::kCyan, console_.color())));
}

void Story::say(std::string_view text) {
  std::string block = "\n";
  for (const std::string& line : split_lines(text)) block += (line.empty() ? "" : "  " + line) + "\n";
  console_.line(block);
}

void Story::answers(const std::vector<AnswerPair>& pairs) {
  const bool color = console_.color();
  const auto marked = [&](const std::string& answer, const std::string& expected) {
    const bool right = answer == expected;
    const std::string shown = answer.empty() ? "(nothing)" : fit_width(one_line(answer), kShownAnswer);
    return styled(right ? "✓ " : "✗ ", right ? Style::kGreen : Style::kRed, color) + shown;
  };
  std::string block = "\n";
  for (const auto& [example, before, after] : pairs) {
    block += fmt::format("  “{}”\n    {} → {}\n", example->question,
                         pad_right(marked(before, example->answer), kShownAnswer + 3), marked(after, example->answer));
  }
  console_.line(block);
}

void Story::measures(const std::vector<Measure>& measures, const std::string& before, const std::string& after) {
  const bool color = console_.color();
  const bool judged = std::any_of(measures.begin(), measures.end(), [](const Measure& m) { return m.bar >= 0; });
  std::vector<Table::Column> columns = {{"exact match"}, {before, Align::kRight}, {after, Align::kRight}};
  if (judged) columns.insert(columns.end(), {{"at least", Align::kRight}, {""}});
  Table table(std::move(columns));
  for (const Measure& m : measures) {
    std::vector<std::string> row = {m.what, percent(m.before), percent(m.after)};
    if (judged) {
      row.push_back(percent(m.bar));
      row.push_back(m.reached() ? styled("✓", Style::kGreen, color) : styled("✗ missed", Style::kRed, color));
    }
    table.add_row(std::move(row));
  }
  console_.line("\n" + table.to_string(color));
}

void Story::losses(const std::filesystem::path& run) {
  const Json record = read_run_record(run, {.buckets = 3, .details = false});
  say(fmt::format("loss {}, evaluation loss {}; the run's page: {}", ends_of(record["series"], "loss"),
                  ends_of(record["series"], "eval_loss"), (run / kPageName).generic_string()));
}

void Story::expert_load(const RoutingLoad& english, const RoutingLoad& german) {
  Table table({{"layer", Align::kRight}, {"most of English"}, {"most of German"}, {"in common", Align::kRight}});
  for (int64_t layer = 0; layer < english.layers; ++layer) {
    const std::vector<double> first = shares_of(english, layer), second = shares_of(german, layer);
    double common = 0;
    for (size_t expert = 0; expert < first.size(); ++expert) common += std::min(first[expert], second[expert]);
    table.add_row({std::to_string(layer), busiest(first), busiest(second), percent(common)});
  }
  console_.line("\n" + table.to_string(console_.color()));
}

void Story::commands(const std::vector<std::pair<std::string, std::string>>& commands) {
  int column = 0;
  for (const auto& [command, what] : commands) column = std::max(column, display_width(command));
  std::string block = "\n";
  for (const auto& [command, what] : commands) {
    block += fmt::format("    {}   {}\n", pad_right(styled(command, Style::kBold, console_.color()), column),
                         styled(what, Style::kDim, console_.color()));
  }
  console_.line(block);
}

}  // namespace hone
