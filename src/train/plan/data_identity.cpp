#include "train/plan/data_identity.h"

#include <fmt/format.h>

#include <vector>

#include "config/run_options.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "data/dataset/token_cache.h"
#include "report/humanise.h"

namespace hone {

namespace {

std::string sizes_of(const Json& dataset) {
  const auto count = [&](const char* name) {
    return with_commas(whole_number<int64_t>(dataset.value(name, Json())).value_or(0));
  };
  return fmt::format("{} samples of {} tokens", count("samples"), count("tokens"));
}

Json member(const Json& object, const char* name) {
  return object.is_object() ? object.value(name, Json::object()) : Json::object();
}

}  // namespace

Json data_identity(const TrainingData& data, const RunConfig& config) {
  struct Size {
    int64_t samples = 0, tokens = 0;
  };
  std::vector<Size> sizes(data.train_names.size());
  for (int64_t i = 0; i < data.train.size(); ++i) {
    const SampleView sample = data.train[i];
    Size& size = sizes[static_cast<size_t>(sample.dataset)];
    ++size.samples;
    size.tokens += static_cast<int64_t>(sample.input_ids.size());
  }
  Json datasets = Json::object();
  for (size_t i = 0; i < sizes.size(); ++i) {
    datasets[data.train_names[i]] = {{"path", data.train_reports[i].path},
                                     {"samples", sizes[i].samples},
                                     {"tokens", sizes[i].tokens},
                                     {"hash", data.train.fingerprint_of(static_cast<int32_t>(i))}};
  }
  return {{"datasets", datasets},
          {"eval", data.eval.size() > 0 ? data.eval.fingerprint() : ""},
          {"order",
           {{"max_length", *config.data.max_length},
            {"overlength", name_of(config.data.overlength)},
            {"train_on", name_of(config.data.train_on)},
            {"val_split", config.data.val_split},
            {"weights", train_loader_options(config).dataset_weights},
            {"packing", config.data.packing},
            {"shuffle", config.data.shuffle},
            {"data_seed", config.machine.data_seed},
            {"per_device_train_batch_size", config.schedule.per_device_train_batch_size},
            {"gradient_accumulation_steps",
             config.schedule.gradient_accumulation_steps * config.machine.ranks}}}};  // as with one rank
}

std::string identity_difference(const Json& before, const Json& now) {
  std::vector<std::string> texts;
  const Json old_sets = member(before, "datasets"), new_sets = member(now, "datasets");
  for (const auto& [name, dataset] : new_sets.items()) {
    if (!old_sets.contains(name)) {
      texts.push_back(fmt::format("the data set '{}' is new", name));
    } else if (const Json& old = old_sets[name]; old.value("hash", "") != dataset.value("hash", "")) {
      const std::string was = sizes_of(old), is = sizes_of(dataset);
      texts.push_back(fmt::format("the data set '{}' ({}) has changed: {}, {}", name, dataset.value("path", ""), is,
                                  was == is ? "as before, but other ones" : "was " + was));
    }
  }
  for (const auto& [name, dataset] : old_sets.items()) {
    if (!new_sets.contains(name)) texts.push_back(fmt::format("the data set '{}' is no longer there", name));
  }
  const std::string options = describe_differences(member(before, "order"), member(now, "order"));
  if (!options.empty()) texts.push_back(options);
  return fmt::format("{}", fmt::join(texts, "; "));
}

bool eval_differs(const Json& before, const Json& now) {
  return before.value("eval", Json()) != now.value("eval", Json());
}

}  // namespace hone
