// Helpers of the tests that run the program as a user does: processes, folders, a tiny model and its data.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"

namespace hone {

/// A folder that goes away with it.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  /// Writes a file below it and gives its path.
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

struct Outcome {
  int code = -1;  ///< exit code; 128 + signal if a signal ended it
  std::string out, err;
};

/// hone, started with these arguments; killed if nobody waits for it.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const;
  Outcome wait();

 private:
  Folder folder_;
  int id_ = -1;
};

/// The program under test.
std::string hone_program();

/// Runs hone to its end.
Outcome run_hone(const std::vector<std::string>& arguments);

std::string read_file(const std::filesystem::path& path);
std::vector<Json> read_json_lines(const std::filesystem::path& path);
std::vector<std::string> names_in(const std::filesystem::path& folder);

/// config.json of a Qwen3-MoE with two layers of four experts, 64 tokens, 128 positions.
Json tiny_config();
/// `hone init --new-model` with that config (or another) into `folder`/model; gives its path.
std::string make_model(const Folder& folder, const Json& config = tiny_config(), const std::string& tokenizer = "");

/// JSONL of type tokenized: arithmetic progressions, which are learnt quickly; or random tokens, which are not.
std::string progressions(int rows, uint64_t seed = 1);
std::string random_tokens(int rows, uint64_t seed = 2);

/// "train", the model, data and output folder, and options under which a run of the tiny model takes a second.
std::vector<std::string> train_arguments(const std::string& model, const std::string& data,
                                         const std::filesystem::path& output,
                                         const std::vector<std::string>& more = {});

}  // namespace hone
