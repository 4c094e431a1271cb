// A thinned case: the same checks with a tenth of the bytes of gradients and trained weights, for cases in the source
// repository.
#pragma once

#include <filesystem>

namespace hone {

/// Copies the case `from` to `to`, with sketches of large gradient tensors (reference_tensor.h) and, instead of
/// full_final.safetensors, full_change.safetensors: the changes of the trained tensors, thinned likewise. The same case
/// gives the same bytes. Throws UserError if `to` exists, or if `from` is not a case or is thinned already.
void thin_case(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hone
