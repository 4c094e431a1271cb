#include "app/verify/golden_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "app/verify/noise_bounds.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "data/packing/sample_store.h"
#include "weights/safetensors.h"

namespace hone {

namespace {

constexpr const char* kRemake = "make the case again with tools/make_case.py";

/// Reads one JSON object field by field; errors contain the file and the field.
class Fields {
 public:
  Fields(const Json& json, std::string file, std::string path)
      : json_(json), file_(std::move(file)), path_(std::move(path)) {
    if (!json_.is_object()) fail(path_, "an object");
  }

  bool has(const std::string& key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  template <class T>
  T get(const std::string& key) const {
    try {
      return json_.at(key).get<T>();
    } catch (const nlohmann::json::exception&) {
      fail(path_ + key, "of the type the format asks for");
    }
  }
  template <class T>
  std::optional<T> optional(const std::string& key) const {
    return has(key) ? std::optional<T>(get<T>(key)) : std::nullopt;
  }
  Fields object(const std::string& key) const {
    if (!has(key)) fail(path_ + key, "there");
    return Fields(json_.at(key), file_, path_ + key + ".");
  }
  std::vector<Fields> objects(const std::string& key) const {
    if (!has(key) || !json_.at(key).is_array()) fail(path_ + key, "a list");
    std::vector<Fields> result;
    for (const Json& item : json_.at(key)) result.emplace_back(item, file_, path_ + key + "[].");
    return result;
  }
  void expect(bool holds, const std::string& key, const std::string& what) const {
    if (!holds) fail(path_ + key, what);
  }

 private:
  [[noreturn]] void fail(const std::string& field, const std::string& expected) const {
    throw UserError(fmt::format("'{}' is not {}", field, expected), file_, kRemake);
  }

  const Json& json_;
  std::string file_, path_;
};

Json read_expected(const std::filesystem::path& path) {
  std::optional<Json> json = read_json_if_there(path);
  if (!json) {
    throw UserError("the case has no expected.json", path.string(),
                    "give the folder of a reference case (tools/make_case.py makes one from a checkpoint)");
  }
  if (!json->is_object()) throw UserError("expected.json is not a JSON object", path.string(), kRemake);
  return std::move(*json);
}

/// Whether `value` is in [0, most]; false for NaN.
bool is_noise(double value, double most) { return value >= 0 && value <= most; }

std::string noise_text(double most) {
  return fmt::format("from 0 to {}: with more noise in the reference itself no error could be seen", most);
}

std::vector<double> read_step_noise(const Fields& fields, const std::string& key, size_t steps) {
  auto noise = fields.get<std::vector<double>>(key);
  fields.expect(noise.size() == steps, key, fmt::format("a list of {} numbers, one for each step", steps));
  for (double value : noise) fields.expect(is_noise(value, kMostNumberNoise), key, noise_text(kMostNumberNoise));
  return noise;
}

ReferenceNoise read_noise(const Fields& fields, const std::vector<ReferenceStep>& steps) {
  const auto with_aux =
      std::count_if(steps.begin(), steps.end(), [](const ReferenceStep& step) { return step.aux_loss.has_value(); });
  ReferenceNoise noise;
  noise.loss = read_step_noise(fields, "loss", steps.size());
  if (with_aux > 0) noise.aux_loss = read_step_noise(fields, "aux_loss", static_cast<size_t>(with_aux));
  noise.grad_norm = read_step_noise(fields, "grad_norm", steps.size());
  noise.change = {fields.get<double>("change"), fields.get<std::map<std::string, double>>("change_of_tensors")};
  fields.expect(is_noise(noise.change.all, kMostChangeNoise), "change", noise_text(kMostChangeNoise));
  for (const auto& [name, value] : noise.change.tensors) {
    fields.expect(is_noise(value, kMostChangeNoise), "change_of_tensors." + name, noise_text(kMostChangeNoise));
  }
  return noise;
}

double read_row_noise(const Fields& fields, const std::string& key) {
  const auto noise = fields.optional<double>(key).value_or(0.0);
  fields.expect(is_noise(noise, kMostRowNoise), key, noise_text(kMostRowNoise));
  return noise;
}

GradientNoise read_gradient_noise(const Fields& fields, const std::string& key) {
  auto noise = fields.optional<GradientNoise>(key).value_or(GradientNoise{});
  std::vector<double> values;
  for (const auto& [name, value] : noise) {
    fields.expect(is_noise(value, kMostGradientNoise), key + "." + name, noise_text(kMostGradientNoise));
    values.push_back(value);
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  fields.expect(values.empty() || *middle <= kMostRowNoise, key, "in half of the tensors " + noise_text(kMostRowNoise));
  return noise;
}

RowNoise read_noise_of_rows(const Fields& fields) {
  RowNoise noise;
  noise.logits = read_row_noise(fields, "logits");
  noise.loss = read_row_noise(fields, "loss");
  noise.aux_loss = read_row_noise(fields, "aux_loss");
  noise.gradients = read_gradient_noise(fields, "gradients");
  noise.token_losses = read_row_noise(fields, "token_losses");
  noise.packed_gradients = read_gradient_noise(fields, "packed_gradients");
  noise.accumulation_loss = read_row_noise(fields, "accumulation_loss");
  noise.accumulation_grad_norm = read_row_noise(fields, "accumulation_grad_norm");
  noise.accumulation_gradients = read_gradient_noise(fields, "accumulation_gradients");
  noise.split_logits = read_row_noise(fields, "split_logits");
  noise.split_gradients = read_gradient_noise(fields, "split_gradients");
  return noise;
}

ReferenceRun read_run(const Fields& fields) {
  const Fields optimizer = fields.object("optimizer");
  optimizer.expect(optimizer.get<std::string>("name") == "adamw", "name", "adamw, the only optimizer of this format");
  optimizer.expect(optimizer.get<std::string>("decay_on") == "every parameter", "decay_on", "'every parameter'");
  const auto betas = optimizer.get<std::vector<double>>("betas");
  optimizer.expect(betas.size() == 2, "betas", "a pair");
  ReferenceRun run;
  run.learning_rate = optimizer.get<double>("lr");
  run.optimizer = {.adamw = {.beta1 = betas[0], .beta2 = betas[1], .epsilon = optimizer.get<double>("eps")},
                   .groups = {.weight_decay = optimizer.get<double>("weight_decay"), .decay_norms_and_biases = true},
                   .max_grad_norm = optimizer.get<double>("max_grad_norm")};
  for (const Fields& step : fields.objects("steps")) {
    run.steps.push_back({step.get<double>("loss"), step.optional<double>("aux_loss"), step.get<double>("grad_norm")});
  }
  fields.expect(!run.steps.empty(), "steps", "a list of at least one step");
  if (fields.has("noise")) run.noise = read_noise(fields.object("noise"), run.steps);
  return run;
}

ReferenceDocuments read_documents(const Fields& fields) {
  ReferenceDocuments documents;
  for (auto& ids : fields.get<std::vector<std::vector<int32_t>>>("input_ids")) {
    fields.expect(!ids.empty(), "input_ids", "a list of documents with tokens");
    documents.documents.push_back({ids, ids});
  }
  documents.token_losses = fields.get<std::vector<std::vector<double>>>("token_losses");
  bool matches = documents.token_losses.size() == documents.documents.size() && !documents.documents.empty();
  for (size_t i = 0; matches && i < documents.documents.size(); ++i) {
    matches = documents.token_losses[i].size() + 1 == documents.documents[i].input_ids.size();
  }
  fields.expect(matches, "token_losses", "one loss for each token of a document but the first");
  return documents;
}

std::vector<int32_t> narrow(const int64_t* values, int64_t count, const std::filesystem::path& path) {
  std::vector<int32_t> result;
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] < kIgnoredLabel || values[i] > std::numeric_limits<int32_t>::max()) {
      throw UserError(fmt::format("{} is not a token id", values[i]), path.string(), kRemake);
    }
    result.push_back(static_cast<int32_t>(values[i]));
  }
  return result;
}

std::vector<std::vector<LabelledDocument>> read_batches(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  const std::vector<int64_t> shape = file.at("input_ids").shape;
  if (shape.size() != 3 || file.at("labels").shape != shape || std::count(shape.begin(), shape.end(), 0) > 0) {
    throw UserError("input_ids and labels are not both [batches, rows, tokens]", path.string(), kRemake);
  }
  const std::vector<int64_t> ids = file.read_integers("input_ids"), labels = file.read_integers("labels");
  std::vector<std::vector<LabelledDocument>> batches(static_cast<size_t>(shape[0]));
  int64_t offset = 0;
  for (auto& batch : batches) {
    for (int64_t row = 0; row < shape[1]; ++row, offset += shape[2]) {
      batch.push_back({narrow(ids.data() + offset, shape[2], path), narrow(labels.data() + offset, shape[2], path)});
    }
  }
  return batches;
}

}  // namespace

GoldenCase GoldenCase::read(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "expected.json";
  const Json json = read_expected(path);
  const Fields fields(json, path.string(), "");
  GoldenCase golden;
  golden.directory = directory;
  golden.aux = fields.get<bool>("aux");
  golden.loss = fields.get<double>("loss");
  golden.aux_loss = fields.optional<double>("aux_loss");
  if (fields.has("bfloat16")) {
    golden.bfloat16_gradient_error = fields.object("bfloat16").get<std::map<std::string, double>>("gradient_error");
  }
  golden.documents = read_documents(fields.object("documents"));
  const Fields accumulation = fields.object("accumulation");
  golden.accumulation = {accumulation.get<std::vector<int64_t>>("batches"),
                         accumulation.get<int64_t>("supervised_tokens"), accumulation.get<double>("loss"),
                         accumulation.get<double>("grad_norm")};
  const Fields greedy = fields.object("greedy");
  golden.greedy = {greedy.get<std::vector<int32_t>>("prompt"), greedy.get<std::vector<int32_t>>("tokens")};
  greedy.expect(!golden.greedy.prompt.empty(), "prompt", "a list of at least one token");
  golden.split_adapter = fields.get<bool>("split_adapter");
  if (fields.has("noise")) golden.noise = read_noise_of_rows(fields.object("noise"));
  golden.full = read_run(fields.object("full"));
  if (fields.has("lora_attention")) golden.lora_attention = read_run(fields.object("lora_attention"));
  if (fields.has("lora_dora")) golden.lora_dora = read_run(fields.object("lora_dora"));
  if (fields.has("lora_experts")) golden.lora_experts = read_run(fields.object("lora_experts"));
  golden.batches = read_batches(directory / "batches.safetensors");
  const auto batches = static_cast<int64_t>(golden.batches.size());
  for (int64_t i : golden.accumulation.batches) {
    accumulation.expect(i >= 0 && i < batches, "batches", "a list of batches of the case");
  }
  fields.expect(static_cast<int64_t>(golden.full.steps.size()) <= batches, "steps",
                "a list with a batch for each step");
  for (const auto* run : {&golden.lora_attention, &golden.lora_dora, &golden.lora_experts}) {
    fields.expect(!*run || static_cast<int64_t>((*run)->steps.size()) <= batches, "steps",
                  "a list with a batch for each step");
  }
  return golden;
}

}  // namespace hone
