// Helpers of tests that run the program: processes, folders, a tiny model and its data.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/text/json.h"

namespace hone {

/// A temporary folder; the destructor removes it.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  /// Writes a file in the folder and returns its path.
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

struct Outcome {
  int code = -1;  ///< exit code; 128 + signal if a signal ended it
  std::string out, err;
};

/// A running hone process. The destructor kills it if it has not been waited for.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int id() const { return id_; }
  /// Whether it has not ended.
  bool runs() const;
  /// What it has written to standard error so far.
  std::string errors() const;
  void send(int signal) const;
  Outcome wait();

 private:
  Folder folder_;
  int id_ = -1;
};

/// The program under test.
std::string hone_program();

/// Runs hone and waits for its end.
Outcome run_hone(const std::vector<std::string>& arguments);

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
std::string read_file(const std::filesystem::path& path);
std::vector<Json> read_json_lines(const std::filesystem::path& path);
std::vector<std::string> names_in(const std::filesystem::path& folder);

/// config.json of a Qwen3-MoE with two layers of four experts, 64 tokens, 128 positions.
Json tiny_config();
/// Runs `hone init --new-model` with this config into `folder`/model; returns its path.
std::string make_model(const Folder& folder, const Json& config = tiny_config(), const std::string& tokenizer = "");

/// A copy of a model whose weights are jittered (run_noise.h), beside it; returns its path.
std::string jittered_model(const std::string& model, uint64_t seed, DType dtype = DType::kF32);

/// JSONL of type tokenized: arithmetic progressions, which can be learnt quickly, or random tokens, which cannot.
std::string progressions(int rows, uint64_t seed = 1);
std::string random_tokens(int rows, uint64_t seed = 2);

/// "train", the model, data and output folder, and options under which a run of the tiny model takes a second.
std::vector<std::string> train_arguments(const std::string& model, const std::string& data,
                                         const std::filesystem::path& output,
                                         const std::vector<std::string>& more = {});

}  // namespace hone
