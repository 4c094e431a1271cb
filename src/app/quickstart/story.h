// What the quickstart tells on the console.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "app/quickstart/answers.h"
#include "report/console.h"
#include "train/engine.h"

namespace hone {

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
