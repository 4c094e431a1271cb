// A thinned case: the same checks within a tenth of the bytes of gradients and trained weights, for cases that are kept
// with the sources.
#pragma once

#include <filesystem>

namespace hone {

/// Copies the case `from` to `to` with large tensors of the gradients as sketches (reference_tensor.h) and, instead of
/// full_final.safetensors, full_change.safetensors: what training changed, thinned likewise, of the tensors that were
/// trained. The same case gives the same bytes. UserError if `to` exists, or `from` is no case or is thinned already.
void thin_case(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hone
