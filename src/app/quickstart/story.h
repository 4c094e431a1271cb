// The quickstart's measurements of its models, and its console output.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "app/quickstart/quickstart_files.h"
#include "core/stream/stream.h"
#include "report/console.h"
#include "train/step/engine.h"

namespace hone {

// Measurements of a model on examples: answers, exact matches, and the load of experts.

/// A model folder and an optional adapter.
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

/// Answers every question as a chat, greedily and in batches.
Answers ask(const ModelPath& path, const std::vector<Example>& examples, Stream& stream);

/// Expert choices of the first `samples` chats of a data file, by layer and expert.
RoutingLoad measure_expert_load(const std::filesystem::path& model, const std::filesystem::path& data, int64_t samples,
                                Stream& stream);

/// A question with an answer before and one after training.
struct AnswerPair {
  const Example* example = nullptr;
  std::string before, after;
};

/// A measure and its bar.
struct Measure {
  std::string what;
  double before = 0;  ///< fraction
  double after = 0;   ///< fraction
  double bar = -1;    ///< fraction; negative: no bar

  bool reached() const { return after >= bar; }
};

class Story {
 public:
  explicit Story(Console& console) : console_(console) {}

  void title(std::string_view text, std::string_view right);
  void act(std::string_view name, std::string_view what);
  /// Prints a paragraph without changing its line breaks.
  void say(std::string_view text);
  void answers(const std::vector<AnswerPair>& pairs);
  /// Prints a table. Either all measures have a bar, or none. `before` and `after` are the headings of columns.
  void measures(const std::vector<Measure>& measures, const std::string& before = "before",
                const std::string& after = "after");
  /// Prints the first and last loss and evaluation loss of a run, and the path of its page.
  void losses(const std::filesystem::path& run);
  /// Prints the busiest expert of each layer for English and German, and the share of choices that they have in common.
  void expert_load(const RoutingLoad& english, const RoutingLoad& german);
  /// Prints commands with their descriptions.
  void commands(const std::vector<std::pair<std::string, std::string>>& commands);

 private:
  int width() const;

  Console& console_;
};

}  // namespace hone
