#include <fmt/format.h>

#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/untrusted_json.h"
#include "infer/sampling.h"

namespace hone {

namespace {

/// Settings that change which tokens are generated, with the values under which they do nothing.
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

/// Reads fields of generation_config.json into options; absent and null ones leave them as they are.
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
