// Shared by the tests of the router: launchers without a tape, and its formulas in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"
#include "ops/router/router.h"

namespace hone::testing {

/// Runs launchers without a tape.
struct Launcher {
  ThreadPool pool;
  TestStream stream{pool};
  Arena arena{test_device(), "scratch"};
  Context context{stream, arena};

  explicit Launcher(int threads = 2) : pool(threads) { arena.reserve(1 << 21); }
};

template <class T>
TestTensor<T> zeros(Shape shape) {
  return {std::vector<T>(static_cast<size_t>(shape.numel())), shape};
}

inline std::vector<float> floats(const Values& values) { return {values.begin(), values.end()}; }

struct RouterSizes {
  int64_t tokens, hidden, experts, k;
};

/// k different experts for each token.
inline std::vector<int32_t> some_routing(const RouterSizes& s) {
  std::vector<int32_t> ids;
  for (int64_t n = 0; n < s.tokens; ++n) {
    for (int64_t j = 0; j < s.k; ++j) ids.push_back(static_cast<int32_t>((5 * n + 3 + j) % s.experts));
  }
  return ids;
}

/// Scores s [T, E]; `bias` may be empty.
inline Values router_scores(const Values& x, const Values& w, const Values& bias, const RouterSizes& s,
                            RouterScores kind) {
  Values scores(static_cast<size_t>(s.tokens * s.experts));
  for (int64_t n = 0; n < s.tokens; ++n) {
    double* row = scores.data() + n * s.experts;
    for (int64_t e = 0; e < s.experts; ++e) {
      row[e] = bias.empty() ? 0.0 : bias[static_cast<size_t>(e)];
      for (int64_t h = 0; h < s.hidden; ++h) {
        row[e] += x[static_cast<size_t>(n * s.hidden + h)] * w[static_cast<size_t>(e * s.hidden + h)];
      }
    }
    const double largest = *std::max_element(row, row + s.experts);
    double sum = 0;
    for (int64_t e = 0; e < s.experts; ++e) {
      row[e] = kind == RouterScores::kSoftmax ? std::exp(row[e] - largest) : 1 / (1 + std::exp(-row[e]));
      sum += row[e];
    }
    for (int64_t e = 0; kind == RouterScores::kSoftmax && e < s.experts; ++e) row[e] /= sum;
  }
  return scores;
}

/// z [T] = (log Σ exp(logits))² of each token; `bias` may be empty.
inline Values router_z(const Values& x, const Values& w, const Values& bias, const RouterSizes& s) {
  Values z(static_cast<size_t>(s.tokens));
  for (int64_t n = 0; n < s.tokens; ++n) {
    Values logits(static_cast<size_t>(s.experts));
    for (int64_t e = 0; e < s.experts; ++e) {
      double& logit = logits[static_cast<size_t>(e)];
      logit = bias.empty() ? 0.0 : bias[static_cast<size_t>(e)];
      for (int64_t h = 0; h < s.hidden; ++h) {
        logit += x[static_cast<size_t>(n * s.hidden + h)] * w[static_cast<size_t>(e * s.hidden + h)];
      }
    }
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double logit : logits) sum += std::exp(logit - largest);
    z[static_cast<size_t>(n)] = (largest + std::log(sum)) * (largest + std::log(sum));
  }
  return z;
}

/// The distribution p [T, E] of scores, which is measured.
inline Values router_distribution(Values scores, const RouterSizes& s) {
  for (int64_t n = 0; n < s.tokens; ++n) {
    double* row = scores.data() + n * s.experts;
    double sum = 0;
    for (int64_t e = 0; e < s.experts; ++e) sum += row[e];
    for (int64_t e = 0; e < s.experts; ++e) row[e] /= sum;
  }
  return scores;
}

/// Weights [T, k] of the chosen experts.
inline Values router_weights(const Values& scores, const std::vector<int32_t>& ids, const RouterSizes& s,
                             const RouterRule& rule) {
  Values weights(ids.size());
  for (int64_t n = 0; n < s.tokens; ++n) {
    double sum = 0;
    for (int64_t j = 0; j < s.k; ++j) {
      const auto at = static_cast<size_t>(n * s.k + j);
      sum += weights[at] = scores[static_cast<size_t>(n * s.experts + ids[at])];
    }
    const double divisor = rule.normalise ? std::max(sum, static_cast<double>(rule.least_sum)) : 1.0;
    for (int64_t j = 0; j < s.k; ++j) {
      weights[static_cast<size_t>(n * s.k + j)] *= static_cast<double>(rule.scale) / divisor;
    }
  }
  return weights;
}

}  // namespace hone::testing
