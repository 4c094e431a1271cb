// MlpActivation: the function between the two products of an MLP, dense or of an expert.
#pragma once

#include <cstdint>
#include <string_view>

namespace hone {

/// f of a row h of the first product's result, elementwise: of its halves gate g and up u, or without a gate of h
/// itself. Sources: Shazeer, "GLU Variants Improve Transformer" (arXiv:2002.05202); So et al., "Primer"
/// (arXiv:2109.08668) for the squared ReLU.
struct MlpActivation {
  enum class Kind {
    kSwiglu,         ///< silu(g) · u
    kClampedSwiglu,  ///< gpt-oss: g' · sigmoid(alpha · g') · (u' + 1), g' = min(g, limit), u' = u within ±limit
    kGeglu,          ///< gelu(g) · u; gelu(x) = x / 2 · (1 + tanh(√(2 / π) · (x + 0.044715 x³)))
    kSquaredRelu,    ///< max(h, 0)², without a gate
  };
  Kind kind = Kind::kSwiglu;
  float alpha = 1.0f, limit = 0.0f;  ///< kClampedSwiglu; a clamp has gradient 1 up to its limit, 0 beyond

  constexpr bool gated() const { return kind != Kind::kSquaredRelu; }
  /// The columns of h for an MLP of this width, gate first: the outputs of the first product.
  constexpr int64_t columns(int64_t width) const { return gated() ? 2 * width : width; }
  /// The width of an MLP whose first product has this many outputs.
  constexpr int64_t width(int64_t columns) const { return gated() ? columns / 2 : columns; }
  /// What profiles and benchmarks call it.
  std::string_view name() const {
    switch (kind) {
      case Kind::kSwiglu:
        return "swiglu";
      case Kind::kClampedSwiglu:
        return "clamped_swiglu";
      case Kind::kGeglu:
        return "geglu";
      case Kind::kSquaredRelu:
        return "squared_relu";
    }
    return {};
  }

  bool operator==(const MlpActivation&) const = default;
};

}  // namespace hone
