#include "infer/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/base/float_value.h"
#include "core/base/philox.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

Error logits_not_finite() {
  return Error(ExitCode::kNumbersLost, "the model's logits are not finite", "",
               "check the weights, or run in float32 instead of bfloat16");
}

void check_sampling(const SamplingOptions& options) {
  const auto require = [](bool holds, const char* name, const auto& value, const char* range) {
    if (!holds) throw UserError(fmt::format("{} is {}", name, value), name, fmt::format("use {}", range));
  };
  require(options.max_new_tokens >= 1, "max_new_tokens", options.max_new_tokens, "at least 1");
  // Logits are divided in float32: a temperature below its range is 0 there, which sample_token() takes for greedy.
  require(options.temperature >= 0 && std::isfinite(as_float32(options.temperature)), "temperature",
          options.temperature, "0 (the most probable token) or more, in the range of float32");
  require(options.top_k >= 0, "top_k", options.top_k, "0 (all tokens) or more");
  require(options.top_p >= 0 && options.top_p <= 1, "top_p", options.top_p, "a number from 0 to 1");
  require(is_positive(options.repetition_penalty), "repetition_penalty", options.repetition_penalty,
          "a number above 0 in the range of float32; 1 means no penalty");
}

namespace {

struct Candidate {
  float logit;
  int32_t id;
  double weight = 0;  ///< exp(logit - largest): softmax without its denominator
};

/// Whether a comes before b: the larger logit, of equal ones the lower index.
bool more_probable(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

void penalise(std::span<float> logits, std::span<const int32_t> seen, double penalty) {
  const auto factor = static_cast<float>(penalty);
  for (const int32_t id : seen) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit < 0 ? logit * factor : logit / factor;
  }
}

/// Index of the largest logit.
size_t most_probable(std::span<const float> logits) {
  size_t best = 0;
  bool finite = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    finite &= logits[i] < std::numeric_limits<float>::infinity();  // false for NaN
    if (logits[i] > logits[best]) best = i;
  }
  if (!finite || std::isinf(logits[best])) throw logits_not_finite();
  return best;
}

/// Keeps the top_k largest, sorted.
void keep_top_k(std::vector<Candidate>& candidates, int64_t top_k) {
  if (top_k < static_cast<int64_t>(candidates.size())) {
    std::nth_element(candidates.begin(), candidates.begin() + top_k, candidates.end(), more_probable);
    candidates.resize(static_cast<size_t>(top_k));
  }
  std::sort(candidates.begin(), candidates.end(), more_probable);
}

double total_weight(const std::vector<Candidate>& candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const Candidate& candidate) { return sum + candidate.weight; });
}

/// Keeps the fewest largest whose fraction of the total weight reaches top_p. A heap returns them in order, so only
/// those that are kept are sorted.
void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  const double wanted = top_p * total_weight(candidates);
  const auto less_probable = [](const Candidate& a, const Candidate& b) { return more_probable(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), less_probable);
  double reached = 0;
  auto heap_end = candidates.end();
  do {
    std::pop_heap(candidates.begin(), heap_end--, less_probable);
    reached += heap_end->weight;
  } while (reached < wanted && heap_end != candidates.begin());
  candidates.erase(candidates.begin(), heap_end);
  std::reverse(candidates.begin(), candidates.end());
}

/// Uniform in [0, 1), 53 bits.
double uniform(uint64_t seed, SamplePoint point) {
  constexpr uint64_t kUse = 0x73616d706c65;  // "sample"
  const auto words =
      philox(mix_key(mix_key(seed, kUse), point.sequence),
             {static_cast<uint32_t>(point.position), static_cast<uint32_t>(point.position >> 32), 0u, 0u});
  return static_cast<double>(((uint64_t{words[1]} << 32) | words[0]) >> 11) * 0x1p-53;
}

int32_t draw(const std::vector<Candidate>& candidates, double random) {
  const double target = random * total_weight(candidates);
  double reached = 0;
  const Candidate* last = &candidates.front();
  for (const Candidate& candidate : candidates) {
    reached += candidate.weight;
    if (candidate.weight > 0) last = &candidate;
    if (reached > target) return candidate.id;
  }
  return last->id;  // the sum was rounded down to the target
}

}  // namespace

int32_t sample_token(std::span<float> logits, std::span<const int32_t> seen, const SamplingOptions& options,
                     SamplePoint point) {
  if (options.repetition_penalty != 1.0) penalise(logits, seen, options.repetition_penalty);
  const size_t best = most_probable(logits);
  if (options.greedy()) return static_cast<int32_t>(best);
  const auto temperature = static_cast<float>(options.temperature);
  std::vector<Candidate> candidates(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates[i] = {logits[i] / temperature, static_cast<int32_t>(i)};
  const float largest = logits[best] / temperature;
  if (!std::isfinite(largest)) return static_cast<int32_t>(best);  // the temperature is too close to 0
  if (options.top_k > 0) keep_top_k(candidates, options.top_k);
  for (Candidate& candidate : candidates) {
    candidate.weight = std::exp(static_cast<double>(candidate.logit) - static_cast<double>(largest));
  }
  if (options.top_p < 1) keep_top_p(candidates, options.top_p);
  return draw(candidates, uniform(options.seed, point));
}

std::vector<TokenLogit> log_probabilities(std::span<const float> logits, int32_t id, int count) {
  const auto largest = static_cast<double>(logits[most_probable(logits)]);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double whole = largest + std::log(sum);
  std::vector<Candidate> candidates(count > 0 ? logits.size() : 0);
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i] = {logits[i], static_cast<int32_t>(i)};
  if (count > 0) keep_top_k(candidates, count);
  std::vector<TokenLogit> result = {{id, static_cast<double>(logits[static_cast<size_t>(id)]) - whole}};
  for (const Candidate& c : candidates) result.push_back({c.id, static_cast<double>(c.logit) - whole});
  return result;
}

namespace {

/// Unsupported settings that change which tokens are generated, with their neutral values.
const std::pair<const char*, Json> kNotApplied[] = {
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"min_p", 0.0},
    {"top_h", nullptr},
    {"typical_p", 1.0},
    {"epsilon_cutoff", 0.0},
    {"eta_cutoff", 0.0},
    {"penalty_alpha", 0.0},
    {"encoder_repetition_penalty", 1.0},
    {"no_repeat_ngram_size", 0},
    {"encoder_no_repeat_ngram_size", 0},
    {"exponential_decay_length_penalty", nullptr},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"bad_words_ids", nullptr},
    {"force_words_ids", nullptr},
    {"sequence_bias", nullptr},
    {"suppress_tokens", nullptr},
    {"begin_suppress_tokens", nullptr},
    {"forced_bos_token_id", nullptr},
    {"forced_eos_token_id", nullptr},
    {"guidance_scale", nullptr},
    {"dola_layers", nullptr},
};

Json read_object(const std::filesystem::path& path) {
  Json json = read_json(path);
  if (!json.is_object())
    throw UserError("the file is not a JSON object", path.string(), "copy it from the model again");
  return json;
}

/// Reads fields of generation_config.json into options; absent and null ones leave the options unchanged.
struct FieldReader {
  const Json& json;
  std::string file;

  const Json* find(const char* key) const {
    const auto found = json.find(key);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void fail(const char* key, const char* expected) const {
    throw UserError(fmt::format("{} is {}, not {}", key, json.at(key).dump(), expected), file, "correct the file");
  }
  void read(const char* key, int64_t& value) const {
    const Json* field = find(key);
    if (field == nullptr) return;
    if (!field->is_number_integer()) fail(key, "a whole number");
    value = field->get<int64_t>();
  }
  void read(const char* key, double& value) const {
    const Json* field = find(key);
    if (field == nullptr) return;
    if (!field->is_number()) fail(key, "a number");
    value = field->get<double>();
  }
  void read(const char* key, bool& value) const {
    const Json* field = find(key);
    if (field == nullptr) return;
    if (!field->is_boolean()) fail(key, "true or false");
    value = field->get<bool>();
  }
};

}  // namespace

SamplingDefaults read_sampling_defaults(const std::filesystem::path& model_directory) {
  SamplingDefaults defaults;
  const std::filesystem::path path = model_directory / "generation_config.json";
  if (!std::filesystem::exists(path)) return defaults;
  const Json json = read_object(path);
  const FieldReader reader{json, path.string()};
  SamplingOptions& options = defaults.options;
  reader.read("max_new_tokens", options.max_new_tokens);
  reader.read("temperature", options.temperature);
  reader.read("top_k", options.top_k);
  reader.read("top_p", options.top_p);
  reader.read("repetition_penalty", options.repetition_penalty);
  reader.read("do_sample", options.do_sample);
  try {
    check_sampling(options);
  } catch (const UserError& error) {
    throw UserError(error.message(), path.string(), error.fix());
  }
  for (const auto& [key, neutral] : kNotApplied) {
    const Json* value = reader.find(key);
    if (value != nullptr && *value != neutral) defaults.not_applied.emplace_back(key);
  }
  return defaults;
}

}  // namespace hone
