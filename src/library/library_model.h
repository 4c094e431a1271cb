// A model in memory that answers prompts for the C interface.
#pragma once

#include <functional>
#include <string>

#include "app/inference/inference_model.h"
#include "core/text/json_value.h"

namespace hone {

struct LibraryModelSettings {
  InferenceOptions inference;
  GeneratorOptions generator;
};

class LibraryModel {
 public:
  using Tell = std::function<void(const std::string& line)>;
  /// Text of the answer to a prompt; true ends the generation.
  using OnText = std::function<bool(int64_t sequence, const std::string& text)>;

  /// Loads the model of hone_model_open()'s settings. `tell` gets notes for the user.
  LibraryModel(const JsonValue& settings, const Tell& tell);

  /// Answers hone_model_generate()'s request. `stop` is asked before each pass of the model.
  JsonValue generate(const JsonValue& request, const OnText& on_text, const std::function<bool()>& stop);

 private:
  LibraryModel(LibraryModelSettings settings, const Tell& tell);

  InferenceModel model_;
  Generator* generator_;
};

}  // namespace hone
