#include "app/bench/bench_routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "config/config_value.h"
#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"

namespace hone {

namespace {

constexpr const char* kRoutingOption = "--routing";

void normalise(std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
}

/// The probability that a token chooses each expert: k times the share, at most 1; what is above goes to the others in
/// proportion.
std::vector<double> inclusion(const std::vector<double>& shares, double k) {
  std::vector<double> chosen(shares.size());
  size_t full = 0;  // shares descend: the first ones reach 1 first
  for (;;) {
    const double rest = std::accumulate(shares.begin() + static_cast<std::ptrdiff_t>(full), shares.end(), 0.0);
    const double left = k - static_cast<double>(full);
    size_t now = full;
    for (size_t e = full; e < shares.size(); ++e) {
      chosen[e] = rest > 0 ? shares[e] / rest * left : left / static_cast<double>(shares.size() - full);
      if (chosen[e] >= 1) now = e + 1;
    }
    std::fill(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(now), 1.0);
    if (now == full) return chosen;
    full = now;
  }
}

std::vector<int32_t> shuffled(int64_t experts, PhiloxSequence& random) {
  std::vector<int32_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace

BenchRouting::BenchRouting(const std::string& text) {
  if (text == "router") return;
  if (text == "balanced") {
    kind_ = Kind::kBalanced;
  } else if (text == "zipf" || text.starts_with("zipf:")) {
    kind_ = Kind::kZipf;
    if (text != "zipf" && !(parse_number(text.substr(5), exponent_) && exponent_ >= 0 && exponent_ <= 10)) {
      throw UserError(fmt::format("'{}' is not an exponent", text.substr(5)), kRoutingOption,
                      "give a number from 0 to 10");
    }
  } else {
    kind_ = Kind::kFile;
    read_file(text);
  }
}

void BenchRouting::read_file(const std::string& path) {
  const std::string fix = "router, balanced, zipf, zipf:S, or the expert_load.jsonl of a run";
  std::string text;
  try {
    text = read_whole_file(path, uint64_t{1} << 28, FileSource::kAlsoPipe);
  } catch (const UserError& error) {
    throw UserError(error.message(), fmt::format("{} {}", kRoutingOption, path), fix);
  }
  while (text.ends_with('\n')) text.pop_back();
  const Json row = Json::parse(text.substr(text.rfind('\n') + 1), nullptr, false);
  const auto refuse = [&] { throw UserError("the file has no shares of experts in its last row", path, fix); };
  if (!row.is_object() || !row.contains("layers") || !row["layers"].is_array() || row["layers"].empty()) refuse();
  for (const Json& layer : row["layers"]) {
    std::vector<double> shares;
    if (!layer.is_array() || layer.empty()) refuse();
    for (const Json& share : layer) {
      if (!share.is_number() || share.get<double>() < 0) refuse();
      shares.push_back(share.get<double>());
    }
    std::sort(shares.begin(), shares.end(), std::greater<>());
    if (shares.front() <= 0) refuse();
    normalise(shares);
    layers_.push_back(std::move(shares));
  }
}

std::vector<double> BenchRouting::shares(int64_t layer, int64_t experts) const {
  std::vector<double> shares(static_cast<size_t>(experts), 1.0);
  if (kind_ == Kind::kZipf) {
    for (size_t e = 0; e < shares.size(); ++e) shares[e] = std::pow(static_cast<double>(e + 1), -exponent_);
  } else if (kind_ == Kind::kFile) {
    const std::vector<double>& given = layers_[static_cast<size_t>(layer) % layers_.size()];
    const double step = static_cast<double>(given.size()) / static_cast<double>(experts);
    for (size_t e = 0; e < shares.size(); ++e) {  // at the middle of each expert's part of the descending shares
      const double at =
          std::clamp((static_cast<double>(e) + 0.5) * step - 0.5, 0.0, static_cast<double>(given.size() - 1));
      const auto below = static_cast<size_t>(at);
      const size_t above = std::min(below + 1, given.size() - 1);
      shares[e] = std::lerp(given[below], given[above], at - static_cast<double>(below));
    }
  }
  normalise(shares);
  return shares;
}

std::vector<int32_t> BenchRouting::draw(int64_t layer, int64_t tokens, int64_t experts, int64_t k,
                                        uint64_t seed) const {
  HONE_ASSERT(draws() && k <= experts);
  PhiloxSequence random(mix_key(seed, static_cast<uint64_t>(layer)));
  const std::vector<int32_t> order = shuffled(experts, random);
  const std::vector<double> chosen = inclusion(shares(layer, experts), static_cast<double>(k));
  std::vector<double> ends(chosen.size());
  std::partial_sum(chosen.begin(), chosen.end(), ends.begin());
  constexpr double kGolden = 0.6180339887498949;  // multiples of it fill [0, 1) evenly
  double at = static_cast<double>(random.next()) * 0x1p-32;
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(tokens * k));
  for (int64_t t = 0; t < tokens; ++t) {
    // Systematic sampling: the experts whose intervals hold at, at + 1, …, at + k - 1.
    int64_t e = 0;
    for (int64_t j = 0; j < k; ++j, ++e) {
      const int64_t last = experts - (k - j);  // as many are left as are still to be chosen
      while (e < last && ends[static_cast<size_t>(e)] <= at + static_cast<double>(j)) ++e;
      ids.push_back(order[static_cast<size_t>(e)]);
    }
    at += kGolden;
    if (at >= 1) at -= 1;
  }
  return ids;
}

}  // namespace hone
