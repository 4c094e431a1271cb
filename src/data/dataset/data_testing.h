// Helpers of the tests of this room: a folder for one test, tokenizers of the fixtures, error messages as text.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/dataset/block_builder.h"
#include "data/packing/sample_store.h"
#include "text/tokenizer.h"

namespace hone {

class DataFolder {
 public:
  DataFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "hone_data_XXXXXX").string();
    path_ = mkdtemp(name.data()) ? name : "";
    EXPECT_FALSE(path_.empty());
  }
  ~DataFolder() { std::filesystem::remove_all(path_); }
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(*this / name).parent_path());
    std::ofstream(*this / name, std::ios::binary) << text;
    return *this / name;
  }

 private:
  std::string path_;
};

inline std::string fixture(const std::string& name) { return std::string(HONE_SOURCE_DIR) + "/tests/fixtures/" + name; }

inline std::string read_fixture(const std::string& name) {
  std::ifstream in(fixture(name), std::ios::binary);
  EXPECT_TRUE(in.is_open()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A tokenizer of the fixtures with the given tokenizer_config.json and, if not null, generation_config.json.
inline Tokenizer fixture_tokenizer(const std::string& name, const Json& config, const Json& generation = nullptr) {
  const DataFolder folder;
  std::filesystem::copy_file(fixture("tokenizers/" + name + "/tokenizer.json"), folder / "tokenizer.json");
  folder.write("tokenizer_config.json", config.dump());
  if (!generation.is_null()) folder.write("generation_config.json", generation.dump());
  return Tokenizer::load(folder.path());
}

/// A reduced tokenizer of Qwen3 with the ChatML template.
inline Tokenizer qwen_tokenizer() {
  return fixture_tokenizer("qwen3",
                           {{"eos_token", "<|im_end|>"}, {"chat_template", read_fixture("templates/chatml.jinja")}});
}

/// A block of samples as separate rows, at lines from 1.
inline TokenBlock block_of(const std::vector<Sample>& samples, int64_t max_length, Overlength overlength) {
  BlockBuilder builder(max_length, overlength);
  EncodedRow row;
  for (size_t i = 0; i < samples.size(); ++i) {
    row.sample = samples[i];
    row.origin = {static_cast<int64_t>(i), static_cast<int64_t>(i) + 1, 0};
    builder.add(row, "a:" + std::to_string(i + 1));
  }
  return builder.take();
}

/// A store of one data set with these samples.
inline SampleStore store_of(const std::vector<Sample>& samples, int64_t max_length,
                            Overlength overlength = Overlength::kDrop) {
  SampleStore store(max_length);
  store.append(block_of(samples, max_length, overlength), 0);
  return store;
}

/// The message of the UserError that `action` throws, or "".
inline std::string refusal(auto&& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// The supervised tokens of a sample as text, with "|" between runs.
inline std::string supervised_text(const Sample& sample, const Tokenizer& tokenizer) {
  std::string text;
  std::vector<int32_t> run;
  const auto flush = [&] {
    if (!run.empty()) text += (text.empty() ? "" : "|") + tokenizer.decode(run, false);
    run.clear();
  };
  for (size_t i = 0; i < sample.input_ids.size(); ++i) {
    if (sample.labels[i] == kIgnoredLabel) {
      flush();
    } else {
      run.push_back(sample.labels[i]);
    }
  }
  flush();
  return text;
}

}  // namespace hone
