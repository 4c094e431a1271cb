// The wire form of OpenAI's API: what a request asks for, and the JSON of answers.
// Source: OpenAI's API reference, chat completions and completions; fields beside it as vLLM names them.
#pragma once

#include <exception>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "app/inference/answer_text.h"
#include "app/inference/inference_model.h"
#include "core/text/json_value.h"
#include "infer/generator.h"

namespace hone {

/// An error as clients read it.
class ApiError : public std::exception {
 public:
  /// `param`: the field at fault; "" for none.
  ApiError(int status, std::string message, std::string param = "", std::string code = "");

  int status() const { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }
  /// {"error": {"message", "type", "param", "code"}}
  JsonValue json() const;

 private:
  int status_;
  std::string message_, param_, code_;
};

enum class ApiForm { kChat, kText };

/// A text, or its tokens.
using ApiPrompt = std::variant<std::string, std::vector<int32_t>>;

struct ApiRequest {
  ApiForm form = ApiForm::kChat;
  std::string model;                    ///< "": the first that is served
  JsonValue messages = {}, tools = {};  ///< kChat
  JsonObject template_kwargs = {};      ///< kChat, variables of the template
  std::vector<ApiPrompt> prompts;       ///< kText
  SamplingOverrides sampling;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;
  bool ignores_eos = false;  ///< the model's stop tokens do not end an answer
  int count = 1;             ///< answers to each prompt (n)
  bool stream = false, tells_usage = false;
  std::optional<int> likely;  ///< log-probabilities, of so many tokens beside the chosen one
};

/// Reads a request's body. Throws ApiError (400) with the field: for one that is malformed or unknown, and for one that
/// asks for what Hone does not do. Fields that change no answer (user, metadata, store, service_tier, …) are accepted.
ApiRequest read_request(ApiForm form, std::string_view body);

/// A token as log-probabilities show it.
struct ShownToken {
  std::string text, bytes;  ///< bytes: before anything replaced an incomplete character
  double value = 0;
};
struct ShownChoice {
  ShownToken chosen;
  std::vector<ShownToken> likely = {};
};

/// What is told of one answer, whole or as a piece.
struct ApiChoice {
  int index = 0;
  AnswerPiece piece = {};
  std::vector<ShownChoice> tokens = {};  ///< where log-probabilities are asked for
  size_t text_offset = 0;                ///< kText: bytes of text before these tokens
  std::optional<std::string> finish = {};
  size_t calls_before = 0;  ///< calls in earlier pieces
};

struct ApiUsage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;  ///< prompt tokens that were not computed: GeneratedSequence::found
};

/// What all objects of one answer share.
struct ApiAnswer {
  ApiForm form;
  std::string id, model;
  int64_t created = 0;  ///< seconds since 1970
  bool tells_likely = false;
};

JsonValue whole_answer(const ApiAnswer& answer, std::span<const ApiChoice> choices, const ApiUsage& usage);
/// A chunk of a stream; `first` is that of a choice which tells its role.
JsonValue chunk(const ApiAnswer& answer, const ApiChoice& choice, bool first);
/// The last chunk where the usage is asked for.
JsonValue usage_chunk(const ApiAnswer& answer, const ApiUsage& usage);
JsonValue model_list(std::span<const std::string> names, int64_t created);

/// JSON on one line, ill-formed UTF-8 replaced.
std::string line_of(const Json& json);

}  // namespace hone
