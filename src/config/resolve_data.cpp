#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "config/resolve_rules.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "data/formats/column_mapping.h"
#include "data/formats/prompt_template.h"
#include "data/readers/split_slice.h"
#include "text/named_templates.h"
#include "text/tokenizer_config.h"

namespace hone {
namespace {

/// Sets the weights of the data sets from interleave_probs.
void resolve_mixture(ResolvedConfig& config) {
  RunConfig::Data& data = config.run.data;
  const std::vector<std::string> shares = std::exchange(data.interleave_probs, {});
  if (shares.empty()) return;
  const std::string place = where(config, "interleave_probs");
  if (shares.size() != data.datasets.size()) {
    throw UserError(fmt::format("interleave_probs has {} shares for {} data sets", shares.size(), data.datasets.size()),
                    place, "state one for each data set, in their order");
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    size_t read = 0;
    double share = 0;
    try {
      share = std::stod(shares[i], &read);
    } catch (const std::exception&) {
      read = 0;
    }
    if (read == 0 || read != shares[i].size() || !(share > 0) || !std::isfinite(share)) {
      throw UserError(fmt::format("interleave_probs has the share '{}'", shares[i]), place,
                      "a share is a number above 0; take a data set that is not wanted out of datasets");
    }
    std::optional<double>& weight = data.datasets[i].weight;
    if (weight && *weight != share) {
      throw UserError(fmt::format("interleave_probs gives {} the share {}, but its weight is {}", data.datasets[i].path,
                                  share, *weight),
                      place, "keep one of them");
    }
    weight = share;
  }
}

void resolve_entries(ResolvedConfig& config, const std::string& key, std::vector<DatasetConfig>& entries,
                     const Json& mapping, const std::vector<std::string>& ignored) {
  for (DatasetConfig& entry : entries) {
    if (entry.column_mapping.empty()) entry.column_mapping = mapping;
    if (entry.ignore_columns.empty()) entry.ignore_columns = ignored;
    ColumnMapping::parse(entry.column_mapping, where(config, key)).ignore(entry.ignore_columns, where(config, key));
    if (parse_split(entry.split).sliced && entry.is_code()) {
      throw UserError(
          fmt::format("the split '{}' has a slice, but {} is source code, which has no rows", entry.split, entry.path),
          where(config, key), "state the number of samples in samples");
    }
    const bool mixed = key == "datasets" && entries.size() > 1;
    if (!entry.weight || mixed) continue;
    config.notes.push_back(fmt::format(
        "the weight of {} has no effect: {} ({})", entry.path,
        key == "datasets" ? "it is the only data set" : "evaluation reads each sample once", where(config, key)));
  }
}

/// Copies code_samples into the data sets of type code.
void resolve_code_samples(ResolvedConfig& config) {
  RunConfig::Data& data = config.run.data;
  const Json all = std::exchange(data.code_samples, Json::object());
  if (all.empty()) return;
  bool used = false;
  for (std::vector<DatasetConfig>* entries : {&data.datasets, &data.eval_datasets}) {
    for (DatasetConfig& entry : *entries) {
      if (!entry.is_code()) continue;
      used = true;
      Json code = Json::object();
      for (const KeySpec& key : dataset_schema()) {  // in the schema's order, which is also that of the written file
        if (entry.code.contains(key.name)) {
          code[key.name] = entry.code[key.name];
        } else if (all.contains(key.name)) {
          code[key.name] = all[key.name];
        }
      }
      for (const auto& [name, value] : all.items()) {
        if (code.contains(name)) continue;
        throw UserError(fmt::format("code_samples has no '{}'", name), where(config, "code_samples"),
                        "it has the keys that entries of type code have (docs/config.md)");
      }
      entry.code = std::move(code);
    }
  }
  if (!used) {
    throw UserError(
        fmt::format("{} says something about source code, but no data set is of type code", all.begin().key()),
        where(config, "code_samples"), "write type: code in the entry of datasets, or take it out");
  }
}

void check_prompt_templates(const ResolvedConfig& config, const char* key, const std::vector<DatasetConfig>& entries) {
  for (const DatasetConfig& entry : entries) {
    if (entry.prompt_template.is_null()) continue;
    (void)PromptTemplate::parse(entry.prompt_template, where(config, key));
    if (entry.type == "auto" || entry.type == "alpaca") continue;
    throw UserError(
        fmt::format("prompt_template writes rows of type alpaca, but {} is of type {}", entry.path, entry.type),
        where(config, key), "write type: alpaca, or leave prompt_template out");
  }
}

void resolve_datasets(ResolvedConfig& config) {
  resolve_mixture(config);
  resolve_code_samples(config);
  check_prompt_templates(config, "datasets", config.run.data.datasets);
  check_prompt_templates(config, "eval_datasets", config.run.data.eval_datasets);
  (void)TokenChoice::parse(config.run.data.special_tokens, config.run.data.eot_tokens, where(config, "special_tokens"));
  const Json mapping = std::exchange(config.run.data.column_mapping, Json::object());
  const std::vector<std::string> ignored = std::exchange(config.run.data.ignore_columns, {});
  resolve_entries(config, "datasets", config.run.data.datasets, mapping, ignored);
  resolve_entries(config, "eval_datasets", config.run.data.eval_datasets, mapping, ignored);
}

void resolve_template(const ResolvedConfig& config) {
  const RunConfig::Data& data = config.run.data;
  const std::string& stated = data.chat_template;
  if (!stated.empty() && stated.find('{') == std::string::npos && find_named_template(stated) == nullptr) {
    throw UserError(
        fmt::format("'chat_template: {}' is not a template that is built in.{}", stated,
                    did_you_mean(stated, template_name_list())),
        where(config, "chat_template"),
        fmt::format("leave it out to use the model's own template, name a file in chat_template_file, or one of: {}",
                    template_names()));
  }
  if (!data.chat_template.empty() && !data.chat_template_file.empty()) {
    throw UserError("chat_template and chat_template_file both state the template", where(config, "chat_template_file"),
                    "keep one of them");
  }
}

/// Refuses keys of source code in entries of other types.
void check_code_entries(const ResolvedConfig& config, const char* key, const std::vector<DatasetConfig>& entries) {
  for (const DatasetConfig& entry : entries) {
    if (entry.code.empty() || entry.is_code()) continue;
    throw UserError(fmt::format("{} says something about source code, but {} is of type {}", entry.code->begin().key(),
                                entry.path, entry.type),
                    where(config, key), "write type: code, or take it out");
  }
}

}  // namespace

void resolve_data(ResolvedConfig& config) {
  resolve_datasets(config);
  resolve_template(config);
  check_code_entries(config, "datasets", config.run.data.datasets);
  check_code_entries(config, "eval_datasets", config.run.data.eval_datasets);
}

}  // namespace hone
