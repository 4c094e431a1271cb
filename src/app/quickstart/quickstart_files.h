// The files of examples/quickstart, which are part of the program: the data, the model without its weights, two runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

struct QuickstartFile {
  std::string_view name;  ///< below examples/quickstart: "data/english_train.jsonl"
  std::string_view text;
};

/// All of them, from cmake/files_inside.cpp.in.
std::span<const QuickstartFile> quickstart_files();

/// The text of the file with this name, which there must be.
std::string_view quickstart_file(std::string_view name);

/// A run ("act1.yaml") with `folder` where the file has quickstart, and with other values of these keys.
std::string run_in_folder(std::string_view name, const std::filesystem::path& folder,
                          const std::map<std::string, std::string>& keys);

/// A calendar sentence and its moment in ISO 8601.
struct Example {
  std::string question, answer;
};

/// The first `count` rows of a file of the data, or all if there are fewer.
std::vector<Example> read_examples(std::string_view name, int64_t count);

/// The conversation [{"role": "user", …}] that asks an example's question.
Json question_messages(const Example& example);

}  // namespace hone
