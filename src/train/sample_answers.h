// Answers of the model that is trained to a few prompts of its data, made at evaluations.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "data/sample_store.h"
#include "infer/generator.h"
#include "text/tokenizer.h"

namespace hone {

struct SampleAnswer {
  std::string prompt, generated, expected;
  bool finished = false;  ///< by the model, not by a limit
  int64_t tokens = 0;     ///< generated
};

struct SampleAnswerOptions {
  int64_t count = 3;       ///< samples, spread evenly over the store
  int64_t max_length = 0;  ///< tokens of prompt and answer together
  SamplingOptions sampling;
  GenerateTogether together;
};

class SampleAnswers {
 public:
  /// A prompt is what stands before the first supervised token; of a sample that is learnt from its start, its first
  /// half. What is expected is the rest of the sample, up to the next token that is not supervised. `tokenizer` may be
  /// null: texts are token ids then. Allocates the generator's memory. All but `samples` outlive this.
  SampleAnswers(const SampleStore& samples, const Tokenizer* tokenizer, const Decoder& decoder, Stream& stream,
                const SampleAnswerOptions& options);
  ~SampleAnswers();

  /// With the parameters as they are now.
  std::vector<SampleAnswer> generate();

 private:
  std::string text_of(const std::vector<int32_t>& ids) const;

  const Tokenizer* tokenizer_;
  GenerationRequest request_;
  std::vector<std::vector<int32_t>> expected_;
  std::unique_ptr<Generator> generator_;
};

/// Prompt, answer and expectation of each, for the log.
std::string sample_answers_text(const std::vector<SampleAnswer>& answers, int width, bool color);

Json to_json(const SampleAnswer& answer);

}  // namespace hone
