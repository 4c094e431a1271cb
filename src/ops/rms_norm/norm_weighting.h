// Application of a norm's weight; n is the normalised row in float32.
#pragma once

namespace hone {

enum class NormWeighting {
  kPlain,    ///< round(w · round(n)): Llama, Mixtral, Qwen3
  kFromOne,  ///< round((1 + w) · n): Qwen3-Next and Qwen3.5
  kOnce,     ///< round(w · n): Gemma 4, Nemotron-H
};

}  // namespace hone
