// Which experts the tokens of hone bench step go to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hone {

/// Experts that are drawn instead of chosen by the routers of random weights, which choose by chance.
class BenchRouting {
 public:
  /// `text`: router, the model's own choice; balanced, the same load for every expert; zipf or zipf:S, an expert of
  /// rank r has a share of r^-S (S 1 without a number); or a file of a run's loads, expert_load.jsonl, whose last row
  /// counts. UserError (--routing) for anything else, and for a file without rows of shares.
  explicit BenchRouting(const std::string& text);

  /// Whether experts are drawn at all.
  bool draws() const { return kind_ != Kind::kRouter; }

  /// i32 [tokens, k] of a layer: k different experts of each token, in no order of theirs. The shares of all tokens are
  /// those asked for to within a few tokens, as far as an expert can be chosen once by a token (a larger share is left
  /// to the next ones). Which expert has which share is drawn for each layer. The layers of a file are taken in turn;
  /// with another number of experts, its shares in descending order are interpolated.
  std::vector<int32_t> draw(int64_t layer, int64_t tokens, int64_t experts, int64_t k, uint64_t seed) const;

 private:
  enum class Kind { kRouter, kBalanced, kZipf, kFile };

  void read_file(const std::string& path);
  /// The wanted shares of a layer in descending order; their sum is 1.
  std::vector<double> shares(int64_t layer, int64_t experts) const;

  Kind kind_ = Kind::kRouter;
  double exponent_ = 1;
  std::vector<std::vector<double>> layers_;  // one list for each layer of a file, in descending order
};

}  // namespace hone
