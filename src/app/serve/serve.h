// hone serve: a model behind OpenAI's API, to try it from other programs and in a browser.
#pragma once

#include <functional>
#include <string>

#include "app/inference/inference_model.h"

namespace hone {

struct ServeOptions : InferenceOptions {
  std::vector<std::string> adapters;  ///< NAME=FOLDER, or a folder, whose name it then has: all answer, and the base
  std::string host = "127.0.0.1";
  int port = 8000;            ///< 0: any free one
  std::string name;           ///< what requests call the model; "": its folder's name
  std::string api_key_file;   ///< whose first line requests must know; "": the variable HONE_API_KEY, if it is set
  int64_t batch_size = 8;     ///< sequences that run at once
  int64_t max_length = 0;     ///< tokens of a prompt and its answer; 0: the model's context, at most 4096
  int64_t cache_tokens = 0;   ///< GeneratorOptions::cache_tokens
  int64_t max_waiting = 256;  ///< sequences that wait for one of these to end; further ones are refused
  double timeout = 600;       ///< seconds until an answer ends with what there is
  std::function<void(int port)> started = nullptr;  ///< for tests: it listens
  std::function<bool()> ends = nullptr;             ///< for tests: looked at several times a second
};

/// Serves until SIGINT or SIGTERM, which end answers that are on their way. Paths:
///   POST /v1/chat/completions, /v1/completions   as OpenAI's (app/serve/openai.h), whole or as server-sent events
///   GET /v1/models    the model, or its adapters and the base, each by the name that requests choose it with
///   GET /health, /metrics, /                     a page for the browser
/// On this machine's loopback, requests from pages of other sites are refused; another host needs a key. Returns the
/// exit code. Throws UserError for options that do not go together, and a port that is taken.
int run_serve(const ServeOptions& options);

}  // namespace hone
