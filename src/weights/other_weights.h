// Weights in forms that are not read: messages for who names a GGUF file, or a folder without safetensors.
#pragma once

#include <filesystem>
#include <string>

namespace hone {

/// Throws UserError if `path` is a GGUF file, by its name or its first bytes.
void refuse_gguf_file(const std::filesystem::path& path);

/// What to do about a model folder without safetensors, by what it has instead: GGUF files, pickles, nothing.
std::string advice_without_safetensors(const std::filesystem::path& directory);

}  // namespace hone
