// Short runs of a tiny model by one rank and by several, which must have the same losses.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "program.h"
#include "run_noise.h"

namespace hone {

class RankRuns {
 public:
  /// Runs with `micro_batches` per optimizer step, a multiple of the number of ranks.
  explicit RankRuns(const Folder& folder, int micro_batches = 4)
      : folder_(folder),
        micro_batches_(micro_batches),
        model_(make_model(folder)),
        data_(folder.write("data.jsonl", progressions(48))) {}

  /// "train" and its arguments.
  std::vector<std::string> arguments(const std::string& output, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> own = {"global_batch_size=" + std::to_string(2 * micro_batches_), "dtype=float32",
                                    "max_steps=4", "logging_steps=1", "eval_strategy=no"};
    own.insert(own.end(), more.begin(), more.end());
    std::vector<std::string> arguments;
    for (const std::string& argument : train_arguments(model_, data_, folder_ / output, own)) {
      if (!argument.starts_with("gradient_accumulation_steps=")) arguments.push_back(argument);  // follows from ranks
    }
    return arguments;
  }

  /// The same as text for a shell, with a space before each word.
  std::string words(const std::string& output, const std::vector<std::string>& more = {}) const {
    std::string text;
    for (const std::string& argument : arguments(output, more)) text += " '" + argument + "'";
    return text;
  }

  /// Compares the losses of a run with one rank's. They differ by the order of float32 sums: each has fewer than 1000
  /// terms, so where nothing is amplified the error is below 1000 ulp of 6e-8, and Adam is invariant to the scale of
  /// gradients.
  void expect_losses_of_one_rank(const std::string& output) const {
    run_alone("alone");
    ASSERT_EQ(losses("alone").size(), 4u);
    ASSERT_EQ(losses(output).size(), 4u) << output;
    const auto jittered = [&](uint64_t seed) {
      const std::string name = "alone_jittered_" + std::to_string(seed);
      run_alone(name, seed);
      return differences(name, "alone");
    };
    for (const std::string& line : unexplained(differences(output, "alone"), jittered)) {
      ADD_FAILURE() << output << ": " << line;
    }
  }

 private:
  /// One rank's run, unless it is there.
  void run_alone(const std::string& output, uint64_t jitter = 0) const {
    if (std::filesystem::exists(folder_ / output / "metrics.jsonl")) return;
    std::vector<std::string> more;
    if (jitter > 0) more.push_back("model_name_or_path=" + jittered_model(model_, jitter));
    const Outcome alone = run_hone(arguments(output, more));
    ASSERT_EQ(alone.code, 0) << alone.err;
  }

  Differences differences(const std::string& output, const std::string& one) const {
    const std::vector<double> found = losses(output), expected = losses(one);
    Differences all;
    for (size_t step = 0; step < std::min(found.size(), expected.size()); ++step) {
      all.push_back({"loss", step, relative_error(found[step], expected[step]), 6e-5});
    }
    return all;
  }

  std::vector<double> losses(const std::string& output) const {
    std::vector<double> losses;
    for (const Json& line : read_json_lines(folder_ / output / "metrics.jsonl")) {
      if (line.contains("loss")) losses.push_back(line["loss"]);
    }
    return losses;
  }

  const Folder& folder_;
  int micro_batches_;
  std::string model_, data_;
};

}  // namespace hone
