// The names of recipes of products in 8-bit floats; apart from formats/fp8.h, which CUDA sources read.
#pragma once

#include "core/base/named_choice.h"
#include "formats/fp8.h"

namespace hone {

template <>
inline constexpr auto kChoiceNames<Fp8Recipe> =
    std::to_array<ChoiceName<Fp8Recipe>>({{Fp8Recipe::kOff, "off"},
                                          {Fp8Recipe::kTensorwise, "tensorwise"},
                                          {Fp8Recipe::kRowwise, "rowwise"},
                                          {Fp8Recipe::kBlockwise, "blockwise"}});

}  // namespace hone
