#include "train/save/model_card.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "config/resolved_yaml.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/base/program.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "data/readers/hub_dataset.h"
#include "hub/repository.h"
#include "params/adapter_kind.h"
#include "report/humanise.h"
#include "session/model_path.h"
#include "weights/card_file.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

/// The keys of a run that its card repeats; those that are unset are left out.
constexpr const char* kCardKeys[] = {"finetuning_type",
                                     "lora_r",
                                     "lora_alpha",
                                     "lora_dropout",
                                     "lora_target_modules",
                                     "use_dora",
                                     "dtype",
                                     "base_weight_dtype",
                                     "learning_rate",
                                     "lr_scheduler_type",
                                     "warmup_ratio",
                                     "num_train_epochs",
                                     "max_steps",
                                     "optim",
                                     "weight_decay",
                                     "max_grad_norm",
                                     "global_batch_size",
                                     "max_length",
                                     "packing",
                                     "train_on",
                                     "seed"};

constexpr const char* kTraining = "## Training";
constexpr const char* kUse = "## Use";

/// Text in a cell of a table.
std::string cell(const std::string& text) {
  std::string plain = one_line(text);
  for (char& c : plain) {
    if (c == '|' || c == '`') c = '\'';
  }
  return plain.empty() ? "" : "`" + plain + "`";
}

std::string card_row(const std::string& name, const std::string& value) {
  return fmt::format("| {} | {} |\n", name, value);
}

std::string folder_name(const std::string& path) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(path, error);
  if (error) whole = fs::path(path).lexically_normal();
  return whole.has_filename() ? whole.filename().string() : whole.parent_path().filename().string();
}

/// ORG/NAME of a folder of the hub's cache: …/models--ORG--NAME/snapshots/COMMIT.
std::string id_in_cache(const fs::path& path) {
  constexpr std::string_view kBegin = "models--";
  for (const fs::path& part : path) {
    std::string name = part.string();
    if (!name.starts_with(kBegin)) continue;
    name.erase(0, kBegin.size());
    if (const size_t between = name.find("--"); between != std::string::npos) name.replace(between, 2, "/");
    return parse_repo_name(RepoType::kModel, name, true) ? name : "";
  }
  return "";
}

struct FrontMatter {
  std::string library;  ///< "": none
  std::string base;     ///< an id of the hub; "": none
  bool adapter = false;
  std::vector<std::string> datasets = {};  ///< ids of the hub
};

/// As PEFT and the hub's documentation write it. The licence is the user's to choose.
std::string front_matter(const FrontMatter& facts) {
  std::string text = "---\n";
  if (!facts.base.empty()) text += fmt::format("base_model: {}\n", facts.base);
  if (!facts.datasets.empty()) text += fmt::format("datasets:\n- {}\n", fmt::join(facts.datasets, "\n- "));
  if (!facts.library.empty()) text += fmt::format("library_name: {}\n", facts.library);
  text += "pipeline_tag: text-generation\ntags:\n";
  if (facts.adapter) {
    if (!facts.base.empty()) text += fmt::format("- base_model:adapter:{}\n", facts.base);
    text += "- lora\n";
  }
  return text + "- transformers\n---\n\n" + std::string(kCardMarker) + "\n\n";
}

/// A data set as a card names it: its id on the hub, or the name of its file or folder.
struct CardDataset {
  std::string hub_id, title;
};

CardDataset card_dataset(const DatasetConfig& set) {
  if (!is_hub_dataset(set.path)) return {"", folder_name(set.path)};
  const std::string id = parse_repo_name(RepoType::kDataset, set.path)->repo.id;
  return {id, id};
}

std::string titles_of(const std::vector<DatasetConfig>& sets) {
  std::string text;
  for (const DatasetConfig& set : sets) text += (text.empty() ? "" : ", ") + cell(card_dataset(set).title);
  return text;
}

std::string data_rows(const DescribedRun& run, const RunState& state) {
  const RunConfig::Data& data = run.config.data;
  std::string text = card_row("data", titles_of(data.datasets));
  text += card_row("samples", with_commas(run.data().train.size()));
  if (!data.eval_datasets.empty()) text += card_row("evaluation data", titles_of(data.eval_datasets));
  if (run.data().eval.size() > 0) text += card_row("evaluation samples", with_commas(run.data().eval.size()));
  return text + card_row("steps", with_commas(state.step)) + card_row("tokens", with_commas(state.num_tokens));
}

std::string loss_rows(const RunState& state) {
  std::string text;
  for (const char* name : {"first", "best", "last"}) {
    if (!state.evaluations.contains(name)) continue;
    const Json& one = state.evaluations[name];
    text +=
        card_row(fmt::format("eval_loss, {}", name),
                 fmt::format("{} after step {}", fixed_number(one.value("eval_loss", 0.0), 4), one.value("step", 0)));
  }
  return text;
}

std::string key_rows(const RunConfig& config) {
  const std::vector<std::pair<std::string, std::string>> all = resolved_pairs(config);
  std::string text;
  for (const char* key : kCardKeys) {
    if (std::string_view(key) == "num_train_epochs" && config.schedule.max_steps) continue;  // which win
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& pair) { return pair.first == key; });
    if (found == all.end()) continue;
    const bool of_adapter = std::string_view(key).starts_with("lora_") || std::string_view(key) == "use_dora";
    if (of_adapter && config.model.finetuning_type != FinetuningType::kLora) continue;
    text += card_row(fmt::format("`{}`", key), cell(found->second));
  }
  return text;
}

std::string training_section(const DescribedRun& run, const RunState& state) {
  return fmt::format(
      "{}\n\n| | |\n|---|---|\n{}{}{}{}\nThe run is repeated by `hone train config.resolved.yaml`, with that file of "
      "the "
      "run's folder.\n\n",
      kTraining, data_rows(run, state), loss_rows(state), key_rows(run.config), card_row("Hone", version()));
}

std::string use_of_adapter(const CardModel& base, bool loads_in_peft) {
  std::string text = fmt::format("{}\n\n```sh\nhone generate --model {} --adapter THIS_FOLDER --prompt Hello\n```\n",
                                 kUse, one_line(base.title));
  if (!loads_in_peft) return text;
  return text +
         fmt::format(
             "\n```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
             "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({}), \"THIS_FOLDER\")\n```\n",
             Json(base.title).dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string use_of_model() {
  return fmt::format(
      "{}\n\n```sh\nhone generate --model THIS_FOLDER --prompt Hello\n```\n\n```python\nfrom transformers import "
      "AutoModelForCausalLM\n\nmodel = AutoModelForCausalLM.from_pretrained(\"THIS_FOLDER\")\n```\n",
      kUse);
}

/// What the adapter's own card says of its training; "" if Hone did not write one.
std::string training_of_adapter(const fs::path& adapter) {
  constexpr uintmax_t kMost = 1 << 20;
  if (!has_own_card(adapter) || fs::file_size(adapter / kCardName) > kMost) return "";
  const std::string card = read_whole_file(adapter / kCardName);
  const size_t begin = card.find(kTraining), end = card.find(kUse);
  return begin == std::string::npos || end == std::string::npos || end < begin ? "" : card.substr(begin, end - begin);
}

}  // namespace

CardModel card_model(const std::string& name_or_path) {
  std::string id;
  if (is_hub_name(name_or_path)) {
    if (const auto name = parse_repo_name(RepoType::kModel, name_or_path)) id = name->repo.id;
  } else {
    id = id_in_cache(name_or_path);
  }
  return {id, id.empty() ? folder_name(name_or_path) : id};
}

void write_run_card(const fs::path& directory, const DescribedRun& run, const RunState& state,
                    std::optional<AdapterLayout> adapter) {
  const CardModel base = card_model(run.config.model.model_name_or_path);
  const bool peft = adapter && *adapter != AdapterLayout::kKt && *adapter != AdapterLayout::kSglang;
  FrontMatter facts{.library = peft      ? "peft"
                               : adapter ? ""
                                         : "transformers",
                    .base = base.hub_id,
                    .adapter = adapter.has_value()};
  for (const DatasetConfig& set : run.config.data.datasets) {
    const std::string id = card_dataset(set).hub_id;
    if (!id.empty() && std::find(facts.datasets.begin(), facts.datasets.end(), id) == facts.datasets.end()) {
      facts.datasets.push_back(id);
    }
  }
  const std::string kind = adapter ? std::string(adapter_kind(*run.model->lora()).name) : "";
  const std::string title = adapter ? fmt::format("# {} adapter for {}\n\nAn adapter for {}, trained with Hone.\n\n",
                                                  kind, one_line(base.title), cell(base.title))
                                    : fmt::format("# {}, fine-tuned\n\n{} with all weights fine-tuned by Hone.\n\n",
                                                  one_line(base.title), cell(base.title));
  write_durably(directory / kCardName, front_matter(facts) + title + training_section(run, state) +
                                           (adapter ? use_of_adapter(base, peft) : use_of_model()));
}

void write_merged_card(const fs::path& directory, const std::string& base_path, const fs::path& adapter) {
  const CardModel base = card_model(base_path);
  const std::string title =
      fmt::format("# {}, with an adapter merged\n\n{} with the adapter {} merged into it by Hone {}.\n\n",
                  one_line(base.title), cell(base.title), cell(folder_name(adapter.string())), version());
  write_durably(directory / kCardName, front_matter({.library = "transformers", .base = base.hub_id}) + title +
                                           training_of_adapter(adapter) + use_of_model());
}

}  // namespace hone
