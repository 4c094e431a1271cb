// Answers of the model of an evaluation: its chat template, its sampling, and generation beside its loss.
#pragma once

#include <string>
#include <vector>

#include "app/inference/generation_prompts.h"
#include "infer/generator.h"
#include "train/run/evaluation_run.h"

namespace hone {

/// The tokenizer of a described evaluation. UserError at `where` if the model has none.
const Tokenizer& tokenizer_of(const DescribedRun& described, const std::string& where);
/// Its chat template, as the configuration says. The run must outlive it.
ChatPrompt chat_of(const DescribedRun& described, const Tokenizer& tokenizer);

/// How answers are sampled where the configuration does not say so.
enum class UsualSampling {
  kModels,  ///< as the model's generation_config.json
  kGreedy,  ///< the most probable token, as lm-evaluation-harness
};

/// The answers to prompts of tokens, in their order, with the currently attached adapters. An answer ends at a stop
/// token, a limit, or where its text contains one of `until`, at which it is cut.
/// errors. UserError for a prompt that fills the context. Collective.
std::vector<std::string> answers_of(const EvaluationRun& run, const std::vector<PromptRow>& prompts,
                                    UsualSampling usual, const std::vector<std::string>& until = {});

/// The text before the first of `until`, taken one after another, as lm-evaluation-harness cuts.
std::string cut_at(std::string text, const std::vector<std::string>& until);

}  // namespace hone
