#include "app/convert_config/known_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "app/convert_config/model_families.h"
#include "app/model_source.h"
#include "config/run_options.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "data/dataset/dataset_builder.h"
#include "data/dataset/dataset_reader.h"
#include "data/formats/column_mapping.h"
#include "models/registry.h"
#include "session/model_path.h"
#include "text/tiktoken.h"
#include "train/plan/data_setup.h"
#include "train/plan/described_run.h"
#include "train/plan/run_vocabulary.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// Rows of a data set that are checked: enough to see its form and its usual lengths, in a moment.
constexpr int64_t kRows = 500;

constexpr const char* kNoMedia = "images and audio are not trained in this version";

bool is_known(const std::string& path) { return !path.empty() && path.find("${") == std::string::npos; }

/// The config.json of a model that is here, or of a shape that is known by name. UserError for a folder that is no
/// model's.
std::optional<ModelSource> source_of(const std::string& model) {
  if (fs::is_directory(model)) return find_model(model);
  for (const std::string& name : {model, shape_named(model)}) {
    if (name.empty()) continue;
    try {
      return find_model(name, false);
    } catch (const UserError&) {  // it is not here
    }
  }
  return std::nullopt;
}

class Finder {
 public:
  Finder(const RunConfig& run, const std::string& source) : run_(run), source_(source) {}

  KnownFaults find() {
    const std::string& model = run_.model.model_name_or_path;
    if (is_known(model)) check_model(model);
    bool readable = true;
    for (const auto* list : {&run_.data.datasets, &run_.data.eval_datasets}) {
      for (const DatasetConfig& entry : *list) readable = check_rows(entry) && readable;
    }
    if (readable && vocab_size_) encode();
    return std::move(faults_);
  }

 private:
  void refuse(const std::string& said, const std::string& why) { faults_.refused.push_back({said, source_, why}); }

  void look(const std::string& said, const std::string& why) { faults_.look.push_back({said, source_, why}); }

  void look(const std::string& said, const UserError& error) {
    look(said, fmt::format("train will refuse it: {} ({}){}", error.message(), error.where(),
                           error.fix().empty() ? "" : "; " + error.fix()));
  }

  void check_model(const std::string& name) {
    const std::string said = "model_name_or_path: " + name;
    try {
      const std::optional<ModelSource> source = source_of(name);
      if (!source || source->directory.empty()) check_files_named(name, said);
      if (!source) return check_family(name, said);
      const std::string architecture = source->config.architecture();
      if (!find_architecture(architecture)) {
        const bool media = source->config.has("vision_config") || source->config.has("audio_config");
        if (media) return refuse(said, kNoMedia);
        return look(said, fmt::format("Hone has no {}: train will refuse it",
                                      architecture.empty() ? "architecture without a name" : architecture));
      }
      check_settings(*source);
    } catch (const UserError& error) {
      look(said, error);
    }
  }

  void check_family(const std::string& name, const std::string& said) {
    const ModelFamily* family = family_named(name);
    if (!family || architecture_of_type(family->model_type)) return;
    if (family->media) return refuse(said, kNoMedia);
    look(said, fmt::format("Hone has no {}: train will refuse it", family->title));
  }

  void check_files_named(const std::string& name, const std::string& said) {
    const std::string files = unread_files_named(name);
    if (files.empty()) return;
    look(said, fmt::format("files of {} are not read: take the model in bfloat16 with base_weight_dtype: nf4", files));
  }

  /// The settings against the names and shapes of the model's weights.
  void check_settings(const ModelSource& source) {
    RunConfig run = run_;
    run.model.model_name_or_path = source.directory.string();
    if (!fs::is_directory(run.model.adapter_name_or_path)) run.model.adapter_name_or_path.clear();
    (void)describe_vocabulary(run, source.config, source.directory);
    std::unique_ptr<LoadedModel> model =
        planned_model(source, run.model.dtype, expert_format_of(run), run.model.vocab_rows);
    model->set_trainable(trainable_options(run, Device{}));
    const DescribedModel described = describe_model(run, std::move(model));
    if (described.model->lora()) require_layout(described.model->store(), adapter_layout(described));
    require_something_trained(described);
    if (!source.has_weights) return;
    directory_ = source.directory;
    vocab_size_ = described.model->decoder().config().vocab_size;
    max_length_ = run.data.max_length.value_or(default_max_length(described.model->decoder().config()));
  }

  /// Reads the first rows of a data set; returns whether it is here and readable.
  bool check_rows(const DatasetConfig& config) {
    std::error_code error;
    if (!is_known(config.path) || !fs::exists(config.path, error)) return false;
    const std::string said = "datasets: " + config.path;
    try {
      const std::vector<DatasetEntry> entries = dataset_entries({config});
      if (entries.front().code) return true;
      DatasetReader reader(entries.front());
      DatasetRow row;
      for (int64_t i = 0; i < kRows && reader.next(row); ++i) {
        const Json parsed = parse_row(row.raw);
        if (const std::string media = media_column(parsed, entries.front().mapping); !media.empty()) {
          refuse(said, fmt::format("the column {} holds media: {}", media, kNoMedia));
          return false;
        }
        (void)format_row(parsed, row.format, row.raw.where(), entries.front().mapping);
        refuse_contrary_columns(parsed, row.format, row.raw.where(), entries.front().mapping);
      }
      return true;
    } catch (const UserError& fault) {
      look(said, fault);
      return false;
    }
  }

  /// Encodes the first rows as training does, where the tokenizer is here.
  void encode() {
    RunConfig run = run_;
    run.data.max_length = max_length_;
    run.data.val_split = 0;
    run.data.tokenized_cache.clear();
    for (auto* list : {&run.data.datasets, &run.data.eval_datasets}) {
      for (DatasetConfig& entry : *list) entry.samples = std::min(entry.samples.value_or(kRows), kRows);
    }
    if (run.data.datasets.empty()) return;
    try {
      const fs::path folder = tokenizer_directory(run, directory_);
      const RunTokenizer loaded = load_run_tokenizer(run, folder);
      ThreadPool pool(1);
      (void)build_training_data(data_options(run, *vocab_size_, folder, loaded.chat_template.text),
                                loaded.tokenizer ? &*loaded.tokenizer : nullptr, pool);
    } catch (const UserError& fault) {
      look("datasets", fault);
    }
  }

  const RunConfig& run_;
  const std::string& source_;
  KnownFaults faults_;
  fs::path directory_;
  std::optional<int64_t> vocab_size_;  ///< set if the model's files are here
  int64_t max_length_ = 0;
};

}  // namespace

KnownFaults known_faults(const RunConfig& run, const std::string& source) { return Finder(run, source).find(); }

std::optional<bool> has_token(const std::string& folder, const std::string& token) {
  if (!is_known(folder)) return std::nullopt;
  if (is_hub_name(folder) && !is_cached_model(folder, ModelParts::kDescriptions)) return std::nullopt;
  try {
    const fs::path directory = resolve_model_path(folder, ModelParts::kDescriptions);
    if (!has_tokenizer(directory)) return std::nullopt;
    return Tokenizer::load(directory).token_to_id(token).has_value();
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::optional<bool> has_experts(const std::string& model) {
  if (!is_known(model)) return std::nullopt;
  try {
    if (const std::optional<ModelSource> source = source_of(model)) {
      const Architecture* architecture = find_architecture(source->config.architecture());
      return architecture ? std::optional(architecture->experts) : std::nullopt;
    }
  } catch (const UserError&) {
    return std::nullopt;
  }
  const ModelFamily* family = family_named(model);
  if (!family) return std::nullopt;
  const Architecture* architecture = architecture_of_type(family->model_type);
  return architecture && architecture->experts;
}

}  // namespace hone
