// ExpertActivation: the function between the two products of an expert.
#pragma once

namespace hone {

/// f(g, u) of gate and up, elementwise.
struct ExpertActivation {
  enum class Kind {
    kSwiglu,         ///< silu(g) · u
    kClampedSwiglu,  ///< gpt-oss: g' · sigmoid(alpha · g') · (u' + 1), g' = min(g, limit), u' = u within ±limit
  };
  Kind kind = Kind::kSwiglu;
  float alpha = 1.0f, limit = 0.0f;  ///< kClampedSwiglu; a clamp has gradient 1 up to its limit, 0 beyond

  bool operator==(const ExpertActivation&) const = default;
};

}  // namespace hone
