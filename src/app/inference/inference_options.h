// The options of verbs that answer: hone generate, chat and serve.
#pragma once

#include <string>
#include <vector>

#include "app/inference/inference_model.h"

namespace CLI {
class App;
}

namespace hone {

/// Adds options for the model, its adapter and template, and sampling. `options` must outlive the verb, as `adapters`,
/// which receive what --adapter says instead where it may be given several times.
void add_inference(CLI::App* verb, InferenceOptions& options, std::vector<std::string>* adapters = nullptr);

/// The options of `hone generate` that say which model answers, where it is, and how it samples. `words`: the verb and
/// its options. UserError for others.
InferenceOptions parse_inference(std::vector<std::string> words);

}  // namespace hone
