// How far the noise of a run widens the bounds of a comparison with it.
#pragma once

namespace hone {

/// Both sides may deviate by the noise, in opposite directions.
constexpr double kNoiseFactor = 2;

/// The largest noise for which a bound of kNoiseFactor times the noise is useful: a run that changes no weights has an
/// error of 1 in their change, and the losses of a case change by a few hundredths in a run. A case with more is
/// refused.
constexpr double kMostNumberNoise = 0.02;
constexpr double kMostChangeNoise = 0.2;
/// The same for rows without training (RowNoise). An error of some 1e-3 in a factor or a norm's weight must exceed
/// twice the noise; of gradients it must do so in half of the tensors, and a lost one, whose error is 1, in each.
constexpr double kMostRowNoise = 2e-4;
constexpr double kMostGradientNoise = 0.05;

}  // namespace hone
