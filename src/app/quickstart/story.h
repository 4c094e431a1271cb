// What the quickstart measures of its models, and tells on the console.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "app/quickstart/corpus.h"
#include "core/stream.h"
#include "report/console.h"
#include "train/engine.h"

namespace hone {

// What a model does with examples: its answers, how many are right to the last character, and the experts that
// sentences go to.

/// A model folder, with an adapter beside it or alone.
struct ModelPath {
  std::filesystem::path model, adapter = {};  ///< adapter empty: none
};

/// Answers to examples, in their order.
struct Answers {
  std::vector<std::string> texts;
  int64_t right = 0;

  /// Exact matches, in [0, 1].
  double accuracy() const;
};

/// Asks every question as a chat, greedily, many at once.
Answers ask(const ModelPath& path, const std::vector<Example>& examples, Stream& stream);

/// Expert choices of the first `samples` chats of a data file, by layer and expert.
RoutingLoad measure_expert_load(const std::filesystem::path& model, const std::filesystem::path& data, int64_t samples,
                                Stream& stream);

/// A question with an answer before and one after training.
struct AnswerPair {
  const Example* example = nullptr;
  std::string before, after;
};

/// A measure, and what it has to reach.
struct Measure {
  std::string what;
  double before = 0;  ///< fraction
  double after = 0;   ///< fraction
  double bar = -1;    ///< fraction; negative: reported without one

  bool reached() const { return after >= bar; }
};

class Story {
 public:
  explicit Story(Console& console) : console_(console) {}

  void title(std::string_view text, std::string_view right);
  void act(std::string_view name, std::string_view what);
  /// A paragraph; its lines are laid out already.
  void say(std::string_view text);
  void answers(const std::vector<AnswerPair>& pairs);
  /// A table; all of the measures have a bar, or none. `before` and `after` head the columns.
  void measures(const std::vector<Measure>& measures, const std::string& before = "before",
                const std::string& after = "after");
  /// Loss and evaluation loss of a run, from its metrics.jsonl.
  void loss_curve(const std::filesystem::path& run);
  /// Share of each expert, English and German beside each other, layer by layer.
  void expert_load(const RoutingLoad& english, const RoutingLoad& german);
  /// Commands with what each does.
  void commands(const std::vector<std::pair<std::string, std::string>>& commands);

 private:
  int width() const;

  Console& console_;
};

}  // namespace hone
