// aligned: sizes of memory in whole lines, pages or alignments.
#pragma once

#include <cstddef>

namespace hone {

/// `bytes` rounded up to a multiple of `to`.
constexpr size_t aligned(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace hone
