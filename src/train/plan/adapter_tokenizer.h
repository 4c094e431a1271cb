// The tokenizer that an adapter was trained with: the model's, or one with added tokens that its folder has.
#pragma once

#include <filesystem>

#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace hone {

/// `adapter`, if the tokenizer.json there has other tokens than the model's; else `model`, also for an empty `adapter`.
/// UserError for an adapter that holds more rows of the vocabulary than the model has, in a folder without a tokenizer:
/// nothing then says which tokens they belong to.
std::filesystem::path tokenizer_folder(const std::filesystem::path& model, const std::filesystem::path& adapter);

/// The tokenizer of `folder`, which tokenizer_folder gave, with `more`. Generation ends at the tokens of the model's
/// generation_config.json, too, which folders of adapters do not have.
Tokenizer load_tokenizer_beside(const std::filesystem::path& model, const std::filesystem::path& folder,
                                const NewTokens& more = {});

}  // namespace hone
